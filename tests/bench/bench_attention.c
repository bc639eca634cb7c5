/* Milliseconds of softmax attention alone, forward and backward, as JSON lines; scripts/bench/bench_torch.py
 * --attention prints the same for PyTorch.  Median of RUNS measurements, each of enough calls to hide the wait. */

#include "kernels/kernels.h"
#include "tests/bench/bench.h"
#include "tests/check.h"

enum { M = 192, RUNS = 15 };

typedef struct {
    int N, B, D;
    real *qkv, *y, *dy, *dqkv;
    float *lse;
} Problem;

static AttentionShape shape_of(const Problem *p) { return (AttentionShape){p->B, p->N, M / p->D, p->D}; }

static void forward(const Problem *p) {
    AttentionShape shape = shape_of(p);
    softmax_attention_forward(p->y, p->lse, p->qkv, &shape);
}

static void backward(const Problem *p) {
    AttentionShape shape = shape_of(p);
    softmax_attention_backward(p->dqkv, p->dy, p->y, p->lse, p->qkv, &shape);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double milliseconds(void (*work)(const Problem *), const Problem *p) {
    double times[RUNS];
    int calls = 1;
    for (int run = -2; run < RUNS; run++) {
        double start = seconds();
        for (int i = 0; i < calls; i++) work(p);
        double took = seconds() - start;
        if (run < 0) calls = took < 5e-3 ? (int)(5e-3 / (took + 1e-6) * calls) + 1 : calls;
        else times[run] = took / calls * 1e3;
    }
    qsort(times, RUNS, sizeof *times, ascending);
    return times[RUNS / 2];
}

int main(int argc, char **argv) {
    static const int sizes[][3] = {{256, 512, 32}, {256, 512, 64}, {1024, 64, 32},
                                   {1024, 64, 64}, {4096, 8, 32},  {4096, 8, 64}};
    int share = argc > 1 ? atoi(argv[1]) : 1;  /* divides the number of images: a CPU needs 64 or so */
    int shorter = argc > 2 ? atoi(argv[2]) : 1; /* divides the number of tokens, for a quick try */
    if (share < 1 || shorter < 1 || shorter > sizes[0][0]) {
        fprintf(stderr, "bench_attention: expected [share of the images] [share of the tokens]\n");
        return 2;
    }
    kernels_init();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        Problem p = {.N = sizes[i][0] / shorter, .B = sizes[i][1] / share ? sizes[i][1] / share : 1, .D = sizes[i][2]};
        size_t tokens = (size_t)p.B * (size_t)p.N;
        p.qkv = device_copy_of(check_normal(tokens * 3 * M, 1, 1), tokens * 3 * M);
        p.dy = device_copy_of(check_normal(tokens * M, 1, 2), tokens * M);
        p.y = device_malloc(tokens * M * sizeof(real), "bench");
        p.dqkv = device_malloc(tokens * 3 * M * sizeof(real), "bench");
        p.lse = device_malloc(tokens * (size_t)(M / p.D) * sizeof(float), "bench");
        kernels_reserve(softmax_attention_workspace(p.N, p.D));
        double f = milliseconds(forward, &p), b = milliseconds(backward, &p);
        printf("{\"tokens\": %d, \"images\": %d, \"heads\": %d, \"head_dim\": %d, \"forward_ms\": %.4f, "
               "\"backward_ms\": %.4f}\n",
               p.N, p.B, M / p.D, p.D, f, b);
        fflush(stdout);
        void *all[] = {p.qkv, p.dy, p.y, p.dqkv, p.lse};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) device_free(all[k]);
    }
    kernels_exit();
}
