/* The slope of a function by differences, for tests of gradients. */
#ifndef VIT_TESTS_SLOPES_H
#define VIT_TESTS_SLOPES_H

#include <math.h>

/* Slope at 0 of value(context, h), whose rounding is at most `rounding`: central differences at widths that halve from
 * `widest` on, each pair extrapolated to the fourth order.  Wide steps suffer from curvature, narrow ones from
 * rounding; the result is the estimate with the smallest sum of both errors, where the error from curvature is judged
 * by how far the last two estimates moved (Ridders).  *noise: the result's error from rounding. */
static inline double slope_by_differences(double (*value)(void *context, double h), void *context, double widest,
                                          double rounding, double *noise) {
    enum { WIDTHS = 12 };
    double central[WIDTHS], estimate[WIDTHS], best = 0, least = INFINITY;
    for (int i = 0; i < WIDTHS; i++) {
        double h = ldexp(widest, -i);
        central[i] = (value(context, h) - value(context, -h)) / (2 * h);
        if (i > 0) estimate[i] = (4 * central[i] - central[i - 1]) / 3;
        if (i < 3) continue;
        double moved = fmax(fabs(estimate[i] - estimate[i - 1]), fabs(estimate[i - 1] - estimate[i - 2]));
        if (moved + rounding / h >= least) continue;
        least = moved + rounding / h;
        best = estimate[i];
        *noise = rounding / h;
    }
    return best;
}

#endif
