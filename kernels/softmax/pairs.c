#include "kernels/softmax/pairs.h"

#ifdef VIT_PAIRS

#include <cpuid.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

/* == Dot products of pairs ======================================================================================== */

static void multiply_dots(float *c, size_t ldc, const real *a, size_t lda, const real *b, size_t ldb, int m, int n,
                          int k, bool accumulate) {
    pairs_dots(c, ldc, (PairRows){a, lda / 2, 1}, b, ldb, m, n, k, accumulate);
}

/* == AMX ========================================================================================================== */

/* The processor's support, and the system's permission, which applies to all threads, as it must save 8 KiB more of
 * registers. */
static bool there(void) {
    enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 }; /* of EDX */
    enum { REQUEST = 0x1023, TILE_DATA = 18 };     /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && d & AMX_BF16 && d & AMX_TILE &&
           syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

/* A user's limit for oneDNN also applies here. */
static bool wanted(void) {
    const char *most = getenv("ONEDNN_MAX_CPU_ISA");
    if (!most) most = getenv("DNNL_MAX_CPU_ISA");
    return !most || strstr(most, "AMX") || strstr(most, "amx") || !strcmp(most, "ALL") || !strcmp(most, "DEFAULT");
}

#define AMX __attribute__((target("amx-tile,amx-bf16")))

/* Eight registers of 16 rows of 64 bytes: 0 to 3 hold 32 x 32 of C, 4 and 5 of A, 6 and 7 of B. */
AMX void pairs_begin(Pairs kind) {
    static const struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1, .bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    if (kind == PAIRS_AMX) _tile_loadconfig(&config);
}

AMX void pairs_end(Pairs kind) {
    if (kind == PAIRS_AMX) _tile_release();
}

AMX static void amx_block(float *c, size_t ldc, const real *a, size_t lda, const real *b, size_t ldb, int k,
                          bool accumulate) {
    size_t c_row = ldc * sizeof *c, a_row = lda * sizeof *a, b_row = 2 * ldb * sizeof *b;
    if (accumulate) {
        _tile_loadd(0, c, c_row);
        _tile_loadd(1, c + 16, c_row);
        _tile_loadd(2, c + 16 * ldc, c_row);
        _tile_loadd(3, c + 16 * ldc + 16, c_row);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int p = 0; p < k; p += 32) {
        const real *row = b + (size_t)p * ldb;
        _tile_loadd(4, a + p, a_row);
        _tile_loadd(6, row, b_row);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, row + 32, b_row);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + 16 * lda + p, a_row);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, c_row);
    _tile_stored(1, c + 16, c_row);
    _tile_stored(2, c + 16 * ldc, c_row);
    _tile_stored(3, c + 16 * ldc + 16, c_row);
}

static void multiply_amx(float *c, size_t ldc, const real *a, size_t lda, const real *b, size_t ldb, int m, int n,
                         int k, bool accumulate) {
    for (int j = 0; j < n; j += 32)
        for (int i = 0; i < m; i += 32)
            amx_block(c + i * ldc + j, ldc, a + i * lda, lda, b + 2 * j, ldb, k, accumulate);
}

/* == Which of them ================================================================================================ */

static bool of_amd(void) {
    unsigned a, name[3]; /* "AuthenticAMD", in this order of registers */
    return __get_cpuid(0, &a, &name[0], &name[2], &name[1]) && !memcmp(name, "AuthenticAMD", sizeof name);
}

Pairs pairs_kind(void) {
    static int known = -1;
    if (known < 0) known = wanted() && there() ? PAIRS_AMX : of_amd() ? PAIRS_DOTS : PAIRS_SLOW;
    return (Pairs)known;
}

void pairs_gemm(Pairs kind, float *c, size_t ldc, const real *a, size_t lda, const real *b, size_t ldb, int m, int n,
                int k, bool accumulate) {
    (kind == PAIRS_AMX ? multiply_amx : multiply_dots)(c, ldc, a, lda, b, ldb, m, n, k, accumulate);
}

#endif
