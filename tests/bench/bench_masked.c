/* Time of the detector's attention compared with softmax_attention, one image of 800 x 1120 (25 x 35 cells), eight
 * heads of 32.
 *
 *   OMP_NUM_THREADS=1 build/cpu/tests/bench_masked
 *
 * Measures processor time, which other programs on the machine disturb little. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/bench.h"

enum { B = 1, H = 8, D = 32, M = H * D, ROWS = 25, COLUMNS = 35, N = ROWS * COLUMNS, QUERIES = 300, RUNS = 15 };

typedef struct {
    real *qkv, *y, *dy, *dqkv, *z, *dz;
    float *lse, *centre, *dcentre;
} Tensors;

typedef struct {
    const char *name;
    bool plain; /* softmax_attention */
    MaskedAttention shape;
    double forward, backward;
} Row;

static void forward(const Tensors *t, const Row *row) {
    Modulation m = {t->centre, t->z};
    bool maps = row->shape.scale_type > 0;
    if (row->plain) softmax_attention_forward(t->y, t->lse, t->qkv, &(AttentionShape){B, N, H, D});
    else
        masked_attention_forward(t->y, t->lse, &(MaskedInputs){t->qkv, t->qkv + M, t->qkv + 2 * M}, maps ? &m : NULL,
                                 &row->shape);
}

static void backward(const Tensors *t, const Row *row) {
    Modulation m = {t->centre, t->z};
    ModulationGradients dm = {t->dcentre, t->dz};
    bool maps = row->shape.scale_type > 0;
    if (row->plain) softmax_attention_backward(t->dqkv, t->dy, t->y, t->lse, t->qkv, &(AttentionShape){B, N, H, D});
    else
        masked_attention_backward(&(MaskedGradients){t->dqkv, t->dqkv + M, t->dqkv + 2 * M}, maps ? &dm : NULL, t->dy,
                                  t->y, t->lse, &(MaskedInputs){t->qkv, t->qkv + M, t->qkv + 2 * M},
                                  maps ? &m : NULL, &row->shape);
}

/* The best of some runs; the rows are measured in rotation. */
static void measure(const Tensors *t, Row *rows, int count) {
    for (int i = 0; i < count; i++) rows[i].forward = rows[i].backward = 1e9;
    for (int run = 0; run < RUNS; run++)
        for (int i = 0; i < count; i++) {
            double start = seconds();
            forward(t, &rows[i]);
            double middle = seconds();
            backward(t, &rows[i]);
            double end = seconds();
            if (middle - start < rows[i].forward) rows[i].forward = middle - start;
            if (end - middle < rows[i].backward) rows[i].backward = end - middle;
        }
}

int main(void) {
    bench_clock = CLOCK_PROCESS_CPUTIME_ID;
    kernels_init();
    size_t n = (size_t)N * M, blobs = (size_t)QUERIES * H * 2;
    const int narrow[2] = {ROWS, 26};
    int *cells = device_malloc(sizeof narrow, "benchmark");
    device_upload(cells, narrow, sizeof narrow);
    Tensors t = {uniform_real(3 * n, -1, 1),          uniform_real(n, -1, 1),       uniform_real(n, -1, 1),
                 uniform_real(3 * n, -1, 1),          uniform_real(blobs, -1, 1),   uniform_real(blobs, -1, 1),
                 uniform_floats((size_t)H * N, 0, 1), uniform_floats(blobs, 0, 25), uniform_floats(blobs, 0, 1)};
    MaskedAttention all = {.B = B, .H = H, .D = D, .Q = N, .grid = {1, ROWS, COLUMNS}, .q_row = 3 * M,
                           .kv_row = 3 * M};
    MaskedAttention dropped = all, padded = all, cross = all, modulated = all;
    dropped.dropout = (Dropout){.rate = 0.1f, .seed = 1};
    padded.cells = cells;
    cross.Q = modulated.Q = QUERIES;
    modulated.scale_type = 3;
    Row rows[] = {{.name = "softmax_attention", .plain = true, .shape = all},
                  {.name = "masked, no padding", .shape = all},
                  {.name = "dropout 0.1", .shape = dropped},
                  {.name = "9 of 35 columns padding", .shape = padded},
                  {.name = "300 queries", .shape = cross},
                  {.name = "300 queries, type 3", .shape = modulated}};
    int count = sizeof rows / sizeof *rows;
    size_t most = softmax_attention_workspace(N, D), masked = masked_attention_workspace(&all);
    kernels_reserve(most > masked ? most : masked);
    measure(&t, rows, count);
    printf("%s\n%-26s %12s %12s\n", kernels_device(), "", "forward, ms", "backward, ms");
    for (int i = 0; i < count; i++)
        printf("%-26s %12.2f %12.2f\n", rows[i].name, 1e3 * rows[i].forward, 1e3 * rows[i].backward);
    kernels_exit();
    return 0;
}
