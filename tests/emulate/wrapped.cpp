/* Functions of runtime.cu and linear.cu that differ for kernels on a CPU: the linker calls these in the place of the
 * functions that they are named after (-Wl,--wrap). */
#include <sanitizer/asan_interface.h>
#include <string.h>

#include "kernels/cuda/runtime.h"
#include "tests/emulate/standin.h"

using namespace standin;

extern "C" {

/* Full of NaN again for every kernel that asks; what lies beyond the bytes asked for is forbidden. */
void *__real__Z17kernels_workspacem(size_t bytes);
void __real_kernels_reserve(size_t bytes);

static size_t reserved;

void __wrap_kernels_reserve(size_t bytes) {
    __real_kernels_reserve(bytes);
    if (bytes > reserved) reserved = bytes;
}

void *__wrap__Z17kernels_workspacem(size_t bytes) {
    Guard guard("kernels_workspace");
    void *p = __real__Z17kernels_workspacem(bytes);
    size_t all = reserved;
    auto prepare = [=] {
        ASAN_UNPOISON_MEMORY_REGION(p, all);
        memset(p, 0xFF, bytes);
        ASAN_POISON_MEMORY_REGION(static_cast<char *>(p) + bytes, all - bytes);
    };
    if (bytes) submit(kernels_stream, {"kernels_workspace", {{"the workspace", p, all}}, simply(prepare)});
    return p;
}

/* A CPU's numbers, and no seconds spent on a GPU's. */
double __wrap_gemm_peak_gflops(void) { return 1; }
double __wrap_memory_peak_gbytes(void) { return 1; }
size_t __wrap_activations_at_once(void) { return 8 * 256 * 192; }
bool __wrap_device_shares_cores(void) { return true; }
}
