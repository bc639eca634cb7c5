#include "core/foreign_names.h"

#include <string.h>
#include <strings.h>

#define DEVICE "a program runs on the device that it was built for: build/cuda/train_vit on a GPU, which " \
               "CUDA_VISIBLE_DEVICES chooses, and build/cpu/train_vit on the CPU (make cuda, make)"
#define WEIGHTS "--init loads safetensors files, which scripts/convert_weights.py makes from PyTorch's"
#define RANKS "mpirun -np N starts N processes, which share the batch"
#define ALWAYS "training needs no such setting: without a mode such as --eval the program trains"
#define SHAPE "a model has no name here: its config file or the settings of its shape (attn, dim, depth, heads, " \
              "patch_size) describe it; configs/ has files of published ones"
#define EXPORT "checkpoints are safetensors files with timm's names, which timm and PyTorch read as they are"
#define ACCUMULATION "--micro-batch sets how many samples are computed at a time; gradients add up to --batch-size"
#define LENGTH "the length of training is counted in epochs: --epochs N"
#define BFLOAT16 "--precision bfloat16 has activations in bfloat16, and parameters and sums in float32"
#define CHECKPOINTING "this program has no activation checkpointing; a lower --micro-batch saves memory"
#define FLOAT16 "there is no float16: --precision bfloat16 takes as much memory and needs no loss scaling"
#define THREADS "OMP_NUM_THREADS sets how many threads compute, and --workers how many load data"
#define COMPILED "the programs are compiled already, and nothing is compiled while they run"
#define CLIPS "this program takes no clips; train_vit does"
#define TOKENS "the number of tokens follows from the size of the images"
#define LOGS "the run's folder has a log.csv, which scripts/plots/log_to_tensorboard.py and scripts/plots/plot_run.py read"
#define SAVING "the state is saved after every epoch and when the program is interrupted"
#define NO_WARMUP "this program has no warm-up"
#define DRAWING "this program draws nothing new; train_ar does, with --sample and --prompt"
#define NO_FLIP "this program changes no data while it trains"
#define OPTIMIZER "the optimizer is always AdamW (lr, weight_decay, beta1, beta2, eps)"
#define COSINE "the learning rate always follows a cosine after a linear warm-up"

/* Of the settings the first is meant that the program has; the sentence is said if it has none of them. */
static const struct {
    const char *name, *settings[3], *sentence;
} names[] = {
    /* where it runs */
    {"gpu", {NULL}, DEVICE},
    {"gpus", {NULL}, DEVICE},
    {"cuda", {NULL}, DEVICE},
    {"cpu", {NULL}, DEVICE},
    {"device", {NULL}, DEVICE},
    {"accelerator", {NULL}, DEVICE},
    {"no_cuda", {NULL}, DEVICE},
    {"world_size", {NULL}, RANKS},
    {"nproc", {NULL}, RANKS},
    {"nproc_per_node", {NULL}, RANKS},
    {"distributed", {NULL}, RANKS},
    {"local_rank", {NULL}, RANKS},
    {"dist_url", {NULL}, RANKS},
    {"threads", {NULL}, THREADS},
    {"num_threads", {NULL}, THREADS},
    {"compile", {NULL}, COMPILED},
    {"torchcompile", {NULL}, COMPILED},
    /* precision */
    {"amp", {NULL}, BFLOAT16},
    {"amp_dtype", {"precision"}, NULL},
    {"mixed_precision", {"precision"}, NULL},
    {"dtype", {"precision"}, NULL},
    {"bf16", {NULL}, BFLOAT16},
    {"bfloat16", {NULL}, BFLOAT16},
    {"fp16", {NULL}, FLOAT16},
    {"half", {NULL}, FLOAT16},
    {"fp32", {NULL}, "--precision float32 computes in float32"},
    {"grad_checkpointing", {"recompute"}, CHECKPOINTING},
    {"gradient_checkpointing", {"recompute"}, CHECKPOINTING},
    {"use_checkpoint", {"recompute"}, CHECKPOINTING},
    /* data */
    {"data_path", {"data"}, NULL},
    {"data_set", {"data"}, NULL},
    {"dataset", {"data"}, NULL},
    {"dataset_name", {"data"}, NULL},
    {"train_data", {"data"}, NULL},
    {"train_dir", {"data"}, NULL},
    {"coco_path", {"data"}, NULL},
    {"source", {"predict", "data"}, NULL},
    {"input", {"predict", "data"}, NULL},
    {"num_workers", {"workers"}, NULL},
    {"nb_workers", {"workers"}, NULL},
    {"nb_classes", {"num_classes"}, "the number of classes is that of the data"},
    {"classes", {"num_classes"}, "the number of classes is that of the data"},
    {"pin_mem", {NULL}, "batches are always loaded into memory that the device reads directly"},
    /* shape */
    {"model", {NULL}, SHAPE},
    {"arch", {NULL}, SHAPE},
    {"model_name", {NULL}, SHAPE},
    {"backbone", {"backbone_blocks", "attn"}, SHAPE},
    {"attention_type", {"attn"}, NULL},
    {"attn_type", {"attn"}, NULL},
    {"imgsz", {"img_size", "eval_scale", "image_side"}, NULL},
    {"image_size", {"img_size", "image_side"}, NULL},
    {"img", {"img_size", "eval_scale", "image_side"}, NULL},
    {"size", {"img_size", "eval_scale", "image_side"}, NULL},
    {"input_size", {"img_size", "eval_scale", "image_side"}, NULL},
    {"resolution", {"img_size", "eval_scale", "image_side"}, NULL},
    {"patch", {"patch_size"}, "this program has no patches"},
    {"num_frames", {"frames"}, CLIPS},
    {"clip_len", {"frames"}, CLIPS},
    {"embed_dim", {"dim"}, NULL},
    {"hidden_dim", {"dim"}, NULL},
    {"hidden_size", {"dim"}, NULL},
    {"width", {"dim"}, NULL},
    {"n_embd", {"dim"}, NULL},
    {"layers", {"depth", "encoder_layers"}, NULL},
    {"num_layers", {"depth", "encoder_layers"}, NULL},
    {"n_layer", {"depth", "encoder_layers"}, NULL},
    {"enc_layers", {"encoder_layers", "depth"}, NULL},
    {"dec_layers", {"decoder_layers"}, "this program's models have no decoder"},
    {"num_heads", {"heads"}, NULL},
    {"nheads", {"heads"}, NULL},
    {"n_head", {"heads"}, NULL},
    {"num_queries", {"queries"}, "this program's models have no queries; train_detr's have"},
    {"dim_feedforward", {"ffn", "mlp_ratio"}, NULL},
    {"block_size", {"tokens"}, TOKENS},
    {"seq_len", {"tokens"}, TOKENS},
    {"context_length", {"tokens"}, TOKENS},
    {"vocab_size", {"vocabulary"}, "this program reads images"},
    {"global_pool", {"pool"}, "this program's models have no pooling"},
    {"drop", {"dropout"}, NULL},
    {"drop_rate", {"dropout"}, NULL},
    /* training */
    {"epoch", {"epochs"}, NULL},
    {"num_epochs", {"epochs"}, NULL},
    {"num_train_epochs", {"epochs"}, NULL},
    {"max_epochs", {"epochs"}, NULL},
    {"max_iters", {NULL}, LENGTH},
    {"max_steps", {NULL}, LENGTH},
    {"steps", {NULL}, LENGTH},
    {"iterations", {NULL}, LENGTH},
    {"bs", {"batch_size"}, NULL},
    {"batch", {"batch_size"}, NULL},
    {"batchsize", {"batch_size"}, NULL},
    {"train_batch_size", {"batch_size"}, NULL},
    {"per_device_train_batch_size", {"batch_size"}, NULL},
    {"validation_batch_size", {"micro_batch"}, NULL},
    {"accum_iter", {NULL}, ACCUMULATION},
    {"accum_steps", {NULL}, ACCUMULATION},
    {"grad_accum_steps", {NULL}, ACCUMULATION},
    {"gradient_accumulation_steps", {NULL}, ACCUMULATION},
    {"update_freq", {NULL}, ACCUMULATION},
    {"lr0", {"lr"}, NULL},
    {"base_lr", {"lr"}, NULL},
    {"blr", {"lr"}, NULL},
    {"learning_rate", {"lr"}, NULL},
    {"min_lr", {"lr_min"}, "the learning rate has no lower end that can be set"},
    {"warmup_lr", {"lr_warmup"}, "the warm-up begins at a learning rate that cannot be set"},
    {"warmup", {"warmup_epochs", "warmup_steps"}, NO_WARMUP},
    {"warmup_iters", {"warmup_epochs", "warmup_steps"}, NO_WARMUP},
    {"warmup_steps", {"warmup_epochs"}, NO_WARMUP},
    {"warmup_epochs", {"warmup_steps"}, NO_WARMUP},
    {"sched", {"lr_schedule", "lr_drop"}, COSINE},
    {"scheduler", {"lr_schedule", "lr_drop"}, COSINE},
    {"lr_scheduler", {"lr_schedule", "lr_drop"}, COSINE},
    {"lr_scheduler_type", {"lr_schedule", "lr_drop"}, COSINE},
    {"opt", {NULL}, OPTIMIZER},
    {"optim", {NULL}, OPTIMIZER},
    {"optimizer", {NULL}, OPTIMIZER},
    {"momentum", {"beta1"}, NULL},
    {"betas", {NULL}, "AdamW's two decays are --beta1 and --beta2"},
    {"opt_eps", {"eps"}, NULL},
    {"wd", {"weight_decay"}, NULL},
    {"clip", {"clip_grad"}, NULL},
    {"grad_clip", {"clip_grad"}, NULL},
    {"max_norm", {"clip_grad"}, NULL},
    {"max_grad_norm", {"clip_grad"}, NULL},
    {"clip_max_norm", {"clip_grad"}, NULL},
    {"ema", {"ema_decay"}, NULL},
    {"model_ema", {"ema_decay"}, NULL},
    {"model_ema_decay", {"ema_decay"}, NULL},
    {"smoothing", {"label_smoothing"}, "this program's loss has no label smoothing"},
    {"no_flip", {NULL}, "switch mirroring off with --flip false"},
    {"hflip", {"flip"}, NO_FLIP},
    {"fliplr", {"flip"}, NO_FLIP},
    {"horizontal_flip", {"flip"}, NO_FLIP},
    {"randaugment", {"aa"}, "this program has no RandAugment; train_vit has"},
    {"rand_augment", {"aa"}, "this program has no RandAugment; train_vit has"},
    {"auto_augment", {"aa"}, "this program has no RandAugment; train_vit has"},
    {"jitter", {"color_jitter"}, "this program has no colour jitter; train_vit has"},
    {"colour_jitter", {"color_jitter"}, "this program has no colour jitter; train_vit has"},
    {"random_erasing", {"reprob"}, "this program has no random erasing; train_vit has"},
    {"no_aug", {NULL}, "each augmentation has a setting, such as --flip false; --help augmentation lists them"},
    {"random_seed", {"seed"}, NULL},
    /* weights and files */
    {"pretrained", {"init"}, WEIGHTS},
    {"finetune", {"init"}, WEIGHTS},
    {"weights", {"init"}, WEIGHTS},
    {"load", {"init"}, WEIGHTS},
    {"checkpoint", {"init"}, WEIGHTS},
    {"ckpt", {"init"}, WEIGHTS},
    {"initial_checkpoint", {"init"}, WEIGHTS},
    {"model_path", {"init"}, WEIGHTS},
    {"start_epoch", {"resume"}, NULL},
    {"resume_from", {"resume"}, NULL},
    {"continue", {"resume"}, NULL},
    {"output", {"run_dir"}, NULL},
    {"output_dir", {"run_dir"}, NULL},
    {"out_dir", {"run_dir"}, NULL},
    {"save_dir", {"run_dir"}, NULL},
    {"log_dir", {"run_dir"}, NULL},
    {"logdir", {"run_dir"}, NULL},
    {"work_dir", {"run_dir"}, NULL},
    {"project", {"run_dir"}, NULL},
    {"experiment", {"run_dir"}, NULL},
    {"name", {"run_dir"}, NULL},
    {"save", {"run_dir"}, NULL},
    {"save_every", {NULL}, SAVING},
    {"save_freq", {NULL}, SAVING},
    {"save_period", {NULL}, SAVING},
    {"print_freq", {"log_every"}, NULL},
    {"log_interval", {"log_every"}, NULL},
    {"eval_interval", {"eval_every"}, NULL},
    {"eval_freq", {"eval_every"}, NULL},
    {"val_interval", {"eval_every"}, NULL},
    {"wandb", {NULL}, LOGS},
    {"log_wandb", {NULL}, LOGS},
    {"tensorboard", {NULL}, LOGS},
    {"export", {NULL}, EXPORT},
    {"onnx", {NULL}, EXPORT},
    {"torchscript", {NULL}, EXPORT},
    {"cfg", {"config"}, NULL},
    {"yaml", {"config"}, NULL},
    {"hyp", {"config"}, NULL},
    /* what to do */
    {"train", {NULL}, ALWAYS},
    {"mode", {NULL}, "without a mode the program trains; --eval, --predict and others are settings of their own"},
    {"task", {NULL}, "train_vit classifies, train_detr detects, and train_ar models bytes"},
    {"val", {"eval"}, NULL},
    {"test", {"eval"}, NULL},
    {"test_only", {"eval"}, NULL},
    {"eval_only", {"eval"}, NULL},
    {"evaluate", {"eval"}, NULL},
    {"validate", {"eval"}, NULL},
    {"predict", {NULL}, "train_ar draws what its model describes: --sample, --complete and --prompt"},
    {"infer", {"predict", "sample"}, NULL},
    {"inference", {"predict", "sample"}, NULL},
    {"classify", {"predict"}, "this program does not classify; train_vit does"},
    {"detect", {"predict"}, "this program does not detect; train_detr does"},
    {"generate", {"sample"}, DRAWING},
    {"num_samples", {"sample"}, DRAWING},
    {"max_new_tokens", {"length"}, DRAWING},
    {"start", {"prompt"}, DRAWING},
    {"summary", {"describe"}, NULL},
    {"flops", {"describe"}, NULL},
    {"params", {"describe"}, NULL},
    {"dry_run", {"describe"}, NULL},
    {"benchmark", {"bench"}, NULL},
    {"profile", {"bench"}, NULL},
    {"verbose", {NULL}, "progress is always shown on a terminal; --log-every sets how often log.csv gets a row"},
    {"quiet", {NULL}, "standard output can be led to a file or to /dev/null; warnings go to standard error"},
};

static bool is_setting(const Config *config, const char *name) {
    for (int i = 0; i < config->count; i++)
        if (!strcmp(config_name(config, i), name)) return true;
    return false;
}

static bool same_word(const char *a, const char *b) {
    for (; *a && *b; a++, b++)
        if (*a != (*b == '-' ? '_' : *b)) return false;
    return *a == *b;
}

const char *foreign_name_at(int i) { return i < (int)(sizeof names / sizeof *names) ? names[i].name : NULL; }

const char *foreign_name(const Config *config, const char *name, const char **setting) {
    *setting = NULL;
    for (int i = 0; foreign_name_at(i); i++) {
        if (!same_word(names[i].name, name)) continue;
        for (int k = 0; k < 3 && names[i].settings[k]; k++) {
            if (!is_setting(config, names[i].settings[k])) continue;
            *setting = names[i].settings[k];
            return NULL;
        }
        return names[i].sentence;
    }
    return NULL;
}
