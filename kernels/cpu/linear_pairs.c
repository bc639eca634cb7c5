/* Right operands are copied into panels of 32 columns, [columns/32][k/2][32][2], the weights rounded on the way.
 *   rows      y = x W^T + b and dx = dy W: a block of rows takes panel after panel; DEPTH rows of a panel stay in the
 *             first-level cache while the block's rows pass by.
 *   weights   dW += dy^T x: a block of dW stays in the second-level cache while the rows of dy and x pass by, SUMMED at
 *             a time, both copied in pairs of rows, dy in panels of eight columns.
 * Every number is a sum in the same order whatever the blocks and threads are. */
#include "kernels/cpu/linear_pairs.h"

#ifdef VIT_PAIRS

#include <omp.h>

#include "kernels/device.h"

enum {
    WIDTH = PAIR_BLOCK,
    DEPTH = 192,  /* of the inner dimension of rows times weights: a panel of 12 KiB */
    ROWS = 64,    /* of a block of y or dx */
    CHUNK = 192,  /* of its columns, whose sums wait for the rest of the inner dimension */
    SUMMED = 256, /* rows of dy and x that are copied at a time */
    OUTS = 384,   /* the sides of a block of dW */
    INS = 192,
    LEAST = 64 /* rows for which the weights are copied */
};

bool linear_pairs_serve(const LinearShape *s) {
    return pairs_kind() == PAIRS_DOTS && s->n >= LEAST && s->in % WIDTH == 0 && s->out % WIDTH == 0;
}

static int row_of(const LinearShape *s) { return s->y_row ? s->y_row : s->out; }
static int smaller(int a, int b) { return a < b ? a : b; }

/* Room that grows with the largest layer so far. */
static real *room_for(real **room, size_t *count, size_t n) {
    if (n > *count) {
        device_free(*room);
        *room = device_malloc(n * sizeof **room, "operands of products");
        *count = n;
    }
    return *room;
}

/* == Rows times weights =========================================================================================== */

/* Rows of A and of D, numbers from one to the next. */
typedef struct {
    const real *a;
    real *d;
    size_t lda, ldd;
} Rows;

/* MR rows of a panel's columns, `depth` of the inner dimension: from the bias at the first, to d after the last, and
 * between them in part [MR,32]. */
TILE_INLINE void rows_micro(int MR, Rows r, float *part, const float *bias, const real *panel, int depth, bool first,
                            bool last) {
    PairSums sums;
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++)
            sums[i][j] = !first ? _mm512_loadu_ps(part + i * WIDTH + j * TILE)
                         : bias ? _mm512_loadu_ps(bias + j * TILE)
                                : _mm512_setzero_ps();
    pairs_multiply(MR, 2, sums, (PairRows){r.a, r.lda / 2, 1}, panel, WIDTH, depth);
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++) {
        if (last) {
            _mm512_storeu_si512(r.d + i * r.ldd, (__m512i)_mm512_cvtne2ps_pbh(sums[i][1], sums[i][0]));
            continue;
        }
        _mm512_storeu_ps(part + i * WIDTH, sums[i][0]);
        _mm512_storeu_ps(part + i * WIDTH + TILE, sums[i][1]);
    }
}

static void rows_block(Rows r, const float *bias, const real *panels, int rows, int k, int columns) {
    float part[ROWS * CHUNK];
    for (int first = 0; first < columns; first += CHUNK)
        for (int p = 0; p < k; p += DEPTH)
            for (int j = first; j < columns && j < first + CHUNK; j += WIDTH) {
                int depth = smaller(DEPTH, k - p), i = 0;
                const real *panel = panels + (size_t)j * (size_t)k + (size_t)p * WIDTH;
                const float *b = bias ? bias + j : NULL;
#define MICRO(MR)                                                                                                  \
    for (; i + MR <= rows; i += MR)                                                                                \
        rows_micro(MR, (Rows){r.a + i * r.lda + p, r.d + i * r.ldd + j, r.lda, r.ldd},                             \
                   part + (j - first) * ROWS + i * WIDTH, b, panel, depth, p == 0, p + depth == k);
                MICRO(8)
                MICRO(4)
                MICRO(1)
#undef MICRO
            }
}

/* Fewer rows where there are not enough blocks for all threads. */
static int rows_of_block(size_t n) {
    int rows = ROWS;
    while (rows > TILE_ROWS && n / (size_t)rows < 2 * (size_t)omp_get_max_threads()) rows /= 2;
    return rows;
}

static void multiply_rows(Rows r, const float *bias, const real *panels, size_t n, int k, int columns) {
    int each = rows_of_block(n);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i += (size_t)each)
        rows_block((Rows){r.a + i * r.lda, r.d + i * r.ldd, r.lda, r.ldd}, bias, panels,
                   n - i < (size_t)each ? (int)(n - i) : each, k, columns);
}

static real *weights;
static size_t weights_count;

/* w [out,in] in pairs along `in`, panels of outputs: rounded rows of 16 pairs are turned. */
static const real *pack_forward(const float *w, int in, int out) {
    real *to = room_for(&weights, &weights_count, (size_t)in * (size_t)out);
#pragma omp parallel for schedule(static)
    for (int j = 0; j < out; j += TILE) {
        real *panel = to + (size_t)(j / WIDTH * WIDTH) * (size_t)in + 2 * (j % WIDTH), rows[2 * TILE * TILE];
        for (int p = 0; p < in; p += 2 * TILE) {
            for (int i = 0; i < TILE; i++)
                reals_round(rows + i * 2 * TILE, w + (size_t)(j + i) * (size_t)in + p, 2 * TILE);
            tile_transpose((float *)(panel + (size_t)p * WIDTH), WIDTH, (const float *)rows, TILE);
        }
    }
    return to;
}

/* w [out,in] in pairs along `out`, panels of inputs. */
static const real *pack_input(const float *w, int in, int out) {
    real *to = room_for(&weights, &weights_count, (size_t)in * (size_t)out);
#pragma omp parallel for schedule(static)
    for (int j = 0; j < in; j += WIDTH) {
        real *panel = to + (size_t)j * (size_t)out;
        for (int p = 0; p < out; p += 2, panel += 2 * WIDTH)
            for (int c = 0; c < WIDTH; c += TILE) {
                const float *at = w + (size_t)p * (size_t)in + j + c;
                _mm512_storeu_si512(panel + 2 * c,
                                    pairs_of(halfvec_round(vec_load(at)), halfvec_round(vec_load(at + in))));
            }
    }
    return to;
}

void linear_pairs_forward(real *y, const real *x, const float *w, const float *b, const LinearShape *s) {
    const real *panels = pack_forward(w, s->in, s->out);
    multiply_rows((Rows){x, y, (size_t)s->in, (size_t)row_of(s)}, b, panels, s->n, s->in, s->out);
}

void linear_pairs_input(real *dx, const real *dy, const float *w, const LinearShape *s) {
    const real *panels = pack_input(w, s->in, s->out);
    multiply_rows((Rows){dy, dx, (size_t)row_of(s), (size_t)s->in}, NULL, panels, s->n, s->out, s->in);
}

/* == The weights' gradient ======================================================================================== */

/* Two rows of 32 numbers as pairs, the second zero where there is none. */
TILE_INLINE void pairs_of_rows(__m512i pairs[2], const real *row, size_t stride, bool both) {
    for (int half = 0; half < 2; half++) {
        const real *at = row + half * TILE;
        pairs[half] = pairs_of(*(const halfvec *)at, both ? *(const halfvec *)(at + stride) : (halfvec){0});
    }
}

/* Numbers from one panel of a block's operands to the next: not a power of two, as lines would share their sets. */
enum { X_PANEL = SUMMED * WIDTH + WIDTH, DY_PANEL = SUMMED * TILE_ROWS + WIDTH };

/* Rows that are copied at a time, so that what is read is not far apart. */
enum { SLICE = 16 };

/* to [columns/32][rows/2][32][2] = from [rows,columns]. */
static void pack_rows(real *to, const real *from, size_t stride, int rows, int columns) {
    for (int first = 0; first < rows; first += SLICE)
        for (int j = 0; j < columns; j += WIDTH)
            for (int p = first; p < rows && p < first + SLICE; p += 2) {
                __m512i pairs[2];
                real *at = to + j / WIDTH * X_PANEL + p * WIDTH;
                pairs_of_rows(pairs, from + (size_t)p * stride + j, stride, p + 1 < rows);
                _mm512_storeu_si512(at, pairs[0]);
                _mm512_storeu_si512(at + WIDTH, pairs[1]);
            }
}

/* to [columns/8][rows/2][8][2] = from [rows,columns]. */
static void pack_eights(real *to, const real *from, size_t stride, int rows, int columns) {
    for (int first = 0; first < rows; first += SLICE)
        for (int j = 0; j < columns; j += WIDTH)
            for (int p = first; p < rows && p < first + SLICE; p += 2) {
                __m512i pairs[2];
                real *at = to + j / TILE_ROWS * DY_PANEL + p * TILE_ROWS;
                pairs_of_rows(pairs, from + (size_t)p * stride + j, stride, p + 1 < rows);
                for (int half = 0; half < 2; half++, at += 2 * DY_PANEL) {
                    _mm256_storeu_si256((__m256i *)at, _mm512_extracti64x4_epi64(pairs[half], 0));
                    _mm256_storeu_si256((__m256i *)(at + DY_PANEL), _mm512_extracti64x4_epi64(pairs[half], 1));
                }
            }
}

/* Eight rows by 32 columns of dW += the product of a panel of dy and one of x. */
static void weight_micro(float *dw, size_t row, const real *dy, const real *x, int depth) {
    PairSums sums;
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; i++) {
        sums[i][0] = sums[i][1] = _mm512_setzero_ps();
        __builtin_prefetch(dw + i * row, 1);
        __builtin_prefetch(dw + i * row + TILE, 1);
    }
    pairs_multiply(TILE_ROWS, 2, sums, (PairRows){dy, 1, TILE_ROWS}, x, WIDTH, depth);
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            float *at = dw + i * row + j * TILE;
            vec_store(at, vec_load(at) + (vec)sums[i][j]);
        }
}

enum { EACH = OUTS / TILE_ROWS * DY_PANEL + INS / WIDTH * X_PANEL };

static void weight_block(float *dw, const real *dy, const real *x, const LinearShape *s, real *packed, int outs,
                         int ins) {
    real *dys = packed, *xs = packed + OUTS / TILE_ROWS * DY_PANEL;
    size_t row = (size_t)row_of(s), in = (size_t)s->in;
    for (size_t first = 0; first < s->n; first += SUMMED) {
        int rows = s->n - first < SUMMED ? (int)(s->n - first) : SUMMED;
        pack_eights(dys, dy + first * row, row, rows, outs);
        pack_rows(xs, x + first * in, in, rows, ins);
        for (int j = 0; j < ins; j += WIDTH)
            for (int i = 0; i < outs; i += TILE_ROWS)
                weight_micro(dw + (size_t)i * in + j, in, dys + i / TILE_ROWS * DY_PANEL, xs + j / WIDTH * X_PANEL,
                             rows + rows % 2);
    }
}

static int parts_of(int side, int most) { return (side + most - 1) / most; }

void linear_pairs_weight(float *dw, const real *dy, const real *x, const LinearShape *s) {
    static real *room;
    static size_t count;
    int threads = omp_get_max_threads(), ins = INS, across = parts_of(s->in, INS), down = parts_of(s->out, OUTS);
    while (across * down % threads && across * down < 4 * threads && down < s->out / WIDTH) down++;
    int outs = parts_of(s->out / WIDTH, down) * WIDTH;
    real *packed = room_for(&room, &count, (size_t)threads * EACH);
#pragma omp parallel for collapse(2) schedule(static)
    for (int i = 0; i < s->out; i += outs)
        for (int j = 0; j < s->in; j += ins)
            weight_block(dw + (size_t)i * (size_t)s->in + j, dy + i, x + j, s,
                         packed + (size_t)omp_get_thread_num() * EACH, smaller(outs, s->out - i),
                         smaller(ins, s->in - j));
}

#endif
