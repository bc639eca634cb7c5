/* Patches of tokens for ripple attention over pairs, and a warp's operations on pairs of patches.
 *
 * Tokens come in patches of two rows of eight: one tile of sixteen.  Between two patches the distance of a pair needs
 * three row distances, the same for the whole warp, and two column distances a lane, the same for all patches below
 * each other.  A warp therefore owns a patch and iterates over the others column by column.  Its weights, looked up as
 * weight[token][max(row group, column group)], stay in registers as long as the row groups stay the same, and so do the
 * sums that belong to one group.  The result of one product is the left factor of the next in registers. */
#ifndef VIT_KERNELS_CUDA_RIPPLE_PATCHES_CUH
#define VIT_KERNELS_CUDA_RIPPLE_PATCHES_CUH

#include "kernels/ripple/ripple.cuh"
#include "kernels/cuda/tiles.cuh"
#include "kernels/ripple/ripple.h"

enum {
    SIDE = 8, /* columns of a patch */
    PATCH = 2 * SIDE,
    CHUNK = 4, /* patches that are loaded to shared memory while the previous four are processed */
    STAGED = CHUNK * PATCH,
    MOST_WARPS = 8,
    FLOAT_SUMS = sizeof(real) == sizeof(float) /* long sums in two levels: float keeps digits that bfloat16 does not
                                                * have */
};

/* Offsets in shared memory, in bytes; the tiles in staging begin at 0. */
struct Areas {
    int own, far, weight, sums, rows, group, bytes;
};

struct PatchShape {
    RippleRings rings;
    int N, H, D, F;
    int reach;         /* the farthest distance with a weight of its own: all of them for dense */
    int limit;         /* distances from here on are one group */
    int ld;            /* floats of a token's row of weights: odd, for the banks */
    int warps, blocks; /* of a block; of a head */
    bool far, wide;
    Areas at;
};

/* == Patches ====================================================================================================== */

/* Rows y0 .. y1-1, columns x0 .. x1-1, cut into patches that are numbered column by column. */
struct Box {
    int y0, y1, x0, x1, rows, columns;
};

struct Patch {
    int column, row;
};

DEVICE Patch patch_after(const Box &box, Patch p, int steps) {
    p.row += steps;
    while (p.row >= box.rows) {
        p.row -= box.rows;
        p.column++;
    }
    return p;
}

/* Token i of the patch whose first token is at row y, column x; -1 outside. */
DEVICE int patch_token(int y, int x, int i, int y1, int x1, int Wg) {
    y += i / SIDE;
    x += i % SIDE;
    return y < y1 && x < x1 ? y * Wg + x : -1;
}

DEVICE int box_token(const Box &box, Patch p, int i, int Wg) {
    return patch_token(box.y0 + 2 * p.row, box.x0 + SIDE * p.column, i, box.y1, box.x1, Wg);
}

/* The position of a block and of its warps, whose patches are below each other. */
struct PatchPlace {
    RippleHead o;
    int head; /* among those of the launch */
    int y, x; /* first token of the warp's patch */
    Box box;  /* the box of tokens within reach of the block's tokens */
};

DEVICE PatchPlace place_of_warp(const PatchShape &s, int first_head) {
    PatchPlace at;
    int Hg = s.rings.grid.rows, Wg = s.rings.grid.columns;
    int index = (int)(blockIdx.x % s.blocks), below = (Hg + 2 * s.warps - 1) / (2 * s.warps);
    int y0 = index % below * 2 * s.warps, y1 = y0 + 2 * s.warps < Hg ? y0 + 2 * s.warps : Hg;
    at.head = (int)(blockIdx.x / s.blocks);
    at.o = ripple_head(first_head + at.head, s.N, s.H, s.D, s.F, s.rings.G);
    at.y = y0 + 2 * warp_id();
    at.x = index / below * SIDE;
    Box &box = at.box;
    box.y0 = y0 > s.reach ? y0 - s.reach : 0;
    box.y1 = y1 + s.reach < Hg ? y1 + s.reach : Hg;
    box.x0 = at.x > s.reach ? at.x - s.reach : 0;
    box.x1 = at.x + SIDE + s.reach < Wg ? at.x + SIDE + s.reach : Wg;
    box.rows = (box.y1 - box.y0 + 1) / 2;
    box.columns = s.reach < 0 ? 0 : (box.x1 - box.x0 + SIDE - 1) / SIDE;
    return at;
}

DEVICE int own_token(const PatchShape &s, const PatchPlace &at, int i) {
    return patch_token(at.y, at.x, i, s.rings.grid.rows, s.rings.grid.columns, s.rings.grid.columns);
}

/* tile [rows,P] = the rows of tokens token(i), zeros for -1 and right of `columns`. */
template <int P, typename Token>
DEVICE void load_tokens(real *tile, const real *x, size_t row, int columns, bool wide, Token token, int rows,
                        int thread, int threads) {
    constexpr int PIECES = P / WIDE;
    if (wide) {
        for (int at = thread; at < rows * PIECES; at += threads) {
            int i = at / PIECES, j = at % PIECES * WIDE, n = token(i);
            bool valid = n >= 0 && j < columns;
            copy_async_16_or_zero(tile + i * tile_ld(P) + j, valid ? x + n * row + j : x, valid);
        }
        return;
    }
    for (int at = thread; at < rows * P; at += threads) {
        int i = at / P, j = at % P, n = token(i);
        tile[i * tile_ld(P) + j] = n >= 0 && j < columns ? x[n * row + j] : to_real(0);
    }
}

/* A warp's patch as A tiles, loaded through its own tile in shared memory. */
template <int P>
DEVICE void load_own(FragmentA (&a)[P / TILE_K], real *own, const real *x, size_t row, int columns, const PatchShape &s,
                     const PatchPlace &at) {
    load_tokens<P>(
        own, x, row, columns, s.wide, [&](int i) { return own_token(s, at, i); }, PATCH, lane_id(), WARP);
    copy_commit();
    copy_wait<0>();
    warp_sync();
#pragma unroll
    for (int k = 0; k < P / TILE_K; k++) a[k] = load_a(own + k * TILE_K, tile_ld(P));
    warp_sync();
}

/* The reverse; own is overwritten. */
template <int P>
DEVICE void store_own(real *x, size_t row, int columns, real *own, const FragmentC (&c)[P / TILE_N],
                      const PatchShape &s, const PatchPlace &at) {
    constexpr int LD = tile_ld(P), PIECES = P / WIDE;
    warp_sync();
#pragma unroll
    for (int n = 0; n < P / TILE_N; n++) tile_put(own + n * TILE_N, LD, c[n], 1);
    warp_sync();
    for (int k = lane_id(); s.wide && k < PATCH * PIECES; k += WARP) {
        int i = k / PIECES, j = k % PIECES * WIDE, n = own_token(s, at, i);
        if (n >= 0 && j < columns) copy_16(x + n * row + j, own + i * LD + j);
    }
    for (int k = lane_id(); !s.wide && k < PATCH * P; k += WARP) {
        int i = k / P, j = k % P, n = own_token(s, at, i);
        if (n >= 0 && j < columns) x[n * row + j] = own[i * LD + j];
    }
}

/* == Weights ====================================================================================================== */

/* True if any token lies outside the window of n. */
DEVICE bool has_far(const PatchShape &s, int n) {
    int Hg = s.rings.grid.rows, Wg = s.rings.grid.columns, y = n / Wg, x = n % Wg, reach = s.reach;
    return s.far && (y > reach || Hg - 1 - y > reach || x > reach || Wg - 1 - x > reach);
}

DEVICE float base_of(const PatchShape &s, const RippleHead &o, const float *alpha, int n) {
    return n >= 0 && has_far(s, n) ? alpha[o.alpha + n * o.alpha_row + s.rings.G - 1] : 0;
}

/* weight [rows,ld] = c of every group for the tokens token(i), times 1 / den if that is given. */
template <typename Token>
DEVICE void load_weights(float *weight, const float *alpha, const float *den, const RippleHead &o, const PatchShape &s,
                         Token token, int rows, int thread, int threads) {
    for (int at = thread; at < rows * s.rings.G; at += threads) {
        int i = at / s.rings.G, r = at % s.rings.G, n = token(i);
        float w = 0;
        if (n >= 0) w = alpha[o.alpha + n * o.alpha_row + r] - base_of(s, o, alpha, n);
        if (n >= 0 && den) w /= den[o.den + n * o.den_row];
        weight[i * s.ld + r] = w;
    }
}

DEVICE void load_groups(unsigned char *group, const PatchShape &s) {
    for (int d = threadIdx.x; d <= s.limit; d += blockDim.x) group[d] = (unsigned char)ripple_group(s.rings, d);
}

DEVICE int group_at(const unsigned char *group, const PatchShape &s, int difference) {
    int distance = difference < 0 ? -difference : difference;
    return group[distance < s.limit ? distance : s.limit];
}

/* Groups of the row distances between two patches dy apart, one byte each: row j of the other patch and row i of the
 * own. */
DEVICE unsigned row_groups(const unsigned char *group, const PatchShape &s, int dy) {
    return (unsigned)group_at(group, s, dy) | (unsigned)group_at(group, s, dy + 1) << 8 |
           (unsigned)group_at(group, s, dy - 1) << 16;
}
DEVICE int pair_group(unsigned rows, int i, int j, int column_group) {
    int g = (int)(rows >> (j > i ? 8 : i > j ? 16 : 0) & 255);
    return g > column_group ? g : column_group;
}

/* Groups of the column distances between this lane's token of the own patch and its two tokens of a patch dx to the
 * right. */
DEVICE void column_groups(int (&column)[2], const unsigned char *group, const PatchShape &s, int dx) {
#pragma unroll
    for (int e = 0; e < 2; e++) column[e] = group_at(group, s, dx + fragment_c_column(e) - fragment_c_row(0));
}

/* True if all pairs of two patches dy apart are too far from each other to have a weight of their own. */
DEVICE bool beyond(const PatchShape &s, int dy) { return (dy < 0 ? -dy : dy) > s.reach + 1; }

/* The weights of this lane's pairs, valid while `rows` and `column` do not change: [row of the own patch][row of the
 * other][e]. */
struct Held {
    unsigned rows;
    int column[2];
    float weight[2][2][2];
};
static constexpr unsigned NOTHING = 0xffffffffu;

/* own: the warp's rows of weights. */
DEVICE void hold_weights(Held &held, unsigned rows, const float *own, int ld) {
    held.rows = rows;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                held.weight[i][j][e] = own[fragment_c_row(2 * i) * ld + pair_group(rows, i, j, held.column[e])];
}

/* == Products ===================================================================================================== */

/* c[0], c[1] = the scores of the own patch with the two rows of the patch in `tile`: a tile^T. */
template <int P>
DEVICE void scores(FragmentC (&c)[2], const FragmentA (&a)[P / TILE_K], const real *tile) {
    fragment_zero(c[0]);
    fragment_zero(c[1]);
#pragma unroll
    for (int k = 0; k < P / TILE_K; k++) {
        FragmentB b[2];
        load_b_transposed(b, tile + k * TILE_K, tile_ld(P));
        mma(c[0], a[k], b[0]);
        mma(c[1], a[k], b[1]);
    }
}

/* sum += [c[0], c[1]] tile */
template <int P>
DEVICE void accumulate(FragmentC (&sum)[P / TILE_N], const FragmentC (&c)[2], const real *tile) {
    FragmentA a = fragment_a_from_c(c[0], c[1]);
#pragma unroll
    for (int n = 0; n < P / TILE_N; n += 2) {
        FragmentB b[2];
        load_b(b, tile + n * TILE_N, tile_ld(P));
        mma(sum[n], a, b[0]);
        mma(sum[n + 1], a, b[1]);
    }
}

template <int T>
DEVICE void clear(FragmentC (&c)[T]) {
#pragma unroll
    for (int n = 0; n < T; n++) fragment_zero(c[n]);
}

/* Ends a stretch of a long sum. */
template <int T>
DEVICE void flush(FragmentC (&sum)[T], FragmentC (&part)[T]) {
#pragma unroll
    for (int n = 0; n < T; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) sum[n].x[i] += part[n].x[i];
    clear(part);
}

/* == The walk over the others' patches ============================================================================ */

/* Calls visit(patch, buffer, k) for every patch of the box, which is the k-th of a buffer, and pause() after CHUNK of
 * them.  The copy of the first chunk has been started; stage(patch, buffer) starts the copy of the patches from `patch`
 * on. */
template <typename Stage, typename Visit, typename Pause>
DEVICE void walk(const Box &box, Stage stage, Visit visit, Pause pause) {
    int patches = box.rows * box.columns;
    Patch p = {0, 0};
    for (int done = 0, buffer = 0; done < patches; done += CHUNK, buffer ^= 1) {
        copy_wait<0>();
        block_sync();
        if (done + CHUNK < patches) stage(patch_after(box, p, CHUNK), buffer ^ 1);
        copy_commit();
        for (int k = 0; k < CHUNK && done + k < patches; k++) {
            visit(p, buffer, k);
            p = patch_after(box, p, 1);
        }
        pause();
    }
}

#endif
