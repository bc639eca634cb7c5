/* Byte p is predicted in row p of the stream, where key j has read byte j - 1, and key 0 is the start vector:
 *   weight of byte j for byte p = exp(q_p.k_(j+1) / sqrt Dk - lse_p)   for keys in the set, from the saved log-sum-exp.
 */
#include "layers/density/sequence_picture.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/die.h"
#include "core/safetensors.h"

enum { QUERIES = 4 };

/* weights [n] of head h for byte p; qkv [n,row] and lse [H,n] are those of the block. */
static void head_weights(float *weights, const CausalLayer *a, const float *qkv, const float *lse, int h, int p, int n) {
    int Dk = a->shape.Dk, keys = a->shape.H * Dk, row = a->shape.q_row;
    const float *q = qkv + (size_t)p * (size_t)row + (size_t)(h * Dk);
    for (int j = 1; j <= p; j++) {
        const float *k = qkv + (size_t)j * (size_t)row + (size_t)(keys + h * Dk);
        double score = 0;
        if (!causal_sees(&a->pattern, h, p, j)) continue;
        for (int d = 0; d < Dk; d++) score += (double)q[d] * (double)k[d];
        weights[j - 1] = (float)exp(score / sqrt(Dk) - (double)lse[(size_t)h * (size_t)n + (size_t)p]);
    }
}

/* weights [depth,heads,QUERIES,n] */
static void all_weights(float *weights, const SequenceModel *m, const int64_t *queries) {
    int n = m->shape.n, depth = m->settings.depth, H = m->settings.heads, row = 2 * H * m->frame.Dk + m->settings.dim;
    size_t size = (size_t)n * (size_t)row, lses = (size_t)n * (size_t)H;
    float *qkv = xcalloc(size, sizeof *qkv, "attention picture"), *lse = xcalloc(lses, sizeof *lse, "attention picture");
    for (int block = 0; block < depth; block++) {
        const Attention *attention = &m->stage.blocks[block].attention;
        const CausalLayer *a = attention->state;
        real_download(qkv, attention->frame.qkv_act, size);
        device_download(lse, a->lse, lses * sizeof *lse);
        for (int i = 0; i < H * QUERIES; i++, weights += n)
            head_weights(weights, a, qkv, lse, i / QUERIES, (int)queries[i % QUERIES], n);
    }
    free(qkv);
    free(lse);
}

void sequence_picture_write(const SequenceModel *m, const uint8_t *tokens, const char *attn, const char *path) {
    const SequenceShape *s = &m->shape;
    size_t depth = (size_t)m->settings.depth, H = (size_t)m->settings.heads, n = (size_t)s->n;
    size_t height = (size_t)s->height, width = (size_t)s->width, channels = (size_t)s->channels;
    int64_t queries[QUERIES];
    char grid[32], number[16];
    assert(s->height && s->starts && !m->settings.recompute);
    for (int i = 0; i < QUERIES; i++) {
        int y = s->height * (i + 1) / QUERIES;
        queries[i] = ((y < s->height ? y : s->height - 1) * s->width + s->width / 2) * s->channels;
    }
    float *weights = xcalloc(depth * H * QUERIES, n * sizeof *weights, "attention picture");
    float *image = xcalloc(3 * height, width * sizeof *image, "attention picture");
    all_weights(weights, m, queries);
    for (size_t i = 0; i < 3 * height * width; i++) image[i] = (float)tokens[i / 3 * channels + i % channels] / 255;
    snprintf(grid, sizeof grid, "%dx%d", s->height, s->width);
    snprintf(number, sizeof number, "%d", s->channels);
    SafeTensorEntry out[] = {{"weights", SAFE_F32, 4, {depth, H, QUERIES, n}, weights},
                             {"image", SAFE_F32, 3, {height, width, 3}, image},
                             {"queries", SAFE_I64, 1, {QUERIES}, queries}};
    SafeMetadata metadata[] = {{"grid", grid}, {"channels", number}, {"attn", attn}};
    safetensors_write(path, out, 3, metadata, 3, &error_fatal);
    free(weights);
    free(image);
}
