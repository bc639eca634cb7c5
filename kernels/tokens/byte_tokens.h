/* Bytes as tokens: their embedding with learned positions, and the cross-entropy of the next byte. */
#ifndef VIT_KERNELS_TOKENS_BYTE_TOKENS_H
#define VIT_KERNELS_TOKENS_BYTE_TOKENS_H

#include <stddef.h>
#include <stdint.h>

#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { BYTE_TABLES = 3 };

/* e_i = We[x_i] + sum_t W_t[i / divisor[t] mod entries[t]] for byte i of a sequence: an image's row, column and channel
 * have the divisors W C, C and 1.  Tables with 0 entries do not exist. Row p of the result is e_p; where sequences
 * begin with a learned vector, it is e_{p-1}, and that vector for p = 0. */
typedef struct {
    int B, M;
    int first, N;  /* rows first .. first + N-1 of every sequence, so that sampling can ask for one */
    int row;       /* row stride of the bytes: from one sequence to the next */
    int vocabulary; /* at most 256; every byte is less */
    int entries[BYTE_TABLES], divisor[BYTE_TABLES];
} ByteEmbedding;

typedef struct {
    const float *bytes;                 /* [vocabulary,M] */
    const float *positions[BYTE_TABLES]; /* [entries[t],M] */
    const float *start;                 /* [M], or NULL: row p is e_p */
} ByteTables;
typedef struct {
    float *bytes, *positions[BYTE_TABLES], *start; /* (+=), for the tables that exist;  none of them NULL */
} ByteGradients;

/* x [B,N,M] real, rows of the sequences;  bytes [B,.] whole sequences with row stride `row`. */
void byte_embedding_forward(real *x, const uint8_t *bytes, const ByteTables *tables, const ByteEmbedding *shape);
/* dx [B,N,M];  `tables` says which tables exist.  The same bits for any number of threads. */
void byte_embedding_backward(const ByteGradients *d, const real *dx, const uint8_t *bytes, const ByteTables *tables,
                             const ByteEmbedding *shape);

/* B sequences have N rows each, of V logits and a target byte.  Computes for each row:
 *   loss = log sum_c exp(x_c) - x_target, in nats;   dx = scale (softmax(x) - one at the target)
 * loss [B,N] float;  dlogits [B,N,V] real (=), may be logits, or NULL for the loss alone;  targets [B,N] with row
 * stride `row`, each less than V. */
typedef struct {
    int B, N, V;
    int row;
} ByteTargets;
void byte_cross_entropy(float *loss, real *dlogits, const real *logits, const uint8_t *targets, float scale,
                        const ByteTargets *shape);
/* sums [B] float: of each sequence's losses from row `first` on, added up in double and in order. */
void byte_loss_sums(float *sums, const float *loss, int first, const ByteTargets *shape);

#ifdef __cplusplus
}
#endif

#endif
