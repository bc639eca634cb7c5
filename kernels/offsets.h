/* Tables of relative positions: which entry a query i and a key j of the grid Hg x Wg read.
 *   circle    (i - j) mod N, the tokens in a row                                   N entries
 *   torus     the offset (dy, dx), each modulo its side of the grid                N entries
 *   toeplitz  the offset (dy, dx) as it is                                         (2 Hg - 1)(2 Wg - 1)
 *   local     the same, nothing beyond side / 2 in either direction                side^2
 * The same lines serve every device. */
#ifndef VIT_KERNELS_OFFSETS_H
#define VIT_KERNELS_OFFSETS_H

typedef enum { OFFSETS_CIRCLE, OFFSETS_TORUS, OFFSETS_TOEPLITZ, OFFSETS_LOCAL } OffsetKind;

typedef struct {
    OffsetKind kind;
    int Hg, Wg;
    int side; /* of the local window, odd */
} Offsets;

#ifdef __CUDACC__
#define OFFSETS_INLINE static inline __host__ __device__
#else
#define OFFSETS_INLINE static inline
#endif

OFFSETS_INLINE int offsets_count(const Offsets *o) {
    if (o->kind == OFFSETS_TOEPLITZ) return (2 * o->Hg - 1) * (2 * o->Wg - 1);
    return o->kind == OFFSETS_LOCAL ? o->side * o->side : o->Hg * o->Wg;
}

/* -1: the query does not see the key. */
OFFSETS_INLINE int offset_of(const Offsets *o, int i, int j) {
    if (o->kind == OFFSETS_CIRCLE) return i >= j ? i - j : i - j + o->Hg * o->Wg;
    int dy = i / o->Wg - j / o->Wg, dx = i % o->Wg - j % o->Wg, reach = o->side / 2;
    if (o->kind == OFFSETS_TORUS) return (dy < 0 ? dy + o->Hg : dy) * o->Wg + (dx < 0 ? dx + o->Wg : dx);
    if (o->kind == OFFSETS_TOEPLITZ) return (dy + o->Hg - 1) * (2 * o->Wg - 1) + dx + o->Wg - 1;
    if (dy < -reach || dy > reach || dx < -reach || dx > reach) return -1;
    return (dy + reach) * o->side + dx + reach;
}

/* The key that query i reads entry t for, -1 where there is none. */
OFFSETS_INLINE int offset_key(const Offsets *o, int t, int i) {
    if (o->kind == OFFSETS_CIRCLE) return i >= t ? i - t : i - t + o->Hg * o->Wg;
    int y = i / o->Wg, x = i % o->Wg;
    if (o->kind == OFFSETS_TORUS) {
        y -= t / o->Wg, x -= t % o->Wg;
        return (y < 0 ? y + o->Hg : y) * o->Wg + (x < 0 ? x + o->Wg : x);
    }
    int width = o->kind == OFFSETS_LOCAL ? o->side : 2 * o->Wg - 1;
    y -= t / width - (o->kind == OFFSETS_LOCAL ? o->side / 2 : o->Hg - 1);
    x -= t % width - (o->kind == OFFSETS_LOCAL ? o->side / 2 : o->Wg - 1);
    return y < 0 || y >= o->Hg || x < 0 || x >= o->Wg ? -1 : y * o->Wg + x;
}

#endif
