/* A learned filter for every channel in the frequency domain; the formulas are those of kernels/cpu/global_filter.c.  A
 * block transforms L channels of two images at a time in its shared memory (fft.cuh).  The filter's gradient is summed
 * over slices of the batch in workspace, and the slices in order. */
#include "kernels/cuda/fft.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/kernels.h"

enum { THREADS = 256, BLOCKS = 528, SHARED_WISH = 64 * 1024 };

struct Shape {
    FftPlan fft;
    int B, N, M, P; /* P pairs of frequencies */
    int L, groups;  /* channels in a block; blocks for all of them */
    int slices, slice; /* of the images, and images in one, an even number */
};

static size_t sequences_bytes(const FftPlan &plan, int L) {
    return (size_t)L * plan.N * sizeof(Complex) * (plan.largest > 1 ? 2 : 1);
}

static Shape shape_of(int B, Grid grid, int M) {
    const FftPlan *plan = fft_device_plan(grid, true);
    Shape s = {*plan, B, plan->N, M, plan->pairs, M, 1, 1, 0};
    while (s.L > 1 && 2 * sequences_bytes(s.fft, s.L) > SHARED_WISH) s.L--;
    s.groups = (int)ceil_div(M, s.L);
    s.L = (int)ceil_div(M, s.groups);
    s.slice = (int)ceil_div(B, ceil_div(BLOCKS, s.groups));
    s.slice += s.slice % 2;
    s.slices = (int)ceil_div(B, s.slice);
    return s;
}

size_t global_filter_workspace(int B, Grid grid, int M) {
    Shape s = shape_of(B, grid, M);
    return (size_t)s.slices * s.P * s.M * sizeof(Complex);
}

DEVICE bool has_partner(const FftPair &p, const Shape &s) { return p.fx == 0 || 2 * p.fx == s.fft.tokens.columns; }

/* Entry of w [T,Hg,Wg/2+1,M] for frequency p or its partner's, channel c. */
DEVICE size_t entry_of(const FftPair &p, bool partner, int c, const Shape &s) {
    int y = partner ? fft_opposite_row(&s.fft, p.fy) : p.fy;
    return ((size_t)y * (s.fft.tokens.columns / 2 + 1) + p.fx) * s.M + c;
}

/* E / N. */
DEVICE Complex filter_of(const Complex *w, const FftPair &p, int c, const Shape &s) {
    Complex a = w[entry_of(p, false, c, s)];
    if (has_partner(p, s)) {
        Complex b = w[entry_of(p, true, c, s)];
        a = complex_of(0.5f * (a.x + b.x), 0.5f * (a.y - b.y));
    }
    return scaled(1.0f / s.N, a);
}

/* z [L,N] = the spectra of `channels` channels from c of images b and b + 1. */
DEVICE void load_images(Complex *z, Complex *copy, const real *x, int b, int c, int channels, const Shape &s) {
    size_t image = (size_t)s.N * s.M;
    for (int at = threadIdx.x; at < channels * s.N; at += THREADS) {
        int l = at % channels, i = at / channels;
        const real *from = x + b * image + (size_t)i * s.M + c + l;
        z[l * s.N + i] = complex_of(to_float(from[0]), b + 1 < s.B ? to_float(from[image]) : 0);
    }
    block_sync();
    fft_run(z, copy, s.fft, channels, false);
}

/* y = z filtered, with the conjugate filter going back. */
DEVICE void store_filtered(real *y, Complex *z, Complex *copy, const Complex *w, bool conjugate, int b, int c,
                           int channels, const Shape &s) {
    size_t image = (size_t)s.N * s.M;
    for (int at = threadIdx.x; at < channels * s.P; at += THREADS) {
        int l = at % channels;
        FftPair p = s.fft.pair[at / channels];
        Complex e = filter_of(w, p, c + l, s), *sequence = z + l * s.N;
        Complex conjugated = complex_of(e.x, -e.y);
        sequence[p.a] = times(sequence[p.a], conjugate ? conjugated : e);
        if (p.a != p.b) sequence[p.b] = times(sequence[p.b], conjugate ? e : conjugated);
    }
    block_sync();
    fft_run(z, copy, s.fft, channels, true);
    for (int at = threadIdx.x; at < channels * s.N; at += THREADS) {
        int l = at % channels, i = at / channels;
        real *to = y + b * image + (size_t)i * s.M + c + l;
        to[0] = to_real(z[l * s.N + i].x);
        if (b + 1 < s.B) to[image] = to_real(z[l * s.N + i].y);
    }
    block_sync();
}

DEVICE int channels_from(int c, const Shape &s) { return s.M - c < s.L ? s.M - c : s.L; }

__global__ void __launch_bounds__(THREADS)
    global_filter_forward_kernel(real *y, const real *x, const Complex *w, Shape s) {
    SHARED(Complex, z);
    Complex *copy = z + (size_t)s.L * s.N;
    int c = (int)(blockIdx.x % s.groups) * s.L, b = (int)(blockIdx.x / s.groups) * 2, channels = channels_from(c, s);
    load_images(z, copy, x, b, c, channels, s);
    store_filtered(y, z, copy, w, false, b, c, channels, s);
}

/* dx, and a slice's share of dE in `shares` [slices,P,M]. */
__global__ void __launch_bounds__(THREADS)
    global_filter_backward_kernel(real *dx, Complex *shares, const real *dy, const real *x, const Complex *w, Shape s) {
    SHARED(Complex, z); /* [L,N] of x and of dy, and a copy */
    Complex *g = z + (size_t)s.L * s.N, *copy = g + (size_t)s.L * s.N;
    int c = (int)(blockIdx.x % s.groups) * s.L, slice = blockIdx.x / s.groups, channels = channels_from(c, s);
    for (int n = 0; n < s.slice && slice * s.slice + n < s.B; n += 2) {
        int b = slice * s.slice + n;
        load_images(z, copy, x, b, c, channels, s);
        load_images(g, copy, dy, b, c, channels, s);
        for (int at = threadIdx.x; at < channels * s.P; at += THREADS) {
            int l = at % channels, p = at / channels;
            Complex x1, x2, d1, d2, *sum = shares + ((size_t)slice * s.P + p) * s.M + c + l;
            fft_part(&x1, &x2, z + l * s.N, s.fft.pair[p]);
            fft_part(&d1, &d2, g + l * s.N, s.fft.pair[p]);
            Complex add = plus(correlation(x1, d1), correlation(x2, d2));
            *sum = n ? plus(*sum, add) : add;
        }
        block_sync();
        store_filtered(dx, g, copy, w, true, b, c, channels, s);
    }
}

/* A thread for every pair and channel. */
__global__ void __launch_bounds__(THREADS) global_filter_finish_kernel(Complex *dw, const Complex *shares, Shape s) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, all = (size_t)s.P * s.M;
    if (at >= all) return;
    FftPair p = s.fft.pair[at / s.M];
    int c = (int)(at % s.M);
    Complex sum = complex_of(0, 0);
    for (int slice = 0; slice < s.slices; slice++) sum = plus(sum, shares[slice * all + at]);
    sum = scaled((p.a == p.b ? 1.0f : 2.0f) / s.N, sum);
    if (has_partner(p, s)) sum = scaled(0.5f, sum);
    Complex *own = dw + entry_of(p, false, c, s);
    *own = plus(*own, sum);
    if (!has_partner(p, s)) return;
    Complex *partner = dw + entry_of(p, true, c, s);
    *partner = plus(*partner, complex_of(sum.x, -sum.y));
}

/* == Launches ===================================================================================================== */

void global_filter_forward(real *y, const real *x, const float *w, int B, Grid grid, int M) {
    Shape s = shape_of(B, grid, M);
    LAUNCH(global_filter_forward_kernel, (unsigned)(s.groups * ceil_div(B, 2)), THREADS, sequences_bytes(s.fft, s.L), y,
           x, reinterpret_cast<const Complex *>(w), s);
}

void global_filter_backward(real *dx, float *dw, const real *dy, const real *x, const float *w, int B, Grid grid,
                            int M) {
    Shape s = shape_of(B, grid, M);
    Complex *shares = static_cast<Complex *>(kernels_workspace(global_filter_workspace(B, grid, M)));
    size_t bytes = (size_t)s.L * s.N * sizeof(Complex) + sequences_bytes(s.fft, s.L);
    LAUNCH(global_filter_backward_kernel, (unsigned)(s.groups * s.slices), THREADS, bytes, dx, shares, dy, x,
           reinterpret_cast<const Complex *>(w), s);
    LAUNCH(global_filter_finish_kernel, (unsigned)ceil_div((size_t)s.P * M, THREADS), THREADS, 0,
           reinterpret_cast<Complex *>(dw), shares, s);
}
