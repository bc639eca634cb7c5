#include "data/masks/object_mask.h"

#include <math.h>
#include <stdlib.h>

#include "core/die.h"
#include "core/integers.h"
#include "data/masks/polygon.h"

void mask_scratch_free(MaskScratch *scratch) {
    free(scratch->points);
    free(scratch->bitmap);
    rle_free(&scratch->mask);
    for (int i = 0; i < 2; i++) {
        free(scratch->samples[i]);
        rle_free(&scratch->spare[i]);
    }
    *scratch = (MaskScratch){.points = NULL};
}

static void mirror(uint8_t *cells, int side) {
    for (uint8_t *row = cells; row < cells + side * side; row += side) {
        for (int left = 0, right = side - 1; left < right; left++, right--) {
            uint8_t kept = row[left];
            row[left] = row[right];
            row[right] = kept;
        }
    }
}

/* == Polygons ===================================================================================================== */

/* Rasterising is not symmetric: a mirrored picture's polygons are measured from the right side of the box. */
static void polygon_target(uint8_t *cells, int side, const ObjectMask *o, const float box[4], MaskScratch *s) {
    int points = 0;
    for (int i = 0; i < o->rings; i++) points += o->ring_points[i];
    s->points = xgrow(s->points, 2 * (size_t)points, &s->points_room, sizeof *s->points, "points of a mask");
    for (int axis = 0; axis < 2; axis++) {
        double length = (double)box[axis + 2] - (double)box[axis], ratio = side / fmax(length, 0.1);
        double sign = o->scale[axis] < 0 ? -1 : 1, corner = (double)box[o->scale[axis] < 0 ? axis + 2 : axis];
        for (size_t i = (size_t)axis; i < 2 * (size_t)points; i += 2)
            s->points[i] = sign * (o->scale[axis] * (double)o->points[i] + o->shift[axis] - corner) * ratio;
    }
    polygons_rle(&s->mask, s->points, o->ring_points, o->rings, side, side, s->spare);
    rle_decode(cells, &s->mask);
}

/* == Runs ========================================================================================================= */

/* A sample of RoIAlign along one axis, between two pixels; `fraction` is the weight of the second. */
struct MaskSample {
    int low, high;
    double fraction;
    bool inside;
};

static struct MaskSample sample_at(double x, int pixels) {
    if (!(x >= -1 && x <= pixels)) return (struct MaskSample){.inside = false};
    x = fmax(x, 0);
    int low = (int)x;
    if (low >= pixels - 1) return (struct MaskSample){pixels - 1, pixels - 1, 0, true};
    return (struct MaskSample){low, low + 1, x - low, true};
}

/* Fills samples [side,count] of the cells between from and to, and returns their count. */
static int place_samples(struct MaskSample **samples, size_t *room, double from, double to, int side, int pixels) {
    double start = from - 0.5, cell = (to - from) / side;
    int count = (int)fmin(ceil(cell), pixels);
    *samples = xgrow(*samples, (size_t)side * (size_t)count, room, sizeof **samples, "samples of a mask");
    for (int i = 0; i < side; i++)
        for (int k = 0; k < count; k++)
            (*samples)[i * count + k] = sample_at(start + i * cell + (k + 0.5) * cell / count, pixels);
    return count;
}

/* The mean of the bitmap over rows x columns samples, with the sum in the order of torchvision's roi_align.
 * bitmap [width,height] is column by column. */
static double cell_mean(const uint8_t *bitmap, size_t height, const struct MaskSample *y, int rows,
                        const struct MaskSample *x, int columns) {
    double sum = 0;
    for (int b = 0; b < rows; b++) {
        double fy = y[b].fraction;
        for (int a = 0; y[b].inside && a < columns; a++) {
            if (!x[a].inside) continue;
            const uint8_t *low = bitmap + (size_t)x[a].low * height, *high = bitmap + (size_t)x[a].high * height;
            double fx = x[a].fraction;
            sum += (1 - fy) * (1 - fx) * low[y[b].low] + (1 - fy) * fx * high[y[b].low] +
                   fy * (1 - fx) * low[y[b].high] + fy * fx * high[y[b].high];
        }
    }
    return sum / larger(rows * columns, 1);
}

static void bitmap_target(uint8_t *cells, int side, const ObjectMask *o, const float box[4], MaskScratch *s) {
    size_t height = (size_t)o->rle->height;
    int pixels[2] = {o->rle->width, o->rle->height}, count[2];
    for (int axis = 0; axis < 2; axis++) {
        double from = ((double)box[axis] - o->shift[axis]) / o->scale[axis];
        double to = ((double)box[axis + 2] - o->shift[axis]) / o->scale[axis];
        count[axis] = place_samples(&s->samples[axis], &s->samples_room[axis], fmin(from, to), fmax(from, to), side,
                                    pixels[axis]);
    }
    s->bitmap = xgrow(s->bitmap, height * (size_t)pixels[0], &s->bitmap_room, 1, "the bitmap of a mask");
    rle_decode_columns(s->bitmap, o->rle, 0, pixels[0]);
    for (int i = 0; i < side; i++)
        for (int j = 0; j < side; j++)
            cells[i * side + j] = cell_mean(s->bitmap, height, s->samples[1] + i * count[1], count[1],
                                            s->samples[0] + j * count[0], count[0]) >= 0.5;
}

void object_mask_target(uint8_t *cells, int side, const ObjectMask *object, const float box[4], MaskScratch *scratch) {
    (object->rings ? polygon_target : bitmap_target)(cells, side, object, box, scratch);
    if (object->scale[0] < 0) mirror(cells, side);
}
