/* Times the algorithms of LiSA and softmax attention over grids, forward and backward, in microseconds for one head
 * of one image, and prints CSV with what lisa_*_cost predicts.  The constants of the cost models come from here.
 * Processor time (bench.h).
 * Usage: OMP_NUM_THREADS=1 bench_lisa [largest grid side, default 28] [images, default 1] [patterns, default 16] */
#include "kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/bench.h"
#include "tests/check.h"

enum { H = 12, D = 16 };

static const LisaAlgorithm dense = LISA_ALGORITHM(dense), fft = LISA_ALGORITHM(fft);
static const struct {
    const char *name;
    OffsetKind kind;
    int side;
    const LisaAlgorithm *algorithm;
} runs[] = {
    {"fft-1d", OFFSETS_CIRCLE, 0, &fft},     {"fft-2d", OFFSETS_TORUS, 0, &fft},
    {"dense-1d", OFFSETS_CIRCLE, 0, &dense}, {"dense-2d", OFFSETS_TORUS, 0, &dense},
    {"sa11", OFFSETS_TOEPLITZ, 0, &dense},   {"local-5", OFFSETS_LOCAL, 5, &dense},
};

static float *parameters(size_t n, uint32_t stream) {
    float *host = check_normal(n, 0.02f, stream), *device = device_malloc(n * sizeof *device, "bench");
    device_upload(device, host, n * sizeof *device);
    free(host);
    return device;
}

static void report(const char *name, int side, int E, int B, double forward, double backward, double cost) {
    printf("%s,%d,%d,%d,%d,%.2f,%.2f,%.2f\n", name, side, side, D, E, forward / B / H * 1e6, backward / B / H * 1e6,
           cost * 1e6);
    fflush(stdout);
}

static void bench(int side, int B, int E) {
    size_t N = (size_t)side * side, rows = B * N * H, most = 4 * N;
    real *qk = device_copy_of(check_normal(rows * 2 * D, 0.25f, 1), rows * 2 * D);
    real *qkv = device_copy_of(check_normal(rows * 3 * D, 1, 2), rows * 3 * D);
    real *dy = device_copy_of(check_normal(rows * D, 1, 3), rows * D);
    real *y = device_malloc(rows * D * sizeof *y, "bench"), *s = device_malloc(rows * E * sizeof *s, "bench");
    real *dqkv = device_malloc(rows * 3 * D * sizeof *dqkv, "bench"),
         *dqk = device_malloc(rows * 2 * D * sizeof *dqk, "bench");
    float *wa = parameters(most * D * E, 4), *wb = parameters(most * E, 5), *b = parameters((size_t)D * E, 6);
    float *dwa = parameters(most * D * E, 7), *dwb = parameters(most * E, 8), *db = parameters((size_t)D * E, 9);
    float *ds = device_malloc(rows * E * sizeof *ds, "bench");
    float *lse = device_malloc(rows * sizeof *lse, "bench");
    double forward, backward;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        const LisaAlgorithm *a = runs[i].algorithm;
        LisaTables tables = {{{runs[i].kind, {1, side, side}, runs[i].side, 1}, E, H, D, true}, wa, wb, b};
        LisaGradients gradients = {dwa, dwb, db};
        const Patterns *patterns = &tables.patterns;
        if (!(a->cost(patterns) * B * H < 2)) continue;
        kernels_reserve(a->workspace(patterns, B, false));
        TIME(forward, 0.05, a->forward(y, s, qk, qkv, &tables, B));
        TIME(backward, 0.05, a->backward(dqkv, dqk, ds, &gradients, dy, s, qk, qkv, &tables, B));
        report(runs[i].name, side, E, B, forward, backward, a->cost(patterns));
    }
    kernels_reserve(softmax_attention_workspace((int)N, D));
    TIME(forward, 0.05, softmax_attention_forward(y, lse, qkv, &(AttentionShape){B, (int)N, H, D}));
    TIME(backward, 0.05, softmax_attention_backward(dqkv, dy, y, lse, qkv, &(AttentionShape){B, (int)N, H, D}));
    report("softmax", side, 0, B, forward, backward, NAN);
    void *all[] = {qk, qkv, dy, y, s, dqkv, dqk, ds, wa, wb, b, dwa, dwb, db, lse};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) device_free(all[i]);
}

int main(int argc, char **argv) {
    static const int sides[] = {7, 14, 28, 56, 84};
    int largest = argc > 1 ? atoi(argv[1]) : 28, B = argc > 2 ? atoi(argv[2]) : 1, E = argc > 3 ? atoi(argv[3]) : 16;
    bench_clock = CLOCK_PROCESS_CPUTIME_ID;
    kernels_init();
    check_seed();
    printf("algorithm,Hg,Wg,D,E,forward_us,backward_us,cost_us\n");
    for (size_t i = 0; i < sizeof sides / sizeof *sides && sides[i] <= largest; i++) bench(sides[i], B, E);
    kernels_exit();
}
