/* LiSA by Fourier transforms; the formulas are those of kernels/lisa/lisa_fft.c.  A block transforms L channels of one
 * head at a time in its shared memory (fft.cuh), two patterns as one complex sequence; [N,D,E] is never stored in
 * device memory.
 *   spectra    K, V of every channel, Wa and Wb of every pattern, in workspace
 *   patterns   a block for each head and as many patterns as leave blocks for all multiprocessors: S, or in the
 *              backward pass dS, summed over the channels
 *   mix        a block for each head and L channels: y, summed over the patterns
 *   queries    the same blocks: dq^ and dK, which read the same spectra of weights, and values: dV
 *   weights    a block for a few patterns, L channels and a slice of the heads: its share of dWa, dWb and db
 * queries, values and weights transform the same products twice: no block could have both sums over patterns and sums
 * over heads, and repeating a transform is cheaper than storing and loading its result.  Heads are processed in chunks,
 * so that workspace does not grow with the batch. */
#include "kernels/lisa/lisa.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/lisa/transforms.h"
#include "kernels/lisa/lisa.h"
#include "kernels/offsets/offsets.h"
#include "kernels/offsets/patterns.h"

enum {
    THREADS = FFT_THREADS,
    SLICED = 264,                       /* target number of blocks for slices: two for each multiprocessor of an H200 */
    WAITING = 3,                        /* blocks of patterns wanted for each multiprocessor */
    RESIDENT = 3,                       /* blocks in a multiprocessor, by registers */
    SHARED_WISH = 74 * 1024,            /* and by shared memory */
    SHARED_SUMS = 112 * 1024,           /* two blocks */
    SECTOR = 32,                        /* bytes of a memory sector */
    CHANNELS = SECTOR / (int)sizeof(real),
    TABLES = SECTOR / (2 * (int)sizeof(float))
};
static const size_t MOST_HEAD_BYTES = (size_t)128 << 20;

struct LisaFftShape {
    Fft fft;
    int N, H, D, E, P; /* P pairs of frequencies */
    int L, groups;     /* channels in a block; blocks for all of them */
    int twos;          /* pairs of patterns */
    int together;      /* pairs whose parameters a block transforms: those of one sector if they fit */
    int each, parts;   /* pairs of a block for the weights' gradient; blocks for all of them */
    bool kept;         /* does it keep its sums in shared memory? */
    int first_head;    /* of this launch */
    int slices, slice; /* slices of the heads of a launch, and heads in a slice */
    int heads;         /* in this launch */
    Divisor by_H, by_L, by_groups, by_parts, by_together, by_tables; /* tables: D channels' and wb */
};

/* The number of pairs of patterns in a block, and of blocks for all pairs. */
struct LisaFftTile {
    int twos;
    Divisor by_parts;
};

/* == Plans ======================================================================================================== */

/* Shared memory: z, its copy where a large prime wants one, and sums. */
static size_t sequences_bytes(const Fft &fft, int L) {
    return (size_t)L * fft.N * sizeof(Complex) * (fft.largest > 1 ? 2 : 1);
}
/* Rows of the left factor [L,left_ld], and sums of 2 twos patterns where the channels come in several groups. */
static inline __host__ __device__ int left_ld(int N) { return N + 4 / (int)sizeof(real); }
static size_t patterns_bytes(const Fft &fft, int L, int twos, bool summed) {
    return sequences_bytes(fft, L) + (summed ? 2 * (size_t)twos * fft.N * sizeof(float) : 0) +
           (size_t)L * left_ld(fft.N) * sizeof(real);
}
static size_t mix_bytes(const Fft &fft, int L) {
    return sequences_bytes(fft, L) + (size_t)L * fft.N * sizeof(float);
}
static size_t queries_bytes(const Fft &fft, int L) { return mix_bytes(fft, L) + (size_t)L * fft.P * sizeof(Complex); }
static size_t values_bytes(const Fft &fft, int L) {
    return sequences_bytes(fft, L) + (size_t)L * fft.P * sizeof(Complex);
}
static size_t weights_bytes(const Fft &fft, int L, int each) {
    return sequences_bytes(fft, L) + 2 * (size_t)each * (L + 1) * fft.P * sizeof(Complex);
}
static size_t most_bytes(const Fft &fft, int L, int D) {
    size_t patterns = patterns_bytes(fft, L, 1, L < D), queries = queries_bytes(fft, L);
    return patterns > queries ? patterns : queries;
}

static bool has_spectrum(const Patterns *p) {
    return (p->offsets.kind == OFFSETS_CIRCLE || p->offsets.kind == OFFSETS_TORUS) && p->per_channel;
}

/* The preferred share of a block's shared memory, or all of it. */
static size_t shared_of(size_t wish) { return launch_shared_most() < wish ? launch_shared_most() : wish; }

/* The smallest number of groups of channels that fit, in whole sectors if they are at least as long as one. */
static int channels_of(const Fft &fft, int D) {
    int L = D;
    while (L > 1 && most_bytes(fft, L, D) > shared_of(SHARED_WISH)) L--;
    if (L < D && L >= CHANNELS) return L / CHANNELS * CHANNELS;
    return (int)ceil_div(D, ceil_div(D, L));
}

static LisaFftShape shape_of(const Patterns *p) {
    int H = p->H, D = p->D, E = p->E, twos = (E + 1) / 2;
    const Fft *fft = fft_device_plan(p->offsets.grid, p->offsets.kind == OFFSETS_TORUS);
    LisaFftShape s = {};
    s.fft = *fft;
    s.N = fft->N, s.H = H, s.D = D, s.E = E, s.P = fft->P;
    s.twos = twos;
    s.L = channels_of(*fft, D);
    s.groups = (int)ceil_div(D, s.L);
    s.together = twos < TABLES ? twos : (int)TABLES;
    while (s.together > 1 && sequences_bytes(*fft, s.together) > shared_of(SHARED_WISH)) s.together--;
    s.each = twos;
    while (s.each > 0 && weights_bytes(*fft, s.L, s.each) > shared_of(SHARED_SUMS)) s.each--;
    s.kept = s.each > 0;
    s.parts = (int)ceil_div(twos, s.kept ? s.each : 1);
    s.each = (int)ceil_div(twos, s.parts);
    s.slices = s.slice = 1;
    s.by_H = divisor_of(H);
    s.by_L = divisor_of(s.L);
    s.by_groups = divisor_of(s.groups);
    s.by_parts = divisor_of(s.parts);
    s.by_together = divisor_of(s.together);
    s.by_tables = divisor_of(D + 1);
    return s;
}

/* Spectra are read once for all patterns of a block, so a block has as many patterns as possible with enough blocks.
 * The result does not depend on it. */
static LisaFftTile tile_of(const LisaFftShape &s) {
    size_t wanted = (size_t)WAITING * device_multiprocessors();
    int twos = s.twos;
    bool summed = s.groups > 1;
    while (twos > 1 && (patterns_bytes(s.fft, s.L, twos, summed) > shared_of(SHARED_WISH) ||
                        s.heads * ceil_div(s.twos, twos) < wanted))
        twos--;
    int parts = (int)ceil_div(s.twos, twos);
    return {(int)ceil_div(s.twos, parts), divisor_of(parts)};
}

/* == Workspace ==================================================================================================== */

struct LisaFftBuffers {
    Complex *wa, *wb;   /* [2 twos,D,P], [2 twos,P], divided by N */
    Complex *dwa, *dwb; /* [slices,2 twos,D,P], [slices,groups,2 twos,P] */
    float *db;          /* [slices,D,E] */
    Complex *k, *v;     /* [heads,D,P] */
    float *ds;          /* [heads,E,N] */
};

static int slices_of(const LisaFftShape &s, size_t heads) {
    size_t slices = ceil_div(SLICED, (size_t)s.parts * s.groups);
    return (int)(slices < heads ? slices : heads);
}

static size_t heads_at_once(const LisaFftShape &s, size_t heads) {
    size_t each = 2 * (size_t)s.D * s.P * sizeof(Complex) + (size_t)s.E * s.N * sizeof(float);
    size_t most = MOST_HEAD_BYTES / each > 0 ? MOST_HEAD_BYTES / each : 1;
    return most < heads ? most : heads;
}

static LisaFftBuffers buffers_of(const LisaFftShape &s, size_t heads, char *base, size_t *bytes) {
    size_t next = 0, together = heads_at_once(s, heads), slices = slices_of(s, together), patterns = 2 * (size_t)s.twos;
    auto take = [&](size_t size) {
        char *at = base ? base + next : NULL;
        next += ceil_div(size, 16) * 16;
        return at;
    };
    auto complexes = [&](size_t n) { return reinterpret_cast<Complex *>(take(n * sizeof(Complex))); };
    LisaFftBuffers w;
    w.wa = complexes(patterns * s.D * s.P);
    w.wb = complexes(patterns * s.P);
    w.dwa = complexes(slices * patterns * s.D * s.P);
    w.dwb = complexes(slices * s.groups * patterns * s.P);
    w.db = reinterpret_cast<float *>(take(slices * s.D * s.E * sizeof(float)));
    w.k = complexes(together * s.D * s.P);
    w.v = complexes(together * s.D * s.P);
    w.ds = reinterpret_cast<float *>(take(together * s.E * s.N * sizeof(float)));
    *bytes = next;
    return w;
}

static size_t blocks_workspace(const Patterns *patterns, int B) {
    size_t bytes;
    buffers_of(shape_of(patterns), (size_t)B * patterns->H, NULL, &bytes);
    return bytes;
}

static LisaFftBuffers buffers_at(void *work, const LisaFftShape &s, size_t heads) {
    size_t bytes;
    return buffers_of(s, heads, static_cast<char *>(work), &bytes);
}

/* The head, in the launch, and the first channel of a block that has L channels of one head. */
DEVICE int group_at(const LisaFftShape &s, int *c) {
    int group, head = divided((int)blockIdx.x, s.by_groups, &group);
    *c = group * s.L;
    return head;
}

/* Calls visit(l, n) for the existing channels of a group and n < count, with adjacent channels, as in memory. */
template <typename Visit>
DEVICE void for_channels(int channels, int count, const LisaFftShape &s, Visit visit) {
    for (int i = (int)threadIdx.x; i < s.L * count; i += THREADS) {
        int l, n = divided(i, s.by_L, &l);
        if (l < channels) visit(l, n);
    }
}
/* The same with adjacent n. */
template <typename Visit>
DEVICE void for_spectra(int channels, const Divisor &count, Visit visit) {
    for (int i = (int)threadIdx.x; i < channels * (int)count.by; i += THREADS) {
        int n, l = divided(i, count, &n);
        visit(l, n);
    }
}

DEVICE int channels_from(const LisaFftShape &s, int first) { return s.D - first < s.L ? s.D - first : s.L; }
DEVICE Complex *copy_of(Complex *z, const LisaFftShape &s) { return z + (size_t)s.L * s.N; }
DEVICE Complex *behind(Complex *z, const LisaFftShape &s) {
    return copy_of(z, s) + (s.fft.largest > 1 ? (size_t)s.L * s.N : 0);
}

/* == Spectra ====================================================================================================== */

/* Pairs of patterns of one channel, or of wb: a block of the tables. */
struct Table {
    int c, e, twos;
    bool channel;
};
DEVICE Table table_at(const LisaFftShape &s) {
    int c, first = divided((int)blockIdx.x, s.by_tables, &c) * s.together, left = s.twos - first;
    return {c, 2 * first, left < s.together ? left : s.together, c < s.D};
}

/* Calls visit(two, t) for the pairs of a table, adjacent as in memory. */
template <typename Visit>
DEVICE void for_table(const Table &at, const LisaFftShape &s, Visit visit) {
    for (int i = (int)threadIdx.x; i < s.together * s.N; i += THREADS) {
        int two, t = divided(i, s.by_together, &two);
        if (two < at.twos) visit(two, t);
    }
}

__global__ void __launch_bounds__(THREADS, RESIDENT)
    lisa_weights_kernel(Complex *wa_out, Complex *wb_out, const float *wa, const float *wb, LisaFftShape s) {
    SHARED(Complex, z); /* [together,N], and its copy */
    Table at = table_at(s);
    const float *from = at.channel ? wa + (size_t)at.c * s.E + at.e : wb + at.e;
    size_t row = at.channel ? (size_t)s.D * s.E : s.E;
    for_table(at, s, [&](int two, int t) {
        const float *x = from + t * row + 2 * two;
        z[two * s.N + t] = complex_of(x[0], at.e + 2 * two + 1 < s.E ? x[1] : 0);
    });
    block_sync();
    fft_run(z, z + s.together * s.N, s.fft, at.twos, false);
    Complex *to = at.channel ? wa_out + ((size_t)at.e * s.D + at.c) * s.P : wb_out + (size_t)at.e * s.P;
    size_t next = at.channel ? (size_t)s.D * s.P : s.P;
    for_spectra(at.twos, s.fft.by_P, [&](int two, int p) {
        Complex x1, x2, *first = to + 2 * two * next + p;
        fft_part(&x1, &x2, z + two * s.N, s.fft.pair[p]);
        first[0] = scaled(1.0f / s.N, x1);
        first[next] = scaled(1.0f / s.N, x2);
    });
}

__global__ void __launch_bounds__(THREADS, RESIDENT)
    lisa_spectra_kernel(Complex *k_out, Complex *v_out, const real *qk, const real *qkv, LisaFftShape s) {
    SHARED(Complex, z);
    int c, in_launch = group_at(s, &c), channels = channels_from(s, c);
    size_t head = in_launch;
    LisaHead at = head_at(s, in_launch);
    const real *k = qk + at.qk + at.y_row + c, *v = qkv + at.v + c;
    for_channels(channels, s.N, s, [&](int l, int i) {
        z[l * s.N + i] = complex_of(to_float(k[i * at.qk_row + l]), to_float(v[i * at.qkv_row + l]));
    });
    block_sync();
    fft_run(z, copy_of(z, s), s.fft, channels, false);
    size_t out = (head * s.D + c) * s.P;
    for_spectra(channels, s.fft.by_P, [&](int l, int p) {
        size_t to = out + (size_t)l * s.P + p;
        fft_part(&k_out[to], &v_out[to], z + l * s.N, s.fft.pair[p]);
    });
}

/* Half spectra of weights: of pattern e and channel c at w + e * pattern + c * channel. */
struct LisaFftWeights {
    const Complex *w;
    size_t pattern, channel;
};

/* z = the convolutions of channels c.. of x [D,P] with patterns e and e + 1, one in each part. */
DEVICE void convolve(Complex *z, const Complex *x, LisaFftWeights w, int e, int c, int channels,
                     const LisaFftShape &s) {
    for_spectra(channels, s.fft.by_P, [&](int l, int p) {
        const Complex *weight = w.w + e * w.pattern + (c + l) * w.channel + p;
        Complex at = x[(size_t)(c + l) * s.P + p];
        fft_join(z + l * s.N, s.fft.pair[p], times(at, weight[0]), times(at, weight[w.pattern]));
    });
    block_sync();
    fft_run(z, copy_of(z, s), s.fft, channels, true);
}

/* z = F(s_e x + i s_e+1 x) for channels of x, rows `row` apart; s [E,N]. */
template <typename T>
DEVICE void transform_outer(Complex *z, const T *patterns, int e, const real *x, size_t row, int channels,
                            const LisaFftShape &s) {
    const T *s1 = patterns + (size_t)e * s.N, *s2 = s1 + s.N;
    bool second = e + 1 < s.E;
    for_channels(channels, s.N, s, [&](int l, int i) {
        float at = to_float(x[i * row + l]);
        z[l * s.N + i] = complex_of(to_float(s1[i]) * at, second ? to_float(s2[i]) * at : 0);
    });
    block_sync();
    fft_run(z, copy_of(z, s), s.fft, channels, false);
}

/* == Patterns: sums over channels ================================================================================= */

DEVICE void put(float *to, float x) { *to = x; }
#ifndef VIT_FP32
DEVICE void put(real *to, float x) { *to = to_real(x); }
#endif

/* The patterns of a head: out [E,N] = the sums over c of left[i,c] (F'(W_e X)[i,c] + b[c,e]). */
template <typename T>
struct Sums {
    T *out;
    const real *left;
    size_t row; /* from one token of left to the next */
    const Complex *x;
};

/* The patterns of a block; b may be NULL.  The left factor is in shared memory, because its channels are adjacent in
 * memory and those of z are not. */
template <typename T>
DEVICE void patterns_of(const Sums<T> &of, LisaFftWeights w, const float *b, int first, const LisaFftTile &tile,
                        Complex *z, const LisaFftShape &s) {
    int twos = s.twos - first < tile.twos ? s.twos - first : tile.twos, ld = left_ld(s.N);
    float *sums = reinterpret_cast<float *>(behind(z, s)); /* [2 twos,N] where groups > 1 */
    real *left = reinterpret_cast<real *>(sums + (s.groups > 1 ? 2 * (size_t)tile.twos * s.N : 0)); /* [L,ld] */
    for (int c = 0; c < s.D; c += s.L) {
        int channels = channels_from(s, c);
        for_channels(channels, s.N, s, [&](int l, int i) { left[l * ld + i] = of.left[i * of.row + c + l]; });
        for (int two = 0; two < twos; two++) {
            int e = 2 * (first + two);
            bool second = e + 1 < s.E;
            float *sum1 = sums + 2 * two * s.N, *sum2 = sum1 + s.N;
            convolve(z, of.x, w, e, c, channels, s);
            for (int i = threadIdx.x; i < s.N; i += THREADS) {
                float a1 = c ? sum1[i] : 0, a2 = c ? sum2[i] : 0;
                for (int l = 0; l < channels; l++) {
                    float at = to_float(left[l * ld + i]);
                    const float *bias = b ? b + (size_t)(c + l) * s.E + e : NULL;
                    a1 += at * (z[l * s.N + i].x + (b ? bias[0] : 0));
                    a2 += at * (z[l * s.N + i].y + (b && second ? bias[1] : 0));
                }
                if (c + s.L < s.D) {
                    sum1[i] = a1;
                    sum2[i] = a2;
                } else {
                    put(&of.out[(size_t)e * s.N + i], a1);
                    if (second) put(&of.out[(size_t)(e + 1) * s.N + i], a2);
                }
            }
            block_sync();
        }
    }
}

/* S. */
__global__ void __launch_bounds__(THREADS, RESIDENT)
    lisa_patterns_kernel(real *out, const real *qk, const Complex *k, LisaFftWeights w, LisaFftTile tile,
                         LisaFftShape s) {
    SHARED(Complex, z);
    int part, in_launch = divided((int)blockIdx.x, tile.by_parts, &part);
    LisaHead at = head_at(s, in_launch);
    Sums<real> of = {out + at.s, qk + at.qk, at.qk_row, k + (size_t)in_launch * s.D * s.P};
    patterns_of(of, w, NULL, part * tile.twos, tile, z, s);
}

/* dS. */
__global__ void __launch_bounds__(THREADS, RESIDENT)
    lisa_patterns_backward_kernel(float *ds, const real *dy, const Complex *v, LisaFftWeights w, const float *b,
                                  LisaFftTile tile, LisaFftShape s) {
    SHARED(Complex, z);
    int part, in_launch = divided((int)blockIdx.x, tile.by_parts, &part);
    size_t head = in_launch;
    LisaHead at = head_at(s, in_launch);
    Sums<float> of = {ds + head * s.E * s.N, dy + at.y, at.y_row, v + head * s.D * s.P};
    patterns_of(of, w, b, part * tile.twos, tile, z, s);
}

/* == Mix: sums over patterns ====================================================================================== */

/* sum [L,N] = or += s_e (F'(W_e X) + b[c,e]) of the patterns e and e + 1 in z; b may be NULL. */
template <typename T>
DEVICE void add_mix(float *sum, const Complex *z, const T *patterns, const float *b, int e, int c, int channels,
                    const LisaFftShape &s) {
    const T *s1 = patterns + (size_t)e * s.N, *s2 = s1 + s.N;
    bool second = e + 1 < s.E;
    for_spectra(channels, s.fft.by_N, [&](int l, int i) {
        const float *bias = b ? b + (size_t)(c + l) * s.E + e : NULL;
        Complex at = z[l * s.N + i];
        float add = to_float(s1[i]) * (at.x + (b ? bias[0] : 0));
        if (second) add += to_float(s2[i]) * (at.y + (b ? bias[1] : 0));
        sum[l * s.N + i] = (e ? sum[l * s.N + i] : 0) + add;
    });
    block_sync();
}

__global__ void __launch_bounds__(THREADS, RESIDENT)
    lisa_mix_kernel(real *y, const real *patterns, const Complex *v, LisaFftWeights w, const float *b, LisaFftShape s) {
    SHARED(Complex, z);
    float *sum = reinterpret_cast<float *>(behind(z, s)); /* [L,N] */
    int c, in_launch = group_at(s, &c), channels = channels_from(s, c);
    LisaHead at = head_at(s, in_launch);
    for (int e = 0; e < s.E; e += 2) {
        convolve(z, v + (size_t)in_launch * s.D * s.P, w, e, c, channels, s);
        add_mix(sum, z, patterns + at.s, b, e, c, channels, s);
    }
    for_channels(channels, s.N, s, [&](int l, int i) { y[at.y + i * at.y_row + c + l] = to_real(sum[l * s.N + i]); });
}

/* == Queries, keys and values ===================================================================================== */

/* sum [L,P] = or += conj(W_e) and conj(W_e+1) times the two sequences in z. */
DEVICE void correlate_weights(Complex *sum, const Complex *z, LisaFftWeights w, int e, int c, int channels,
                              const LisaFftShape &s) {
    for_spectra(channels, s.fft.by_P, [&](int l, int p) {
        const Complex *weight = w.w + e * w.pattern + (c + l) * w.channel + p;
        Complex d1, d2;
        fft_part(&d1, &d2, z + l * s.N, s.fft.pair[p]);
        Complex add = plus(correlation(weight[0], d1), correlation(weight[w.pattern], d2));
        sum[l * s.P + p] = e ? plus(sum[l * s.P + p], add) : add;
    });
    block_sync();
}

/* z = the sequences of spectra [L,P], those of two channels in one. */
DEVICE void transform_back(Complex *z, const Complex *x, int channels, const LisaFftShape &s) {
    int both = (channels + 1) / 2;
    for_spectra(both, s.fft.by_P, [&](int l, int p) {
        const Complex *first = x + (size_t)2 * l * s.P + p;
        bool second = 2 * l + 1 < channels;
        fft_join(z + l * s.N, s.fft.pair[p], first[0], second ? first[s.P] : complex_of(0, 0));
    });
    block_sync();
    fft_run(z, copy_of(z, s), s.fft, both, true);
}
DEVICE float transformed(const Complex *z, int l, int i, const LisaFftShape &s) {
    Complex at = z[l / 2 * s.N + i];
    return l % 2 ? at.y : at.x;
}

/* dq^ and dk^ of a head's L channels. */
__global__ void __launch_bounds__(THREADS, RESIDENT)
    lisa_queries_kernel(real *dqk, const float *ds, const real *qk, const Complex *k, LisaFftWeights w,
                        LisaFftShape s) {
    SHARED(Complex, z);
    Complex *dk = behind(z, s);                                /* [L,P] */
    float *dq = reinterpret_cast<float *>(dk + s.L * s.P);     /* [L,N] */
    int c, in_launch = group_at(s, &c), channels = channels_from(s, c);
    size_t head = in_launch;
    LisaHead at = head_at(s, in_launch);
    const float *patterns = ds + head * s.E * s.N;
    for (int e = 0; e < s.E; e += 2) {
        convolve(z, k + head * s.D * s.P, w, e, c, channels, s);
        add_mix(dq, z, patterns, NULL, e, c, channels, s);
        transform_outer(z, patterns, e, qk + at.qk + c, at.qk_row, channels, s);
        correlate_weights(dk, z, w, e, c, channels, s);
    }
    transform_back(z, dk, channels, s);
    for_channels(channels, s.N, s, [&](int l, int i) {
        real *to = dqk + at.qk + i * at.qk_row + c + l;
        to[0] = to_real(dq[l * s.N + i]);
        to[at.y_row] = to_real(transformed(z, l, i, s));
    });
}

/* dv of a head's L channels. */
__global__ void __launch_bounds__(THREADS, RESIDENT)
    lisa_values_kernel(real *dqkv, const real *dy, const real *patterns, LisaFftWeights w, LisaFftShape s) {
    SHARED(Complex, z);
    Complex *dv = behind(z, s); /* [L,P] */
    int c, in_launch = group_at(s, &c), channels = channels_from(s, c);
    LisaHead at = head_at(s, in_launch);
    for (int e = 0; e < s.E; e += 2) {
        transform_outer(z, patterns + at.s, e, dy + at.y + c, at.y_row, channels, s);
        correlate_weights(dv, z, w, e, c, channels, s);
    }
    transform_back(z, dv, channels, s);
    for_channels(channels, s.N, s, [&](int l, int i) {
        dqkv[at.v + i * at.qkv_row + c + l] = to_real(transformed(z, l, i, s));
    });
}

/* == Weights ====================================================================================================== */

/* dwb [2,P] (= or +=) of two patterns, summed over the channels of v; z = F(s_e dy). */
DEVICE void add_values_weights(Complex *dwb, const Complex *z, const Complex *v, int channels, bool first,
                               const LisaFftShape &s) {
    for (int p = threadIdx.x; p < s.P; p += THREADS) {
        Complex sum1 = first ? complex_of(0, 0) : dwb[p], sum2 = first ? complex_of(0, 0) : dwb[s.P + p];
        for (int l = 0; l < channels; l++) {
            Complex d1, d2, x = v[(size_t)l * s.P + p];
            fft_part(&d1, &d2, z + l * s.N, s.fft.pair[p]);
            sum1 = plus(sum1, correlation(x, d1));
            sum2 = plus(sum2, correlation(x, d2));
        }
        dwb[p] = sum1;
        dwb[s.P + p] = sum2;
    }
    block_sync();
}

/* A slice's share of db[c,e] = sum dy[i,c] s_e[i] of two patterns: the frequency 0 of z = F(s_e dy). */
DEVICE void add_bias(float *db, const Complex *z, int channels, bool second, bool first, const LisaFftShape &s) {
    for (int l = threadIdx.x; l < channels; l += THREADS) {
        Complex sum = z[(size_t)l * s.N];
        float *to = db + (size_t)l * s.E;
        to[0] = first ? sum.x : to[0] + sum.x;
        if (second) to[1] = first ? sum.y : to[1] + sum.y;
    }
}

/* dwa of two patterns, `next` apart, [L,P] each; z = F(ds_e q^). */
DEVICE void add_keys_weights(Complex *dwa, size_t next, const Complex *z, const Complex *k, int channels, bool first,
                             const LisaFftShape &s) {
    for_spectra(channels, s.fft.by_P, [&](int l, int p) {
        Complex d1, d2, x = k[(size_t)l * s.P + p], *sum1 = dwa + (size_t)l * s.P + p, *sum2 = sum1 + next;
        fft_part(&d1, &d2, z + l * s.N, s.fft.pair[p]);
        *sum1 = first ? correlation(x, d1) : plus(*sum1, correlation(x, d1));
        *sum2 = first ? correlation(x, d2) : plus(*sum2, correlation(x, d2));
    });
    block_sync();
}

__global__ void __launch_bounds__(THREADS, RESIDENT)
    lisa_weights_backward_kernel(Complex *dwa, Complex *dwb, float *db, const real *dy, const real *patterns,
                                 const float *ds, const real *qk, const Complex *k, const Complex *v, LisaFftShape s) {
    SHARED(Complex, z);
    Complex *shared_a = behind(z, s), *shared_b = shared_a + (size_t)2 * s.each * s.L * s.P; /* [2 each,L,P], [2 each,P] */
    int group, part, slice = divided(divided((int)blockIdx.x, s.by_groups, &group), s.by_parts, &part);
    int first = part * s.each, twos = s.twos - first < s.each ? s.twos - first : s.each;
    int c = group * s.L, channels = channels_from(s, c);
    size_t all = 2 * (size_t)s.twos;
    dwa += ((slice * all + 2 * first) * s.D + c) * s.P;
    dwb += (((size_t)slice * s.groups + group) * all + 2 * first) * s.P;
    db += ((size_t)slice * s.D + c) * s.E;
    Complex *sum_a = s.kept ? shared_a : dwa, *sum_b = s.kept ? shared_b : dwb;
    size_t next = s.kept ? (size_t)s.L * s.P : (size_t)s.D * s.P;
    for (int n = 0; n < s.slice && slice * s.slice + n < s.heads; n++) {
        size_t head = slice * s.slice + n, spectrum = (head * s.D + c) * s.P;
        LisaHead at = head_at(s, slice * s.slice + n);
        for (int two = 0; two < twos; two++) {
            int e = 2 * (first + two);
            transform_outer(z, patterns + at.s, e, dy + at.y + c, at.y_row, channels, s);
            add_bias(db + e, z, channels, e + 1 < s.E, n == 0, s);
            add_values_weights(sum_b + 2 * two * s.P, z, v + spectrum, channels, n == 0, s);
            transform_outer(z, ds + head * s.E * s.N, e, qk + at.qk + c, at.qk_row, channels, s);
            add_keys_weights(sum_a + 2 * two * next, next, z, k + spectrum, channels, n == 0, s);
        }
    }
    if (!s.kept) return;
    for_spectra(2 * twos, s.fft.by_P, [&](int e, int p) {
        dwb[(size_t)e * s.P + p] = sum_b[e * s.P + p];
        for (int l = 0; l < channels; l++)
            dwa[((size_t)e * s.D + l) * s.P + p] = sum_a[(e * s.L + l) * s.P + p];
    });
}

/* Adds the shares of `count` slices, `apart` from each other, in order. */
DEVICE Complex shares_sum(const Complex *x, int count, size_t apart) {
    Complex sum = complex_of(0, 0);
    for (int i = 0; i < count; i++) sum = plus(sum, x[i * apart]);
    return sum;
}

__global__ void __launch_bounds__(THREADS, RESIDENT)
    lisa_weights_finish_kernel(float *dwa, float *dwb, const Complex *shares_a, const Complex *shares_b,
                               LisaFftShape s) {
    SHARED(Complex, z); /* [together,N], and its copy */
    Table at = table_at(s);
    size_t patterns = 2 * (size_t)s.twos, next = at.channel ? (size_t)s.D * s.P : s.P;
    const Complex *from = at.channel ? shares_a + ((size_t)at.e * s.D + at.c) * s.P : shares_b + (size_t)at.e * s.P;
    int count = at.channel ? s.slices : s.slices * s.groups;
    size_t apart = at.channel ? patterns * s.D * s.P : patterns * s.P;
    for_spectra(at.twos, s.fft.by_P, [&](int two, int p) {
        const Complex *first = from + 2 * two * next + p;
        fft_join(z + two * s.N, s.fft.pair[p], shares_sum(first, count, apart), shares_sum(first + next, count, apart));
    });
    block_sync();
    fft_run(z, z + s.together * s.N, s.fft, at.twos, true);
    float *to = at.channel ? dwa + (size_t)at.c * s.E + at.e : dwb + at.e, scale = 1.0f / s.N;
    size_t row = at.channel ? (size_t)s.D * s.E : s.E;
    for_table(at, s, [&](int two, int t) {
        float *x = to + t * row + 2 * two;
        x[0] += scale * z[two * s.N + t].x;
        if (at.e + 2 * two + 1 < s.E) x[1] += scale * z[two * s.N + t].y;
    });
}

/* == Launches ===================================================================================================== */

/* Heads first .. of this launch. */
static LisaFftShape launch_of(LisaFftShape s, size_t first, size_t heads, size_t together) {
    s.first_head = (int)first;
    s.heads = (int)(heads - first < together ? heads - first : together);
    s.slices = slices_of(s, s.heads);
    s.slice = (int)ceil_div(s.heads, s.slices);
    s.slices = (int)ceil_div(s.heads, s.slice);
    return s;
}

static LisaFftWeights of_keys(LisaFftBuffers w, const LisaFftShape &s) {
    return {w.wa, (size_t)s.D * s.P, (size_t)s.P};
}
static LisaFftWeights of_values(LisaFftBuffers w, const LisaFftShape &s) { return {w.wb, (size_t)s.P, 0}; }

static unsigned table_blocks(const LisaFftShape &s) { return (unsigned)(ceil_div(s.twos, s.together) * (s.D + 1)); }

static void weights_transform(LisaFftBuffers w, const float *wa, const float *wb, const LisaFftShape &s) {
    LAUNCH(lisa_weights_kernel, table_blocks(s), THREADS, sequences_bytes(s.fft, s.together), w.wa, w.wb, wa, wb, s);
}

static void spectra(LisaFftBuffers w, const real *qk, const real *qkv, const LisaFftShape &s) {
    LAUNCH(lisa_spectra_kernel, (unsigned)(s.heads * s.groups), THREADS, sequences_bytes(s.fft, s.L), w.k, w.v, qk,
           qkv, s);
}

static size_t tile_bytes(const LisaFftShape &s, const LisaFftTile &tile) {
    return patterns_bytes(s.fft, s.L, tile.twos, s.groups > 1);
}

static void blocks_forward(void *work, real *y, real *s, const real *qk, const real *qkv, const LisaTables *lisa,
                           int B) {
    LisaFftShape shape = shape_of(&lisa->patterns);
    size_t heads = (size_t)B * shape.H, together = heads_at_once(shape, heads);
    LisaFftBuffers w = buffers_at(work, shape, heads);
    weights_transform(w, lisa->wa, lisa->wb, shape);
    for (size_t first = 0; first < heads; first += together) {
        LisaFftShape at = launch_of(shape, first, heads, together);
        LisaFftTile tile = tile_of(at);
        spectra(w, qk, qkv, at);
        LAUNCH(lisa_patterns_kernel, (unsigned)at.heads * tile.by_parts.by, THREADS, tile_bytes(at, tile), s, qk, w.k,
               of_keys(w, at), tile, at);
        LAUNCH(lisa_mix_kernel, (unsigned)(at.heads * at.groups), THREADS, mix_bytes(at.fft, at.L), y, s, w.v,
               of_values(w, at), lisa->b, at);
    }
}

static void blocks_backward(void *work, real *dqkv, real *dqk, const LisaGradients *d, const real *dy, const real *s,
                            const real *qk, const real *qkv, const LisaTables *lisa, int B) {
    LisaFftShape shape = shape_of(&lisa->patterns);
    size_t heads = (size_t)B * shape.H, together = heads_at_once(shape, heads);
    LisaFftBuffers w = buffers_at(work, shape, heads);
    weights_transform(w, lisa->wa, lisa->wb, shape);
    for (size_t first = 0; first < heads; first += together) {
        LisaFftShape at = launch_of(shape, first, heads, together);
        unsigned by_channels = (unsigned)(at.heads * at.groups);
        LisaFftTile tile = tile_of(at);
        spectra(w, qk, qkv, at);
        LAUNCH(lisa_patterns_backward_kernel, (unsigned)at.heads * tile.by_parts.by, THREADS, tile_bytes(at, tile),
               w.ds, dy, w.v, of_values(w, at), lisa->b, tile, at);
        LAUNCH(lisa_queries_kernel, by_channels, THREADS, queries_bytes(at.fft, at.L), dqk, w.ds, qk, w.k,
               of_keys(w, at), at);
        LAUNCH(lisa_values_kernel, by_channels, THREADS, values_bytes(at.fft, at.L), dqkv, dy, s, of_values(w, at), at);
        LAUNCH(lisa_weights_backward_kernel, (unsigned)(at.parts * at.groups * at.slices), THREADS,
               weights_bytes(at.fft, at.L, at.kept ? at.each : 0), w.dwa, w.dwb, w.db, dy, s, w.ds, qk, w.k, w.v, at);
        LAUNCH(lisa_weights_finish_kernel, table_blocks(at), THREADS, sequences_bytes(at.fft, at.together), d->wa,
               d->wb, w.dwa, w.dwb, at);
        add_parts(d->b, NULL, w.db, at.slices, at.D * at.E);
    }
}

/* == By blocks or by cuFFT ======================================================================================== */

static bool blocks_fit(const Patterns *patterns) {
    return most_bytes(shape_of(patterns).fft, 1, patterns->D) <= launch_shared_most();
}

static bool takes_cufft(const Patterns *p) { return transforms_by_cufft(blocks_fit(p)); }

static size_t workspace_of(const Patterns *p, int B, bool cufft, bool in_step) {
    return cufft ? lisa_cufft_workspace(p, B, in_step) : blocks_workspace(p, B);
}

size_t lisa_fft_workspace(const Patterns *patterns, int B, bool most) {
    (void)most;
    return workspace_of(patterns, B, takes_cufft(patterns), false);
}

LISA_FORWARD(lisa_fft_forward) {
    bool cufft = takes_cufft(&lisa->patterns);
    void *work = kernels_workspace(workspace_of(&lisa->patterns, B, cufft, true));
    (cufft ? lisa_cufft_forward : blocks_forward)(work, y, s, qk, qkv, lisa, B);
}

LISA_BACKWARD(lisa_fft_backward) {
    (void)ds;
    bool cufft = takes_cufft(&lisa->patterns);
    void *work = kernels_workspace(workspace_of(&lisa->patterns, B, cufft, true));
    (cufft ? lisa_cufft_backward : blocks_backward)(work, dqkv, dqk, d, dy, s, qk, qkv, lisa, B);
}

/* Predicted, not measured.  By blocks: seven complex transforms for every channel and two patterns (six on the CPU),
 * each stage reading and writing shared memory at 128 bytes a clock, and as much as two stages for the sums around
 * them.  By cuFFT: six real transforms for every channel and pattern, written and read twice. */
double lisa_fft_cost(const Patterns *patterns) {
    const double clock = 132 * 1.8e9, memory = 3e12;
    if (!has_spectrum(patterns)) return INFINITY;
    LisaFftShape s = shape_of(patterns);
    if (!blocks_fit(patterns))
        return transforms_available() ? 6.0 * s.E * s.D * s.N * 4 * sizeof(float) / memory : INFINITY;
    return 7.0 * s.twos * s.D * s.N * (2 + s.fft.passes) * 2 * sizeof(Complex) / 128 / clock;
}
