/* One step of causal attention with a cache of keys and values (kernels/softmax/causal_attention.h has the layout).
 *   k, v of token i are written, then the keys that it sees are read as at most two runs of rows: the running softmax
 *   of kernels/softmax/causal_attention.c with a single query, and so the same numbers up to the order of sums. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/softmax/causal_attention.h"

enum { KEYS = 64, WIDE = 256 }; /* scores at a time; columns of v summed at a time */

/* Token i of one sequence and head; k and v of the cache begin at the head's first row. */
static void write_token(real *cache_k, real *cache_v, const real *k, const real *v, const CausalPattern *p,
                        const CausalShape *s, int h, int i) {
    int rows[2], count = causal_cache_slots(rows, p, h, i, s->N);
    for (int n = 0; n < count; n++) {
        memcpy(cache_k + (size_t)rows[n] * s->Dk, k, s->Dk * sizeof *k);
        memcpy(cache_v + (size_t)rows[n] * s->Dv, v, s->Dv * sizeof *v);
    }
}

/* The first row of a sequence and head in the cache. */
static size_t cache_at(const CausalPattern *p, const CausalShape *s, int b, int h) {
    return b * causal_cache_first(p, s->H, s->N) + causal_cache_first(p, h, s->N);
}

typedef struct {
    float m, l; /* the maximum so far and the sum of exponentials */
} State;

/* Updates the running softmax with `count` keys; y [Dv] from column `first` on, at most WIDE columns. */
static void take_keys(State *state, float *y, const real *q, const real *k, const real *v, int count, int first,
                      const CausalShape *s) {
    int columns = s->Dv - first < WIDE ? s->Dv - first : WIDE;
    float scale = 1 / sqrtf((float)s->Dk), score[KEYS];
    for (int j = 0; j < count; j += KEYS) {
        int keys = count - j < KEYS ? count - j : KEYS;
        float m = state->m;
        for (int n = 0; n < keys; n++) {
            score[n] = scale * reals_dot(q, k + (size_t)(j + n) * s->Dk, s->Dk);
            m = score[n] > m ? score[n] : m;
        }
        float shrink = state->l > 0 ? expf(state->m - m) : 0;
        state->m = m;
        state->l *= shrink;
        for (int c = 0; c < columns; c += TILE) vec_store(y + c, shrink * vec_load(y + c));
        for (int n = 0; n < keys; n++) {
            float p = expf(score[n] - m);
            const real *row = v + (size_t)(j + n) * s->Dv + first;
            state->l += p;
            for (int c = 0; c < columns; c += TILE)
                vec_store(y + c, vec_load(y + c) + p * real_load_part(row + c, columns - c));
        }
    }
}

static void step_head(real *y, const real *cache_k, const real *cache_v, const real *q, const real *k, const real *v,
                      const CausalPattern *p, const CausalShape *s, int h, int i) {
    CausalRows runs[2];
    int count = causal_cache_runs(runs, p, h, i, s->N);
    for (int first = 0; first < s->Dv; first += WIDE) {
        float sum[WIDE] = {0};
        State state = {-INFINITY, 0};
        if (causal_reads_own(p, h, i)) take_keys(&state, sum, q, k, v, 1, first, s);
        for (int n = 0; n < count; n++)
            take_keys(&state, sum, q, cache_k + (size_t)runs[n].first * s->Dk, cache_v + (size_t)runs[n].first * s->Dv,
                      runs[n].count, first, s);
        for (int c = 0; c < WIDE && first + c < s->Dv; c += TILE)
            real_store_part(y + first + c, vec_load(sum + c) / state.l, s->Dv - first - c);
    }
}

void causal_attention_step(real *y, const CausalCache *cache, const CausalInputs *in, const CausalPattern *pattern,
                           const CausalShape *s, int i) {
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < s->B; b++)
        for (int h = 0; h < s->H; h++) {
            size_t at = cache_at(pattern, s, b, h);
            real *cache_k = cache->k + at * s->Dk, *cache_v = cache->v + at * s->Dv;
            const real *q = in->q + (size_t)b * s->q_row + h * s->Dk, *k = in->k + (size_t)b * s->k_row + h * s->Dk;
            const real *v = in->v + (size_t)b * s->v_row + h * s->Dv;
            write_token(cache_k, cache_v, k, v, pattern, s, h, i);
            step_head(y + ((size_t)b * s->H + h) * s->Dv, cache_k, cache_v, q, k, v, pattern, s, h, i);
        }
}

void causal_cache_fill(const CausalCache *cache, const CausalInputs *in, const CausalPattern *pattern,
                       const CausalShape *s, int count) {
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < s->B; b++)
        for (int h = 0; h < s->H; h++) {
            size_t at = cache_at(pattern, s, b, h);
            for (int i = 0; i < count; i++) {
                size_t row = (size_t)b * count + i;
                write_token(cache->k + at * s->Dk, cache->v + at * s->Dv, in->k + row * s->k_row + h * s->Dk,
                            in->v + row * s->v_row + h * s->Dv, pattern, s, h, i);
            }
        }
}
