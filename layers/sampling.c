#include "layers/sampling.h"

#include <math.h>
#include <stdlib.h>

#include "core/die.h"
#include "core/rng.h"

#define F(KIND, field) CONFIG_FIELD(KIND, SamplingSettings, field)
static const ConfigEntry entries[] = {
    {F(FLOAT, temperature), "1", .section = "modes", .min = 0, .max = 100, .command_line_only = true,
     .help = "With --sample, --complete and --prompt: what logits are divided by (0: the likeliest token)"},
    {F(INT, top_k), "0", .min = 0, .max = 256, .command_line_only = true,
     .help = "Likewise: draw from the likeliest so many tokens only (0: from all)"},
    {F(FLOAT, top_p), "1", .min = 0, .max = 1, .command_line_only = true,
     .help = "Likewise: of these, from the fewest that together have this share of the probability"},
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
                  void (*passed)(int done, int end)) {
    int V = m->settings.vocabulary, ahead = !m->shape.starts; /* row i is of token i + ahead */
    size_t row = (size_t)m->row_bytes;
    float *logits = xcalloc((size_t)run->B * (size_t)V, sizeof *logits, "samples");
    for (int i = 0; i + ahead < run->end; i++) {
        int token = i + ahead;
        sequence_model_load(m, tokens, run->B);
        sequence_model_step(m, i, run->B);
        if (passed) passed(token + 1, run->end);
        if (token < run->given) continue;
        real_download(logits, m->logits, (size_t)run->B * (size_t)V);
        for (int b = 0; b < run->B; b++) {
            float u = rng_uniform(run->seed, RNG_SAMPLE, (uint32_t)(run->first + (size_t)b), 0,
                                  run->offset + (size_t)token);
            tokens[(size_t)b * row + (size_t)token] = (uint8_t)sampling_draw(s, logits + b * V, V, u);
        }
    }
    free(logits);
}
