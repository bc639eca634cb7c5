/* train_ar: Sparse Transformers as density models of bytes, from a config file to bits per byte and samples.
 *
 * Read it top to bottom: settings, the data and model of a run, one training step, evaluation, the callbacks of a
 * training run, the other modes, main.  The loop that calls these is training_run in training/training.c.  The model is in
 * layers/density/sequence_model.c, its attention in layers/density/causal_attention.c, data in data/sequences/sequences.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "training/bench.h"
#include "core/die.h"
#include "core/distributed.h"
#include "core/files.h"
#include "core/outcome.h"
#include "training/parity.h"
#include "training/program.h"
#include "core/progress.h"
#include "core/rng.h"
#include "training/schedule.h"
#include "core/signals.h"
#include "core/text.h"
#include "data/sequences/sequence_baselines.h"
#include "data/sequences/sequence_loader.h"
#include "data/sequences/sequence_samples.h"
#include "layers/density/sampling.h"
#include "layers/density/sequence_model.h"
#include "layers/density/sequence_picture.h"

/* == Settings ===================================================================================================== */

typedef struct {
    int eval_step;
    SequencesSplit eval_split; /* 0: validation, 1: test */
} EvaluationSettings;

static const ConfigEntry evaluation_entries[] = {
    {CONFIG_FIELD(INT, EvaluationSettings, eval_step), "0", .section = "evaluation", .min = 0, .max = 1 << 24,
     .help = "Text and sound: tokens from one window of an evaluation to the next, which scores its last so many, each "
             "with tokens - eval_step before it (0: half of tokens)"},
    {CONFIG_FIELD(CHOICE, EvaluationSettings, eval_split), "test", .command_line_only = true,
     CONFIG_CHOICES([SEQUENCES_TRAIN] = "train", [SEQUENCES_VALIDATION] = "validation", [SEQUENCES_TEST] = "test"),
     .help = "What --eval evaluates; training evaluates the validation split"},
};
static const ConfigGroup evaluation_settings = {CONFIG_GROUP(EvaluationSettings, evaluation_entries),
                                                .change = CHANGE_FREELY};

/* Settings of modes that only this program has. */
typedef struct {
    int sample, length;
    ConfigList complete;
    const char *prompt, *attention;
} DrawSettings;

#define F(KIND, field) CONFIG_FIELD(KIND, DrawSettings, field)
static const ConfigEntry draw_entries[] = {
    {F(INT, sample), "1", .section = "in place of training", .min = 1, .max = 65536, .command_line_only = true, .argument = "N",
     .help = "Draw N sequences: pictures or sound into --out, text on the screen, and stop"},
    {F(LIST, complete), .command_line_only = true, .argument = "IMAGE...",
     .help = "Draw the lower halves of these pictures, each --sample times, into --out; each is a whole picture or its "
             "upper half"},
    {F(STRING, attention), .command_line_only = true, .argument = "FILE",
     .help = "With --sample or --complete: write the attention weights of every layer and head while the first picture was "
             "drawn to this safetensors file, which scripts/plots/plot_attention.py draws"},
    {F(STRING, prompt), .command_line_only = true, .argument = "TEXT",
     .help = "Continue this text, --sample times; \\n stands for a new line"},
    {F(INT, length), "0", .min = 0, .max = 1 << 30, .command_line_only = true,
     .help = "Bytes of text or samples of sound to draw, the prompt among them (0: as many as tokens)"},
};
#undef F
static const ConfigGroup draw_settings = {CONFIG_GROUP(DrawSettings, draw_entries)};

/* == A run ======================================================================================================== */

typedef struct {
    Training training; /* training.s: the settings that all programs share */
    const ModeSettings *modes;
    const DrawSettings *draw;
    const SamplingSettings *sampling;
    const EvaluationSettings *evaluation;
    const SequencesSettings *data;
    const LoaderSettings *loading;
    SequenceModelSettings *model_settings;
    StepCosineSettings *schedule;

    SequenceSet set;
    SequenceShape shape; /* of the set's sequences, or of those that --parity was given */
    SequenceModel model;
    LoaderPool *workers;
    SequenceLoader loader, eval_loader;
    SafeTensors parity;
    float *losses;      /* host [micro_batch,n] */
    double bits;        /* a token, of the last evaluation */
    int prompt;         /* rows that drawing reads at once, at least 1 */
    DeviceGraph *graph; /* of a micro-batch */
} Run;

static double bits_of(double nats) { return nats / log(2); }

static void add_settings(void *context, Config *config) {
    Run *run = context;
    run->modes = config_add(config, &mode_settings);
    run->draw = config_add(config, &draw_settings);
    run->sampling = config_add(config, &sampling_settings);
    run->data = config_add(config, &sequences_settings);
    run->loading = config_add(config, &loader_settings);
    run->model_settings = sequence_model_add_settings(config);
    run->schedule = config_add(config, &step_cosine_settings);
    config_add(config, &adamw_settings);
    run->evaluation = config_add(config, &evaluation_settings);
    run->training.s = config_add(config, &training_settings);
    config_default(config, "epochs", "10");
    config_default(config, "batch_size", "16");
    config_default(config, "weight_decay", "0.01");
    config_default(config, "clip_grad", "1");
    config_explain(config, "weight_decay",
                   "Decoupled weight decay of AdamW; gains and biases have none, embeddings have it");
    config_explain(config, "eval", "Measure bits per byte of --init or --resume on the test split, and stop");
    config_explain(config, "bench", "Measure the speed of training and inference on random tokens, print one line of "
                                    "JSON, and stop");
    config_explain(config, "parity", "One forward and backward pass on the `tokens` of this safetensors file, images "
                                     "[B,H,W,C] or text [B,n+1]; parameters in it replace the model's");
    config_explain(config, "out", "Where --parity writes logits, loss and grad.<parameter>, and where what is drawn "
                                  "goes: a PNG sheet, a WAV file, or a text file");
    config_explain(config, "epochs", "Passes over the training sequences");
    config_explain(config, "batch_size", "Number of sequences in a step of the optimizer, summed over all ranks");
    config_explain(config, "micro_batch", "Number of sequences computed or drawn at a time; gradients are accumulated "
                                          "to a batch (0: chosen by the model's size)");
    config_explain(config, "seed", "Seed of all random numbers, of training and of what is drawn");
    config_explain(config, "run_dir", "Where config.ini, log.csv and the checkpoints go (default: the next free "
                                      "runs/<data>-<attn>-<number>)");
}

static void use_settings(void *context) { sequence_model_use_settings(&((Run *)context)->training.config); }

static SequenceShape shape_of(const SequenceSet *set) {
    return (SequenceShape){set->n, set->height, set->width, set->channels, set->kind != SEQUENCES_TEXT};
}

static void parity_open(Run *run);

/* Checks settings of several groups, and finds out what a sequence is. */
static void check_settings(void *context) {
    Run *run = context;
    const Config *config = &run->training.config;
    if (config_origin(config, "prompt") && !*run->draw->prompt)
        config_reject(config, "prompt", "an empty text: give at least one byte, or --sample without a prompt");
    run->training.unit = "sequences";
    training_check_ranks(&run->training);
    if (*run->modes->parity) {
        parity_open(run);
    } else {
        sequences_describe(&run->set, run->data);
        run->shape = shape_of(&run->set);
    }
    if (run->evaluation->eval_step > run->shape.n)
        config_reject(config, "eval_step", "{eval_step} is more than the %d tokens of a sequence", run->shape.n);
    sequence_model_check(config, &run->shape);
}

/* == Data ========================================================================================================= */

/* As many sequences at a time as fit in memory while keeping the device busy.  A pass reads the weights of a block,
 * 12 dim^2 of them, once for all of its rows, so a wide model takes several thousand at a time. */
static int micro_batch_choose(const Run *run) {
    enum { ROWS_FOR_DIM = 6, MOST_ROWS = 4096 };
    size_t dim = (size_t)run->model_settings->dim, rows = activations_at_once() / dim, least = ROWS_FOR_DIM * dim;
    if (least > MOST_ROWS) least = MOST_ROWS;
    int micro = training_micro_batch(&run->training, (rows > least ? rows : least) / (size_t)run->shape.n);
    config_limit(&run->training.config, "micro_batch", (double)micro * run->shape.n, "tokens at a time");
    return micro;
}

static int eval_step(const Run *run) {
    int given = run->evaluation->eval_step, n = run->shape.n;
    return given ? given : (n + 1) / 2;
}

static void loading_open(Run *run, SequenceLoader *loader, bool train, SequencesSplit split) {
    int micro = micro_batch_choose(run);
    if (!run->workers) run->workers = loader_pool_start(run->loading, device_shares_cores());
    SequenceLoaderConfig config = {.parts = {.seed = run->training.s->seed,
                                             .batch_size = train ? run->training.s->batch_size
                                                                 : micro * distributed_ranks(),
                                             .train = train,
                                             .rank = distributed_rank(),
                                             .ranks = distributed_ranks(),
                                             .part = micro,
                                             .max_damaged = run->loading->max_damaged,
                                             .pool = run->workers,
                                             .allocate = host_malloc,
                                             .release = host_free},
                                   .split = split,
                                   .step = eval_step(run)};
    sequence_loader_open(loader, &run->set, &config);
}

/* What the files said becomes settings, so that weights can be used without them. */
static void note_kind(Run *run) {
    Config *config = &run->training.config;
    Error error;
    if (run->data->kind == SEQUENCES_AUTO &&
        !config_try_set(config, "kind", config_word(config, "kind", run->set.kind), "the data", &error))
        die("%s", error.text);
}

static void data_open(Run *run) {
    sequences_open(&run->set, run->data);
    run->shape = shape_of(&run->set);
    sequence_model_check(&run->training.config, &run->shape);
}

static void loading_close(void *context) {
    Run *run = context;
    parts_close(&run->loader.parts);
    parts_close(&run->eval_loader.parts);
    loader_pool_close(run->workers);
    sequences_close(&run->set);
}

/* == The model ==================================================================================================== */

/* The heads that weights were trained with, as their file tells; 0 if it does not. */
static int heads_of(const char *checkpoint) {
    static Run other;
    char *text = run_folder_config(checkpoint);
    Config config;
    Error error;
    config_init(&config, NULL);
    add_settings(&other, &config);
    bool told = text && config_try_text(&config, text, strlen(text), checkpoint, &error);
    int heads = told ? other.model_settings->heads : 0;
    free(text);
    config_free(&config);
    return heads;
}

static void model_open(Run *run, int batch, SequencePurpose purpose) {
    SequenceModel *m = &run->model;
    const char *init = run->training.s->init;
    sequence_model_create(m, &run->training.config, &run->shape);
    if (*init) sequence_model_check_weights(m, &run->training.config, init, heads_of(init));
    if (purpose == SEQUENCE_SAMPLE) sequence_model_plan_sampling(m, batch, run->prompt);
    else sequence_model_plan(m, batch, purpose);
    sequence_model_allocate(m);
    params_allocate(&m->model.params, purpose == SEQUENCE_TRAIN);
    if (*init) checkpoint_load_weights(&m->model.params, init, NULL);
    else params_initialize(&m->model.params, run->training.s->seed);
    run->losses = xcalloc((size_t)batch * (size_t)run->shape.n, sizeof *run->losses, "a batch");
}

/* Tokens of a smaller vocabulary must be below it. */
static void check_tokens(const Run *run, const uint8_t *tokens, size_t count, const char *from) {
    int V = run->model_settings->vocabulary;
    for (size_t i = 0; V < 256 && i < count; i++)
        if (tokens[i] >= V)
            config_die(&run->training.config, "%s: has the byte %d, which is beyond {vocabulary}", from, tokens[i]);
}

static void load_tokens(Run *run, const uint8_t *tokens, int B) {
    check_tokens(run, tokens, (size_t)B * (size_t)run->model.row_bytes, run->set.name);
    sequence_model_load(&run->model, tokens, B);
}

/* == One step ===================================================================================================== */

/* Forward and backward pass of the B sequences in the model, which are those from `first` on in the global batch.
 * Their gradients are accumulated; after the last ones they are summed over the ranks.  Returns the sum of their
 * losses. */
static double micro_step(Run *run, int first, int B, bool last) {
    SequenceModel *m = &run->model;
    const Training *t = &run->training;
    int batch = t->s->batch_size, n = m->shape.n;
    double loss = 0;
    sequence_model_draw_drops(m, t->s->seed, (uint32_t)t->state.step, (size_t)first);
    bool same = B == m->model.batch && m->settings.dropout <= 0 && m->settings.embedding_dropout <= 0 &&
                !(last && distributed_ranks() > 1);
    if (!same || device_graph_begin(&run->graph)) {
        sequence_model_forward(m, B, true);
        sequence_model_loss(m, B, 1.0f / ((float)n * (float)batch));
        sequence_model_backward(m, B, true, last ? all_reduce_start : NULL);
        if (same) device_graph_end(&run->graph);
    }
    sequence_model_loss_sums(m, run->losses, B);
    for (int b = 0; b < B; b++) loss += run->losses[b];
    return loss;
}

/* Trains on the loader's next batch, by micro-batches, with one optimizer step.  Returns the mean loss of a token. */
static double train_step(void *context) {
    Run *run = context;
    Training *t = &run->training;
    Params *params = &run->model.model.params;
    SequencePart part;
    double loss = 0;
    int begin, end;
    training_share(t, &begin, &end);
    device_zero(params->grads, params->total * sizeof(float));
    for (int first = begin; first < end; first += part.n) {
        sequence_loader_next(&run->loader, &part);
        load_tokens(run, part.tokens, part.n);
        loss += micro_step(run, first, part.n, first + part.n == end);
    }
    all_reduce_finish();
    training_sum(t, &loss, 1);
    loss /= (double)t->s->batch_size * run->shape.n;
    training_update(t, loss);
    return loss;
}

/* == Evaluation =================================================================================================== */

/* Bits a token over every token of the loader's split, each once, into run->bits.  Each rank takes its share of the
 * windows.  A signal ends it early, without a result.  Returns what the best weights have most of: the geometric mean
 * of the probabilities of the tokens, in percent. */
static double evaluate(void *context) {
    Run *run = context;
    Model *model = &run->model.model;
    SequencePart part;
    int n = run->shape.n;
    size_t done = 0, count = run->eval_loader.parts.source.length;
    double sums[2] = {0}; /* nats, tokens */
    if (model->params.ema) params_view(&model->params, model->params.ema);
    model_set_training(model, false);
    parts_start(&run->eval_loader.parts, 0, 0);
    while (!stop_signal && sequence_loader_next(&run->eval_loader, &part)) {
        load_tokens(run, part.tokens, part.n);
        sequence_model_forward(&run->model, part.n, false);
        sequence_model_loss(&run->model, part.n, 0);
        sequence_model_losses(&run->model, run->losses, part.n);
        for (int b = 0; b < part.n; b++) {
            for (int i = part.scored_from[b]; i < n; i++) sums[0] += run->losses[(size_t)b * (size_t)n + (size_t)i];
            sums[1] += n - part.scored_from[b];
        }
        done += (size_t)part.n;
        progress_show(false, "evaluating %zu/%zu", done * (size_t)distributed_ranks(), count);
    }
    training_sum(&run->training, sums, 2);
    if (model_trains(model)) model_set_training(model, true);
    params_view(&model->params, model->params.values);
    run->training.validation_loss = sums[0] / sums[1];
    run->bits = bits_of(sums[0] / sums[1]);
    return 100 * exp2(-run->bits);
}

/* == Training ===================================================================================================== */

static uint64_t steps_of(const Training *t) { return t->batches * (uint64_t)t->s->epochs; }

static void training_data_and_model(void *context) {
    Run *run = context;
    Training *t = &run->training;
    char stem[128];
    data_open(run);
    note_kind(run);
    training_fit_batch(t, sequences_epoch_length(&run->set), run->set.name);
    loading_open(run, &run->loader, true, SEQUENCES_TRAIN);
    loading_open(run, &run->eval_loader, false, SEQUENCES_VALIDATION);
    step_cosine_fit(&t->config, run->schedule, run->loader.parts.batches * (uint64_t)t->s->epochs);
    model_open(run, micro_batch_choose(run), SEQUENCE_TRAIN);
    snprintf(stem, sizeof stem, "%s-%s", run->set.name, causal_attn_name(&t->config));
    training_open(t, &(TrainingStart){.params = &run->model.model.params,
                                      .batches = run->loader.parts.batches,
                                      .stem = stem});
}

/* What evaluations of streams score. */
static void announce_windows(const Run *run) {
    int step = eval_step(run);
    if (run->set.kind == SEQUENCES_IMAGES) return;
    print_line("evaluations move by %d tokens: each has %d or more before it, but those of the first window\n", step,
               run->shape.n - step);
}

static void announce(void *context) {
    const Run *run = context;
    const SequenceSet *d = &run->set;
    const Model *model = &run->model.model;
    if (distributed_ranks() > 1)
        printf("%d ranks, %d sequences of each batch on every one\n", distributed_ranks(),
               training_local_batch(&run->training));
    print_line("%s: %zu training sequences of %d tokens, %zu tokens to validate, %zu to test\n", d->name,
               sequences_epoch_length(d), d->n, sequences_scored(d, SEQUENCES_VALIDATION),
               sequences_scored(d, SEQUENCES_TEST));
    announce_windows(run);
    printf("%s: %zu parameters, %.1f million multiply-adds a sequence, %.0f MiB of activations\n",
           causal_attn_name(&run->training.config), model->params.parameters, sequence_model_macs(&run->model) / 1e6,
           (double)model_activation_bytes(model) / (1 << 20));
    print_line("%s: %d epochs of %llu batches of %d sequences, %d at a time\n", run->training.s->run_dir,
               run->training.s->epochs, (unsigned long long)run->training.batches, run->training.s->batch_size,
               model->batch);
}

static void load_batches(void *context, uint64_t epoch, uint64_t batch) {
    parts_start(&((Run *)context)->loader.parts, (uint32_t)epoch, batch);
}

static double stalled(const void *context) { return parts_stats(&((const Run *)context)->loader.parts).stalled; }

static float learning_rate(const void *context, double epochs) {
    const Run *run = context;
    (void)epochs;
    return step_cosine_lr(run->schedule, run->training.state.step + 1, steps_of(&run->training));
}

static void words(const void *context, TrainingWords which, char *text, size_t size) {
    const Run *run = context;
    const RunState *state = &run->training.state;
    double best = -log2(state->best / 100);
    switch (which) {
    case WORDS_STEP: snprintf(text, size, "  bits %.4f", bits_of(state->loss_sum / (double)state->loss_count)); break;
    case WORDS_COLUMNS: break;
    case WORDS_EVALUATED: snprintf(text, size, "%.6f", run->bits); break;
    case WORDS_LAST:
    case WORDS_LAST_EVALUATED: break;
    case WORDS_EVALUATION: snprintf(text, size, "%.4f bits per byte", run->bits); break;
    case WORDS_RESULT: snprintf(text, size, "%.4f bits per byte, best %.4f", run->bits, best); break;
    case WORDS_BEST: snprintf(text, size, "best %.4f bits per byte", best); break;
    }
}

/* == Description, evaluation, speed =============================================================================== */

static void mode_describe(void *context) {
    Run *run = context;
    sequence_model_create(&run->model, &run->training.config, &run->shape);
    sequence_model_plan(&run->model, micro_batch_choose(run), SEQUENCE_TRAIN);
    sequence_model_describe(&run->model, run->training.adamw->ema_decay > 0, stdout);
}

static void mode_eval(void *context) {
    Run *run = context;
    SequencesSplit split = run->evaluation->eval_split;
    data_open(run);
    loading_open(run, &run->eval_loader, false, split);
    model_open(run, micro_batch_choose(run), SEQUENCE_EVALUATE);
    evaluate(run);
    if (run->training.stopping) return;
    outcome_require_loss(run->training.validation_loss, run->training.s->init, run->set.name);
    if (distributed_rank() > 0) return;
    progress_show(true, "%zu %s tokens of %s", sequences_scored(&run->set, split), sequences_split_names[split], run->set.name);
    announce_windows(run);
    printf("uniform_bits: %.6f\nhistogram_bits: %.6f\n", log2(run->model_settings->vocabulary),
           sequences_histogram_bits(&run->set, split, 2000));
    printf("eval_step: %d\nloss: %.6f\nbits: %.6f\n", run->set.kind == SEQUENCES_IMAGES ? run->shape.n : eval_step(run),
           run->training.validation_loss, run->bits);
}

static void bench_batch(void *context, bool training) {
    Run *run = context;
    Training *t = &run->training;
    Params *params = &run->model.model.params;
    int begin, end;
    training_share(t, &begin, &end);
    model_set_training(&run->model.model, training);
    if (training) device_zero(params->grads, params->total * sizeof(float));
    for (int first = begin, B; first < end; first += B) {
        B = end - first < run->model.model.batch ? end - first : run->model.model.batch;
        if (training) micro_step(run, first, B, first + B == end);
        else sequence_model_forward(&run->model, B, false);
    }
    all_reduce_finish();
    if (training) training_update(t, 0);
    if (training) t->state.step++;
    device_synchronize();
}

static void mode_bench(void *context) {
    Run *run = context;
    const SequenceModel *m = &run->model;
    const Plan *training = &m->model.training, *inference = &m->model.inference;
    Training *t = &run->training;
    Params *params = t->params = &run->model.model.params;
    int micro = micro_batch_choose(run), n = run->shape.n;
    model_open(run, micro, SEQUENCE_TRAIN);
    params_allocate_optimizer(params, false);
    t->state.lr = 1e-4f;
    size_t count = (size_t)micro * (size_t)m->row_bytes;
    uint8_t *random = xcalloc(count, 1, "random tokens");
    for (size_t i = 0; i < count; i++)
        random[i] = (uint8_t)(rng_bits(t->s->seed, RNG_TEST, 0, 0, i) % (uint32_t)m->settings.vocabulary);
    load_tokens(run, random, micro);
    Bench b = bench(bench_batch, run, "sequences", &t->s->batch_size, micro * distributed_ranks(),
                    (double)t->s->bench_seconds);
    free(random);
    if (distributed_rank() > 0) return;
    double macs = sequence_model_training_macs(m);
    printf("{\"attn\": \"%s\", \"device\": \"%s\", \"tokens\": %d, \"ranks\": %d, \"batch_size\": %d, "
           "\"micro_batch\": %d, \"params\": %zu, \"macs\": %.0f, \"training_macs\": %.0f, "
           "\"train_tokens_per_s\": %.1f, \"infer_tokens_per_s\": %.1f, \"train_batch_seconds\": %.6f, "
           "\"infer_batch_seconds\": %.6f, \"train_bytes\": %zu, \"infer_bytes\": %zu, \"peak_bytes\": %zu, "
           "\"gemm_peak_gflops\": %.1f, \"mfu\": %.4f}\n",
           causal_attn_name(&t->config), kernels_device(), n, distributed_ranks(), t->s->batch_size, micro,
           params->parameters, sequence_model_macs(m), macs, b.train.images_per_s * n,
           b.infer.images_per_s * n, b.train.fastest, b.infer.fastest, plan_bytes(training) + training->workspace,
           plan_bytes(inference) + inference->workspace, device_peak_bytes(), b.peak,
           2 * macs * b.train.images_per_s / 1e9 / distributed_ranks() / b.peak);
}

/* == Drawing ====================================================================================================== */

/* The bytes of --prompt, in which \n is a new line; *length of them.  Without a prompt, text begins with a new line, or
 * with byte 0 if the vocabulary is too small for that. */
static uint8_t *prompt_bytes(const Run *run, size_t *length) {
    const char *text = run->draw->prompt;
    uint8_t *bytes = xcalloc(strlen(text) + 1, 1, "the prompt");
    *length = !*text;
    if (!*text && run->model_settings->vocabulary > '\n') *bytes = '\n';
    for (; *text; text++) {
        bool line = text[0] == '\\' && text[1] == 'n';
        bytes[(*length)++] = line ? '\n' : (uint8_t)*text;
        text += line;
    }
    check_tokens(run, bytes, *length, "--prompt");
    return bytes;
}

/* Not where the text itself goes. */
static void show_drawing(size_t done, size_t end) { progress_show(false, "token %zu/%zu", done, end); }

/* Reads the pictures of --complete, each `copies` times, into tokens [count,n]. */
static void read_halves(const Run *run, uint8_t *tokens, int copies) {
    size_t n = (size_t)run->set.n;
    Error error;
    int rows;
    for (int i = 0; i < run->draw->complete.count; i++) {
        uint8_t *first = tokens + (size_t)i * (size_t)copies * n;
        const char *path = run->draw->complete.items[i];
        if (!sequences_read_picture(&run->set, path, first, &rows, &error)) die("%s: %s", path, error.text);
        check_tokens(run, first, n, path);
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
        if (t->printable) sequences_print_text(out, text, t->length);
        else fwrite(text, 1, t->length, out);
    }
    return !ferror(out);
}

/* Into --out or, without one, on the screen. */
static bool write_drawn(const Run *run, const uint8_t *tokens, int count, size_t length, Error *error) {
    const SequenceSet *set = &run->set;
    const char *path = run->modes->out;
    const DrawnText text = {tokens, count, length, !*path};
    if (set->kind == SEQUENCES_IMAGES) return sequences_write_sheet(set, path, tokens, count, error);
    if (set->kind == SEQUENCES_AUDIO) return sequences_write_wav(set, path, tokens, (size_t)count * length, error);
    if (*path) return file_replace(path, put_text, &text, error);
    put_text(stdout, &text);
    putchar('\n');
    return true;
}

static void check_drawing(const Run *run) {
    const Config *config = &run->training.config;
    SequencesKind kind = run->set.kind;
    if (run->draw->complete.count && kind != SEQUENCES_IMAGES)
        config_reject(config, "complete", "these weights are of no images");
    if (*run->draw->attention && kind != SEQUENCES_IMAGES)
        config_reject(config, "attention", "is drawn over pictures, and these weights are of none");
    if (*run->draw->prompt && kind != SEQUENCES_TEXT) config_reject(config, "prompt", "these weights are of no text");
    if (run->draw->length && kind == SEQUENCES_IMAGES)
        config_reject(config, "length", "a picture has %d bytes always", run->set.n);
    if (kind != SEQUENCES_TEXT && !*run->modes->out)
        die_usage("--sample: needs --out FILE for the %s", kind == SEQUENCES_IMAGES ? "pictures (PNG)" : "sound (WAV)");
}

/* What the layers looked at: the whole picture again, in one pass. */
static void look_at(Run *run, const uint8_t *tokens) {
    const char *path = run->draw->attention;
    sequence_model_destroy(&run->model);
    free(run->losses);
    run->model_settings->recompute = false;
    model_open(run, 1, SEQUENCE_TRAIN);
    load_tokens(run, tokens, 1);
    sequence_model_forward(&run->model, 1, false);
    sequence_picture_write(&run->model, tokens, causal_attn_name(&run->training.config), path);
    print_line("%s: attention of %d blocks\n", path, run->model_settings->depth);
}

static void mode_draw(void *context) {
    Run *run = context;
    const SequenceSet *set = &run->set;
    int halves = run->draw->complete.count, copies = run->draw->sample, count = halves ? halves * copies : copies;
    size_t length = run->draw->length ? (size_t)run->draw->length : (size_t)set->n, given = 0;
    uint8_t *prompt = NULL;
    Error error;
    check_drawing(run);
    if (set->kind == SEQUENCES_TEXT) prompt = prompt_bytes(run, &given);
    if (given > (size_t)set->n)
        config_reject(&run->training.config, "prompt", "%zu bytes, but the model sees %d at a time", given, set->n);
    if (length < given) length = given;
    uint8_t *tokens = xcalloc((size_t)count, length, "samples");
    for (int i = 0; i < count && prompt; i++) memcpy(tokens + (size_t)i * length, prompt, given);
    if (halves) {
        read_halves(run, tokens, copies);
        given = (size_t)(set->height / 2) * (size_t)set->width * (size_t)set->channels;
    }
    int most = run->training.s->micro_batch ? run->training.s->micro_batch
                                            : sampling_at_once(&run->training.config, &run->shape);
    run->prompt = sampling_prompt(&run->shape, given, length);
    model_open(run, count < most ? count : most, SEQUENCE_SAMPLE);
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

/* == Parity ======================================================================================================= */

/* The file says what a sequence is. */
static void parity_open(Run *run) {
    int dims[PARITY_TOKEN_DIMS];
    bool image = parity_tokens(&run->parity, run->modes->parity, dims) == 4;
    run->shape = image ? (SequenceShape){dims[1] * dims[2] * dims[3], dims[1], dims[2], dims[3], true}
                       : (SequenceShape){dims[1] - 1, 0, 0, 0, false};
}

/* Logits, loss and gradients for the tokens that another framework was given. */
static void mode_parity(void *context) {
    Run *run = context;
    SequenceModel *m = &run->model;
    const SafeTensor *given = safetensors_find(&run->parity, "tokens");
    size_t B = given->shape[0], n = (size_t)run->shape.n, V = (size_t)run->model_settings->vocabulary;
    int *labels = xcalloc(given->size, sizeof *labels, "parity");
    uint8_t *tokens = xcalloc(given->size, 1, "parity");
    parity_token_values(&run->parity, run->modes->parity, labels, (int)V);
    model_open(run, (int)B, SEQUENCE_TRAIN);
    parity_parameters(&m->model.params, &run->parity);
    float *logits = xcalloc(B * n * V, sizeof *logits, "parity");
    double loss = 0;
    for (size_t i = 0; i < given->size; i++) tokens[i] = (uint8_t)labels[i];
    load_tokens(run, tokens, (int)B);
    sequence_model_forward(m, (int)B, false);
    real_download(logits, m->logits, B * n * V);
    sequence_model_loss(m, (int)B, 1.0f / ((float)B * (float)n));
    sequence_model_loss_sums(m, run->losses, (int)B);
    sequence_model_backward(m, (int)B, false, NULL);
    for (size_t b = 0; b < B; b++) loss += run->losses[b];
    float mean = (float)(loss / (double)(B * n));
    const SafeTensorEntry outputs[] = {{"logits", SAFE_F32, 3, {B, n, V}, logits}, {"loss", SAFE_F32, 1, {1}, &mean}};
    parity_write(run->modes->out, outputs, 2, &m->model.params);
    free(labels);
    free(tokens);
    free(logits);
    safetensors_close(&run->parity);
}

/* == Main ========================================================================================================= */

#define DRAWS .alone = true, .needs_weights = true, .together = true, \
              .settings = {"length", "temperature", "top_k", "top_p"}
static const ProgramMode modes[] = {
    {"describe", "print the layers, parameters, multiply-adds and memory of the model", mode_describe, .alone = true},
    {"eval", "measure the bits per byte of --init or --resume on the test split", mode_eval, .needs_weights = true,
     .settings = {"eval_split"}},
    {"bench", "measure the speed of training and inference", mode_bench, .outputs = {NULL}},
    {"sample", "draw N pictures or sounds into --out, or texts", mode_draw, DRAWS,
     .outputs = {"out", "attention"}},
    {"complete", "draw the lower halves of these pictures into --out", mode_draw, DRAWS,
     .outputs = {"out", "attention"}},
    {"prompt", "continue this text", mode_draw, DRAWS,
     .outputs = {"out"}},
    {"parity", "run one step on inputs from a file, and write its gradients to --out", mode_parity,
     .alone = true, .outputs = {"out"}, .needs_output = true},
    {.name = NULL},
};

static const HelpLine basics[] = {
    {"data", "shapes, cifar10, enwik8, a file of text or sound, or a folder"},
    {"attn", "which tokens before it a token attends to; --help lists the choices"},
    {"tokens", "length of a sequence of text or sound"},
    {"dim", "width of the model; --depth is its number of blocks"},
    {"epochs", "passes over the training sequences"},
    {"batch_size", "sequences in a step of the optimizer"},
    {"lr", "highest learning rate"},
    {"precision", "of activations: float32 or bfloat16"},
    {"init", "begin with these weights (safetensors)"},
    {"resume", "continue the run in this folder"},
    {"run_dir", "where log and checkpoints go; otherwise a new folder in runs/"},
    {"seed", "of all random numbers"},
    {.name = NULL},
};

static const Program program = {
    .name = "train_ar",
    .introduction = "train_ar trains Sparse Transformers as density models of bytes: of images, text and sound.",
    .examples =
        "  train_ar --config configs/ar/shapes-demo.ini             train on the built-in shapes, minutes\n"
        "  train_ar --data book.txt --tokens 512                    train on any file\n"
        "  train_ar --resume runs/shapes-sparse-strided-001         go on where a run stopped\n"
        "  train_ar --init runs/shapes-sparse-strided-001/best.safetensors --sample 16 --out drawn.png\n"
        "  train_ar --config configs/ar/shapes-demo.ini --attn softmax    the first with dense attention\n"
        "  train_ar --resume runs/shapes-sparse-strided-001 --eval  measure bits per byte on the test split\n"
        "  train_ar --init runs/book.txt-softmax-001/best.safetensors --prompt \"Call me\" --sample 3\n"
        "  train_ar --config configs/ar/cifar10.ini --describe\n",
    .basics = basics, .example = "train_ar --data shapes", .word = "sparse-fixed",
    .reference = "docs/settings-ar.md",
    .settings = add_settings, .chooser = "attn", .use = use_settings, .check = check_settings,
    .modes = modes,
    .training = {.columns = "bits",
                 .decimals = 2,
                 .advice = "a lower lr or a longer warm-up",
                 .open = training_data_and_model, .announce = announce, .load = load_batches, .stalled = stalled,
                 .rate = learning_rate, .step = train_step, .evaluate = evaluate, .words = words},
    .close = loading_close,
};

int main(int argc, char **argv) {
    static Run run;
    return program_main(&program, &run, &run.training, argc, argv);
}
