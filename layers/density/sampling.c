#include "layers/density/sampling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/results/outcome.h"
#include "core/rng.h"
#include "core/signals.h"
#include "kernels/kernels.h"

#define F(KIND, field) CONFIG_FIELD(KIND, SamplingSettings, field)
static const ConfigEntry entries[] = {
    {F(FLOAT, temperature), "1", .section = "in place of training", .min = 0, .max = 100, .command_line_only = true,
     .help = "With --sample, --complete and --prompt: temperature, by which logits are divided (0: always the most "
             "likely token)"},
    {F(INT, top_k), "0", .min = 0, .max = 256, .command_line_only = true,
     .help = "Likewise: sample from the K most likely tokens only (0: from all)"},
    {F(FLOAT, top_p), "1", .min = 0, .max = 1, .command_line_only = true,
     .help = "Likewise: of these, only from the smallest set of most likely tokens that has this share of the "
             "probability"},
};
#undef F
const ConfigGroup sampling_settings = {CONFIG_GROUP(SamplingSettings, entries)};

enum { MOST_TOKENS = 256 };

typedef struct {
    float p;
    int token;
} Candidate;

static int likelier_first(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    if (x->p != y->p) return x->p < y->p ? 1 : -1;
    return x->token - y->token;
}

int sampling_draw(const SamplingSettings *s, const float *logits, int V, float u) {
    Candidate c[MOST_TOKENS];
    float most = logits[0];
    double total = 0, kept = 0, sum = 0;
    int count = s->temperature <= 0 ? 1 : s->top_k > 0 && s->top_k < V ? s->top_k : V, i = 0;
    for (int t = 1; t < V; t++) most = fmaxf(most, logits[t]);
    for (int t = 0; t < V; t++)
        c[t] = (Candidate){expf((logits[t] - most) / (s->temperature > 0 ? s->temperature : 1)), t};
    qsort(c, (size_t)V, sizeof *c, likelier_first);
    for (int k = 0; k < count; k++) total += (double)c[k].p;
    for (int k = 0; k < count; k++) {
        kept += (double)c[k].p;
        if (kept >= (double)s->top_p * total) count = k + 1;
    }
    while (i + 1 < count && (sum += (double)c[i].p) <= (double)u * kept) i++;
    return c[i].token;
}

void sampling_run(SequenceModel *m, uint8_t *tokens, const SamplingSettings *s, const SamplingRun *run,
                  SamplingPassed *passed) {
    int V = m->settings.vocabulary;
    size_t row = (size_t)m->row_bytes, ahead = !m->shape.starts; /* row i is of token i + ahead */
    size_t filled = run->given > ahead ? run->given - ahead : 0;
    float *logits = xcalloc((size_t)run->B * (size_t)V, sizeof *logits, "samples");
    if (filled > (size_t)m->prompt) filled = (size_t)m->prompt;
    if (run->given < run->end && filled > 0) {
        sequence_model_load(m, tokens, run->B);
        sequence_model_fill(m, (int)filled, run->B);
    }
    for (size_t token = ahead + filled; token < run->end && !stop_signal; token++) {
        sequence_model_load(m, tokens, run->B);
        sequence_model_step(m, (int)(token - ahead), run->B);
        if (passed) passed(run->before + run->offset + token + 1, run->all ? run->all : run->offset + run->end);
        if (token < run->given) continue;
        real_download(logits, m->logits, (size_t)run->B * (size_t)V);
        if (run->weights) outcome_require(logits, (size_t)run->B * (size_t)V, run->weights, "a sequence");
        for (int b = 0; b < run->B; b++) {
            uint32_t sequence = (uint32_t)(run->first + (size_t)b);
            float u = rng_uniform(run->seed, RNG_SAMPLE, sequence, 0, run->offset + token);
            tokens[(size_t)b * row + token] = (uint8_t)sampling_draw(s, logits + b * V, V, u);
        }
    }
    free(logits);
}

/* Copies tokens from .. from + count - 1 of `many` [B,length] to the beginning of windows [B,row], or back. */
static void copy_window(uint8_t *window, size_t row, uint8_t *many, size_t length, size_t from, size_t count, int B,
                        bool back) {
    for (int b = 0; b < B; b++) {
        uint8_t *in = window + (size_t)b * row, *all = many + (size_t)b * length + from;
        memcpy(back ? all : in, back ? in : all, count);
    }
}

void sampling_long(SequenceModel *m, uint8_t *tokens, const SamplingSettings *s, const SamplingRun *run,
                   SamplingPassed *passed) {
    size_t row = (size_t)m->row_bytes, length = run->end, batch = (size_t)m->model.batch;
    size_t all = ((size_t)run->B + batch - 1) / batch * length;
    uint8_t *window = xcalloc((size_t)m->model.batch, row, "samples");
    linear_keep_weights(true);
    for (int first = 0, B; first < run->B; first += B) {
        uint8_t *many = tokens + (size_t)first * length;
        B = run->B - first < m->model.batch ? run->B - first : m->model.batch;
        for (size_t from = 0, have = run->given; have < length; from = have - row / 2) {
            size_t end = length - from < row ? length - from : row;
            SamplingRun part = {B, have - from, end, run->seed, run->first + (size_t)first, run->offset + from,
                                run->weights, (size_t)first / batch * length, all};
            copy_window(window, row, many, length, from, end, B, false);
            sampling_run(m, window, s, &part, passed);
            copy_window(window, row, many, length, from, end, B, true);
            have = from + end;
        }
    }
    linear_keep_weights(false);
    free(window);
}

int sampling_prompt(const SequenceShape *shape, size_t given, size_t end) {
    size_t ahead = !shape->starts, row = (size_t)shape->n + ahead, most = given < row ? given : row;
    if (end > row && row / 2 > most) most = row / 2;
    return most > ahead ? (int)(most - ahead) : 1;
}

int sampling_at_once(const Config *config, const SequenceShape *shape) {
    enum { MOST = 64 };
    SequenceModel m;
    sequence_model_create(&m, config, shape);
    size_t fit = ((size_t)1 << 30) / sequence_model_cache_bytes(&m, 1);
    sequence_model_destroy(&m);
    return fit < 1 ? 1 : fit < MOST ? (int)fit : MOST;
}
