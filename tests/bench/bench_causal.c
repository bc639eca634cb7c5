/* Time of causal attention over sparse sets of keys compared with dense causal attention, and of dense causal attention
 * compared with softmax attention over all keys; forward and backward, one sequence.
 *
 *   OMP_NUM_THREADS=1 build/cpu/tests/bench_causal [TOKENS [STRIDE [SUMMARY [HEADS [DK [DV]]]]]]
 *
 * Prints the pairs and the time as shares of those of dense attention.  GFLOP/s count 2 (Dk + Dv) operations per pair
 * forward and 2 (3 Dk + 2 Dv) backward.  The rows are measured in rotation, and the fastest run of each counts, since
 * other programs on the machine can only add time. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/bench.h"

typedef struct {
    const char *name;
    bool two_sided; /* softmax_attention, where Dk = Dv */
    CausalPattern pattern;
    double forward, backward, pairs;
} Row;

typedef struct {
    real *qkv, *y, *dy, *dqkv;
    float *lse;
    CausalShape shape;
} Tensors;

static real *random_real(size_t n, unsigned seed) {
    float *x = malloc(n * sizeof *x);
    srand(seed);
    for (size_t i = 0; i < n; i++) x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    return device_copy_of(x, n);
}

static void forward(const Tensors *t, const Row *row) {
    const CausalShape *s = &t->shape;
    CausalInputs in = {t->qkv, t->qkv + s->H * s->Dk, t->qkv + 2 * s->H * s->Dk};
    if (row->two_sided)
        softmax_attention_forward(t->y, t->lse, t->qkv, &(AttentionShape){s->B, s->N, s->H, s->Dk});
    else causal_attention_forward(t->y, t->lse, &in, &row->pattern, s);
}

static void backward(const Tensors *t, const Row *row) {
    const CausalShape *s = &t->shape;
    CausalInputs in = {t->qkv, t->qkv + s->H * s->Dk, t->qkv + 2 * s->H * s->Dk};
    CausalGradients d = {t->dqkv, t->dqkv + s->H * s->Dk, t->dqkv + 2 * s->H * s->Dk};
    if (row->two_sided)
        softmax_attention_backward(t->dqkv, t->dy, t->y, t->lse, t->qkv, &(AttentionShape){s->B, s->N, s->H, s->Dk});
    else causal_attention_backward(&d, t->dy, t->y, t->lse, &in, &row->pattern, s);
}

static void measure(const Tensors *t, Row *rows, int count, int runs) {
    for (int i = 0; i < count; i++) rows[i].forward = rows[i].backward = 1e9;
    for (int run = 0; run < runs; run++)
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

int main(int argc, char **argv) {
    int size[6] = {3072, 128, 32, 2, 64, 64};
    for (int i = 1; i < argc && i <= 6; i++) size[i - 1] = atoi(argv[i]);
    int N = size[0], l = size[1], c = size[2], H = size[3], Dk = size[4], Dv = size[5];
    if (N < 1 || l < 1 || c < 1 || c > l || H < 1 || Dk < 1 || Dv < 1)
        return fprintf(stderr, "bench_causal [TOKENS [STRIDE [SUMMARY [HEADS [DK [DV]]]]]]: a number is no size\n"), 2;
    bench_clock = CLOCK_PROCESS_CPUTIME_ID;
    kernels_init();
    size_t row = (size_t)H * (2 * Dk + Dv), n = N * row, out = (size_t)N * H * Dv;
    Tensors t = {random_real(n, 1), random_real(out, 2), random_real(out, 3), random_real(n, 4),
                 device_malloc((size_t)H * N * sizeof(float), "benchmark"),
                 {1, N, H, Dk, Dv, (int)row, (int)row, (int)row}};
    static const CausalSet sets[] = {CAUSAL_DENSE, CAUSAL_WINDOW, CAUSAL_COLUMN, CAUSAL_STRIDED,
                                     CAUSAL_BLOCK, CAUSAL_SUMMARY, CAUSAL_FIXED};
    static const char *const names[] = {"dense", "window", "column", "strided", "block", "summary", "fixed"};
    Row rows[CAUSAL_SETS + 1];
    int count = 0;
    size_t most = softmax_attention_workspace(N, Dk);
    if (Dk == Dv) rows[count++] = (Row){.name = "softmax, all keys", .two_sided = true, .pairs = (double)N * N};
    for (int i = 0; i < CAUSAL_SETS; i++) {
        CausalPattern p = {sets[i], sets[i], H, l, l, c, 1};
        rows[count++] = (Row){.name = names[i], .pattern = p, .pairs = causal_pairs(&p, 0, N)};
        size_t bytes = causal_attention_workspace(&p, &t.shape);
        if (bytes > most) most = bytes;
    }
    kernels_reserve(most);
    measure(&t, rows, count, N > 8192 ? 3 : 7);
    const Row *dense = &rows[count - CAUSAL_SETS];
    printf("%s, %d tokens, %d heads of %d and %d, stride %d, summaries %d\n", kernels_device(), N, H, Dk, Dv, l, c);
    printf("%-20s %8s %9s %9s %12s %12s %9s %9s\n", "", "pairs", "forward", "backward", "forward, ms", "backward, ms",
           "GFLOP/s", "GFLOP/s");
    for (int i = 0; i < count; i++)
        printf("%-20s %8.3f %9.3f %9.3f %12.2f %12.2f %9.1f %9.1f\n", rows[i].name, rows[i].pairs / dense->pairs,
               rows[i].forward / dense->forward, rows[i].backward / dense->backward, 1e3 * rows[i].forward,
               1e3 * rows[i].backward, 2e-9 * rows[i].pairs * H * (Dk + Dv) / rows[i].forward,
               2e-9 * rows[i].pairs * H * (3 * Dk + 2 * Dv) / rows[i].backward);
    kernels_exit();
    return 0;
}
