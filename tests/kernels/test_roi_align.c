/* RoIAlign against its formula in double, sample by sample, and against the digits of the specification's case. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <omp.h>

#include "tests/differences.h"

/* == The formula ================================================================================================== */

/* The four cells around a sample, and their weights, which are 0 outside of the map. */
typedef struct {
    size_t cell[4];
    double weight[4];
} Sample;

static double clamp(double x, double least, double most) { return x < least ? least : x > most ? most : x; }

static Sample sample_at(double y, double x, int rows, int columns) {
    Sample s = {{0}, {0}};
    if (y < -1 || y > rows || x < -1 || x > columns) return s;
    y = clamp(y, 0, rows - 1);
    x = clamp(x, 0, columns - 1);
    for (int corner = 0; corner < 4; corner++) {
        int row = (int)y + corner / 2, column = (int)x + corner % 2;
        double v = corner / 2 ? y - floor(y) : 1 - (y - floor(y)), u = corner % 2 ? x - floor(x) : 1 - (x - floor(x));
        if (row >= rows || column >= columns) continue; /* of weight 0 */
        s.cell[corner] = (size_t)row * (size_t)columns + (size_t)column;
        s.weight[corner] = v * u;
    }
    return s;
}

typedef struct {
    double start, bin;
    int samples;
} Side;

static Side side_of(const float *box, int axis, const RoiAlign *s, int level) {
    double scale = s->scale[level], start = box[axis] * scale - 0.5, end = box[axis + 2] * scale - 0.5;
    return (Side){start, (end - start) / s->P, (int)ceil((end - start) / s->P)};
}

/* For every sample, each pair of a result and a cell that it reads: y += w x, and dx += w dy. */
static void formula(double *y, double *const *dmaps, double *const *maps, const double *dy, const float *boxes,
                    const int *place, int R, const RoiAlign *s) {
    for (int r = 0; r < R; r++) {
        int level = place[2 * r + 1], rows = s->rows[level], columns = s->columns[level];
        Side down = side_of(boxes + 4 * r, 1, s, level), across = side_of(boxes + 4 * r, 0, s, level);
        size_t image = (size_t)place[2 * r] * (size_t)rows * (size_t)columns;
        for (int bin = 0; bin < s->P * s->P; bin++)
            for (int at = 0; down.samples > 0 && across.samples > 0 && at < down.samples * across.samples; at++) {
                double count = (double)down.samples * across.samples;
                double a = at / across.samples + 0.5, b = at % across.samples + 0.5;
                Sample p = sample_at(down.start + (bin / s->P + a / down.samples) * down.bin,
                                     across.start + (bin % s->P + b / across.samples) * across.bin, rows, columns);
                for (int corner = 0; corner < 4; corner++)
                    for (int c = 0; c < s->C; c++) {
                        size_t out = ((size_t)r * (size_t)(s->P * s->P) + (size_t)bin) * (size_t)s->C + (size_t)c;
                        size_t in = (image + p.cell[corner]) * (size_t)s->C + (size_t)c;
                        if (y) y[out] += p.weight[corner] / count * maps[level][in];
                        if (dmaps) dmaps[level][in] += p.weight[corner] / count * dy[out];
                    }
            }
    }
}

/* == Cases ======================================================================================================== */

typedef struct {
    RoiAlign s;
    int R;
    bool edges; /* the first boxes are empty, inverted, tiny, outside of the map or larger than it */
} Case;

static size_t map_size(const RoiAlign *s, int l) {
    return (size_t)s->B * (size_t)s->rows[l] * (size_t)s->columns[l] * (size_t)s->C;
}

/* Whether rounding could change the number of samples, or whether a sample counts. */
static bool ambiguous(const float *box, const RoiAlign *s, int level) {
    for (int axis = 0; axis < 2; axis++) {
        Side side = side_of(box, axis, s, level);
        int cells = axis ? s->rows[level] : s->columns[level];
        if (side.bin == 0) continue;
        if (fabs(side.bin - round(side.bin)) < 1e-4) return true;
        for (int i = 0; i < s->P * side.samples; i++) {
            double at = side.start + (i / side.samples + (i % side.samples + 0.5) / side.samples) * side.bin;
            if (fabs(at + 1) < 1e-3 || fabs(at - cells) < 1e-3) return true;
        }
    }
    return false;
}

static double uniform(uint32_t stream, uint64_t i) { return rng_uniform(check_seed(), RNG_TEST, stream, 7, i); }

/* Random boxes with sides from a hundredth of the picture to more than all of it, some partly or entirely outside. */
static void draw_boxes(float *boxes, int *place, const Case *k) {
    static uint32_t stream = 1000;
    stream++;
    uint64_t drawn = 0;
    for (int r = 0; r < k->R; r++) {
        place[2 * r] = (int)(uniform(stream, drawn++) * k->s.B);
        place[2 * r + 1] = (int)(uniform(stream, drawn++) * k->s.levels);
        int level = place[2 * r + 1];
        float size[2] = {(float)k->s.columns[level] / k->s.scale[level], (float)k->s.rows[level] / k->s.scale[level]};
        do
            for (int axis = 0; axis < 2; axis++) {
                double side = size[axis] * pow(10, 2.2 * uniform(stream, drawn++) - 2);
                double centre = size[axis] * (1.4 * uniform(stream, drawn++) - 0.2);
                boxes[4 * r + axis] = (float)(centre - side / 2);
                boxes[4 * r + axis + 2] = (float)(centre + side / 2);
            }
        while (ambiguous(boxes + 4 * r, &k->s, level));
        const float edges[][4] = {{0.25f, 0.5f, 0.25f, 0.5f}, {0.3f, 0.2f, 0.3f, 0.9f},   {0.6f, 0.7f, 0.4f, 0.5f},
                                  {-3, -3, -2, -2},           {2, 2, 2.5f, 2.5f},         {0.1f, -5, 0.9f, -4},
                                  {-1.03f, -0.51f, 2.1f, 3},  {0.5f, 0.5f, 0.5001f, 0.5001f}};
        for (int i = 0; k->edges && r < 8 && i < 4; i++) boxes[4 * r + i] = edges[r][i] * size[i % 2];
    }
}

typedef struct {
    float *boxes, *d_boxes;
    int *place, *d_place;
    size_t out;
    double *maps[ROI_LEVELS], *dmaps[ROI_LEVELS], *dy; /* for the formula */
    float *before[ROI_LEVELS];
    real *d_maps[ROI_LEVELS], *d_dmaps[ROI_LEVELS], *d_y, *d_dy;
} Tensors;

static void *upload_bytes(const void *from, size_t bytes) {
    void *to = keep(device_malloc(bytes ? bytes : 1, "test"), true);
    device_upload(to, from, bytes);
    return to;
}

static Tensors tensors_of(const Case *k) {
    size_t R = (size_t)k->R;
    Tensors t = {.boxes = keep(malloc((R ? R : 1) * 4 * sizeof(float)), false),
                 .place = keep(malloc((R ? R : 1) * 2 * sizeof(int)), false),
                 .out = R * (size_t)(k->s.P * k->s.P) * (size_t)k->s.C};
    draw_boxes(t.boxes, t.place, k);
    t.d_boxes = upload_bytes(t.boxes, R * 4 * sizeof(float));
    t.d_place = upload_bytes(t.place, R * 2 * sizeof(int));
    float *dy = normals(t.out, 1);
    t.d_y = poisoned_real(t.out);
    t.d_dy = upload_real(dy, t.out);
    t.dy = wide(dy, t.out);
    for (int l = 0; l < k->s.levels; l++) {
        size_t n = map_size(&k->s, l);
        float *map = normals(n, 1);
        t.before[l] = normals(n, 1);
        t.d_maps[l] = upload_real(map, n);
        t.d_dmaps[l] = upload_real(t.before[l], n);
        t.maps[l] = wide(map, n);
        t.dmaps[l] = wide(t.before[l], n);
    }
    return t;
}

static void roi_align_both(const Tensors *t, const Case *k) {
    kernels_reserve(roi_align_workspace(&k->s));
    roi_align_forward(t->d_y, (const real *const *)t->d_maps, t->d_boxes, t->d_place, k->R, &k->s);
    roi_align_backward(t->d_dmaps, t->d_dy, t->d_boxes, t->d_place, k->R, &k->s);
}

/* Compares results of float arithmetic that are rounded once.  The position of a sample is rounded four times, each
 * time by half a unit in the last place of numbers up to twice the map's longest side, and neighbouring cells differ by
 * up to six times the root mean square. */
static int close_sampled(const char *what, const real *got, const double *want, size_t n, const RoiAlign *s) {
    int side = 1;
    for (int l = 0; l < s->levels; l++) {
        side = s->rows[l] > side ? s->rows[l] : side;
        side = s->columns[l] > side ? s->columns[l] : side;
    }
    return check_close_step(what, download_real(got, n), want, n, 1e-5 + ldexp(4 * 6 * side, -24), REAL_STEP);
}

static void roi_align_case(Case k) {
    printf("RoIAlign B %d, C %d, P %d, %d levels from %d x %d, %d RoIs%s\n", k.s.B, k.s.C, k.s.P, k.s.levels,
           k.s.rows[0], k.s.columns[0], k.R, k.edges ? ", edges" : "");
    Tensors t = tensors_of(&k);
    double *want = zeros(t.out);
    roi_align_both(&t, &k);
    formula(want, t.dmaps, t.maps, t.dy, t.boxes, t.place, k.R, &k.s);
    if (k.R) assert_true(close_sampled("y", t.d_y, want, t.out, &k.s));
    for (int l = 0; l < k.s.levels; l++) {
        size_t n = map_size(&k.s, l);
        const float *got = download_real(t.d_dmaps[l], n);
        assert_true(close_sampled("dx", t.d_dmaps[l], t.dmaps[l], n, &k.s));
        for (size_t i = 0; i < n; i++) /* cells that no RoI reads do not change */
            if (t.dmaps[l][i] == (double)t.before[l][i]) assert_true(got[i] == t.before[l][i]);
    }
    release_all();
}

static void test_roi_align(void **state) {
    (void)state;
    const Case cases[] = {
        {{1, 1, 1, 1, {5}, {4}, {0.25f}}, 12, false},
        {{2, 3, 2, 1, {7}, {9}, {0.25f}}, 20, true},
        {{2, 17, 7, 2, {24, 13}, {37, 19}, {0.125f, 0.0625f}}, 25, true},
        {{1, 64, 7, 4, {40, 20, 10, 5}, {56, 28, 14, 7}, {0.25f, 0.125f, 0.0625f, 0.03125f}}, 40, true},
        {{3, 33, 14, 3, {18, 9, 5}, {20, 10, 5}, {0.25f, 0.125f, 0.0625f}}, 24, true},
        {{1, 300, 3, 2, {17, 33}, {16, 31}, {0.5f, 1}}, 20, true},
        {{2, 72, 5, 1, {1}, {1}, {0.0625f}}, 16, true},
        {{1, 8, 7, 4, {40, 20, 10, 5}, {56, 28, 14, 7}, {0.25f, 0.125f, 0.0625f, 0.03125f}}, 0, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) roi_align_case(cases[i]);
    if (full_or_reduced("RoIs of a wide map", 1, 0))
        roi_align_case((Case){{2, 256, 7, 2, {50, 25}, {84, 42}, {0.25f, 0.125f}}, 60, true});
}

/* Boxes with NaN or infinite coordinates cause no crash, no endless loop and no access outside of the map. */
static void test_garbage(void **state) {
    (void)state;
    Case k = {{1, 5, 3, 1, {6}, {7}, {0.25f}}, 6, false};
    Tensors t = tensors_of(&k);
    const float boxes[6][4] = {{NAN, 1, 20, 20},           {1, 1, NAN, NAN},    {1, 1, INFINITY, 20},
                               {-INFINITY, 0, INFINITY, 9}, {-1e30f, 0, 1e30f, 9}, {3e38f, 3e38f, 3.1e38f, 3.2e38f}};
    device_upload(t.d_boxes, boxes, sizeof boxes);
    roi_align_both(&t, &k);
    const float *y = download_real(t.d_y, t.out);
    for (size_t i = 0; i < 2 * 9 * 5; i++) assert_true(y[i] == 0);
    release_all();
}

static void test_threads(void **state) {
    (void)state;
    Case k = {{2, 40, 7, 2, {33, 17}, {50, 25}, {0.25f, 0.125f}}, 50, true};
    Tensors t = tensors_of(&k);
    size_t n[2] = {map_size(&k.s, 0), map_size(&k.s, 1)};
    const int threads[] = {1, 2, 7}, usual = omp_get_max_threads();
    float *first[3] = {0};
    for (int i = 0; i < 3; i++) {
        omp_set_num_threads(threads[i]);
        for (int l = 0; l < 2; l++) real_upload(t.d_dmaps[l], t.before[l], n[l]);
        roi_align_both(&t, &k);
        float *now[3] = {download_real(t.d_y, t.out), download_real(t.d_dmaps[0], n[0]), download_real(t.d_dmaps[1], n[1])};
        const size_t count[3] = {t.out, n[0], n[1]};
        for (int a = 0; a < 3; a++) {
            if (!i) first[a] = now[a];
            assert_memory_equal(now[a], first[a], count[a] * sizeof(float));
        }
    }
    omp_set_num_threads(usual);
    release_all();
}

/* == Gradients by differences ===================================================================================== */

typedef struct {
    const Tensors *t;
    const Case *k;
} Context;

static void forward_alone(double *out, void *context) {
    const Context *c = context;
    memset(out, 0, c->t->out * sizeof *out);
    formula(out, NULL, c->t->maps, NULL, c->t->boxes, c->t->place, c->k->R, &c->k->s);
}

static void test_slopes(void **state) {
    (void)state;
    Case k = {{2, 3, 4, 2, {9, 6}, {7, 8}, {0.25f, 0.125f}}, 14, true};
    Tensors t = tensors_of(&k);
    Context context = {&t, &k};
    roi_align_both(&t, &k);
    float *slopes = download_real(t.d_dy, t.out);
    const Function f = {forward_alone, &context, t.out, zeros(t.out), slopes, 0.5}; /* linear: any width is exact */
    for (int l = 0; l < 2; l++) {
        size_t n = map_size(&k.s, l);
        assert_true(slopes_agree("dx", download_real(t.d_dmaps[l], n), t.before[l], t.maps[l], n, &f));
    }
    release_all();
}

/* == Case 1 of the specification ================================================================================== */

typedef struct {
    float box[4];
    double y[4], corner, sum, dx, slope; /* y: channel 0; corner: last y; sum: of y; dx: of channel 0; slope: of dx f */
} Digits;

static int near(const char *what, double got, double want) {
    bool ok = fabs(got - want) <= (sizeof(real) == 4 ? 2e-6 : 0.03);
    if (!ok) printf("  %s: got %.8f, want %.8f  FAILED\n", what, got, want);
    return ok;
}

static void test_digits(void **state) {
    (void)state;
    enum { ROWS = 7, COLUMNS = 9, N = ROWS * COLUMNS * 2 };
    const RoiAlign s = {1, 2, 2, 1, {ROWS}, {COLUMNS}, {0.25f}};
    const Digits cases[] = {
        {{5.3f, 3.1f, 30.9f, 25.7f}, {-0.04900957, 0.80425216, 0.23567845, 0.27792575}, 0.02062866, 1.88149112,
         -0.12247715, -1.47889652},
        {{-6, -3, 9.5f, 40}, {0.25331348, 0.40392183, -0.12703185, -0.23540655}, -0.30667915, 0.15932601, -0.45219811,
         -0.17231285},
        {{12, 8, 12.6f, 8.2f}, {-0.45084433, -0.47680927, -0.45560180, -0.48014083}, -0.54410429, -4.07737678,
         -0.12247715, 0.16135737},
        {{20, 10, 20, 10}, {0}, 0, 0, 0, 0},
        {{0, 0, 36, 28}, {0.20904898, 0.61389764, 0.11982327, 0.59543604}, 0.38675474, 2.46565019, -0.12247715,
         -0.08593310},
        {{33, 25, 60, 50}, {0.21184890, 0, 0, 0}, 0, 0.34574851, 0.125, 0.28419516},
    };
    float f[N], dy[8], zero[N] = {0};
    for (int i = 0; i < N; i++) {
        int c = i % 2, x = i / 2 % COLUMNS, y = i / 2 / COLUMNS;
        f[i] = (float)(sin(0.7 * y + 1.3 * x + 0.5 * c) + 0.1 * x - 0.05 * y * c);
    }
    for (int i = 0; i < 8; i++) dy[i] = (float)cos(i % 2 + 2 * (i / 4) + 3 * (i / 2 % 2));
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const Digits *d = &cases[k];
        const int here[2] = {0, 0};
        real *map = upload_real(f, N), *dmap = upload_real(zero, N), *y = poisoned_real(8), *d_dy = upload_real(dy, 8);
        kernels_reserve(roi_align_workspace(&s));
        const float *box = upload(d->box, 4);
        const int *place = upload_bytes(here, sizeof here);
        roi_align_forward(y, (const real *const[]){map}, box, place, 1, &s);
        roi_align_backward((real *const[]){dmap}, d_dy, box, place, 1, &s);
        const float *got = download_real(y, 8), *dx = download_real(dmap, N);
        double sum = 0, dx_sum = 0, slope = 0;
        for (int i = 0; i < 8; i++) sum += got[i];
        for (int i = 0; i < N; i++) {
            if (i % 2 == 0) dx_sum += dx[i];
            slope += (double)dx[i] * f[i];
        }
        for (int i = 0; i < 4; i++) assert_true(near("channel 0", got[2 * i], d->y[i]));
        assert_true(near("channel 1", got[7], d->corner));
        assert_true(near("sum", sum, d->sum));
        assert_true(near("dX[0]", dx_sum, d->dx));
        assert_true(near("dX f", slope, d->slope));
        const double single[] = {-0.00054537, -0.00189457};
        if (k == 0 || k == 4) assert_true(near("dX[0,3,4]", dx[2 * (3 * COLUMNS + 4)], single[k / 4]));
        release_all();
    }
}

int main(void) {
    check_seed();
    kernels_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_roi_align), cmocka_unit_test(test_garbage),
                                       cmocka_unit_test(test_threads), cmocka_unit_test(test_slopes),
                                       cmocka_unit_test(test_digits)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
