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

/* Can a chart show the value?  A chart leaves out values that are not finite, values beyond 1e200, whose products may
 * not be finite, and on a logarithmic axis values that are not positive. */
bool axis_shows(double value, bool logarithmic);

/* An axis from `low` to `high`, which axis_shows, with at most `most` + 1 ticks, most <= 12.  margin: the share of the
 * range that is left free at either end, unless the axis would extend below zero.  If low = high, the axis is around
 * this value, which has a tick. */
void axis_fit(Axis *axis, double low, double high, bool logarithmic, double margin, int most);

/* The position of a value, from 0 at the start of the axis to 1 at its end; values outside are moved to the nearer
 * end. */
double axis_place(const Axis *axis, double value);

/* A value with four digits for readers: 0.001, 61.24, 12345, 1.2M, 1e-5. */
void number_text(char text[NUMBER_SIZE], double value);

#endif
