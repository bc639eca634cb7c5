#include "report/svg.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/text.h"
#include "report/axis.h"
#include "report/html.h"

/* Lengths in pixels.  TEXT_WIDTH is that of a character in the widest usual font, and WIDE_TEXT_WIDTH that of a Chinese
 * character or a wide letter. */
enum { TEXT_WIDTH = 7, WIDE_TEXT_WIDTH = 12, TEXT_HEIGHT = 14, NAME_GAP = 8 };

/* == What charts share ============================================================================================ */

/* printf, whose %s are escaped, and whose numbers are short: %f is written as "%.1f". */
static void put(FILE *out, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    for (const char *at = format; *at; at++) {
        if (*at != '%' || !strchr("sdf%", at[1])) {
            fputc(*at, out);
            continue;
        }
        switch (*++at) {
        case 's': html_text(out, va_arg(arguments, const char *)); break;
        case 'd': fprintf(out, "%d", va_arg(arguments, int)); break;
        case 'f': fprintf(out, "%.1f", va_arg(arguments, double)); break;
        default: fputc('%', out);
        }
    }
    va_end(arguments);
}

static const char *or_empty(const char *text) { return text ? text : ""; }

static void figure_begin(FILE *out, const char *class, const char *title, const char *note) {
    put(out, "<figure class=\"chart %s\">\n<figcaption><b>%s</b>", class, or_empty(title));
    if (*or_empty(note)) put(out, " <small>%s</small>", note);
    fputs("</figcaption>\n", out);
}

static void figure_end(FILE *out) { fputs("</svg></div>\n</figure>\n", out); }

/* The area of a chart, with room for texts around it. */
static void plot_begin(FILE *out, const char *title, int left, int right, int below, double height) {
    put(out, "<div class=\"plot\" style=\"padding:12px %dpx %dpx %dpx\">"
             "<svg role=\"img\" aria-label=\"%s\" style=\"height:%fpx\"", right, below, left, or_empty(title), height);
}

/* A line of the second eight has the colour of one of the first, and dashes. */
static bool is_dashed(const ChartLine *line) { return line->dashed != (line->colour / CHART_COLOURS % 2 != 0); }

static int colour_of(int colour) { return (colour % CHART_COLOURS + CHART_COLOURS) % CHART_COLOURS; }

/* "61.24 %" */
static void put_value(FILE *out, double value, const char *unit) {
    char text[NUMBER_SIZE];
    number_text(text, value);
    put(out, *or_empty(unit) ? "%s %s" : "%s", text, unit);
}

/* The largest width of a text. */
static int text_width(const char *text) {
    int width = 0;
    for (const unsigned char *at = (const unsigned char *)text; *at; at++)
        if ((*at & 0xc0) != 0x80) width += *at >= 0xe1 || strchr("%@MWmw", *at) ? WIDE_TEXT_WIDTH : TEXT_WIDTH;
    return width;
}

/* A name, cut to a width, with dots for the missing part. */
static const char *cut_name(char cut[128], const char *name, int width) {
    if (text_width(or_empty(name)) <= width) return or_empty(name);
    snprintf(cut, 120, "%s", name);
    size_t length = strlen(cut);
    text_drop_half_character(cut, length);
    while (text_width(cut) > width - TEXT_WIDTH && (length = strlen(cut)) > 0) {
        cut[length - 1] = 0;
        text_drop_half_character(cut, length - 1);
    }
    return strcat(cut, "…");
}

static void put_axis_y(FILE *out, const Axis *axis) {
    for (int i = 0; i < axis->count; i++)
        put(out, "<text class=\"e\" x=\"-8\" y=\"%f%%\" dy=\".32em\">%s</text>",
            100 - 100 * axis_place(axis, axis->ticks[i]), axis->labels[i]);
}

static void put_axis_x(FILE *out, const Axis *axis, const char *label) {
    for (int i = 0; i < axis->count; i++)
        put(out, "<text class=\"m\" x=\"%f%%\" y=\"100%%\" dy=\"20\">%s</text>", 100 * axis_place(axis, axis->ticks[i]),
            axis->labels[i]);
    put(out, "<text class=\"m\" x=\"50%%\" y=\"100%%\" dy=\"38\">%s</text>\n", or_empty(label));
}

/* Everything until </svg> is stretched to the chart's size. */
static void put_grid(FILE *out, const Axis *y) {
    put(out, "<svg class=\"d\" viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\"><path class=\"g\" d=\"",
        10 * CHART_WIDTH, 10 * CHART_HEIGHT);
    for (int i = 0; i < y->count; i++)
        put(out, "M0 %dh%d", (int)lround(10 * CHART_HEIGHT * (1 - axis_place(y, y->ticks[i]))), 10 * CHART_WIDTH);
    fputs("\"/>", out);
}

static int label_room(const Axis *y) {
    int most = 0;
    for (int i = 0; i < y->count; i++) most = text_width(y->labels[i]) > most ? text_width(y->labels[i]) : most;
    return most + 12;
}

/* The range of the values that a chart shows. */
typedef struct {
    double low, high;
    bool logarithmic;
} Range;

static Range no_range(bool logarithmic) { return (Range){INFINITY, -INFINITY, logarithmic}; }

static void range_add(Range *range, double value) {
    if (!axis_shows(value, range->logarithmic)) return;
    range->low = fmin(range->low, value);
    range->high = fmax(range->high, value);
}

/* == Lines ======================================================================================================== */

/* The values of a line that are drawn: [first,end) of `index` without a gap are a run. */
typedef struct {
    const ChartLine *line;
    int count, index[CHART_POINTS];
    bool begins[CHART_POINTS]; /* a run begins here */
} Points;

static bool is_shown(const LineChart *chart, const ChartLine *line, int i) {
    return axis_shows(line->x[i], false) && axis_shows(line->y[i], chart->log_y);
}

static void keep(Points *points, int i) {
    if (points->count && points->index[points->count - 1] >= i) return;
    points->index[points->count++] = i;
}

/* Keeps the first and last value and, in each of CHART_POINTS / 2 - 2 intervals of x, the least and greatest. */
static void thin(Points *points, const LineChart *chart, const Axis *x) {
    const ChartLine *line = points->line;
    int pixel = -1, least = -1, greatest = -1, last = -1;
    for (int i = 0; i < line->count; i++) {
        if (!is_shown(chart, line, i)) continue;
        int at = (int)(axis_place(x, line->x[i]) * (CHART_POINTS / 2 - 2));
        if (at > pixel) {
            if (last >= 0) keep(points, least < greatest ? least : greatest);
            if (last >= 0) keep(points, least < greatest ? greatest : least);
            if (last < 0) keep(points, i);
            pixel = at;
            least = greatest = i;
        }
        if (line->y[i] < line->y[least]) least = i;
        if (line->y[i] > line->y[greatest]) greatest = i;
        last = i;
    }
    keep(points, least < greatest ? least : greatest);
    keep(points, least < greatest ? greatest : least);
    keep(points, last);
}

static void choose_points(Points *points, const LineChart *chart, const ChartLine *line, const Axis *x) {
    int shown = 0;
    for (int i = 0; i < line->count; i++) shown += is_shown(chart, line, i);
    points->line = line;
    points->count = 0;
    if (shown > CHART_POINTS) thin(points, chart, x);
    for (int i = 0; i < line->count && shown <= CHART_POINTS; i++)
        if (is_shown(chart, line, i)) keep(points, i);
    for (int k = 0; k < points->count; k++) {
        int i = points->index[k] - 1, before = k ? points->index[k - 1] : -1;
        while (i > before && is_shown(chart, line, i)) i--;
        points->begins[k] = i > before || !k;
    }
}

/* Writes a path with relative coordinates in tenths, which is the shortest form. */
typedef struct {
    FILE *out;
    const Axis *x, *y;
    int at_x, at_y;
} Pen;

static void pen_to(Pen *pen, double x, double y, bool moves) {
    int to_x = (int)lround(10 * CHART_WIDTH * axis_place(pen->x, x));
    int to_y = (int)lround(10 * CHART_HEIGHT * (1 - axis_place(pen->y, y)));
    int dx = to_x - pen->at_x, dy = to_y - pen->at_y;
    fprintf(pen->out, "%s%d%s%d", moves ? "m" : dx < 0 ? "" : " ", dx, dy < 0 ? "" : " ", dy);
    pen->at_x = to_x;
    pen->at_y = to_y;
}

static int run_end(const Points *points, int k) {
    do k++;
    while (k < points->count && !points->begins[k]);
    return k;
}

/* The path goes along the upper end of each run and back along the lower one. */
static void put_band(FILE *out, const Points *points, const Axis *x, const Axis *y) {
    const ChartLine *line = points->line;
    put(out, "<path class=\"b c%d\" d=\"", colour_of(line->colour));
    for (int k = 0; k < points->count; k = run_end(points, k)) {
        Pen pen = {out, x, y, 0, 0};
        int end = run_end(points, k), i;
        fputs("M0 0", out);
        for (int at = k; at < end; at++)
            if (i = points->index[at], isfinite(line->high[i])) pen_to(&pen, line->x[i], line->high[i], at == k);
        for (int at = end - 1; at >= k; at--)
            if (i = points->index[at], isfinite(line->low[i])) pen_to(&pen, line->x[i], line->low[i], false);
        fputc('z', out);
    }
    fputs("\"/>", out);
}

/* The values of x for the page's script: differences in a unit, 1 for whole numbers, otherwise less than a pixel. */
static void put_x(FILE *out, const Points *points, const Axis *axis) {
    double range = axis->high - axis->low, unit = 1, at = 0;
    bool whole = range < 1e9;
    for (int k = 0; whole && k < points->count; k++)
        whole = points->line->x[points->index[k]] == floor(points->line->x[points->index[k]]);
    if (!whole) unit = pow(10, floor(log10(range)) - 3);
    fprintf(out, " data-unit=\"%g\" data-x=\"", unit);
    for (int k = 0; k < points->count; k++) {
        double to = round(points->line->x[points->index[k]] / unit);
        fprintf(out, "%s%.0f", k ? "," : "", to - at);
        at = to;
    }
    fputc('"', out);
}

static bool have_same_x(const Points *a, const Points *b) {
    bool same = a->count == b->count;
    for (int k = 0; same && k < a->count; k++) same = a->line->x[a->index[k]] == b->line->x[b->index[k]];
    return same;
}

static void put_range_title(FILE *out, const Points *points, const char *unit) {
    const double *y = points->line->y;
    Range range = no_range(false);
    for (int k = 0; k < points->count; k++) range_add(&range, y[points->index[k]]);
    put(out, "<title>%s: ", or_empty(points->line->name));
    put_value(out, y[points->index[points->count - 1]], unit);
    fputs(" at the end, from ", out);
    put_value(out, range.low, unit);
    fputs(" to ", out);
    put_value(out, range.high, unit);
    fputs("</title>", out);
}

static void put_line(FILE *out, const Points *points, const Points *before, const LineChart *chart, const Axis *x,
                     const Axis *y) {
    const ChartLine *line = points->line;
    Pen pen = {out, x, y, 0, 0};
    put(out, "<path class=\"l c%d%s%s\"", colour_of(line->colour), is_dashed(line) ? " dashed" : "",
        line->faint ? " faint" : "");
    if (!before || !have_same_x(points, before)) put_x(out, points, x); /* otherwise those of the previous path */
    for (int k = 0; k < points->count; k++)
        fprintf(out, "%s%.5g", k ? "," : " data-y=\"", line->y[points->index[k]]);
    fputs("\" d=\"", out);
    for (int k = 0; k < points->count; k++)
        pen_to(&pen, line->x[points->index[k]], line->y[points->index[k]], points->begins[k]);
    fputs("\">", out);
    put_range_title(out, points, chart->unit);
    fputs("</path>\n", out);
}

/* A value between two gaps, which is not a line. */
static void put_lonely(FILE *out, const Points *points, const Axis *x, const Axis *y) {
    const ChartLine *line = points->line;
    Pen pen = {out, x, y, 0, 0};
    bool any = false;
    for (int k = 0; k < points->count; k++) {
        if (!points->begins[k] || run_end(points, k) > k + 1) continue;
        if (!any) put(out, "<path class=\"o c%d\" d=\"", colour_of(line->colour));
        any = true;
        pen_to(&pen, line->x[points->index[k]], line->y[points->index[k]], true);
        fputs("h0", out);
    }
    if (any) fputs("\"/>", out);
}

static void put_marks(FILE *out, const Points *points, const LineChart *chart, const Axis *x, const Axis *y) {
    const ChartLine *line = points->line;
    for (int k = 0; k < points->count; k++) {
        int i = points->index[k];
        put(out, "<circle class=\"c%d\" cx=\"%f%%\" cy=\"%f%%\" r=\"3.5\"><title>%s: ", colour_of(line->colour),
            100 * axis_place(x, line->x[i]), 100 - 100 * axis_place(y, line->y[i]), or_empty(line->name));
        put_value(out, line->y[i], chart->unit);
        fputs(", ", out);
        put_value(out, line->x[i], chart->x_label);
        fputs("</title></circle>", out);
    }
}

static void put_legend(FILE *out, const LineChart *chart, const Points *all) {
    fputs("<ul>", out);
    for (int k = 0; k < chart->count; k++) {
        const ChartLine *line = &chart->lines[k];
        if (!all[k].count) continue;
        put(out, "<li class=\"c%d%s%s\"><i></i><span>%s</span> <b>", colour_of(line->colour),
            is_dashed(line) ? " dashed" : "", line->faint ? " faint" : "", or_empty(line->name));
        put_value(out, line->y[all[k].index[all[k].count - 1]], chart->unit);
        fputs("</b></li>", out);
    }
    fputs("</ul>\n", out);
}

/* A position with room for the name of a level: at the right or the left end, above or below its line. */
typedef enum { RIGHT_ABOVE, RIGHT_BELOW, LEFT_ABOVE, LEFT_BELOW, NOWHERE } LevelPlace;

static double level_name_y(double level_y, LevelPlace place) { return level_y + (place % 2 ? 10 : -7); }

static LevelPlace place_level(const LineChart *chart, const Axis *axis, const LevelPlace *before, int own) {
    double y = CHART_HEIGHT * (1 - axis_place(axis, chart->levels[own]));
    for (LevelPlace place = RIGHT_ABOVE; place < NOWHERE; place++) {
        double at = level_name_y(y, place);
        bool free = at > -TEXT_HEIGHT / 2.0 && at < CHART_HEIGHT;
        for (int i = 0; i < chart->level_count && free; i++) {
            double other = CHART_HEIGHT * (1 - axis_place(axis, chart->levels[i]));
            if (!axis_shows(chart->levels[i], chart->log_y)) continue;
            bool crossed = i != own && fabs(other - at) < TEXT_HEIGHT / 2.0;
            bool covered =
                i < own && before[i] / 2 == place / 2 && fabs(level_name_y(other, before[i]) - at) < TEXT_HEIGHT;
            free = !crossed && !covered;
        }
        if (free) return place;
    }
    return NOWHERE;
}

static void put_levels(FILE *out, const LineChart *chart, const Axis *axis) {
    LevelPlace *places = xcalloc((size_t)chart->level_count + 1, sizeof *places, "a chart's levels");
    for (int i = 0; i < chart->level_count; i++) {
        double y = 100 - 100 * axis_place(axis, chart->levels[i]);
        places[i] = NOWHERE;
        if (!axis_shows(chart->levels[i], chart->log_y)) continue;
        places[i] = place_level(chart, axis, places, i);
        put(out, "<line class=\"level\" x2=\"100%%\" y1=\"%f%%\" y2=\"%f%%\"><title>%s: ", y, y,
            or_empty(chart->level_names[i]));
        put_value(out, chart->levels[i], chart->unit);
        fputs("</title></line>", out);
        if (places[i] != NOWHERE)
            put(out, "<text class=\"h%s\" x=\"%d%%\" y=\"%f%%\" dy=\"%d\">%s</text>",
                places[i] < LEFT_ABOVE ? " e" : "", places[i] < LEFT_ABOVE ? 100 : 0, y,
                (int)level_name_y(4, places[i]), or_empty(chart->level_names[i]));
    }
    free(places);
}

static bool fit_lines(const LineChart *chart, Axis *x, Axis *y) {
    Range x_range = no_range(false), y_range = no_range(chart->log_y);
    for (int k = 0; k < chart->count; k++) {
        const ChartLine *line = &chart->lines[k];
        for (int i = 0; i < line->count; i++) {
            if (!is_shown(chart, line, i)) continue;
            range_add(&x_range, line->x[i]);
            range_add(&y_range, line->y[i]);
            if (line->low) range_add(&y_range, line->low[i]);
            if (line->high) range_add(&y_range, line->high[i]);
        }
    }
    if (x_range.low > x_range.high) return false;
    for (int i = 0; i < chart->level_count; i++) range_add(&y_range, chart->levels[i]);
    if (chart->from_zero) range_add(&y_range, 0);
    axis_fit(x, x_range.low, x_range.high, false, 0, 6);
    axis_fit(y, y_range.low, y_range.high, chart->log_y, 0.04, 6);
    return true;
}

static void put_plot(FILE *out, const LineChart *chart, const Points *all, const Axis *x, const Axis *y) {
    const Points *before = NULL;
    plot_begin(out, chart->title, label_room(y), 20, 46, CHART_HEIGHT);
    fprintf(out, " data-range=\"%.9g,%.9g,%.9g,%.9g,%d\"", x->low, x->high, y->low, y->high, chart->log_y);
    put(out, " data-x=\"%s\" data-unit=\"%s\">\n", or_empty(chart->x_label), or_empty(chart->unit));
    put_axis_y(out, y);
    put_axis_x(out, x, chart->x_label);
    put_grid(out, y);
    for (int k = 0; k < chart->count; k++)
        if (all[k].count && chart->lines[k].low && chart->lines[k].high) put_band(out, &all[k], x, y);
    for (int k = 0; k < chart->count; k++) {
        if (!all[k].count) continue;
        put_line(out, &all[k], before, chart, x, y);
        before = &all[k];
        if (!chart->lines[k].marked) put_lonely(out, &all[k], x, y);
    }
    fputs("</svg>", out);
    for (int k = 0; k < chart->count; k++)
        if (chart->lines[k].marked) put_marks(out, &all[k], chart, x, y);
    put_levels(out, chart, y);
    figure_end(out);
}

void svg_lines(FILE *out, const LineChart *chart) {
    Axis x, y;
    if (!fit_lines(chart, &x, &y)) return;
    Points *all = xcalloc((size_t)chart->count, sizeof *all, "a chart's lines");
    for (int k = 0; k < chart->count; k++) choose_points(&all[k], chart, &chart->lines[k], &x);
    figure_begin(out, "lines", chart->title, chart->y_label);
    put_legend(out, chart, all);
    put_plot(out, chart, all, &x, &y);
    free(all);
}

/* == Points ======================================================================================================= */

enum { SCATTER_HEIGHT = 320, DOT = 6, NAMED_POINTS = 500, NAME_WIDTH = 190 };
/* Widths of a chart for which names are placed; below widths[i] the style sheet hides elements of class wi. */
static const int widths[] = {240, 400, 680, 1000};
enum { WIDTHS = sizeof widths / sizeof *widths };

typedef struct {
    double left, right, top, bottom;
} Box;

static bool boxes_meet(Box a, Box b) {
    return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}

typedef enum { RIGHT, LEFT, ABOVE, BELOW, PLACES } Place;

/* A point with its position in the chart, from 0 to 1, and that of its name. */
typedef struct {
    const ChartPoint *point;
    double x, y;
    int name_width, least; /* the name has room in charts of widths[least] and more */
    Place place;
} Spot;

static Box dot_box(const Spot *spot, int width) {
    double x = spot->x * width, y = spot->y * SCATTER_HEIGHT;
    return (Box){x - DOT, x + DOT, y - DOT, y + DOT};
}

static Box name_box(const Spot *spot, Place place, int width) {
    double x = spot->x * width, y = spot->y * SCATTER_HEIGHT, w = spot->name_width, h = TEXT_HEIGHT / 2.0;
    switch (place) {
    case RIGHT: return (Box){x + NAME_GAP, x + NAME_GAP + w, y - h, y + h};
    case LEFT: return (Box){x - NAME_GAP - w, x - NAME_GAP, y - h, y + h};
    case ABOVE: return (Box){x - w / 2, x + w / 2, y - DOT - 2 * h, y - DOT};
    default: return (Box){x - w / 2, x + w / 2, y + DOT, y + DOT + 2 * h};
    }
}

/* Whether the name of spot `own` fits into a chart of this width without covering a dot or a name placed before. */
static bool has_room(const Spot *spots, int count, int own, Place place, int w) {
    int width = widths[w];
    Box box = name_box(&spots[own], place, width);
    if (box.left < 0 || box.right > width + NAME_GAP || box.top < -DOT || box.bottom > SCATTER_HEIGHT) return false;
    for (int i = 0; i < count; i++) {
        const Spot *other = &spots[i];
        if (i != own && boxes_meet(box, dot_box(other, width))) return false;
        if (i < own && other->least <= w && boxes_meet(box, name_box(other, other->place, width))) return false;
    }
    return true;
}

/* The position with room in the narrowest chart. */
static void place_name(Spot *spots, int count, int own) {
    for (Place place = RIGHT; place < PLACES; place++) {
        int least = WIDTHS;
        while (least > 0 && has_room(spots, count, own, place, least - 1)) least--;
        if (least >= spots[own].least) continue;
        spots[own].least = least;
        spots[own].place = place;
    }
}

static void put_name(FILE *out, const Spot *spot) {
    static const char *const anchors[PLACES] = {"", "e", "m", "m"};
    static const int dx[PLACES] = {NAME_GAP, -NAME_GAP, 0, 0}, dy[PLACES] = {4, 4, -DOT - 3, DOT + 12};
    char cut[128];
    if (spot->least == WIDTHS) return;
    put(out, "<text class=\"h %s w%d\" x=\"%f%%\" y=\"%f%%\" dx=\"%d\" dy=\"%d\">%s</text>", anchors[spot->place],
        spot->least, 100 * spot->x, 100 * spot->y, dx[spot->place], dy[spot->place],
        cut_name(cut, spot->point->name, NAME_WIDTH));
}

static void put_spot(FILE *out, const Spot *spot, const ScatterChart *chart, const Axis *y) {
    const ChartPoint *point = spot->point;
    int colour = colour_of(point->colour);
    if (point->error > 0)
        put(out, "<line class=\"c%d\" x1=\"%f%%\" x2=\"%f%%\" y1=\"%f%%\" y2=\"%f%%\"/>", colour, 100 * spot->x,
            100 * spot->x, 100 - 100 * axis_place(y, point->y - point->error),
            100 - 100 * axis_place(y, point->y + point->error));
    put(out, "<circle class=\"c%d\" cx=\"%f%%\" cy=\"%f%%\" r=\"5\"><title>%s: %s ", colour, 100 * spot->x,
        100 * spot->y, or_empty(point->name), or_empty(chart->x_label));
    put_value(out, point->x, "");
    put(out, ", %s ", or_empty(chart->y_label));
    put_value(out, point->y, "");
    if (point->error > 0) fputs(" ± ", out);
    if (point->error > 0) put_value(out, point->error, "");
    fputs("</title></circle>", out);
}

static int find_spots(const ScatterChart *chart, Spot *spots, Axis *x, Axis *y) {
    Range x_range = no_range(chart->log_x), y_range = no_range(false);
    int count = 0;
    char cut[128];
    for (int i = 0; i < chart->count; i++) {
        const ChartPoint *point = &chart->points[i];
        if (!axis_shows(point->x, chart->log_x) || !axis_shows(point->y, false)) continue;
        range_add(&x_range, point->x);
        range_add(&y_range, point->y - (point->error > 0 ? point->error : 0));
        range_add(&y_range, point->y + (point->error > 0 ? point->error : 0));
        spots[count++] = (Spot){.point = point, .name_width = text_width(cut_name(cut, point->name, NAME_WIDTH)),
                                .least = WIDTHS};
    }
    if (!count) return 0;
    axis_fit(x, x_range.low, x_range.high, chart->log_x, 0.06, 6);
    axis_fit(y, y_range.low, y_range.high, false, 0.08, 6);
    for (int i = 0; i < count; i++) {
        spots[i].x = axis_place(x, spots[i].point->x);
        spots[i].y = 1 - axis_place(y, spots[i].point->y);
    }
    for (int i = 0; i < count && i < NAMED_POINTS; i++) place_name(spots, count, i);
    return count;
}

void svg_scatter(FILE *out, const ScatterChart *chart) {
    Axis x, y;
    Spot *spots = xcalloc((size_t)chart->count + 1, sizeof *spots, "a chart's points");
    int count = find_spots(chart, spots, &x, &y);
    if (count) {
        figure_begin(out, "points", chart->title, chart->y_label);
        plot_begin(out, chart->title, label_room(&y), 20, 46, SCATTER_HEIGHT);
        fputs(">\n", out);
        put_axis_y(out, &y);
        put_axis_x(out, &x, chart->x_label);
        put_grid(out, &y);
        fputs("</svg>", out);
        for (int i = 0; i < count; i++) put_spot(out, &spots[i], chart, &y);
        for (int i = 0; i < count; i++) put_name(out, &spots[i]);
        figure_end(out);
    }
    free(spots);
}

/* == Heat maps ==================================================================================================== */

enum { SHADES = 16, TITLED_CELLS = 40, COUNTED_CELLS = 12, HEAT_NAME_WIDTH = 112 };

/* A heat map of at most HEAT_CELLS rows and columns: each is `step` of the map's. */
typedef struct {
    const HeatMap *map;
    int step[2], rows, columns;
    double *values;         /* [rows,columns] */
    unsigned char *shades;  /* [rows,columns]; 0: not written */
} Cells;

static size_t cell(const Cells *cells, int row, int column) {
    return (size_t)row * (size_t)cells->columns + (size_t)column;
}

static void gather_cells(Cells *cells) {
    const HeatMap *map = cells->map;
    for (int row = 0; row < map->rows; row++)
        for (int column = 0; column < map->columns; column++) {
            double value = map->values[(size_t)row * (size_t)map->columns + (size_t)column];
            double *to = &cells->values[cell(cells, row / cells->step[0], column / cells->step[1])];
            if (axis_shows(value, true) && value > *to) *to = value;
        }
    for (int row = 0; row < cells->rows; row++) {
        double greatest = 0;
        for (int i = 0; i < cells->columns; i++) greatest = fmax(greatest, cells->values[cell(cells, row, i)]);
        for (int i = 0; i < cells->columns && greatest > 0; i++)
            cells->shades[cell(cells, row, i)] =
                (unsigned char)ceil(SHADES * sqrt(cells->values[cell(cells, row, i)] / greatest) - 1e-9);
    }
}

static void put_axis_name(FILE *out, const char *const *names, int i) {
    char number[NUMBER_SIZE];
    snprintf(number, sizeof number, "%d", i);
    put(out, "%s", names ? or_empty(names[i]) : number);
}

/* With few cells, each is an element with its value. */
static void put_titled_cells(FILE *out, const Cells *cells) {
    for (int row = 0; row < cells->rows; row++)
        for (int i = 0; i < cells->columns; i++) {
            int shade = cells->shades[cell(cells, row, i)];
            if (!shade) continue;
            fprintf(out, "<path stroke-opacity=\"%.2g\" d=\"M%d %dh1\"><title>", shade / (double)SHADES, i, row);
            put_axis_name(out, cells->map->row_names, row);
            fputs(", ", out);
            put_axis_name(out, cells->map->column_names, i);
            fputs(": ", out);
            put_value(out, cells->values[cell(cells, row, i)], "");
            fputs("</title></path>\n", out);
        }
}

/* With many cells, all cells of the same shade are one element, and neighbours in a row are one stroke. */
static void put_shade(FILE *out, const Cells *cells, int shade) {
    int at_x = 0, at_y = 0;
    bool any = false;
    for (int row = 0; row < cells->rows; row++)
        for (int i = 0, end; i < cells->columns; i = end) {
            for (end = i; end < cells->columns && cells->shades[cell(cells, row, end)] == shade;) end++;
            if (end == i && ++end) continue;
            if (!any) fprintf(out, "<path stroke-opacity=\"%.2g\" d=\"", shade / (double)SHADES);
            any = true;
            fprintf(out, "m%d%s%dh%d", i - at_x, row < at_y ? "" : " ", row - at_y, end - i);
            at_x = end;
            at_y = row;
        }
    if (any) fputs("\"/>\n", out);
}

static bool has_titles(const Cells *cells) { return cells->rows <= TITLED_CELLS && cells->columns <= TITLED_CELLS; }

/* Numbers in the cells, if there are few columns. */
static void put_counts(FILE *out, const Cells *cells) {
    for (int row = 0; row < cells->rows; row++)
        for (int i = 0; i < cells->columns; i++) {
            char text[NUMBER_SIZE];
            int shade = cells->shades[cell(cells, row, i)];
            if (!shade) continue;
            number_text(text, cells->values[cell(cells, row, i)]);
            if (strlen(text) <= 5)
                put(out, "<text class=\"m w1%s\" x=\"%f%%\" y=\"%f%%\" dy=\".34em\">%s</text>",
                    shade > SHADES * 11 / 16 ? " on" : "", 100 * (i + 0.5) / cells->columns, 100 * (row + 0.5) / cells->rows,
                    text);
        }
}

/* The distance between labelled ones among `count` rows or columns, with room for `most` labels. */
static int label_every(int count, int most) {
    static const int steps[] = {1, 2, 5};
    for (int power = 1;; power *= 10)
        for (int k = 0; k < 3; k++)
            if ((count - 1) / (steps[k] * power) < most) return steps[k] * power;
}

static void put_row_names(FILE *out, const Cells *cells) {
    char cut[128], number[NUMBER_SIZE];
    int every = label_every(cells->rows, TITLED_CELLS);
    for (int i = 0; i < cells->rows; i += every) {
        const char *const *names = cells->map->row_names;
        snprintf(number, sizeof number, "%d", i * cells->step[0]);
        put(out, "<text class=\"e\" x=\"-6\" y=\"%f%%\" dy=\".32em\">%s</text>", 100 * (i + 0.5) / cells->rows,
            cut_name(cut, names ? names[i * cells->step[0]] : number, HEAT_NAME_WIDTH));
    }
}

/* Names are rotated by a right angle, numbers are not.  In a narrow chart there is room for half of them. */
static void put_column_names(FILE *out, const Cells *cells) {
    char cut[128], number[NUMBER_SIZE];
    const char *const *names = cells->map->column_names;
    int every = label_every(cells->columns, names ? 26 : 12), narrow = label_every(cells->columns, names ? 14 : 6);
    for (int i = 0; i < cells->columns; i += every) {
        double x = 100 * (i + 0.5) / cells->columns;
        const char *class = i % narrow ? " w1" : "";
        snprintf(number, sizeof number, "%d", i * cells->step[1]);
        if (names)
            put(out, "<svg class=\"d\" x=\"%f%%\" y=\"100%%\"><text class=\"e%s\" transform=\"rotate(-90)\" x=\"-6\" "
                     "dy=\".32em\">%s</text></svg>",
                x, class, cut_name(cut, names[i * cells->step[1]], HEAT_NAME_WIDTH));
        else
            put(out, "<text class=\"m%s\" x=\"%f%%\" y=\"100%%\" dy=\"16\">%s</text>", class, x, number);
    }
}

static int longest_name(const char *const *names, int count) {
    int most = 3 * TEXT_WIDTH;
    for (int i = 0; names && i < count; i++)
        if (text_width(or_empty(names[i])) > most) most = text_width(names[i]);
    return most < HEAT_NAME_WIDTH ? most : HEAT_NAME_WIDTH;
}

static void put_cells(FILE *out, const Cells *cells) {
    const HeatMap *map = cells->map;
    char note[256];
    int labels = (cells->rows - 1) / label_every(cells->rows, TITLED_CELLS) + 1;
    snprintf(note, sizeof note, "↓ %.100s  → %.100s", or_empty(map->row_label), or_empty(map->column_label));
    figure_begin(out, "heat", map->title, *or_empty(map->row_label) ? note : NULL);
    put(out, "<div class=\"plot\" style=\"padding:12px 16px %dpx %dpx\"><svg role=\"img\" aria-label=\"%s\" "
             "style=\"aspect-ratio:%d/%d;min-height:%dpx\">\n",
        map->column_names ? longest_name(map->column_names, map->columns) + 16 : 28,
        longest_name(map->row_names, map->rows) + 12, or_empty(map->title), cells->columns, cells->rows,
        TEXT_HEIGHT * labels);
    fprintf(out, "<svg class=\"d\" viewBox=\"0 -.5 %d %d\" preserveAspectRatio=\"none\">\n", cells->columns,
            cells->rows);
    if (has_titles(cells))
        put_titled_cells(out, cells);
    else
        for (int shade = 1; shade <= SHADES; shade++) put_shade(out, cells, shade);
    fputs("</svg>\n", out);
    if (has_titles(cells) && cells->columns <= COUNTED_CELLS) put_counts(out, cells);
    put_row_names(out, cells);
    put_column_names(out, cells);
    figure_end(out);
}

void svg_heat(FILE *out, const HeatMap *map) {
    if (map->rows < 1 || map->columns < 1) return;
    Cells cells = {.map = map, .step = {(map->rows - 1) / HEAT_CELLS + 1, (map->columns - 1) / HEAT_CELLS + 1}};
    cells.rows = (map->rows - 1) / cells.step[0] + 1;
    cells.columns = (map->columns - 1) / cells.step[1] + 1;
    size_t count = (size_t)cells.rows * (size_t)cells.columns;
    cells.values = xcalloc(count, sizeof *cells.values, "a heat map");
    cells.shades = xcalloc(count, sizeof *cells.shades, "a heat map");
    gather_cells(&cells);
    size_t i = 0;
    while (i < count && !cells.shades[i]) i++;
    if (i < count) put_cells(out, &cells);
    free(cells.values);
    free(cells.shades);
}

/* == Bars ========================================================================================================= */

enum { BAR_STEP = 24, BAR = 14, BAR_NAME_WIDTH = 140 };

void svg_bars(FILE *out, const BarChart *chart) {
    int count = chart->count < BARS ? chart->count : BARS, left = 0;
    double greatest = -1;
    char cut[128], note[64];
    for (int i = 0; i < count; i++) {
        int width = text_width(cut_name(cut, chart->names[i], BAR_NAME_WIDTH));
        if (axis_shows(chart->values[i], false)) greatest = fmax(greatest, chart->values[i]);
        left = width > left ? width : left;
    }
    if (greatest < 0) return;
    snprintf(note, sizeof note, "the first %d of %d", count, chart->count);
    figure_begin(out, "bars", chart->title, count < chart->count ? note : NULL);
    plot_begin(out, chart->title, left + 12, 72, 8, BAR_STEP * count);
    fputs(">\n", out);
    for (int i = 0; i < count; i++) {
        double middle = BAR_STEP * (i + 0.5), value = chart->values[i];
        double width = greatest > 0 && axis_shows(value, true) ? 100 * value / greatest : 0;
        put(out, "<text class=\"e\" x=\"-8\" y=\"%f\" dy=\".32em\">%s</text>", middle,
            cut_name(cut, chart->names[i], BAR_NAME_WIDTH));
        put(out, "<rect class=\"c0\" y=\"%f\" width=\"%f%%\" height=\"%d\" rx=\"3\"><title>%s: ", middle - BAR / 2.0,
            width, BAR, or_empty(chart->names[i]));
        put_value(out, value, chart->unit);
        put(out, "</title></rect><text x=\"%f%%\" dx=\"6\" y=\"%f\" dy=\".32em\">", width, middle);
        put_value(out, value, chart->unit);
        fputs("</text>\n", out);
    }
    figure_end(out);
}
