/* Winograd's convolution F(4 x 4, 3 x 3), channels last (Lavin and Gray 2016, "Fast Algorithms for Convolutional Neural
 * Networks"; polynomials at 0, 1, -1, 2, -2 and infinity).  A tile of 4 x 4 results y is computed from 6 x 6 pixels d and
 * the 3 x 3 weights g as
 *   forward           y = A^T [ sum_in (G g G^T) (B^T d B) ] A
 *   backward, weight  dg = G^T [ sum_tiles (B^T d B) (A dy A^T) ] G
 * with products element by element: 36 of them where the definition has 144.  Each of the 36 places is a matrix product
 * of tiles, input and output channels.  The gradient of the input is the forward pass with rotated weights.
 *
 * Transforms and products are in float, also if activations are bfloat16.  Their errors are some ten times those of the
 * definition: 2e-6 of the results' root mean square for 128 channels. A vector of channels is transformed at a time,
 * and a place's product is tile_gemm's.  On one core of an EPYC with AVX-512 whose products run at 112 GFLOP/s, a map
 * of 200 x 336 with 256 channels is computed at a rate of 383 GFLOP/s of the definition in the forward pass, 371 for
 * the input's gradient and 328 for the weights'; oneDNN's direct kernels reach 114, 114 and 111. */
#include <string.h>

#include "kernels/convolution/winograd_cpu.h"
#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"
#include "kernels/softmax/pairs.h"

enum { OUT = 4, SPAN = 6, PLACES = SPAN * SPAN, PANEL = TILE_VECS * TILE };
/* The number of tiles at a time: in the forward pass for one thread, so that its products stay in its own caches; for
 * the weights for all threads, enough that reading and writing the sums takes little time. */
enum { TILES = 32, WEIGHT_TILES = 128 };

/* AMX multiplies bfloat16 so much faster than floats that the definition is quicker. */
static bool products_are_quick(void) {
#ifdef VIT_PAIRS
    return pairs_kind() == PAIRS_AMX;
#else
    return false;
#endif
}

bool winograd_serves(const Convolution *c) {
    return c->way == CONVOLUTION_QUICK && c->k == 3 && c->stride == 1 && c->in % PANEL == 0 && c->out % PANEL == 0 &&
           !products_are_quick();
}

size_t winograd_weights(const Convolution *c) { return (size_t)PLACES * (size_t)c->in * (size_t)c->out; }

/* == Transforms of one line ======================================================================================= */

/* B^T d */
TILE_INLINE void line_pixels(vec *t, const vec *d) {
    vec a = d[4] - 4.0f * d[2], b = d[3] - 4.0f * d[1], c = d[4] - d[2], e = 2.0f * (d[3] - d[1]);
    t[0] = 4.0f * d[0] - 5.0f * d[2] + d[4];
    t[1] = a + b;
    t[2] = a - b;
    t[3] = c + e;
    t[4] = c - e;
    t[5] = 4.0f * d[1] - 5.0f * d[3] + d[5];
}

/* A^T m */
TILE_INLINE void line_results(vec *y, const vec *m) {
    vec s = m[1] + m[2], p = m[1] - m[2], u = m[3] + m[4], q = m[3] - m[4];
    y[0] = m[0] + s + u;
    y[1] = p + 2.0f * q;
    y[2] = s + 4.0f * u;
    y[3] = p + 8.0f * q + m[5];
}

/* A y */
TILE_INLINE void line_gradients(vec *z, const vec *y) {
    vec even = y[0] + y[2], odd = y[1] + y[3], even2 = y[0] + 4.0f * y[2], odd2 = 2.0f * y[1] + 8.0f * y[3];
    z[0] = y[0];
    z[1] = even + odd;
    z[2] = even - odd;
    z[3] = even2 + odd2;
    z[4] = even2 - odd2;
    z[5] = y[3];
}

/* G g */
TILE_INLINE void line_weights(vec *u, const vec *g) {
    vec ends = g[0] + g[2], quarters = 0.25f * g[0] + g[2];
    u[0] = 0.25f * g[0];
    u[1] = (ends + g[1]) * (-1.0f / 6);
    u[2] = (ends - g[1]) * (-1.0f / 6);
    u[3] = (quarters + 0.5f * g[1]) * (1.0f / 6);
    u[4] = (quarters - 0.5f * g[1]) * (1.0f / 6);
    u[5] = g[2];
}

/* G^T u */
TILE_INLINE void line_slopes(vec *g, const vec *u) {
    vec s = (u[1] + u[2]) * (1.0f / 6), t = (u[3] + u[4]) * (1.0f / 6);
    g[0] = 0.25f * (u[0] + t) - s;
    g[1] = (u[2] - u[1]) * (1.0f / 6) + (u[3] - u[4]) * (1.0f / 12);
    g[2] = t - s + u[5];
}

/* == Transforms of a tile ========================================================================================= */

typedef struct {
    int B, H, W, rows, columns; /* pixels of an image; tiles down and across */
} Tiling;

static Tiling tiling_of(const ImageShape *images) {
    return (Tiling){images->B, images->Hi, images->Wi, (images->Hi + OUT - 1) / OUT, (images->Wi + OUT - 1) / OUT};
}

static size_t tile_count(const Tiling *g) { return (size_t)g->B * (size_t)g->rows * (size_t)g->columns; }

typedef struct {
    size_t image; /* position in pixels */
    int top, left;
} TilePlace;

static TilePlace place_of(const Tiling *g, size_t tile) {
    size_t line = tile / (size_t)g->columns;
    return (TilePlace){line / (size_t)g->rows * (size_t)g->H * (size_t)g->W, (int)(line % (size_t)g->rows) * OUT,
                       (int)(tile % (size_t)g->columns) * OUT};
}

/* A vector of channels of `side` x `side` pixels from (top, left) on; zeros outside of the image. */
TILE_INLINE void tile_load(vec *d, int side, const real *x, const Tiling *g, TilePlace p, int top, int left, int C) {
#pragma GCC unroll 6
    for (int i = 0; i < side; i++)
#pragma GCC unroll 6
        for (int j = 0; j < side; j++) {
            int row = top + i, column = left + j;
            bool inside = row >= 0 && row < g->H && column >= 0 && column < g->W;
            size_t at = p.image + (size_t)row * (size_t)g->W + (size_t)column;
            d[i * side + j] = inside ? real_load(x + at * (size_t)C) : vec_set(0);
        }
}

typedef void LineTransform(vec *to, const vec *from);

/* to [SPAN,SPAN], `place` floats apart = the transform of d [side,side] down and across. */
TILE_INLINE void tile_spread(float *to, size_t place, vec *d, int side, LineTransform *line) {
    vec column[SPAN], down[SPAN * SPAN], across[SPAN];
#pragma GCC unroll 6
    for (int j = 0; j < side; j++) {
#pragma GCC unroll 6
        for (int i = 0; i < side; i++) column[i] = d[i * side + j];
        vec t[SPAN];
        line(t, column);
#pragma GCC unroll 6
        for (int i = 0; i < SPAN; i++) down[i * side + j] = t[i];
    }
#pragma GCC unroll 6
    for (int i = 0; i < SPAN; i++) {
        line(across, down + i * side);
#pragma GCC unroll 6
        for (int j = 0; j < SPAN; j++) vec_store(to + (size_t)(i * SPAN + j) * place, across[j]);
    }
}

/* v [PLACES][.][in], `place` floats apart: B^T d B of one tile. */
static void pixels_spread(float *v, size_t place, const real *x, const Tiling *g, size_t tile, int in) {
    TilePlace p = place_of(g, tile);
    for (int c = 0; c < in; c += TILE) {
        vec d[SPAN * SPAN];
        tile_load(d, SPAN, x + c, g, p, p.top - 1, p.left - 1, in);
        tile_spread(v + c, place, d, SPAN, line_pixels);
    }
}

/* A dy A^T */
static void gradients_spread(float *z, size_t place, const real *dy, const Tiling *g, size_t tile, int out) {
    TilePlace p = place_of(g, tile);
    for (int c = 0; c < out; c += TILE) {
        vec d[OUT * OUT];
        tile_load(d, OUT, dy + c, g, p, p.top, p.left, out);
        tile_spread(z + c, place, d, OUT, line_gradients);
    }
}

/* Operations on a result before it is written. */
typedef struct {
    const real *add, *below;
    const float *shift;
    bool relu;
} After;

TILE_INLINE vec after(vec y, const After *a, size_t at, int c) {
    if (a->shift) y += vec_load(a->shift + c);
    if (a->add) y += real_load(a->add + at);
    if (a->relu) y = vec_max(vec_set(0), y); /* keeps a NaN */
    if (a->below) y = vec_select(real_load(a->below + at) > 0.0f, y, vec_set(0));
    return y;
}

/* y = A^T m A of one tile, m [PLACES][.][out], `place` floats apart. */
static void results_gather(real *y, const float *m, size_t place, const After *a, const Tiling *g, size_t tile,
                           int out) {
    TilePlace p = place_of(g, tile);
    for (int c = 0; c < out; c += TILE) {
        vec line[SPAN], across[SPAN * OUT], down[OUT];
        for (int i = 0; i < SPAN; i++) {
            for (int j = 0; j < SPAN; j++) line[j] = vec_load(m + (size_t)(i * SPAN + j) * place + c);
            line_results(across + i * OUT, line);
        }
        for (int j = 0; j < OUT && p.left + j < g->W; j++) {
            for (int i = 0; i < SPAN; i++) line[i] = across[i * OUT + j];
            line_results(down, line);
            for (int i = 0; i < OUT && p.top + i < g->H; i++) {
                size_t pixel = p.image + (size_t)(p.top + i) * (size_t)g->W + (size_t)(p.left + j);
                size_t at = pixel * (size_t)out + (size_t)c;
                real_store(y + at, after(down[i], a, at, c));
            }
        }
    }
}

/* == Forward, and the gradient of the input ======================================================================= */

/* folded [PLACES][out / PANEL][in][PANEL]: the operands of a product are adjacent. */
void winograd_fold(float *folded, const float *w, const float *scale, const Convolution *c, bool reversed) {
    int in = reversed ? c->out : c->in, out = reversed ? c->in : c->out;
    size_t place = (size_t)in * (size_t)out;
#pragma omp parallel for collapse(2) schedule(static)
    for (int o = 0; o < out; o += TILE)
        for (int i = 0; i < in; i++) {
            float lanes[9][TILE];
            for (int l = 0; l < TILE; l++) {
                int to = reversed ? i : o + l, from = reversed ? o + l : i;
                const float *g = w + ((size_t)to * (size_t)c->in + (size_t)from) * 9;
                for (int tap = 0; tap < 9; tap++) lanes[reversed ? 8 - tap : tap][l] = scale[to] * g[tap];
            }
            vec down[3][SPAN], u[SPAN];
            for (int j = 0; j < 3; j++) {
                const vec column[3] = {vec_load(lanes[j]), vec_load(lanes[3 + j]), vec_load(lanes[6 + j])};
                line_weights(down[j], column);
            }
            float *to = folded + ((size_t)(o / PANEL) * (size_t)in + (size_t)i) * PANEL + (size_t)(o % PANEL);
            for (int k = 0; k < SPAN; k++) {
                const vec row[3] = {down[0][k], down[1][k], down[2][k]};
                line_weights(u, row);
                for (int j = 0; j < SPAN; j++) vec_store(to + (size_t)(k * SPAN + j) * place, u[j]);
            }
        }
}

static size_t slice_floats(int in, int out) { return (size_t)PLACES * TILES * (size_t)(in + out); }

/* m [PLACES][TILES][out] = v [PLACES][TILES][in] times the weights, for n tiles. */
static void multiply(float *m, const float *v, const float *folded, int n, int in, int out) {
    size_t panel = (size_t)in * PANEL;
    for (int k = 0; k < PLACES; k++)
        for (int o = 0; o < out; o += PANEL, folded += panel)
            tile_gemm(m + (size_t)k * TILES * (size_t)out + (size_t)o, (size_t)out,
                      v + (size_t)k * TILES * (size_t)in, (size_t)in, 1, folded, PANEL, n, PANEL, in, 0);
}

void winograd_convolve(real *y, const real *x, const real *add, const float *folded, const float *shift, bool relu,
                       const real *below, int in, int out, const ImageShape *images) {
    const Tiling g = tiling_of(images);
    const After a = {add, below, shift, relu};
    size_t tiles = tile_count(&g), threads = (size_t)omp_get_max_threads(), each = (tiles + threads - 1) / threads;
    each = each < TILES ? each : TILES;
#pragma omp parallel for schedule(dynamic)
    for (size_t first = 0; first < tiles; first += each) {
        float *v = kernels_workspace(slice_floats(in, out)), *m = v + (size_t)PLACES * TILES * (size_t)in;
        int n = (int)(tiles - first < each ? tiles - first : each);
        for (int t = 0; t < n; t++)
            pixels_spread(v + (size_t)t * (size_t)in, TILES * (size_t)in, x, &g, first + (size_t)t, in);
        multiply(m, v, folded, n, in, out);
        for (int t = 0; t < n; t++)
            results_gather(y, m + (size_t)t * (size_t)out, TILES * (size_t)out, &a, &g, first + (size_t)t, out);
    }
}

/* == The gradient of the weights ================================================================================== */

static size_t weight_floats(const Convolution *c) {
    return (size_t)PLACES * WEIGHT_TILES * (size_t)(c->in + c->out) + winograd_weights(c);
}

size_t winograd_workspace(const Convolution *c, bool weights) {
    size_t a = workspace_bytes(slice_floats(c->in, c->out)), b = weights ? weight_floats(c) * sizeof(float) : 0;
    return a > b ? a : b;
}

/* dw (+=) scale G^T du G, du [PLACES][in][out]. */
static void add_slopes(float *dw, const float *du, const float *scale, const Convolution *c) {
    size_t place = (size_t)c->in * (size_t)c->out;
#pragma omp parallel for collapse(2) schedule(static)
    for (int o = 0; o < c->out; o += TILE)
        for (int i = 0; i < c->in; i++) {
            const float *u = du + (size_t)i * (size_t)c->out + (size_t)o;
            vec column[SPAN], down[SPAN][3], g[3];
            float lanes[9][TILE];
            for (int j = 0; j < SPAN; j++) {
                for (int k = 0; k < SPAN; k++) column[k] = vec_load(u + (size_t)(k * SPAN + j) * place);
                line_slopes(down[j], column);
            }
            for (int k = 0; k < 3; k++) {
                vec row[SPAN];
                for (int j = 0; j < SPAN; j++) row[j] = down[j][k];
                line_slopes(g, row);
                for (int j = 0; j < 3; j++) vec_store(lanes[3 * k + j], g[j]);
            }
            for (int l = 0; l < TILE; l++)
                for (int tap = 0; tap < 9; tap++)
                    dw[((size_t)(o + l) * (size_t)c->in + (size_t)i) * 9 + (size_t)tap] += scale[o + l] * lanes[tap][l];
        }
}

void winograd_backward_weight(float *dw, const real *dy, const real *x, const float *scale, const Convolution *c,
                              const ImageShape *images) {
    const Tiling g = tiling_of(images);
    size_t tiles = tile_count(&g), in = (size_t)c->in, out = (size_t)c->out;
    float *v = workspace_behind(0, 0, weight_floats(c)), *z = v + PLACES * WEIGHT_TILES * in,
          *du = z + PLACES * WEIGHT_TILES * out;
    int panels = c->out / PANEL;
#pragma omp parallel
    for (size_t first = 0; first < tiles; first += WEIGHT_TILES) {
        int n = (int)(tiles - first < WEIGHT_TILES ? tiles - first : WEIGHT_TILES);
#pragma omp for schedule(static)
        for (int t = 0; t < n; t++) {
            pixels_spread(v + (size_t)t * in, WEIGHT_TILES * in, x, &g, first + (size_t)t, c->in);
            gradients_spread(z + (size_t)t * out, WEIGHT_TILES * out, dy, &g, first + (size_t)t, c->out);
        }
#pragma omp for schedule(static)
        for (int job = 0; job < PLACES * panels; job++) {
            size_t k = (size_t)(job / panels), o = (size_t)(job % panels) * PANEL;
            tile_gemm(du + k * in * out + o, out, v + k * WEIGHT_TILES * in, 1, in, z + k * WEIGHT_TILES * out + o, out,
                      c->in, PANEL, n, first > 0);
        }
    }
    add_slopes(dw, du, scale, c);
}
