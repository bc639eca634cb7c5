#include "report/svg.h"

#include <math.h>

#include "report/html.h"

static void begin(FILE *out, const char *title) {
    fputs("<figure class=\"chart\"><figcaption>", out);
    html_text(out, title);
    fputs("</figcaption>", out);
}

static void find_range(const double *values, int count, double range[2]) {
    for (int i = 0; i < count; i++) {
        range[0] = fmin(range[0], values[i]);
        range[1] = fmax(range[1], values[i]);
    }
}

static double place(double value, const double range[2], double size) {
    return range[1] > range[0] ? size * (value - range[0]) / (range[1] - range[0]) : size / 2;
}

void svg_lines(FILE *out, const LineChart *chart) {
    double x[2] = {INFINITY, -INFINITY}, y[2] = {INFINITY, -INFINITY};
    for (int k = 0; k < chart->count; k++) find_range(chart->lines[k].x, chart->lines[k].count, x);
    for (int k = 0; k < chart->count; k++) find_range(chart->lines[k].y, chart->lines[k].count, y);
    if (!isfinite(x[0]) || !isfinite(y[0])) return;
    begin(out, chart->title);
    fprintf(out, "<svg viewBox=\"0 0 %d %d\">", CHART_WIDTH, CHART_HEIGHT);
    for (int k = 0; k < chart->count; k++) {
        const ChartLine *line = &chart->lines[k];
        fputs("<polyline fill=\"none\" stroke=\"black\" points=\"", out);
        for (int i = 0; i < line->count; i++)
            if (isfinite(line->y[i]))
                fprintf(out, "%.1f,%.1f ", place(line->x[i], x, CHART_WIDTH),
                        CHART_HEIGHT - place(line->y[i], y, CHART_HEIGHT));
        fputs("\"/>", out);
    }
    fputs("</svg></figure>\n", out);
}

void svg_scatter(FILE *out, const ScatterChart *chart) {
    if (!chart->count) return;
    begin(out, chart->title);
    fputs("</figure>\n", out);
}

void svg_heat(FILE *out, const HeatMap *map) {
    if (!map->rows) return;
    begin(out, map->title);
    fputs("</figure>\n", out);
}

void svg_bars(FILE *out, const BarChart *chart) {
    if (!chart->count) return;
    begin(out, chart->title);
    fputs("</figure>\n", out);
}
