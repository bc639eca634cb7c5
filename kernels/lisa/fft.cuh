/* Fourier transforms of a block in its shared memory: z [L,N] complex, L interleaved sequences, in the order of
 * kernels/lisa/fft_plan.h.  A thread takes a butterfly of one sequence; stages end with a barrier. Neither direction
 * scales. */
#ifndef VIT_KERNELS_CUDA_FFT_CUH
#define VIT_KERNELS_CUDA_FFT_CUH

#include <device.cuh>

#include "kernels/cuda/divisor.cuh"
#include "kernels/lisa/fft_plan.h"
#include "kernels/tokens/grid.h"

typedef float2 Complex;

enum { FFT_THREADS = 256 }; /* of a block */

DEVICE Complex complex_of(float re, float im) {
    Complex z;
    z.x = re, z.y = im;
    return z;
}
DEVICE Complex plus(Complex a, Complex b) { return complex_of(a.x + b.x, a.y + b.y); }
DEVICE Complex minus(Complex a, Complex b) { return complex_of(a.x - b.x, a.y - b.y); }
DEVICE Complex times(Complex a, Complex b) { return complex_of(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
/* conj(a) b */
DEVICE Complex correlation(Complex a, Complex b) { return complex_of(a.x * b.x + a.y * b.y, a.x * b.y - a.y * b.x); }
DEVICE Complex scaled(float s, Complex a) { return complex_of(s * a.x, s * a.y); }
/* The inverse swaps real and imaginary parts, which has the effect of conjugate roots. */
DEVICE Complex swapped(Complex a, bool backward) { return backward ? complex_of(a.y, a.x) : a; }

/* == Butterflies ================================================================================================== */

DEVICE void butterfly(Complex (&x)[2]) {
    Complex a = x[0];
    x[0] = plus(a, x[1]);
    x[1] = minus(a, x[1]);
}

DEVICE void butterfly(Complex (&x)[4]) {
    Complex a = plus(x[0], x[2]), b = plus(x[1], x[3]), c = minus(x[0], x[2]), d = minus(x[1], x[3]);
    x[0] = plus(a, b);
    x[2] = minus(a, b);
    x[1] = complex_of(c.x + d.y, c.y - d.x);
    x[3] = complex_of(c.x - d.y, c.y + d.x);
}

DEVICE void butterfly(Complex (&x)[8]) {
    const float half = 0.707106781f;
    Complex even[4] = {x[0], x[2], x[4], x[6]}, odd[4] = {x[1], x[3], x[5], x[7]};
    butterfly(even);
    butterfly(odd);
    odd[1] = scaled(half, complex_of(odd[1].x + odd[1].y, odd[1].y - odd[1].x));
    odd[2] = complex_of(odd[2].y, -odd[2].x);
    odd[3] = scaled(half, complex_of(odd[3].y - odd[3].x, -odd[3].x - odd[3].y));
#pragma unroll
    for (int q = 0; q < 4; q++) {
        x[q] = plus(even[q], odd[q]);
        x[q + 4] = minus(even[q], odd[q]);
    }
}

/* cos and sin of 2 pi k / R. */
template <int R>
DEVICE float root_cos(int k) {
    k = k > R / 2 ? R - k : k;
    if (R == 3) return -0.5f;
    if (R == 5) return k == 1 ? 0.309016994f : -0.809016994f;
    return k == 1 ? 0.623489802f : k == 2 ? -0.222520934f : -0.900968868f;
}
template <int R>
DEVICE float root_sin(int k) {
    float sign = k > R / 2 ? -1.0f : 1.0f;
    k = k > R / 2 ? R - k : k;
    if (R == 3) return sign * 0.866025404f;
    if (R == 5) return sign * (k == 1 ? 0.951056516f : 0.587785252f);
    return sign * (k == 1 ? 0.781831482f : k == 2 ? 0.974927912f : 0.433883739f);
}

/* R = 3, 5, 7: sums of x_k and x_(R-k) are multiplied by the cosines, differences by the sines. */
template <int R>
DEVICE void butterfly(Complex (&x)[R]) {
    Complex sum[R / 2], difference[R / 2], first = x[0];
#pragma unroll
    for (int k = 1; k <= R / 2; k++) {
        sum[k - 1] = plus(x[k], x[R - k]);
        difference[k - 1] = minus(x[k], x[R - k]);
        x[0] = plus(x[0], sum[k - 1]);
    }
#pragma unroll
    for (int q = 1; q <= R / 2; q++) {
        Complex a = first, b = complex_of(0, 0);
#pragma unroll
        for (int k = 1; k <= R / 2; k++) {
            a = plus(a, scaled(root_cos<R>(k * q % R), sum[k - 1]));
            b = plus(b, scaled(root_sin<R>(k * q % R), difference[k - 1]));
        }
        x[q] = complex_of(a.x + b.y, a.y - b.x);
        x[R - q] = complex_of(a.x - b.y, a.y + b.x);
    }
}

/* == Plans ======================================================================================================== */

/* The first element of butterfly u of a sequence [N], and the stage's roots that it uses. */
struct FftPlace {
    int at, root;
};

/* One stage along one axis.  `places` has the divisors that give the place of u. */
struct FftStage {
    int radix, apart;    /* from one number of a butterfly to the next */
    Divisor butterflies; /* N / radix: those of a sequence */
    Divisor by_radix;
    const FftPlace *places; /* [N / radix] */
    const Complex *turns;   /* W_L^(jq), radix - 1 for each j */
    const Complex *roots;   /* W_r^k, of a radix without a butterfly of its own */
};

/* FftPair, and its entries in a half spectrum [T,Hg,Wg/2+1]: of f, and of -f where that has one of its own, else -1. */
struct FftFrequencies {
    int a, b, entry, opposite;
};

/* FftPlan on the device; its pointers point to device memory. */
struct Fft {
    int N, P;    /* P pairs of frequencies */
    int largest; /* largest prime factor of a side, or 1 if none is above 7 */
    int stages;
    double passes; /* over the sequence, estimated */
    Divisor by_N, by_P;
    const FftStage *stage; /* [stages] in the forward transform's order */
    const FftFrequencies *pair; /* [P] */
};

/* The plan for this grid, valid until the next call: made on the first one and kept among the last (fft_plan_kept), so
 * kernels ask in their *_workspace functions (fft.cu). */
const Fft *fft_device_plan(Grid tokens, bool grid);

/* == Stages ======================================================================================================= */

template <int R>
DEVICE void fft_stage(Complex *z, const FftStage &s, int N, int L, bool backward) {
    const int apart = s.apart, each = N / R;
    const Divisor butterflies = s.butterflies;
    const FftPlace *places = s.places;
    const Complex *turns = s.turns;
    for (int i = (int)threadIdx.x; i < L * each; i += FFT_THREADS) {
        int u, sequence = divided(i, butterflies, &u), at = places[u].at + sequence * N;
        const Complex *w = turns + places[u].root;
        Complex x[R];
#pragma unroll
        for (int k = 0; k < R; k++) {
            x[k] = swapped(z[at + k * apart], backward);
            if (backward && k) x[k] = times(x[k], w[k - 1]);
        }
        butterfly(x);
#pragma unroll
        for (int k = 0; k < R; k++) {
            if (!backward && k) x[k] = times(x[k], w[k - 1]);
            z[at + k * apart] = swapped(x[k], backward);
        }
    }
    block_sync();
}

/* A prime factor r above 7, by the definition, from a copy. */
DEVICE void fft_stage_any(Complex *z, Complex *copy, const FftStage &s, int N, int L, bool backward) {
    const int r = s.radix;
    for (int i = (int)threadIdx.x; i < L * N; i += FFT_THREADS) {
        int k, u, butterfly = divided(i, s.by_radix, &k), sequence = divided(butterfly, s.butterflies, &u);
        int at = s.places[u].at + sequence * N + k * s.apart;
        Complex x = swapped(z[at], backward);
        copy[at] = backward && k ? times(x, s.turns[s.places[u].root + k - 1]) : x;
    }
    block_sync();
    for (int i = (int)threadIdx.x; i < L * N; i += FFT_THREADS) {
        int q, u, butterfly = divided(i, s.by_radix, &q), sequence = divided(butterfly, s.butterflies, &u);
        int at = s.places[u].at + sequence * N;
        Complex sum = complex_of(0, 0);
        for (int k = 0, root = 0; k < r; k++, root = root + q < r ? root + q : root + q - r)
            sum = plus(sum, times(copy[at + k * s.apart], s.roots[root]));
        if (!backward && q) sum = times(sum, s.turns[s.places[u].root + q - 1]);
        z[at + q * s.apart] = swapped(sum, backward);
    }
    block_sync();
}

/* z is complete (a barrier before) and is again after the last stage.  copy [L,N] where the plan has a large prime. */
DEVICE void fft_run(Complex *z, Complex *copy, const Fft &fft, int L, bool backward) {
    for (int i = 0; i < fft.stages; i++) {
        const FftStage &s = fft.stage[backward ? fft.stages - 1 - i : i];
        switch (s.radix) {
        case 2: fft_stage<2>(z, s, fft.N, L, backward); break;
        case 3: fft_stage<3>(z, s, fft.N, L, backward); break;
        case 4: fft_stage<4>(z, s, fft.N, L, backward); break;
        case 5: fft_stage<5>(z, s, fft.N, L, backward); break;
        case 7: fft_stage<7>(z, s, fft.N, L, backward); break;
        case 8: fft_stage<8>(z, s, fft.N, L, backward); break;
        default: fft_stage_any(z, copy, s, fft.N, L, backward);
        }
    }
}

/* == Half spectra ================================================================================================= */

/* Pair p of the half spectra of two real sequences: into z [N], and out of it. */
DEVICE void fft_join(Complex *z, const FftFrequencies &p, Complex x1, Complex x2) {
    z[p.b] = complex_of(x1.x + x2.y, x2.x - x1.y);
    z[p.a] = complex_of(x1.x - x2.y, x1.y + x2.x);
}
DEVICE void fft_part(Complex *x1, Complex *x2, const Complex *z, const FftFrequencies &p) {
    Complex a = z[p.a], b = z[p.b];
    *x1 = complex_of(0.5f * (a.x + b.x), 0.5f * (a.y - b.y));
    *x2 = complex_of(0.5f * (a.y + b.y), 0.5f * (b.x - a.x));
}

#endif
