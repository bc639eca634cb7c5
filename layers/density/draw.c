/* Sampling from a density model: pictures, sound and text. */
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/files.h"
#include "core/progress.h"
#include "core/text.h"
#include "data/sequences/sequence_samples.h"
#include "data/sequences/sound.h"
#include "layers/density/run.h"
#include "layers/density/sequence_picture.h"

#define F(KIND, field) CONFIG_FIELD(KIND, DrawSettings, field)
static const ConfigEntry draw_entries[] = {
    {F(INT, sample), "1", .section = "in place of training", .min = 1, .max = 65536, .command_line_only = true, .argument = "N",
     .help = "Sample N sequences and stop: pictures or sound are written to --out, text is printed"},
    {F(LIST, complete), .command_line_only = true, .argument = "IMAGE...",
     .help = "Sample the lower halves of these pictures, each --sample times, and write them to --out; each file is a "
             "whole picture or its upper half"},
    {F(STRING, attention), .command_line_only = true, .argument = "FILE",
     .help = "With --sample or --complete: write the attention weights of every layer and head while the first picture "
             "is sampled to this safetensors file, which scripts/plots/plot_attention.py plots"},
    {F(STRING, prompt), .command_line_only = true, .argument = "TEXT",
     .help = "Continue this text, --sample times; \\n means a new line"},
    {F(INT, length), "0", .min = 0, .max = 1 << 30, .command_line_only = true,
     .help = "Bytes of text or samples of sound to generate, including the prompt (0: the value of tokens)"},
};
#undef F
const ConfigGroup draw_settings = {CONFIG_GROUP(DrawSettings, draw_entries)};

/* The bytes of --prompt, in which \n is a new line; *length of them.  Without a prompt, text begins with a new line, or
 * with byte 0 if the vocabulary is too small for that. */
static uint8_t *prompt_bytes(const DensityRun *run, size_t *length) {
    const char *text = run->draw->prompt;
    uint8_t *bytes = xcalloc(strlen(text) + 1, 1, "the prompt");
    *length = !*text;
    if (!*text && run->model_settings->vocabulary > '\n') *bytes = '\n';
    for (; *text; text++) {
        bool line = text[0] == '\\' && text[1] == 'n';
        bytes[(*length)++] = line ? '\n' : (uint8_t)*text;
        text += line;
    }
    density_check_tokens(run, bytes, *length, "--prompt");
    return bytes;
}

/* Standard output is reserved for the text itself. */
static void show_drawing(size_t done, size_t end) { progress_show(false, "token %zu/%zu", done, end); }

/* Reads the pictures of --complete, each `copies` times, into tokens [count,n]. */
static void read_halves(const DensityRun *run, uint8_t *tokens, int copies) {
    size_t n = (size_t)run->set.n;
    Error error;
    int rows;
    for (int i = 0; i < run->draw->complete.count; i++) {
        uint8_t *first = tokens + (size_t)i * (size_t)copies * n;
        const char *path = run->draw->complete.items[i];
        if (!sequences_read_picture(&run->set, path, first, &rows, &error)) die("%s: %s", path, error.text);
        density_check_tokens(run, first, n, path);
        for (int c = 1; c < copies; c++) memcpy(first + (size_t)c * n, first, n);
    }
}

typedef struct {
    const uint8_t *tokens; /* [count,length] */
    int count;
    size_t length;
    bool printable;
} DrawnText;

static bool put_text(FILE *out, const void *content) {
    const DrawnText *t = content;
    for (int i = 0; i < t->count && !ferror(out); i++) {
        const uint8_t *text = t->tokens + (size_t)i * t->length;
        if (t->count > 1) fprintf(out, "%s== %d ==\n", i ? "\n" : "", i + 1);
        if (t->printable) print_bytes_to(out, text, t->length);
        else fwrite(text, 1, t->length, out);
    }
    return !ferror(out);
}

/* Writes to --out or, without it, to standard output.  tokens NULL: only whether a sheet or sound can be written. */
static bool write_drawn(const DensityRun *run, const uint8_t *tokens, int count, size_t length, Error *error) {
    const SequenceSet *set = &run->set;
    const char *path = run->modes->out;
    const DrawnText text = {tokens, count, length, !*path};
    if (set->kind == SEQUENCES_IMAGES) return sequences_write_sheet(set, path, tokens, count, error);
    if (set->kind == SEQUENCES_AUDIO) return sound_write(path, tokens, (size_t)count * length, set->rate, error);
    if (!tokens) return true;
    if (*path) return file_replace(path, put_text, &text, error);
    put_text(stdout, &text);
    putchar('\n');
    return true;
}

static void check_drawing(const DensityRun *run) {
    const Config *config = &run->training.config;
    SequencesKind kind = run->set.kind;
    if (run->draw->complete.count && kind != SEQUENCES_IMAGES)
        config_reject(config, "complete", "these weights are not of a model of images");
    if (*run->draw->attention && kind != SEQUENCES_IMAGES)
        config_reject(config, "attention", "attention is shown over pictures, and these weights are not of a model of "
                                           "images");
    if (*run->draw->prompt && kind != SEQUENCES_TEXT) config_reject(config, "prompt", "these weights are not of a "
                                                                                      "model of text");
    if (run->draw->length && kind == SEQUENCES_IMAGES)
        config_reject(config, "length", "a picture always has %d bytes", run->set.n);
    if (kind != SEQUENCES_TEXT && !*run->modes->out)
        die_usage("--%s: needs --out FILE for the %s", run->training.mode,
                  kind == SEQUENCES_IMAGES ? "pictures (PNG)" : "sound (WAV)");
}

/* Writes the attention of the layers for the whole picture, in one more pass. */
static void look_at(DensityRun *run, const uint8_t *tokens) {
    const char *path = run->draw->attention;
    density_close(run);
    run->model_settings->recompute = false;
    density_open(run, 1, SEQUENCE_TRAIN);
    density_load(run, tokens, 1);
    sequence_model_forward(&run->model, 1, false);
    sequence_picture_write(&run->model, tokens, causal_attn_name(&run->training.config), path);
    print_line("%s: attention of %d blocks\n", path, run->model_settings->depth);
}

void density_draw(DensityRun *run) {
    const SequenceSet *set = &run->set;
    int halves = run->draw->complete.count, copies = run->draw->sample, count = halves ? halves * copies : copies;
    size_t length = run->draw->length ? (size_t)run->draw->length : (size_t)set->n, given = 0;
    uint8_t *prompt = NULL;
    Error error;
    check_drawing(run);
    if (set->kind == SEQUENCES_TEXT) prompt = prompt_bytes(run, &given);
    if (given > (size_t)set->n)
        config_reject(&run->training.config, "prompt", "%zu bytes, but the model sees %d at a time", given, set->n);
    if (length < given + 1 && prompt)
        config_reject(&run->training.config, run->draw->length ? "length" : "prompt",
                      "the prompt has %zu of the %zu bytes: nothing is left to generate: give a greater --length", given,
                      length);
    if (!write_drawn(run, NULL, count, length, &error)) die("%s: %s", run->modes->out, error.text);
    uint8_t *tokens = xcalloc((size_t)count, length, "samples");
    for (int i = 0; i < count && prompt; i++) memcpy(tokens + (size_t)i * length, prompt, given);
    if (halves) {
        read_halves(run, tokens, copies);
        given = (size_t)(set->height / 2) * (size_t)set->width * (size_t)set->channels;
    }
    int most = run->training.s->micro_batch ? run->training.s->micro_batch
                                            : sampling_at_once(&run->training.config, &run->shape);
    run->prompt = sampling_prompt(&run->shape, given, length);
    density_open(run, count < most ? count : most, SEQUENCE_SAMPLE);
    sampling_long(&run->model, tokens, run->sampling,
                  &(SamplingRun){.B = count, .given = given, .end = length, .seed = run->training.s->seed,
                                 .weights = run->training.s->init},
                  *run->modes->out ? show_drawing : NULL);
    progress_end();
    if (!write_drawn(run, tokens, count, length, &error)) die("%s: %s", run->modes->out, error.text);
    if (*run->modes->out)
        print_line("%s: %d %s of %s\n", run->modes->out, count, count == 1 ? "sequence" : "sequences", set->name);
    if (*run->draw->attention) look_at(run, tokens);
    free(prompt);
    free(tokens);
}
