/* Gated positional attention: a head's weights P = rows x columns are the product of a matrix for each axis, so P v is
 * two short products, along the lines of the grid and across them, whose cost grows with Hg + Wg instead of N.  For
 * clips P = rows x columns x frames, and a third product goes from frame to frame.
 *   forward   rows[y,y'] = softmax_y'(w1 (y'-y) + w2 (y'-y)^2),  columns[x,x'] = softmax_x'(w0 (x'-x) + w2 (x'-x)^2)
 *             p[y,x] = sum_y' rows[y,y'] sum_x' columns[x,x'] v[y',x'],  y = (1-g) content + g p
 *   backward  s[y,x'] = sum_x columns[x,x'] dy[y,x],  u[y,x'] = sum_y' rows[y,y'] v[y',x'],
 *             dv[y',x'] = (1-g) dv[y',x'] + g sum_y rows[y,y'] s[y,x'],  dq and dk are scaled by (1-g);
 *             drows[y,y'] = sum_x s[y,x].v[y',x],  dcolumns[x,x'] = sum_y dy[y,x].u[y,x'], both still without g;
 *             of clips with frames v in place of v, dframes[t,t'] = sum of (rows^T s)[t].v[t'], and dv += g frames^T rows^T s
 *   Source: d'Ascoli et al. 2021, section 3, except for the factorisation. */
#include <math.h>
#include <stdbool.h>

#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"
#include "kernels/softmax/position_attention.h"

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* == The weights of an axis ======================================================================================= */

/* p [n,n]: p_ij = softmax_j(slope (j-i) + curve (j-i)^2).  In double, since exponents grow with n^2. */
static void axis_forward(float *p, double slope, double curve, int n) {
    for (int i = 0; i < n; i++, p += n) {
        double most = -INFINITY, sum = 0;
        for (int j = 0; j < n; j++) { /* not fmax: gcc 12 crashes on it when it makes code for arm64 */
            double exponent = (slope + curve * (j - i)) * (j - i);
            most = exponent > most ? exponent : most;
        }
        for (int j = 0; j < n; j++) sum += exp((slope + curve * (j - i)) * (j - i) - most);
        for (int j = 0; j < n; j++) p[j] = (float)(exp((slope + curve * (j - i)) * (j - i) - most) / sum);
    }
}

void position_axes_forward(float *axes, const float *pos_proj, const PositionAttention *shape) {
    int T = shape->grid.frames, Hg = shape->grid.rows, Wg = shape->grid.columns, H = shape->H;
#pragma omp parallel for schedule(static)
    for (int h = 0; h < H; h++) {
        const float *w = pos_proj + position_features(shape->grid) * h;
        float *rows = axes + h * position_axes(shape->grid), *columns = rows + (size_t)Hg * Hg;
        axis_forward(rows, w[1], w[2], Hg);
        axis_forward(columns, w[0], w[2], Wg);
        if (T > 1) axis_forward(columns + (size_t)Wg * Wg, w[3], w[4], T);
    }
}

/* The gradients of slope and curve (+=), and of a factor in front of p as the result; dp [count][n,n] is summed over
 * count, `stride` floats apart. */
static double axis_backward(double *dslope, double *dcurve, const float *dp, size_t stride, int count, const float *p,
                            int n) {
    double total = 0;
    for (int i = 0; i < n; i++) {
        double zeroth = 0, first = 0, second = 0, dfirst = 0, dsecond = 0, dzeroth = 0;
        for (int j = 0; j < n; j++) {
            double sum = 0, weight = p[i * n + j], d = j - i;
            for (int b = 0; b < count; b++) sum += dp[b * stride + (size_t)i * n + j];
            zeroth += weight;
            first += weight * d;
            second += weight * d * d;
            dzeroth += weight * sum;
            dfirst += weight * sum * d;
            dsecond += weight * sum * d * d;
        }
        *dslope += dfirst - dzeroth * first / zeroth;
        *dcurve += dsecond - dzeroth * second / zeroth;
        total += dzeroth;
    }
    return total;
}

void position_axes_backward(float *dpos_proj, float *dgating, const float *daxes, const float *axes,
                            const float *gating, const PositionAttention *shape, int B) {
    int T = shape->grid.frames, Hg = shape->grid.rows, Wg = shape->grid.columns, H = shape->H;
    int features = position_features(shape->grid);
    size_t size = position_axes(shape->grid), rows = (size_t)Hg * Hg, squares = rows + (size_t)Wg * Wg;
    size_t stride = H * (size + 1);
#pragma omp parallel for schedule(static)
    for (int h = 0; h < H; h++) {
        const float *d = daxes + h * (size + 1), *p = axes + h * size;
        double g = sigmoid(gating[h]), dw[5] = {0}, content = 0;
        double position = axis_backward(&dw[1], &dw[2], d, stride, B, p, Hg);
        axis_backward(&dw[0], &dw[2], d + rows, stride, B, p + rows, Wg);
        if (T > 1) axis_backward(&dw[3], &dw[4], d + squares, stride, B, p + squares, T);
        for (int b = 0; b < B; b++) content += d[b * stride + size];
        for (int i = 0; i < features; i++) dpos_proj[features * h + i] += (float)(g * dw[i]);
        dgating[h] += (float)(g * sigmoid(-gating[h]) * (position - content));
    }
}

/* == One head ===================================================================================================== */

/* A head's tokens are copied to [T,Hg,Wg,Dp] with zeros in the padding. */
typedef struct {
    int T, Hg, Wg, N, D, Dp;
    size_t line, frame; /* floats of one: Wg Dp, Hg Wg Dp */
    size_t all;
    size_t M;
    size_t columns, frames, axes; /* offsets of those weights, and their total number */
} PositionSizes;

static PositionSizes sizes_of(const PositionAttention *shape) {
    int T = shape->grid.frames, Hg = shape->grid.rows, Wg = shape->grid.columns, H = shape->H, D = shape->D;
    int Dp = tile_round_up(D);
    size_t line = (size_t)Wg * Dp, frame = Hg * line, columns = (size_t)Hg * Hg;
    return (PositionSizes){T,
                           Hg,
                           Wg,
                           T * Hg * Wg,
                           D,
                           Dp,
                           line,
                           frame,
                           T * frame,
                           (size_t)H * D,
                           columns,
                           columns + (size_t)Wg * Wg,
                           position_axes(shape->grid)};
}

static size_t work_floats(PositionSizes s) { return (s.T > 1 ? 5 : 4) * s.all; }

size_t position_attention_workspace(const PositionAttention *shape) {
    return workspace_bytes(work_floats(sizes_of(shape)));
}

/* to[y,x] = sum_x' a[x,x'] from[y,x'], or with a transposed. */
static void along_lines(float *to, const float *a, bool transposed, const float *from, PositionSizes s) {
    size_t row = transposed ? 1 : s.Wg, column = transposed ? s.Wg : 1;
    for (int y = 0; y < s.T * s.Hg; y++)
        tile_gemm(to + y * s.line, s.Dp, a, row, column, from + y * s.line, s.Dp, s.Wg, s.Dp, s.Wg, 0);
}

/* to[y,x] = sum_y' a[y,y'] from[y',x], or with a transposed. */
static void across_lines(float *to, const float *a, bool transposed, const float *from, PositionSizes s) {
    for (int t = 0; t < s.T; t++)
        tile_gemm(to + t * s.frame, s.line, a, transposed ? 1 : s.Hg, transposed ? s.Hg : 1, from + t * s.frame, s.line,
                  s.Hg, (int)s.line, s.Hg, 0);
}

/* to[t] = sum_t' a[t,t'] from[t'], or with a transposed. */
static void over_frames(float *to, const float *a, bool transposed, const float *from, PositionSizes s) {
    tile_gemm(to, s.frame, a, transposed ? 1 : s.T, transposed ? s.T : 1, from, s.frame, s.T, (int)s.frame, s.T, 0);
}

static void forward_head(real *y, const real *content, const real *v, const float *axes, float gating,
                         PositionSizes s) {
    float *next = kernels_workspace(work_floats(s));
    float *a = workspace_take(&next, s.all), *b = workspace_take(&next, s.all);
    float g = (float)sigmoid(gating), keep = (float)sigmoid(-gating);
    rows_gather(a, s.Dp, v, 3 * s.M, 1, s.N, s.D);
    along_lines(b, axes + s.columns, false, a, s);
    across_lines(a, axes, false, b, s);
    if (s.T > 1) over_frames(b, axes + s.frames, false, a, s);
    const float *position = s.T > 1 ? b : a;
    for (int i = 0; i < s.N; i++)
        for (int j = 0; j < s.D; j += TILE) {
            vec c = real_load_part(content + i * s.M + j, s.D - j);
            real_store_part(y + i * s.M + j, keep * c + g * vec_load(position + (size_t)i * s.Dp + j), s.D - j);
        }
}

void position_attention_forward(real *y, const real *content, const real *qkv, const float *axes, const float *gating,
                                const PositionAttention *shape, int B) {
    PositionSizes s = sizes_of(shape);
    int H = shape->H, D = shape->D;
    size_t image = s.N * s.M, size = s.axes;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            size_t at = b * image + (size_t)h * D;
            forward_head(y + at, content + at, qkv + 3 * b * image + 2 * s.M + (size_t)h * D,
                         axes + h * size, gating[h], s);
        }
}

/* Line l begins l / per * group + l % per * line floats after the first. */
typedef struct {
    int lines, per;
    size_t line, group;
} PositionLines;

/* out [n,n]: out_ij = sum over lines of a_i.b_j, rows of Dp floats `row` apart. */
static void outer_products(float *out, const float *a, const float *b, int n, size_t row, PositionLines lines, int Dp) {
    enum { WIDE = 4 };
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j += WIDE) {
            int wide = n - j < WIDE ? n - j : WIDE;
            vec sum[WIDE] = {{0}};
            for (int l = 0; l < lines.lines; l++)
                for (int c = 0; c < Dp; c += TILE) {
                    size_t at = l / lines.per * lines.group + l % lines.per * lines.line + c;
                    const float *bj = b + at + j * row;
                    vec ai = vec_load(a + at + i * row);
                    if (wide == WIDE)
                        for (int k = 0; k < WIDE; k++) sum[k] += ai * vec_load(bj + k * row);
                    else
                        for (int k = 0; k < wide; k++) sum[k] += ai * vec_load(bj + k * row);
                }
            for (int k = 0; k < wide; k++) out[(size_t)i * n + j + k] = vec_sum(sum[k]);
        }
}

static float product_with(const float *dy, const real *content, PositionSizes s) {
    double sum = 0;
    for (int y = 0; y < s.T * s.Hg; y++) {
        vec line = {0};
        for (int i = y * s.Wg; i < (y + 1) * s.Wg; i++)
            for (int j = 0; j < s.D; j += TILE)
                line += vec_load(dy + (size_t)i * s.Dp + j) * real_load_part(content + i * s.M + j, s.D - j);
        sum += vec_sum(line);
    }
    return (float)sum;
}

static void backward_head(real *dq, float *daxes, const real *dy, const real *content, const real *v, const float *axes,
                          float gating, PositionSizes s) {
    float *next = kernels_workspace(work_floats(s));
    float *vs = workspace_take(&next, s.all), *dys = workspace_take(&next, s.all);
    float *u = workspace_take(&next, s.all), *t = workspace_take(&next, s.all), *seen = vs;
    const float *rows = axes, *columns = axes + s.columns, *frames = axes + s.frames;
    const PositionLines across = {s.T * s.Wg, s.Wg, s.Dp, s.frame};
    float g = (float)sigmoid(gating), keep = (float)sigmoid(-gating);
    rows_gather(vs, s.Dp, v, 3 * s.M, 1, s.N, s.D);
    rows_gather(dys, s.Dp, dy, s.M, 1, s.N, s.D);
    if (s.T > 1) over_frames(seen = workspace_take(&next, s.all), frames, false, vs, s);
    across_lines(u, rows, false, seen, s);
    outer_products(daxes + s.columns, dys, u, s.Wg, s.Dp, (PositionLines){s.T * s.Hg, s.T * s.Hg, s.line, 0}, s.Dp);
    along_lines(t, columns, true, dys, s);
    outer_products(daxes, t, seen, s.Hg, s.line, across, s.Dp);
    daxes[s.axes] = product_with(dys, content, s);
    across_lines(u, rows, true, t, s);
    if (s.T > 1) {
        outer_products(daxes + s.frames, u, vs, s.T, s.frame, (PositionLines){s.Hg * s.Wg, s.Hg * s.Wg, s.Dp, 0}, s.Dp);
        over_frames(t, frames, true, u, s);
    }
    const float *back = s.T > 1 ? t : u;
    for (int i = 0; i < s.N; i++, dq += 3 * s.M)
        for (int j = 0; j < s.D; j += TILE) {
            real *dk = dq + s.M, *dv = dk + s.M;
            vec position = g * vec_load(back + (size_t)i * s.Dp + j);
            real_store_part(dq + j, keep * real_load_part(dq + j, s.D - j), s.D - j);
            real_store_part(dk + j, keep * real_load_part(dk + j, s.D - j), s.D - j);
            real_store_part(dv + j, keep * real_load_part(dv + j, s.D - j) + position, s.D - j);
        }
}

void position_attention_backward(real *dqkv, float *daxes, const real *dy, const real *content, const real *qkv,
                                 const float *axes, const float *gating, const PositionAttention *shape, int B) {
    PositionSizes s = sizes_of(shape);
    int H = shape->H, D = shape->D;
    size_t image = s.N * s.M, size = s.axes;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            size_t at = b * image + (size_t)h * D, at_qkv = 3 * b * image + (size_t)h * D;
            backward_head(dqkv + at_qkv, daxes + ((size_t)b * H + h) * (size + 1), dy + at, content + at,
                          qkv + at_qkv + 2 * s.M, axes + h * size, gating[h], s);
        }
}
