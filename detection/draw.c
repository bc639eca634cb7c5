#include "detection/draw.h"

#include <math.h>
#include <stdio.h>

#include "core/integers.h"

void draw_frame(Image *image, const int box[4], int thickness, DrawColour colour) {
    int x0 = box[0], y0 = box[1], x1 = box[2], y1 = box[3];
    int across = thickness < x1 - x0 ? thickness : x1 - x0, down = thickness < y1 - y0 ? thickness : y1 - y0;
    if (x0 >= x1 || y0 >= y1) return;
    draw_fill(image, x0, y0, x1, y0 + down, colour);
    draw_fill(image, x0, y1 - down, x1, y1, colour);
    draw_fill(image, x0, y0, x0 + across, y1, colour);
    draw_fill(image, x1 - across, y0, x1, y1, colour);
}

void draw_mask(Image *image, const Rle *mask, DrawColour colour) {
    int times = smaller(image->height / mask->height, image->width / mask->width);
    size_t at = 0, height = (size_t)mask->height;
    for (size_t i = 0; i < mask->count; at += mask->runs[i++]) {
        for (size_t p = at; i % 2 && p < at + mask->runs[i]; p++) {
            size_t left = p / height * (size_t)times, top = p % height * (size_t)times;
            for (int y = 0; y < times; y++) {
                uint8_t *pixel = image->pixels + ((top + (size_t)y) * (size_t)image->width + left) * 3;
                for (int k = 0; k < 3 * times; k++) pixel[k] = (uint8_t)((pixel[k] + colour.channel[k % 3] + 1) / 2);
            }
        }
    }
}

void draw_outline(Image *image, const uint8_t *inside, DrawColour colour) {
    enum { DASH = 4 };
    int height = image->height, width = image->width;
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            const uint8_t *at = inside + (size_t)y * (size_t)width + (size_t)x;
            bool within = x > 0 && x + 1 < width && y > 0 && y + 1 < height;
            if (!*at || (within && at[-1] && at[1] && at[-width] && at[width])) continue;
            draw_fill(image, x, y, x + 1, y + 1, (x + y) / DASH % 2 ? colour : (DrawColour){{255, 255, 255}});
        }
}

/* Clamps any coordinate, including NaN, to a margin around the picture. */
static int near_picture(double x, int side) { return (int)fmin(fmax(rint(x), -16), side + 16); }

/* The label is drawn above the box if there is room, otherwise inside it, and moved into the picture if necessary. */
static void draw_plate(Image *image, const int box[4], const char *text, int scale, DrawColour colour) {
    int width = draw_text_width(text, scale) + 4 * scale, height = (DRAW_LETTER_HEIGHT + 2) * scale;
    int x = clamp(box[0], 0, image->width > width ? image->width - width : 0);
    int y = clamp(box[1] >= height ? box[1] - height : box[1], 0, image->height > height ? image->height - height : 0);
    draw_fill(image, x, y, x + width, y + height, colour);
    draw_text(image, x + 2 * scale, y + scale, text, scale, draw_ink_on(colour));
}

/* Letters are at least a fortieth of the picture high, so that they are legible when the whole picture is shown. */
static int letter_scale(const Image *image) {
    int side = image->height > image->width ? image->height : image->width;
    return clamp((side + 140) / 280, 1, 16);
}

static void draw_detection(Image *image, const CocoDetection *d, const Coco *coco) {
    int scale = letter_scale(image);
    int category = coco_find_category(coco, d->category_id);
    const int box[4] = {near_picture(d->box[0], image->width), near_picture(d->box[1], image->height),
                        near_picture(d->box[0] + d->box[2], image->width),
                        near_picture(d->box[1] + d->box[3], image->height)};
    char text[96];
    if (category >= 0) {
        snprintf(text, sizeof text, "%.60s %.0f%%", coco->categories[category].name, 100 * d->score);
    } else {
        snprintf(text, sizeof text, "%jd %.0f%%", (intmax_t)d->category_id, 100 * d->score);
    }
    DrawColour colour = draw_colour(d->category_id);
    draw_frame(image, box, scale + 1, colour);
    draw_plate(image, box, text, scale, colour);
}

void draw_detections(Image *image, const CocoDetection *detections, int count, double least, const RleTexts *masks,
                     const Coco *coco) {
    Rle mask = {.count = 0};
    for (int i = count; masks && i-- > 0;) {
        if (detections[i].score < least) continue;
        rle_texts_get(&mask, masks, (size_t)i);
        draw_mask(image, &mask, draw_colour(detections[i].category_id));
    }
    rle_free(&mask);
    for (int i = count; i-- > 0;)
        if (detections[i].score >= least) draw_detection(image, &detections[i], coco);
}
