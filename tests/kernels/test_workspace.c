/* The contract of workspace (kernels/kernels.h): what is reserved for a batch is enough for every smaller one, and for
 * forward and backward alike.  A kernel whose *_workspace function has no batch among its arguments is not listed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/on_device.h"

/* == Smaller batches ============================================================================================== */

typedef struct {
    int side, H, D; /* a square grid, H heads of D channels */
} Sizes;

static Grid grid_of(Sizes s) { return (Grid){1, s.side, s.side}; }
static int tokens(Sizes s) { return s.side * s.side; }
static int width(Sizes s) { return s.H * s.D; }
static Patterns patterns_of(OffsetKind kind, bool per_channel, Sizes s) {
    return (Patterns){{kind, grid_of(s), 7, 1}, 16, s.H, s.D, per_channel};
}
static WindowShape windows_of(Sizes s) { return (WindowShape){grid_of(s), 7, 7, 3, 3, 1, 0}; }
static AttentionShape heads_of(int B, Sizes s) { return (AttentionShape){B, tokens(s), s.H, s.D}; }

/* Functions bytes_NAME(batch, sizes), and their table. */
#define KERNELS(WORKSPACE)                                                                                           \
    WORKSPACE(batch_norm, batch_norm_workspace(&(BatchNorm){.n = B * tokens(s), .C = width(s)}))                     \
    WORKSPACE(causal, causal_attention_workspace(&(CausalPattern){CAUSAL_DENSE, CAUSAL_WINDOW, 1, 9, 5, 2, 1},       \
                                                 &(CausalShape){B, tokens(s), s.H, s.D, s.D, 0, 0, 0}))              \
    WORKSPACE(channel_dropout, channel_dropout_workspace(B, width(s)))                                               \
    WORKSPACE(convolution, convolution_workspace(&(Convolution){s.D, s.D, 3, 2, 0},                                  \
                                                 &(ImageShape){B, s.side, s.side}, true))                            \
    WORKSPACE(global_filter, global_filter_workspace(B, grid_of(s), width(s)))                                       \
    WORKSPACE(group_norm, group_norm_workspace(&(GroupNorm){.B = B, .N = tokens(s), .C = width(s), .groups = s.H}))  \
    WORKSPACE(linear_gelu, linear_gelu_workspace(&(LinearShape){(size_t)B * tokens(s), 4 * s.D, s.D, 0}))            \
    WORKSPACE(lisa_dense, lisa_dense_workspace((Patterns[]){patterns_of(OFFSETS_LOCAL, true, s)}, B, false))         \
    WORKSPACE(lisa_fft, lisa_fft_workspace((Patterns[]){patterns_of(OFFSETS_TORUS, true, s)}, B, false))             \
    WORKSPACE(low_rank, low_rank_workspace(&(LowRank){4 * tokens(s), tokens(s), s.H, s.D, false}, B))                \
    WORKSPACE(masked, masked_attention_workspace(&(MaskedAttention){.B = B, .H = s.H, .D = s.D, .Q = tokens(s),      \
                                                                    .grid = grid_of(s)}))                            \
    WORKSPACE(patterns, patterns_workspace((Patterns[]){patterns_of(OFFSETS_TOEPLITZ, true, s)}, B))                 \
    WORKSPACE(shared_patterns, patterns_workspace((Patterns[]){patterns_of(OFFSETS_TOEPLITZ, false, s)}, B))         \
    WORKSPACE(pixel_cross_entropy, pixel_cross_entropy_workspace(&(PixelShape){B, s.D, s.side, s.side, 64, 64}))     \
    WORKSPACE(roi_align, roi_align_workspace(&(RoiAlign){B, s.D, 7, 1, {s.side}, {s.side}, {0.25f}}))                \
    WORKSPACE(weighted, weighted_attention_workspace(                                                                \
                            &(WeightedAttention){patterns_of(OFFSETS_TORUS, false, s).offsets, s.H, s.H, s.D}, B))   \
    WORKSPACE(window, window_attention_workspace((WindowShape[]){windows_of(s)}, (AttentionShape[]){heads_of(B, s)}))

#define FUNCTION(name, bytes) static size_t bytes_##name(int B, Sizes s) { return bytes; }
#define ENTRY(name, bytes) {#name, bytes_##name},
KERNELS(FUNCTION)
static const struct {
    const char *name;
    size_t (*bytes)(int B, Sizes s);
} kernels[] = {KERNELS(ENTRY)};

/* With batches that are multiples of `step`. */
static void expect_growth(int step, int largest) {
    const Sizes sizes[] = {{14, 6, 32}, {16, 6, 32}, {7, 3, 64}, {10, 1, 5}, {1, 1, 1}};
    int failed = 0;
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            Sizes s = sizes[i];
            size_t before = 0;
            for (int B = step; B <= largest; B += step) {
                size_t bytes = kernels[k].bytes(B, s);
                if (bytes < before) {
                    printf("%s of %d x %d tokens, H %d D %d: %zu bytes for batch %d, %zu for %d\n", kernels[k].name,
                           s.side, s.side, s.H, s.D, before, B - step, bytes, B);
                    failed++;
                    break;
                }
                before = bytes;
            }
        }
    assert_int_equal(failed, 0);
}

static void test_smaller_batches(void **state) {
    (void)state;
    expect_growth(1, 1100);
}

/* Each batch has plans of its own, which take time on a GPU. */
static void test_smaller_batches_by_cufft(void **state) {
    (void)state;
    setenv("VIT_TRANSFORMS", "cufft", 1);
    expect_growth(24, 600);
    unsetenv("VIT_TRANSFORMS");
}

/* == Forward ====================================================================================================== */

/* Low-rank attention, with memory for ten of backward's sixteen heads at a time, and for fifteen of forward's.  A child
 * makes the calls and ends without their results, because emulated kernels, which are queued, would take hours. */
static void test_forward(void **state) {
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        if (!strncmp(kernels_device(), "CPU", 3)) _exit(0); /* the memory of a CPU's threads does not depend on heads */
        const LowRank shape = {440000, 16, 1, 1, false};
        const int B = 16;
        size_t n = (size_t)B * shape.N;
        real *x = device_malloc(3 * n * sizeof *x, "test"), *dx = device_malloc(3 * n * sizeof *x, "test");
        real *y = device_malloc(n * sizeof *y, "test");
        kernels_reserve(low_rank_workspace(&shape, B));
        low_rank_forward(y, x, x, &shape, B);
        low_rank_backward(dx, y, y, x, x, &shape, B);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward), /* the first, because a process that has a GPU's memory cannot fork */
        cmocka_unit_test(test_smaller_batches),
        cmocka_unit_test(test_smaller_batches_by_cufft),
    };
    kernels_init();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
