/* Replacements of functions in runtime.cu and linear.cu for kernels on a CPU: the linker calls these functions instead
 * (-Wl,--wrap). */
#include <sanitizer/asan_interface.h>
#include <string.h>

#include "kernels/cuda/runtime.h"
#include "tests/emulate/standin.h"

using namespace standin;

extern "C" {

/* The workspace is filled with NaN for every kernel that asks for it, and what lies beyond the requested bytes is
 * poisoned. */
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

/* Constants for a CPU, instead of measurements. */
double __wrap_gemm_peak_gflops(void) { return 1; }
double __wrap_memory_peak_gbytes(void) { return 1; }
size_t __wrap_activations_at_once(void) { return 8 * 256 * 192; }
bool __wrap_device_shares_cores(void) { return true; }
}
