/* RoIAlign; kernels/regions/roi_align.c has the formulas.  Forward, a block has a row of bins of one RoI, and a thread
 * some channels of each.  Backward, a block has a tile of a map and iterates in order over the RoIs that read it; a
 * warp has a row of the tile, whose sums stay in registers until the last RoI. */
#include "kernels/cuda/rows.cuh"
#include "kernels/regions/roi_align.h"
#include "kernels/regions/roi_samples.h"

enum { THREADS = 256, WARPS = THREADS / WARP };
/* Cells a side of a tile, with a warp for each row; number of RoIs whose weights are computed together. */
enum { SIDE = WARPS, GROUP = 4 };

template <typename T>
struct Maps {
    T *level[ROI_LEVELS];
};
template <typename T>
static Maps<T> maps_of(T *const *maps, const RoiAlign *s) {
    Maps<T> m = {};
    for (int l = 0; l < s->levels; l++) m.level[l] = maps[l];
    return m;
}

static int most(const int *cells, int levels) {
    int largest = 1;
    for (int l = 0; l < levels; l++) largest = cells[l] > largest ? cells[l] : largest;
    return largest;
}

size_t roi_align_workspace(const RoiAlign *) { return 0; }

/* == Forward ====================================================================================================== */

template <int V>
__global__ void __launch_bounds__(THREADS)
    roi_align_forward_kernel(real *y, Maps<const real> maps, const float *__restrict__ boxes,
                             const int *__restrict__ place, RoiAlign s) {
    SHARED(RoiBin, across); /* [P] across, then [P] down, then the weights across and down */
    RoiBin *down = across + s.P;
    float *u = reinterpret_cast<float *>(down + 1);
    int r = (int)blockIdx.x / s.P, i = (int)blockIdx.x % s.P, image = place[2 * r], level = place[2 * r + 1];
    int rows = s.rows[level], columns = s.columns[level];
    float *v = u + columns + ROI_SHARED * s.P;
    const float *box = boxes + 4 * (size_t)r;
    RoiSide height = roi_side(box[1], box[3], s.scale[level], s.P);
    RoiSide width = roi_side(box[0], box[2], s.scale[level], s.P);
    for (int j = (int)threadIdx.x; j < s.P; j += THREADS)
        across[j] = roi_bin_fill(u + ROI_SHARED * j, &width, j, columns);
    if (threadIdx.x == THREADS - 1) *down = roi_bin_fill(v, &height, i, rows);
    block_sync();
    const real *x = maps.level[level] + (size_t)image * rows * columns * s.C;
    int pieces = s.C / V, first = down->first, last = first + down->count;
    for (int k = (int)threadIdx.x; k < s.P * pieces; k += THREADS) {
        int j = k / pieces, c = (k - j * pieces) * V;
        RoiBin bin = across[j];
        float sum[V] = {};
        for (int row = first; row < last; row++) {
            const real *from = x + ((size_t)row * columns + bin.first) * s.C + c;
            const float *weight = u + ROI_SHARED * j + bin.first;
#pragma unroll 4
            for (int n = 0; n < bin.count; n++) {
                float d[V], w = v[row] * weight[n];
                load(d, from + (size_t)n * s.C);
#pragma unroll
                for (int e = 0; e < V; e++) sum[e] += w * d[e];
            }
        }
        store(y + (((size_t)r * s.P + i) * s.P + j) * s.C + c, sum);
    }
}

void roi_align_forward(real *y, const real *const *maps, const float *boxes, const int *place, int R,
                       const RoiAlign *s) {
    if (!R) return;
    size_t floats = (size_t)most(s->rows, s->levels) + most(s->columns, s->levels) + ROI_SHARED * (size_t)s->P;
    size_t bytes = (s->P + 1) * sizeof(RoiBin) + floats * sizeof(float);
    unsigned blocks = (unsigned)R * (unsigned)s->P;
    bool wide = is_wide(s->C, y);
    for (int l = 0; l < s->levels; l++) wide = wide && is_wide(s->C, maps[l]);
    if (wide)
        LAUNCH((roi_align_forward_kernel<WIDE>), blocks, THREADS, bytes, y, maps_of(maps, s), boxes, place, *s);
    else LAUNCH((roi_align_forward_kernel<1>), blocks, THREADS, bytes, y, maps_of(maps, s), boxes, place, *s);
}

/* == Backward ===================================================================================================== */

struct MapTile {
    int image, level, top, left, channel;
};

static __host__ __device__ int pieces_of(int n, int size) { return (n + size - 1) / size; }
static __host__ __device__ int tiles_of(const RoiAlign &s, int level) {
    return pieces_of(s.rows[level], SIDE) * pieces_of(s.columns[level], SIDE);
}

/* blockIdx.x counts tiles and levels, y blocks of channels, z images. */
DEVICE MapTile tile_of(const RoiAlign &s, int channels) {
    int t = (int)blockIdx.x, level = 0;
    while (t >= tiles_of(s, level)) t -= tiles_of(s, level++);
    int across = pieces_of(s.columns[level], SIDE);
    return {(int)blockIdx.z, level, t / across * SIDE, t % across * SIDE, (int)blockIdx.y * channels};
}

/* The number of threads with `mine` before this one, and in the block; counts [WARPS]. */
DEVICE int block_rank(bool mine, int *counts, int *total) {
    int here = mine, lane = lane_id();
    for (int step = 1; step < WARP; step *= 2) {
        int before = warp_shuffle(here, (lane - step) & (WARP - 1));
        if (lane >= step) here += before;
    }
    if (lane == WARP - 1) counts[warp_id()] = here;
    block_sync();
    int rank = here - mine;
    *total = 0;
    for (int w = 0; w < WARPS; w++) {
        if (w < warp_id()) rank += counts[w];
        *total += counts[w];
    }
    return rank;
}

/* The weight of a cell for a bin. */
DEVICE float cell_weight(const RoiSide &side, int bin, int cell, int cells) {
    float sum = 0, fraction;
    int low;
    for (int s = 0; s < side.samples; s++) {
        if (!roi_sample(&low, &fraction, roi_sample_at(&side, bin, s), cells)) continue;
        if (low == cell) sum += 1 - fraction;
        if (low + 1 == cell) sum += fraction;
    }
    return sum / (float)side.samples;
}

/* The bin of a position, clamped to 0 .. P - 1. */
DEVICE int bin_at(const RoiSide &side, float place, int P) {
    return (int)fminf(fmaxf((place - side.start) / side.bin, 0), (float)(P - 1));
}

/* A RoI that may read the tile, and the first and last of its bins that may. */
struct Reader {
    int roi, first[2], last[2]; /* down, across */
};

DEVICE bool reader_find(Reader *reader, int r, const MapTile &t, const float *boxes, const int *place,
                        const RoiAlign &s) {
    if (place[2 * r] != t.image || place[2 * r + 1] != t.level) return false;
    reader->roi = r;
    for (int axis = 0; axis < 2; axis++) {
        const float *box = boxes + 4 * (size_t)r + (axis ? 0 : 1);
        int from = axis ? t.left : t.top;
        RoiSide side = roi_side(box[0], box[2], s.scale[t.level], s.P);
        if (!roi_side_reaches(&side, s.P, from, from + SIDE - 1)) return false;
        reader->first[axis] = bin_at(side, (float)from - 1.01f, s.P);
        reader->last[axis] = bin_at(side, (float)(from + SIDE) + 0.01f, s.P);
    }
    return true;
}

/* weights [2][P][SIDE] of one RoI: those of the tile's rows, then of its columns, for the bins that may read them. */
DEVICE void weights_fill(float *weights, int thread, int threads, const Reader &reader, const MapTile &t,
                         const float *boxes, const RoiAlign &s) {
    for (int axis = 0; axis < 2; axis++) {
        const float *box = boxes + 4 * (size_t)reader.roi + (axis ? 0 : 1);
        RoiSide side = roi_side(box[0], box[2], s.scale[t.level], s.P);
        int bins = reader.last[axis] - reader.first[axis] + 1, from = axis ? t.left : t.top;
        for (int i = thread; i < bins * SIDE; i += threads) {
            int bin = reader.first[axis] + i / SIDE;
            weights[(axis * s.P + bin) * SIDE + i % SIDE] =
                cell_weight(side, bin, from + i % SIDE, axis ? s.columns[t.level] : s.rows[t.level]);
        }
    }
}

/* sum [SIDE] cells of a row += the gradient of one RoI, of this thread's V channels: dy points to them in bin (0,0). */
template <int V>
DEVICE void gather(float (&sum)[SIDE][V], const real *dy, const Reader &reader, const float *weights, int row,
                   const RoiAlign &s) {
    for (int i = reader.first[0]; i <= reader.last[0]; i++) {
        float v = weights[i * SIDE + row];
        if (v == 0) continue;
        for (int j = reader.first[1]; j <= reader.last[1]; j++) {
            float d[V], u[SIDE];
            load(d, dy + ((size_t)i * s.P + j) * s.C);
            load(u, weights + (s.P + j) * SIDE);
#pragma unroll
            for (int k = 0; k < SIDE; k++)
#pragma unroll
                for (int e = 0; e < V; e++) sum[k][e] += v * u[k] * d[e];
        }
    }
}

template <int V>
DEVICE void add_row(real *dmap, const float (&sum)[SIDE][V], const MapTile &t, int channel, const RoiAlign &s) {
    int rows = s.rows[t.level], columns = s.columns[t.level], row = t.top + warp_id();
    if (row >= rows || channel >= s.C) return;
    real *to = dmap + (((size_t)t.image * rows + row) * columns + t.left) * s.C + channel;
    for (int k = 0; k < SIDE && t.left + k < columns; k++, to += s.C) {
        float d[V];
        load(d, to);
#pragma unroll
        for (int e = 0; e < V; e++) d[e] += sum[k][e];
        store(to, d);
    }
}

static size_t backward_shared(int P) {
    return GROUP * 2 * (size_t)P * SIDE * sizeof(float) + WARPS * sizeof(int) + THREADS * sizeof(Reader);
}

template <int V>
__global__ void __launch_bounds__(THREADS)
    roi_align_backward_kernel(Maps<real> dmaps, const real *__restrict__ dy, const float *__restrict__ boxes,
                              const int *__restrict__ place, int R, RoiAlign s) {
    SHARED(float, weights); /* [GROUP][2][P][SIDE], then the counts [WARPS] and the readers [THREADS] */
    int *counts = reinterpret_cast<int *>(weights + (size_t)GROUP * 2 * s.P * SIDE), found;
    Reader *readers = reinterpret_cast<Reader *>(counts + WARPS);
    MapTile t = tile_of(s, WARP * V);
    int channel = t.channel + lane_id() * V, mine = (int)threadIdx.x / (THREADS / GROUP);
    float sum[SIDE][V] = {};
    bool any = false;
    for (int r0 = 0; r0 < R; r0 += THREADS) {
        Reader reader;
        int r = r0 + (int)threadIdx.x;
        bool reads = r < R && reader_find(&reader, r, t, boxes, place, s);
        int rank = block_rank(reads, counts, &found);
        if (reads) readers[rank] = reader;
        block_sync();
        for (int n = 0; n < found; n += GROUP) {
            int group = found - n < GROUP ? found - n : GROUP;
            if (mine < group)
                weights_fill(weights + (size_t)mine * 2 * s.P * SIDE, (int)threadIdx.x % (THREADS / GROUP),
                             THREADS / GROUP, readers[n + mine], t, boxes, s);
            block_sync();
            for (int g = 0; g < group && channel < s.C; g++)
                gather(sum, dy + (size_t)readers[n + g].roi * s.P * s.P * s.C + channel, readers[n + g],
                       weights + (size_t)g * 2 * s.P * SIDE, warp_id(), s);
            block_sync();
        }
        any = any || found;
    }
    if (any) add_row(dmaps.level[t.level], sum, t, channel, s);
}

void roi_align_backward(real *const *dmaps, const real *dy, const float *boxes, const int *place, int R,
                        const RoiAlign *s) {
    if (!R) return;
    int tiles = 0;
    bool wide = is_wide(s->C, dy);
    for (int l = 0; l < s->levels; l++) {
        tiles += tiles_of(*s, l);
        wide = wide && is_wide(s->C, dmaps[l]);
    }
    dim3 grid((unsigned)tiles, (unsigned)pieces_of(s->C, WARP * (wide ? (int)WIDE : 1)), (unsigned)s->B);
    size_t bytes = backward_shared(s->P);
    if (wide)
        LAUNCH((roi_align_backward_kernel<WIDE>), grid, THREADS, bytes, maps_of(dmaps, s), dy, boxes, place, R, *s);
    else LAUNCH((roi_align_backward_kernel<1>), grid, THREADS, bytes, maps_of(dmaps, s), dy, boxes, place, R, *s);
}
