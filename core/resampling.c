/* This file is built without fused multiply-adds. */
#include "core/resampling.h"

#include <math.h>

static double box(double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; }

static double bilinear(double x) {
    if (x < 0.0) x = -x;
    return x < 1.0 ? 1.0 - x : 0.0;
}

static double bicubic(double x) {
    const double a = -0.5;
    if (x < 0.0) x = -x;
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
}

static const struct {
    double (*kernel)(double x);
    double support;
} filters[] = {[RESAMPLE_BICUBIC] = {bicubic, 2.0}, [RESAMPLE_BILINEAR] = {bilinear, 1.0}, [RESAMPLE_BOX] = {box, 0.5}};

typedef struct {
    double scale, stretch, support;
} Spread;

static Spread spread(const ResampleAxis *axis, ResampleFilter filter) {
    double scale = axis->length / axis->out, stretch = scale < 1.0 ? 1.0 : scale;
    return (Spread){scale, stretch, filters[filter].support * stretch};
}

static double centre_of(const ResampleAxis *axis, Spread s, int j) { return axis->start + (j + 0.5) * s.scale; }

/* The inputs [low, high) of output j. */
static void inputs_of(const ResampleAxis *axis, Spread s, int j, int *low, int *high) {
    double centre = centre_of(axis, s, j);
    int first = (int)(centre - s.support + 0.5), last = (int)(centre + s.support + 0.5);
    *low = first < 0 ? 0 : first;
    *high = last > axis->in ? axis->in : last;
}

ResampleAxis resample_whole(int in, int out) {
    return (ResampleAxis){.in = in, .length = in, .out = out, .count = out};
}

void resample_range(const ResampleAxis *axis, ResampleFilter filter, int range[2]) {
    Spread s = spread(axis, filter);
    int unused;
    inputs_of(axis, s, axis->first, &range[0], &unused);
    inputs_of(axis, s, axis->first + axis->count - 1, &unused, &range[1]);
}

int resample_taps(const ResampleAxis *axis, ResampleFilter filter) {
    int taps = (int)ceil(spread(axis, filter).support) * 2 + 1;
    return taps < axis->in ? taps : axis->in;
}

int resample_weights(double *weights, int *first, const ResampleAxis *axis, ResampleFilter filter, int j) {
    Spread s = spread(axis, filter);
    double centre = centre_of(axis, s, j), sum = 0, inverse = 1.0 / s.stretch;
    int low, high;
    inputs_of(axis, s, j, &low, &high);
    for (int i = 0; i < high - low; i++) {
        double x = (i + low - centre + 0.5) * inverse;
        weights[i] = filters[filter].kernel(x);
        sum += weights[i];
    }
    for (int i = 0; sum != 0.0 && i < high - low; i++) weights[i] /= sum;
    *first = low;
    return high - low;
}

int interpolation_weights(double weights[2], int *first, int in, int out, int j) {
    double at = ((double)j + 0.5) * in / out - 0.5;
    if (at < 0) at = 0;
    *first = (int)at < in - 1 ? (int)at : in - 1;
    weights[1] = *first < in - 1 ? at - *first : 0;
    weights[0] = 1 - weights[1];
    return *first < in - 1 ? 2 : 1;
}
