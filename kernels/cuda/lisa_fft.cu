/* LiSA by Fourier transforms; the formulas are those of kernels/cpu/lisa_fft.c.  A block transforms L channels of one
 * head at a time in its shared memory (fft.cuh), two patterns as one complex sequence; [N,D,E] never leaves it.
 *   spectra    K, V of every channel, Wa and Wb of every pattern, in workspace
 *   patterns   a block for each head and two patterns: S, or in the backward pass dS, summed over the channels
 *   mix        a block for each head and L channels: y, or dq^, summed over the patterns
 *   keys       the same blocks: dK and dV, summed over the patterns, and transformed back together
 *   weights    a block for two patterns, L channels and a slice of the heads: its share of dWa and dWb
 * keys and weights transform the same products twice: sums over patterns and sums over heads meet in no block, and a
 * transform is cheaper than the traffic of what it makes.  Heads go by in chunks, so that workspace does not grow with
 * the batch. */
#include "kernels/cuda/lisa.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/transforms.h"

extern "C" {
#include "core/die.h"
}

enum {
    THREADS = FFT_THREADS,
    BLOCKS = 528,          /* wanted at once: four for each multiprocessor of an H200 */
    SHARED_WISH = 64 * 1024 /* three blocks in a multiprocessor */
};
static const size_t MOST_HEAD_BYTES = (size_t)128 << 20;

struct Shape {
    Fft fft;
    int N, H, D, E, P; /* P pairs of frequencies */
    int L, groups;     /* channels in a block; blocks for all of them */
    int twos;          /* pairs of patterns */
    int first_head;    /* of this launch */
    int slices, slice; /* of the heads of a launch, and heads in one */
    int heads;         /* in this launch */
    Divisor by_H, by_E, by_L, by_groups, by_twos, by_tables; /* tables: D channels' and wb */
};

/* == Plans ======================================================================================================== */

/* Shared memory: z, its copy where a large prime wants one, and the sums of the hungriest kernel, `keys`. */
static size_t sequences_bytes(const Fft &fft, int L) {
    return (size_t)L * fft.N * sizeof(Complex) * (fft.largest > 1 ? 2 : 1);
}
static size_t patterns_bytes(const Fft &fft, int L) {
    return sequences_bytes(fft, L) + 2 * (size_t)fft.N * sizeof(float);
}
static size_t mix_bytes(const Fft &fft, int L) {
    return sequences_bytes(fft, L) + (size_t)L * fft.N * sizeof(float);
}
static size_t keys_bytes(const Fft &fft, int L) {
    return sequences_bytes(fft, L) + 2 * (size_t)L * fft.P * sizeof(Complex);
}
static size_t most_bytes(const Fft &fft, int L) {
    size_t patterns = patterns_bytes(fft, L), keys = keys_bytes(fft, L);
    return patterns > keys ? patterns : keys;
}

static bool has_spectrum(const Patterns *p) {
    return (p->offsets.kind == OFFSETS_CIRCLE || p->offsets.kind == OFFSETS_TORUS) && p->per_channel;
}

static Shape shape_of(const Patterns *p) {
    int H = p->H, D = p->D;
    const Fft *fft = fft_device_plan(p->offsets.grid, p->offsets.kind == OFFSETS_TORUS);
    Shape s = {*fft, fft->N, H, D, p->E, fft->P, D, 1, (p->E + 1) / 2, 0, 1, 1, 0, divisor_of(H), divisor_of(p->E),
               {}, {}, {}, divisor_of(D + 1)};
    while (s.L > 1 && most_bytes(*fft, s.L) > SHARED_WISH) s.L--;
    s.groups = (int)ceil_div(D, s.L);
    s.L = (int)ceil_div(D, s.groups);
    s.by_L = divisor_of(s.L);
    s.by_groups = divisor_of(s.groups);
    s.by_twos = divisor_of(s.twos);
    return s;
}

/* == Workspace ==================================================================================================== */

struct Buffers {
    Complex *wa, *wb;   /* [2 twos,D,P], [2 twos,P], divided by N */
    Complex *dwa, *dwb; /* [slices,2 twos,D,P], [slices,groups,2 twos,P] */
    float *db;          /* [slices,D,E] */
    Complex *k, *v;     /* [heads,D,P] */
    float *ds;          /* [heads,E,N] */
};

static int slices_of(const Shape &s, size_t heads) {
    size_t slices = ceil_div(BLOCKS, (size_t)s.twos * s.groups);
    return (int)(slices < heads ? slices : heads);
}

static size_t heads_at_once(const Shape &s, size_t heads) {
    size_t each = 2 * (size_t)s.D * s.P * sizeof(Complex) + (size_t)s.E * s.N * sizeof(float);
    size_t most = MOST_HEAD_BYTES / each > 0 ? MOST_HEAD_BYTES / each : 1;
    return most < heads ? most : heads;
}

static Buffers buffers_of(const Shape &s, size_t heads, char *base, size_t *bytes) {
    size_t next = 0, together = heads_at_once(s, heads), slices = slices_of(s, together), patterns = 2 * (size_t)s.twos;
    auto take = [&](size_t size) {
        char *at = base ? base + next : NULL;
        next += ceil_div(size, 16) * 16;
        return at;
    };
    auto complexes = [&](size_t n) { return reinterpret_cast<Complex *>(take(n * sizeof(Complex))); };
    Buffers w;
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

static Buffers buffers_at(void *work, const Shape &s, size_t heads) {
    size_t bytes;
    return buffers_of(s, heads, static_cast<char *>(work), &bytes);
}

/* The head, in the launch, and the first channel of a block that has L channels of one head. */
DEVICE int group_at(const Shape &s, int *c) {
    int group, head = divided((int)blockIdx.x, s.by_groups, &group);
    *c = group * s.L;
    return head;
}
/* The same, and the first pattern, of a block that has two patterns of one head. */
DEVICE int two_at(const Shape &s, int *e) {
    int two, head = divided((int)blockIdx.x, s.by_twos, &two);
    *e = 2 * two;
    return head;
}

/* visit(l, n) for the channels of a group that are there and n < count, channels side by side: rows of memory. */
template <typename Visit>
DEVICE void for_channels(int channels, int count, const Shape &s, Visit visit) {
    for (int i = (int)threadIdx.x; i < s.L * count; i += THREADS) {
        int l, n = divided(i, s.by_L, &l);
        if (l < channels) visit(l, n);
    }
}
/* The same with n side by side. */
template <typename Visit>
DEVICE void for_spectra(int channels, const Divisor &count, Visit visit) {
    for (int i = (int)threadIdx.x; i < channels * (int)count.by; i += THREADS) {
        int n, l = divided(i, count, &n);
        visit(l, n);
    }
}

DEVICE int channels_from(const Shape &s, int first) { return s.D - first < s.L ? s.D - first : s.L; }
DEVICE Complex *copy_of(Complex *z, const Shape &s) { return z + (size_t)s.L * s.N; }
DEVICE Complex *behind(Complex *z, const Shape &s) {
    return copy_of(z, s) + (s.fft.largest > 1 ? (size_t)s.L * s.N : 0);
}

/* == Spectra ====================================================================================================== */

__global__ void __launch_bounds__(THREADS)
    lisa_weights_kernel(Complex *wa_out, Complex *wb_out, const float *wa, const float *wb, Shape s) {
    SHARED(Complex, z); /* [N], and its copy */
    int c, e = 2 * divided((int)blockIdx.x, s.by_tables, &c);
    bool channel = c < s.D, second = e + 1 < s.E;
    const float *from = channel ? wa + (size_t)c * s.E + e : wb + e;
    size_t row = channel ? (size_t)s.D * s.E : s.E;
    for (int t = threadIdx.x; t < s.N; t += THREADS) z[t] = complex_of(from[t * row], second ? from[t * row + 1] : 0);
    block_sync();
    fft_run(z, z + s.N, s.fft, 1, false);
    Complex *to = channel ? wa_out + ((size_t)e * s.D + c) * s.P : wb_out + (size_t)e * s.P;
    size_t next = channel ? (size_t)s.D * s.P : s.P;
    for (int p = threadIdx.x; p < s.P; p += THREADS) {
        Complex x1, x2;
        fft_part(&x1, &x2, z, s.fft.pair[p]);
        to[p] = scaled(1.0f / s.N, x1);
        to[next + p] = scaled(1.0f / s.N, x2);
    }
}

__global__ void __launch_bounds__(THREADS)
    lisa_spectra_kernel(Complex *k_out, Complex *v_out, const real *qk, const real *qkv, Shape s) {
    SHARED(Complex, z);
    int c, in_launch = group_at(s, &c), channels = channels_from(s, c);
    size_t head = in_launch;
    Head at = head_at(s, in_launch);
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
struct Weights {
    const Complex *w;
    size_t pattern, channel;
};

/* z = the convolutions of channels c.. of x [D,P] with patterns e and e + 1, one in each part. */
DEVICE void convolve(Complex *z, const Complex *x, Weights w, int e, int c, int channels, const Shape &s) {
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
                            const Shape &s) {
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

/* out_e[i] = sum_c left[i,c] (F'(W_e X)[i,c] + b[c,e]) for two patterns; b may be NULL.  out [heads,E,N]. */
template <typename T>
DEVICE void patterns_of(T *out, const real *left, size_t row, const Complex *x, Weights w, const float *b, int e,
                        Complex *z, const Shape &s) {
    float *sum1 = reinterpret_cast<float *>(behind(z, s)), *sum2 = sum1 + s.N; /* [N] each */
    bool second = e + 1 < s.E;
    for (int c = 0; c < s.D; c += s.L) {
        int channels = channels_from(s, c);
        convolve(z, x, w, e, c, channels, s);
        for (int i = threadIdx.x; i < s.N; i += THREADS) {
            float a1 = c ? sum1[i] : 0, a2 = c ? sum2[i] : 0;
            for (int l = 0; l < channels; l++) {
                float at = to_float(left[i * row + c + l]);
                const float *bias = b ? b + (size_t)(c + l) * s.E + e : NULL;
                a1 += at * (z[l * s.N + i].x + (b ? bias[0] : 0));
                a2 += at * (z[l * s.N + i].y + (b && second ? bias[1] : 0));
            }
            sum1[i] = a1;
            sum2[i] = a2;
        }
        block_sync();
    }
    for (int i = threadIdx.x; i < s.N; i += THREADS) {
        put(&out[(size_t)e * s.N + i], sum1[i]);
        if (second) put(&out[(size_t)(e + 1) * s.N + i], sum2[i]);
    }
}

/* S. */
__global__ void __launch_bounds__(THREADS)
    lisa_patterns_kernel(real *out, const real *qk, const Complex *k, Weights w, Shape s) {
    SHARED(Complex, z);
    int e, in_launch = two_at(s, &e);
    size_t head = in_launch;
    Head at = head_at(s, in_launch);
    patterns_of(out + at.s, qk + at.qk, at.qk_row, k + head * s.D * s.P, w, NULL, e, z, s);
}

/* dS. */
__global__ void __launch_bounds__(THREADS)
    lisa_patterns_backward_kernel(float *ds, const real *dy, const Complex *v, Weights w, const float *b, Shape s) {
    SHARED(Complex, z);
    int e, in_launch = two_at(s, &e);
    size_t head = in_launch;
    Head at = head_at(s, in_launch);
    patterns_of(ds + head * s.E * s.N, dy + at.y, at.y_row, v + head * s.D * s.P, w, b, e, z,
                s);
}

/* == Mix: sums over patterns ====================================================================================== */

/* out[i,c] = sum_e s_e[i] (F'(W_e X)[i,c] + b[c,e]) for L channels from c; b may be NULL. */
template <typename T>
DEVICE void mix_of(real *out, size_t row, const T *patterns, const Complex *x, Weights w, const float *b, int c,
                   Complex *z, const Shape &s) {
    float *sum = reinterpret_cast<float *>(behind(z, s)); /* [L,N] */
    int channels = channels_from(s, c);
    for (int e = 0; e < s.E; e += 2) {
        const T *s1 = patterns + (size_t)e * s.N, *s2 = s1 + s.N;
        bool second = e + 1 < s.E;
        convolve(z, x, w, e, c, channels, s);
        for_spectra(channels, s.fft.by_N, [&](int l, int i) {
            const float *bias = b ? b + (size_t)(c + l) * s.E + e : NULL;
            Complex at = z[l * s.N + i];
            float add = to_float(s1[i]) * (at.x + (b ? bias[0] : 0));
            if (second) add += to_float(s2[i]) * (at.y + (b ? bias[1] : 0));
            sum[l * s.N + i] = (e ? sum[l * s.N + i] : 0) + add;
        });
        block_sync();
    }
    for_channels(channels, s.N, s, [&](int l, int i) { out[i * row + l] = to_real(sum[l * s.N + i]); });
}

__global__ void __launch_bounds__(THREADS)
    lisa_mix_kernel(real *y, const real *patterns, const Complex *v, Weights w, const float *b, Shape s) {
    SHARED(Complex, z);
    int c, in_launch = group_at(s, &c);
    size_t head = in_launch;
    Head at = head_at(s, in_launch);
    mix_of(y + at.y + c, at.y_row, patterns + at.s, v + head * s.D * s.P, w, b, c, z, s);
}

__global__ void __launch_bounds__(THREADS)
    lisa_mix_backward_kernel(real *dqk, const float *ds, const Complex *k, Weights w, Shape s) {
    SHARED(Complex, z);
    int c, in_launch = group_at(s, &c);
    size_t head = in_launch;
    Head at = head_at(s, in_launch);
    mix_of(dqk + at.qk + c, at.qk_row, ds + head * s.E * s.N, k + head * s.D * s.P, w, NULL, c, z, s);
}

/* == Keys: dk and dv ============================================================================================== */

/* sum [L,P] += conj(W_e) and conj(W_e+1) times the two sequences in z. */
DEVICE void correlate_weights(Complex *sum, const Complex *z, Weights w, int e, int c, int channels, const Shape &s) {
    for_spectra(channels, s.fft.by_P, [&](int l, int p) {
        const Complex *weight = w.w + e * w.pattern + (c + l) * w.channel + p;
        Complex d1, d2;
        fft_part(&d1, &d2, z + l * s.N, s.fft.pair[p]);
        Complex add = plus(correlation(weight[0], d1), correlation(weight[w.pattern], d2));
        sum[l * s.P + p] = e ? plus(sum[l * s.P + p], add) : add;
    });
    block_sync();
}

__global__ void __launch_bounds__(THREADS)
    lisa_keys_kernel(real *dqkv, real *dqk, const real *dy, const real *patterns, const float *ds, const real *qk,
                     Weights wa, Weights wb, Shape s) {
    SHARED(Complex, z);
    Complex *dk = behind(z, s), *dv = dk + s.L * s.P; /* [L,P] each */
    int c, in_launch = group_at(s, &c), channels = channels_from(s, c);
    size_t head = in_launch;
    Head at = head_at(s, in_launch);
    for (int e = 0; e < s.E; e += 2) {
        transform_outer(z, patterns + at.s, e, dy + at.y + c, at.y_row, channels, s);
        correlate_weights(dv, z, wb, e, c, channels, s);
        transform_outer(z, ds + head * s.E * s.N, e, qk + at.qk + c, at.qk_row, channels, s);
        correlate_weights(dk, z, wa, e, c, channels, s);
    }
    for_spectra(channels, s.fft.by_P,
                [&](int l, int p) { fft_join(z + l * s.N, s.fft.pair[p], dk[l * s.P + p], dv[l * s.P + p]); });
    block_sync();
    fft_run(z, copy_of(z, s), s.fft, channels, true);
    for_channels(channels, s.N, s, [&](int l, int i) {
        dqk[at.qk + at.y_row + i * at.qk_row + c + l] = to_real(z[l * s.N + i].x);
        dqkv[at.v + i * at.qkv_row + c + l] = to_real(z[l * s.N + i].y);
    });
}

/* == Weights ====================================================================================================== */

__global__ void __launch_bounds__(THREADS)
    lisa_weights_backward_kernel(Complex *dwa, Complex *dwb, const real *dy, const real *patterns, const float *ds,
                                 const real *qk, const Complex *k, const Complex *v, Shape s) {
    SHARED(Complex, z);
    int group, two, slice = divided(divided((int)blockIdx.x, s.by_groups, &group), s.by_twos, &two);
    int e = 2 * two, c = group * s.L, channels = channels_from(s, c);
    size_t all = 2 * (size_t)s.twos;
    dwa += ((slice * all + e) * s.D + c) * s.P;
    dwb += (((size_t)slice * s.groups + group) * all + e) * s.P;
    for (int n = 0; n < s.slice && slice * s.slice + n < s.heads; n++) {
        size_t head = slice * s.slice + n, spectrum = (head * s.D + c) * s.P;
        Head at = head_at(s, slice * s.slice + n);
        transform_outer(z, patterns + at.s, e, dy + at.y + c, at.y_row, channels, s);
        for (int p = threadIdx.x; p < s.P; p += THREADS) {
            Complex sum1 = n ? dwb[p] : complex_of(0, 0), sum2 = n ? dwb[s.P + p] : complex_of(0, 0);
            for (int l = 0; l < channels; l++) {
                Complex d1, d2, x = v[spectrum + (size_t)l * s.P + p];
                fft_part(&d1, &d2, z + l * s.N, s.fft.pair[p]);
                sum1 = plus(sum1, correlation(x, d1));
                sum2 = plus(sum2, correlation(x, d2));
            }
            dwb[p] = sum1;
            dwb[s.P + p] = sum2;
        }
        block_sync();
        transform_outer(z, ds + head * s.E * s.N, e, qk + at.qk + c, at.qk_row, channels, s);
        for_spectra(channels, s.fft.by_P, [&](int l, int p) {
            Complex d1, d2, x = k[spectrum + (size_t)l * s.P + p];
            Complex *sum1 = dwa + (size_t)l * s.P + p, *sum2 = sum1 + (size_t)s.D * s.P;
            fft_part(&d1, &d2, z + l * s.N, s.fft.pair[p]);
            *sum1 = n ? plus(*sum1, correlation(x, d1)) : correlation(x, d1);
            *sum2 = n ? plus(*sum2, correlation(x, d2)) : correlation(x, d2);
        });
        block_sync();
    }
}

/* The shares of `count` slices, `apart` from each other, in order. */
DEVICE Complex shares_sum(const Complex *x, int count, size_t apart) {
    Complex sum = complex_of(0, 0);
    for (int i = 0; i < count; i++) sum = plus(sum, x[i * apart]);
    return sum;
}

__global__ void __launch_bounds__(THREADS)
    lisa_weights_finish_kernel(float *dwa, float *dwb, const Complex *shares_a, const Complex *shares_b, Shape s) {
    SHARED(Complex, z);
    int c, e = 2 * divided((int)blockIdx.x, s.by_tables, &c);
    bool channel = c < s.D;
    size_t patterns = 2 * (size_t)s.twos, next = channel ? (size_t)s.D * s.P : s.P;
    const Complex *from = channel ? shares_a + ((size_t)e * s.D + c) * s.P : shares_b + (size_t)e * s.P;
    int count = channel ? s.slices : s.slices * s.groups;
    size_t apart = channel ? patterns * s.D * s.P : patterns * s.P;
    for (int p = threadIdx.x; p < s.P; p += THREADS)
        fft_join(z, s.fft.pair[p], shares_sum(from + p, count, apart), shares_sum(from + next + p, count, apart));
    block_sync();
    fft_run(z, z + s.N, s.fft, 1, true);
    float *to = channel ? dwa + (size_t)c * s.E + e : dwb + e, scale = 1.0f / s.N;
    size_t row = channel ? (size_t)s.D * s.E : s.E;
    for (int t = threadIdx.x; t < s.N; t += THREADS) {
        to[t * row] += scale * z[t].x;
        if (e + 1 < s.E) to[t * row + 1] += scale * z[t].y;
    }
}

/* A slice's share of db[c,e] = sum dy[i,c] S_e[i]. */
__global__ void __launch_bounds__(THREADS)
    lisa_bias_backward_kernel(float *db, const real *dy, const real *patterns, Shape s) {
    int slice = blockIdx.x;
    for (int at = threadIdx.x; at < s.D * s.E; at += THREADS) {
        int e, c = divided(at, s.by_E, &e);
        float total = 0;
        for (int n = 0; n < s.slice && slice * s.slice + n < s.heads; n++) {
            Head head = head_at(s, slice * s.slice + n);
            float sum = 0;
            for (int i = 0; i < s.N; i++)
                sum += to_float(dy[head.y + i * head.y_row + c]) * to_float(patterns[head.s + (size_t)e * s.N + i]);
            total += sum;
        }
        db[(size_t)slice * s.D * s.E + at] = total;
    }
}

/* == Launches ===================================================================================================== */

/* Heads first .. of this launch. */
static Shape launch_of(Shape s, size_t first, size_t heads, size_t together) {
    s.first_head = (int)first;
    s.heads = (int)(heads - first < together ? heads - first : together);
    s.slices = slices_of(s, s.heads);
    s.slice = (int)ceil_div(s.heads, s.slices);
    s.slices = (int)ceil_div(s.heads, s.slice);
    return s;
}

static Weights of_keys(Buffers w, const Shape &s) { return {w.wa, (size_t)s.D * s.P, (size_t)s.P}; }
static Weights of_values(Buffers w, const Shape &s) { return {w.wb, (size_t)s.P, 0}; }

static void weights_transform(Buffers w, const float *wa, const float *wb, const Shape &s) {
    LAUNCH(lisa_weights_kernel, (unsigned)(s.twos * (s.D + 1)), THREADS, sequences_bytes(s.fft, 1), w.wa, w.wb, wa, wb,
           s);
}

static void spectra(Buffers w, const real *qk, const real *qkv, const Shape &s) {
    LAUNCH(lisa_spectra_kernel, (unsigned)(s.heads * s.groups), THREADS, sequences_bytes(s.fft, s.L), w.k, w.v, qk,
           qkv, s);
}

static void blocks_forward(void *work, real *y, real *s, const real *qk, const real *qkv, const LisaTables *lisa,
                           int B) {
    Shape shape = shape_of(&lisa->patterns);
    size_t heads = (size_t)B * shape.H, together = heads_at_once(shape, heads);
    Buffers w = buffers_at(work, shape, heads);
    weights_transform(w, lisa->wa, lisa->wb, shape);
    for (size_t first = 0; first < heads; first += together) {
        Shape at = launch_of(shape, first, heads, together);
        spectra(w, qk, qkv, at);
        LAUNCH(lisa_patterns_kernel, (unsigned)(at.heads * at.twos), THREADS, patterns_bytes(at.fft, at.L), s, qk, w.k,
               of_keys(w, at), at);
        LAUNCH(lisa_mix_kernel, (unsigned)(at.heads * at.groups), THREADS, mix_bytes(at.fft, at.L), y, s, w.v,
               of_values(w, at), lisa->b, at);
    }
}

static void blocks_backward(void *work, real *dqkv, real *dqk, const LisaGradients *d, const real *dy, const real *s,
                            const real *qk, const real *qkv, const LisaTables *lisa, int B) {
    Shape shape = shape_of(&lisa->patterns);
    size_t heads = (size_t)B * shape.H, together = heads_at_once(shape, heads);
    Buffers w = buffers_at(work, shape, heads);
    weights_transform(w, lisa->wa, lisa->wb, shape);
    for (size_t first = 0; first < heads; first += together) {
        Shape at = launch_of(shape, first, heads, together);
        unsigned by_channels = (unsigned)(at.heads * at.groups);
        spectra(w, qk, qkv, at);
        LAUNCH(lisa_patterns_backward_kernel, (unsigned)(at.heads * at.twos), THREADS, patterns_bytes(at.fft, at.L),
               w.ds, dy, w.v, of_values(w, at), lisa->b, at);
        LAUNCH(lisa_mix_backward_kernel, by_channels, THREADS, mix_bytes(at.fft, at.L), dqk, w.ds, w.k, of_keys(w, at),
               at);
        LAUNCH(lisa_keys_kernel, by_channels, THREADS, keys_bytes(at.fft, at.L), dqkv, dqk, dy, s, w.ds, qk,
               of_keys(w, at), of_values(w, at), at);
        LAUNCH(lisa_weights_backward_kernel, (unsigned)(at.twos * at.groups * at.slices), THREADS,
               sequences_bytes(at.fft, at.L), w.dwa, w.dwb, dy, s, w.ds, qk, w.k, w.v, at);
        LAUNCH(lisa_weights_finish_kernel, (unsigned)(at.twos * (at.D + 1)), THREADS, sequences_bytes(at.fft, 1),
               d->wa, d->wb, w.dwa, w.dwb, at);
        LAUNCH(lisa_bias_backward_kernel, (unsigned)at.slices, THREADS, 0, w.db, dy, s, at);
        add_parts(d->b, NULL, w.db, at.slices, at.D * at.E);
    }
}

/* == By blocks or by cuFFT ======================================================================================== */

static bool blocks_fit(const Patterns *patterns) {
    return most_bytes(shape_of(patterns).fft, 1) <= launch_shared_most();
}

/* Milliseconds of forward and backward. */
template <typename Forward, typename Backward>
static float way_time(const Patterns *p, int B, size_t workspace, Forward forward, Backward backward) {
    size_t T = offsets_count(&p->offsets), n = (size_t)B * grid_tokens(p->offsets.grid) * p->H;
    size_t M = n * p->D * sizeof(real);
    Scratch work(workspace), y(M), qk(2 * M), qkv(3 * M), s(n * p->E * sizeof(real));
    Scratch wa(T * p->D * p->E * sizeof(float)), wb(T * p->E * sizeof(float)), b((size_t)p->D * p->E * sizeof(float));
    LisaTables tables = {*p, wa.as<float>(), wb.as<float>(), b.as<float>()};
    LisaGradients gradients = {wa.as<float>(), wb.as<float>(), b.as<float>()}; /* zeros, whatever is added */
    return transforms_time([&] {
        forward(work.p, y.as<real>(), s.as<real>(), qk.as<real>(), qkv.as<real>(), &tables, B);
        backward(work.p, qkv.as<real>(), qk.as<real>(), &gradients, y.as<real>(), s.as<real>(), qk.as<real>(),
                 qkv.as<real>(), &tables, B);
    });
}

/* VIT_TRANSFORMS, or what was measured when these patterns were first planned for. */
static bool takes_cufft(const Patterns *p, int B) {
    enum { MOST_IMAGES = 32 };
    static struct Known {
        Patterns patterns;
        bool cufft;
        Known *next;
    } *known;
    TransformWay way = transforms_asked(blocks_fit(p));
    if (way != WAY_MEASURED) return way == WAY_CUFFT;
    for (Known *k = known; k; k = k->next)
        if (same_patterns(k->patterns, *p)) return k->cufft;
    if (B > MOST_IMAGES) B = MOST_IMAGES;
    float blocks = way_time(p, B, blocks_workspace(p, B), blocks_forward, blocks_backward);
    float cufft = way_time(p, B, lisa_cufft_workspace(p, B, false), lisa_cufft_forward, lisa_cufft_backward);
    Known *k = static_cast<Known *>(xcalloc(1, sizeof *k, "transforms measured"));
    *k = {*p, cufft < blocks, known};
    known = k;
    return k->cufft;
}

static size_t workspace_of(const Patterns *p, int B, bool cufft, bool in_step) {
    return cufft ? lisa_cufft_workspace(p, B, in_step) : blocks_workspace(p, B);
}

size_t lisa_fft_workspace(const Patterns *patterns, int B) {
    return workspace_of(patterns, B, takes_cufft(patterns, B), false);
}

LISA_FORWARD(lisa_fft_forward) {
    bool cufft = takes_cufft(&lisa->patterns, B);
    void *work = kernels_workspace(workspace_of(&lisa->patterns, B, cufft, true));
    (cufft ? lisa_cufft_forward : blocks_forward)(work, y, s, qk, qkv, lisa, B);
}

LISA_BACKWARD(lisa_fft_backward) {
    bool cufft = takes_cufft(&lisa->patterns, B);
    void *work = kernels_workspace(workspace_of(&lisa->patterns, B, cufft, true));
    (cufft ? lisa_cufft_backward : blocks_backward)(work, dqkv, dqk, d, dy, s, qk, qkv, lisa, B);
}

/* Predicted, not measured.  By blocks: seven complex transforms for every channel and two patterns (six on the CPU),
 * each stage reading and writing shared memory at 128 bytes a clock, and as much as two stages for the sums around
 * them.  By cuFFT: six real transforms for every channel and pattern, written and read twice. */
double lisa_fft_cost(const Patterns *patterns) {
    const double clock = 132 * 1.8e9, memory = 3e12;
    if (!has_spectrum(patterns)) return INFINITY;
    Shape s = shape_of(patterns);
    if (!blocks_fit(patterns))
        return transforms_available() ? 6.0 * s.E * s.D * s.N * 4 * sizeof(float) / memory : INFINITY;
    return 7.0 * s.twos * s.D * s.N * (2 + s.fft.passes) * 2 * sizeof(Complex) / 128 / clock;
}
