/* Pixel p lies at u = (p + 1/2 - x0) / (x1 - x0) side - 1/2 among the cells; v alike.  A column of pixels interpolates
 * two columns of cells with fixed weights, and the value is linear between two cells: if both are below the limit, or
 * both are not, the pixels between them need not be computed. */
#include "detection/mask_paste.h"

#include <assert.h>
#include <math.h>

#include "core/integers.h"

typedef struct {
    double from, to;
    int side;
} Axis;

static double cell_at(const Axis *axis, int pixel) {
    return (pixel + 0.5 - axis->from) / (axis->to - axis->from) * axis->side - 0.5;
}

/* The first pixel at or after the centre of the cell; `pixels` if there is none. */
static int first_pixel(const Axis *axis, int cell, int pixels) {
    double estimate = ceil(axis->from + (cell + 0.5) * (axis->to - axis->from) / axis->side - 0.5);
    int pixel = (int)fmin(fmax(estimate, 0), pixels);
    while (pixel > 0 && cell_at(axis, pixel - 1) >= cell) pixel--;
    while (pixel < pixels && cell_at(axis, pixel) < cell) pixel++;
    return pixel;
}

static double between(double a, double b, double share) { return (1 - share) * a + share * b; }

/* Computes the values of the cells from -1 to side, at u: value [side+2]. */
static void mix_columns(double *value, const float *probability, int side, double u) {
    int left = (int)floor(u);
    value[0] = value[side + 1] = 0;
    for (int i = 0; i < side; i++, probability += side)
        value[i + 1] = between(left >= 0 ? (double)probability[left] : 0,
                               left + 1 < side ? (double)probability[left + 1] : 0, u - left);
}

static void append(Rle *out, bool one, int pixels) {
    if (pixels > 0) rle_append(out, one, (uint32_t)pixels);
}

/* first [side+2]: the first row at or after the centres of the cells from -1 to side. */
static void append_column(Rle *out, const double *value, const Axis *down, const int *first, double least) {
    append(out, false, first[0]);
    for (int k = 0; k <= down->side; k++) { /* between cells k - 1 and k */
        bool above = value[k] >= least, below = value[k + 1] >= least;
        if (above == below) append(out, above, first[k + 1] - first[k]);
        for (int y = first[k]; above != below && y < first[k + 1]; y++)
            append(out, between(value[k], value[k + 1], cell_at(down, y) - (k - 1)) >= least, 1);
    }
    append(out, false, out->height - first[down->side + 1]);
}

void mask_paste(Rle *out, const float *probability, int side, const double box[4], int height, int width,
                double least) {
    Axis across = {box[0], box[2], side}, down = {box[1], box[3], side};
    double value[MASK_PASTE_MOST + 2];
    int first[MASK_PASTE_MOST + 2];
    assert(side <= MASK_PASTE_MOST && least > 0);
    rle_begin(out, height, width);
    if (!(box[0] < box[2] && box[1] < box[3] && isfinite(box[2] - box[0]) && isfinite(box[3] - box[1]))) {
        append(out, false, height * width);
        return;
    }
    int left = first_pixel(&across, -1, width), right = first_pixel(&across, side, width);
    for (int k = -1; k <= side; k++) first[k + 1] = first_pixel(&down, k, height);
    append(out, false, left * height);
    for (int x = left; x < right; x++) {
        mix_columns(value, probability, side, cell_at(&across, x));
        append_column(out, value, &down, first, least);
    }
    append(out, false, (width - right) * height);
}
