/* Without oneDNN, products use the instructions for which this code was compiled. */
#include "kernels/device/library.h"

const char *library_name(void) { return "own products"; }

void library_begin(void) {}
void library_recover(void) {}

bool library_multiplies_bfloat16(void) {
#ifdef __AVX512BF16__
    return true;
#else
    return false;
#endif
}

bool library_limit_to_avx2(void) { return true; }
