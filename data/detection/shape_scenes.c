/* Scene (seed, split, index) is a function of one Philox stream:
 *   ground    dark colour + slope . (x,y)
 *   figures   a random number; each of any class and angle, in a light colour, with a radius of side/12 to side/5,
 *             placed so that its box overlaps earlier ones by at most a tenth of the smaller; dropped after 20 attempts
 *   noise     per channel, the difference of two random bytes, scaled */
#include "data/detection/shape_scenes.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/rng.h"

/* Scenes draw from the streams of splits that data/sets/shapes does not use. */
enum { SCENE_SPLIT = 256, ATTEMPTS = 20 };

typedef struct {
    int label;
    float x, y, radius, cosine, sine;
    int box[4];
} SceneFigure;

/* The fraction of that pixel that the figure covers, 0 to 1. */
static float cover(const SceneFigure *f, int x, int y) {
    float u = ((float)x + 0.5f - f->x) / f->radius, v = ((float)y + 0.5f - f->y) / f->radius;
    float distance = f->radius * shapes_distance(f->label, f->cosine * u + f->sine * v, f->cosine * v - f->sine * u);
    return fminf(fmaxf(0.5f - distance, 0), 1);
}

static void find_box(SceneFigure *f, int side) {
    float far = shapes_reach * f->radius + 1;
    int x0 = (int)fmaxf(f->x - far, 0), x1 = (int)fminf(f->x + far + 1, (float)side);
    int y0 = (int)fmaxf(f->y - far, 0), y1 = (int)fminf(f->y + far + 1, (float)side);
    int *box = f->box;
    box[0] = box[1] = side;
    box[2] = box[3] = 0;
    for (int y = y0; y < y1; y++)
        for (int x = x0; x < x1; x++)
            if (cover(f, x, y) > 0) shapes_extend(box, x, y);
}

static SceneFigure place_figure(ShapesStream *s, int label, int side) {
    SceneFigure f = {.label = label, .radius = shapes_uniform(s, (float)side / 12, (float)side / 5)};
    float margin = shapes_reach * f.radius + 0.5f, turn = shapes_uniform(s, 0, 6.2831853f);
    f.x = shapes_uniform(s, margin, (float)side - margin);
    f.y = shapes_uniform(s, margin, (float)side - margin);
    f.cosine = cosf(turn);
    f.sine = sinf(turn);
    find_box(&f, side);
    return f;
}

static int area(const int box[4]) { return (box[2] - box[0]) * (box[3] - box[1]); }

static bool in_the_way(const int a[4], const int b[4]) {
    int w = (a[2] < b[2] ? a[2] : b[2]) - (a[0] > b[0] ? a[0] : b[0]);
    int h = (a[3] < b[3] ? a[3] : b[3]) - (a[1] > b[1] ? a[1] : b[1]);
    int smaller = area(a) < area(b) ? area(a) : area(b);
    return w > 0 && h > 0 && 10 * w * h > smaller;
}

static bool fits(const SceneFigure *f, const SceneFigure *others, int count) {
    for (int i = 0; i < count; i++)
        if (in_the_way(f->box, others[i].box)) return false;
    return true;
}

static int place_figures(SceneFigure figures[SCENES_MOST], ShapesStream *s, int side) {
    int wanted = 1 + shapes_below(s, SCENES_MOST), placed = 0;
    for (int i = 0; i < wanted; i++) {
        int label = shapes_below(s, SHAPES_CLASSES); /* drawn before the attempts, which otherwise would favour slim
                                                      * figures */
        for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
            figures[placed] = place_figure(s, label, side);
            if (!fits(&figures[placed], figures, placed)) continue;
            placed++;
            break;
        }
    }
    return placed;
}

/* == Painting ===================================================================================================== */

/* Blends the byte towards a colour of 0 to 255 by the fraction `part`. */
static uint8_t blend(uint8_t byte, float colour, float part) {
    return (uint8_t)((float)byte + part * (colour - (float)byte) + 0.5f);
}

static void paint_ground(uint8_t *pixels, ShapesStream *s, int side) {
    float colour[3], slope[3][2], half = (float)side / 2;
    for (int k = 0; k < 3; k++) {
        colour[k] = shapes_uniform(s, 20, 100);
        slope[k][0] = shapes_uniform(s, -20, 20) / half;
        slope[k][1] = shapes_uniform(s, -20, 20) / half;
    }
    for (int y = 0; y < side; y++) {
        for (int x = 0; x < side; x++) {
            for (int k = 0; k < 3; k++) {
                float c = colour[k] + slope[k][0] * ((float)x - half) + slope[k][1] * ((float)y - half);
                *pixels++ = (uint8_t)(fmaxf(c, 0) + 0.5f);
            }
        }
    }
}

/* Paints the figure in a random colour; pixels may be NULL.  It is figure number `number` of the owners, counted from
 * 1, unless owner is NULL. */
static void paint_figure(uint8_t *pixels, uint8_t *owner, ShapesStream *s, const SceneFigure *f, int number, int side) {
    float colour[3];
    for (int k = 0; k < 3; k++) colour[k] = shapes_uniform(s, 140, 235);
    for (int y = f->box[1]; y < f->box[3]; y++) {
        for (int x = f->box[0]; x < f->box[2]; x++) {
            size_t at = (size_t)y * (size_t)side + (size_t)x;
            float part = cover(f, x, y);
            for (size_t k = 0; k < 3 && pixels; k++) pixels[3 * at + k] = blend(pixels[3 * at + k], colour[k], part);
            if (!owner || part == 0) continue;
            if (part >= 0.5f) owner[at] = (uint8_t)number;
            if (part < 1) owner[at] |= SCENES_EDGE;
        }
    }
}

int scenes_draw(uint64_t seed, uint32_t split, uint32_t index, int side, uint8_t *pixels, uint8_t *owner,
                int label[SCENES_MOST], int box[SCENES_MOST][4]) {
    assert(side >= SCENES_LEAST_SIDE);
    ShapesStream s = {seed, SCENE_SPLIT + split, index, 0, RNG_SHAPES};
    SceneFigure figures[SCENES_MOST];
    int count = place_figures(figures, &s, side);
    for (int i = 0; i < count; i++) {
        label[i] = figures[i].label;
        memcpy(box[i], figures[i].box, sizeof box[i]);
    }
    if (pixels) paint_ground(pixels, &s, side);
    if (owner) memset(owner, 0, (size_t)side * (size_t)side);
    for (int i = 0; i < count && (pixels || owner); i++) paint_figure(pixels, owner, &s, &figures[i], i + 1, side);
    if (!pixels) return count;
    float strength = shapes_uniform(&s, 0, 0.08f);
    shapes_noise(pixels, NULL, (size_t)side * (size_t)side * 3, 0, &s, strength);
    return count;
}

void scenes_classes(uint8_t *classes, const uint8_t *owner, size_t count, const int label[SCENES_MOST],
                    bool ignore_edges) {
    for (size_t i = 0; i < count; i++) {
        int number = owner[i] & ~SCENES_EDGE;
        bool edge = owner[i] & SCENES_EDGE;
        classes[i] = ignore_edges && edge ? SCENES_IGNORED : (uint8_t)(number ? 1 + label[number - 1] : 0);
    }
}

/* Scratch of one scene's masks. */
typedef struct {
    uint8_t *owner, *bitmap; /* [side,side] */
    Rle rle;
} SceneMasks;

/* Annotates the mask of a figure, and gives the last annotation its area. */
static void annotate_mask(Coco *coco, SceneMasks *m, int number, int side) {
    for (size_t i = 0; i < (size_t)side * (size_t)side; i++) m->bitmap[i] = (m->owner[i] & ~SCENES_EDGE) == number;
    rle_encode(&m->rle, m->bitmap, side, side);
    coco_masks_set(&coco->masks, &m->rle);
    coco->annotations[coco->annotation_count - 1].area = rle_extent(&m->rle).area;
}

void scenes_coco(Coco *coco, uint64_t seed, uint32_t split, int count, int side, bool masks) {
    Dataset shapes;
    Error error;
    SceneMasks scratch = {.owner = NULL};
    int64_t id = 1;
    shapes_describe(&shapes);
    *coco = (Coco){.masks.kind = masks ? COCO_RLE : COCO_NO_MASKS};
    if (masks) {
        scratch.owner = xcalloc((size_t)side * (size_t)side, 1, "the owners of pixels");
        scratch.bitmap = xcalloc((size_t)side * (size_t)side, 1, "the mask of a figure");
    }
    for (int c = 0; c < SHAPES_CLASSES; c++) coco_add_category(coco, c + 1, shapes.class_names[c]);
    for (int i = 0; i < count; i++) {
        char name[32];
        int label[SCENES_MOST], box[SCENES_MOST][4];
        int figures = scenes_draw(seed, split, (uint32_t)i, side, NULL, scratch.owner, label, box);
        snprintf(name, sizeof name, "scene-%06d", i);
        coco_add_image(coco, i + 1, name, side, side);
        for (int j = 0; j < figures; j++) {
            const double xywh[4] = {box[j][0], box[j][1], box[j][2] - box[j][0], box[j][3] - box[j][1]};
            coco_add_annotation(coco, id++, i + 1, label[j] + 1, xywh, area(box[j]), false);
            if (masks) annotate_mask(coco, &scratch, j + 1, side);
        }
    }
    free(scratch.owner);
    free(scratch.bitmap);
    rle_free(&scratch.rle);
    if (!coco_finish(coco, &error)) die("scenes: %s", error.text);
}
