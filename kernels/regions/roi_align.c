/* RoIAlign.  The weight of a sample is a product of one for its row and one for its column, so a cell of the result is
 *   y[i,j]      = sum_(row of bin i) sum_(column of bin j) v_i[row] u_j[column] x[row,column]
 *   dx[row,col] += sum_(bins i that read the row) sum_(bins j that read the column) v_i[row] u_j[col] dy[i,j]
 * where u_j are the weights of bin j's samples, summed for each column and divided by their number: each cell of the
 * map is read once for a bin, however many samples are around it.  Backward divides the maps into tiles, which stay in
 * the second-level cache, and adds the gradients of the RoIs to a tile one after the other. */
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"
#include "kernels/regions/roi_align.h"
#include "kernels/regions/roi_samples.h"

/* Vectors of channels in registers, and half that number; rows and columns of a tile, and its channels at a time. */
enum { VECS = TILE == 16 ? 16 : 8, SIDE = 16, CHANNELS = 256 };

/* == Weights along one side ======================================================================================= */

typedef struct {
    RoiBin *bins;   /* [P] */
    float *weights; /* [cells + ROI_SHARED P] */
} Bins;

static const float *weights_of(const Bins *b, int i) { return b->weights + ROI_SHARED * i; }

static void bins_fill(const Bins *b, const RoiSide *side, int cells, int P) {
    for (int i = 0; i < P; i++) b->bins[i] = roi_bin_fill(b->weights + ROI_SHARED * i, side, i, cells);
}

/* The longest side. */
static int most(const int *cells, int levels) {
    int largest = 1;
    for (int l = 0; l < levels; l++) largest = cells[l] > largest ? cells[l] : largest;
    return largest;
}

static size_t bins_floats(int cells, int P) {
    return workspace_line_up((size_t)cells + ROI_SHARED * (size_t)P) + workspace_line_up(2 * (size_t)P);
}

static Bins bins_take(float **next, int cells, int P) {
    float *weights = workspace_take(next, (size_t)cells + ROI_SHARED * (size_t)P);
    return (Bins){(RoiBin *)(void *)workspace_take(next, 2 * (size_t)P), weights};
}

/* A thread's workspace: the bins down and across, and a tile of gradients. */
static size_t slice_floats(const RoiAlign *s) {
    size_t channels = s->C < CHANNELS ? (size_t)s->C : CHANNELS;
    return bins_floats(most(s->rows, s->levels), s->P) + bins_floats(most(s->columns, s->levels), s->P) +
           workspace_line_up(SIDE * SIDE * channels);
}

size_t roi_align_workspace(const RoiAlign *s) { return workspace_bytes(slice_floats(s)); }

/* == Forward ====================================================================================================== */

/* n vectors of channels of one cell; the last may be incomplete: `left` channels from here on. */
TILE_INLINE void pool(int n, real *y, const real *x, size_t row, size_t column, RoiBin down, const float *v, RoiBin across,
                      const float *u, size_t left) {
    vec sum[VECS];
#pragma GCC unroll 16
    for (int k = 0; k < n; k++) sum[k] = vec_set(0);
    for (int r = down.first; r < down.first + down.count; r++)
        for (int c = across.first; c < across.first + across.count; c++) {
            const real *from = x + (size_t)r * row + (size_t)c * column;
            vec w = vec_set(v[r] * u[c]);
#pragma GCC unroll 16
            for (int k = 0; k < n; k++)
                sum[k] += w * (n == 1 ? real_load_part(from, left) : real_load(from + k * TILE));
        }
#pragma GCC unroll 16
    for (int k = 0; k < n; k++)
        if (n == 1) real_store_part(y, sum[k], left);
        else real_store(y + k * TILE, sum[k]);
}

static void pool_cell(real *y, const real *x, size_t row, RoiBin down, const float *v, RoiBin across, const float *u, int C) {
    int c = 0;
    for (; c + VECS * TILE <= C; c += VECS * TILE) pool(VECS, y + c, x + c, row, (size_t)C, down, v, across, u, 0);
    for (; c + 4 * TILE <= C; c += 4 * TILE) pool(4, y + c, x + c, row, (size_t)C, down, v, across, u, 0);
    for (; c < C; c += TILE) pool(1, y + c, x + c, row, (size_t)C, down, v, across, u, (size_t)(C - c));
}

void roi_align_forward(real *y, const real *const *maps, const float *boxes, const int *place, int R,
                       const RoiAlign *s) {
    int P = s->P, most_rows = most(s->rows, s->levels), most_columns = most(s->columns, s->levels);
    size_t cell = (size_t)s->C;
#pragma omp parallel
    {
        float *next = kernels_workspace(slice_floats(s));
        Bins down = bins_take(&next, most_rows, P), across = bins_take(&next, most_columns, P);
#pragma omp for schedule(dynamic, 4)
        for (int r = 0; r < R; r++) {
            const float *box = boxes + 4 * (size_t)r;
            int image = place[2 * r], level = place[2 * r + 1], rows = s->rows[level], columns = s->columns[level];
            const real *x = maps[level] + (size_t)image * (size_t)rows * (size_t)columns * cell;
            RoiSide height = roi_side(box[1], box[3], s->scale[level], P);
            RoiSide width = roi_side(box[0], box[2], s->scale[level], P);
            bins_fill(&down, &height, rows, P);
            bins_fill(&across, &width, columns, P);
            for (int i = 0; i < P; i++)
                for (int j = 0; j < P; j++)
                    pool_cell(y + (((size_t)r * (size_t)P + (size_t)i) * (size_t)P + (size_t)j) * cell, x,
                              (size_t)columns * cell, down.bins[i], weights_of(&down, i), across.bins[j],
                              weights_of(&across, j), s->C);
        }
    }
}

/* == Backward ===================================================================================================== */

/* Some channels of SIDE x SIDE cells of a map, fewer at its borders. */
typedef struct {
    int image, level, top, left, rows, columns, channel, channels;
} MapTile;

static int pieces(int n, int size) { return (n + size - 1) / size; }

static size_t tiles_of_level(const RoiAlign *s, int l) {
    return (size_t)pieces(s->rows[l], SIDE) * (size_t)pieces(s->columns[l], SIDE) * (size_t)pieces(s->C, CHANNELS);
}

static MapTile tile_at(const RoiAlign *s, int image, size_t t) {
    MapTile tile = {.image = image};
    while (t >= tiles_of_level(s, tile.level)) t -= tiles_of_level(s, tile.level++);
    int blocks = pieces(s->C, CHANNELS), across = pieces(s->columns[tile.level], SIDE), at = (int)t / blocks;
    tile.channel = (int)t % blocks * CHANNELS;
    tile.top = at / across * SIDE;
    tile.left = at % across * SIDE;
    int rows = s->rows[tile.level] - tile.top, columns = s->columns[tile.level] - tile.left, left = s->C - tile.channel;
    tile.rows = rows < SIDE ? rows : SIDE;
    tile.columns = columns < SIDE ? columns : SIDE;
    tile.channels = left < CHANNELS ? left : CHANNELS;
    return tile;
}

/* The bins that read each of `count` cells from `first` on: bin[k].first .. + bin[k].count. */
static void readers_fill(RoiBin *readers, int first, int count, const Bins *b, int P) {
    for (int k = 0; k < count; k++) readers[k] = (RoiBin){0};
    for (int i = 0; i < P; i++) {
        int from = b->bins[i].first - first, to = from + b->bins[i].count;
        for (int k = from < 0 ? 0 : from; k < to && k < count; k++) {
            if (!readers[k].count) readers[k].first = i;
            readers[k].count = i - readers[k].first + 1;
        }
    }
}

/* n vectors of one cell's gradient, from dy [P,P,C]: v and u are the weights of the first bin; those of the next one
 * are ROI_SHARED further. */
TILE_INLINE void gather(int n, float *sum, const real *dy, size_t row, size_t column, RoiBin down, const float *v,
                        RoiBin across, const float *u, size_t left) {
    vec total[VECS];
#pragma GCC unroll 16
    for (int k = 0; k < n; k++) total[k] = n == 1 ? vec_load_part(sum, left) : vec_load(sum + k * TILE);
    for (int i = down.first; i < down.first + down.count; i++)
        for (int j = across.first; j < across.first + across.count; j++) {
            const real *from = dy + (size_t)i * row + (size_t)j * column;
            vec w = vec_set(v[ROI_SHARED * i] * u[ROI_SHARED * j]);
#pragma GCC unroll 16
            for (int k = 0; k < n; k++)
                total[k] += w * (n == 1 ? real_load_part(from, left) : real_load(from + k * TILE));
        }
#pragma GCC unroll 16
    for (int k = 0; k < n; k++)
        if (n == 1) vec_store_part(sum, total[k], left);
        else vec_store(sum + k * TILE, total[k]);
}

static void gather_cell(float *sum, const real *dy, size_t row, size_t column, RoiBin down, const float *v, RoiBin across,
                        const float *u, int channels) {
    int c = 0;
    for (; c + VECS * TILE <= channels; c += VECS * TILE)
        gather(VECS, sum + c, dy + c, row, column, down, v, across, u, 0);
    for (; c + 4 * TILE <= channels; c += 4 * TILE) gather(4, sum + c, dy + c, row, column, down, v, across, u, 0);
    for (; c < channels; c += TILE)
        gather(1, sum + c, dy + c, row, column, down, v, across, u, (size_t)(channels - c));
}

/* sum [tile.rows,tile.columns,tile.channels] += the gradient of one RoI; dy [P,P,C]. */
static void gather_roi(float *sum, const real *dy, const MapTile *t, const Bins *down, const Bins *across,
                       const RoiAlign *s) {
    RoiBin rows[SIDE], columns[SIDE];
    readers_fill(rows, t->top, t->rows, down, s->P);
    readers_fill(columns, t->left, t->columns, across, s->P);
    for (int r = 0; r < t->rows; r++)
        for (int c = 0; rows[r].count && c < t->columns; c++)
            if (columns[c].count)
                gather_cell(sum + (size_t)((r * t->columns + c) * t->channels), dy + t->channel,
                            (size_t)s->P * (size_t)s->C, (size_t)s->C, rows[r], down->weights + t->top + r, columns[c],
                            across->weights + t->left + c, t->channels);
}

/* Writes the gradients of all RoIs to sum and returns true, or false if none reads the tile. */
static bool gather_tile(float *sum, const real *dy, const float *boxes, const int *place, int R, const MapTile *t,
                        const Bins *down, const Bins *across, const RoiAlign *s) {
    bool any = false;
    float scale = s->scale[t->level];
    for (int r = 0; r < R; r++) {
        if (place[2 * r] != t->image || place[2 * r + 1] != t->level) continue;
        const float *box = boxes + 4 * (size_t)r;
        RoiSide height = roi_side(box[1], box[3], scale, s->P), width = roi_side(box[0], box[2], scale, s->P);
        if (!roi_side_reaches(&height, s->P, t->top, t->top + t->rows - 1) ||
            !roi_side_reaches(&width, s->P, t->left, t->left + t->columns - 1))
            continue;
        if (!any) memset(sum, 0, (size_t)(t->rows * t->columns * t->channels) * sizeof *sum);
        any = true;
        bins_fill(down, &height, s->rows[t->level], s->P);
        bins_fill(across, &width, s->columns[t->level], s->P);
        gather_roi(sum, dy + (size_t)r * (size_t)s->P * (size_t)s->P * (size_t)s->C, t, down, across, s);
    }
    return any;
}

static void add_tile(real *dmap, const float *sum, const MapTile *t, const RoiAlign *s) {
    size_t columns = (size_t)s->columns[t->level], rows = (size_t)s->rows[t->level];
    for (int r = 0; r < t->rows; r++)
        for (int c = 0; c < t->columns; c++, sum += t->channels) {
            size_t cell = ((size_t)t->image * rows + (size_t)(t->top + r)) * columns + (size_t)(t->left + c);
            real *to = dmap + cell * (size_t)s->C + (size_t)t->channel;
            for (int k = 0; k < t->channels; k += TILE) {
                size_t left = (size_t)(t->channels - k);
                real_store_part(to + k, real_load_part(to + k, left) + vec_load_part(sum + k, left), left);
            }
        }
}

void roi_align_backward(real *const *dmaps, const real *dy, const float *boxes, const int *place, int R,
                        const RoiAlign *s) {
    int most_rows = most(s->rows, s->levels), most_columns = most(s->columns, s->levels);
    size_t tiles = 0;
    for (int l = 0; l < s->levels; l++) tiles += tiles_of_level(s, l);
#pragma omp parallel
    {
        float *next = kernels_workspace(slice_floats(s));
        const Bins down = bins_take(&next, most_rows, s->P), across = bins_take(&next, most_columns, s->P);
#pragma omp for schedule(dynamic)
        for (size_t t = 0; t < (size_t)s->B * tiles; t++) {
            MapTile tile = tile_at(s, (int)(t / tiles), t % tiles);
            if (gather_tile(next, dy, boxes, place, R, &tile, &down, &across, s))
                add_tile(dmaps[tile.level], next, &tile, s);
        }
    }
}
