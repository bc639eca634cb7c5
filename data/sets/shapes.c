/* Shapes on clutter.  Image (seed, split, index) is a function of one Philox stream and is painted in four layers:
 *   background   dark colour + slope . (x,y) + stripes: a triangle wave along a random direction
 *   clutter      up to three small figures of any class, or bars, in any colour
 *   the shape    class index mod 10; a light colour, position, radius and angle are random
 *   noise        per channel, the difference of two random bytes, scaled
 * Figures are signed distances d in units of their radius r, negative inside: min is a union, max(a, -b) a difference;
 * a pixel is covered by clamp(1/2 - r d, 0, 1).
 *
 * How hard it is, measured with 20,000 training images: logistic regression on the pixels gets 35 % of the test
 * split (tests/reference/linear_probe.py), since the shapes are rotated and moved at random; ripple attention of
 * width 96 and depth 4 (configs/cpu/shapes.ini) 52 % after one epoch and 96.9 % after ten.  A first version had shapes
 * of any colour on any colour; a transformer then reached 30 % after five epochs: too hard for a demo of minutes. */
#include "data/sets/shapes.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/rng.h"

enum { SIDE = SHAPES_SIDE, PIXELS = SIDE * SIDE, NOISE_AT = 4096 };

/* == Figures ====================================================================================================== */

static float disc(float x, float y) { return sqrtf(x * x + y * y) - 1.0f; }

static float ring(float x, float y) { return fabsf(sqrtf(x * x + y * y) - 0.76f) - 0.24f; }

static float crescent(float x, float y) { return fmaxf(disc(x, y), 0.9f - sqrtf((x - 0.55f) * (x - 0.55f) + y * y)); }

static float square(float x, float y) { return fmaxf(fabsf(x), fabsf(y)) - 0.8f; }

static float cross(float x, float y) {
    float thick = 0.3f, u = fabsf(x), v = fabsf(y);
    return fminf(fmaxf(u - thick, v - 1.0f), fmaxf(u - 1.0f, v - thick));
}

/* A square on its corner and a disc on each of its upper sides. */
static float heart(float x, float y) {
    float half = 0.8f, u = fabsf(x), v = y - 0.08f;
    float lobe = sqrtf((u - half / 2) * (u - half / 2) + (v + half / 2) * (v + half / 2)) - half * 0.70710678f;
    return fminf((u + fabsf(v) - half) * 0.70710678f, lobe);
}

static float bar(float x, float y) { return fmaxf(fabsf(x) - 2.5f, fabsf(y) - 0.25f); }

/* Distance to the nearest edge, negative where a ray to the right crosses the outline an odd number of times. */
static float polygon(const float (*corner)[2], int corners, float x, float y) {
    float nearest = 1e9f;
    bool inside = false;
    for (int i = 0, j = corners - 1; i < corners; j = i++) {
        float ax = corner[j][0], ay = corner[j][1], ex = corner[i][0] - ax, ey = corner[i][1] - ay;
        float px = x - ax, py = y - ay;
        float along = fminf(fmaxf((px * ex + py * ey) / (ex * ex + ey * ey), 0.0f), 1.0f);
        float dx = px - along * ex, dy = py - along * ey;
        nearest = fminf(nearest, dx * dx + dy * dy);
        if ((ay > y) != (corner[i][1] > y) && px < py * ex / ey) inside = !inside;
    }
    return inside ? -sqrtf(nearest) : sqrtf(nearest);
}

static float triangle(float x, float y) {
    static const float corner[][2] = {{0, -1.05f}, {0.91f, 0.525f}, {-0.91f, 0.525f}};
    return polygon(corner, 3, x, y);
}

static float star(float x, float y) {
    static const float corner[][2] = {{0, -1.1f},          {0.2645f, -0.3641f},  {1.0462f, -0.3399f},
                                      {0.4280f, 0.1391f},  {0.6466f, 0.8899f},   {0, 0.45f},
                                      {-0.6466f, 0.8899f}, {-0.4280f, 0.1391f},  {-1.0462f, -0.3399f},
                                      {-0.2645f, -0.3641f}};
    return polygon(corner, 10, x, y);
}

static float arrow(float x, float y) {
    static const float corner[][2] = {{0, -1.05f}, {0.85f, -0.1f},  {0.28f, -0.1f}, {0.28f, 1},
                                      {-0.28f, 1}, {-0.28f, -0.1f}, {-0.85f, -0.1f}};
    return polygon(corner, 7, x, y);
}

static float hourglass(float x, float y) {
    static const float corner[][2] = {{-0.75f, -0.95f}, {0.75f, -0.95f},  {0.1f, 0},
                                      {0.75f, 0.95f},   {-0.75f, 0.95f}, {-0.1f, 0}};
    return polygon(corner, 6, x, y);
}

/* The first ten are the classes, in the order of their labels; the bar occurs in clutter only. */
static float (*const figures[SHAPES_CLASSES + 1])(float x, float y) = {
    disc, ring, square, triangle, cross, star, heart, crescent, arrow, hourglass, bar};
static const char *const names[SHAPES_CLASSES] = {"disc", "ring",  "square",   "triangle", "cross",
                                                  "star", "heart", "crescent", "arrow",    "hourglass"};
const float shapes_reach = 1.14f;
static const float bar_reach = 2.52f;

float shapes_distance(int label, float x, float y) { return figures[label](x, y); }

/* == One image ==================================================================================================== */

typedef struct {
    int kind;
    float x, y, radius, cosine, sine;
} Figure;

static void angle(ShapesStream *s, float *cosine, float *sine) {
    float turn = shapes_uniform(s, 0, 6.2831853f);
    *cosine = cosf(turn);
    *sine = sinf(turn);
}

/* Draws a figure with a radius from `least` to `most`; `inside`: all of it lies in the image. */
static Figure place_figure(ShapesStream *s, int kind, float least, float most, bool inside) {
    Figure f = {.kind = kind, .radius = shapes_uniform(s, least, most)};
    float margin = inside ? shapes_reach * f.radius + 0.5f : 0;
    f.x = shapes_uniform(s, margin, SIDE - margin);
    f.y = shapes_uniform(s, margin, SIDE - margin);
    angle(s, &f.cosine, &f.sine);
    return f;
}

/* cover [SIDE,SIDE]: the fraction of each pixel inside the figure; box: bounds the pixels where it is positive. */
static void cover_figure(float *cover, int box[4], const Figure *f) {
    float radius = f->radius, far = radius * (f->kind == SHAPES_CLASSES ? bar_reach : shapes_reach) + 1;
    int x0 = (int)fmaxf(f->x - far, 0), x1 = (int)fminf(f->x + far + 1, SIDE);
    int y0 = (int)fmaxf(f->y - far, 0), y1 = (int)fminf(f->y + far + 1, SIDE);
    float cosine = f->cosine / radius, sine = f->sine / radius;
    box[0] = box[1] = SIDE;
    box[2] = box[3] = 0;
    memset(cover, 0, PIXELS * sizeof *cover);
    for (int y = y0; y < y1; y++) {
        for (int x = x0; x < x1; x++) {
            float u = (float)x + 0.5f - f->x, v = (float)y + 0.5f - f->y;
            float distance = radius * figures[f->kind](cosine * u + sine * v, cosine * v - sine * u);
            if (distance >= 0.5f) continue;
            cover[y * SIDE + x] = fminf(0.5f - distance, 1.0f);
            shapes_extend(box, x, y);
        }
    }
}

typedef struct {
    float channel[3];
} Colour;

static Colour colour_between(ShapesStream *s, float low, float high) {
    Colour c;
    for (int k = 0; k < 3; k++) c.channel[k] = shapes_uniform(s, low, high);
    return c;
}

/* canvas [SIDE,SIDE,3] */
static void paint_background(float *canvas, ShapesStream *s, Colour colour) {
    float slope[3][2], stripe[3], across, down, phase = shapes_uniform(s, 0, 1), wave = shapes_uniform(s, 3, 12);
    angle(s, &across, &down);
    for (int k = 0; k < 3; k++) {
        slope[k][0] = shapes_uniform(s, -1, 1);
        slope[k][1] = shapes_uniform(s, -1, 1);
        stripe[k] = shapes_uniform(s, -16, 16);
    }
    for (int y = 0; y < SIDE; y++) {
        for (int x = 0; x < SIDE; x++) {
            float turns = (across * (float)x + down * (float)y) / wave + phase;
            float triangle_wave = fabsf(turns - floorf(turns) - 0.5f) - 0.25f;
            for (int k = 0; k < 3; k++) {
                canvas[(y * SIDE + x) * 3 + k] = colour.channel[k] + slope[k][0] * (float)(x - SIDE / 2) +
                                                 slope[k][1] * (float)(y - SIDE / 2) + stripe[k] * 2 * triangle_wave;
            }
        }
    }
}

static void paint_figure(float *canvas, const float *cover, const int box[4], Colour colour) {
    for (int y = box[1]; y < box[3]; y++) {
        for (int x = box[0]; x < box[2]; x++) {
            float *pixel = canvas + (y * SIDE + x) * 3, part = cover[y * SIDE + x];
            for (int k = 0; k < 3; k++) pixel[k] += part * (colour.channel[k] - pixel[k]);
        }
    }
}

void shapes_noise(uint8_t *pixels, const float *canvas, size_t count, int t, const ShapesStream *s, float strength) {
    size_t first = NOISE_AT / 4 + (size_t)t * ((count + 7) / 8);
    for (size_t i = 0; i < count; i += 8) {
        uint32_t counter[4] = {(uint32_t)(first + i / 8), s->split, s->index, (uint32_t)s->purpose};
        RngBlock block = rng_philox(counter, s->seed);
        for (size_t j = i; j < i + 8 && j < count; j++) {
            uint32_t bits = block.word[(j - i) / 2] >> (j % 2 * 16);
            float noise = strength * (float)((int)(bits & 255) - (int)(bits >> 8 & 255));
            pixels[j] = (uint8_t)(fminf(fmaxf((canvas ? canvas[j] : (float)pixels[j]) + noise, 0), 255) + 0.5f);
        }
    }
}

void shapes_draw(uint64_t seed, uint32_t split, uint32_t index, uint8_t *pixels, int *label, int box[4]) {
    float canvas[PIXELS * 3], cover[PIXELS];
    ShapesStream s = {seed, split, index, 0, RNG_SHAPES};
    int bounds[4];

    Figure shape = place_figure(&s, (int)(index % SHAPES_CLASSES), 7, 12, true);
    Colour ground = colour_between(&s, 20, 100), paint = colour_between(&s, 140, 235);
    paint_background(canvas, &s, ground);
    for (int i = shapes_below(&s, 4); i > 0; i--) {
        int kind = shapes_below(&s, SHAPES_CLASSES + 1);
        Figure clutter = place_figure(&s, kind, 1.5f, 3, false);
        cover_figure(cover, bounds, &clutter);
        paint_figure(canvas, cover, bounds, colour_between(&s, 20, 235));
    }
    cover_figure(cover, bounds, &shape);
    paint_figure(canvas, cover, bounds, paint);
    float strength = shapes_uniform(&s, 0, 0.08f);
    shapes_noise(pixels, canvas, PIXELS * 3, 0, &s, strength);
    if (label) *label = shape.kind;
    if (box) memcpy(box, bounds, sizeof bounds);
}

/* == The data set ================================================================================================= */

typedef struct {
    uint64_t seed;
    uint32_t split;
} Shapes;

static void shapes_get(const Dataset *dataset, size_t index, uint8_t *pixels, int *label) {
    const Shapes *shapes = dataset->state;
    shapes_draw(shapes->seed, shapes->split, (uint32_t)index, pixels, label, NULL);
}

static void shapes_close(Dataset *dataset) { free(dataset->state); }

void shapes_describe(Dataset *dataset) {
    *dataset = (Dataset){.name = "shapes",
                         .height = SIDE,
                         .width = SIDE,
                         .classes = SHAPES_CLASSES,
                         .class_names = names,
                         .mean = {0.327f, 0.327f, 0.327f},
                         .std = {0.210f, 0.210f, 0.210f}};
}

void shapes_open(Dataset *dataset, bool train, uint64_t seed, size_t limit) {
    if (limit > UINT32_MAX) die("shapes: limit %zu: expected at most %u images", limit, UINT32_MAX);
    Shapes *shapes = xcalloc(1, sizeof *shapes, "the shapes data set");
    *shapes = (Shapes){seed, train ? 0 : 1};
    shapes_describe(dataset);
    dataset->count = limit ? limit : train ? SHAPES_TRAIN : SHAPES_TEST;
    dataset->get = shapes_get;
    dataset->close = shapes_close;
    dataset->state = shapes;
}

/* Images are the same for every run, so that runs with different seeds can be compared. */
static void open_embedded(Dataset *dataset, const char *path, bool train, size_t limit) {
    (void)path;
    shapes_open(dataset, train, 0, limit);
}

static void describe_embedded(Dataset *dataset, const char *path) {
    (void)path;
    shapes_describe(dataset);
}

const DatasetKind shapes_kind = {
    .name = "shapes", .generates = true, .open = open_embedded, .describe = describe_embedded};
