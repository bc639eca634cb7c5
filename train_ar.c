/* train_ar: Sparse Transformers as density models of bytes, from a config file to bits per byte and samples.
 *
 * Read it from its end: main, and train above it, show the whole run.  Above them are, in this order, the settings, the
 * data, evaluation and output.  The model is in layers/density/sequence_model.c, its attention in
 * layers/density/causal_attention.c, a step of it and the modes that do not train in layers/density/, data in
 * data/sequences/sequences.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/files.h"
#include "core/results/outcome.h"
#include "core/progress.h"
#include "core/signals.h"
#include "core/text.h"
#include "data/sequences/sequence_baselines.h"
#include "data/sets/datasets.h"
#include "kernels/kernels.h"
#include "layers/density/run.h"
#include "layers/loading.h"

/* == Settings ===================================================================================================== */

static const ConfigEntry evaluation_entries[] = {
    {CONFIG_FIELD(INT, EvaluationSettings, eval_step), "0", .section = "evaluation", .min = 0, .max = 1 << 24,
     .help = "For text and sound: number of tokens by which the window of an evaluation moves. A window scores its "
             "last eval_step tokens, each predicted from at least tokens - eval_step earlier tokens (0: half of "
             "tokens)"},
    {CONFIG_FIELD(CHOICE, EvaluationSettings, eval_split), "test", .command_line_only = true,
     CONFIG_CHOICES([SEQUENCES_TRAIN] = "train", [SEQUENCES_VALIDATION] = "validation", [SEQUENCES_TEST] = "test"),
     .help = "Split that --eval evaluates; training evaluates the validation split"},
};
static const ConfigGroup evaluation_settings = {CONFIG_GROUP(EvaluationSettings, evaluation_entries),
                                                .change = CHANGE_FREELY};

static void add_settings(DensityRun *run, Config *config) {
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
    config_explain(config, "weight_decay_of",
                   "Parameters that decay: the matrices and embeddings, but not the biases and gains; or all of them");
    config_explain(config, "eval", "Measure bits per byte of --init or --resume on the test split, and stop");
    config_explain(config, "bench", "Measure the speed of training and inference on random tokens, print one line of "
                                    "JSON, and stop");
    config_explain(config, "parity", "One forward and backward pass on the `tokens` of this safetensors file, images "
                                     "[B,H,W,C] or text [B,n+1]; parameters in it replace the model's");
    config_explain(config, "out", "Where --parity writes logits, loss and grad.<parameter>, and where --sample and "
                                  "--complete write: a PNG sheet, a WAV file, or a text file");
    config_explain(config, "epochs", "Passes over the training sequences");
    config_explain(config, "batch_size", "Number of sequences in a step of the optimizer, summed over all ranks");
    config_explain(config, "micro_batch", "Number of sequences computed or sampled at a time; gradients are accumulated "
                                          "to a batch (0: chosen by the model's size)");
    config_explain(config, "seed", "Seed of all random numbers, in training and in sampling");
}

static SequenceShape shape_of(const SequenceSet *set) {
    return (SequenceShape){set->n, set->height, set->width, set->channels, set->kind != SEQUENCES_TEXT};
}

/* Rejects settings on the command line that do not count with data of this kind, or a stride that no part of the model
 * uses.  Those of a file may be for other data or another attention, and scripts/reproduce.sh gives eval_step to every
 * row. */
static void check_counted(const DensityRun *run) {
    static const char *const others[] = {
        [SEQUENCES_IMAGES] = "tokens, rate, shares",
        [SEQUENCES_TEXT] = "image_side, grey, rate, validation_images, split_seed",
        [SEQUENCES_AUDIO] = "image_side, grey, validation_images, split_seed",
    };
    const Config *config = &run->training.config;
    bool images = run->set.kind == SEQUENCES_IMAGES, dense = !strcmp(causal_attn_name(config), "softmax");
    for (int i = 0; i < config->count; i++) {
        const char *name = config_name(config, i), *origin = config_origin(config, name);
        if (!origin || strncmp(origin, "--", 2)) continue;
        if (text_lists(others[run->set.kind], name))
            config_reject(config, name, "it does not count with {data}, whose kind is %s",
                          config_word(config, "kind", run->set.kind));
        if (!strcmp(name, "stride") && images && dense && run->model_settings->embedding != EMBEDDING_ATTENTION)
            config_reject(config, name, "it counts with sparse attention or embedding attention, not with {attn}");
    }
}

/* Do these shares, as text, divide a stream as those of this call do? */
static bool shares_equal(const DensityRun *run, const char *text) {
    const float *ours = run->data->shares.at;
    double theirs[SEQUENCES_SPLITS], our_sum = 0, their_sum = 0, error = 0;
    if (sscanf(text, "%lf,%lf,%lf", &theirs[0], &theirs[1], &theirs[2]) != SEQUENCES_SPLITS) return false;
    for (int i = 0; i < SEQUENCES_SPLITS; i++) our_sum += (double)ours[i], their_sum += theirs[i];
    for (int i = 0; i < SEQUENCES_SPLITS; i++) error += fabs((double)ours[i] / our_sum - theirs[i] / their_sum);
    return error < 1e-7;
}

/* Another division of the data would evaluate what the weights were trained on.  Test images are not divided. */
static void require_split_of_weights(const DensityRun *run) {
    const Config *config = &run->training.config;
    const char *data = run->data->data, *dividing = "shares";
    Config saved;
    if (run->set.kind == SEQUENCES_IMAGES)
        dividing = run->evaluation->eval_split == SEQUENCES_TEST ? ""
                   : dataset_generates(data)                     ? "validation_images, split_seed, train_limit"
                                                                 : "validation_images, split_seed";
    bool told = run_folder_settings(&saved, config, run->training.s->init);
    for (int i = 0; i < config->count && told && file_is_same(config_string(&saved, "data"), data); i++) {
        const char *name = config_name(config, i);
        if (!text_lists(dividing, name)) continue;
        char *trained = config_value(&saved, i);
        if (config_changed(config, i, trained) && !(!strcmp(name, "shares") && shares_equal(run, trained)))
            config_reject(config, name, "the weights were trained with %s, which divides {data} in another way", trained);
        free(trained);
    }
    config_free(&saved);
}

/* Checks settings of several groups, and finds out what a sequence is. */
static void check_settings(DensityRun *run) {
    const Config *config = &run->training.config;
    if (config_origin(config, "prompt") && !*run->draw->prompt)
        config_reject(config, "prompt", "an empty text: give at least one byte, or --sample without a prompt");
    run->training.unit = "sequences";
    if (!run->training.mode || run->modes->bench) training_check_ranks(&run->training);
    if (*run->modes->parity) {
        density_parity_open(run);
    } else {
        sequences_describe(&run->set, run->data);
        run->shape = shape_of(&run->set);
        check_counted(run);
        if (run->modes->eval) require_split_of_weights(run);
    }
    if (run->evaluation->eval_step > run->shape.n)
        config_reject(config, "eval_step", "{eval_step} is more than the %d tokens of a sequence", run->shape.n);
    sequence_model_check(config, &run->shape);
}

/* == Help ========================================================================================================= */

#define DRAWS .alone = true, .needs_weights = true, .together = true, \
              .settings = {"length", "temperature", "top_k", "top_p"}
static const ProgramMode modes[] = {
    {"describe", "print the layers, parameters, multiply-adds and memory of the model", .alone = true},
    {"eval", "measure the bits per byte of --init or --resume on the test split", .needs_weights = true,
     .settings = {"eval_split"}},
    PROGRAM_MODE_BENCH,
    {"sample", "sample N pictures or sounds into --out, or texts", DRAWS,
     .outputs = {"out", "attention"}},
    {"complete", "sample the lower halves of these pictures into --out", DRAWS,
     .outputs = {"out", "attention"}},
    {"prompt", "continue this text", DRAWS,
     .outputs = {"out"}},
    PROGRAM_MODE_PARITY,
    PROGRAM_MODES_OF_PAGES,
    {.name = NULL},
};

static const HelpLine basics[] = {
    {"data", "shapes, cifar10, enwik8, a file of text or sound, or a folder"},
    {"attn", "earlier tokens that a token attends to; --help lists the choices"},
    {"tokens", "length of a sequence of text or sound"},
    {"dim", "width of the model; --depth is its number of blocks"},
    {"epochs", "passes over the training sequences"},
    {"batch_size", "sequences in a step of the optimizer"},
    {"lr", "highest learning rate"},
    {"precision", "of activations: float32 or bfloat16"},
    {"init", "begin with these weights (safetensors)"},
    PROGRAM_BASICS_OF_A_RUN,
};

static const ProgramFacts facts = {
    .name = "train_ar",
    .introduction = "train_ar trains Sparse Transformers as density models of bytes: of images, text and sound.",
    .examples =
        "  train_ar --config configs/ar/shapes-demo.ini             train on built-in shapes, half an hour\n"
        "  train_ar --data book.txt --tokens 512                    train on any file\n"
        "  train_ar --resume runs/shapes-sparse-strided-001         go on where a run stopped\n"
        "  train_ar --init runs/shapes-sparse-strided-001/best.safetensors --sample 16 --out sampled.png\n"
        "  train_ar --config configs/ar/shapes-demo.ini --attn softmax    the first run with dense attention\n"
        "  train_ar --resume runs/shapes-sparse-strided-001 --eval  measure bits per byte on the test split\n"
        "  train_ar --init runs/book.txt-softmax-001/best.safetensors --prompt \"Call me\" --sample 3\n"
        "  train_ar --config configs/ar/cifar10.ini --describe\n",
    .basics = basics, .example = "train_ar --data shapes", .word = "sparse-fixed",
    .reference = "docs/reference/settings-ar.md",
    .chooser = "attn", .modes = modes, .advice = "a lower lr or a longer warm-up", .decimals = 2,
};

/* == Data ========================================================================================================= */

static int eval_step(const DensityRun *run) {
    int given = run->evaluation->eval_step, n = run->shape.n;
    return given ? given : (n + 1) / 2;
}

static void loading_open(DensityRun *run, SequenceLoader *loader, bool train, SequencesSplit split) {
    SequenceLoaderConfig config = {.parts = loading_parts(&run->training, run->loading, &run->workers, train,
                                                          density_micro_batch(run)),
                                   .split = split,
                                   .step = eval_step(run)};
    sequence_loader_open(loader, &run->set, &config);
}

/* Stores the kind of the files as a setting, so that weights can be used without the files. */
static void note_kind(DensityRun *run) {
    Config *config = &run->training.config;
    if (run->data->kind == SEQUENCES_AUTO)
        config_try_set(config, "kind", config_word(config, "kind", run->set.kind), "the data", &error_fatal);
}

static void data_open(DensityRun *run) {
    sequences_open(&run->set, run->data);
    run->shape = shape_of(&run->set);
    sequence_model_check(&run->training.config, &run->shape);
}

static void loading_close(DensityRun *run) {
    parts_close(&run->loader.parts);
    parts_close(&run->eval_loader.parts);
    loader_pool_close(run->workers);
    sequences_close(&run->set);
}

/* == Evaluation =================================================================================================== */

static double bits_of(double nats) { return nats / log(2); }

/* Computes run->bits, the bits per token over all tokens of the loader's split, each counted once.  Each rank takes its
 * share of the windows.  A signal ends it early, without a result. */
static void evaluate(DensityRun *run) {
    Model *model = &run->model.model;
    SequencePart part;
    int n = run->shape.n;
    size_t done = 0, count = run->eval_loader.parts.source.length;
    double sums[2] = {0}; /* nats, tokens */
    model_evaluation_begin(model);
    parts_start(&run->eval_loader.parts, 0, 0);
    while (!stop_signal && sequence_loader_next(&run->eval_loader, &part)) {
        density_load(run, part.tokens, part.n);
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
    model_evaluation_end(model);
    if (!run->training.stopping && sums[1] <= 0)
        die("%s: none of the sequences to evaluate can be read", run->set.name);
    run->training.validation_loss = sums[0] / sums[1];
    run->bits = bits_of(sums[0] / sums[1]);
}

/* Prints which tokens are scored in evaluations of streams. */
static void announce_windows(const DensityRun *run) {
    int step = eval_step(run);
    if (run->set.kind == SEQUENCES_IMAGES) return;
    print_line("evaluation windows move by %d tokens: scored tokens have %d or more before them, except in the first "
               "window\n", step,
               run->shape.n - step);
}

/* --eval */
static void evaluate_split(DensityRun *run) {
    SequencesSplit split = run->evaluation->eval_split;
    data_open(run);
    loading_open(run, &run->eval_loader, false, split);
    density_open(run, density_micro_batch(run), SEQUENCE_EVALUATE);
    evaluate(run);
    if (run->training.stopping) return;
    outcome_require_loss(run->training.validation_loss, run->training.s->init, run->set.name);
    if (distributed_rank() > 0) return;
    progress_show(true, "%zu %s tokens of %s", sequences_scored(&run->set, split), sequences_split_names[split],
                  run->set.name);
    announce_windows(run);
    printf("uniform_bits: %.6f\nhistogram_bits: %.6f\n", log2(run->model_settings->vocabulary),
           sequences_histogram_bits(&run->set, split, 2000));
    printf("eval_step: %d\nloss: %.6f\nbits: %.6f\n", run->set.kind == SEQUENCES_IMAGES ? run->shape.n : eval_step(run),
           run->training.validation_loss, run->bits);
}

/* == Training ===================================================================================================== */

/* Opens the data and the model of a training run, with its initial weights or the state of the resumed run. */
static void training_data_and_model(DensityRun *run) {
    Training *t = &run->training;
    char stem[128];
    data_open(run);
    note_kind(run);
    training_fit_batch(t, sequences_epoch_length(&run->set), run->set.name);
    loading_open(run, &run->loader, true, SEQUENCES_TRAIN);
    if (training_evaluates(t)) loading_open(run, &run->eval_loader, false, SEQUENCES_VALIDATION);
    step_cosine_fit(&t->config, run->schedule, run->loader.parts.batches * (uint64_t)t->s->epochs);
    density_open(run, density_micro_batch(run), SEQUENCE_TRAIN);
    snprintf(stem, sizeof stem, "%s-%s", run->set.name, causal_attn_name(&t->config));
    training_column(t, "bits", "%.6f", LOG_MIDDLE);
    training_open(t, &(TrainingStart){.params = &run->model.model.params,
                                      .batches = run->loader.parts.batches,
                                      .examples = run->set.count[SEQUENCES_TRAIN],
                                      .streams = run->set.kind != SEQUENCES_IMAGES,
                                      .stem = stem});
}

static void announce(const DensityRun *run) {
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
    training_announce(&run->training, "%d at a time", model->batch);
}

/* Prints the result in the last line of the run. */
static int report(const DensityRun *run) {
    const Training *t = &run->training;
    double best = -log2(t->state.best / 100);
    if (t->evaluated) return training_report(t, "%.4f bits per byte, best %.4f", run->bits, best);
    return training_report(t, "best %.4f bits per byte", best);
}

/* Trains from the first or a saved step to the last epoch or a signal; returns the exit status.
 * training_evaluated keeps the weights with the highest score: here the geometric mean of the tokens' probabilities in
 * percent, which is highest where the bits are fewest. */
static int train(DensityRun *run) {
    Training *t = &run->training;
    SequencePart part;
    int begin, end;
    training_data_and_model(run);
    if (distributed_rank() == 0) announce(run);
    density_facts(run);
    training_share(t, &begin, &end);
    for (; training_epoch_left(t); training_epoch_end(t)) {
        parts_start(&run->loader.parts, (uint32_t)t->state.epoch, t->state.batch);
        while (training_batch_left(t)) {
            double loss = 0;
            training_step_begin(t, step_cosine_lr(run->schedule, t->state.step + 1, training_steps(t)));
            for (int first = begin; first < end; first += part.n) {
                sequence_loader_next(&run->loader, &part);
                density_load(run, part.tokens, part.n);
                loss += density_forward_backward(run, first, part.n, first + part.n == end);
            }
            all_reduce_finish();
            training_sum(t, &loss, 1);
            training_update(t, loss / ((double)t->s->batch_size * run->shape.n)); /* AdamW */
            training_step_end(t, parts_stats(&run->loader.parts).stalled);
            training_note(t, "  bits %.4f", bits_of(training_loss(t)));
            training_log(t);
            if (t->stopping) return training_stop_early(t);
        }
        training_epoch_trained(t);
        if (training_epoch_follows(t)) parts_start(&run->loader.parts, (uint32_t)t->state.epoch + 1, 0);
        if (!training_evaluation_is_due(t)) continue;
        evaluate(run);
        if (t->stopping) return training_stop_early(t);
        training_value(t, "bits", run->bits);
        training_evaluated(t, 100 * exp2(-run->bits), "%.4f bits per byte", run->bits);
        density_facts_evaluated(run);
    }
    return report(run);
}

int main(int argc, char **argv) {
    static DensityRun run;
    Training *t = &run.training;
    if (!program_begin(t, &facts, argc, argv)) return t->status;
    add_settings(&run, &t->config);
    if (!program_read(t, argc, argv)) return t->status;
    sequence_model_use_settings(&t->config);
    if (!program_settle(t)) return t->status;
    check_settings(&run);
    if (!program_open(t)) return t->status;
    if (run.modes->describe) density_describe(&run);
    else if (run.modes->eval) evaluate_split(&run);
    else if (run.modes->bench) density_bench(&run);
    else if (*run.modes->parity) density_parity(&run);
    else if (t->mode) density_draw(&run); /* --sample, --complete or --prompt */
    else t->status = train(&run);
    loading_close(&run);
    return program_close(t);
}
