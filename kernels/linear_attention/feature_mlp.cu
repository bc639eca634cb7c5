/* The learnable feature map; the formulas are those of kernels/linear_attention/feature_mlp.c.
 *   forward   u = w1 z',  f = [sin u; cos u],  phi = relu(w2 f + b2),  z' = D^-1/4 z
 *   backward  dp = dphi [phi > 0],  db2 += dp,  dw2 += dp f^T,  df = w2^T dp,
 *             du = df_sin cos u - df_cos sin u,  dw1 += du z'^T,  dz = D^-1/4 w1^T du
 *   saves     nothing.
 *
 * A row is one (token, q or k, head) triple.  Blocks keep the weights in shared memory, padded with zeros to W for D
 * and E and to P for F, and process rows until none are left; everything between z and phi stays on the chip.
 *
 * Precision: an absolute error of the angle u is an error of the same size in sin u, however large u is, and weights
 * rounded to bfloat16 (with a relative error of up to 2^-9) would shift an angle of 10 by 0.02.  Therefore w1, times
 * D^-1/4, is the sum of two bfloat16 tiles with 16 bits together; z is exact, and u has an error of 1e-4 at 10.  The
 * later values are bounded by one and are rounded like other activations.
 *
 * Backward transposes the products, u^T = w1 z^T with the rows as columns: sin, cos and du are then, in registers, the
 * left factors of the weights' gradients, and only du goes through shared memory once, for dz.  Every block sums its
 * own rows in registers; rows.cuh adds the blocks' sums in order. */
#include "kernels/cuda/tiles.cuh"
#include "kernels/linear_attention/feature_maps.h"
#include "kernels/softmax/attention_shape.h"

enum { THREADS = 128, WARPS = THREADS / WARP, WIDEST = 64 };

/* Blocks are persistent and share the rows evenly, so there are as many as fit at once: the number that registers allow
 * on each of an H200's 132 multiprocessors.  The bits of the result depend on the number, which is therefore the same
 * on every device. */
enum { MULTIPROCESSORS = 132 };
static constexpr int forward_residents(int W, int P) { return W + P <= 64 ? 5 : W <= 32 ? 4 : 3; }
static constexpr int backward_residents(int W, int P) { return W + P <= 64 ? 3 : 2; }
enum { FORWARD_BLOCKS = 5 * MULTIPROCESSORS, BACKWARD_BLOCKS = 3 * MULTIPROCESSORS };

/* Row tiles of 16 of a warp in forward: every load from shared memory is used twice.  Floats take more space. */
static constexpr int T = sizeof(real) == 2 ? 2 : 1;

/* Rows of a block in one step of backward. */
enum { ROWS = WARPS * TILE_M };

typedef struct {
    int H, D, E, F;
    int z_step, phi_step; /* numbers from a row to the next within q or k: D, F, or H times that where H is 1 of many */
    size_t rows; /* n * 2H */
    float scale; /* D^-1/4 */
    bool wide_z, wide_phi;
} MlpShape;

static constexpr int w1_size(int W) { return (1 + SPLIT) * W * tile_ld(W); }
static constexpr int w2_size(int W, int P) { return P * tile_ld(2 * W); }

/* w1 [1 + SPLIT][W,tile_ld(W)] times D^-1/4, w2 [P,tile_ld(2 W)]: sines, then cosines. */
template <int W, int P>
DEVICE void load_weights(real *w1_tile, real *w2_tile, const float *w1, const float *w2, MlpShape s) {
    for (int i = (int)threadIdx.x; i < W * W; i += THREADS) {
        int e = i / W, d = i % W;
        float x = e < s.E && d < s.D ? s.scale * w1[e * s.D + d] : 0;
        real high = to_real(x);
        w1_tile[e * tile_ld(W) + d] = high;
        if (SPLIT) w1_tile[(W + e) * tile_ld(W) + d] = to_real(x - to_float(high));
    }
    for (int i = (int)threadIdx.x; i < P * 2 * W; i += THREADS) {
        int f = i / (2 * W), c = i % (2 * W), e = c % W;
        w2_tile[f * tile_ld(2 * W) + c] = to_real(f < s.F && e < s.E ? w2[(f * 2 + c / W) * s.E + e] : 0);
    }
}

/* The offsets in [n,3,H,D] of the rows of q and k that a warp works on: each lane computes one, with one division for
 * all of them. */
typedef struct {
    size_t base;
    int offset; /* of row `lane` from `first` on */
} Rows;

DEVICE Rows rows_from(size_t first, MlpShape s) {
    size_t token = quotient(first, 2 * s.H);
    unsigned row = (unsigned)(first - token * 2 * s.H) + (unsigned)lane_id(), next = row / (2u * s.H);
    return {token * 3 * s.H * s.z_step, (int)((row + next * s.H) * s.z_step)};
}

template <int COUNT, int W>
DEVICE void load_z(real *tile, int ld, const real *qkv, Rows at, int rows, MlpShape s) {
    qkv += at.base;
    tile_load<COUNT, W, WARP>(
        tile, ld, [=](int i) { return qkv + warp_shuffle(at.offset, i); }, rows, s.D, s.wide_z, lane_id());
}

/* The number of rows from `first` on, at most `most`. */
DEVICE int rows_left(size_t first, int most, MlpShape s) {
    return first >= s.rows ? 0 : s.rows - first < (size_t)most ? (int)(s.rows - first) : most;
}

/* == Forward ====================================================================================================== */

static constexpr int wider(int a, int b) { return a > b ? a : b; }

static constexpr size_t forward_bytes(int W, int P) {
    return P * sizeof(float) +
           (w1_size(W) + w2_size(W, P) + WARPS * 2 * T * TILE_M * tile_ld(wider(W, P))) * sizeof(real);
}

/* u, then sin u and cos u, of 16 elements of E for the warp's rows, as left factors. */
template <int W>
DEVICE void angles(FragmentA (&sine)[T], FragmentA (&cosine)[T], const FragmentA (&z)[T][W / TILE_K], const real *w1) {
    FragmentC u[T][2] = {};
#pragma unroll
    for (int part = 0; part <= SPLIT; part++)
#pragma unroll
        for (int k = 0; k < W / TILE_K; k++) {
            FragmentB b[2];
            load_b_transposed(b, w1 + part * W * tile_ld(W) + k * TILE_K, tile_ld(W));
#pragma unroll
            for (int r = 0; r < T; r++) {
                mma(u[r][0], z[r][k], b[0]);
                mma(u[r][1], z[r][k], b[1]);
            }
        }
#pragma unroll
    for (int r = 0; r < T; r++) {
        FragmentC c[2];
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) fast_sincos(u[r][j].x[i], &u[r][j].x[i], &c[j].x[i]);
        sine[r] = fragment_a_from_c(u[r][0], u[r][1]);
        cosine[r] = fragment_a_from_c(c[0], c[1]);
    }
}

template <int W, int P>
__global__ void __launch_bounds__(THREADS, sizeof(real) == 2 ? forward_residents(W, P) : 1)
    feature_forward_kernel(real *phi, const real *qkv, const float *w1, const float *w2, const float *b2, MlpShape s) {
    constexpr int LD = tile_ld(wider(W, P)), COUNT = T * TILE_M;
    SHARED(float, bias);                                                /* [P] */
    real *w1_tile = reinterpret_cast<real *>(bias + P);                 /* [1 + SPLIT][W,tile_ld(W)] */
    real *w2_tile = w1_tile + w1_size(W);                               /* [P,tile_ld(2 W)] */
    real *tiles = w2_tile + w2_size(W, P) + warp_id() * 2 * COUNT * LD; /* the warp's [2][COUNT,LD]: z, then phi */
    size_t step = (size_t)gridDim.x * WARPS * COUNT, first = ((size_t)blockIdx.x * WARPS + warp_id()) * COUNT;
    if (first < s.rows) load_z<COUNT, W>(tiles, LD, qkv, rows_from(first, s), rows_left(first, COUNT, s), s);
    copy_commit();
    for (int f = (int)threadIdx.x; f < P; f += THREADS) bias[f] = f < s.F ? b2[f] : 0;
    load_weights<W, P>(w1_tile, w2_tile, w1, w2, s);
    block_sync();
    for (int stage = 0; first < s.rows; first += step, stage ^= 1) {
        real *tile = tiles + stage * COUNT * LD;
        copy_wait<0>();
        warp_sync();
        if (first + step < s.rows)
            load_z<COUNT, W>(tiles + (stage ^ 1) * COUNT * LD, LD, qkv, rows_from(first + step, s),
                             rows_left(first + step, COUNT, s), s);
        copy_commit();
        FragmentA z[T][W / TILE_K];
        FragmentC p[T][P / TILE_N];
#pragma unroll
        for (int r = 0; r < T; r++) {
#pragma unroll
            for (int k = 0; k < W / TILE_K; k++) z[r][k] = load_a(tile + r * TILE_M * LD + k * TILE_K, LD);
#pragma unroll
            for (int n = 0; n < P / TILE_N; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) p[r][n].x[i] = bias[n * TILE_N + fragment_c_column(i)];
        }
        for (int e = 0; e < s.E; e += TILE_K) {
            FragmentA f[2][T];
            angles<W>(f[0], f[1], z, w1_tile + e * tile_ld(W));
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int n = 0; n < P / TILE_N; n += 2) {
                    FragmentB b[2];
                    load_b_transposed(b, w2_tile + n * TILE_N * tile_ld(2 * W) + half * W + e, tile_ld(2 * W));
#pragma unroll
                    for (int r = 0; r < T; r++) {
                        mma(p[r][n], f[half][r], b[0]);
                        mma(p[r][n + 1], f[half][r], b[1]);
                    }
                }
        }
        warp_sync();
#pragma unroll
        for (int r = 0; r < T; r++)
#pragma unroll
            for (int n = 0; n < P / TILE_N; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) p[r][n].x[i] = p[r][n].x[i] < 0 ? 0 : p[r][n].x[i]; /* NaN stays */
                tile_put(tile + r * TILE_M * LD + n * TILE_N, LD, p[r][n], 1);
            }
        warp_sync();
        real *to = phi + first * s.phi_step;
        tile_store<COUNT, P, WARP>([=](int i) { return to + (size_t)i * s.phi_step; }, tile, LD,
                                   rows_left(first, COUNT, s), s.F, s.wide_phi, lane_id());
    }
}

/* == Backward ===================================================================================================== */

/* A warp has 16 elements of E; if E is small, several warps share elements and divide the rows. */
static constexpr int e_groups(int W) { return W / TILE_M; }
static constexpr int row_groups(int W) { return WARPS / e_groups(W); }

/* du is kept [E,rows]. */
static constexpr int DU_LD = tile_ld(ROWS);

/* One block's gradients: dw1 [E,D], dw2 [F,2E], db2 [F]. */
static constexpr int gradient_columns(int W, int P) { return W + 2 * P; }
static constexpr size_t backward_bytes(int W, int P) {
    size_t tiles = (ROWS * (2 * tile_ld(W) + 4 * tile_ld(P)) + W * DU_LD) * sizeof(real);
    size_t sums = (row_groups(W) * W * gradient_columns(W, P) + THREADS * 4) * sizeof(float);
    return (w1_size(W) + w2_size(W, P)) * sizeof(real) + (tiles > sums ? tiles : sums);
}

/* A warp's sums for its 16 elements of E: rows are those, columns D and F. */
template <int W, int P>
struct Gradients {
    FragmentC w1[W / TILE_N], w2[2][P / TILE_N];
};

/* dphi becomes dp, and each thread adds up four columns of its rows. */
template <int P>
DEVICE void mask_gradients(real *dphi, const real *phi, float (&db2)[4]) {
    constexpr int PIECES = P / 4;
    int j = (int)threadIdx.x % PIECES * 4;
#pragma unroll
    for (int i = (int)threadIdx.x / PIECES; i < ROWS; i += THREADS / PIECES) {
        float dp[4], value[4];
        load<4>(dp, dphi + i * tile_ld(P) + j);
        load<4>(value, phi + i * tile_ld(P) + j);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            dp[c] = value[c] <= 0 ? 0 : dp[c];
            db2[c] += dp[c];
        }
        store<4>(dphi + i * tile_ld(P) + j, dp);
    }
}

/* c += a x^T for 16 rows x: their first and last eight are c's two tiles. */
template <int K>
DEVICE void multiply_rows(FragmentC (&c)[2], const FragmentA (&a)[K], const real *x, int ld) {
#pragma unroll
    for (int k = 0; k < K; k++) {
        FragmentB b[2];
        load_b_transposed(b, x + k * TILE_K, ld);
        mma(c[0], a[k], b[0]);
        mma(c[1], a[k], b[1]);
    }
}

/* The weights of a warp's 16 elements of E as left factors: w1 in its parts, and the transposes of w2's two halves. */
template <int W, int P>
struct Factors {
    FragmentA w1[1 + SPLIT][W / TILE_K], w2[2][P / TILE_K];
};

template <int W, int P>
DEVICE void load_factors(Factors<W, P> &a, const real *w1, const real *w2, int e) {
#pragma unroll
    for (int part = 0; part <= SPLIT; part++)
#pragma unroll
        for (int k = 0; k < W / TILE_K; k++)
            a.w1[part][k] = load_a(w1 + (part * W + e) * tile_ld(W) + k * TILE_K, tile_ld(W));
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int k = 0; k < P / TILE_K; k++)
            a.w2[half][k] = load_a_transposed(w2 + k * TILE_K * tile_ld(2 * W) + half * W + e, tile_ld(2 * W));
}

/* The gradients of 16 rows z [16,tile_ld(W)], dp [16,tile_ld(P)]; du [16,DU_LD] = those of u^T. */
template <int W, int P>
DEVICE void add_gradients(Gradients<W, P> &sum, real *du, const Factors<W, P> &a, const real *z, const real *dp) {
    FragmentC u[2] = {}, df[2][2] = {};
#pragma unroll
    for (int part = 0; part <= SPLIT; part++) multiply_rows(u, a.w1[part], z, tile_ld(W));
    multiply_rows(df[0], a.w2[0], dp, tile_ld(P));
    multiply_rows(df[1], a.w2[1], dp, tile_ld(P));
    FragmentC cosine[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            fast_sincos(u[j].x[i], &u[j].x[i], &cosine[j].x[i]);
            df[0][j].x[i] = df[0][j].x[i] * cosine[j].x[i] - df[1][j].x[i] * u[j].x[i];
        }
        tile_put(du + j * TILE_N, DU_LD, df[0][j], 1);
    }
    FragmentA left = fragment_a_from_c(df[0][0], df[0][1]), sines = fragment_a_from_c(u[0], u[1]);
    FragmentA cosines = fragment_a_from_c(cosine[0], cosine[1]);
#pragma unroll
    for (int n = 0; n < W / TILE_N; n += 2) {
        FragmentB b[2];
        load_b(b, z + n * TILE_N, tile_ld(W));
        mma(sum.w1[n], left, b[0]);
        mma(sum.w1[n + 1], left, b[1]);
    }
#pragma unroll
    for (int n = 0; n < P / TILE_N; n += 2) {
        FragmentB b[2];
        load_b(b, dp + n * TILE_N, tile_ld(P));
#pragma unroll
        for (int j = 0; j < 2; j++) {
            mma(sum.w2[0][n + j], sines, b[j]);
            mma(sum.w2[1][n + j], cosines, b[j]);
        }
    }
}

/* z [16,tile_ld(W)] becomes dz of the warp's rows; du is column 16 w on of the block's [W,DU_LD]. */
template <int W>
DEVICE void input_gradients(real *z, const real *du, const real *w1) {
    FragmentA a[W / TILE_K];
#pragma unroll
    for (int k = 0; k < W / TILE_K; k++) a[k] = load_a_transposed(du + k * TILE_K * DU_LD, DU_LD);
#pragma unroll
    for (int n = 0; n < W; n += 2 * TILE_N) {
        FragmentC c[2] = {};
#pragma unroll
        for (int part = 0; part <= SPLIT; part++)
#pragma unroll
            for (int k = 0; k < W / TILE_K; k++) {
                FragmentB b[2];
                load_b(b, w1 + (part * W + k * TILE_K) * tile_ld(W) + n, tile_ld(W));
                mma(c[0], a[k], b[0]);
                mma(c[1], a[k], b[1]);
            }
        tile_put(z + n, tile_ld(W), c[0], 1);
        tile_put(z + n + TILE_N, tile_ld(W), c[1], 1);
    }
}

/* The first block's sums dw2 [F,2E], db2 [F] and dw1 [E,D], one after the other, followed by the next block's. */
typedef struct {
    float *w2, *b2, *w1;
    size_t next; /* numbers of a block */
} Parts;

/* Adds the warps' sums through shared memory, one row group at a time; sums [row_groups][W][D, sin F, cos F], then
 * db2's. */
template <int W, int P>
DEVICE void store_parts(Parts parts, float *sums, const Gradients<W, P> &sum, const float (&db2)[4], MlpShape s) {
    constexpr int COLUMNS = gradient_columns(W, P), PIECES = P / 4;
    float *mine = sums + warp_id() * TILE_M * COLUMNS, *columns = sums + row_groups(W) * W * COLUMNS;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float *row = mine + fragment_c_row(i) * COLUMNS + fragment_c_column(i);
#pragma unroll
        for (int n = 0; n < W / TILE_N; n++) row[n * TILE_N] = sum.w1[n].x[i];
#pragma unroll
        for (int n = 0; n < P / TILE_N; n++) {
            row[W + n * TILE_N] = sum.w2[0][n].x[i];
            row[W + P + n * TILE_N] = sum.w2[1][n].x[i];
        }
        columns[threadIdx.x / PIECES * P + threadIdx.x % PIECES * 4 + i] = db2[i];
    }
    block_sync();
    auto total = [=](int e, int column) {
        float x = 0;
        for (int g = 0; g < row_groups(W); g++) x += sums[(g * W + e) * COLUMNS + column];
        return x;
    };
    size_t block = blockIdx.x * parts.next;
    for (int i = (int)threadIdx.x; i < s.E * s.D; i += THREADS)
        parts.w1[block + i] = s.scale * total(i / s.D, i % s.D);
    for (int i = (int)threadIdx.x; i < s.F * 2 * s.E; i += THREADS) {
        int f = i / (2 * s.E), c = i % (2 * s.E);
        parts.w2[block + i] = total(c % s.E, W + c / s.E * P + f);
    }
    for (int f = (int)threadIdx.x; f < s.F; f += THREADS) {
        float x = 0;
        for (int i = 0; i < THREADS / PIECES; i++) x += columns[i * P + f];
        parts.b2[block + f] = x;
    }
}

template <int W, int P>
__global__ void __launch_bounds__(THREADS, sizeof(real) == 2 ? backward_residents(W, P) : 1)
    feature_backward_kernel(real *dqkv, Parts parts, const real *dphi, const real *phi, const real *qkv,
                            const float *w1, const float *w2, MlpShape s) {
    constexpr int Z = ROWS * tile_ld(W), F_TILE = ROWS * tile_ld(P);
    SHARED(real, w1_tile); /* [1 + SPLIT][W,tile_ld(W)] */
    real *w2_tile = w1_tile + w1_size(W);                             /* [P,tile_ld(2 W)] */
    real *z_tile = w2_tile + w2_size(W, P);                           /* [2][ROWS,tile_ld(W)] */
    real *dp_tile = z_tile + 2 * Z, *phi_tile = dp_tile + 2 * F_TILE; /* [2][ROWS,tile_ld(P)] each */
    real *du_tile = phi_tile + 2 * F_TILE;                            /* [W,DU_LD] */
    int owned = warp_id() * TILE_M, e = warp_id() % e_groups(W) * TILE_M, group = warp_id() / e_groups(W);
    auto fetch = [&](size_t first, Rows at, int stage) {
        int left = rows_left(first + owned, TILE_M, s);
        const real *from = dphi + (first + owned) * s.phi_step, *values = phi + (first + owned) * s.phi_step;
        load_z<TILE_M, W>(z_tile + stage * Z + owned * tile_ld(W), tile_ld(W), qkv, at, left, s);
        tile_load<TILE_M, P, WARP>(
            dp_tile + stage * F_TILE + owned * tile_ld(P), tile_ld(P),
            [=](int i) { return from + (size_t)i * s.phi_step; }, left, s.F, s.wide_phi, lane_id());
        tile_load<TILE_M, P, WARP>(
            phi_tile + stage * F_TILE + owned * tile_ld(P), tile_ld(P),
            [=](int i) { return values + (size_t)i * s.phi_step; }, left, s.F, s.wide_phi, lane_id());
    };
    size_t step = (size_t)gridDim.x * ROWS, first = (size_t)blockIdx.x * ROWS;
    Rows next = rows_from(first + owned, s);
    fetch(first, next, 0);
    copy_commit();
    load_weights<W, P>(w1_tile, w2_tile, w1, w2, s);
    block_sync();
    Factors<W, P> factors;
    load_factors(factors, w1_tile, w2_tile, e);
    Gradients<W, P> sum = {};
    float db2[4] = {};
    for (int stage = 0; first < s.rows; first += step, stage ^= 1) {
        real *z = z_tile + stage * Z, *dp = dp_tile + stage * F_TILE;
        Rows at = next;
        copy_wait<0>();
        block_sync();
        if (first + step < s.rows) {
            next = rows_from(first + step + owned, s);
            fetch(first + step, next, stage ^ 1);
        }
        copy_commit();
        mask_gradients<P>(dp, phi_tile + stage * F_TILE, db2);
        block_sync();
        for (int i = 0; i < ROWS / row_groups(W); i += TILE_K) {
            int row = group * (ROWS / row_groups(W)) + i;
            add_gradients(sum, du_tile + e * DU_LD + row, factors, z + row * tile_ld(W), dp + row * tile_ld(P));
        }
        block_sync();
        input_gradients<W>(z + owned * tile_ld(W), du_tile + owned, w1_tile);
        warp_sync();
        real *to = dqkv + at.base;
        tile_store<TILE_M, W, WARP>([=](int i) { return to + warp_shuffle(at.offset, i); }, z + owned * tile_ld(W),
                                    tile_ld(W), rows_left(first + owned, TILE_M, s), s.D, s.wide_z, lane_id());
    }
    block_sync();
    store_parts(parts, reinterpret_cast<float *>(z_tile), sum, db2, s);
}

/* == More than 64 ================================================================================================= */

/* A block takes a row at a time; f [2E] in shared memory. */
DEVICE void plain_angles(float *f, const real *z, const float *w1, MlpShape s) {
    for (int e = (int)threadIdx.x; e < s.E; e += THREADS) {
        float u = 0;
        for (int d = 0; d < s.D; d++) u += s.scale * w1[(size_t)e * s.D + d] * to_float(z[d]);
        fast_sincos(u, &f[e], &f[s.E + e]);
    }
}

DEVICE size_t plain_row(size_t row, MlpShape s) {
    size_t token = quotient(row, 2 * s.H);
    return (row + token * s.H) * s.z_step;
}

__global__ void __launch_bounds__(THREADS) feature_forward_plain_kernel(real *phi, const real *qkv, const float *w1,
                                                                        const float *w2, const float *b2, MlpShape s) {
    SHARED(float, f); /* [2E] */
    for (size_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
        plain_angles(f, qkv + plain_row(row, s), w1, s);
        block_sync();
        for (int j = (int)threadIdx.x; j < s.F; j += THREADS) {
            float p = b2[j];
            for (int c = 0; c < 2 * s.E; c++) p += w2[(size_t)j * 2 * s.E + c] * f[c];
            phi[row * s.phi_step + j] = to_real(p < 0 ? 0 : p);
        }
        block_sync();
    }
}

/* A block's sums are in memory; each element belongs to one thread. */
__global__ void __launch_bounds__(THREADS)
    feature_backward_plain_kernel(real *dqkv, Parts parts, const real *dphi, const real *phi, const real *qkv,
                                  const float *w1, const float *w2, MlpShape s) {
    SHARED(float, f);                        /* [2E] */
    float *du = f + 2 * s.E, *dp = du + s.E; /* [E], [F] */
    size_t n1 = (size_t)s.E * s.D, n2 = (size_t)s.F * 2 * s.E;
    size_t mine = blockIdx.x * parts.next;
    float *dw1 = parts.w1 + mine, *dw2 = parts.w2 + mine, *db2 = parts.b2 + mine;
    for (size_t i = threadIdx.x; i < n1; i += THREADS) dw1[i] = 0;
    for (size_t i = threadIdx.x; i < n2; i += THREADS) dw2[i] = 0;
    for (int j = (int)threadIdx.x; j < s.F; j += THREADS) db2[j] = 0;
    for (size_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
        size_t at = plain_row(row, s);
        plain_angles(f, qkv + at, w1, s);
        for (int j = (int)threadIdx.x; j < s.F; j += THREADS) {
            dp[j] = to_float(phi[row * s.phi_step + j]) <= 0 ? 0 : to_float(dphi[row * s.phi_step + j]);
            db2[j] += dp[j];
        }
        block_sync();
        for (size_t i = threadIdx.x; i < n2; i += THREADS) dw2[i] += dp[i / (2 * s.E)] * f[i % (2 * s.E)];
        for (int e = (int)threadIdx.x; e < s.E; e += THREADS) {
            float sine = 0, cosine = 0;
            for (int j = 0; j < s.F; j++) {
                sine += w2[(size_t)j * 2 * s.E + e] * dp[j];
                cosine += w2[(size_t)j * 2 * s.E + s.E + e] * dp[j];
            }
            du[e] = s.scale * (sine * f[s.E + e] - cosine * f[e]);
        }
        block_sync();
        for (size_t i = threadIdx.x; i < n1; i += THREADS) dw1[i] += du[i / s.D] * to_float(qkv[at + i % s.D]);
        for (int d = (int)threadIdx.x; d < s.D; d += THREADS) {
            float dz = 0;
            for (int e = 0; e < s.E; e++) dz += w1[(size_t)e * s.D + d] * du[e];
            dqkv[at + d] = to_real(dz);
        }
        block_sync();
    }
}

/* == Launches ===================================================================================================== */

/* Calls launch(W, P) with the padded sizes for D and E, and for F. */
template <typename Launch>
static void with_sizes(int D, int E, int F, Launch launch) {
    bool narrow = D <= 32 && E <= 32;
    if (narrow && F <= 32) launch(Constant<32>(), Constant<32>());
    else if (narrow) launch(Constant<32>(), Constant<64>());
    else if (F <= 32) launch(Constant<64>(), Constant<32>());
    else launch(Constant<64>(), Constant<64>());
}

/* With floats the largest tiles fit into the shared memory of an H100 alone. */
static bool is_plain(int D, int E, int F) {
    bool plain = D > WIDEST || E > WIDEST || F > WIDEST;
    if (!plain)
        with_sizes(D, E, F, [&](auto width, auto features) {
            plain = backward_bytes(width.value, features.value) > launch_shared_most() ||
                    forward_bytes(width.value, features.value) > launch_shared_most();
        });
    return plain;
}

static MlpShape shape_of(size_t n, int H, int D, int E, int F) {
    return {H, D, E, F, D, F, n * 2 * H, 1 / sqrtf(sqrtf((float)D)), false, false};
}

/* The shape for a single one of H heads, whose row strides are H times as large. */
static MlpShape head_shape(size_t n, int H, int D, int E, int F) {
    MlpShape s = shape_of(n, 1, D, E, F);
    s.z_step *= H;
    s.phi_step *= H;
    return s;
}

static void forward(real *phi, const real *qkv, const float *w1, const float *w2, const float *b2, MlpShape s) {
    int D = s.D, E = s.E, F = s.F;
    s.wide_z = is_wide(D, qkv);
    s.wide_phi = is_wide(F, phi);
    if (is_plain(D, E, F)) {
        LAUNCH(feature_forward_plain_kernel, blocks_for(s.rows, 1, FORWARD_BLOCKS), THREADS, 2 * E * sizeof(float), phi,
               qkv, w1, w2, b2, s);
        return;
    }
    with_sizes(D, E, F, [&](auto width, auto features) {
        constexpr int W = width.value, P = features.value;
        unsigned blocks = blocks_for(s.rows, WARPS * T * TILE_M, forward_residents(W, P) * MULTIPROCESSORS);
        LAUNCH((feature_forward_kernel<W, P>), blocks, THREADS, forward_bytes(W, P), phi, qkv, w1, w2, b2, s);
    });
}

void feature_mlp_forward(real *phi, const real *qkv, const FeatureMlp *map, const FeatureShape *shape) {
    const float *w1 = map->w1, *w2 = map->w2, *b2 = map->b2;
    size_t n = (size_t)shape->B * shape->N;
    int H = shape->H, D = shape->D, E = map->E, F = shape->F;
    if (!map->per_head) {
        forward(phi, qkv, w1, w2, b2, shape_of(n, H, D, E, F));
        return;
    }
    for (int h = 0; h < H; h++, w1 += (size_t)E * D, w2 += (size_t)F * 2 * E, b2 += F)
        forward(phi + (size_t)h * F, qkv + (size_t)h * D, w1, w2, b2, head_shape(n, H, D, E, F));
}

static size_t gradient_floats(int D, int E, int F) { return (size_t)E * D + (size_t)F * 2 * E + F; }

/* As many blocks as have sums in 64 MB, but at least one. */
static size_t most_parts(int D, int E, int F) {
    size_t fit = ((size_t)1 << 24) / gradient_floats(D, E, F), most = BACKWARD_BLOCKS;
    return fit < 1 ? 1 : fit < most ? fit : most;
}

size_t feature_mlp_workspace(int D, int E, int F) {
    return most_parts(D, E, F) * gradient_floats(D, E, F) * sizeof(float);
}

static void launch_backward(real *dqkv, Parts parts, unsigned blocks, const real *dphi, const real *phi,
                            const real *qkv, const float *w1, const float *w2, MlpShape s) {
    with_sizes(s.D, s.E, s.F, [&](auto width, auto features) {
        constexpr int W = width.value, P = features.value;
        LAUNCH((feature_backward_kernel<W, P>), blocks, THREADS, backward_bytes(W, P), dqkv, parts, dphi, phi, qkv, w1,
               w2, s);
    });
}

static unsigned backward_blocks(MlpShape s) {
    size_t most = most_parts(s.D, s.E, s.F);
    if (is_plain(s.D, s.E, s.F)) return blocks_for(s.rows, 1, most);
    with_sizes(s.D, s.E, s.F, [&](auto width, auto features) {
        most = backward_residents(width.value, features.value) * MULTIPROCESSORS;
    });
    return blocks_for(s.rows, ROWS, most);
}

static void backward(real *dqkv, float *dw1, float *dw2, float *db2, const real *dphi, const real *phi, const real *qkv,
                     const float *w1, const float *w2, MlpShape s) {
    int D = s.D, E = s.E, F = s.F;
    s.wide_z = is_wide(D, dqkv, qkv);
    s.wide_phi = is_wide(F, dphi, phi);
    unsigned blocks = backward_blocks(s);
    float *sums = static_cast<float *>(kernels_workspace(feature_mlp_workspace(D, E, F)));
    size_t n1 = (size_t)E * D, n2 = (size_t)F * 2 * E;
    size_t n = n1 + n2 + (size_t)F;
    Parts parts = {sums, sums + n2, sums + n2 + F, n};
    if (is_plain(D, E, F))
        LAUNCH(feature_backward_plain_kernel, blocks, THREADS, (3 * E + F) * sizeof(float), dqkv, parts, dphi, phi, qkv,
               w1, w2, s);
    else launch_backward(dqkv, parts, blocks, dphi, phi, qkv, w1, w2, s);
    add_parts_to({{dw2, db2, dw1}, {(int)n2, F, dw1 ? (int)n1 : 0}}, sums, (int)blocks, (int)n);
}

void feature_mlp_backward(real *dqkv, const FeatureMlpGradients *d, const real *dphi, const real *phi, const real *qkv,
                          const FeatureMlp *map, const FeatureShape *shape) {
    const float *w1 = map->w1, *w2 = map->w2;
    size_t n = (size_t)shape->B * shape->N;
    int H = shape->H, D = shape->D, E = map->E, F = shape->F;
    if (!map->per_head) {
        backward(dqkv, d->w1, d->w2, d->b2, dphi, phi, qkv, w1, w2, shape_of(n, H, D, E, F));
        return;
    }
    size_t n1 = (size_t)E * D, n2 = (size_t)F * 2 * E;
    for (int h = 0; h < H; h++) {
        size_t z = (size_t)h * D, at = (size_t)h * F;
        backward(dqkv + z, d->w1 ? d->w1 + h * n1 : NULL, d->w2 + h * n2, d->b2 + at, dphi + at, phi + at, qkv + z,
                 w1 + h * n1, w2 + h * n2, head_shape(n, H, D, E, F));
    }
}
