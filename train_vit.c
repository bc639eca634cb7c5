/* train_vit: vision transformers for image classification, from a config file to an accuracy.
 *
 * Read it top to bottom: settings, what a run holds, one training step, evaluation, the training loop, the other modes,
 * main.  The layers are in layers/, the arithmetic in kernels/, what is neither vision nor the loop in core/. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/adamw.h"
#include "core/checkpoint.h"
#include "core/config.h"
#include "core/die.h"
#include "core/files.h"
#include "core/progress.h"
#include "core/rng.h"
#include "core/schedule.h"
#include "data/image.h"
#include "data/loader.h"
#include "layers/attention/feature_map.h"
#include "layers/attention/relative.h"
#include "layers/vit.h"

enum { PATH_SIZE = 4096, ERROR_SIZE = 512 };

/* == Settings ===================================================================================================== */

typedef struct {
    const char *config, *data, *data_dir, *init, *resume, *run_dir, *parity, *out, *attention;
    ConfigList predict;
    bool help, help_markdown, describe, eval, bench;
    int train_limit, test_limit, crop_padding;
    bool flip;
    int attn, feature_map, relative, ripple_algo, pool, pos_embed, lr_schedule; /* indices of choices */
    int img_size[2], patch_size, num_classes, dim, depth, heads, r_max, ripple_layers;
    float mlp_ratio, drop_path, tau;
    int epochs, batch_size, micro_batch, lr_base_batch, eval_every, log_every;
    float lr, lr_min, lr_warmup, warmup_epochs, weight_decay, beta1, beta2, eps, clip_grad, ema_decay, label_smoothing;
    float bench_seconds;
    uint64_t seed;
} Settings;

enum { POOL_CLS, POOL_GAP };
enum { POS_LEARNED, POS_NONE };
enum { SCHEDULE_EPOCH, SCHEDULE_STEP };
static const char *const ripple_algos[] = {"auto", "dense", "window", "sat", "naive"};

#define F(KIND, field) CONFIG_FIELD(KIND, Settings, field)
static const ConfigEntry entries[] = {
    {F(BOOL, help), .section = "modes", .command_line_only = true, .help = "Print this help"},
    {F(BOOL, help_markdown), .command_line_only = true, .help = "Print the settings as Markdown tables"},
    {F(STRING, config), .command_line_only = true, .argument = "FILE", .help = "Read settings from this INI file; the command line wins over it"},
    {F(STRING, resume), .command_line_only = true, .argument = "FOLDER", .help = "Continue the run in this folder, bit for bit, from its last state"},
    {F(BOOL, describe), .command_line_only = true, .help = "Print layers, parameters, multiply-adds and memory, and stop"},
    {F(BOOL, eval), .command_line_only = true, .help = "Measure the accuracy of --init or --resume on the test split, and stop"},
    {F(BOOL, bench), .command_line_only = true, .help = "Measure training and inference speed on random images, print one line of JSON, and stop"},
    {F(LIST, predict), .command_line_only = true, .argument = "IMAGE...", .help = "Name what these images show: PNG or JPEG files, or test:17 for an image of the test split"},
    {F(STRING, attention), .command_line_only = true, .argument = "FILE", .help = "With --predict: write where each head of each layer looks (safetensors; scripts/plot_attention.py draws it)"},
    {F(STRING, parity), .command_line_only = true, .argument = "IN", .help = "One forward and backward pass on the images and labels of this safetensors file; parameters in it replace the model's"},
    {F(STRING, out), .command_line_only = true, .argument = "FILE", .help = "Where --parity writes logits, loss and grad.<parameter>"},

    {F(STRING, data), "shapes", .section = "data", .help = "shapes (drawn on the spot, no files needed), cifar10, cifar100, or a folder with one of the CIFAR layouts"},
    {F(STRING, data_dir), "datasets", .argument = "FOLDER", .help = "Where cifar10 and cifar100 are looked for (scripts/fetch_cifar.sh puts them there)"},
    {F(INT, train_limit), "0", .min = 0, .max = 1e8, .help = "Use only the first so many training images (0: all)"},
    {F(INT, test_limit), "0", .min = 0, .max = 1e8, .help = "Use only the first so many test images (0: all)"},
    {F(INT, crop_padding), "4", .min = 0, .max = 64, .help = "Random crop after padding with so many black pixels on every side"},
    {F(BOOL, flip), "true", .help = "Mirror half of the training images"},

    {F(CHOICE, attn), "softmax", .section = "model", .choices_of = attention_names, .noun = "operator", .help = "Attention operator of the blocks"},
    {F(SIZE, img_size), "32", .min = 1, .max = 4096, .help = "Image height and width"},
    {F(INT, patch_size), "4", .min = 1, .max = 256, .help = "Side of the square patches that become tokens"},
    {F(INT, num_classes), "0", .min = 0, .max = 1e6, .help = "Classes (0: as many as the data set has)"},
    {F(INT, dim), "192", .min = 1, .max = 16384, .help = "Width of the tokens"},
    {F(INT, depth), "12", .min = 1, .max = 256, .help = "Blocks"},
    {F(INT, heads), "6", .min = 1, .max = 1024, .help = "Attention heads; divides dim"},
    {F(FLOAT, mlp_ratio), "4", .min = 0.01, .max = 64, .help = "Hidden width of the MLP as a multiple of dim"},
    {F(CHOICE, pool), "gap", CONFIG_CHOICES("cls", "gap"), .help = "What the classifier sees: a class token, or the average of all tokens"},
    {F(CHOICE, pos_embed), "learned", CONFIG_CHOICES("learned", "none"), .help = "Position embedding"},
    {F(FLOAT, drop_path), "0", .min = 0, .max = 0.99, .help = "Rate of stochastic depth in the last block; grows linearly from 0 in the first"},

    {F(CHOICE, feature_map), "mlp", .section = "attention", .choices_of = feature_map_names, .noun = "map", .help = "Feature map of linear and ripple attention"},
    {F(CHOICE, relative), "none", .choices_of = relative_names, .noun = "encoding", .help = "Relative positions in linear attention"},
    {F(INT, r_max), "4", .min = 1, .max = RIPPLE_MAX_GROUPS - 1, .help = "Rings of ripple attention; tokens at this distance and beyond share one weight"},
    {F(FLOAT, tau), "0.001", .min = 0, .max = 1, .help = "Stick breaking ends when less than this is left (0: never)"},
    {F(INT, ripple_layers), "9", .min = 0, .max = 256, .help = "The first so many blocks ripple, the others use linear attention"},
    {F(CHOICE, ripple_algo), "auto", .choices = ripple_algos, .choice_count = 5, .noun = "algorithm", .help = "All four compute the same numbers; auto takes the one expected to be fastest"},

    {F(INT, epochs), "300", .section = "training", .min = 1, .max = 1e6, .help = "Passes over the training images"},
    {F(INT, batch_size), "512", .min = 1, .max = 1e6, .help = "Images between two updates of the parameters"},
    {F(INT, micro_batch), "0", .min = 0, .max = 1e6, .help = "Images in memory at a time, their gradients summed up to a batch (0: chosen by size)"},
    {F(FLOAT, lr), "5e-4", .min = 0, .max = 100, .help = "Learning rate of AdamW at its highest"},
    {F(INT, lr_base_batch), "0", .min = 0, .max = 1e6, .help = "lr is meant for this batch size and scaled linearly to batch_size (0: taken as it is)"},
    {F(FLOAT, lr_min), "1e-5", .min = 0, .max = 100, .help = "Learning rate at the end of the cosine"},
    {F(FLOAT, lr_warmup), "1e-6", .min = 0, .max = 100, .help = "Learning rate at the start of the warm-up"},
    {F(FLOAT, warmup_epochs), "5", .min = 0, .max = 1e6, .help = "Epochs of linear warm-up; where nobody sets it, at most a tenth of epochs"},
    {F(CHOICE, lr_schedule), "epoch", CONFIG_CHOICES("epoch", "step"), .help = "Change the learning rate once per epoch, as timm does, or with every step"},
    {F(FLOAT, weight_decay), "0.05", .min = 0, .max = 10, .help = "Decoupled weight decay of matrices; vectors and embeddings have none"},
    {F(FLOAT, beta1), "0.9", .min = 0, .max = 0.9999999, .help = "Decay of AdamW's first moment"},
    {F(FLOAT, beta2), "0.999", .min = 0, .max = 0.9999999, .help = "Decay of AdamW's second moment"},
    {F(FLOAT, eps), "1e-8", .min = 0, .max = 1, .help = "AdamW's epsilon"},
    {F(FLOAT, clip_grad), "0", .min = 0, .max = 1e8, .help = "Largest norm of the gradient (0: no clipping)"},
    {F(FLOAT, ema_decay), "0", .min = 0, .max = 0.9999999, .help = "Also keep an exponential average of the parameters, and evaluate that (0: off; DeiT: 0.99996)"},
    {F(FLOAT, label_smoothing), "0.1", .min = 0, .max = 0.99, .help = "Share of the target spread over all classes"},
    {F(UINT64, seed), "0", .help = "Decides every random number of the run"},

    {F(STRING, run_dir), .section = "run", .argument = "FOLDER", .help = "Where config.ini, log.csv and the checkpoints go (default: the next free runs/<data>-<attn>-<number>)"},
    {F(STRING, init), .argument = "FILE", .help = "Start from these weights (safetensors, timm's names)"},
    {F(INT, eval_every), "1", .min = 1, .max = 1e6, .help = "Epochs between two evaluations; the last epoch always has one"},
    {F(INT, log_every), "50", .min = 1, .max = 1e8, .help = "Steps between two rows of log.csv"},
    {F(FLOAT, bench_seconds), "5", .min = 0.1, .max = 3600, .help = "How long --bench measures training, and again inference"},
};
#undef F
enum { ENTRIES = sizeof entries / sizeof *entries };

/* == A run ======================================================================================================== */

typedef struct {
    double top1, top5; /* percent */
    bool complete;     /* false: a signal came */
} Accuracy;

typedef struct {
    Config config;
    Settings s;
    Vit vit;
    Dataset train, test; /* train is open only in a training run */
    Loader loader, test_loader;
    AdamW adamw;
    Schedule schedule;
    RunState state;
    FILE *log;
    char log_path[PATH_SIZE];
    uint8_t *pixels; /* host [micro_batch,Hi,Wi,3] */
    int *labels;     /* host [micro_batch] */
    float *targets;  /* host [micro_batch,C] */
    float *losses;   /* host [micro_batch] */
    float *logits;   /* host [micro_batch,C] */
    double images_per_s; /* since the last row of the log */
    Accuracy accuracy;   /* of the last evaluation */
    double started;      /* when this process began to train */
    uint64_t first_step;
} Run;

static volatile sig_atomic_t stop_signal;

static void on_signal(int signal_number) { stop_signal = signal_number; }

/* A second signal ends the program at once.  A file that outgrows `ulimit -f` is an error of that write, with its
 * message, and not the end of the process. */
static void catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)(SA_RESETHAND | SA_RESTART)};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGXFSZ, SIG_IGN);
}

static VitConfig vit_config(const Run *run) {
    const Settings *s = &run->s;
    int count;
    return (VitConfig){
        .img_h = s->img_size[0],
        .img_w = s->img_size[1],
        .patch_size = s->patch_size,
        .dim = s->dim,
        .depth = s->depth,
        .num_classes = s->num_classes,
        .mlp_ratio = s->mlp_ratio,
        .class_token = s->pool == POOL_CLS,
        .pos_embed = s->pos_embed == POS_LEARNED,
        .drop_path = s->drop_path,
        .attention = {.attn = attention_operators[s->attn]->name,
                      .heads = s->heads,
                      .feature_map = feature_map_names(&count)[s->feature_map],
                      .relative = relative_names(&count)[s->relative],
                      .r_max = s->r_max,
                      .tau = s->tau,
                      .ripple_layers = s->ripple_layers,
                      .ripple_algo = ripple_algos[s->ripple_algo]},
    };
}

/* What the table cannot check because it takes two settings, or one and the data set. */
static void check_settings(Run *run) {
    Settings *s = &run->s;
    for (int side = 0; side < 2; side++)
        if (s->img_size[side] % s->patch_size)
            config_reject(&run->config, "patch_size", "%d does not divide img_size %dx%d", s->patch_size, s->img_size[0],
                          s->img_size[1]);
    if (s->dim % s->heads) config_reject(&run->config, "heads", "%d does not divide dim %d", s->heads, s->dim);
    if (attention_operators[s->attn]->needs_grid && s->pool == POOL_CLS)
        config_reject(&run->config, "pool", "attn %s has no place for a class token: use pool gap",
                      attention_operators[s->attn]->name);
    if (attention_operators[s->attn]->needs_positive && feature_maps[s->feature_map]->negative)
        config_reject(&run->config, "feature_map", "attn %s cannot weigh features that may be negative, as those of %s",
                      attention_operators[s->attn]->name, feature_maps[s->feature_map]->name);
    if (!attention_operators[s->attn]->takes_relative && strcmp(relative_kinds[s->relative]->name, "none"))
        config_reject(&run->config, "relative", "%s goes with attn linear, not with %s", relative_kinds[s->relative]->name,
                      attention_operators[s->attn]->name);
    if ((int)((float)s->dim * s->mlp_ratio) < 1)
        config_reject(&run->config, "mlp_ratio", "%g of dim %d leaves no hidden unit", (double)s->mlp_ratio, s->dim);
    if (!config_origin(&run->config, "warmup_epochs"))
        s->warmup_epochs = fminf(s->warmup_epochs, (float)(s->epochs / 10));
    if (s->warmup_epochs > (float)s->epochs)
        config_reject(&run->config, "warmup_epochs", "%g is more than epochs %d", (double)s->warmup_epochs, s->epochs);
}

/* Everything known of the data without its files: size, classes, statistics. */
static void data_describe(Run *run) {
    Settings *s = &run->s;
    dataset_describe(&run->train, s->data);
    if (!s->num_classes) s->num_classes = run->train.classes;
}

static void data_open(Run *run, bool train) {
    Settings *s = &run->s;
    if (s->img_size[0] != run->train.height || s->img_size[1] != run->train.width)
        config_reject(&run->config, "img_size", "%dx%d, but images of %s are %dx%d", s->img_size[0], s->img_size[1],
                      run->train.name, run->train.height, run->train.width);
    if (s->num_classes < run->train.classes)
        config_reject(&run->config, "num_classes", "%d, but %s has %d", s->num_classes, run->train.name,
                      run->train.classes);
    Augment augment = {.pad = s->crop_padding, .flip = s->flip};
    if (train) dataset_open(&run->train, s->data, s->data_dir, true, (size_t)s->train_limit);
    dataset_open(&run->test, s->data, s->data_dir, false, (size_t)s->test_limit);
    if (train && run->train.count < (size_t)s->batch_size)
        config_reject(&run->config, "batch_size", "%d is more than the %zu training images", s->batch_size,
                      run->train.count);
    if (train) loader_open(&run->loader, &run->train, s->seed, s->batch_size, true, augment);
    loader_open(&run->test_loader, &run->test, s->seed, s->batch_size, false, augment);
}

/* Enough rows for full-speed products, few enough for a layer's activations to stay in cache: eight images of DeiT-tiny at
 * 256 tokens, measured (docs/performance.md). */
static int micro_batch_choose(const Run *run) {
    enum { NUMBERS = 8 * 256 * 192 };
    const Settings *s = &run->s;
    if (s->micro_batch > 0) return s->micro_batch < s->batch_size ? s->micro_batch : s->batch_size;
    int tokens = s->img_size[0] / s->patch_size * (s->img_size[1] / s->patch_size);
    size_t image = (size_t)tokens * (size_t)s->dim;
    int images = NUMBERS / image > 1 ? (int)(NUMBERS / image) : 1;
    return images < s->batch_size ? images : s->batch_size;
}

/* Builds the model for `batch` images at a time and gives it its first weights. */
static void model_open(Run *run, int batch, bool training) {
    VitConfig config = vit_config(run);
    vit_create(&run->vit, &config);
    vit_plan(&run->vit, batch, training);
    vit_allocate(&run->vit);
    params_allocate(&run->vit.params, training);
    if (*run->s.init) {
        checkpoint_load_weights(&run->vit.params, run->s.init);
    } else {
        params_initialize(&run->vit.params, run->s.seed);
        vit_draw_buffers(&run->vit, run->s.seed, 0);
    }
}

static void buffers_open(Run *run, int batch) {
    size_t B = (size_t)batch, C = (size_t)run->s.num_classes;
    run->pixels = xcalloc(B * 3 * (size_t)run->s.img_size[0], (size_t)run->s.img_size[1], "a batch");
    run->labels = xcalloc(B, sizeof *run->labels, "a batch");
    run->targets = xcalloc(B * C, sizeof *run->targets, "a batch");
    run->losses = xcalloc(B, sizeof *run->losses, "a batch");
    run->logits = xcalloc(B * C, sizeof *run->logits, "a batch");
}

/* == One step ===================================================================================================== */

/* Before anything that is not a number is saved over good weights. */
static void stop_on_bad(const Run *run, uint64_t step, const char *what, double value) {
    char kept[PATH_SIZE + 64] = "nothing has been saved yet";
    if (isfinite(value)) return;
    if (run->state.log_bytes) snprintf(kept, sizeof kept, "the last good state is in %s", run->s.run_dir);
    progress_end();
    die("step %llu: %s is %s; %s (try a lower lr, a longer warm-up or clip_grad)", (unsigned long long)step, what,
        isnan(value) ? "not a number" : "infinite", kept);
}

/* The last update before a save may overflow though its loss and gradient were still finite. */
static void stop_on_bad_weights(const Run *run) {
    const Param *p = params_not_finite(&run->vit.params, run->vit.params.values);
    if (p) stop_on_bad(run, run->state.step, p->name, NAN);
}

/* Batch number `batch` of the loader's epoch, micro-batch by micro-batch, then one update.  Returns the mean loss. */
static double train_step(Run *run, uint64_t batch) {
    Vit *vit = &run->vit;
    int size = run->s.batch_size;
    uint32_t step = (uint32_t)run->state.step;
    double loss = 0;
    device_zero(vit->params.grads, vit->params.total * sizeof(float));
    vit_draw_buffers(vit, run->s.seed, step);
    for (int first = 0; first < size; first += vit->batch) {
        int B = size - first < vit->batch ? size - first : vit->batch;
        loader_fill(&run->loader, batch * (uint64_t)size + (uint64_t)first, B, run->pixels, run->labels);
        loader_targets(run->targets, run->labels, B, run->s.num_classes, run->s.label_smoothing);
        vit_load_pixels(vit, run->pixels, run->train.mean, run->train.std, B);
        vit_draw_drop_path(vit, run->s.seed, step, (size_t)first, B);
        vit_forward(vit, B, true);
        vit_loss(vit, run->losses, run->targets, B, 1.0f / (float)size);
        for (int b = 0; b < B; b++) {
            stop_on_bad(run, run->state.step + 1, "the loss", (double)run->losses[b]);
            loss += run->losses[b];
        }
        vit_backward(vit, B, true);
    }
    run->state.gradient_norm = adamw_step(&run->adamw, &vit->params, run->state.lr, (int)run->state.step + 1);
    stop_on_bad(run, run->state.step + 1, "the norm of the gradient", (double)run->state.gradient_norm);
    return loss / size;
}

/* == Evaluation =================================================================================================== */

/* How many classes score above the true one; ties go to the smaller index, and a score that is not a number loses. */
static int rank_of(const float *logits, int classes, int label) {
    int rank = 0;
    if (isnan(logits[label])) return classes;
    for (int c = 0; c < classes; c++) rank += logits[c] > logits[label] || (logits[c] == logits[label] && c < label);
    return rank;
}

static Accuracy evaluate(Run *run) {
    Vit *vit = &run->vit;
    size_t count = run->test.count, top1 = 0, top5 = 0;
    int C = run->s.num_classes;
    Accuracy result = {.complete = true};
    if (vit->params.ema) params_view(&vit->params, vit->params.ema);
    vit_set_training(vit, false);
    for (size_t first = 0; first < count && result.complete; first += (size_t)vit->batch) {
        int B = count - first < (size_t)vit->batch ? (int)(count - first) : vit->batch;
        loader_fill(&run->test_loader, first, B, run->pixels, run->labels);
        vit_load_pixels(vit, run->pixels, run->test.mean, run->test.std, B);
        vit_forward(vit, B, false);
        real_download(run->logits, vit->logits, (size_t)B * (size_t)C);
        for (int b = 0; b < B; b++) {
            int rank = rank_of(run->logits + (size_t)b * (size_t)C, C, run->labels[b]);
            top1 += rank < 1;
            top5 += rank < 5;
        }
        progress_show(false, "evaluating %zu/%zu", first + (size_t)B, count);
        result.complete = !stop_signal;
    }
    if (vit->training.count) vit_set_training(vit, true);
    params_view(&vit->params, vit->params.values);
    result.top1 = 100.0 * (double)top1 / (double)count;
    result.top5 = 100.0 * (double)top5 / (double)count;
    return result;
}

/* == The run directory ============================================================================================ */

static void run_file(const Run *run, char *path, const char *name) { path_join(path, PATH_SIZE, run->s.run_dir, name); }

/* What travels with a checkpoint, so that --eval and --predict need no config. */
static int metadata_fill(const Run *run, SafeMetadata *metadata, char **owned) {
    size_t size = 1;
    const Dataset *d = &run->train;
    for (int c = 0; d->class_names && c < d->classes; c++) size += strlen(d->class_names[c]) + 1;
    owned[0] = config_text(&run->config);
    owned[1] = xcalloc(size, 1, "class names");
    for (int c = 0; d->class_names && c < d->classes; c++) {
        strcat(owned[1], d->class_names[c]);
        strcat(owned[1], "\n");
    }
    metadata[0] = (SafeMetadata){"format", "pt"};
    metadata[1] = (SafeMetadata){"vit.c.config", owned[0]};
    metadata[2] = (SafeMetadata){"vit.c.classes", owned[1]};
    return 3;
}

/* The weights that were evaluated: the average where there is one. */
static const float *evaluated_weights(const Run *run) {
    return run->vit.params.ema ? run->vit.params.ema : run->vit.params.values;
}

static void save_weights(const Run *run, const char *name) {
    SafeMetadata metadata[3];
    char *owned[2], path[PATH_SIZE];
    int count = metadata_fill(run, metadata, owned);
    run_file(run, path, name);
    checkpoint_save_weights(&run->vit.params, evaluated_weights(run), path, metadata, count);
    free(owned[0]);
    free(owned[1]);
}

/* The state goes last: until it is there, --resume finds the state before, and repeats what came since. */
static void save(Run *run) {
    SafeMetadata metadata[3];
    char *owned[2], path[PATH_SIZE];
    long length = ftell(run->log);
    if (fsync(fileno(run->log)) != 0 && errno != EINVAL) die("%s: cannot write: %s", run->log_path, strerror(errno));
    save_weights(run, "last.safetensors");
    run->state.log_bytes = length > 0 ? (uint64_t)length : 0;
    int count = metadata_fill(run, metadata, owned);
    run_file(run, path, "state.safetensors");
    checkpoint_save_state(&run->vit.params, &run->state, path, metadata, count);
    free(owned[0]);
    free(owned[1]);
}

static void log_row(Run *run, const Accuracy *accuracy) {
    const RunState *state = &run->state;
    double loss = state->loss_count ? state->loss_sum / (double)state->loss_count : NAN;
    fprintf(run->log, "%llu,%llu,%.6f,%.8g,%.6g,%.1f", (unsigned long long)state->step,
            (unsigned long long)state->epoch + 1, loss, (double)state->lr, (double)state->gradient_norm,
            run->images_per_s);
    if (accuracy)
        fprintf(run->log, ",%.3f,%.3f\n", accuracy->top1, accuracy->top5);
    else
        fprintf(run->log, ",,\n");
    if (fflush(run->log) != 0) die("%s: cannot write: %s", run->log_path, strerror(errno));
    run->state.loss_sum = 0;
    run->state.loss_count = 0;
}

/* Two processes in one folder would mix their rows and checkpoints.  File systems without locks do without. */
static void log_lock(const Run *run) {
    if (flock(fileno(run->log), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        die("%s: another process is training in this folder", run->log_path);
}

/* A new log never replaces another run's, not even when two start at the same moment. */
static void log_create(Run *run) {
    char state[PATH_SIZE];
    run->log = fopen(run->log_path, "wx");
    if (!run->log && errno == EEXIST) {
        run_file(run, state, "state.safetensors");
        if (file_exists(state))
            die("%s: there is a run in this folder already: --resume %s continues it, another --run-dir starts afresh",
                run->log_path, run->s.run_dir);
        die("%s: here a run ended before it saved anything: remove the folder or choose another --run-dir",
            run->log_path);
    }
    if (!run->log) die("%s: cannot open: %s", run->log_path, strerror(errno));
    log_lock(run);
    fprintf(run->log, "step,epoch,loss,lr,grad_norm,images_per_s,top1,top5\n");
    if (fflush(run->log) != 0) die("%s: cannot write: %s", run->log_path, strerror(errno));
}

/* A resumed run forgets the rows written after its state was saved. */
static void log_reopen(Run *run) {
    run->log = fopen(run->log_path, "r+");
    if (!run->log) die("%s: cannot open: %s", run->log_path, strerror(errno));
    log_lock(run);
    bool ok = fseek(run->log, 0, SEEK_END) == 0;
    long length = ok ? ftell(run->log) : -1;
    if (ok && (uint64_t)length < run->state.log_bytes)
        warn("%s: %ld bytes, but it had %llu when the state was saved: rows are missing", run->log_path, length,
             (unsigned long long)run->state.log_bytes);
    else
        ok = ok && ftruncate(fileno(run->log), (off_t)run->state.log_bytes) == 0 && fseek(run->log, 0, SEEK_END) == 0;
    if (!ok) die("%s: cannot cut back to the saved state: %s", run->log_path, strerror(errno));
}

/* The next free runs/<data>-<attn>-<number>. */
static void run_dir_choose(Run *run) {
    char path[PATH_SIZE], error[ERROR_SIZE];
    for (int number = 1; !*run->s.run_dir; number++) {
        snprintf(path, sizeof path, "runs/%s-%s-%03d", run->train.name, attention_operators[run->s.attn]->name, number);
        if (!file_exists(path) && !config_try_set(&run->config, "run_dir", path, "the default", error, sizeof error))
            die("%s", error);
    }
}

static void run_dir_open(Run *run, bool resumed) {
    char path[PATH_SIZE];
    run_dir_choose(run);
    make_folders(run->s.run_dir);
    run_file(run, run->log_path, "log.csv");
    if (resumed)
        log_reopen(run);
    else
        log_create(run);
    char *text = config_text(&run->config);
    run_file(run, path, "config.ini");
    write_text(path, text);
    free(text);
}

/* == Training ===================================================================================================== */

static uint64_t batches_per_epoch(const Run *run) { return run->train.count / (uint64_t)run->s.batch_size; }

static void show_progress(const Run *run, bool finish) {
    const RunState *state = &run->state;
    uint64_t batches = batches_per_epoch(run), total = batches * (uint64_t)run->s.epochs;
    double loss = state->loss_count ? state->loss_sum / (double)state->loss_count : NAN;
    double elapsed = now_seconds() - run->started, done = (double)(state->step - run->first_step);
    char eta[32];
    duration_text(eta, sizeof eta, elapsed / done * (double)(total - state->step));
    progress_show(finish, "epoch %llu/%d  batch %llu/%llu  loss %.4f  lr %.2e  %.0f images/s  ETA %s",
                  (unsigned long long)state->epoch + 1, run->s.epochs, (unsigned long long)state->batch,
                  (unsigned long long)batches, loss, (double)state->lr, run->images_per_s, eta);
}

/* The rest of the epoch; false when a signal ended it early. */
static bool train_epoch(Run *run) {
    RunState *state = &run->state;
    uint64_t batches = batches_per_epoch(run);
    double seconds = 0, images = 0;
    loader_epoch(&run->loader, state->epoch);
    while (state->batch < batches) {
        double start = now_seconds();
        state->lr = schedule_lr(&run->schedule, (double)state->epoch + (double)state->batch / (double)batches);
        state->loss_sum += train_step(run, state->batch);
        state->loss_count++;
        state->step++;
        state->batch++;
        seconds += now_seconds() - start;
        images += run->s.batch_size;
        run->images_per_s = images / seconds;
        bool last = state->batch == batches;
        show_progress(run, last || stop_signal);
        if (!last && state->step % (uint64_t)run->s.log_every == 0) {
            log_row(run, NULL);
            seconds = images = 0;
        }
        if (stop_signal) return false;
    }
    return true;
}

/* The end of an epoch: accuracy if it is due, a row in the log, checkpoints.  False when a signal came meanwhile. */
static bool finish_epoch(Run *run) {
    RunState *state = &run->state;
    stop_on_bad_weights(run);
    bool due = (state->epoch + 1) % (uint64_t)run->s.eval_every == 0 || state->epoch + 1 == (uint64_t)run->s.epochs;
    if (due) {
        Accuracy accuracy = evaluate(run);
        if (!accuracy.complete) return false;
        progress_show(true, "epoch %llu/%d  top-1 %.2f %%  top-5 %.2f %%", (unsigned long long)state->epoch + 1,
                      run->s.epochs, accuracy.top1, accuracy.top5);
        log_row(run, &accuracy);
        if (accuracy.top1 > state->best_top1) {
            state->best_top1 = accuracy.top1;
            save_weights(run, "best.safetensors");
        }
        run->accuracy = accuracy;
    } else {
        log_row(run, NULL);
    }
    state->epoch++;
    state->batch = 0;
    save(run);
    return true;
}

static void training_open(Run *run) {
    const Settings *s = &run->s;
    bool resumed = *s->resume != 0;
    char path[PATH_SIZE];
    run->state.best_top1 = -1;
    run->adamw = (AdamW){s->beta1, s->beta2, s->eps, s->weight_decay, s->clip_grad, s->ema_decay};
    float scale = s->lr_base_batch ? (float)s->batch_size / (float)s->lr_base_batch : 1;
    run->schedule = (Schedule){s->lr * scale,    s->lr_min * scale, s->lr_warmup * scale,
                               s->warmup_epochs, (float)s->epochs,  s->lr_schedule == SCHEDULE_EPOCH};
    params_allocate_optimizer(&run->vit.params, s->ema_decay > 0);
    if (resumed) {
        run_file(run, path, "state.safetensors");
        checkpoint_load_state(&run->vit.params, &run->state, path);
    } else if (run->vit.params.ema) {
        device_copy(run->vit.params.ema, run->vit.params.values, run->vit.params.total * sizeof(float));
    }
    run_dir_open(run, resumed);
    catch_signals();
    run->started = now_seconds();
    run->first_step = run->state.step;
}

static void announce(const Run *run) {
    const Settings *s = &run->s;
    printf("%s\n", kernels_device());
    printf("%s: %zu training and %zu test images, %d classes\n", run->train.name, run->train.count, run->test.count,
           run->train.classes);
    printf("%s: %zu parameters, %.1f million multiply-adds an image, %.0f MiB of activations\n",
           attention_operators[s->attn]->name, run->vit.params.parameters, (double)vit_macs(&run->vit) / 1e6,
           (double)vit_activation_bytes(&run->vit) / (1 << 20));
    printf("%s: %d epochs of %llu batches of %d images, %d at a time\n", s->run_dir, s->epochs,
           (unsigned long long)batches_per_epoch(run), s->batch_size, run->vit.batch);
    if (run->state.step && run->state.epoch < (uint64_t)s->epochs)
        printf("resumed at epoch %llu, after %llu of its batches\n", (unsigned long long)run->state.epoch + 1,
               (unsigned long long)run->state.batch);
    fflush(stdout);
}

/* Saves what there is and ends as the shell expects of a program that a signal ended. */
static int stop_early(Run *run) {
    progress_end();
    stop_on_bad_weights(run);
    save(run);
    printf("stopped by %s after step %llu, in epoch %llu of %d, and saved: train_vit --resume %s continues\n",
           stop_signal == SIGINT ? "SIGINT" : "SIGTERM", (unsigned long long)run->state.step,
           (unsigned long long)run->state.epoch + 1, run->s.epochs, run->s.run_dir);
    return 128 + (int)stop_signal;
}

static int mode_train(Run *run) {
    data_open(run, true);
    int batch = micro_batch_choose(run);
    model_open(run, batch, true);
    buffers_open(run, batch);
    training_open(run);
    announce(run);
    if (run->state.epoch >= (uint64_t)run->s.epochs) {
        printf("all %d epochs are done, best top-1 %.2f %%: a higher --epochs trains on\n", run->s.epochs,
               run->state.best_top1);
        return 0;
    }
    while (run->state.epoch < (uint64_t)run->s.epochs)
        if (!train_epoch(run) || !finish_epoch(run)) return stop_early(run);
    char elapsed[32];
    duration_text(elapsed, sizeof elapsed, now_seconds() - run->started);
    printf("done in %s: top-1 %.2f %%, best %.2f %%; checkpoints and log.csv are in %s\n", elapsed, run->accuracy.top1,
           run->state.best_top1, run->s.run_dir);
    return 0;
}

/* == The other modes ============================================================================================== */

static int mode_describe(Run *run) {
    VitConfig config = vit_config(run);
    vit_create(&run->vit, &config);
    vit_plan(&run->vit, micro_batch_choose(run), true);
    vit_describe(&run->vit, stdout);
    return 0;
}

static int mode_eval(Run *run) {
    data_open(run, false);
    int batch = micro_batch_choose(run);
    model_open(run, batch, false);
    buffers_open(run, batch);
    Accuracy accuracy = evaluate(run);
    progress_show(true, "%zu test images of %s", run->test.count, run->test.name);
    printf("top1: %.4f top5: %.4f\n", accuracy.top1, accuracy.top5);
    return 0;
}

static void bench_batch(Run *run, int size, bool training) {
    Vit *vit = &run->vit;
    float mean[3] = {0.5f, 0.5f, 0.5f}, std[3] = {0.25f, 0.25f, 0.25f};
    if (training) device_zero(vit->params.grads, vit->params.total * sizeof(float));
    if (training) vit_draw_buffers(vit, run->s.seed, (uint32_t)run->state.step);
    for (int first = 0; first < size; first += vit->batch) {
        int B = size - first < vit->batch ? size - first : vit->batch;
        vit_load_pixels(vit, run->pixels, mean, std, B);
        if (training) vit_draw_drop_path(vit, run->s.seed, (uint32_t)run->state.step, (size_t)first, B);
        vit_forward(vit, B, training);
        if (!training) continue;
        vit_loss(vit, run->losses, run->targets, B, 1.0f / (float)size);
        vit_backward(vit, B, true);
    }
    if (training) adamw_step(&run->adamw, &vit->params, 1e-4f, (int)++run->state.step);
    device_synchronize();
}

/* Images a second: the median over whole batches, after one that is not counted. */
static double bench_rate(Run *run, bool training) {
    enum { MAX_BATCHES = 4096 };
    static double seconds[MAX_BATCHES];
    int size = run->s.batch_size, count = 0;
    vit_set_training(&run->vit, training);
    bench_batch(run, size, training);
    double begin = now_seconds();
    while (count < MAX_BATCHES && (count < 3 || now_seconds() - begin < (double)run->s.bench_seconds)) {
        double start = now_seconds();
        bench_batch(run, size, training);
        double took = now_seconds() - start;
        int i = count++;
        for (; i > 0 && seconds[i - 1] > took; i--) seconds[i] = seconds[i - 1];
        seconds[i] = took;
    }
    return size / seconds[count / 2];
}

static int mode_bench(Run *run) {
    const Settings *s = &run->s;
    int batch = micro_batch_choose(run), C = s->num_classes;
    model_open(run, batch, true);
    buffers_open(run, batch);
    params_allocate_optimizer(&run->vit.params, false);
    run->adamw = (AdamW){s->beta1, s->beta2, s->eps, s->weight_decay, s->clip_grad, 0};
    for (size_t i = 0; i < (size_t)batch * 3 * (size_t)s->img_size[0] * (size_t)s->img_size[1]; i++)
        run->pixels[i] = (uint8_t)rng_bits(s->seed, RNG_TEST, 0, 0, i);
    for (int b = 0; b < batch; b++) run->labels[b] = b % C;
    loader_targets(run->targets, run->labels, batch, C, s->label_smoothing);
    double peak = gemm_peak_gflops();
    double train = bench_rate(run, true), infer = bench_rate(run, false), again = gemm_peak_gflops();
    if (again > peak) peak = again;
    double gflops = 3 * 2 * (double)vit_macs(&run->vit) * train / 1e9;
    const Attention *a = &run->vit.blocks[0].attention;
    printf("{\"attn\": \"%s\", \"algorithm\": \"%s\", \"device\": \"%s\", \"tokens\": %d, \"batch_size\": %d, "
           "\"micro_batch\": %d, \"params\": %zu, \"macs\": %zu, \"train_images_per_s\": %.2f, "
           "\"infer_images_per_s\": %.2f, \"peak_bytes\": %zu, \"gemm_peak_gflops\": %.1f, \"mfu\": %.4f}\n",
           attention_operators[s->attn]->name, a->op->path ? a->op->path(a) : a->op->name, kernels_device(), run->vit.N,
           s->batch_size, batch, run->vit.params.parameters, vit_macs(&run->vit), train, infer, device_peak_bytes(), peak,
           gflops / peak);
    return 0;
}

/* Pixels of an image file or of test:INDEX, at the model's size. */
static void prediction_pixels(Run *run, const char *name, uint8_t *pixels) {
    char error[ERROR_SIZE], *end;
    if (!strncmp(name, "test:", 5)) {
        unsigned long long index = strtoull(name + 5, &end, 10);
        if (!run->test.get) data_open(run, false);
        if (end == name + 5 || *end || index >= run->test.count)
            die_usage("--predict %s: expected test:INDEX with an index below %zu", name, run->test.count);
        int label;
        run->test.get(&run->test, (size_t)index, pixels, &label);
        return;
    }
    Image image;
    if (!image_read(&image, name, error)) die("%s: %s", name, error);
    image_resize(pixels, run->s.img_size[0], run->s.img_size[1], image.pixels, image.height, image.width);
    image_free(&image);
}

/* Softmax in place, then the five likeliest classes. */
static void print_prediction(const char *name, float *logits, int C, const char *const *names) {
    float largest = -INFINITY, sum = 0;
    for (int c = 0; c < C; c++) largest = logits[c] > largest ? logits[c] : largest;
    for (int c = 0; c < C; c++) sum += logits[c] = expf(logits[c] - largest);
    printf("%s:", name);
    for (int place = 0; place < 5 && place < C; place++) {
        int best = 0;
        for (int c = 1; c < C; c++)
            if (logits[c] > logits[best]) best = c;
        double percent = 100 * (double)(logits[best] / sum);
        if (names)
            printf("%s %s %.1f %%", place ? "," : "", names[best], percent);
        else
            printf("%s class %d %.1f %%", place ? "," : "", best, percent);
        logits[best] = -1;
    }
    printf("\n");
}

/* Class names: the data set's own, or those the checkpoint carries. */
static const char *const *class_names(const Run *run, char **owned) {
    static const char *names[65536];
    SafeTensors st = {0};
    char error[ERROR_SIZE];
    int count = 0;
    if (run->train.class_names && run->train.classes == run->s.num_classes) return run->train.class_names;
    if (!*run->s.init || !safetensors_open(&st, run->s.init, error, sizeof error)) return NULL;
    const char *text = safetensors_metadata(&st, "vit.c.classes");
    *owned = text ? strdup(text) : NULL;
    safetensors_close(&st);
    for (char *line = *owned ? strtok(*owned, "\n") : NULL; line && count < 65536; line = strtok(NULL, "\n"))
        names[count++] = line;
    return count == run->s.num_classes ? names : NULL;
}

/* What each head of each layer weighs from a few query tokens of the first image: weights [depth,heads,queries,N],
 * queries [queries] as token numbers, image [Hi,Wi,3].  Layers whose operator has no such matrix stay NaN. */
static void attention_write(Run *run) {
    enum { QUERIES = 4 };
    Vit *vit = &run->vit;
    int depth = run->s.depth, H = run->s.heads, N = vit->N, prefix = vit->config.class_token;
    size_t rows = (size_t)depth * (size_t)H * QUERIES;
    float *weights = xcalloc(rows * (size_t)N, sizeof *weights, "attention picture");
    float *image = xcalloc(3 * (size_t)run->s.img_size[0], (size_t)run->s.img_size[1] * sizeof *image, "attention picture");
    int64_t queries[QUERIES];
    char error[ERROR_SIZE], grid[32];
    for (int q = 0; q < QUERIES; q++) /* the centre of each quadrant */
        queries[q] = prefix + (vit->Hg * (1 + 2 * (q / 2)) / 4) * vit->Wg + vit->Wg * (1 + 2 * (q % 2)) / 4;
    for (size_t row = 0; row < rows; row++) {
        const Attention *a = &vit->blocks[row / (size_t)(H * QUERIES)].attention;
        float *out = weights + row * (size_t)N;
        for (int m = 0; m < N; m++) out[m] = NAN;
        if (a->op->weights) a->op->weights(a, out, 0, (int)(row / QUERIES) % H, (int)queries[row % QUERIES]);
    }
    for (size_t i = 0; i < 3 * (size_t)run->s.img_size[0] * (size_t)run->s.img_size[1]; i++)
        image[i] = (float)run->pixels[i] / 255;
    snprintf(grid, sizeof grid, "%dx%d", vit->Hg, vit->Wg);
    SafeTensorEntry out[] = {
        {"weights", SAFE_F32, 4, {(size_t)depth, (size_t)H, QUERIES, (size_t)N}, weights},
        {"image", SAFE_F32, 3, {(size_t)run->s.img_size[0], (size_t)run->s.img_size[1], 3}, image},
        {"queries", SAFE_I64, 1, {QUERIES}, queries},
    };
    SafeMetadata metadata[] = {{"grid", grid}, {"attn", attention_operators[run->s.attn]->name}};
    if (!safetensors_write(run->s.attention, out, 3, metadata, 2, error, sizeof error)) die("%s", error);
    free(image);
    free(weights);
}

static int mode_predict(Run *run) {
    Vit *vit = &run->vit;
    char *owned = NULL;
    const char *const *names = class_names(run, &owned);
    model_open(run, 1, *run->s.attention != 0); /* the training plan keeps what the pictures are made of */
    buffers_open(run, 1);
    for (int i = 0; i < run->s.predict.count; i++) {
        prediction_pixels(run, run->s.predict.items[i], run->pixels);
        vit_load_pixels(vit, run->pixels, run->train.mean, run->train.std, 1);
        vit_forward(vit, 1, false);
        real_download(run->logits, vit->logits, (size_t)run->s.num_classes);
        print_prediction(run->s.predict.items[i], run->logits, run->s.num_classes, names);
        if (i == 0 && *run->s.attention) attention_write(run);
    }
    free(owned);
    return 0;
}

/* == Parity: how any other framework is compared with this one ==================================================== */

/* Checks `images` [B,3,H,W] and `labels` [B], and takes the image size from them unless the user gave one. */
static int parity_shapes(Run *run, const SafeTensor *images, const SafeTensor *labels) {
    Settings *s = &run->s;
    if (!images || !labels) die("%s: needs the tensors 'images' [B,3,H,W] and 'labels' [B]", s->parity);
    if (images->ndim != 4 || images->shape[1] != 3 || images->dtype != SAFE_F32 || !images->size ||
        images->shape[0] > 65536 || images->shape[2] > 4096 || images->shape[3] > 4096)
        die("%s: 'images' must be float32 [B,3,H,W], already normalised", s->parity);
    if (labels->ndim != 1 || labels->shape[0] != images->shape[0])
        die("%s: 'labels' must be int64 [%zu], one for every image", s->parity, images->shape[0]);
    int height = (int)images->shape[2], width = (int)images->shape[3];
    if (config_origin(&run->config, "img_size") && (s->img_size[0] != height || s->img_size[1] != width))
        die("%s: images are %dx%d, but img_size is %dx%d", s->parity, height, width, s->img_size[0], s->img_size[1]);
    s->img_size[0] = height;
    s->img_size[1] = width;
    return (int)images->shape[0];
}

/* Parameters and buffers that travel in the file replace the model's; all of them or none. */
static void parity_parameters(Run *run, const SafeTensors *st) {
    Params *params = &run->vit.params;
    char error[ERROR_SIZE];
    int present = 0;
    for (int i = 0; i < params->count; i++) present += safetensors_find(st, params->items[i].name) != NULL;
    if (present && !checkpoint_read_weights(params, params->values, st, "", error, sizeof error)) die("%s", error);
}

static void parity_write(Run *run, float loss, int B) {
    const Params *params = &run->vit.params;
    int count = 2;
    SafeTensorEntry *out = xcalloc((size_t)params->count + 2, sizeof *out, "parity");
    char(*names)[PARAM_NAME_SIZE + 8] = xcalloc((size_t)params->count + 2, sizeof *names, "parity"), error[ERROR_SIZE];
    float *grads = xcalloc(params->total, sizeof *grads, "parity");
    device_download(grads, params->grads, params->total * sizeof *grads);
    out[0] = (SafeTensorEntry){"logits", SAFE_F32, 2, {(size_t)B, (size_t)run->s.num_classes}, run->logits};
    out[1] = (SafeTensorEntry){"loss", SAFE_F32, 1, {1}, &loss};
    for (int i = 0; i < params->count; i++) {
        const Param *p = &params->items[i];
        SafeTensorEntry *to = &out[count];
        if (p->frozen) continue;
        snprintf(names[count], sizeof names[count], "grad.%s", p->name);
        *to = (SafeTensorEntry){.name = names[count++], .dtype = SAFE_F32, .ndim = p->ndim, .data = grads + p->offset};
        for (int d = 0; d < p->ndim; d++) to->shape[d] = (size_t)p->shape[d];
    }
    if (!safetensors_write(run->s.out, out, count, NULL, 0, error, sizeof error)) die("%s", error);
    free(grads);
    free(names);
    free(out);
}

static int mode_parity(Run *run) {
    Settings *s = &run->s;
    Vit *vit = &run->vit;
    char error[ERROR_SIZE];
    SafeTensors st;
    double loss = 0;
    if (!safetensors_open(&st, s->parity, error, sizeof error)) die("%s", error);
    const SafeTensor *images = safetensors_find(&st, "images"), *labels = safetensors_find(&st, "labels");
    int B = parity_shapes(run, images, labels), C = s->num_classes;
    check_settings(run);
    float *pixels = xcalloc(images->size, sizeof *pixels, "parity");
    int64_t *wanted = xcalloc((size_t)B, sizeof *wanted, "parity");
    if (!safetensors_to_float(images, pixels, error, sizeof error)) die("%s", error);
    if (!safetensors_to_int64(labels, wanted, error, sizeof error)) die("%s", error);

    model_open(run, B, true);
    buffers_open(run, B);
    parity_parameters(run, &st);
    for (int b = 0; b < B; b++) {
        if (wanted[b] < 0 || wanted[b] >= C)
            die("%s: label %lld of image %d is outside 0..%d", s->parity, (long long)wanted[b], b, C - 1);
        run->labels[b] = (int)wanted[b];
    }
    loader_targets(run->targets, run->labels, B, C, 0);
    real_upload(vit->images, pixels, images->size);
    vit_forward(vit, B, false);
    real_download(run->logits, vit->logits, (size_t)B * (size_t)C);
    vit_loss(vit, run->losses, run->targets, B, 1.0f / (float)B);
    vit_backward(vit, B, false);
    for (int b = 0; b < B; b++) loss += run->losses[b];
    parity_write(run, (float)(loss / B), B);
    free(wanted);
    free(pixels);
    safetensors_close(&st);
    return 0;
}

/* == Main ========================================================================================================= */

static void print_help(const Run *run) {
    printf("train_vit trains vision transformers for image classification.\n\n"
           "  train_vit --config configs/cpu/shapes.ini               train on the built-in shapes, two minutes\n"
           "  train_vit --config configs/cpu/shapes.ini --attn linear the same with another operator\n"
           "  train_vit --config configs/cifar100/ripple.ini          train on files (scripts/fetch_cifar.sh)\n"
           "  train_vit --resume runs/shapes-ripple-001               go on where a run stopped\n"
           "  train_vit --resume runs/shapes-ripple-001 --eval        measure its last weights\n"
           "  train_vit --init runs/shapes-ripple-001/best.safetensors --predict cat.png\n"
           "  train_vit --attn ripple --img-size 224 --patch-size 16 --describe\n\n"
           "Attention operators (--attn):\n");
    for (int i = 0; attention_operators[i]; i++)
        printf("  %-24s %s\n", attention_operators[i]->name, attention_operators[i]->summary);
    printf("\nFeature maps of linear and ripple attention (--feature-map):\n");
    for (int i = 0; feature_maps[i]; i++) printf("  %-24s %s\n", feature_maps[i]->name, feature_maps[i]->summary);
    printf("\nRelative positions in linear attention (--relative):\n");
    for (int i = 0; relative_kinds[i]; i++) printf("  %-24s %s\n", relative_kinds[i]->name, relative_kinds[i]->summary);
    printf("\n");
    config_help(&run->config, stdout);
}

static void settings_read(Run *run, const char *base, const char *where, int argc, char **argv) {
    config_init(&run->config, entries, ENTRIES, &run->s, "config");
    if (base) config_read_text(&run->config, base, strlen(base), where);
    config_read_arguments(&run->config, argc, argv);
}

static char *config_of_checkpoint(const char *path) {
    char error[ERROR_SIZE], *copy = NULL;
    SafeTensors st;
    if (!safetensors_open(&st, path, error, sizeof error)) die("%s", error);
    const char *text = safetensors_metadata(&st, "vit.c.config");
    if (text) copy = strdup(text);
    safetensors_close(&st);
    return copy;
}

/* --resume takes the run's folder or any checkpoint in it.  Training goes on from the state; the modes that only look
 * take the last weights. */
static void resume_resolve(Run *run, bool training) {
    static char folder[PATH_SIZE], last[PATH_SIZE];
    char state[PATH_SIZE], error[ERROR_SIZE];
    snprintf(folder, sizeof folder, "%s", run->s.resume);
    size_t length = strlen(folder), ending = strlen(".safetensors");
    if (length > ending && !strcmp(folder + length - ending, ".safetensors")) {
        char *slash = strrchr(folder, '/');
        snprintf(slash ? slash : folder, 2, slash ? "" : ".");
    }
    path_join(state, sizeof state, folder, "state.safetensors");
    path_join(last, sizeof last, folder, "last.safetensors");
    if (!file_exists(state))
        die("%s: no such file: --resume wants the folder of a run that has saved its state", state);
    const char *given = config_origin(&run->config, "run_dir");
    if (training && given && !strncmp(given, "--run", 5) && strcmp(run->s.run_dir, folder))
        config_reject(&run->config, "run_dir", "%s, but --resume goes on in %s: copy that folder to fork a run",
                      run->s.run_dir, folder);
    const char *key = training ? "run_dir" : "init", *value = training ? folder : last;
    if (!config_try_set(&run->config, key, value, "--resume", error, sizeof error)) die_usage("%s", error);
}

/* One mode at a time, with what it needs and nothing that only another would use. */
static void check_mode(const Settings *s) {
    const struct {
        const char *name;
        bool chosen;
    } modes[] = {{"describe", s->describe},
                 {"eval", s->eval},
                 {"bench", s->bench},
                 {"predict", s->predict.count > 0},
                 {"parity", *s->parity != 0}};
    const char *first = NULL;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (first && modes[i].chosen) die_usage("--%s: not together with --%s", modes[i].name, first);
        if (modes[i].chosen) first = modes[i].name;
    }
    if ((s->eval || s->predict.count) && !*s->init)
        die_usage("--%s: needs weights: --init FILE or --resume FOLDER", first);
    if (*s->parity && !*s->out) die_usage("--parity: needs --out FILE for the results");
    if (*s->out && !*s->parity) die_usage("--out: '%s' would be written by --parity only", s->out);
    if (*s->attention && !s->predict.count)
        die_usage("--attention: '%s' would be written by --predict only", s->attention);
}

/* Settings come from, last wins: defaults; the run that is resumed, or the checkpoint that is looked at; --config; the
 * command line. */
static void settings_open(Run *run, int argc, char **argv) {
    settings_read(run, NULL, NULL, argc, argv);
    Settings *s = &run->s;
    bool looking = s->eval || s->bench || s->describe || s->predict.count || *s->parity;
    if (*s->resume) resume_resolve(run, !looking);
    const char *base_file = *s->config ? "" : *s->resume && !looking ? s->run_dir : looking ? s->init : "";
    if (*base_file) {
        char path[PATH_SIZE];
        snprintf(path, sizeof path, *s->resume && !looking ? "%s/state.safetensors" : "%s", base_file);
        char *text = config_of_checkpoint(path);
        if (text) {
            config_free(&run->config);
            settings_read(run, text, path, argc, argv);
            if (*s->resume) resume_resolve(run, !looking);
            free(text);
        }
    }
    if (*s->resume && !looking && *s->init) /* the state has later weights */
        s->init = "";
}

static int run_mode(Run *run) {
    const Settings *s = &run->s;
    if (s->help) return print_help(run), 0;
    if (s->help_markdown) return config_markdown(&run->config, stdout), 0;
    check_mode(s);
    if (!*s->parity) check_settings(run); /* --parity first takes the image size from its file */
    data_describe(run);
    kernels_init();
    if (s->describe) return mode_describe(run);
    if (*s->parity) return mode_parity(run);
    if (s->bench) return mode_bench(run);
    if (s->eval) return mode_eval(run);
    if (s->predict.count) return mode_predict(run);
    return mode_train(run);
}

int main(int argc, char **argv) {
    static Run run;
    settings_open(&run, argc, argv);
    int status = run_mode(&run);
    if (fflush(stdout) != 0 || ferror(stdout)) die("standard output: cannot write all of it");
    return status;
}
