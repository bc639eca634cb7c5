/* Time of sparse attention compared with softmax over all keys, one image and one head, forward and backward.
 *
 *   OMP_NUM_THREADS=1 build/cpu/tests/bench_sparse [SIDE [D]]      a grid of SIDE x SIDE tokens (64), heads of D (32)
 *
 * Prints the share of pairs that the pattern contains, which is a lower bound for the share of time. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/bench.h"

typedef struct {
    real *qkv, *y, *dy, *dqkv;
    float *lse;
    int N, D;
} Tensors;

static real *random_real(size_t n, unsigned seed) {
    float *x = malloc(n * sizeof *x);
    srand(seed);
    for (size_t i = 0; i < n; i++) x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    return device_copy_of(x, n);
}

static void step(const Tensors *t, const SparsePattern *p) {
    AttentionShape shape = {1, t->N, 1, t->D};
    if (p) {
        sparse_attention_forward(t->y, t->lse, t->qkv, p, &shape);
        sparse_attention_backward(t->dqkv, t->dy, t->y, t->lse, t->qkv, p, &shape);
    } else {
        softmax_attention_forward(t->y, t->lse, t->qkv, &shape);
        softmax_attention_backward(t->dqkv, t->dy, t->y, t->lse, t->qkv, &shape);
    }
}

/* The fastest of a few steps, since other programs on the machine can only add time. */
static double time_of(const Tensors *t, const SparsePattern *p) {
    double best = 1e9, end = seconds() + 1;
    step(t, p);
    do {
        double start = seconds();
        step(t, p);
        double took = seconds() - start;
        if (took < best) best = took;
    } while (seconds() < end);
    return best;
}

static double share_of_pairs(const SparsePattern *p, int N) {
    double pairs = 0;
    int l = p->stride;
    for (int n = 0; n < N; n++)
        for (int m = 0; m < N; m++)
            pairs += (p->first && (p->fixed ? n / l == m / l : abs(n - m) <= l)) ||
                     (p->second && (p->fixed ? m % l >= l - p->summary : n % l == m % l));
    return pairs / N / N;
}

int main(int argc, char **argv) {
    int side = argc > 1 ? atoi(argv[1]) : 64, D = argc > 2 ? atoi(argv[2]) : 32, N = side * side;
    if (side < 8 || D < 1) return fprintf(stderr, "bench_sparse [SIDE [D]]: a side of 8 tokens at least\n"), 2;
    kernels_init();
    size_t n = (size_t)N * D;
    Tensors t = {random_real(3 * n, 1), random_real(n, 2), random_real(n, 3), random_real(3 * n, 4),
                 device_malloc(N * sizeof(float), "benchmark"), N, D};
    const struct {
        const char *name;
        SparsePattern pattern;
    } rows[] = {
        {"strided, near", {false, side, 1, 1, 0}},    {"strided, column", {false, side, 1, 0, 1}},
        {"strided, union", {false, side, 1, 1, 1}},   {"fixed, block", {true, side, 8, 1, 0}},
        {"fixed, summary of 8", {true, side, 8, 0, 1}}, {"fixed, union", {true, side, 8, 1, 1}},
    };
    size_t most = softmax_attention_workspace(N, D);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t bytes = sparse_attention_workspace(&rows[i].pattern, N, D);
        if (bytes > most) most = bytes;
    }
    kernels_reserve(most);
    double dense = time_of(&t, NULL);
    printf("%s, %d tokens, head of %d\n%-22s %10s %10s\n", kernels_device(), N, D, "pattern", "pairs", "time");
    printf("%-22s %10.3f %10.3f  (%.2f ms)\n", "all", 1.0, 1.0, 1e3 * dense);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        printf("%-22s %10.3f %10.3f\n", rows[i].name, share_of_pairs(&rows[i].pattern, N),
               time_of(&t, &rows[i].pattern) / dense);
    kernels_exit();
    return 0;
}
