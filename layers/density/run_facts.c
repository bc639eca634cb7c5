/* What a report says about a density model, and what the model samples for it while it is trained. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/integers.h"
#include "core/progress.h"
#include "core/signals.h"
#include "core/text.h"
#include "core/text_stream.h"
#include "data/images/drawing.h"
#include "data/sequences/sequence_baselines.h"
#include "layers/density/run.h"
#include "layers/model_facts.h"

/* == The model ==================================================================================================== */

/* A row for each block: its attention and its MLP. */
static void block_part(const SequenceModel *m, int i, ModelTable *table) {
    const Block *block = &m->stage.blocks[i];
    const Attention *a = &block->attention;
    const CausalLayer *layer = a->state;
    char name[32], what[96];
    snprintf(what, sizeof what, "attention: %s, %.1f %% of pairs; MLP",
             causal_pattern_name(&layer->pattern, a->H, name), 100 * causal_share(a));
    model_table_part(table, block->prefix, what, attention_macs(a) + mlp_macs(&block->mlp, (size_t)m->shape.n));
}

static void model_parts(const SequenceModel *m, ModelTable *table) {
    model_table_part(table, "token_embed.", "embedding of tokens", 0);
    model_table_part(table, "pos_embed.", m->positions.entries[2] ? "row, column, channel" : "row, column", 0);
    if (m->shape.starts) model_table_part(table, "start", "before the first token", 0);
    for (int i = 0; i < m->settings.depth; i++) block_part(m, i, table);
    model_table_part(table, "norm.", "final norm", 0);
    model_table_part(table, "head.", "logits", projection_macs(&m->head, (size_t)m->shape.n));
}

static void tell_model(const DensityRun *run, Facts *facts) {
    const SequenceModel *m = &run->model;
    const SequenceModelSettings *s = &m->settings;
    ModelTable table = {.params = &m->model.params};
    char text[320];
    snprintf(text, sizeof text,
             "A Sparse Transformer of %d blocks with %s attention of %d heads, %d wide, that predicts each of %d bytes "
             "from those before it.",
             s->depth, causal_attn_name(&run->training.config), s->heads, s->dim, m->shape.n);
    facts_set(facts, "sentence", text);
    model_parts(m, &table);
    model_table_end(&table, facts, sequence_model_macs(m));
}

void density_facts(DensityRun *run) {
    enum { IMAGES = 2000 /* from which histograms are made, as in --eval */ };
    Facts *facts = training_facts(&run->training);
    if (!facts) return;
    tell_model(run, facts);
    facts_level(facts, "bits", "uniform noise", log2(run->model_settings->vocabulary));
    if (training_evaluates(&run->training))
        facts_level(facts, "bits", "byte histogram", sequences_histogram_bits(&run->set, SEQUENCES_VALIDATION, IMAGES));
}

/* == What it draws ================================================================================================ */

enum { MOST_DRAWN = 8, MOST_TEXT = 400 /* bytes */ };
static const char drawn_title[] = "Samples of the model";

/* Seconds that sampling may take: a hundredth of an epoch; at the end of a run a hundredth of the run, or a minute. */
static double seconds_allowed(const Training *t) {
    double seconds = now_seconds() - t->started, steps = (double)(t->state.step - t->first_step);
    if (!training_epoch_follows(t)) return fmax(0.01 * seconds, 60);
    return steps > 0 ? 0.01 * seconds / steps * (double)t->batches : 0; /* a resumed run may begin with an evaluation */
}

static void show_drawing(size_t done, size_t end) { progress_show(false, "sampling: token %zu/%zu", done, end); }

/* Samples tokens [m's batch,row_bytes] up to `end`, if the first few show that there is time for all. */
static bool draw(const DensityRun *run, SequenceModel *m, uint8_t *tokens, size_t end) {
    enum { FIRST = 8 };
    const Training *t = &run->training;
    SamplingRun sampling = {.B = m->model.batch, .given = !m->shape.starts, .seed = t->s->seed};
    double began = now_seconds();
    sampling.end = end < FIRST ? end : FIRST;
    sampling_run(m, tokens, run->sampling, &sampling, NULL);
    if ((now_seconds() - began) / (double)sampling.end * (double)end > seconds_allowed(t)) return false;
    sampling.end = end;
    sampling_run(m, tokens, run->sampling, &sampling, show_drawing);
    return !stop_signal;
}

static void show_image(Facts *facts, const SequenceSet *set, const uint8_t *tokens) {
    enum { SIDE = 128 };
    int side = larger(set->height, set->width), times = larger(SIDE / side, 1), C = set->channels;
    size_t bytes = (size_t)set->height * (size_t)set->width * 3;
    Image image = {set->height * times, set->width * times, NULL};
    uint8_t *rgb = xcalloc(bytes, 1, "a picture");
    image.pixels = xcalloc((size_t)image.height * (size_t)image.width * 3, 1, "a picture");
    for (size_t i = 0; i < bytes; i++) rgb[i] = tokens[i / 3 * (size_t)C + i % (size_t)C];
    draw_enlarged(&image, rgb, times);
    facts_picture(facts, "drawn", image.pixels, image.height, image.width, larger(SIDE, side), "");
    free(image.pixels);
    free(rgb);
}

static void show_texts(Facts *facts, const char *when, const uint8_t *tokens, int count, size_t row, size_t length) {
    char *texts[MOST_DRAWN];
    for (int i = 0; i < count; i++) {
        TextStream text;
        print_bytes_to(text_open(&text), tokens + (size_t)i * row, length);
        texts[i] = text_close(&text, "a text");
    }
    facts_table(facts, "drawn", drawn_title, &when, 1, (const char *const *)texts, count);
    for (int i = 0; i < count; i++) free(texts[i]);
}

static void show_drawn(const DensityRun *run, Facts *facts, const uint8_t *tokens, int count, size_t length) {
    const SequenceSet *set = &run->set;
    char when[48];
    snprintf(when, sizeof when, "After epoch %llu", (unsigned long long)run->training.state.epoch + 1);
    if (set->kind == SEQUENCES_TEXT) {
        show_texts(facts, when, tokens, count, (size_t)set->row_bytes, length);
        return;
    }
    facts_pictures(facts, "drawn", drawn_title, when);
    for (int i = 0; i < count; i++) show_image(facts, set, tokens + (size_t)i * (size_t)set->row_bytes);
}

/* A text begins with a new line, or with byte 0 if the vocabulary is too small for that. */
static uint8_t *first_tokens(const DensityRun *run, int count, size_t row) {
    uint8_t *tokens = xcalloc((size_t)count, row, "what is drawn");
    bool line = run->set.kind == SEQUENCES_TEXT && run->model_settings->vocabulary > '\n';
    for (int i = 0; i < count && line; i++) tokens[(size_t)i * row] = '\n';
    return tokens;
}

/* The random numbers are the same after every evaluation, so that pages show what was learned in between.  A page has
 * no place for sound. */
void density_facts_evaluated(DensityRun *run) {
    Facts *facts = training_facts(&run->training);
    SequenceModel sampler;
    size_t length = (size_t)run->set.row_bytes;
    if (!facts || run->set.kind == SEQUENCES_AUDIO) return;
    if (!sequence_model_borrow(&sampler, &run->model, &run->training.config, MOST_DRAWN)) return;
    int count = sampler.model.batch;
    uint8_t *tokens = first_tokens(run, count, length);
    if (run->set.kind == SEQUENCES_TEXT && length > MOST_TEXT) length = MOST_TEXT;
    if (draw(run, &sampler, tokens, length)) show_drawn(run, facts, tokens, count, length);
    free(tokens);
    sequence_model_return(&sampler);
}
