/* Softmax attention within windows; the formulas are those of kernels/softmax/window_attention.c.  The places of a tile
 * (head_tiles.cuh) are queries for y, dq and dtable, keys for dk, dv and dpad.  In the backward pass a block has a head
 * and every n-th tile; its sums over them, in which each element belongs to one thread, are in workspace, and add_parts
 * adds the blocks' sums. */
#include "kernels/cuda/fragments.cuh"
#include "kernels/softmax/head_tiles.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/softmax/attention_shape.h"
#include "kernels/softmax/softmax_attention.h"
#include "kernels/tokens/grid.h"
#include "kernels/tokens/windows.h"

/* Largest number of blocks of a head in the backward pass, and of floats that all blocks have in workspace, unless one
 * needs more. */
static const size_t part_blocks_most = 256, part_floats_most = 1 << 22;

/* Regions of queries without a token, and of positions beyond the window's places: both are left out. */
enum { NO_QUERY = -1, NO_KEY = -2 };

struct WindowAttentionShape {
    WindowShape windows;
    int N, H, D, n, entries; /* places of a window, entries of a head's table */
    unsigned tiles, count;   /* of a window; of all images */
    float scale;
    const float *pad, *table;
};

static WindowAttentionShape shape_of(const WindowShape *w, const AttentionShape *a, const WindowParameters *learned) {
    Grid sides = window_sides(w);
    int n = grid_tokens(sides);
    unsigned tiles = (unsigned)ceil_div(n, ROWS);
    unsigned all_tiles = tiles * (unsigned)grid_tokens(window_counts(w)) * a->B;
    return {*w, a->N, a->H, a->D, n, grid_tokens(grid_offsets(sides)), tiles, all_tiles, 1 / sqrtf((float)a->D),
            learned->pad, learned->table};
}

/* A tile of a window's places for a head: offsets of the image's first row in qkv, y and lse. */
struct WindowAttentionTile {
    size_t qkv, y, lse, M;
    int window, first, head;
};

DEVICE WindowAttentionTile tile_of(unsigned tile, int head, const WindowAttentionShape &s) {
    Grid counts = window_counts(&s.windows);
    unsigned window = tile / s.tiles, windows = (unsigned)grid_tokens(counts);
    size_t image = window / windows, M = (size_t)s.H * s.D, c = (size_t)head * s.D;
    return {image * s.N * 3 * M + c, image * s.N * M + c, (image * s.H + head) * s.N, M, (int)(window % windows),
            (int)(tile % s.tiles) * ROWS, head};
}

DEVICE void load_places(WindowPlace *places, int count, bool queries, int window, int first,
                        const WindowAttentionShape &s) {
    for (int i = threadIdx.x; i < count; i += THREADS) {
        WindowPlace place = {-1, queries ? NO_QUERY : NO_KEY};
        if (first + i < s.n) place = window_place(&s.windows, window, first + i);
        if (queries && place.token < 0) place.region = NO_QUERY;
        places[i] = place;
    }
}

/* tile [rows,D] = rows of the head, those of pad for places without a token. */
DEVICE void load_tile(float *tile, int rows, const real *head, size_t row, const float *pad, const WindowPlace *places,
                      int D) {
    for (int at = threadIdx.x; at < rows * D; at += THREADS) {
        int token = places[at / D].token;
        tile[at / D * odd_ld(D) + at % D] = token >= 0 ? to_float(head[token * row + at % D]) : pad ? pad[at % D] : 0;
    }
}

/* k and v of keys. */
DEVICE void load_keys(float *k, float *v, int rows, const real *head, const WindowPlace *places,
                      const WindowAttentionTile &at, const WindowAttentionShape &s) {
    const float *pad = s.pad ? s.pad + (size_t)at.head * s.D : NULL;
    load_tile(k, rows, head + at.M, 3 * at.M, pad ? pad + at.M : NULL, places, s.D);
    load_tile(v, rows, head + 2 * at.M, 3 * at.M, pad ? pad + 2 * at.M : NULL, places, s.D);
}

/* The score of places i and j, a query's and a key's in these regions, from the product q.k. */
DEVICE float score(float product, int i, int j, int region, int key_region, int head, const WindowAttentionShape &s) {
    if (region == NO_QUERY || key_region == NO_KEY) return -INFINITY;
    return s.scale * product + s.table[window_offset(&s.windows, i, j) * s.H + head] -
           (region == key_region ? 0 : WINDOW_APART);
}

/* The head's rows of the places with a token = scale times sum. */
DEVICE void put_rows(real *head, size_t row, const float *sum, float scale, const WindowPlace *places, int D) {
    for (int at = threadIdx.x; at < ROWS * D; at += THREADS)
        if (places[at / D].token >= 0)
            head[places[at / D].token * row + at % D] = to_real(scale * sum[at / D * odd_ld(D) + at % D]);
}

/* == Forward ====================================================================================================== */

/* p becomes the scores of queries first.. and keys j... */
DEVICE void see(float *p, const WindowPlace *queries, const WindowPlace *keys, int j, const WindowAttentionTile &at,
                const WindowAttentionShape &s) {
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS) {
        int row = i / COLUMNS, column = i % COLUMNS;
        p[i] = score(p[i], at.first + row, j + column, queries[row].region, keys[column].region, at.head, s);
    }
}

/* Blocks: tile, then head.  Each warp has the running softmax of its rows. */
__global__ void __launch_bounds__(THREADS)
    window_forward_kernel(real *y, float *lse, const real *qkv, WindowAttentionShape s) {
    int ld = odd_ld(s.D);
    SHARED(float, q);                                                /* [ROWS,D] */
    float *sum = q + ROWS * ld, *k = sum + ROWS * ld;                /* [ROWS,D], [COLUMNS,D] */
    float *v = k + COLUMNS * ld, *p = v + COLUMNS * ld;              /* [COLUMNS,D], [ROWS,COLUMNS] */
    float *factor = p + ROWS * COLUMNS;                              /* [ROWS] */
    WindowPlace *queries = reinterpret_cast<WindowPlace *>(factor + ROWS), *keys = queries + ROWS;
    WindowAttentionTile at = tile_of(blockIdx.x / s.H, (int)(blockIdx.x % s.H), s);
    const real *head = qkv + at.qkv;
    float most[OWNED], total[OWNED];
    for (int i = 0; i < OWNED; i++) most[i] = -INFINITY, total[i] = 0;
    load_places(queries, ROWS, true, at.window, at.first, s);
    block_sync();
    load_tile(q, ROWS, head, 3 * at.M, NULL, queries, s.D);
    for (int i = threadIdx.x; i < ROWS * ld; i += THREADS) sum[i] = 0;
    for (int j = 0; j < s.n; j += COLUMNS) {
        load_places(keys, COLUMNS, false, at.window, j, s);
        block_sync();
        load_keys(k, v, COLUMNS, head, keys, at, s);
        block_sync();
        products(p, q, k, s.D);
        block_sync();
        see(p, queries, keys, j, at, s);
        block_sync();
        for (int i = 0; i < OWNED; i++) {
            int row = warp_id() + i * WARPS;
            float *x = p + row * COLUMNS + lane_id(), largest = fmaxf(most[i], warp_max(*x)), shrink = 1;
            if (largest > -INFINITY) {
                shrink = expf(most[i] - largest);
                *x = expf(*x - largest);
            } else *x = 0;
            total[i] = total[i] * shrink + warp_sum(*x);
            most[i] = largest;
            if (lane_id() == 0) factor[row] = shrink;
        }
        block_sync();
        for (int i = threadIdx.x; i < ROWS * ld; i += THREADS) sum[i] *= factor[i / ld];
        block_sync();
        accumulate(sum, p, v, s.D);
        block_sync();
    }
    for (int i = 0; i < OWNED; i++) {
        int row = warp_id() + i * WARPS;
        if (lane_id()) continue;
        factor[row] = 1 / total[i];
        if (queries[row].token >= 0) lse[at.lse + queries[row].token] = most[i] + logf(total[i]);
    }
    block_sync();
    for (int i = threadIdx.x; i < ROWS * ld; i += THREADS) sum[i] *= factor[i / ld];
    block_sync();
    put_rows(y + at.y, at.M, sum, 1, queries, s.D);
}

/* == Backward ===================================================================================================== */

/* delta = dy.y and the saved lse of the rows with a token. */
DEVICE void load_sums(float *delta, float *sums, int rows, const real *dy, const real *y, const float *lse,
                      const WindowPlace *places, const WindowAttentionTile &at, int D) {
    for (int row = warp_id(); row < rows; row += WARPS) {
        int token = places[row].token;
        float sum = 0;
        if (token < 0) continue;
        for (int c = lane_id(); c < D; c += WARP)
            sum += to_float(dy[at.y + token * at.M + c]) * to_float(y[at.y + token * at.M + c]);
        sum = warp_sum(sum);
        if (lane_id() == 0) delta[row] = sum, sums[row] = lse[at.lse + token];
    }
}

/* A block's parts of dtable += the sums of ds [ROWS,COLUMNS] over pairs of equal offset, queries first.., keys j... */
DEVICE void add_offsets(float *part, const float *ds, int j, const WindowAttentionTile &at,
                        const WindowAttentionShape &s) {
    Grid sides = window_sides(&s.windows);
    int wt = sides.frames, wh = sides.rows, ww = sides.columns;
    for (int offset = threadIdx.x; offset < s.entries; offset += THREADS) {
        GridPlace away = grid_place(grid_offsets(sides), offset);
        float sum = 0;
        for (int row = 0; row < ROWS && at.first + row < s.n; row++) {
            GridPlace query = grid_place(sides, at.first + row);
            int t = query.t - away.t + wt - 1, y = query.y - away.y + wh - 1, x = query.x - away.x + ww - 1;
            int column = (t * wh + y) * ww + x - j;
            if (t < 0 || t >= wt || y < 0 || y >= wh || x < 0 || x >= ww || column < 0 || column >= COLUMNS) continue;
            sum += ds[row * COLUMNS + column];
        }
        part[offset * s.H + at.head] += sum;
    }
}

/* dq, and parts [gridDim / H][entries,H] (=) of dtable. */
__global__ void __launch_bounds__(THREADS)
    window_queries_kernel(real *dqkv, float *parts, const real *dy, const real *y, const float *lse, const real *qkv,
                          WindowAttentionShape s) {
    int ld = odd_ld(s.D);
    SHARED(float, q);                                                /* [ROWS,D] */
    float *g = q + ROWS * ld, *sum = g + ROWS * ld;                  /* [ROWS,D] */
    float *k = sum + ROWS * ld, *v = k + COLUMNS * ld;               /* [COLUMNS,D] */
    float *p = v + COLUMNS * ld, *t = p + ROWS * COLUMNS;            /* [ROWS,COLUMNS] */
    float *delta = t + ROWS * COLUMNS, *sums = delta + ROWS;         /* [ROWS] */
    WindowPlace *queries = reinterpret_cast<WindowPlace *>(sums + ROWS), *keys = queries + ROWS;
    int h = (int)(blockIdx.x % s.H);
    unsigned block = blockIdx.x / s.H, blocks = gridDim.x / s.H;
    float *part = parts + (size_t)block * s.entries * s.H;
    for (int offset = threadIdx.x; offset < s.entries; offset += THREADS) part[offset * s.H + h] = 0;
    for (unsigned tile = block; tile < s.count; tile += blocks) {
        WindowAttentionTile at = tile_of(tile, h, s);
        const real *head = qkv + at.qkv;
        load_places(queries, ROWS, true, at.window, at.first, s);
        block_sync();
        load_tile(q, ROWS, head, 3 * at.M, NULL, queries, s.D);
        load_tile(g, ROWS, dy + at.y, at.M, NULL, queries, s.D);
        load_sums(delta, sums, ROWS, dy, y, lse, queries, at, s.D);
        for (int i = threadIdx.x; i < ROWS * ld; i += THREADS) sum[i] = 0;
        for (int j = 0; j < s.n; j += COLUMNS) {
            load_places(keys, COLUMNS, false, at.window, j, s);
            block_sync();
            load_keys(k, v, COLUMNS, head, keys, at, s);
            block_sync();
            products(p, q, k, s.D);
            products(t, g, v, s.D);
            block_sync();
            see(p, queries, keys, j, at, s);
            block_sync();
            for (int i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS) {
                int row = i / COLUMNS;
                t[i] = p[i] > -INFINITY ? expf(p[i] - sums[row]) * (t[i] - delta[row]) : 0;
            }
            block_sync();
            accumulate(sum, t, k, s.D);
            add_offsets(part, t, j, at, s);
            block_sync();
        }
        put_rows(dqkv + at.qkv, 3 * at.M, sum, s.scale, queries, s.D);
        block_sync();
    }
}

/* dk and dv, and parts [gridDim / H][2,M] (=) of dpad's k and v. */
__global__ void __launch_bounds__(THREADS)
    window_keys_kernel(real *dqkv, float *parts, const real *dy, const real *y, const float *lse, const real *qkv,
                       WindowAttentionShape s) {
    int ld = odd_ld(s.D);
    SHARED(float, k);                                                /* [ROWS,D] */
    float *v = k + ROWS * ld, *dk = v + ROWS * ld;                   /* [ROWS,D] */
    float *dv = dk + ROWS * ld, *q = dv + ROWS * ld;                 /* [ROWS,D], [COLUMNS,D] */
    float *g = q + COLUMNS * ld, *p = g + COLUMNS * ld;              /* [COLUMNS,D], [ROWS,COLUMNS] */
    float *t = p + ROWS * COLUMNS, *delta = t + ROWS * COLUMNS;      /* [ROWS,COLUMNS], [COLUMNS] */
    float *sums = delta + COLUMNS;                                   /* [COLUMNS] */
    WindowPlace *keys = reinterpret_cast<WindowPlace *>(sums + COLUMNS), *queries = keys + ROWS;
    int h = (int)(blockIdx.x % s.H);
    unsigned block = blockIdx.x / s.H, blocks = gridDim.x / s.H;
    size_t M = (size_t)s.H * s.D;
    float *part = parts + block * 2 * M + (size_t)h * s.D;
    for (int c = threadIdx.x; c < s.D; c += THREADS) part[c] = part[M + c] = 0;
    for (unsigned tile = block; tile < s.count; tile += blocks) {
        WindowAttentionTile at = tile_of(tile, h, s);
        const real *head = qkv + at.qkv;
        load_places(keys, ROWS, false, at.window, at.first, s);
        block_sync();
        load_keys(k, v, ROWS, head, keys, at, s);
        for (int i = threadIdx.x; i < ROWS * ld; i += THREADS) dk[i] = dv[i] = 0;
        for (int j = 0; j < s.n; j += COLUMNS) {
            load_places(queries, COLUMNS, true, at.window, j, s);
            block_sync();
            load_tile(q, COLUMNS, head, 3 * at.M, NULL, queries, s.D);
            load_tile(g, COLUMNS, dy + at.y, at.M, NULL, queries, s.D);
            load_sums(delta, sums, COLUMNS, dy, y, lse, queries, at, s.D);
            block_sync();
            products(p, k, q, s.D);
            products(t, v, g, s.D);
            block_sync();
            for (int i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS) {
                int row = i / COLUMNS, column = i % COLUMNS;
                float x = score(p[i], j + column, at.first + row, queries[column].region, keys[row].region, h, s);
                float weight = x > -INFINITY ? expf(x - sums[column]) : 0;
                p[i] = weight;
                t[i] = weight > 0 ? weight * (t[i] - delta[column]) : 0;
            }
            block_sync();
            accumulate(dv, p, g, s.D);
            accumulate(dk, t, q, s.D);
            block_sync();
        }
        put_rows(dqkv + at.qkv + M, 3 * M, dk, s.scale, keys, s.D);
        put_rows(dqkv + at.qkv + 2 * M, 3 * M, dv, 1, keys, s.D);
        for (int c = threadIdx.x; c < s.D; c += THREADS)
            for (int row = 0; row < ROWS && at.first + row < s.n; row++) {
                if (keys[row].token >= 0) continue;
                part[c] += s.scale * dk[row * ld + c];
                part[M + c] += dv[row * ld + c];
            }
        block_sync();
    }
}

/* == Launches ===================================================================================================== */

/* The floats of a block of each head in workspace, and the number of such blocks. */
static size_t part_floats(const WindowAttentionShape &s) { return ((size_t)s.entries + 2 * s.D) * s.H; }
static unsigned part_blocks(const WindowAttentionShape &s) {
    size_t most = part_floats_most / part_floats(s);
    return blocks_for(s.count, 1, most < 1 ? 1 : most < part_blocks_most ? most : part_blocks_most);
}

size_t window_attention_workspace(const WindowShape *windows, const AttentionShape *shape) {
    const WindowParameters none = {NULL, NULL};
    WindowAttentionShape s = shape_of(windows, shape, &none);
    return part_blocks(s) * part_floats(s) * sizeof(float);
}

void window_attention_forward(real *y, float *lse, const real *qkv, const WindowParameters *learned,
                              const WindowShape *windows, const AttentionShape *shape) {
    WindowAttentionShape s = shape_of(windows, shape, learned);
    size_t bytes = tiles_bytes(2, 2, 1, s.D) + ROWS * sizeof(float) + (ROWS + COLUMNS) * sizeof(WindowPlace);
    LAUNCH(window_forward_kernel, s.count * s.H, THREADS, bytes, y, lse, qkv, s);
}

void window_attention_backward(real *dqkv, const WindowGradients *gradients, const real *dy, const real *y,
                               const float *lse, const real *qkv, const WindowParameters *learned,
                               const WindowShape *windows, const AttentionShape *shape) {
    float *dpad = gradients->dpad;
    WindowAttentionShape s = shape_of(windows, shape, learned);
    unsigned blocks = part_blocks(s);
    float *parts = static_cast<float *>(kernels_workspace(blocks * part_floats(s) * sizeof(float)));
    float *pads = parts + (size_t)blocks * s.entries * s.H;
    size_t lists = 2 * COLUMNS * sizeof(float) + (ROWS + COLUMNS) * sizeof(WindowPlace), M = (size_t)s.H * s.D;
    LAUNCH(window_queries_kernel, blocks * s.H, THREADS, tiles_bytes(3, 2, 2, s.D) + lists, dqkv, parts, dy, y, lse,
           qkv, s);
    LAUNCH(window_keys_kernel, blocks * s.H, THREADS, tiles_bytes(4, 2, 2, s.D) + lists, dqkv, pads, dy, y, lse, qkv,
           s);
    add_parts(gradients->dtable, NULL, parts, (int)blocks, s.entries * s.H);
    if (dpad) add_parts(dpad + M, NULL, pads, (int)blocks, (int)(2 * M));
}
