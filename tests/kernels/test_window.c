/* Attention within windows against the formula in double, token by token: two tokens of the rolled grid see each other
 * if they are in one window, and are apart if along an axis only one of them was rolled over the edge.  Gradients are
 * compared with differences of that formula. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/differences.h"
#include "tests/ranges.h"

typedef struct {
    int B, H, D;
    WindowShape windows;
} Sizes;

typedef struct {
    int B, H, D;
    WindowShape windows;
    double *qkv, *pad, *table; /* pad NULL: none */
    double *lse;
} Case;

/* A coordinate on a padded axis after rolling, and whether it was rolled over the edge. */
typedef struct {
    int at;
    bool over;
} Rolled;

static Rolled roll(int x, int shift, int side) { return (Rolled){x - shift + (x < shift ? side : 0), x < shift}; }

static int filled_up(int side, int window) { return (side + window - 1) / window * window; }

/* The axes of a grid: frames, rows, columns. */
typedef struct {
    int side, window, shift, filled;
} Axis;

static void axes_of(Axis axes[3], const WindowShape *w) {
    const Axis all[] = {{w->grid.frames, w->wt, w->shift_t, 0}, {w->grid.rows, w->wh, w->shift_y, 0},
                        {w->grid.columns, w->ww, w->shift_x, 0}};
    for (int i = 0; i < 3; i++) axes[i] = all[i], axes[i].filled = filled_up(all[i].side, all[i].window);
}

/* Splits an index into coordinates; the last one changes fastest. */
static void split(int place[3], int n, int frames, int rows, int columns) {
    place[0] = n / (rows * columns) % frames;
    place[1] = n / columns % rows;
    place[2] = n % columns;
}

/* The table's row for query i and key j, both places on the padded grid; -1 if the query does not see the key. */
static int entry_of(bool *apart, const Axis axes[3], const int i[3], const int j[3]) {
    int entry = 0;
    *apart = false;
    for (int a = 0; a < 3; a++) {
        int window = axes[a].window;
        Rolled x = roll(i[a], axes[a].shift, axes[a].filled), y = roll(j[a], axes[a].shift, axes[a].filled);
        if (x.at / window != y.at / window) return -1;
        *apart |= x.over != y.over;
        entry = entry * (2 * window - 1) + x.at - y.at + window - 1;
    }
    return entry;
}

/* Computes y [D] of head h and query n of an image; returns the log-sum-exp of the scores. */
static double outputs_of(double *y, const Case *k, const double *image, int h, int n) {
    const WindowShape *w = &k->windows;
    int M = k->H * k->D, columns = w->grid.columns, rows = w->grid.rows, query[3], j[3];
    double sum = 0, *q = calloc(k->D, sizeof *q);
    Axis axes[3];
    axes_of(axes, w);
    split(query, n, w->grid.frames, rows, columns);
    for (int c = 0; c < k->D; c++) y[c] = 0, q[c] = image[(size_t)n * 3 * M + h * k->D + c];
    for (int m = 0; m < axes[0].filled * axes[1].filled * axes[2].filled; m++) {
        bool apart;
        split(j, m, axes[0].filled, axes[1].filled, axes[2].filled);
        int entry = entry_of(&apart, axes, query, j);
        bool token = j[0] < w->grid.frames && j[1] < rows && j[2] < columns;
        const double *key = token ? image + (size_t)((j[0] * rows + j[1]) * columns + j[2]) * 3 * M : k->pad;
        if (entry < 0) continue;
        double score = 0;
        for (int c = 0; c < k->D && key; c++) score += q[c] * key[M + h * k->D + c];
        double weight = exp(score / sqrt(k->D) + k->table[entry * k->H + h] - (apart ? 100 : 0));
        sum += weight;
        for (int c = 0; c < k->D && key; c++) y[c] += weight * key[2 * M + h * k->D + c];
    }
    for (int c = 0; c < k->D; c++) y[c] /= sum;
    free(q);
    return log(sum);
}

static void outputs(double *y, void *context) {
    const Case *k = context;
    int N = grid_tokens(k->windows.grid), M = k->H * k->D;
    for (int b = 0; b < k->B; b++)
        for (int h = 0; h < k->H; h++)
            for (int n = 0; n < N; n++)
                k->lse[(b * k->H + h) * N + n] =
                    outputs_of(y + ((size_t)b * N + n) * M + h * k->D, k, k->qkv + (size_t)b * N * 3 * M, h, n);
}

/* In a window of one place the weight is 1 for any score, so that the terms dy.v and dy.y of the table's gradient
 * cancel: the result is compared relative to the size of these terms. */
static int table_stays(const Case *k, const Parameter *table, const float *dy, const double *y) {
    double *size = zeros(k->H);
    size_t tokens = (size_t)k->B * grid_tokens(k->windows.grid), heads = tokens * k->H;
    for (size_t i = 0; i < heads; i++) {
        double term = 0;
        for (int c = 0; c < k->D; c++) term += dy[i * k->D + c] * y[i * k->D + c];
        size[i % k->H] += 2 * fabs(term);
    }
    for (int h = 0; h < k->H; h++) size[h] += fabs((double)table->before[h]);
    return check_sums("dtable", download(table->gradient, table->n), wide(table->before, table->n), size, table->n,
                      roundings(5));
}

/* Makes the bias of one offset outweigh the mask between regions, so that pairs that are apart count, too. */
static void outweigh(Parameter *table, const WindowShape *w, int H) {
    int entry = (w->wt - 1) * (2 * w->wh - 1) * (2 * w->ww - 1) + w->wh * (2 * w->ww - 1) - w->ww - (w->ww > 1);
    float *x = calloc(table->n, sizeof *x);
    for (int h = 0; h < H; h++) table->x[entry * H + h] += 99;
    for (size_t i = 0; i < table->n; i++) table->x[i] = x[i] = (float)table->x[i];
    device_upload((float *)table->device, x, table->n * sizeof *x);
    free(x);
}

static void window_case(Sizes sizes, bool has_pad, bool strong) {
    Case k = {.B = sizes.B, .H = sizes.H, .D = sizes.D, .windows = sizes.windows};
    const WindowShape *w = &k.windows;
    int N = grid_tokens(w->grid), M = k.H * k.D;
    size_t n = (size_t)k.B * N * M, rows = (size_t)k.B * k.H * N,
           entries = grid_tokens(grid_offsets(window_sides(w)));
    printf("B %d H %d D %d grid %dx%dx%d windows %dx%dx%d shift %d %d %d%s\n", k.B, k.H, k.D, w->grid.frames,
           w->grid.rows, w->grid.columns, w->wt, w->wh, w->ww, w->shift_t, w->shift_y, w->shift_x,
           has_pad  ? ", pad"
           : strong ? ", one strong bias"
                    : "");
    AttentionShape shape = {k.B, N, k.H, k.D};
    float *qkv = normals(3 * n, 1), *dy = normals(n, 1);
    real *d_qkv = upload_real(qkv, 3 * n), *d_dy = upload_real(dy, n), *d_y = poisoned_real(n),
         *d_dqkv = poisoned_real(3 * n), *again = poisoned_real(3 * n);
    float *d_lse = poisoned(rows);
    Parameter pad = parameter(3 * (size_t)M, 1, 0), table = parameter(entries * k.H, 1, 0);
    if (strong) outweigh(&table, w, k.H);
    WindowParameters learned = {has_pad ? pad.device : NULL, table.device};
    float *dpad_again = upload(pad.before, pad.n), *dtable_again = upload(table.before, table.n);
    k.qkv = wide(qkv, 3 * n);
    k.pad = has_pad ? pad.x : NULL;
    k.table = table.x;
    k.lse = zeros(rows);
    double *want = zeros(n);
    outputs(want, &k);
    kernels_reserve(window_attention_workspace(w, &shape));
    window_attention_forward(d_y, d_lse, d_qkv, &learned, w, &shape);
    assert_true(close_rounded("y", d_y, want, n));
    assert_true(close_logarithms("lse", d_lse, k.lse, rows));
    window_attention_backward(d_dqkv, &(WindowGradients){has_pad ? pad.gradient : NULL, table.gradient}, d_dy, d_y,
                              d_lse, d_qkv, &learned, w, &shape);
    Function f = {outputs, &k, n, zeros(n), dy, 1e-5};
    double *size = zeros(rows);
    for (size_t i = 0; i < n; i++) size[(i / (N * M) * k.H + i % M / k.D) * N + i / M % N] += fabs(dy[i] * want[i]);
    KeptOutputs saved = {k.lse, size, rows};
    assert_true(slopes_agree_kept("dqkv", download_real(d_dqkv, 3 * n), NULL, k.qkv, 3 * n, &f, &saved));
    if (w->wt * w->wh * w->ww > 1) assert_true(parameter_agrees("dtable", &table, &f));
    else assert_true(table_stays(&k, &table, dy, want));
    if (has_pad) assert_true(parameter_agrees("dpad", &pad, &f));
    window_attention_backward(again, &(WindowGradients){has_pad ? dpad_again : NULL, dtable_again}, d_dy, d_y, d_lse,
                              d_qkv, &learned, w, &shape);
    assert_memory_equal(download_real(again, 3 * n), download_real(d_dqkv, 3 * n), 3 * n * sizeof(float));
    assert_memory_equal(download(dtable_again, table.n), download(table.gradient, table.n), table.n * sizeof(float));
    if (has_pad)
        assert_memory_equal(download(dpad_again, pad.n), download(pad.gradient, pad.n), pad.n * sizeof(float));
    release_all();
}

/* Windows that do and do not divide the grid, rolled along both axes, one or none; of one place, as large as the grid,
 * of more places than a tile has rows; heads of more and fewer channels than a vector. */
static void test_window(void **state) {
    (void)state;
    const Sizes cases[] = {
        {2, 3, 5, {{1, 8, 8}, 4, 4, 2, 2, 1, 0}},  {1, 2, 4, {{1, 6, 7}, 4, 4, 2, 2, 1, 0}},
        {1, 2, 16, {{1, 6, 7}, 4, 4, 0, 0, 1, 0}}, {2, 1, 33, {{1, 3, 10}, 3, 5, 0, 2, 1, 0}},
        {1, 2, 3, {{1, 9, 5}, 4, 5, 3, 0, 1, 0}},  {1, 1, 8, {{1, 8, 15}, 7, 7, 3, 3, 1, 0}},
        {2, 2, 2, {{1, 3, 4}, 1, 1, 0, 0, 1, 0}},  {1, 1, 17, {{1, 2, 3}, 2, 3, 0, 0, 1, 0}},
        {1, 2, 6, {{1, 1, 5}, 1, 2, 0, 1, 1, 0}},  {1, 1, 1, {{1, 1, 1}, 1, 1, 0, 0, 1, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int has_pad = 0; has_pad < 2; has_pad++) window_case(cases[i], has_pad, false);
    window_case((Sizes){1, 2, 4, {{1, 8, 6}, 4, 3, 2, 1, 1, 0}}, false, true);
    /* Clips: time divided, filled up and rolled; whole windows and single frames; more places than a tile has rows. */
    const Sizes clips[] = {
        {1, 2, 3, {{3, 5, 7}, 3, 3, 1, 1, 2, 1}}, {2, 1, 5, {{4, 4, 3}, 2, 3, 1, 0, 2, 1}},
        {1, 2, 4, {{5, 3, 4}, 3, 2, 0, 1, 5, 0}}, {1, 1, 16, {{5, 1, 2}, 1, 1, 0, 0, 3, 1}},
        {1, 2, 2, {{3, 4, 2}, 2, 2, 1, 0, 1, 0}}, {1, 1, 8, {{4, 5, 5}, 5, 5, 0, 0, 3, 2}},
    };
    for (size_t i = 0; i < sizeof clips / sizeof *clips; i++)
        for (int has_pad = 0; has_pad < 2; has_pad++) window_case(clips[i], has_pad, false);
    window_case((Sizes){1, 2, 4, {{4, 4, 3}, 2, 3, 1, 0, 2, 1}}, false, true);
}

/* The places of all windows are all tokens, each once, and the empty places of the padding.  Without rolling, each
 * window is one region. */
static void test_places(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 200; i++) {
        int sides[6];
        for (int k = 0; k < 6; k++) sides[k] = 1 + (int)rng_below(check_seed(), RNG_TEST, i, (uint32_t)k, 0, 12);
        WindowShape w = {{i % 3 ? 1 : sides[4], sides[0], sides[1]}, sides[2], sides[3], 0, 0, sides[5], 0};
        w.wt = w.wt < w.grid.frames ? w.wt : w.grid.frames;
        w.wh = w.wh < w.grid.rows ? w.wh : w.grid.rows;
        w.ww = w.ww < w.grid.columns ? w.ww : w.grid.columns;
        if (i % 2) w.shift_y = w.wh / 2, w.shift_x = w.ww / 2, w.shift_t = w.wt / 2;
        int windows = grid_tokens(window_counts(&w)), N = grid_tokens(w.grid), seen[12 * 12 * 12] = {0}, empty = 0;
        int places = grid_tokens(window_sides(&w));
        for (int at = 0; at < windows * places; at++) {
            WindowPlace place = window_place(&w, at / places, at % places);
            assert_in_range(place.token + 1, 0, N);
            if (place.token < 0) empty++;
            else seen[place.token]++;
            WindowPlace first = window_place(&w, at / places, 0);
            if (i % 2 == 0) assert_int_equal(place.region, first.region);
        }
        for (int n = 0; n < N; n++) assert_int_equal(seen[n], 1);
        assert_int_equal(empty, windows * places - N);
    }
}

/* Rows are sorted by window: a token moves to its place in its window, by the formula of `roll`.  The inverse moves it
 * back and does not change the other channels. */
static void rows_case(int B, WindowShape w, int parts, int C, int M, int first) {
    int N = grid_tokens(w.grid), places = w.wt * w.wh * w.ww, windows = grid_tokens(window_counts(&w));
    Axis axes[3];
    axes_of(axes, &w);
    size_t n = (size_t)B * N * parts * M, n_rows = (size_t)B * windows * places * parts * C;
    printf("rows B %d grid %dx%dx%d windows %dx%dx%d shift %d %d %d, %d parts of %d of %d channels from %d\n", B,
           w.grid.frames, w.grid.rows, w.grid.columns, w.wt, w.wh, w.ww, w.shift_t, w.shift_y, w.shift_x, parts, C, M,
           first);
    WindowRows shape = {w, parts, C, M};
    real *x = upload_real(normals(n, 1), n), *back = upload_real(normals(n, 1), n), *got = poisoned_real(n_rows);
    const float *from = download_real(x, n);
    float *want = keep(calloc(n_rows, sizeof *want), false), *same = keep(malloc(n * sizeof *same), false);
    memcpy(same, download_real(back, n), n * sizeof *same);
    for (int b = 0; b < B; b++)
        for (int token = 0; token < N; token++) {
            size_t window = 0, place = 0;
            int at[3];
            split(at, token, w.grid.frames, w.grid.rows, w.grid.columns);
            for (int a = 0; a < 3; a++) {
                int to = roll(at[a], axes[a].shift, axes[a].filled).at, side = axes[a].window;
                window = window * (size_t)(axes[a].filled / side) + (size_t)(to / side);
                place = place * (size_t)side + (size_t)(to % side);
            }
            for (int part = 0; part < parts; part++)
                for (int i = 0; i < C; i++) {
                    size_t here = (((size_t)b * N + token) * parts + part) * M + first + i;
                    want[((((size_t)b * windows + window) * places + place) * parts + part) * C + i] = from[here];
                    same[here] = from[here];
                }
        }
    windows_gather(got, x + first, &shape, B);
    assert_memory_equal(download_real(got, n_rows), want, n_rows * sizeof *want);
    windows_scatter(back + first, got, &shape, B);
    assert_memory_equal(download_real(back, n), same, n * sizeof *same);
    release_all();
}

static void test_rows(void **state) {
    (void)state;
    rows_case(2, (WindowShape){{1, 6, 9}, 6, 3, 0, 0, 1, 0}, 3, 4, 8, 4);
    rows_case(2, (WindowShape){{1, 6, 9}, 3, 9, 0, 0, 1, 0}, 3, 4, 8, 0);
    rows_case(1, (WindowShape){{1, 56, 3}, 56, 1, 0, 0, 1, 0}, 1, 16, 32, 16);
    rows_case(3, (WindowShape){{1, 4, 6}, 4, 6, 0, 0, 1, 0}, 3, 5, 5, 0);
    rows_case(2, (WindowShape){{1, 5, 7}, 4, 3, 2, 1, 1, 0}, 1, 3, 7, 2);
    rows_case(2, (WindowShape){{1, 6, 8}, 3, 4, 1, 2, 1, 0}, 3, 8, 24, 16);
    rows_case(2, (WindowShape){{3, 6, 4}, 6, 2, 0, 0, 3, 0}, 3, 4, 8, 4);
    rows_case(1, (WindowShape){{5, 5, 7}, 4, 3, 2, 1, 2, 1}, 1, 3, 7, 2);
}

/* Compares two algorithms, each of which may have the error that close_rounded allows. */
static int agree(const char *what, const real *a, const real *b, size_t n) {
    return check_close_step(what, download_real(a, n), wide(download_real(b, n), n), n, 2 * roundings(5), 2 * REAL_STEP);
}

/* One window with a table of zeros gives softmax attention over all tokens. */
static void test_whole_grid(void **state) {
    (void)state;
    enum { B = 2, H = 3, D = 8, N = 20, n = B * N * H * D };
    WindowShape windows = {{1, 4, 5}, 4, 5, 0, 0, 1, 0};
    AttentionShape shape = {B, N, H, D};
    size_t mine = window_attention_workspace(&windows, &shape), other = softmax_attention_workspace(N, D);
    float *table = upload(keep(calloc(7 * 9 * H, sizeof(float)), false), 7 * 9 * H);
    real *qkv = upload_real(normals(3 * n, 1), 3 * n), *y = poisoned_real(n), *want = poisoned_real(n);
    float *lse = poisoned(B * H * N);
    kernels_reserve(mine > other ? mine : other);
    window_attention_forward(y, lse, qkv, &(WindowParameters){NULL, table}, &windows, &shape);
    softmax_attention_forward(want, lse, qkv, &shape);
    assert_true(agree("y", y, want, n));
    release_all();
}

/* One window gives biased attention with an entry for every offset, where the table is indexed by key minus query. */
static void test_biased(void **state) {
    (void)state;
    enum { B = 2, H = 3, D = 8, Hg = 4, Wg = 5, N = Hg * Wg, n = B * N * H * D, E = (2 * Hg - 1) * (2 * Wg - 1) };
    WindowShape windows = {{1, Hg, Wg}, Hg, Wg, 0, 0, 1, 0};
    RelativeBias bias = {{1, Hg, Wg}, 0, H};
    AttentionShape shape = {B, N, H, D};
    size_t mine = window_attention_workspace(&windows, &shape), other = biased_attention_workspace(&bias, D);
    float *table = normals(E * H, 1), *turned = normals(E * H, 1), *zero = keep(calloc(E * H, sizeof(float)), false);
    for (int e = 0; e < E; e++)
        for (int h = 0; h < H; h++) turned[h * E + e] = table[(E - 1 - e) * H + h];
    float *d_table = upload(table, E * H), *d_turned = upload(turned, E * H), *lse = poisoned(B * H * N),
          *dtable = upload(zero, E * H), *dturned = upload(zero, E * H);
    real *qkv = upload_real(normals(3 * n, 1), 3 * n), *dy = upload_real(normals(n, 1), n), *y = poisoned_real(n),
         *want = poisoned_real(n), *dqkv = poisoned_real(3 * n), *dwant = poisoned_real(3 * n);
    kernels_reserve(mine > other ? mine : other);
    biased_attention_forward(want, lse, qkv, d_turned, &bias, &shape);
    biased_attention_backward(dwant, dturned, dy, want, lse, qkv, d_turned, &bias, &shape);
    WindowParameters learned = {NULL, d_table};
    window_attention_forward(y, lse, qkv, &learned, &windows, &shape);
    window_attention_backward(dqkv, &(WindowGradients){NULL, dtable}, dy, y, lse, qkv, &learned, &windows, &shape);
    const float *got = download(dtable, E * H);
    float *again = normals(E * H, 1);
    for (int e = 0; e < E; e++)
        for (int h = 0; h < H; h++) again[h * E + e] = got[(E - 1 - e) * H + h];
    assert_true(agree("y", y, want, n));
    assert_true(agree("dqkv", dqkv, dwant, 3 * n));
    assert_true(check_close("dtable", again, wide(download(dturned, E * H), E * H), E * H, 2 * roundings(5)));
    release_all();
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_window), cmocka_unit_test(test_places),
                                       cmocka_unit_test(test_rows), cmocka_unit_test(test_whole_grid),
                                       cmocka_unit_test(test_biased)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
