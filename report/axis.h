/* An axis of a chart: its range, round ticks (1, 2 or 5 times a power of ten) and their labels. */
#ifndef VIT_REPORT_AXIS_H
#define VIT_REPORT_AXIS_H

#include <stdbool.h>

enum { AXIS_TICKS = 16, NUMBER_SIZE = 32 };

typedef struct {
    double low, high;
    bool logarithmic;
    int count;
    double ticks[AXIS_TICKS];
    char labels[AXIS_TICKS][NUMBER_SIZE];
} Axis;

/* Can a chart show it?  Values that are not finite are left out, those beyond 1e200, of which products may not be
 * finite, and on a logarithmic axis those that are not positive. */
bool axis_shows(double value, bool logarithmic);

/* An axis from `low` to `high`, which axis_shows, with at most `most` + 1 ticks, most <= 12.  margin: the share of the
 * range that is left free at either end, where it does not lead below zero.  One value has an axis around it, and a tick. */
void axis_fit(Axis *axis, double low, double high, bool logarithmic, double margin, int most);

/* Where a value lies, from 0 at the axis's begin to 1 at its end; values beyond these are there. */
double axis_place(const Axis *axis, double value);

/* A value for readers, of four digits: 0.001, 61.24, 12345, 1.2M, 1e-5. */
void number_text(char text[NUMBER_SIZE], double value);

#endif
