/* train_vit: vision transformers for image classification, from a config file to an accuracy.
 *
 * Read it top to bottom: settings, what a run holds, one training step, evaluation, the training loop, the other modes,
 * main.  The layers are in layers/, the arithmetic in kernels/, what is neither vision nor the loop in core/. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/adamw.h"
#include "core/checkpoint.h"
#include "core/config.h"
#include "core/die.h"
#include "core/distributed.h"
#include "core/progress.h"
#include "core/rng.h"
#include "core/run.h"
#include "core/schedule.h"
#include "core/signals.h"
#include "core/training.h"
#include "data/erasing.h"
#include "data/image.h"
#include "data/loader.h"
#include "data/mixup.h"
#include "data/sampler.h"
#include "data/sheet.h"
#include "layers/attention/feature_map.h"
#include "layers/attention/relative.h"
#include "layers/resample_grid.h"
#include "layers/vit.h"

enum { ERROR_SIZE = 512 };

/* == Settings ===================================================================================================== */

typedef struct {
    const char *config, *data, *data_dir, *init, *resume, *run_dir, *parity, *out, *attention;
    ConfigList predict;
    bool help, help_markdown, describe, eval, bench;
    const char *show_batch;
    int train_limit, test_limit, crop_padding, eval_resize, interpolation, workers;
    float crop_area_min, crop_area_max, crop_ratio_min, crop_ratio_max, max_damaged;
    bool flip, exact_decode, repeated_aug;
    const char *aa;
    int train_interpolation, remode; /* indices of choices */
    float color_jitter, reprob, mixup, cutmix, mixup_prob, mixup_switch_prob;
    int attn, feature_map, relative, ripple_algo, rpe, sparse_heads, lisa_kernel, lisa_fft, lisa_algo,
        pool, pos_embed, lr_schedule; /* indices of choices */
    int img_size[2], patch_size, num_classes, conv_stages, r_max, ripple_layers, convit_local_layers, focused_p,
        landmarks, sparse_stride, sparse_c, lisa_patterns, inception_heads;
    ConfigInts dim, depth, heads;
    ConfigFloats mlp_ratio;
    bool patch_overlap, mlp_conv, recompute;
    int init_scale; /* index of a choice */
    float drop_path, tau, castling_mask;
    int epochs, batch_size, micro_batch, lr_base_batch, eval_every, log_every;
    float lr, lr_min, lr_warmup, warmup_epochs, weight_decay, beta1, beta2, eps, clip_grad, ema_decay, label_smoothing;
    float bench_seconds;
    uint64_t seed;
} Settings;

enum { POOL_CLS, POOL_GAP };
enum { POS_LEARNED, POS_NONE, POS_CONV };
enum { SCHEDULE_EPOCH, SCHEDULE_STEP };
static const char *const ripple_algos[] = {"auto", "dense", "window", "sat", "naive"};
static const char *const rpe_kinds[] = {"none", "shared", "heads"};
static const char *const sparse_ways[] = {"alternate", "union", "split"};
static const char *const lisa_kernels[] = {"0", "3", "5", "7"};
static const char *const lisa_ffts[] = {"1d", "2d"};
static const char *const lisa_algos[] = {"auto", "dense", "fft"};

#define F(KIND, field) CONFIG_FIELD(KIND, Settings, field)
static const ConfigEntry entries[] = {
    {F(BOOL, help), .section = "modes", .command_line_only = true, .help = "Print this help"},
    {F(BOOL, help_markdown), .command_line_only = true, .help = "Print the settings as Markdown tables"},
    {F(STRING, config), .command_line_only = true, .argument = "FILE",
     .help = "Read settings from this INI file; the command line wins over it"},
    {F(STRING, resume), .command_line_only = true, .argument = "FOLDER",
     .help = "Continue the run in this folder, bit for bit, from its last state"},
    {F(BOOL, describe), .command_line_only = true,
     .help = "Print layers, parameters, multiply-adds and memory, and stop"},
    {F(BOOL, eval), .command_line_only = true,
     .help = "Measure the accuracy of --init or --resume on the test split, and stop"},
    {F(BOOL, bench), .command_line_only = true,
     .help = "Measure training and inference speed on random images, print one line of JSON, and stop"},
    {F(STRING, show_batch), .command_line_only = true, .argument = "FILE",
     .help = "Write the first training images as the model sees them, with their labels, to this PNG file, and stop"},
    {F(LIST, predict), .command_line_only = true, .argument = "IMAGE...",
     .help = "Name what these images show: PNG or JPEG files, or test:17 for an image of the test split"},
    {F(STRING, attention), .command_line_only = true, .argument = "FILE",
     .help = "With --predict: write where each head of each layer looks (safetensors; scripts/plot_attention.py draws "
             "it)"},
    {F(STRING, parity), .command_line_only = true, .argument = "IN",
     .help = "One forward and backward pass on the images and labels of this safetensors file; parameters in it "
             "replace the model's"},
    {F(STRING, out), .command_line_only = true, .argument = "FILE",
     .help = "Where --parity writes logits, loss and grad.<parameter>"},

    {F(STRING, data), "shapes", .section = "data",
     .help = "shapes (drawn on the spot, no files needed), cifar10, cifar100, mnist, imagenet, a folder with the files "
             "of one of them or with train/<class>/ and val/<class>/, or a file made by pack_dataset"},
    {F(STRING, data_dir), "datasets", .argument = "FOLDER",
     .help = "Where cifar10, cifar100, mnist and imagenet are looked for (scripts/fetch_cifar.sh puts the first two "
             "there)"},
    {F(INT, train_limit), "0", .min = 0, .max = 1e8, .help = "Use only so many training images (0: all)"},
    {F(INT, test_limit), "0", .min = 0, .max = 1e8, .help = "Use only so many test images (0: all)"},
    {F(INT, crop_padding), "4", .min = 0, .max = 64,
     .help = "Random crop after padding with so many black pixels on every side, where the images have the model's "
             "size already"},
    {F(FLOAT, crop_area_min), "0.08", .min = 1e-4, .max = 1,
     .help = "Random resized crop, where they have not: the smallest share of the picture's area"},
    {F(FLOAT, crop_area_max), "1", .min = 1e-4, .max = 1, .help = "And the largest"},
    {F(FLOAT, crop_ratio_min), "0.75", .min = 0.01, .max = 100, .help = "The smallest width / height of the crop"},
    {F(FLOAT, crop_ratio_max), "1.3333334", .min = 0.01, .max = 100, .help = "And the largest"},
    {F(INT, eval_resize), "0", .min = 0, .max = 16384,
     .help = "Test pictures are resized to this short side before the centre is cut out (0: 256/224 of img_size)"},
    {F(CHOICE, interpolation), "bicubic", CONFIG_CHOICES("bicubic", "bilinear"),
     .help = "Filter that pictures are resized with, the same as Pillow's"},
    {F(BOOL, exact_decode), "false",
     .help = "Decode JPEGs as Pillow does, not at a fraction of their size where that is enough"},
    {F(BOOL, flip), "true", .help = "Mirror half of the training images"},
    {F(INT, workers), "0", .min = 0, .max = 1024,
     .help = "Threads that load images ahead (0: one beside a CPU that trains, all cores beside a GPU)"},
    {F(FLOAT, max_damaged), "0.01", .min = 0, .max = 1,
     .help = "Larger share of damaged images in an epoch that ends the run; below it they are named and replaced"},
    {F(STRING, aa), .section = "augmentation", .argument = "POLICY",
     .help = "RandAugment by timm's name, as rand-m9-mstd0.5-inc1 (empty: off)"},
    {F(CHOICE, train_interpolation), "random", CONFIG_CHOICES("random", "bilinear", "bicubic"),
     .help = "Resampling of RandAugment's geometric operations"},
    {F(FLOAT, color_jitter), "0", .min = 0, .max = 10,
     .help = "Strength of random brightness, contrast and saturation; not used with aa (0: off)"},
    {F(FLOAT, reprob), "0", .min = 0, .max = 1, .help = "Share of images in which random erasing overwrites a box"},
    {F(CHOICE, remode), "pixel", CONFIG_CHOICES("const", "rand", "pixel"),
     .help = "What erased boxes hold: zero, one random colour, or random numbers"},
    {F(FLOAT, mixup), "0", .min = 0, .max = 1000,
     .help = "Alpha of mixup, which blends the images and targets of a batch in pairs (0: off)"},
    {F(FLOAT, cutmix), "0", .min = 0, .max = 1000,
     .help = "Alpha of cutmix, which copies a box from one image of a pair to the other (0: off)"},
    {F(FLOAT, mixup_prob), "1", .min = 0, .max = 1,
     .help = "Share of batches that are mixed, where mixup or cutmix is on"},
    {F(FLOAT, mixup_switch_prob), "0.5", .min = 0, .max = 1, .help = "Share of cutmix among them, where both are on"},
    {F(BOOL, repeated_aug), "false",
     .help = "Repeated augmentation: a third of the images each epoch, three times with different draws"},

    {F(CHOICE, attn), "softmax", .section = "model", .choices_of = attention_names, .noun = "operator",
     .help = "Attention operator of the blocks"},
    {F(SIZE, img_size), "32", .min = 1, .max = 4096, .help = "Image height and width"},
    {F(INT, patch_size), "4", .min = 1, .max = 256, .help = "Side of the square patches that become tokens"},
    {F(INT, num_classes), "0", .min = 0, .max = 1e6, .help = "Classes (0: as many as the data set has)"},
    {F(BOOL, patch_overlap), "false",
     .help = "Patches are windows 2 patch_size - 1 wide, with a layer norm after them, as in PVTv2"},
    {F(INTS, dim), "192", .min = 1, .max = 16384,
     .help = "Width of the tokens; several make a hierarchy of stages, each with tokens half as fine as the one "
             "before"},
    {F(INTS, depth), "12", .min = 1, .max = 256, .help = "Blocks, of each stage"},
    {F(INTS, heads), "6", .min = 1, .max = 1024, .help = "Attention heads, of all stages or of each; divide dim"},
    {F(FLOATS, mlp_ratio), "4", .min = 0.01, .max = 64,
     .help = "Hidden width of the MLP as a multiple of dim, of all stages or of each"},
    {F(BOOL, mlp_conv), "false",
     .help = "Depthwise 3x3 convolution over the grid between the two layers of the MLP, as in PVTv2"},
    {F(INT, conv_stages), "0", .min = 0, .max = VIT_MAX_STAGES, .help = "The first so many stages have attn conv"},
    {F(CHOICE, pool), "gap", CONFIG_CHOICES("cls", "gap"),
     .help = "What the classifier sees: a class token, or the average of all tokens"},
    {F(CHOICE, pos_embed), "learned", CONFIG_CHOICES("learned", "none", "conv"),
     .help = "Position embedding; conv: a depthwise 3x3 convolution is added at the entry of every block"},
    {F(FLOAT, drop_path), "0", .min = 0, .max = 0.99,
     .help = "Rate of stochastic depth in the last block; grows linearly from 0 in the first"},

    {F(CHOICE, feature_map), "mlp", .section = "attention", .choices_of = feature_map_names, .noun = "map",
     .help = "Feature map of linear and ripple attention"},
    {F(CHOICE, relative), "none", .choices_of = relative_names, .noun = "encoding",
     .help = "Relative positions in linear attention"},
    {F(INT, r_max), "4", .min = 1, .max = RIPPLE_MAX_GROUPS - 1,
     .help = "Rings of ripple attention; tokens at this distance and beyond share one weight"},
    {F(FLOAT, tau), "0.001", .min = 0, .max = 1, .help = "Stick breaking ends when less than this is left (0: never)"},
    {F(INT, ripple_layers), "9", .min = 0, .max = 256,
     .help = "The first so many blocks ripple, the others use linear attention"},
    {F(CHOICE, ripple_algo), "auto", .choices = ripple_algos, .choice_count = 5, .noun = "algorithm",
     .help = "All four compute the same numbers; auto takes the one expected to be fastest"},
    {F(INT, convit_local_layers), "10", .min = 1, .max = 256,
     .help = "The first so many blocks of convit mix content and position; the others are plain softmax attention, and "
             "there the class token joins"},
    {F(CHOICE, rpe), "none", .choices = rpe_kinds, .choice_count = 3,
     .help = "Relative position bias of softmax attention: one table for all heads, or one for each"},
    {F(CHOICE, sparse_heads), "alternate", .choices = sparse_ways, .choice_count = 3,
     .help = "How sparse attention uses its two sets of keys: by turns in the blocks, both in every head, or each in "
             "half of the heads"},
    {F(INT, sparse_stride), "0", .min = 0, .max = 1e6,
     .help = "Tokens in a row or block of sparse attention (0: the grid's width)"},
    {F(INT, sparse_c), "2", .min = 1, .max = 1e6,
     .help = "Tokens at the end of a block of sparse-fixed that all others see"},
    {F(INT, focused_p), "3", .min = 1, .max = 64, .help = "Power of the features of focused attention"},
    {F(FLOAT, castling_mask), "0", .min = 0, .max = 1,
     .help = "In training, castling has a branch of softmax attention with the weights above this (0: none; its "
             "authors: 0.02)"},
    {F(INT, landmarks), "7", .min = 1, .max = 64, .help = "Landmarks of nystrom and soft to a side of their grid"},
    {F(INT, lisa_patterns), "16", .min = 1, .max = 256,
     .help = "Structural patterns of lisa, sa10 and sa11 (the paper's D)"},
    {F(CHOICE, lisa_kernel), "0", .choices = lisa_kernels, .choice_count = 4,
     .help = "Side of the window that lisa sees around each token (0: the whole image)"},
    {F(CHOICE, lisa_fft), "1d", .choices = lisa_ffts, .choice_count = 2,
     .help = "Lisa's convolutions wrap around the tokens in a row, as in the paper, or around rows and columns of the "
             "grid"},
    {F(CHOICE, lisa_algo), "auto", .choices = lisa_algos, .choice_count = 3, .noun = "algorithm",
     .help = "Both compute the same numbers; auto takes the one expected to be faster"},
    {F(INT, inception_heads), "0", .min = 0, .max = 256,
     .help = "Heads of inception that attend; the other channels are convolved and pooled (0: half of heads, rounded "
             "down)"},

    {F(INT, epochs), "300", .section = "training", .min = 1, .max = 1e6, .help = "Passes over the training images"},
    {F(INT, batch_size), "512", .min = 1, .max = 1e6, .help = "Images between two updates of the parameters"},
    {F(BOOL, recompute), "false",
     .help = "Keep the input of each block only and compute the block again in the backward pass: less memory, more "
             "time, the same numbers"},
    {F(CHOICE, init_scale), "none", CONFIG_CHOICES("none", "depth"),
     .help = "depth: weights of attention's proj and of the MLP's second layer start 1/sqrt(2 blocks) as large, as in "
             "Sparse Transformers"},
    {F(INT, micro_batch), "0", .min = 0, .max = 1e6,
     .help = "Images in memory at a time, their gradients summed up to a batch (0: chosen by size)"},
    {F(FLOAT, lr), "5e-4", .min = 0, .max = 100, .help = "Learning rate of AdamW at its highest"},
    {F(INT, lr_base_batch), "0", .min = 0, .max = 1e6,
     .help = "lr is meant for this batch size and scaled linearly to batch_size (0: taken as it is)"},
    {F(FLOAT, lr_min), "1e-5", .min = 0, .max = 100, .help = "Learning rate at the end of the cosine"},
    {F(FLOAT, lr_warmup), "1e-6", .min = 0, .max = 100, .help = "Learning rate at the start of the warm-up"},
    {F(FLOAT, warmup_epochs), "5", .min = 0, .max = 1e6,
     .help = "Epochs of linear warm-up; where nobody sets it, at most a tenth of epochs"},
    {F(CHOICE, lr_schedule), "epoch", CONFIG_CHOICES("epoch", "step"),
     .help = "Change the learning rate once per epoch, as timm does, or with every step"},
    {F(FLOAT, weight_decay), "0.05", .min = 0, .max = 10,
     .help = "Decoupled weight decay of matrices; vectors and embeddings have none"},
    {F(FLOAT, beta1), "0.9", .min = 0, .max = 0.9999999, .help = "Decay of AdamW's first moment"},
    {F(FLOAT, beta2), "0.999", .min = 0, .max = 0.9999999, .help = "Decay of AdamW's second moment"},
    {F(FLOAT, eps), "1e-8", .min = 0, .max = 1, .help = "AdamW's epsilon"},
    {F(FLOAT, clip_grad), "0", .min = 0, .max = 1e8, .help = "Largest norm of the gradient (0: no clipping)"},
    {F(FLOAT, ema_decay), "0", .min = 0, .max = 0.9999999,
     .help = "Also keep an exponential average of the parameters, and evaluate that (0: off; DeiT: 0.99996)"},
    {F(FLOAT, label_smoothing), "0.1", .min = 0, .max = 0.99, .help = "Share of the target spread over all classes"},
    {F(UINT64, seed), "0", .help = "Decides every random number of the run"},

    {F(STRING, run_dir), .section = "run", .argument = "FOLDER",
     .help = "Where config.ini, log.csv and the checkpoints go (default: the next free runs/<data>-<attn>-<number>)"},
    {F(STRING, init), .argument = "FILE",
     .help = "Start from these weights (safetensors, timm's names); tables on the token grid are resampled to this "
             "img_size, and a head of other classes is drawn afresh"},
    {F(INT, eval_every), "1", .min = 1, .max = 1e6,
     .help = "Epochs between two evaluations; the last epoch always has one"},
    {F(INT, log_every), "50", .min = 1, .max = 1e8, .help = "Steps between two rows of log.csv"},
    {F(FLOAT, bench_seconds), "5", .min = 0.1, .max = 3600,
     .help = "How long --bench measures training, and again inference"},
};
#undef F
enum { ENTRIES = sizeof entries / sizeof *entries };

/* == A run ======================================================================================================== */

typedef struct {
    double top1, top5; /* percent */
} Accuracy;

typedef struct {
    Config config;
    Settings s;
    Vit vit;
    RandAugment randaugment;
    Dataset train, test; /* train is open only in a training run */
    LoaderPool *workers;
    Loader loader, test_loader;
    AdamW adamw;
    Schedule schedule;
    Training training;
    uint8_t *pixels; /* host [micro_batch,Hi,Wi,3] */
    int *labels;     /* host [micro_batch] */
    float *targets;  /* host [micro_batch,C] */
    float *losses;   /* host [micro_batch] */
    float *logits;   /* host [micro_batch,C] */
    int *boxes;      /* host [micro_batch + 2,4]: what is erased */
    DeviceGraph *graph; /* of a step that is one micro-batch on one rank */
    Accuracy accuracy;   /* of the last evaluation */
    int last_micro_batch; /* its activations are still there */
} Run;

/* One value of a list is meant for all stages. */
static int stage_int(const ConfigInts *list, int i) { return list->at[list->count > 1 ? i : 0]; }

static StageConfig stage_config(const Settings *s, int i) {
    return (StageConfig){.dim = stage_int(&s->dim, i),
                         .depth = stage_int(&s->depth, i),
                         .heads = stage_int(&s->heads, i),
                         .mlp_ratio = s->mlp_ratio.at[s->mlp_ratio.count > 1 ? i : 0],
                         .attn = i < s->conv_stages ? "conv" : NULL};
}

static int total_depth(const Settings *s) {
    int depth = 0;
    for (int i = 0; i < s->dim.count; i++) depth += stage_int(&s->depth, i);
    return depth;
}

static VitConfig vit_config(const Settings *s) {
    static const PositionEmbedding positions[] = {POSITIONS_LEARNED, POSITIONS_NONE, POSITIONS_CONV};
    int count;
    VitConfig config = {
        .img_h = s->img_size[0],
        .img_w = s->img_size[1],
        .patch_size = s->patch_size,
        .num_classes = s->num_classes,
        .stage_count = s->dim.count,
        .class_token = s->pool == POOL_CLS,
        .overlap = s->patch_overlap,
        .mlp_conv = s->mlp_conv,
        .pos_embed = positions[s->pos_embed],
        .drop_path = s->drop_path,
        .scale_depth = s->init_scale == 1,
        .recompute = s->recompute,
        .attention = {.attn = attention_operators[s->attn]->name,
                      .feature_map = feature_map_names(&count)[s->feature_map],
                      .relative = relative_names(&count)[s->relative],
                      .r_max = s->r_max,
                      .tau = s->tau,
                      .ripple_layers = s->ripple_layers,
                      .ripple_algo = ripple_algos[s->ripple_algo],
                      .convit_local_layers = s->convit_local_layers,
                      .focused_p = s->focused_p,
                      .castling_mask = s->castling_mask,
                      .landmarks = s->landmarks,
                      .rpe = rpe_kinds[s->rpe],
                      .sparse_heads = sparse_ways[s->sparse_heads],
                      .sparse_stride = s->sparse_stride,
                      .sparse_c = s->sparse_c,
                      .lisa_patterns = s->lisa_patterns,
                      .lisa_kernel = atoi(lisa_kernels[s->lisa_kernel]),
                      .lisa_fft = lisa_ffts[s->lisa_fft],
                      .lisa_algo = lisa_algos[s->lisa_algo],
                      .inception_heads = s->inception_heads},
    };
    for (int i = 0; i < config.stage_count; i++) config.stage[i] = stage_config(s, i);
    return config;
}

static bool is_mixing(const Settings *s) { return s->mixup > 0 || s->cutmix > 0; }

static void check_stage(const Run *run, int i) {
    StageConfig c = stage_config(&run->s, i);
    if (c.dim % c.heads) config_reject(&run->config, "heads", "%d does not divide dim %d", c.heads, c.dim);
    if ((int)((float)c.dim * c.mlp_ratio) < 1)
        config_reject(&run->config, "mlp_ratio", "%g of dim %d leaves no hidden unit", (double)c.mlp_ratio, c.dim);
}

/* Lists that tell of stages: as many values as dim has, or one for all. */
static void check_stages(const Run *run) {
    const Settings *s = &run->s;
    int stages = s->dim.count, side = s->patch_size << (stages - 1);
    const struct {
        const char *name;
        int count;
    } lists[] = {{"depth", s->depth.count}, {"heads", s->heads.count}, {"mlp_ratio", s->mlp_ratio.count}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (lists[i].count != 1 && lists[i].count != stages)
            config_reject(&run->config, lists[i].name,
                          "%d values, but dim has %d: give one for each stage, or one for all", lists[i].count, stages);
    if (s->conv_stages > stages)
        config_reject(&run->config, "conv_stages", "%d, but dim tells of %d stage%s", s->conv_stages, stages,
                      stages > 1 ? "s" : "");
    for (int i = 0; i < stages; i++) check_stage(run, i);
    for (int i = 0; i < 2 && !s->patch_overlap; i++) {
        if (s->img_size[i] % s->patch_size)
            config_reject(&run->config, "patch_size", "%d does not divide img_size %dx%d", s->patch_size,
                          s->img_size[0], s->img_size[1]);
        if (s->img_size[i] % side)
            config_reject(&run->config, "patch_size", "%d, twice as much from each of %d stages to the next, does not "
                          "divide img_size %dx%d: patch_overlap true takes any size", s->patch_size, stages,
                          s->img_size[0], s->img_size[1]);
    }
    if (*s->attention && stages > 1)
        config_reject(&run->config, "attention", "pictures are of one token grid, and this model has %d stages",
                      stages);
    const char *grid = stages > 1 ? "several stages" : s->mlp_conv ? "mlp_conv" : s->pos_embed == POS_CONV
                       ? "pos_embed conv" : s->conv_stages > 0 ? "conv_stages" : NULL;
    if (grid && s->pool == POOL_CLS)
        config_reject(&run->config, "pool", "%s %s no place for a class token: use pool gap", grid,
                      stages > 1 ? "have" : "has");
}

/* What the table cannot check because it takes two settings, or one and the data set. */
static void check_settings(Run *run) {
    Settings *s = &run->s;
    char error[FILE_ERROR];
    check_stages(run);
    if (s->batch_size % distributed_ranks())
        config_reject(&run->config, "batch_size", "%d images cannot be shared equally by %d ranks", s->batch_size,
                      distributed_ranks());
    const AttentionOp *op = attention_operators[s->attn];
    AttentionConfig attention = vit_config(&run->s).attention;
    if (op->needs_grid && !op->class_block && s->pool == POOL_CLS)
        config_reject(&run->config, "pool", "attn %s has no place for a class token: use pool gap", op->name);
    if (op->class_block && s->pool == POOL_CLS && op->class_block(&attention) >= total_depth(s))
        config_reject(&run->config, "pool",
                      "with attn %s the class token joins before block %d, and depth %d ends with block %d: "
                      "use pool gap", op->name, op->class_block(&attention), total_depth(s), total_depth(s) - 1);
    if (op->needs_positive && feature_maps[s->feature_map]->negative)
        config_reject(&run->config, "feature_map", "attn %s cannot weigh features that may be negative, as those of %s",
                      op->name, feature_maps[s->feature_map]->name);
    if (!op->takes_relative && strcmp(relative_kinds[s->relative]->name, "none"))
        config_reject(&run->config, "relative", "%s goes with attn linear, not with %s",
                      relative_kinds[s->relative]->name, op->name);
    if (s->rpe && !op->takes_rpe)
        config_reject(&run->config, "rpe", "attn %s has no relative position bias: use attn softmax, or rpe none",
                      op->name);
    if (!randaugment_parse(&run->randaugment, s->aa, error)) config_reject(&run->config, "aa", "%s", error);
    run->randaugment.resample = (RandAugmentResample[]){RANDAUGMENT_RANDOM, RANDAUGMENT_BILINEAR,
                                                        RANDAUGMENT_BICUBIC}[s->train_interpolation];
    if (s->crop_area_min > s->crop_area_max)
        config_reject(&run->config, "crop_area_min", "%g is more than crop_area_max %g", (double)s->crop_area_min,
                      (double)s->crop_area_max);
    if (s->crop_ratio_min > s->crop_ratio_max)
        config_reject(&run->config, "crop_ratio_min", "%g is more than crop_ratio_max %g", (double)s->crop_ratio_min,
                      (double)s->crop_ratio_max);
    if (s->eval_resize && s->eval_resize < (s->img_size[0] < s->img_size[1] ? s->img_size[0] : s->img_size[1]))
        config_reject(&run->config, "eval_resize", "%d is less than img_size %dx%d", s->eval_resize, s->img_size[0],
                      s->img_size[1]);
    if (!config_origin(&run->config, "warmup_epochs"))
        s->warmup_epochs = fminf(s->warmup_epochs, (float)(s->epochs / 10));
    if (s->warmup_epochs > (float)s->epochs)
        config_reject(&run->config, "warmup_epochs", "%g is more than epochs %d", (double)s->warmup_epochs, s->epochs);
}

/* Everything known of the data without its files: size, classes, statistics. */
static void data_describe(Run *run) {
    Settings *s = &run->s;
    dataset_describe(&run->train, s->data, s->data_dir);
    if (!s->num_classes) s->num_classes = run->train.classes;
}

/* The images of a global batch that this rank computes, and the first of them. */
static int local_batch(const Run *run) { return run->s.batch_size / distributed_ranks(); }
static int local_first(const Run *run) { return local_batch(run) * distributed_rank(); }

/* As few passes over the batch as keep the device busy and its memory free, of nearly equal size. */
static int micro_batch_choose(const Run *run) {
    const Settings *s = &run->s;
    int local = local_batch(run);
    if (s->micro_batch > 0) return s->micro_batch < local ? s->micro_batch : local;
    size_t rows = (size_t)((s->img_size[0] + s->patch_size - 1) / s->patch_size);
    size_t columns = (size_t)((s->img_size[1] + s->patch_size - 1) / s->patch_size);
    size_t image = rows * columns * (size_t)s->dim.at[0], most = activations_at_once() / image;
    int passes = most < 1 ? local : (int)(((size_t)local + most - 1) / most);
    return (local + passes - 1) / passes;
}

static Transform transform_of(const Run *run, bool train) {
    const Settings *s = &run->s;
    return (Transform){.height = s->img_size[0],
                       .width = s->img_size[1],
                       .train = train,
                       .augment = {.pad = s->crop_padding,
                                   .flip = s->flip,
                                   .randaugment = run->randaugment,
                                   .jitter = s->color_jitter},
                       .area = {s->crop_area_min, s->crop_area_max},
                       .ratio = {s->crop_ratio_min, s->crop_ratio_max},
                       .eval_resize = s->eval_resize,
                       .filter = s->interpolation == 0 ? RESAMPLE_BICUBIC : RESAMPLE_BILINEAR,
                       .exact_decode = s->exact_decode};
}

/* One micro-batch at a time; a rank evaluates its share of each group of them. */
static void loading_open(Run *run, Loader *loader, const Dataset *dataset, bool train) {
    const Settings *s = &run->s;
    int share = device_shares_cores() ? 1 : loader_cores() / distributed_core_share(), micro = micro_batch_choose(run);
    if (!run->workers) run->workers = loader_pool_open(s->workers ? s->workers : share > 1 ? share : 1);
    LoaderConfig config = {.seed = s->seed,
                           .batch_size = train ? s->batch_size : micro * distributed_ranks(),
                           .train = train,
                           .rank = distributed_rank(),
                           .ranks = distributed_ranks(),
                           .part = micro,
                           .repeats = s->repeated_aug ? SAMPLER_REPEATS : 1,
                           .pairs = is_mixing(s),
                           .max_damaged = s->max_damaged,
                           .transform = transform_of(run, train),
                           .pool = run->workers,
                           .allocate = host_malloc,
                           .release = host_free};
    loader_open(loader, dataset, &config);
}

static void loading_close(Run *run) {
    loader_close(&run->loader);
    loader_close(&run->test_loader);
    loader_pool_close(run->workers);
}

/* Are the data's images used as they are, padded and cropped at most? */
static bool has_model_size(const Run *run) {
    return run->train.height == run->s.img_size[0] && run->train.width == run->s.img_size[1];
}

static void check_data(const Run *run) {
    const Settings *s = &run->s;
    const Dataset *d = &run->train;
    if (d->height && !config_origin(&run->config, "img_size") && !has_model_size(run))
        config_reject(&run->config, "img_size", "%dx%d, but images of %s are %dx%d", s->img_size[0], s->img_size[1],
                      d->name, d->height, d->width);
    if (s->num_classes < d->classes)
        config_reject(&run->config, "num_classes", "%d, but %s has %d", s->num_classes, d->name, d->classes);
}

static void data_open(Run *run, bool train) {
    Settings *s = &run->s;
    check_data(run);
    if (train) dataset_open(&run->train, s->data, s->data_dir, true, (size_t)s->train_limit);
    dataset_open(&run->test, s->data, s->data_dir, false, (size_t)s->test_limit);
    size_t epoch = train ? sampler_length(run->train.count, s->repeated_aug ? SAMPLER_REPEATS : 1) : 0;
    if (train && epoch < (size_t)s->batch_size)
        config_reject(&run->config, "batch_size", "%d is more than the %zu training images", s->batch_size, epoch);
    if (train) loading_open(run, &run->loader, &run->train, true);
    loading_open(run, &run->test_loader, &run->test, false);
}

/* A mode that looks at a model and leaves no run behind. */
static bool is_looking(const void *settings) {
    const Settings *s = settings;
    return s->eval || s->bench || s->describe || s->predict.count || *s->parity || *s->show_batch;
}

/* What --init changes on the way: tables on a grid of another size are resampled, and training starts with a new head
 * where the classes are others. */
typedef struct {
    const Run *run;
    Vit origin; /* the model that the weights are from, declared but without memory; nothing where no file tells */
    int resampled;
    const Param *first; /* of those, and its grid in the file */
    ParamGrid grid;
    size_t classes;                   /* in the file, where the head is another one */
} Fit;

static bool fit_grid(Fit *fit, float *to, const Param *p, const SafeTensor *tensor) {
    const Param *origin = params_find(&fit->origin.params, p->name);
    ParamGrid grid;
    char error[ERROR_SIZE];
    if (!grid_of_tensor(&grid, p, origin ? &origin->grid : NULL, tensor->ndim, tensor->shape)) return false;
    Grid from_grid = grid.positions, to_grid = p->grid.positions;
    if (from_grid.rows == to_grid.rows && from_grid.columns == to_grid.columns) return false;
    float *from = xcalloc(tensor->size, sizeof *from, "resampling");
    if (!safetensors_to_float(tensor, from, error, sizeof error)) die("%s", error);
    grid_resample(to, p, from, &grid);
    free(from);
    if (!fit->resampled++) {
        fit->first = p;
        fit->grid = grid;
    }
    return true;
}

static bool fit_head(Fit *fit, float *to, const Param *p, const SafeTensor *tensor) {
    bool rest = tensor->ndim == p->ndim && (p->ndim < 2 || tensor->shape[1] == (size_t)p->shape[1]);
    if (strncmp(p->name, "head.", 5) || !rest || is_looking(&fit->run->s)) return false;
    if (tensor->shape[0] == (size_t)p->shape[0]) return false;
    params_draw(&fit->run->vit.params, p, fit->run->s.seed, to);
    fit->classes = tensor->shape[0];
    return true;
}

static bool fit_tensor(float *to, const Param *p, const SafeTensor *tensor, void *context) {
    return fit_grid(context, to, p, tensor) || fit_head(context, to, p, tensor);
}

/* The model that a checkpoint of ours was made for, so that its grids are known. */
static void origin_create(Vit *origin, const char *checkpoint) {
    Settings settings;
    Config config;
    char error[ERROR_SIZE], *text = run_folder_config(checkpoint);
    if (!text) return;
    config_init(&config, entries, ENTRIES, &settings, "config");
    if (config_try_text(&config, text, strlen(text), checkpoint, error, sizeof error) && settings.num_classes > 0) {
        VitConfig vit = vit_config(&settings);
        vit_create(origin, &vit);
    }
    config_free(&config);
    free(text);
}

static void weights_load(Run *run) {
    const Settings *s = &run->s;
    static Fit fit;
    fit.run = run;
    origin_create(&fit.origin, s->init);
    checkpoint_load_weights(&run->vit.params, s->init, &(CheckpointFit){fit_tensor, &fit});
    vit_destroy(&fit.origin);
    if (distributed_rank() > 0 || s->bench) return;
    if (fit.resampled) {
        char more[32] = "";
        if (fit.resampled > 1) snprintf(more, sizeof more, " and %d more", fit.resampled - 1);
        Grid from = fit.grid.positions, to = fit.first->grid.positions;
        printf("%s: resampled bicubically: %s from %dx%d to %dx%d%s\n", s->init, fit.first->name, from.rows,
               from.columns, to.rows, to.columns, more);
    }
    if (fit.classes)
        printf("%s: its head has %zu classes, this model %d: the head is drawn afresh\n", s->init, fit.classes,
               s->num_classes);
}

/* Builds the model for `batch` images at a time and gives it its first weights. */
static void model_open(Run *run, int batch, bool training) {
    VitConfig config = vit_config(&run->s);
    vit_create(&run->vit, &config);
    vit_plan(&run->vit, batch, training);
    vit_allocate(&run->vit);
    params_allocate(&run->vit.params, training);
    if (*run->s.init) {
        weights_load(run);
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
    run->boxes = xcalloc(B + 2, 4 * sizeof *run->boxes, "a batch");
}

/* == One step ===================================================================================================== */

/* Images and soft targets into the model, erased and mixed with their partners where the recipe says so. */
static void load_images(Run *run, const LoaderPart *part) {
    static const ImageNoise noises[] = {NOISE_CONST, NOISE_RAND, NOISE_PIXEL};
    const Settings *s = &run->s;
    int H = s->img_size[0], W = s->img_size[1];
    uint32_t epoch = (uint32_t)run->training.state.epoch;
    if (!is_mixing(s) && s->reprob <= 0) {
        loader_targets(run->targets, part->labels, part->n, s->num_classes, s->label_smoothing);
        vit_load_pixels(&run->vit, part->pixels, run->train.mean, run->train.std, part->n);
        return;
    }
    Mixup mixup = {s->mixup, s->cutmix, s->mixup_prob, s->mixup_switch_prob};
    MixupDraw draw = mixup_draw(&mixup, s->seed, run->training.state.step, H, W);
    for (int i = 0; i < part->count; i++)
        erasing_draw(run->boxes + 4 * i, s->reprob, s->seed, epoch, part->draws[i], H, W);
    MixedImages mixed = {.count = part->count,
                         .pairs = part->pairs,
                         .boxes = run->boxes,
                         .draws = part->draws,
                         .mix = {.lam = draw.lam, .noise = noises[s->remode], .seed = s->seed, .epoch = epoch}};
    memcpy(mixed.mix.box, draw.box, sizeof mixed.mix.box);
    mixup_targets(run->targets, part->labels, part->pairs, part->n, s->num_classes, s->label_smoothing, draw.lam);
    vit_load_mixed(&run->vit, part->pixels, &mixed, run->train.mean, run->train.std, part->n);
}

/* Forward and backward of the B images at place `first` of the global batch that the model holds; their gradients are
 * added to those of the images before, and after the last ones to those of the other ranks. */
static void micro_step(Run *run, int first, int B, bool last) {
    Vit *vit = &run->vit;
    vit_draw_drop_path(vit, run->s.seed, (uint32_t)run->training.state.step, (size_t)first, B);
    vit_load_targets(vit, run->targets, B);
    bool whole = B == run->s.batch_size; /* every step launches the same kernels */
    if (!whole || device_graph_begin(&run->graph)) {
        vit_forward(vit, B, true);
        vit_loss(vit, B, 1.0f / (float)run->s.batch_size);
        vit_backward(vit, B, true, last ? all_reduce_start : NULL);
        if (whole) device_graph_end(&run->graph);
    }
    run->last_micro_batch = B;
}

/* Sums over ranks of what a step has to tell: the loss, and whether to stop. */
static double step_agree(Run *run, double loss) {
    double sums[2] = {loss, stop_signal != 0};
    distributed_sum(sums, 2);
    run->training.stopping = sums[1] > 0;
    return sums[0] / run->s.batch_size;
}

/* The loader's next batch, micro-batch by micro-batch, then one update.  Returns the mean loss. */
static double train_step(Run *run) {
    Vit *vit = &run->vit;
    int begin = local_first(run), end = begin + local_batch(run);
    RunState *state = &run->training.state;
    LoaderPart images;
    double loss = 0;
    device_zero(vit->params.grads, vit->params.total * sizeof(float));
    vit_draw_buffers(vit, run->s.seed, (uint32_t)state->step);
    for (int first = begin; first < end; first += images.n) {
        loader_next(&run->loader, &images);
        load_images(run, &images);
        micro_step(run, first, images.n, first + images.n == end);
        vit_losses(vit, run->losses, images.n);
        for (int b = 0; b < images.n; b++) loss += run->losses[b];
    }
    all_reduce_finish();
    loss = step_agree(run, loss);
    training_stop_on_bad(&run->training, "the loss", loss);
    state->gradient_norm = adamw_step(&run->adamw, &vit->params, state->lr, (int)state->step + 1);
    training_stop_on_bad(&run->training, "the norm of the gradient", (double)state->gradient_norm);
    return loss;
}

/* == Evaluation =================================================================================================== */

/* How many classes score above the true one; ties go to the smaller index, and a score that is not a number loses. */
static int rank_of(const float *logits, int classes, int label) {
    int rank = 0;
    if (isnan(logits[label])) return classes;
    for (int c = 0; c < classes; c++) rank += logits[c] > logits[label] || (logits[c] == logits[label] && c < label);
    return rank;
}

/* Each rank takes its share of the images.  A signal ends it early, and the result is none. */
static Accuracy evaluate(Run *run) {
    Vit *vit = &run->vit;
    LoaderPart images;
    size_t count = run->test.count, done = 0;
    double hits[3] = {0}; /* top-1, top-5, ranks that were stopped */
    int C = run->s.num_classes;
    if (vit->params.ema) params_view(&vit->params, vit->params.ema);
    vit_set_training(vit, false);
    loader_start(&run->test_loader, 0, 0);
    while (!stop_signal && loader_next(&run->test_loader, &images)) {
        vit_load_pixels(vit, images.pixels, run->test.mean, run->test.std, images.n);
        vit_forward(vit, images.n, false);
        real_download(run->logits, vit->logits, (size_t)images.n * (size_t)C);
        for (int b = 0; b < images.n; b++) {
            int place = rank_of(run->logits + (size_t)b * (size_t)C, C, images.labels[b]);
            hits[0] += place < 1;
            hits[1] += place < 5;
        }
        done += (size_t)images.n;
        progress_show(false, "evaluating %zu/%zu", done * (size_t)distributed_ranks(), count);
    }
    hits[2] = stop_signal != 0;
    distributed_sum(hits, 3);
    run->training.stopping = hits[2] > 0;
    if (vit->training.count) vit_set_training(vit, true);
    params_view(&vit->params, vit->params.values);
    return (Accuracy){100 * hits[0] / (double)count, 100 * hits[1] / (double)count};
}

/* == Training ===================================================================================================== */

static void log_row(Run *run, const Accuracy *accuracy) {
    double divergence = run->training.state.measured[0];
    char tops[64] = ",", measured[32] = "";
    if (isfinite(divergence)) snprintf(measured, sizeof measured, "%.6f", divergence);
    if (accuracy) snprintf(tops, sizeof tops, "%.3f,%.3f", accuracy->top1, accuracy->top5);
    training_log(&run->training, "%s,%s", tops, measured);
}

/* The rest of the epoch; false when a signal ended it early. */
static bool train_epoch(Run *run) {
    Training *t = &run->training;
    RunState *state = &t->state;
    loader_start(&run->loader, (uint32_t)state->epoch, state->batch);
    while (state->batch < t->batches) {
        training_begin_step(t, loader_stats(&run->loader).stalled);
        state->lr = schedule_lr(&run->schedule, (double)state->epoch + (double)state->batch / (double)t->batches);
        double loss = train_step(run);
        training_end_step(t, loss, loader_stats(&run->loader).stalled);
        if (training_log_is_due(t) || training_is_last_step(t))
            state->measured[0] = vit_divergence(&run->vit, run->last_micro_batch);
        training_show(t, "");
        if (training_log_is_due(t)) log_row(run, NULL);
        if (t->stopping) return false;
    }
    return true;
}

/* Accuracy, its row in the log, and the best weights so far; false when a signal came meanwhile. */
static bool evaluate_epoch(Run *run) {
    Training *t = &run->training;
    run->accuracy = evaluate(run);
    if (t->stopping) return false;
    progress_show(true, "epoch %llu/%d  top-1 %.2f %%  top-5 %.2f %%", (unsigned long long)t->state.epoch + 1,
                  t->epochs, run->accuracy.top1, run->accuracy.top5);
    log_row(run, &run->accuracy);
    training_keep_best(t, run->accuracy.top1);
    return true;
}

/* The end of an epoch: evaluation if it is due, a row in the log, checkpoints.  False when a signal came meanwhile. */
static bool finish_epoch(Run *run) {
    Training *t = &run->training;
    training_check_weights(t);
    if (!training_is_last_epoch(t)) loader_start(&run->loader, (uint32_t)t->state.epoch + 1, 0);
    if (!training_eval_is_due(t))
        log_row(run, NULL);
    else if (!evaluate_epoch(run))
        return false;
    training_end_epoch(t);
    return true;
}

static RunStrings run_strings(Run *run) {
    return (RunStrings){&run->s.config, &run->s.resume, &run->s.init, &run->s.run_dir};
}

static void begin_training(Run *run) {
    const Settings *s = &run->s;
    Training *t = &run->training;
    Params *params = &run->vit.params;
    RunStrings strings = run_strings(run);
    char stem[128];
    run->adamw = (AdamW){s->beta1, s->beta2, s->eps, s->weight_decay, s->clip_grad, s->ema_decay, 1};
    float scale = s->lr_base_batch ? (float)s->batch_size / (float)s->lr_base_batch : 1;
    run->schedule = (Schedule){s->lr * scale,    s->lr_min,         s->lr_warmup,
                               s->warmup_epochs, (float)s->epochs,  s->lr_schedule == SCHEDULE_EPOCH};
    params_allocate_optimizer(params, s->ema_decay > 0);
    if (params->ema) device_copy(params->ema, params->values, params->total * sizeof(float));
    t->params = params;
    t->epochs = s->epochs;
    t->batches = run->loader.batches;
    t->batch_size = s->batch_size;
    t->eval_every = s->eval_every;
    t->log_every = s->log_every;
    snprintf(stem, sizeof stem, "%s-%s", run->train.name, attention_operators[s->attn]->name);
    training_open(t, &run->config, &strings,
                  &(TrainingNames){stem, run->train.class_names, run->train.classes, "top1,top5,jsd"});
}

static void announce(const Run *run) {
    const Settings *s = &run->s;
    if (distributed_rank() > 0) return;
    printf("%s\n", kernels_device());
    if (distributed_ranks() > 1)
        printf("%d ranks, %d images of each batch on every one\n", distributed_ranks(), local_batch(run));
    printf("%s: %zu training and %zu test images, %d classes\n", run->train.name, run->train.count, run->test.count,
           run->train.classes);
    if (run->train.height && !has_model_size(run))
        printf("%s: images of %dx%d are resized to img_size %dx%d: "
               "cut out and scaled in training, the centre in tests\n",
               run->train.name, run->train.height, run->train.width, s->img_size[0], s->img_size[1]);
    printf("%s: %zu parameters, %.1f million multiply-adds an image, %.0f MiB of activations\n",
           attention_operators[s->attn]->name, run->vit.params.parameters, (double)vit_macs(&run->vit) / 1e6,
           (double)vit_activation_bytes(&run->vit) / (1 << 20));
    printf("%s: %d epochs of %llu batches of %d images, %d at a time\n", s->run_dir, s->epochs,
           (unsigned long long)run->training.batches, s->batch_size, run->vit.batch);
    training_print_resumed(&run->training);
    fflush(stdout);
}

static int mode_train(Run *run) {
    Training *t = &run->training;
    data_open(run, true);
    int batch = micro_batch_choose(run);
    model_open(run, batch, true);
    buffers_open(run, batch);
    begin_training(run);
    announce(run);
    if (training_is_over(t)) {
        training_report(t, "best top-1 %.2f %%", t->state.best);
        return 0;
    }
    while (!training_is_over(t))
        if (!train_epoch(run) || !finish_epoch(run)) return training_stop_early(t);
    training_report(t, "top-1 %.2f %%, best %.2f %%", run->accuracy.top1, t->state.best);
    return 0;
}

/* == The other modes ============================================================================================== */

static int mode_describe(Run *run) {
    VitConfig config = vit_config(&run->s);
    vit_create(&run->vit, &config);
    vit_plan(&run->vit, micro_batch_choose(run), true);
    vit_describe(&run->vit, stdout);
    return 0;
}

/* What training will see first, before anything that is done to whole batches. */
static int mode_show_batch(Run *run) {
    enum { MOST = 64 };
    const Settings *s = &run->s;
    char error[ERROR_SIZE];
    int labels[MOST];
    check_data(run);
    dataset_open(&run->train, s->data, s->data_dir, true, (size_t)s->train_limit);
    int n = run->train.count < MOST ? (int)run->train.count : MOST;
    LoaderConfig config = {.seed = s->seed,
                           .batch_size = n,
                           .train = true,
                           .max_damaged = 1,
                           .transform = transform_of(run, true)};
    loader_open(&run->loader, &run->train, &config);
    uint8_t *pixels = xcalloc((size_t)n * 3, (size_t)s->img_size[0] * (size_t)s->img_size[1], "a batch");
    loader_fill(&run->loader, 0, n, pixels, labels);
    if (!sheet_write(s->show_batch, pixels, n, s->img_size[0], s->img_size[1], labels, run->train.class_names, error))
        die("%s: %s", s->show_batch, error);
    printf("%s: the first %d training images of %s\n", s->show_batch, n, run->train.name);
    free(pixels);
    loading_close(run);
    return 0;
}

static int mode_eval(Run *run) {
    data_open(run, false);
    int batch = micro_batch_choose(run);
    model_open(run, batch, false);
    buffers_open(run, batch);
    Accuracy accuracy = evaluate(run);
    if (distributed_rank() > 0) return 0;
    progress_show(true, "%zu test images of %s", run->test.count, run->test.name);
    printf("top1: %.4f top5: %.4f\n", accuracy.top1, accuracy.top5);
    return 0;
}

static void bench_batch(Run *run, bool training) {
    Vit *vit = &run->vit;
    int begin = local_first(run), end = begin + local_batch(run);
    if (training) device_zero(vit->params.grads, vit->params.total * sizeof(float));
    if (training) vit_draw_buffers(vit, run->s.seed, (uint32_t)run->training.state.step);
    for (int first = begin, B; first < end; first += B) {
        B = end - first < vit->batch ? end - first : vit->batch;
        vit_load_pixels(vit, run->pixels, run->train.mean, run->train.std, B);
        if (training) {
            micro_step(run, first, B, first + B == end);
            vit_losses(vit, run->losses, B);
        } else {
            vit_forward(vit, B, false);
        }
    }
    all_reduce_finish();
    if (training) adamw_step(&run->adamw, &vit->params, 1e-4f, (int)++run->training.state.step);
    device_synchronize();
}

static void bench_training(void *run) { bench_batch(run, true); }
static void bench_inference(void *run) { bench_batch(run, false); }

static RunSpeed bench_speed(Run *run, bool training) {
    vit_set_training(&run->vit, training);
    return run_speed(training ? bench_training : bench_inference, run, run->s.batch_size, (double)run->s.bench_seconds);
}

static int mode_bench(Run *run) {
    const Settings *s = &run->s;
    int batch = micro_batch_choose(run), C = s->num_classes;
    model_open(run, batch, true);
    buffers_open(run, batch);
    params_allocate_optimizer(&run->vit.params, false);
    run->adamw = (AdamW){s->beta1, s->beta2, s->eps, s->weight_decay, s->clip_grad, 0, 1};
    for (size_t i = 0; i < (size_t)batch * 3 * (size_t)s->img_size[0] * (size_t)s->img_size[1]; i++)
        run->pixels[i] = (uint8_t)rng_bits(s->seed, RNG_TEST, 0, 0, i);
    for (int b = 0; b < batch; b++) run->labels[b] = b % C;
    loader_targets(run->targets, run->labels, batch, C, s->label_smoothing);
    double peak = gemm_peak_gflops();
    double memory = memory_peak_gbytes(), moved = vit_moved_bytes(&run->vit, local_batch(run));
    RunSpeed train = bench_speed(run, true), infer = bench_speed(run, false);
    double again = gemm_peak_gflops();
    if (again > peak) peak = again;
    double gflops = 3 * 2 * (double)vit_macs(&run->vit) * train.images_per_s / 1e9 / distributed_ranks();
    if (distributed_rank() > 0) return 0;
    const Attention *a = &vit_block(&run->vit, 0)->attention;
    const Plan *training = &run->vit.training, *inference = &run->vit.inference;
    printf("{\"attn\": \"%s\", \"algorithm\": \"%s\", \"device\": \"%s\", \"tokens\": %d, \"ranks\": %d, "
           "\"batch_size\": %d, \"micro_batch\": %d, \"params\": %zu, \"macs\": %zu, \"train_images_per_s\": %.2f, "
           "\"infer_images_per_s\": %.2f, \"train_batch_seconds\": %.6f, \"infer_batch_seconds\": %.6f, "
           "\"train_bytes\": %zu, \"infer_bytes\": %zu, \"peak_bytes\": %zu, \"gemm_peak_gflops\": %.1f, "
           "\"mfu\": %.4f, \"moved_bytes\": %.0f, \"memory_peak_gbytes\": %.1f, \"bandwidth_fraction\": %.4f}\n",
           attention_operators[s->attn]->name, a->op->path ? a->op->path(a) : a->op->name, kernels_device(), run->vit.N,
           distributed_ranks(), s->batch_size, batch, run->vit.params.parameters, vit_macs(&run->vit),
           train.images_per_s, infer.images_per_s, train.fastest, infer.fastest,
           plan_bytes(training) + training->workspace, plan_bytes(inference) + inference->workspace,
           device_peak_bytes(), peak, gflops / peak, moved, memory,
           moved * train.images_per_s / s->batch_size / (memory * 1e9));
    return 0;
}

/* Pixels of an image file or of test:INDEX, at the model's size: what evaluation would see, or where the data set has
 * no larger pictures all of the file, squeezed. */
static void prediction_pixels(Run *run, const char *name, uint8_t *pixels) {
    char error[ERROR_SIZE], *end;
    static TransformScratch scratch;
    static SampleBuffer file;
    Transform transform = transform_of(run, false);
    Sample sample = {0};
    bool ok;
    if (!strncmp(name, "test:", 5)) {
        unsigned long long index = strtoull(name + 5, &end, 10);
        if (!run->test.count) {
            check_data(run);
            dataset_open(&run->test, run->s.data, run->s.data_dir, false, (size_t)run->s.test_limit);
        }
        if (end == name + 5 || *end || index >= run->test.count)
            die_usage("--predict %s: expected test:INDEX with an index below %zu", name, run->test.count);
        ok = dataset_read(&run->test, (size_t)index, &scratch.bytes, &sample, error);
    } else {
        ok = file_read_again(name, IMAGE_MAX_BYTES, &file.bytes, &file.room, &sample.size, error);
        sample.bytes = file.bytes;
        Image image;
        if (ok && has_model_size(run)) {
            if (!image_decode(&image, file.bytes, sample.size, IMAGE_MAX_PIXELS, error)) die("%s: %s", name, error);
            image_resize(pixels, run->s.img_size[0], run->s.img_size[1], image.pixels, image.height, image.width);
            image_free(&image);
            return;
        }
    }
    ok = ok && transform_sample(&scratch, pixels, &sample, run->train.height > 0, &transform, (TransformKey){0}, error);
    if (!ok) die("%s: %s", name, error);
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

typedef void (*AttentionRow)(const Attention *a, float *weights, int b, int head, int query);

/* The row of token `query` of the first image; NaN where the operator has none,
 * and where the class token is yet to join. */
static void attention_row(float *row, AttentionRow of, const Vit *vit, const Attention *a, int head, int query) {
    int absent = vit->N - a->N;
    for (int m = 0; m < vit->N; m++) row[m] = NAN;
    if (of && query >= absent) of(a, row + absent, 0, head, query - absent);
}

/* to [depth,heads,count,N]: the rows of these queries, or of the first `count` tokens,
 * from op->weights or op->spatial. */
static void attention_rows(float *to, const Run *run, bool spatial, const int64_t *queries, int count) {
    const Vit *vit = &run->vit;
    int heads = run->s.heads.at[0];
    for (int row = 0; row < vit->depth * heads * count; row++) {
        const Attention *a = &vit_block(vit, row / (heads * count))->attention;
        int query = queries ? (int)queries[row % count] : row % count;
        attention_row(to + (size_t)row * (size_t)vit->N, spatial ? a->op->spatial : a->op->weights, vit, a,
                      row / count % heads, query);
    }
}

/* norms [depth+1,N]: the length of every token of the first image before the first block and after each. */
static void stream_norms(float *norms, const Vit *vit) {
    const Stage *stage = &vit->stages[0];
    size_t M = (size_t)stage->config.dim, N = (size_t)vit->N;
    float *x = xcalloc(N * M, sizeof *x, "attention picture");
    for (int i = 0; i <= vit->depth; i++) {
        const Station *s = &stage->stations[2 * i];
        float *row = norms + (size_t)i * N;
        size_t absent = N - (size_t)s->N;
        real_download(x, s->x, (size_t)s->N * M);
        for (size_t n = 0; n < N; n++) {
            double squares = n < absent ? NAN : 0;
            for (size_t c = 0; n >= absent && c < M; c++)
                squares += (double)x[(n - absent) * M + c] * x[(n - absent) * M + c];
            row[n] = (float)sqrt(squares);
        }
    }
    free(x);
}

/* Writes what pictures of attention are made of, for the first image: what each head of each layer weighs from a few
 * query tokens, weights and spatial (what the distance alone decides) [depth,heads,queries,N]; matrix and
 * spatial_matrix [depth,heads,N,N], the same from all tokens, where they stay below 64 MB; norms [depth+1,N]; queries
 * [queries] as token numbers; image [Hi,Wi,3]. */
static void attention_write(Run *run) {
    enum { QUERIES = 4, MOST = 1 << 24 };
    Vit *vit = &run->vit;
    size_t depth = (size_t)vit->depth, H = (size_t)run->s.heads.at[0], N = (size_t)vit->N, count = QUERIES;
    size_t rows = depth * H;
    size_t height = (size_t)run->s.img_size[0], width = (size_t)run->s.img_size[1];
    bool whole = rows * N * N <= MOST;
    const char *what = "attention picture";
    int prefix = vit->config.class_token, Hg = vit->grid.rows, Wg = vit->grid.columns;
    int64_t queries[QUERIES];
    char error[ERROR_SIZE], grid[32];
    for (int q = 0; q < QUERIES; q++) /* the centre of each quadrant */
        queries[q] = prefix + (Hg * (1 + 2 * (q / 2)) / 4) * Wg + Wg * (1 + 2 * (q % 2)) / 4;
    SafeTensorEntry out[] = {
        {"weights", SAFE_F32, 4, {depth, H, count, N}, xcalloc(rows * count, N * sizeof(float), what)},
        {"spatial", SAFE_F32, 4, {depth, H, count, N}, xcalloc(rows * count, N * sizeof(float), what)},
        {"image", SAFE_F32, 3, {height, width, 3}, xcalloc(3 * height, width * sizeof(float), what)},
        {"norms", SAFE_F32, 2, {depth + 1, N}, xcalloc(depth + 1, N * sizeof(float), what)},
        {"queries", SAFE_I64, 1, {count}, queries},
        {"matrix", SAFE_F32, 4, {depth, H, N, N}, whole ? xcalloc(rows * N, N * sizeof(float), what) : NULL},
        {"spatial_matrix", SAFE_F32, 4, {depth, H, N, N}, whole ? xcalloc(rows * N, N * sizeof(float), what) : NULL},
    };
    attention_rows((float *)out[0].data, run, false, queries, QUERIES);
    attention_rows((float *)out[1].data, run, true, queries, QUERIES);
    for (size_t i = 0; i < 3 * height * width; i++) ((float *)out[2].data)[i] = (float)run->pixels[i] / 255;
    stream_norms((float *)out[3].data, vit);
    if (whole) attention_rows((float *)out[5].data, run, false, NULL, vit->N);
    if (whole) attention_rows((float *)out[6].data, run, true, NULL, vit->N);
    snprintf(grid, sizeof grid, "%dx%d", vit->grid.rows, vit->grid.columns);
    SafeMetadata metadata[] = {{"grid", grid}, {"attn", attention_operators[run->s.attn]->name}};
    if (!safetensors_write(run->s.attention, out, whole ? 7 : 5, metadata, 2, error, sizeof error)) die("%s", error);
    for (int i = 0; i < 7; i++)
        if (out[i].data != queries) free((void *)out[i].data);
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
    run_parity_parameters(&vit->params, &st);
    for (int b = 0; b < B; b++) {
        if (wanted[b] < 0 || wanted[b] >= C)
            die("%s: label %lld of image %d is outside 0..%d", s->parity, (long long)wanted[b], b, C - 1);
        run->labels[b] = (int)wanted[b];
    }
    loader_targets(run->targets, run->labels, B, C, 0);
    real_upload(vit->images, pixels, images->size);
    vit_forward(vit, B, false);
    real_download(run->logits, vit->logits, (size_t)B * (size_t)C);
    vit_load_targets(vit, run->targets, B);
    vit_loss(vit, B, 1.0f / (float)B);
    vit_losses(vit, run->losses, B);
    vit_backward(vit, B, false, NULL);
    for (int b = 0; b < B; b++) loss += run->losses[b];
    float mean = (float)(loss / B);
    const SafeTensorEntry outputs[] = {{"logits", SAFE_F32, 2, {(size_t)B, (size_t)C}, run->logits},
                                       {"loss", SAFE_F32, 1, {1}, &mean}};
    run_parity_write(s->out, outputs, 2, &vit->params);
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

/* One mode at a time, with what it needs and nothing that only another would use. */
static void check_mode(const Settings *s) {
    const RunMode modes[] = {{"describe", s->describe},
                             {"eval", s->eval},
                             {"bench", s->bench},
                             {"show_batch", *s->show_batch != 0},
                             {"predict", s->predict.count > 0},
                             {"parity", *s->parity != 0}};
    const char *mode = run_one_mode(modes, sizeof modes / sizeof *modes);
    if ((s->eval || s->predict.count) && !*s->init)
        die_usage("--%s: needs weights: --init FILE or --resume FOLDER", mode);
    if (*s->parity && !*s->out) die_usage("--parity: needs --out FILE for the results");
    if (*s->out && !*s->parity) die_usage("--out: '%s' would be written by --parity only", s->out);
    if (*s->attention && !s->predict.count)
        die_usage("--attention: '%s' would be written by --predict only", s->attention);
}

static int run_mode(Run *run) {
    const Settings *s = &run->s;
    bool alone = s->help || s->help_markdown || s->describe || *s->parity || s->predict.count || *s->show_batch;
    if (alone && distributed_rank() > 0) return 0;
    if (s->help) return print_help(run), 0;
    if (s->help_markdown) return config_markdown(&run->config, stdout), 0;
    check_mode(s);
    if (!*s->parity) check_settings(run); /* --parity first takes the image size from its file */
    data_describe(run);
    kernels_init();
    if (s->describe) return mode_describe(run);
    if (*s->parity) return mode_parity(run);
    if (s->predict.count) return mode_predict(run);
    if (*s->show_batch) return mode_show_batch(run);
    signals_open();
    distributed_open();
    collective_open();
    int status = s->bench ? mode_bench(run) : s->eval ? mode_eval(run) : mode_train(run);
    loading_close(run);
    collective_close();
    distributed_close();
    return status;
}

int main(int argc, char **argv) {
    static Run run = {.training = {.program = "train_vit", .advice = "a lower lr, a longer warm-up or clip_grad"}};
    distributed_begin();
    RunStrings strings = run_strings(&run);
    run_settings_open(&run.config, entries, ENTRIES, &run.s, &strings, is_looking, argc, argv);
    int status = run_mode(&run);
    if (fflush(stdout) != 0 || ferror(stdout)) die("standard output: cannot write all of it");
    return status;
}
