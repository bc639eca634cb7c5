/* Charts as SVG, written by hand into an HTML page: lines over an axis, points with names, a heat map, bars.
 *
 * A chart is as wide as its column: the drawing is stretched to it (its viewBox is CHART_WIDTH wide, in tenths), while
 * texts, dots and strokes keep their size.  It takes its colours from the page's style sheet (report/page_style.c), so
 * that they follow its light and dark mode.  It can be read without JavaScript: every mark that has a value has a
 * <title>, and a legend has each line's last value.  The page's script shows the values under the pointer of charts of
 * lines. Texts are escaped here.  Values that are not finite are gaps, and without a finite value nothing is
 * written. */
#ifndef VIT_REPORT_SVG_H
#define VIT_REPORT_SVG_H

#include <stdbool.h>
#include <stdio.h>

enum { CHART_WIDTH = 640, CHART_HEIGHT = 220, CHART_COLOURS = 8, CHART_POINTS = 400 };

typedef struct {
    const char *name;      /* in the legend and under the pointer */
    int count;
    const double *x, *y;   /* [count], x ascending */
    const double *low, *high; /* [count]: a band around the line, or NULL */
    int colour;            /* from CHART_COLOURS on, the same colours again, dashed */
    bool dashed, faint, marked; /* marked: a dot at every value, if there are few */
} ChartLine;

typedef struct {
    const char *title, *x_label, *y_label, *unit; /* unit: after values, "%", or "" */
    const ChartLine *lines;
    int count;
    bool log_y;       /* positive values only; others are gaps */
    bool from_zero;   /* the axis of y begins at 0 */
    const double *levels; /* [level_count]: dashed horizontal lines, each with its name */
    const char *const *level_names;
    int level_count;
} LineChart;

/* Lines of more than CHART_POINTS values are thinned: of all values within a pixel only the least and the greatest are
 * kept, so that no peak is lost. */
void svg_lines(FILE *out, const LineChart *chart);

typedef struct {
    const char *name;
    double x, y, error; /* error: half of a vertical bar, 0 for none */
    int colour;
} ChartPoint;

typedef struct {
    const char *title, *x_label, *y_label;
    const ChartPoint *points;
    int count;
    bool log_x;
} ScatterChart;

/* Names are placed so that they do not cover each other or a dot; a name without room is only in the dot's <title>. */
void svg_scatter(FILE *out, const ScatterChart *chart);

typedef struct {
    const char *title, *row_label, *column_label;
    int rows, columns;
    const double *values; /* [rows,columns], at least 0; a row's shades are square roots of the values, relative to its
                           * greatest */
    const char *const *row_names, *const *column_names; /* or NULL: their numbers */
} HeatMap;

/* Cells that are 0 are not written.  With more than 40 rows or columns, cells have no <title>; with more than
 * HEAT_CELLS, a cell of the chart is the greatest of several cells of the map. */
enum { HEAT_CELLS = 200 };
void svg_heat(FILE *out, const HeatMap *map);

typedef struct {
    const char *title, *unit;
    int count;
    const char *const *names;
    const double *values; /* at least 0 */
} BarChart;

/* Horizontal bars, one below the other, each with its name and value; only the first BARS of them. */
enum { BARS = 100 };
void svg_bars(FILE *out, const BarChart *chart);

#endif
