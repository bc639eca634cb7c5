/* Mixed-radix transforms of TILE lanes at once (kernels/lisa/fft_plan.h).  Exchanging real and imaginary parts
 * conjugates every root, so both directions share their butterflies.  A long block is finished before the next one is
 * read: from the second stage on, the data stay in the first-level cache. */
#include "kernels/lisa/fft.h"

#include <stdbool.h>
#include <stdlib.h>

#include "kernels/tokens/grid.h"

#include "core/die.h"

/* The number of elements, of 128 bytes each, in a first-level cache of 48 KB. */
enum { NEAR = 256 };

/* == Butterflies ================================================================================================== */

TILE_INLINE void butterfly_2(vec *re, vec *im) {
    vec r = re[1], i = im[1];
    re[1] = re[0] - r, im[1] = im[0] - i;
    re[0] += r, im[0] += i;
}

TILE_INLINE void butterfly_4(vec *re, vec *im) {
    vec r02 = re[0] + re[2], i02 = im[0] + im[2], r13 = re[1] + re[3], i13 = im[1] + im[3];
    vec s02 = re[0] - re[2], t02 = im[0] - im[2], s13 = re[1] - re[3], t13 = im[1] - im[3];
    re[0] = r02 + r13, im[0] = i02 + i13;
    re[2] = r02 - r13, im[2] = i02 - i13;
    re[1] = s02 + t13, im[1] = t02 - s13;
    re[3] = s02 - t13, im[3] = t02 + s13;
}

TILE_INLINE void butterfly_8(vec *re, vec *im) {
    const float half = 0.707106781f;
    vec er[4] = {re[0], re[2], re[4], re[6]}, ei[4] = {im[0], im[2], im[4], im[6]};
    vec or[4] = {re[1], re[3], re[5], re[7]}, oi[4] = {im[1], im[3], im[5], im[7]};
    butterfly_4(er, ei);
    butterfly_4(or, oi);
    vec r1 = half * (or[1] + oi[1]), i1 = half * (oi[1] - or[1]);
    vec r3 = half * (oi[3] - or[3]), i3 = half * (or[3] + oi[3]);
    re[0] = er[0] + or[0], im[0] = ei[0] + oi[0], re[4] = er[0] - or[0], im[4] = ei[0] - oi[0];
    re[1] = er[1] + r1, im[1] = ei[1] + i1, re[5] = er[1] - r1, im[5] = ei[1] - i1;
    re[2] = er[2] + oi[2], im[2] = ei[2] - or[2], re[6] = er[2] - oi[2], im[6] = ei[2] + or[2];
    re[3] = er[3] + r3, im[3] = ei[3] - i3, re[7] = er[3] - r3, im[7] = ei[3] + i3;
}

/* cos and sin of 2 pi k / r for r = 3, 5, 7. */
static const float odd_cos[3][4] = {
    {1, -0.5f}, {1, 0.309016994f, -0.809016994f}, {1, 0.623489802f, -0.222520934f, -0.900968868f}};
static const float odd_sin[3][4] = {
    {0, 0.866025404f}, {0, 0.951056516f, 0.587785252f}, {0, 0.781831482f, 0.974927912f, 0.433883739f}};

TILE_INLINE float root_cos(int r, int k) { return odd_cos[r / 2 - 1][k > r / 2 ? r - k : k]; }
TILE_INLINE float root_sin(int r, int k) { return k > r / 2 ? -odd_sin[r / 2 - 1][r - k] : odd_sin[r / 2 - 1][k]; }

/* Radix r = 3, 5, 7: sums of x_k and x_(r-k) are multiplied by the cosines, differences by the sines. */
TILE_INLINE void butterfly_odd(int r, vec *re, vec *im) {
    vec sr[3], si[3], dr[3], di[3], r0 = re[0], i0 = im[0];
    int h = r / 2;
#pragma GCC unroll 3
    for (int k = 1; k <= h; k++) {
        sr[k - 1] = re[k] + re[r - k], si[k - 1] = im[k] + im[r - k];
        dr[k - 1] = re[k] - re[r - k], di[k - 1] = im[k] - im[r - k];
        re[0] += sr[k - 1], im[0] += si[k - 1];
    }
#pragma GCC unroll 3
    for (int q = 1; q <= h; q++) {
        vec ar = r0, ai = i0, br = root_sin(r, q) * dr[0], bi = root_sin(r, q) * di[0];
#pragma GCC unroll 3
        for (int k = 1; k <= h; k++) {
            ar += root_cos(r, k * q % r) * sr[k - 1], ai += root_cos(r, k * q % r) * si[k - 1];
            if (k > 1) br += root_sin(r, k * q % r) * dr[k - 1], bi += root_sin(r, k * q % r) * di[k - 1];
        }
        re[q] = ar + bi, im[q] = ai - br;
        re[r - q] = ar - bi, im[r - q] = ai + br;
    }
}

TILE_INLINE void butterfly(int r, vec *re, vec *im) {
    if (r == 2) butterfly_2(re, im);
    else if (r == 4) butterfly_4(re, im);
    else if (r == 8) butterfly_8(re, im);
    else butterfly_odd(r, re, im);
}

TILE_INLINE void turn(vec *re, vec *im, const float *w) {
    vec r = *re;
    *re = r * w[0] - *im * w[1];
    *im = r * w[1] + *im * w[0];
}

/* == Stages ======================================================================================================= */

/* Butterfly j of a block; its roots are 1 if j is 0. */
TILE_INLINE void turned_butterfly(int r, float *re_j, float *im_j, size_t apart, const float *w, bool turns,
                                  bool backward) {
    vec re[8], im[8];
#pragma GCC unroll 8
    for (int k = 0; k < r; k++) {
        re[k] = vec_load(re_j + k * apart), im[k] = vec_load(im_j + k * apart);
        if (backward && turns && k) turn(&re[k], &im[k], w + 2 * (k - 1));
    }
    butterfly(r, re, im);
#pragma GCC unroll 8
    for (int k = 0; k < r; k++) {
        if (!backward && turns && k) turn(&re[k], &im[k], w + 2 * (k - 1));
        vec_store(re_j + k * apart, re[k]), vec_store(im_j + k * apart, im[k]);
    }
}

/* The data of a stage: `blocks` blocks of L numbers, `stride` floats apart, and the same for each of the `beside`
 * adjacent sequences. */
typedef struct {
    float *re, *im;
    size_t stride;
    int L, blocks, beside;
} FftPlace;

TILE_INLINE void stage(int r, FftPlace at, const float *w, bool backward) {
    size_t apart = at.L / r * at.stride;
    for (int b = 0; b < at.blocks; b++)
        for (int j = 0; j < at.L / r; j++) {
            float *re = at.re + (b * at.L + j) * at.stride, *im = at.im + (b * at.L + j) * at.stride;
            const float *turns = w + (size_t)j * 2 * (r - 1);
            for (int n = 0; n < at.beside; n++, re += COMPLEX, im += COMPLEX) {
                if (j) turned_butterfly(r, re, im, apart, turns, true, backward);
                else turned_butterfly(r, re, im, apart, turns, false, backward);
            }
        }
}

/* A prime radix above 7, by the definition with r^2 multiply-adds.  Its roots W_r^k follow the stage's other roots. */
static void stage_any(int r, FftPlace at, const float *w, bool backward, float *spare) {
    int m = at.L / r;
    size_t apart = m * at.stride;
    const float *roots = w + (size_t)m * 2 * (r - 1);
    for (int i = 0; i < at.blocks * m * at.beside; i++) {
        int n = i % at.beside, j = i / at.beside % m, b = i / at.beside / m;
        size_t first = (b * at.L + j) * at.stride + (size_t)n * COMPLEX;
        const float *turns = w + (size_t)j * 2 * (r - 1);
        for (int k = 0; k < r; k++) {
            vec re = vec_load(at.re + first + k * apart), im = vec_load(at.im + first + k * apart);
            if (backward && k) turn(&re, &im, turns + 2 * (k - 1));
            vec_store(spare + k * COMPLEX, re), vec_store(spare + k * COMPLEX + TILE, im);
        }
        for (int q = 0; q < r; q++) {
            vec re = {0}, im = {0};
            for (int k = 0, root = 0; k < r; k++, root = root + q < r ? root + q : root + q - r) {
                vec x = vec_load(spare + k * COMPLEX), y = vec_load(spare + k * COMPLEX + TILE);
                re += x * roots[2 * root] - y * roots[2 * root + 1];
                im += x * roots[2 * root + 1] + y * roots[2 * root];
            }
            if (!backward && q) turn(&re, &im, turns + 2 * (q - 1));
            vec_store(at.re + first + q * apart, re), vec_store(at.im + first + q * apart, im);
        }
    }
}

static void run_stage(int r, FftPlace at, const float *w, bool backward, float *spare) {
#define RADIX(n)                           \
    case n:                                \
        if (backward) stage(n, at, w, true); \
        else stage(n, at, w, false);       \
        break
    switch (r) {
        RADIX(2);
        RADIX(3);
        RADIX(4);
        RADIX(5);
        RADIX(7);
        RADIX(8);
    default: stage_any(r, at, w, backward, spare);
    }
#undef RADIX
}

/* Stage s and the later ones, for all blocks stage by stage, or if the blocks are long, block by block. */
static void run_blocks(const FftAxis *axis, int s, FftPlace at, const float *w, bool backward, float *spare) {
    if (s == axis->stages) return;
    int r = axis->radix[s], turns = at.blocks * at.L * at.beside <= NEAR ? 1 : at.blocks;
    size_t next = at.blocks / turns * at.L * at.stride;
    at.blocks /= turns;
    for (int t = 0; t < turns; t++, at.re += next, at.im += next) {
        FftPlace smaller = {at.re, at.im, at.stride, at.L / r, at.blocks * r, at.beside};
        if (!backward) run_stage(r, at, w, false, spare);
        run_blocks(axis, s + 1, smaller, w + 2 * fft_turns(r, at.L), backward, spare);
        if (backward) run_stage(r, at, w, true, spare);
    }
}

static void run_axis(const FftAxis *axis, const float *roots, float *z, bool backward, float *spare) {
    for (int p = 0; p < axis->places; p++, z += (size_t)axis->step * COMPLEX) {
        float *re = z + (backward ? TILE : 0), *im = z + (backward ? 0 : TILE);
        FftPlace all = {re, im, (size_t)axis->stride * COMPLEX, axis->n, 1, axis->beside};
        run_blocks(axis, 0, all, roots, backward, spare);
    }
}

void fft_forward(const FftPlan *plan, float *z, float *spare) {
    for (int i = 0; i < plan->axes; i++)
        run_axis(&plan->axis[i], plan->roots + 2 * plan->axis[i].roots, z, false, spare);
}

void fft_backward(const FftPlan *plan, float *z, float *spare) {
    for (int i = plan->axes - 1; i >= 0; i--)
        run_axis(&plan->axis[i], plan->roots + 2 * plan->axis[i].roots, z, true, spare);
}

/* == Plans ======================================================================================================== */

size_t fft_spare(const FftPlan *plan) { return plan->largest > 1 ? (size_t)plan->largest * COMPLEX : 0; }

static FftKnown *known;

static void plan_free(FftKnown *k) {
    free((float *)k->plan.roots);
    free((FftPair *)k->plan.pair);
    free(k);
}

static void plans_free(void) { fft_known_free(&known, plan_free); }

const FftPlan *fft_plan(Grid tokens, bool grid) {
    FftKnown *k = fft_known_find(&known, tokens, grid);
    if (k) return &k->plan;
    static bool closes;
    if (!closes) closes = !atexit(plans_free);
    memory_shared_begin();
    k = xcalloc(1, sizeof *k, "transform plan");
    k->plan = fft_plan_make(tokens, grid, xcalloc);
    memory_shared_end();
    k->bytes = fft_plan_bytes(&k->plan);
    fft_known_add(&known, k, plan_free);
    return &k->plan;
}
