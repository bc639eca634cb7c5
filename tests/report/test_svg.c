/* Pages and charts of reports are well-formed for all inputs and show the values they are given. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/text_stream.h"
#include "report/axis.h"
#include "report/html.h"
#include "report/page_style.h"
#include "report/svg.h"
#include "tests/check.h"
#include "tests/report/xml.h"

static const char hostile[] =
    "<script>alert(\"1\")</script> & 'a'\n]]> \x01\x1f \xff\xc0\x80 \xed\xa0\x80 \xef\xbf\xbf ünï 猫";
static const char harmless[] =
    "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt; &amp; 'a'\n]]&gt; ?? ??? ??? ? ünï 猫";

static TextStream stream;
static FILE *begin(void) { return text_open(&stream); }

/* The text written since begin(), which must be well-formed.  The caller frees it. */
static char *end(void) {
    char *text = text_close(&stream, "a test's page");
    const char *fault = xml_fault(text);
    if (fault) fail_msg("%s in: %.3000s", fault, text);
    return text;
}

static void has(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("'%s' is missing in: %.3000s", part, text);
}

static void has_not(const char *text, const char *part) {
    if (strstr(text, part)) fail_msg("'%s' is in: %.3000s", part, text);
}

static int occurrences(const char *text, const char *part) {
    int count = 0;
    for (; (text = strstr(text, part)); text += strlen(part)) count++;
    return count;
}

/* Reads the numbers of the first attribute that begins with `name`, which ends in `="`; returns how many there are. */
static int numbers_of(const char *text, const char *name, double *numbers, int room) {
    const char *at = strstr(text, name);
    int count = 0;
    if (!at) fail_msg("no %s", name);
    for (at += strlen(name) - 1; *at != '"' || !count; count++) {
        char *after;
        assert_true(count < room);
        numbers[count] = strtod(at + 1, &after);
        assert_true(after > at + 1);
        at = after;
    }
    return count;
}

/* == The checker itself =========================================================================================== */

static void the_checker_finds_faults(void **state) {
    (void)state;
    static const char *const faulty[] = {
        "<a>", "<a></b>", "</a>", "<a b=c></a>", "<a b=\"1\" b=\"2\"/>", "<a b></a>", "<a>&nbsp;</a>", "<a b=\"<\"/>",
        "<a>\x01</a>", "<a>\xff</a>", "text", "<a b=\"1\"c=\"2\"/>", "<a>]]></a>", "<script>1<2</script>", "<a b=\"1/>"};
    static const char sound[] = "<!DOCTYPE html>\n<a b=\"1\" c=\"&lt;\">x<br/>&amp; <b>y</b>"
                                "<script>/*<![CDATA[*/1<2&&3/*]]>*/</script></a>\n";
    for (size_t i = 0; i < sizeof faulty / sizeof *faulty; i++)
        if (!xml_fault(faulty[i])) fail_msg("nothing found in %s", faulty[i]);
    assert_null(xml_fault(sound));
}

/* == Numbers and axes ============================================================================================= */

static void numbers_are_short(void **state) {
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0, "0"}, {0.001, "0.001"}, {61.24, "61.24"}, {61.2449, "61.24"}, {50, "50"}, {9999.7, "10000"},
                 {1234.5, "1234"}, {12345.6, "12346"}, {1200000, "1.2M"}, {3e6, "3M"}, {4.5e9, "4.5G"}, {1e-5, "1e-5"},
                 {1.5e-12, "1.5e-12"}, {-0.25, "-0.25"}, {2e20, "2e20"}, {-3e6, "-3M"}, {1e150, "1e150"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[NUMBER_SIZE];
        number_text(text, cases[i].value);
        assert_string_equal(text, cases[i].text);
    }
}

static void ticks_are_round(void **state) {
    (void)state;
    static const struct {
        double low, high;
        bool logarithmic;
        const char *labels;
    } cases[] = {
        {0, 100, false, "0 20 40 60 80 100"},
        {1, 100, false, "20 40 60 80 100"},
        {0.31, 4.6, false, "1 2 3 4"},
        {0, 5e-4, false, "0 1e-4 2e-4 3e-4 4e-4 5e-4"},
        {0, 1.5e-4, false, "0 5e-5 1e-4 1.5e-4"},
        {0, 0.003, false, "0 0.0005 0.0010 0.0015 0.0020 0.0025 0.0030"},
        {0.4012, 0.4031, false, "0.4015 0.4020 0.4025 0.4030"},
        {0, 50000, false, "0 10k 20k 30k 40k 50k"},
        {0, 3e6, false, "0 0.5M 1.0M 1.5M 2.0M 2.5M 3.0M"},
        {100000, 100010, false, "100000 100002 100004 100006 100008 100010"},
        {-2, 3, false, "-2 -1 0 1 2 3"},
        {5, 5, false, "5"},
        {0, 0, false, "0"},
        {1e-3, 1e-3, true, "0.001"},
        {1e-7, 2, true, "1e-6 0.0001 0.01 1"},
        {0.001, 1, true, "0.001 0.01 0.1 1"},
        {30, 700, true, "50 100 200 500"},
        {1000, 3e6, true, "1000 10000 100000 1M"},
        {3, 3.5, true, "3.0 3.1 3.2 3.3 3.4 3.5"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Axis axis;
        char labels[AXIS_TICKS * NUMBER_SIZE] = "";
        axis_fit(&axis, cases[i].low, cases[i].high, cases[i].logarithmic, 0, 6);
        for (int k = 0; k < axis.count; k++)
            snprintf(labels + strlen(labels), sizeof labels - strlen(labels), "%s%s", k ? " " : "", axis.labels[k]);
        assert_string_equal(labels, cases[i].labels);
    }
}

static void margins_do_not_lead_below_zero(void **state) {
    (void)state;
    Axis axis;
    axis_fit(&axis, 10, 20, false, 0.1, 6);
    assert_true(fabs(axis.low - 9) < 1e-12 && fabs(axis.high - 21) < 1e-12);
    axis_fit(&axis, 0.5, 10.5, false, 0.1, 6);
    assert_true(axis.low == 0 && fabs(axis.high - 11.5) < 1e-12);
    axis_fit(&axis, 1, 100, true, 0.5, 6);
    assert_true(fabs(axis.low - 0.1) < 1e-12 && fabs(axis.high - 1000) < 1e-9);
}

/* Random ranges, with numbers from 1e-199 to 1e199. */
static void axes_hold_their_values(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 3000; i++) {
        bool logarithmic = i % 2;
        double sizes[2], ends[2];
        for (uint32_t k = 0; k < 2; k++) {
            sizes[k] = pow(10, 199 * (2 * (double)rng_uniform(check_seed(), RNG_TEST, i, k, 0) - 1));
            if (i % 3)
                sizes[k] = sizes[0] * (1 + k * pow(10, -14 * (double)rng_uniform(check_seed(), RNG_TEST, i, k, 1)));
            ends[k] = !logarithmic && rng_uniform(check_seed(), RNG_TEST, i, k, 2) < 0.5f ? -sizes[k] : sizes[k];
            if (!axis_shows(ends[k], logarithmic)) ends[k] = 1;
        }
        double low = fmin(ends[0], ends[1]), high = fmax(ends[0], ends[1]);
        Axis axis;
        axis_fit(&axis, low, high, logarithmic, i % 5 ? 0.05 : 0, 6);
        assert_true(isfinite(axis.low) && isfinite(axis.high) && axis.low <= low && high <= axis.high);
        assert_true(!logarithmic || axis.low > 0);
        assert_true(axis_place(&axis, low) <= axis_place(&axis, high));
        assert_true(axis.count >= 0 && axis.count <= 13);
        for (int k = 0; k < axis.count; k++) {
            double place = axis_place(&axis, axis.ticks[k]);
            assert_true(place >= 0 && place <= 1 && *axis.labels[k]);
            assert_true(!k || axis.ticks[k] > axis.ticks[k - 1]);
            assert_true(!k || strcmp(axis.labels[k], axis.labels[k - 1]));
        }
    }
}

/* == Pages ======================================================================================================== */

static void texts_are_escaped(void **state) {
    (void)state;
    FILE *out = begin();
    fputs("<a>", out);
    html_text(out, hostile);
    fputs("</a>", out);
    char *text = end();
    assert_true(!strncmp(text + 3, harmless, strlen(harmless)));
    free(text);
}

static void write_page(FILE *out, const char *t, int reload_s) {
    const char *three[] = {t, t, NULL, t, "1", "2.5", t, "3 %", "-1e-5", t, NULL, "1,024"};
    const HtmlFigure figures[] = {{t, t, t}, {"1", "2", NULL}};
    const uint8_t bytes[] = "foobar";
    html_begin(out, &(HtmlPage){t, t, reload_s});
    html_figures(out, figures, 2);
    html_section(out, t, t);
    html_paragraph(out, t);
    html_command(out, t);
    html_fold_begin(out, t);
    html_table(out, &(HtmlTable){.caption = t, .rows = 4, .columns = 3, .names = three, .cells = three, .sortable = true});
    html_table(out, &(HtmlTable){.columns = 2, .names = three});
    html_fold_end(out);
    html_grid_begin(out);
    html_picture(out, &(HtmlPicture){"image/png", bytes, 6, t, t, 32, true});
    html_picture(out, &(HtmlPicture){"image/jpeg", bytes, 5, NULL, NULL, 0, false});
    html_picture(out, &(HtmlPicture){"image/jpeg", bytes, 4, NULL, NULL, 0, false});
    html_grid_end(out);
    html_end(out);
}

static void a_page_is_well_formed(void **state) {
    (void)state;
    write_page(begin(), hostile, 30);
    char *text = end();
    has_not(text, "<script>alert");
    has(text, harmless);
    has(text, "<meta http-equiv=\"refresh\" content=\"30\"/>");
    has(text, "class=\"live\"");
    has(text, "base64,Zm9vYmFy\"");
    has(text, "base64,Zm9vYmE=\"");
    has(text, "base64,Zm9vYg==\"");
    free(text);
    write_page(begin(), "done", 0);
    text = end();
    has_not(text, "refresh");
    has_not(text, "class=\"live\"");
    free(text);
}

/* The style and script of every page are small and load nothing from other addresses. */
static void the_frame_is_small_and_alone(void **state) {
    (void)state;
    static const char *const doors[] = {"http:", "https:", "url(", "@import", "fetch(", "src=", "//", "]]>", "</s"};
    assert_true(strlen(page_style) + strlen(page_script) < 12000);
    for (size_t i = 0; i < sizeof doors / sizeof *doors; i++) {
        has_not(page_style, doors[i]);
        has_not(page_script, doors[i]);
    }
}

static void columns_of_numbers_are_told_apart(void **state) {
    (void)state;
    static const char *const numbers[] = {"1", "-1.5", "61.24 %", "61.24 ± 0.31", "61.24 ± 0.31 %", "1,024,000", "5e-4",
                                          "12.3 GB", "1.2M", ".5"};
    static const char *const texts[] = {"one", "224x224", "2026-11-27", "1, 2", "1,2,", ".", "0x1f", "inf", "nan",
                                        "1 word too long for it", "1/2", "-", "± 1", "v1.2.3"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers + sizeof texts / sizeof *texts; i++) {
        size_t of_numbers = sizeof numbers / sizeof *numbers;
        const char *cell = i < of_numbers ? numbers[i] : texts[i - of_numbers], *name = "name";
        FILE *out = begin();
        html_table(out, &(HtmlTable){.rows = 1, .columns = 1, .names = &name, .cells = &cell});
        char *text = end();
        if ((strstr(text, "<td class=\"n\">") != NULL) != (i < of_numbers)) fail_msg("%s", cell);
        free(text);
    }
}

/* == Lines ======================================================================================================== */

enum { MANY = 100000 };
static double many_x[MANY], many_y[3][MANY];

static char *chart_of(const ChartLine *lines, int count, bool log_y) {
    svg_lines(begin(),
              &(LineChart){.title = "Loss", .x_label = "epoch", .lines = lines, .count = count, .log_y = log_y});
    return end();
}

/* The path of the first line. */
static char *path_of(const ChartLine *line, bool log_y) {
    char *text = chart_of(line, 1, log_y), *path = strstr(text, "<path class=\"l ");
    assert_non_null(path);
    path = strdup(strstr(path, " d=\""));
    *strchr(path + 4, '"') = 0;
    free(text);
    return path;
}

static void fill_many(void) {
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < MANY; i++) {
            many_x[i] = i / 1000.0;
            many_y[k][i] = 2 + (double)rng_uniform(check_seed(), RNG_TEST, (uint32_t)k, 0, (uint64_t)i);
        }
}

static void thinning_keeps_peaks_and_ends(void **state) {
    (void)state;
    double x[CHART_POINTS], y[CHART_POINTS];
    fill_many();
    many_y[0][0] = 2.25;
    many_y[0][12345] = 97.125;
    many_y[0][71717] = -3.5;
    many_y[0][MANY - 1] = 2.75;
    /* Line b is longer, so that the last value of line a shares its pixel with others. */
    const ChartLine lines[] = {{.name = "a", .count = MANY, .x = many_x, .y = many_y[0]},
                               {.name = "b", .count = 1, .x = (const double[]){150}, .y = many_y[0]}};
    char *text = chart_of(lines, 2, false);
    const char *path = strstr(text, "<path class=\"l");
    int count = numbers_of(path, "data-y=\"", y, CHART_POINTS), peaks = 0;
    assert_int_equal(numbers_of(path, "data-x=\"", x, CHART_POINTS), count);
    has(path, "data-unit=\"0.1\"");
    for (int i = 0; i < count; i++) x[i] = x[i] / 10 + (i ? x[i - 1] : 0);
    assert_true(count > CHART_POINTS / 2);
    assert_true(y[0] == 2.25 && y[count - 1] == 2.75 && x[0] == 0 && fabs(x[count - 1] - 99.999) < 0.06);
    for (int i = 0; i < count; i++) {
        assert_true(!i || x[i] > x[i - 1] - 1e-9);
        peaks += (y[i] == 97.125 && fabs(x[i] - 12.345) < 0.06) + (y[i] == -3.5 && fabs(x[i] - 71.717) < 0.06);
    }
    assert_int_equal(peaks, 2);
    has(text, "2.75 at the end, from -3.5 to 97.12");
    has(text, "<b>2.75</b>");
    free(text);
}

/* x that is not ascending breaks the contract, but the chart must still be well-formed. */
static void thinning_survives_disorder(void **state) {
    (void)state;
    fill_many();
    for (int i = 0; i < MANY; i++) many_x[i] = i % 2;
    free(chart_of(&(ChartLine){.name = "a", .count = MANY, .x = many_x, .y = many_y[0]}, 1, false));
}

static void charts_are_small(void **state) {
    (void)state;
    fill_many();
    ChartLine lines[3];
    for (int k = 0; k < 3; k++)
        lines[k] = (ChartLine){.name = "a", .count = MANY, .x = many_x, .y = many_y[k], .colour = k};
    char *text = chart_of(lines, 3, false);
    printf("  three lines of %d values: %zu bytes\n", MANY, strlen(text));
    assert_true(strlen(text) < 25000);
    free(text);
    for (int k = 0; k < 3; k++) lines[k].count = CHART_POINTS;
    text = chart_of(lines, 3, false);
    assert_int_equal(occurrences(text, "data-y=\""), 3);
    assert_int_equal(occurrences(text, "data-x=\""), 2); /* the name of the axis, and values that the lines share */
    free(text);
}

static void values_that_are_not_finite_are_gaps(void **state) {
    (void)state;
    const double x[] = {0, 1, 2, 3, 4, 5, 6, 7}, y[] = {1, 2, NAN, 3, INFINITY, -INFINITY, 5, 4};
    const double rate[] = {1, 0.1, 0, 0.01, -1, NAN, 1, 1e-3};
    double drawn[8];
    char *path = path_of(&(ChartLine){.name = "a", .count = 8, .x = x, .y = y}, false);
    assert_int_equal(occurrences(path, "m"), 3);
    free(path);
    path = path_of(&(ChartLine){.name = "a", .count = 8, .x = x, .y = rate}, true);
    assert_int_equal(occurrences(path, "m"), 3);
    free(path);
    char *text = chart_of(&(ChartLine){.name = "a", .count = 8, .x = x, .y = y}, 1, false);
    assert_int_equal(numbers_of(strstr(text, "<path class=\"l"), "data-y=\"", drawn, 8), 5);
    assert_true(drawn[0] == 1 && drawn[2] == 3 && drawn[4] == 4);
    assert_int_equal(occurrences(text, "<path class=\"o c0\""), 1); /* the 3 between two gaps */
    free(text);
}

/* Gaps stay when a line is thinned. */
static void thinning_keeps_gaps(void **state) {
    (void)state;
    fill_many();
    for (int i = 50000; i < 50100; i++) many_y[0][i] = NAN;
    char *path = path_of(&(ChartLine){.name = "a", .count = MANY, .x = many_x, .y = many_y[0]}, false);
    assert_int_equal(occurrences(path, "m"), 2);
    free(path);
}

static void places_are_those_of_the_values(void **state) {
    (void)state;
    const double x[] = {0, 1, 4}, y[] = {0, 1, 4}, squares[] = {1, 10, 100};
    const ChartLine linear = {.name = "a", .count = 3, .x = x, .y = y},
                    powers = {.name = "a", .count = 3, .x = x, .y = squares};
    double at[8];
    char *path = path_of(&linear, false);
    assert_int_equal(sscanf(path, " d=\"m%lf %lf %lf%lf %lf%lf", at, at + 1, at + 2, at + 3, at + 4, at + 5), 6);
    assert_true(at[0] == 0 && at[2] == 1600 && at[4] == 4800);
    assert_true(at[1] == 2200 && at[3] < 0 && fabs(at[5] - 3 * at[3]) < 3); /* the line rises from zero */
    free(path);
    path = path_of(&powers, true);
    assert_int_equal(sscanf(path, " d=\"m%lf %lf %lf%lf %lf%lf", at, at + 1, at + 2, at + 3, at + 4, at + 5), 6);
    assert_true(at[3] < 0 && fabs(at[3] - at[5]) < 2);
    free(path);
}

static void few_values_are_a_chart(void **state) {
    (void)state;
    const double x[] = {3, 4, 5}, y[] = {7, 7, 7}, none[] = {NAN, INFINITY, NAN};
    char *text = chart_of(&(ChartLine){.name = "constant", .count = 3, .x = x, .y = y}, 1, false);
    has(text, "7 at the end, from 7 to 7");
    free(text);
    text = chart_of(&(ChartLine){.name = "single", .count = 1, .x = x, .y = y}, 1, true);
    has(text, "<path class=\"o c0\"");
    free(text);
    text = chart_of(&(ChartLine){.name = "none", .count = 3, .x = x, .y = none}, 1, false);
    assert_string_equal(text, "");
    free(text);
    text = chart_of(&(ChartLine){.name = "not positive", .count = 1, .x = x, .y = (const double[]){-1}}, 1, true);
    assert_string_equal(text, "");
    free(text);
    text = chart_of(NULL, 0, false);
    assert_string_equal(text, "");
    free(text);
}

static void lines_have_bands_levels_and_marks(void **state) {
    (void)state;
    const double x[] = {1, 2, 3, 4}, y[] = {5, 6, NAN, 8}, low[] = {4, 5, 6, 7}, high[] = {60, 7, 8, 9},
                 levels[] = {20, 20.01, NAN};
    const char *const names[] = {hostile, "near", "nowhere"};
    const ChartLine line = {.name = hostile, .count = 4, .x = x, .y = y, .low = low, .high = high, .colour = 9,
                            .marked = true, .faint = true};
    svg_lines(begin(), &(LineChart){hostile, hostile, hostile, hostile, &line, 1, false, true, levels, names, 3});
    char *text = end();
    assert_int_equal(occurrences(text, "<circle class=\"c1\""), 3);
    assert_int_equal(occurrences(text, "class=\"level\""), 2);
    has(text, "class=\"l c1 dashed faint\"");
    has(text, "<path class=\"b c1\"");
    has(text, ">near</text>");
    has(text, ">0</text>"); /* the axis begins at zero */
    has(text, ">60</text>"); /* and includes the band */
    has_not(text, "nowhere");
    has_not(text, "<script>");
    free(text);
}

/* == Points, heat maps and bars =================================================================================== */

static void points_have_names_where_there_is_room(void **state) {
    (void)state;
    ChartPoint points[40] = {{"first", 1, 1, 0.5, 0}, {"second", 1000, 2, 0, 1}, {"nowhere", -1, 2, 0, 2},
                             {"without", 10, NAN, 0, 3}};
    svg_scatter(begin(), &(ScatterChart){hostile, hostile, hostile, points, 4, true});
    char *text = end();
    assert_int_equal(occurrences(text, "<circle"), 2);
    has(text, ">first</text>");
    has(text, ">second</text>");
    has(text, "1 ± 0.5</title>");
    has_not(text, "nowhere");
    has_not(text, "without");
    free(text);
    for (int i = 0; i < 40; i++) points[i] = (ChartPoint){"crowd", 1 + 1e-3 * i, 1 + 1e-3 * (i % 7), 0, i};
    points[39] = (ChartPoint){"far away", 2, 2, 0, 0};
    svg_scatter(begin(), &(ScatterChart){"", "", "", points, 40, false});
    text = end();
    assert_int_equal(occurrences(text, "crowd: "), 39);
    assert_true(occurrences(text, ">crowd</text>") < 8);
    has(text, ">far away</text>");
    free(text);
    svg_scatter(begin(), &(ScatterChart){"", "", "", points, 0, false});
    text = end();
    assert_string_equal(text, "");
    free(text);
}

/* The name is put to the left of its dot, because there is another dot to the right. */
static void names_do_not_cover_dots(void **state) {
    (void)state;
    const ChartPoint points[] = {{"a name", 0, 1, 0, 0}, {"b", 1, 1, 0, 0}, {"c", -10, 1, 0, 0}, {"d", 10, 1, 0, 0}};
    svg_scatter(begin(), &(ScatterChart){"", "", "", points, 4, false});
    char *text = end();
    has(text, "<text class=\"h e w0\" x=\"50.0%\" y=\"50.0%\" dx=\"-8\" dy=\"4\">a name</text>");
    free(text);
}

static void heat_maps_have_the_shades_of_their_rows(void **state) {
    (void)state;
    const double values[] = {16, 4, 0, 1000000, NAN, -1};
    const char *const rows[] = {hostile, "dog"}, *const columns[] = {"a", "b", "c"};
    svg_heat(begin(), &(HeatMap){hostile, "true class", hostile, 2, 3, values, rows, columns});
    char *text = end();
    assert_int_equal(occurrences(text, "<path stroke-opacity"), 3);
    has(text, "<path stroke-opacity=\"1\" d=\"M0 0h1\">");
    has(text, "<path stroke-opacity=\"0.5\" d=\"M1 0h1\">");
    has(text, "<title>dog, a: 1M</title>");
    has_not(text, "<script>");
    free(text);
    svg_heat(begin(), &(HeatMap){"", "", "", 1, 2, (const double[]){0, NAN}, NULL, NULL});
    text = end();
    assert_string_equal(text, "");
    free(text);
}

static void heat_maps_of_many_cells_have_a_path_for_a_shade(void **state) {
    (void)state;
    double values[2][2 * HEAT_CELLS] = {{4, 4}, {0}};
    values[0][2] = 16;
    values[0][3] = 1;
    values[1][1] = values[1][4] = 100;
    svg_heat(begin(), &(HeatMap){"", "", "", 2, 50, values[0], NULL, NULL});
    char *text = end();
    has(text, "<path stroke-opacity=\"0.5\" d=\"m0 0h2\"/>");
    has(text, "<path stroke-opacity=\"1\" d=\"m2 0h1\"/>");
    free(text);
    svg_heat(begin(), &(HeatMap){"", "", "", 2, 2 * HEAT_CELLS, values[0], NULL, NULL});
    text = end(); /* the greater value of each two columns */
    has(text, "<path stroke-opacity=\"0.5\" d=\"m0 0h1\"/>");
    has(text, "<path stroke-opacity=\"1\" d=\"m1 0h1m-2 1h1m1 0h1\"/>");
    free(text);
}

static void large_heat_maps_stay_small(void **state) {
    (void)state;
    enum { ROWS = 1000, COLUMNS = 990 };
    double *values = calloc((size_t)ROWS * COLUMNS, sizeof *values);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        if (rng_uniform(check_seed(), RNG_TEST, 7, 0, (uint64_t)i) < 0.02f) values[i] = 1 + i % 9;
    for (int i = 0; i < COLUMNS; i++) values[i * COLUMNS + i] = 50;
    svg_heat(begin(), &(HeatMap){"Confusion", "", "", ROWS, COLUMNS, values, NULL, NULL});
    char *text = end();
    printf("  a heat map of %d x %d: %zu bytes\n", ROWS, COLUMNS, strlen(text));
    assert_true(strlen(text) < 200000);
    has(text, "viewBox=\"0 -.5 198 200\"");
    has(text, "<path stroke-opacity=\"1\"");
    has_not(text, "h1\"><title>");
    free(text);
    free(values);
}

static void bars_are_as_long_as_their_values(void **state) {
    (void)state;
    const double values[] = {25, 100, 0, NAN};
    const char *const names[] = {hostile, "b", NULL, "d"};
    svg_bars(begin(), &(BarChart){hostile, "%", 4, names, values});
    char *text = end();
    has(text, " width=\"25.0%\"");
    has(text, " width=\"100.0%\"");
    has(text, "25 %</text>");
    free(text);
    static double ten_thousand[10000];
    static const char *nothing[10000];
    svg_bars(begin(), &(BarChart){"", "", 10000, nothing, ten_thousand});
    text = end();
    assert_int_equal(occurrences(text, "<rect"), BARS);
    has(text, "the first 100 of 10000");
    free(text);
    svg_bars(begin(), &(BarChart){"", "", 1, nothing, (const double[]){NAN}});
    text = end();
    assert_string_equal(text, "");
    free(text);
}

/* == Random charts ================================================================================================ */

static uint32_t drawn;
static double uniform(void) { return (double)rng_uniform(check_seed(), RNG_TEST, 9, 0, drawn++); }
static int below(int n) { return (int)(uniform() * n); }

static double any_value(int size) {
    static const double special[] = {NAN,    INFINITY, -INFINITY, 0,     -0.0,   1e308,
                                     -1e308, 5e-324,   1e-310,    1e199, -1e199, 1e-199};
    return below(20) ? (uniform() - 0.3) * pow(10, size) : special[below(12)];
}

/* A random string of any bytes, sometimes NULL. */
static const char *any_name(void) {
    static char names[32][300];
    static int turn;
    char *name = names[turn++ % 32];
    int length = below(below(10) ? 20 : 299);
    for (int i = 0; i < length; i++) name[i] = (char)(below(3) ? 32 + below(96) : 1 + below(255));
    name[length] = 0;
    return below(20) ? name : NULL;
}

static void any_chart(FILE *out) {
    static double x[5][2000], y[5][2000], low[5][2000], high[5][2000];
    ChartLine lines[5];
    int count = below(6), size = below(400) - 200;
    for (int k = 0; k < count; k++) {
        int n = below(below(2) ? 10 : 2000);
        for (int i = 0; i < n; i++) {
            x[k][i] = below(50) ? i : any_value(size);
            y[k][i] = any_value(size);
            low[k][i] = any_value(size);
            high[k][i] = any_value(size);
        }
        bool band = below(2);
        lines[k] = (ChartLine){any_name(), n, x[k], y[k], band ? low[k] : NULL, band ? high[k] : NULL, below(40) - 20,
                               below(2), below(2), n < 10 && below(2)};
    }
    const double levels[] = {any_value(size), any_value(size), any_value(size)};
    const char *const names[] = {any_name(), any_name(), any_name()};
    svg_lines(out, &(LineChart){any_name(), any_name(), any_name(), any_name(), lines, count, below(2), below(2),
                                levels, names, below(4)});
    ChartPoint points[60];
    int point_count = below(60);
    for (int i = 0; i < point_count; i++)
        points[i] = (ChartPoint){any_name(), any_value(size), any_value(size), any_value(size), below(20)};
    svg_scatter(out, &(ScatterChart){any_name(), any_name(), any_name(), points, point_count, below(2)});
    static double cells[300 * 60];
    int rows = below(300), columns = below(60);
    for (int i = 0; i < rows * columns; i++) cells[i] = below(3) ? 0 : any_value(size);
    const char *heat_names[300];
    for (int i = 0; i < 300; i++) heat_names[i] = any_name();
    svg_heat(out, &(HeatMap){any_name(), any_name(), any_name(), rows, columns, cells, below(2) ? heat_names : NULL,
                             below(2) ? heat_names : NULL});
    svg_bars(out, &(BarChart){any_name(), any_name(), rows, heat_names, cells});
}

static void any_chart_is_well_formed(void **state) {
    (void)state;
    for (int i = 0; i < 200; i++) {
        any_chart(begin());
        char *text = end();
        has_not(text, "=\"nan");
        has_not(text, "=\"-nan");
        has_not(text, "=\"inf");
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_checker_finds_faults),
        cmocka_unit_test(numbers_are_short),
        cmocka_unit_test(ticks_are_round),
        cmocka_unit_test(margins_do_not_lead_below_zero),
        cmocka_unit_test(axes_hold_their_values),
        cmocka_unit_test(texts_are_escaped),
        cmocka_unit_test(a_page_is_well_formed),
        cmocka_unit_test(the_frame_is_small_and_alone),
        cmocka_unit_test(columns_of_numbers_are_told_apart),
        cmocka_unit_test(thinning_keeps_peaks_and_ends),
        cmocka_unit_test(thinning_survives_disorder),
        cmocka_unit_test(charts_are_small),
        cmocka_unit_test(values_that_are_not_finite_are_gaps),
        cmocka_unit_test(thinning_keeps_gaps),
        cmocka_unit_test(places_are_those_of_the_values),
        cmocka_unit_test(few_values_are_a_chart),
        cmocka_unit_test(lines_have_bands_levels_and_marks),
        cmocka_unit_test(points_have_names_where_there_is_room),
        cmocka_unit_test(names_do_not_cover_dots),
        cmocka_unit_test(heat_maps_have_the_shades_of_their_rows),
        cmocka_unit_test(heat_maps_of_many_cells_have_a_path_for_a_shade),
        cmocka_unit_test(large_heat_maps_stay_small),
        cmocka_unit_test(bars_are_as_long_as_their_values),
        cmocka_unit_test(any_chart_is_well_formed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
