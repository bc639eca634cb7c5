/* Masks: runs, their text, polygons and training targets.  tests/fixtures/detection/masks.txt has results of
 * pycocotools and torchvision (tests/reference/make_mask_fixtures.py); random masks are compared with bitmaps, and
 * random polygons with pycocotools' published method, point by point. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/masks/object_mask.h"
#include "data/masks/polygon.h"
#include "tests/check.h"

static uint32_t draw(uint32_t stream, uint32_t a, uint64_t i, uint32_t below) {
    return rng_below(check_seed(), RNG_TEST, stream, a, i, below);
}

static void expect_text(const Rle *rle, const char *want) {
    static char *text;
    static size_t room;
    assert_int_equal(rle_text(&text, &room, rle), strlen(want));
    assert_string_equal(text, want);
}

static void parse(Rle *rle, const char *text, int height, int width) {
    Error error = {.text = ""};
    if (!rle_parse(rle, text, strlen(text), height, width, &error)) fail_msg("%s: %s", text, error.text);
}

static double iou(const Rle *found, const Rle *truth, bool crowd) {
    RleExtent f = rle_extent(found), t = rle_extent(truth);
    return rle_iou(found, &f, truth, &t, crowd);
}

/* == Cases computed by hand ======================================================================================== */

static const struct {
    int points;
    double xy[8];
    const char *text;
    size_t count;
    uint32_t runs[17], area;
} worked[5] = {
    {3, {1.5, 1.5, 8.5, 2, 4, 7.25}, "d0272N1ON2O1Oa0", 13, {20, 2, 7, 4, 5, 5, 4, 3, 6, 2, 7, 1, 24}, 17},
    {4, {2, 2, 7, 2, 7, 6, 2, 6}, "d0450000000i0", 11, {20, 4, 5, 4, 5, 4, 5, 4, 5, 4, 30}, 20},
    {4, {-2, 3, 5.5, -1, 12, 4.5, 6, 11}, "2352O1N2Oc00]O1N1OO", 17,
     {2, 3, 5, 5, 4, 6, 2, 8, 1, 27, 1, 8, 2, 6, 3, 5, 2}, 68},
    {4, {1, 1, 8, 7, 8, 1, 1, 7}, ":55O1N:0F2N1a0", 13, {10, 5, 5, 4, 6, 2, 16, 2, 6, 4, 4, 5, 21}, 22},
    {4, {3.4, 0, 3.4, 9, 3.5, 9, 3.5, 0}, "k09f1", 3, {27, 9, 54}, 9}};

static void worked_polygons_have_their_runs(void **state) {
    (void)state;
    static const double with_second[4] = {0.68181818, 1, 0.29411765, 0.4};
    static const double with_third[4] = {0.25, 0.29411765, 1, 0.32352941};
    static const double crowd_second[4] = {0.88235294, 1, 0.29411765, 0.54545455};
    Rle mask[5] = {{.count = 0}}, both = {.count = 0};
    for (int n = 0; n < 5; n++) {
        polygon_rle(&mask[n], worked[n].xy, worked[n].points, 9, 10);
        assert_int_equal(mask[n].count, worked[n].count);
        assert_memory_equal(mask[n].runs, worked[n].runs, worked[n].count * sizeof *worked[n].runs);
        assert_int_equal(rle_extent(&mask[n]).area, worked[n].area);
        expect_text(&mask[n], worked[n].text);
    }
    for (int n = 0; n < 4; n++) {
        assert_true(fabs(iou(&mask[n], &mask[1], false) - with_second[n]) < 5e-9);
        assert_true(fabs(iou(&mask[n], &mask[2], false) - with_third[n]) < 5e-9);
        assert_true(fabs(iou(&mask[n], &mask[1], true) - crowd_second[n]) < 5e-9);
    }
    rle_union(&both, &mask[0], &mask[1]);
    assert_int_equal(rle_extent(&both).area, 22);
    rle_intersection(&both, &mask[0], &mask[1]);
    assert_int_equal(rle_extent(&both).area, 15);
    for (int n = 0; n < 5; n++) rle_free(&mask[n]);
    rle_free(&both);
}

static void worked_targets_have_their_cells(void **state) {
    (void)state;
    enum { SIDE = 28 };
    static const uint32_t first_runs[8] = {32, 1, 27, 3, 25, 6, 22, 8};
    const float points[6] = {1.5f, 1.5f, 8.5f, 2, 4, 7.25f}, box[4] = {1.25f, 0.5f, 9, 8};
    const int three = 3;
    uint8_t cells[SIDE * SIDE];
    MaskScratch scratch = {.points = NULL};
    Rle runs = {.count = 0};
    ObjectMask object = {points, &three, 1, NULL, {1, 1}, {0, 0}};
    memset(cells, 7, sizeof cells);
    object_mask_target(cells, SIDE, &object, box, &scratch);
    rle_encode(&runs, cells, SIDE, SIDE);
    assert_int_equal(rle_extent(&runs).area, 260);
    assert_memory_equal(runs.runs, first_runs, sizeof first_runs);
    for (int x = 0; x < SIDE; x++) assert_int_equal(cells[14 * SIDE + x], x >= 6 && x <= 18);

    parse(&runs, worked[0].text, 9, 10);
    object = (ObjectMask){.rle = &runs, .scale = {1, 1}};
    memset(cells, 7, sizeof cells);
    object_mask_target(cells, SIDE, &object, box, &scratch);
    int sum = 0;
    for (int i = 0; i < SIDE * SIDE; i++) sum += cells[i];
    assert_int_equal(sum, 218);
    mask_scratch_free(&scratch);
    rle_free(&runs);
}

/* == pycocotools ================================================================================================== */

enum { LONG = 4000 };

typedef struct {
    FILE *file;
    int height, width, points;
    double xy[24];
    Rle mask[4], merged;
    MaskScratch scratch;
} Group;

static void expect_mask_line(Group *g, const Rle *got, const char *name, bool with_box) {
    char word[16], text[LONG];
    unsigned area;
    RleExtent extent = rle_extent(got);
    assert_int_equal(fscanf(g->file, "%15s %3999s %u", word, text, &area), 3);
    assert_string_equal(word, name);
    expect_text(got, text);
    assert_int_equal(extent.area, area);
    for (int i = 0; with_box && i < 4; i++) {
        int want;
        assert_int_equal(fscanf(g->file, "%d", &want), 1);
        assert_int_equal(i < 2 ? extent.box[i] : extent.box[i] - extent.box[i - 2], want);
    }
    parse(&g->merged, text, g->height, g->width);
    assert_int_equal(g->merged.count, got->count);
    assert_memory_equal(g->merged.runs, got->runs, got->count * sizeof *got->runs);
}

static void expect_target_line(Group *g, const float *points, int count) {
    int side;
    float box[4];
    char text[2][LONG];
    uint8_t cells[28 * 28];
    ObjectMask object[2] = {{points, &count, 1, NULL, {1, 1}, {0, 0}}, {.rle = &g->mask[0], .scale = {1, 1}}};
    assert_int_equal(fscanf(g->file, " target %d %f %f %f %f %3999s %3999s", &side, &box[0], &box[1], &box[2], &box[3],
                            text[0], text[1]), 7);
    for (int kind = 0; kind < 2; kind++) {
        memset(cells, 7, sizeof cells);
        object_mask_target(cells, side, &object[kind], box, &g->scratch);
        rle_encode(&g->merged, cells, side, side);
        expect_text(&g->merged, text[kind]);
    }
}

static void expect_group(Group *g) {
    float first[24];
    int first_points = 0;
    for (int n = 0; n < 4; n++) {
        assert_int_equal(fscanf(g->file, " polygon %d", &g->points), 1);
        for (int i = 0; i < 2 * g->points; i++) assert_int_equal(fscanf(g->file, "%lf", &g->xy[i]), 1);
        polygon_rle(&g->mask[n], g->xy, g->points, g->height, g->width);
        expect_mask_line(g, &g->mask[n], "mask", true);
        for (int i = 0; !n && i < 2 * g->points; i++) first[i] = (float)g->xy[i];
        if (!n) first_points = g->points;
    }
    Rle merged = {.count = 0};
    rle_union(&merged, &g->mask[0], &g->mask[1]);
    expect_mask_line(g, &merged, "union", false);
    rle_intersection(&merged, &g->mask[0], &g->mask[1]);
    expect_mask_line(g, &merged, "intersection", false);
    rle_free(&merged);
    assert_int_equal(fscanf(g->file, " ious"), 0);
    for (int i = 0; i < 16; i++) {
        double want;
        assert_int_equal(fscanf(g->file, "%lf", &want), 1);
        assert_true(iou(&g->mask[i / 4], &g->mask[i % 4], i % 4 == 1) == want);
    }
    expect_target_line(g, first, first_points);
}

static void masks_are_pycocotools(void **state) {
    (void)state;
    Group g = {.file = fopen("tests/fixtures/detection/masks.txt", "r")};
    int groups = 0;
    assert_non_null(g.file);
    while (fscanf(g.file, " group %d %d", &g.height, &g.width) == 2) {
        expect_group(&g);
        groups++;
    }
    assert_int_equal(groups, 50);
    fclose(g.file);
    for (int n = 0; n < 4; n++) rle_free(&g.mask[n]);
    rle_free(&g.merged);
    mask_scratch_free(&g.scratch);
}

/* == Random masks against bitmaps ================================================================================== */

enum { SIDE = 40 };

/* Runs of random lengths, some of them zero; sometimes the last runs are missing. */
static void draw_mask(Rle *rle, uint32_t stream, uint32_t n, int height, int width) {
    Error error;
    uint32_t runs[SIDE * SIDE + 2], left = (uint32_t)(height * width), longest = 1 + draw(stream, n, 0, 60);
    size_t count = 0;
    while (left && count < SIDE * SIDE) {
        uint32_t run = draw(stream, n, 1 + count, longest);
        runs[count] = run < left ? run : left;
        left -= runs[count++];
    }
    assert_true(rle_set(rle, runs, count, height, width, &error));
}

static void expect_canonical(const Rle *rle) {
    uint32_t sum = 0;
    for (size_t i = 0; i < rle->count; i++) {
        assert_true(!i || rle->runs[i]);
        sum += rle->runs[i];
    }
    assert_int_equal(sum, rle->height * rle->width);
}

static void runs_are_bitmaps(void **state) {
    (void)state;
    Rle a = {.count = 0}, b = {.count = 0}, c = {.count = 0};
    static uint8_t pa[SIDE * SIDE], pb[SIDE * SIDE], pc[SIDE * SIDE], columns[SIDE * SIDE];
    for (uint32_t n = 0; n < 2000; n++) {
        int height = 1 + (int)draw(1, n, 0, SIDE), width = 1 + (int)draw(1, n, 1, SIDE), pixels = height * width;
        int common = 0, area = 0, other = 0, box[4] = {SIDE, SIDE, 0, 0};
        draw_mask(&a, 2, n, height, width);
        draw_mask(&b, 3, n, height, width);
        memset(pa, 7, sizeof pa);
        rle_decode(pa, &a);
        rle_decode(pb, &b);
        for (int i = 0; i < pixels; i++) {
            int x = i % width, y = i / width;
            assert_true(pa[i] <= 1);
            common += pa[i] && pb[i];
            area += pa[i];
            other += pb[i];
            if (!pa[i]) continue;
            if (x < box[0]) box[0] = x;
            if (y < box[1]) box[1] = y;
            if (x >= box[2]) box[2] = x + 1;
            if (y >= box[3]) box[3] = y + 1;
        }
        RleExtent extent = rle_extent(&a);
        if (!area) memset(box, 0, sizeof box);
        assert_int_equal(extent.area, area);
        assert_memory_equal(extent.box, box, sizeof box);
        assert_int_equal(rle_common_area(&a, &b), common);
        assert_true(iou(&a, &b, false) == (common ? (double)common / (area + other - common) : 0));
        assert_true(iou(&a, &b, true) == (common ? (double)common / area : 0));
        for (int both = 0; both < 2; both++) {
            (both ? rle_intersection : rle_union)(&c, &a, &b);
            expect_canonical(&c);
            rle_decode(pc, &c);
            for (int i = 0; i < pixels; i++) assert_int_equal(pc[i], both ? pa[i] & pb[i] : pa[i] | pb[i]);
        }
        rle_encode(&c, pa, height, width);
        expect_canonical(&c);
        memset(pc, 7, sizeof pc);
        rle_decode(pc, &c);
        assert_memory_equal(pa, pc, (size_t)pixels);
        int from = (int)draw(1, n, 2, (uint32_t)width), to = from + (int)draw(1, n, 3, (uint32_t)(width - from + 1));
        memset(columns, 7, sizeof columns);
        rle_decode_columns(columns, &a, from, to);
        for (int i = 0; i < (to - from) * height; i++)
            assert_int_equal(columns[i], pa[i % height * width + from + i / height]);
        if (to - from < width) assert_int_equal(columns[(to - from) * height], 7);
    }
    rle_free(&a);
    rle_free(&b);
    rle_free(&c);
}

/* == Text ========================================================================================================= */

static void texts_come_back_as_they_were(void **state) {
    (void)state;
    Rle a = {.count = 0}, b = {.count = 0};
    RleTexts texts = {.count = 0};
    char *text = NULL;
    size_t room = 0;
    Error error = {.text = ""};
    for (uint32_t n = 0; n < 500; n++) {
        draw_mask(&a, 4, n, 1 + (int)(n % SIDE), SIDE);
        rle_texts_add(&texts, &a);
    }
    for (uint32_t n = 0; n < 500; n++) {
        draw_mask(&a, 4, n, 1 + (int)(n % SIDE), SIDE);
        rle_texts_get(&b, &texts, n);
        assert_int_equal(a.count, b.count);
        assert_int_equal(a.height, b.height);
        assert_int_equal(a.width, b.width);
        if (a.count) assert_memory_equal(a.runs, b.runs, a.count * sizeof *a.runs);
    }
    const uint32_t large[] = {1u << 30, (1u << 30) - 40000, 0, 1, 5, 0, 7};
    assert_true(rle_set(&a, large, 7, 65535, 32768, &error));
    size_t length = rle_text(&text, &room, &a);
    assert_true(rle_parse(&b, text, length, 65535, 32768, &error));
    assert_int_equal(b.count, 7);
    assert_memory_equal(b.runs, large, sizeof large);
    rle_texts_free(&texts);
    rle_free(&a);
    rle_free(&b);
    free(text);
}

static void broken_texts_are_refused(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"d0272N1ON2O1Oa1", "covers more than the 9 x 10 pixels"},
        {"`2;", "covers more than the 9 x 10 pixels"}, /* runs of 80 and 11 */
        {"`2:", NULL},
        {"d0272N1ON2O1Oa", "broken at character 14 of 14"},
        {"d0 72", "broken at character 3"},
        {"d0272\x7f", "broken at character 6"},
        {"12345PPPPPPP0", "broken at character 6"},
        {"oooooo0", "covers more than"},
        {"O", "negative length at character 1"},
        {"11122J", "negative length at character 6"},
        {"PPPPPP0", NULL},
        {"", NULL},
        {"0", NULL},
        {"d0272N1ON2O1O", NULL}}; /* the rest is zeros */
    Rle rle = {.count = 0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Error error = {.text = ""};
        bool ok = rle_parse(&rle, cases[i][0], strlen(cases[i][0]), 9, 10, &error);
        printf("  '%s': %s\n", cases[i][0], ok ? "accepted" : error.text);
        assert_int_equal(ok, !cases[i][1]);
        if (cases[i][1] && !strstr(error.text, cases[i][1])) fail_msg("'%s' is missing", cases[i][1]);
    }
    Error error = {.text = ""};
    assert_true(rle_set(&rle, (const uint32_t[]){80, 10}, 2, 9, 10, &error));
    assert_false(rle_set(&rle, (const uint32_t[]){80, 11}, 2, 9, 10, &error));
    assert_non_null(strstr(error.text, "covers more than"));
    assert_false(rle_set(&rle, (const uint32_t[]){UINT32_MAX, 5}, 2, 9, 10, &error));
    rle_free(&rle);
}

/* == Random polygons against the published method ================================================================== */

enum { POINTS = 60000 };

static int compare_numbers(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return a < b ? -1 : a > b;
}

/* Computes every point of the outline as rleFrPoly does.  Returns the number of runs. */
static size_t walk_outline(uint32_t *runs, const double *xy, int points, int height, int width) {
    static int u[POINTS], v[POINTS];
    static uint32_t a[POINTS];
    int n = 0;
    size_t count = 0, kept = 0;
    for (int j = 0; j < points; j++) {
        int k = (j + 1) % points, xs = (int)(5 * xy[2 * j] + .5), ys = (int)(5 * xy[2 * j + 1] + .5);
        int xe = (int)(5 * xy[2 * k] + .5), ye = (int)(5 * xy[2 * k + 1] + .5), dx = abs(xe - xs), dy = abs(ye - ys);
        bool flip = dx >= dy ? xs > xe : ys > ye;
        if (flip) {
            int x = xs, y = ys;
            xs = xe, xe = x, ys = ye, ye = y;
        }
        double s = !dx && !dy ? 0 : dx >= dy ? (double)(ye - ys) / dx : (double)(xe - xs) / dy;
        int most = dx >= dy ? dx : dy;
        for (int d = 0; d <= most; d++, n++) {
            int t = flip ? most - d : d;
            assert_true(n < POINTS);
            u[n] = dx >= dy ? t + xs : (int)(xs + s * t + .5);
            v[n] = dx >= dy ? (int)(ys + s * t + .5) : t + ys;
        }
    }
    for (int j = 1; j < n; j++) {
        if (u[j] == u[j - 1]) continue;
        double x = ((u[j] < u[j - 1] ? u[j] : u[j] - 1) + .5) / 5 - .5;
        double y = ((v[j] < v[j - 1] ? v[j] : v[j - 1]) + .5) / 5 - .5;
        if (floor(x) != x || x < 0 || x > width - 1) continue;
        y = ceil(y < 0 ? 0 : y > height ? height : y);
        a[count++] = (uint32_t)((int)x * height + (int)y);
    }
    a[count++] = (uint32_t)(height * width);
    qsort(a, count, sizeof *a, compare_numbers);
    for (size_t j = count; j-- > 1;) a[j] -= a[j - 1];
    runs[kept++] = a[0];
    for (size_t j = 1; j < count; j++) {
        if (a[j]) {
            runs[kept++] = a[j];
        } else if (++j < count) {
            runs[kept - 1] += a[j];
        }
    }
    return kept;
}

/* A coordinate in hundredths as in COCO's files, in tenths, where rounding is ambiguous, far outside, or a whole
 * number. */
static double draw_coordinate(uint32_t n, uint64_t i, int side) {
    switch (draw(10, n, i, 5)) {
    case 0: return draw(11, n, i, 100 * (uint32_t)side) / 100.0;
    case 1: return draw(11, n, i, 10 * (uint32_t)side) / 10.0;
    case 2: return (int)draw(11, n, i, 20 * (uint32_t)side) / 10.0 - side / 2;
    case 3: return rng_normal(check_seed(), RNG_TEST, 11, n, i) * 3.0f * (float)side;
    default: return draw(11, n, i, (uint32_t)side + 1);
    }
}

static void polygons_follow_the_published_method(void **state) {
    (void)state;
    static uint32_t want[POINTS];
    Rle got = {.count = 0};
    for (uint32_t n = 0; n < 3000; n++) {
        int height = 1 + (int)draw(12, n, 0, 90), width = 1 + (int)draw(12, n, 1, 90);
        int points = 1 + (int)draw(12, n, 2, 12);
        double xy[24];
        for (int i = 0; i < 2 * points; i++) {
            bool repeat = i > 1 && draw(12, n, 3 + (uint64_t)i, 8) == 0;
            xy[i] = repeat ? xy[i - 2] : draw_coordinate(n, (uint64_t)i, i % 2 ? height : width);
        }
        size_t count = walk_outline(want, xy, points, height, width);
        polygon_rle(&got, xy, points, height, width);
        assert_int_equal(got.count, count);
        assert_memory_equal(got.runs, want, count * sizeof *want);
    }
    rle_free(&got);
}

static void polygons_anywhere_are_harmless(void **state) {
    (void)state;
    static const double far[][8] = {{-50, -50, -20, -50, -20, -20, -50, -20}, {100, 0, 120, 0, 120, 9, 100, 9},
                                    {1e300, -1e300, -1e300, 1e300, 1e9, 1e9, 0, 0}, {0, 20, 9, 20, 9, 30, 0, 30},
                                    {NAN, 1, 2, NAN, INFINITY, 3, 4, -INFINITY}};
    Rle rle = {.count = 0};
    for (size_t n = 0; n < 5; n++) {
        polygon_rle(&rle, far[n], 4, 9, 10);
        expect_canonical(&rle);
        if (n != 2 && n != 4) assert_int_equal(rle_extent(&rle).area, 0);
    }
    polygon_rle(&rle, far[0], 0, 9, 10);
    assert_int_equal(rle_extent(&rle).area, 0);
    const double around[8] = {-1e8, -1e8, 1e8, -1e8, 1e8, 1e8, -1e8, 1e8};
    polygon_rle(&rle, around, 4, 9, 10);
    assert_int_equal(rle_extent(&rle).area, 90);

    /* A long outline on a small picture: crossings that cancel are removed early, so that memory stays small. */
    enum { MANY = 100000 };
    double *zigzag = calloc(2 * MANY, sizeof *zigzag);
    for (size_t i = 0; i < MANY; i++) {
        zigzag[2 * i] = i % 2 ? 200 : -200;
        zigzag[2 * i + 1] = (double)(i % 9);
    }
    polygon_rle(&rle, zigzag, MANY, 9, 10);
    expect_canonical(&rle);
    assert_true(rle.room < 1000);
    free(zigzag);
    rle_free(&rle);
}

static void several_polygons_are_united(void **state) {
    (void)state;
    double xy[36];
    const int ring_points[3] = {3, 4, 5};
    Rle got = {.count = 0}, want = {.count = 0}, one = {.count = 0}, spare[2] = {{.count = 0}};
    for (uint32_t n = 0; n < 200; n++) {
        for (uint64_t i = 0; i < 24; i++) xy[i] = draw_coordinate(50000 + n, i, 30);
        polygons_rle(&got, xy, ring_points, 3, 30, 35, spare);
        polygon_rle(&spare[0], xy, 3, 30, 35);
        polygon_rle(&spare[1], xy + 6, 4, 30, 35);
        rle_union(&one, &spare[0], &spare[1]);
        polygon_rle(&spare[0], xy + 14, 5, 30, 35);
        rle_union(&want, &one, &spare[0]);
        assert_int_equal(got.count, want.count);
        assert_memory_equal(got.runs, want.runs, got.count * sizeof *got.runs);
    }
    polygons_rle(&got, NULL, NULL, 0, 30, 35, spare);
    expect_canonical(&got);
    assert_int_equal(rle_extent(&got).area, 0);
    for (int i = 0; i < 2; i++) rle_free(&spare[i]);
    rle_free(&got);
    rle_free(&want);
    rle_free(&one);
}

/* == Targets ====================================================================================================== */

/* The target of a mirrored picture is the mirrored target.  Scales are powers of two and coordinates multiples of a
 * quarter, so that all numbers are exact. */
static void mirrored_pictures_have_mirrored_targets(void **state) {
    (void)state;
    enum { CELLS = 14, H = 24, W = 32 };
    MaskScratch scratch = {.points = NULL};
    Rle runs = {.count = 0};
    const int ring_points[2] = {3, 4};
    uint8_t plain[CELLS * CELLS], mirrored[CELLS * CELLS];
    int ones = 0;
    for (uint32_t n = 0; n < 400; n++) {
        float points[14], box[4], turned[4];
        double scale = (double[]){0.5, 1, 2}[n % 3];
        for (uint64_t i = 0; i < 14; i++) points[i] = (float)draw(20, n, i, 4 * (i % 2 ? H : W)) / 4;
        for (uint64_t i = 0; i < 2; i++) {
            int side = (int)(scale * (i ? H : W)) * 4, from = (int)draw(21, n, i, (uint32_t)side - 1);
            box[i] = (float)from / 4;
            box[i + 2] = box[i] + (float)(1 + draw(22, n, i, (uint32_t)(side - from))) / 4;
        }
        memcpy(turned, box, sizeof box);
        turned[0] = (float)(scale * W) - box[2];
        turned[2] = (float)(scale * W) - box[0];
        draw_mask(&runs, 23, n, H, W);
        ObjectMask object = {points, ring_points, n % 2 ? 2 : 0, &runs, {scale, scale}, {0, 0}};
        object_mask_target(plain, CELLS, &object, box, &scratch);
        object.scale[0] = -scale;
        object.shift[0] = scale * W;
        object_mask_target(mirrored, CELLS, &object, turned, &scratch);
        for (int i = 0; i < CELLS * CELLS; i++) {
            assert_int_equal(mirrored[i], plain[i / CELLS * CELLS + CELLS - 1 - i % CELLS]);
            ones += plain[i];
        }
    }
    assert_true(ones > 400 * CELLS * CELLS / 20);
    mask_scratch_free(&scratch);
    rle_free(&runs);
}

/* Scale and shift move box and mask alike, so that the target does not change. */
static void moved_pictures_keep_their_targets(void **state) {
    (void)state;
    enum { CELLS = 7, H = 24, W = 32 };
    MaskScratch scratch = {.points = NULL};
    Rle runs = {.count = 0};
    const int ring_points[2] = {3, 4};
    uint8_t here[CELLS * CELLS], there[CELLS * CELLS];
    for (uint32_t n = 0; n < 200; n++) {
        float points[14], box[4] = {3.5f, 2.25f, 27, 20.75f}, moved[4];
        for (uint64_t i = 0; i < 14; i++) points[i] = (float)draw(30, n, i, 4 * (i % 2 ? H : W)) / 4;
        draw_mask(&runs, 31, n, H, W);
        ObjectMask object = {points, ring_points, n % 2 ? 2 : 0, &runs, {1, 1}, {0, 0}};
        object_mask_target(here, CELLS, &object, box, &scratch);
        for (int i = 0; i < 4; i++) {
            object.scale[i % 2] = i % 2 ? 4 : 2;
            object.shift[i % 2] = i % 2 ? -6 : -3.5;
            moved[i] = (float)(object.scale[i % 2] * (double)box[i] + object.shift[i % 2]);
        }
        object_mask_target(there, CELLS, &object, moved, &scratch);
        assert_memory_equal(here, there, sizeof here);
    }
    mask_scratch_free(&scratch);
    rle_free(&runs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worked_polygons_have_their_runs),
        cmocka_unit_test(worked_targets_have_their_cells),
        cmocka_unit_test(masks_are_pycocotools),
        cmocka_unit_test(runs_are_bitmaps),
        cmocka_unit_test(texts_come_back_as_they_were),
        cmocka_unit_test(broken_texts_are_refused),
        cmocka_unit_test(polygons_follow_the_published_method),
        cmocka_unit_test(polygons_anywhere_are_harmless),
        cmocka_unit_test(several_polygons_are_united),
        cmocka_unit_test(mirrored_pictures_have_mirrored_targets),
        cmocka_unit_test(moved_pictures_keep_their_targets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
