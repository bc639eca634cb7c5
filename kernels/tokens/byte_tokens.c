/* Bytes as tokens.
 *   forward   e_i = We[x_i] + sum_t W_t[o_t(i)];  x_p = e_p, or e_{p-1} with x_0 = start
 *   backward  each entry of a table sums the rows of dx that it was added to, in double: a sum has one thread
 *   saves     nothing. */
#include <math.h>

#include "kernels/cpu/activations.h"
#include "kernels/tokens/byte_tokens.h"

/* The number of columns summed together: a cache line of dx. */
enum { COLUMNS = 16, BYTES = 256 };

static int columns_from(int m, int M) { return M - m < COLUMNS ? M - m : COLUMNS; }

/* The source of a row of x: a byte's position in the sequence, or -1 for the start vector. */
static int source_of(const ByteTables *t, const ByteEmbedding *s, int p) { return s->first + p - (t->start ? 1 : 0); }

static int entry_of(const ByteEmbedding *s, int t, int i) { return i / s->divisor[t] % s->entries[t]; }

void byte_embedding_forward(real *x, const uint8_t *bytes, const ByteTables *tables, const ByteEmbedding *shape) {
    int N = shape->N, M = shape->M;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < shape->B; b++)
        for (int p = 0; p < N; p++) {
            int i = source_of(tables, shape, p);
            real *out = x + ((size_t)b * N + p) * M;
            const float *from = i < 0 ? tables->start
                                      : tables->bytes + (size_t)bytes[(size_t)b * shape->row + i] * M;
            for (int m = 0; m < M; m += TILE) {
                vec sum = vec_load_part(from + m, M - m);
                for (int t = 0; t < BYTE_TABLES && i >= 0; t++)
                    if (shape->entries[t] > 0)
                        sum += vec_load_part(tables->positions[t] + (size_t)entry_of(shape, t, i) * M + m, M - m);
                real_store_part(out + m, sum, M - m);
            }
        }
}

static void add_row(double *sum, const real *from, int columns) {
    for (int c = 0; c < columns; c++) sum[c] += real_get(from[c]);
}

static void put_sums(float *to, const double *sum, int columns) {
    for (int c = 0; c < columns; c++) to[c] += (float)sum[c];
}

/* The table of bytes and the first vector, columns m.. of them. */
static void sum_bytes(const ByteGradients *d, const real *dx, const uint8_t *bytes, const ByteTables *tables,
                      const ByteEmbedding *s, int m) {
    int columns = columns_from(m, s->M);
    double sum[BYTES + 1][COLUMNS] = {{0}};
    for (int b = 0; b < s->B; b++)
        for (int p = 0; p < s->N; p++) {
            int i = source_of(tables, s, p);
            int entry = i < 0 ? BYTES : bytes[(size_t)b * s->row + i];
            add_row(sum[entry], dx + ((size_t)b * s->N + p) * s->M + m, columns);
        }
    for (int v = 0; v < s->vocabulary; v++) put_sums(d->bytes + (size_t)v * s->M + m, sum[v], columns);
    if (tables->start) put_sums(d->start + m, sum[BYTES], columns);
}

/* Entry e of a table of positions, columns m.. of it. */
static void sum_entry(float *to, const real *dx, const ByteTables *tables, const ByteEmbedding *s, int t, int e,
                      int m) {
    int columns = columns_from(m, s->M), D = s->divisor[t], period = D * s->entries[t];
    int begin = source_of(tables, s, 0), end = begin + s->N; /* positions in the sequence */
    double sum[COLUMNS] = {0};
    for (int b = 0; b < s->B; b++)
        for (int run = (begin < 0 ? 0 : begin) / period * period + e * D; run < end; run += period)
            for (int i = run < begin ? begin : run; i < run + D && i < end; i++)
                add_row(sum, dx + ((size_t)b * s->N + (i - begin)) * s->M + m, columns);
    put_sums(to + (size_t)e * s->M + m, sum, columns);
}

void byte_embedding_backward(const ByteGradients *d, const real *dx, const uint8_t *bytes, const ByteTables *tables,
                             const ByteEmbedding *shape) {
    int M = shape->M;
#pragma omp parallel
    {
#pragma omp for schedule(static) nowait
        for (int m = 0; m < M; m += COLUMNS) sum_bytes(d, dx, bytes, tables, shape, m);
        for (int t = 0; t < BYTE_TABLES; t++) {
#pragma omp for collapse(2) schedule(static) nowait
            for (int e = 0; e < shape->entries[t]; e++)
                for (int m = 0; m < M; m += COLUMNS) sum_entry(d->positions[t], dx, tables, shape, t, e, m);
        }
    }
}

/* == Cross-entropy ================================================================================================ */

static float row_loss(real *dx, const real *x, int target, float scale, int V) {
    float max = -INFINITY, at_target = real_get(x[target]);
    for (int c = 0; c < V; c++) max = real_get(x[c]) > max ? real_get(x[c]) : max;
    double sum = 0;
    for (int c = 0; c < V; c += TILE) {
        vec e = vec_exp(real_load_part(x + c, V - c) - max);
        for (int i = 0; i < TILE && c + i < V; i++) sum += e[i];
    }
    if (dx) {
        for (int c = 0; c < V; c += TILE) {
            vec p = vec_exp(real_load_part(x + c, V - c) - max) * (float)(scale / sum);
            ivec hit = vec_lanes() + c == target;
            real_store_part(dx + c, p - vec_select(hit, vec_set(scale), vec_set(0)), V - c);
        }
    }
    return (float)(log(sum) - ((double)at_target - max));
}

void byte_cross_entropy(float *loss, real *dlogits, const real *logits, const uint8_t *targets, float scale,
                        const ByteTargets *shape) {
    int N = shape->N, V = shape->V;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < shape->B; b++)
        for (int i = 0; i < N; i++) {
            size_t row = (size_t)b * N + i;
            loss[row] = row_loss(dlogits ? dlogits + row * V : NULL, logits + row * V,
                                 targets[(size_t)b * shape->row + i], scale, V);
        }
}

void byte_loss_sums(float *sums, const float *loss, int first, const ByteTargets *shape) {
#pragma omp parallel for schedule(static)
    for (int b = 0; b < shape->B; b++) {
        double sum = 0;
        for (int i = first; i < shape->N; i++) sum += loss[(size_t)b * shape->N + i];
        sums[b] = (float)sum;
    }
}
