#include "core/config/foreign_names.h"

#include <string.h>

#include "core/config/config_parts.h"
#include "core/text.h"

#define SHAPE "models have no names here: a config file or settings describe a model (attn, dim, depth, heads, " \
              "patch_size and so on); configs/ has files for published models"
#define NO_WARMUP "this program has no warm-up"
#define DRAWING "this program does not generate samples; train_ar does, with --sample and --prompt"

/* Names with one meaning, and the settings with this meaning here, separated by spaces.  The first of these settings
 * that the program has is the result; if it has none, the sentence is the answer. */
static const struct {
    const char *names, *settings, *sentence;
} meanings[] = {
    /* where it runs */
    {"gpu gpus cuda cpu device accelerator no_cuda", "",
     "a program runs on the device that it was built for: build/cuda/train_vit on a GPU, which CUDA_VISIBLE_DEVICES "
     "chooses, and build/cpu/train_vit on the CPU (make cuda, make)"},
    {"world_size nproc nproc_per_node distributed local_rank dist_url", "",
     "mpirun -np N starts N processes, which share the batch"},
    {"threads num_threads", "", "OMP_NUM_THREADS sets how many threads compute, and --workers how many load data"},
    {"compile torchcompile", "", "the programs are compiled already, and nothing is compiled while they run"},
    /* precision */
    {"amp bf16 bfloat16", "", "--precision bfloat16 stores activations in bfloat16, and parameters and sums in "
                              "float32"},
    {"amp_dtype mixed_precision dtype", "precision", NULL},
    {"fp16 half", "", "there is no float16: --precision bfloat16 takes as much memory and needs no loss scaling"},
    {"fp32", "", "--precision float32 computes in float32"},
    {"grad_checkpointing gradient_checkpointing use_checkpoint", "recompute",
     "this program has no activation checkpointing; a lower --micro-batch saves memory"},
    /* data */
    {"data_path data_set dataset dataset_name train_data train_dir coco_path", "data", NULL},
    {"source input", "predict data", NULL},
    {"num_workers nb_workers", "workers", NULL},
    {"nb_classes classes", "num_classes", "the number of classes is that of the data"},
    {"pin_mem", "", "batches are always loaded into memory that the device reads directly"},
    /* shape */
    {"model arch model_name", "", SHAPE},
    {"backbone", "backbone_blocks attn", SHAPE},
    {"attention_type attn_type", "attn", NULL},
    {"imgsz img size input_size resolution", "img_size eval_scale image_side", NULL},
    {"image_size", "img_size image_side", NULL},
    {"patch", "patch_size", "this program has no patches"},
    {"num_frames clip_len", "frames", "this program takes no clips; train_vit does"},
    {"embed_dim hidden_dim hidden_size width n_embd", "dim", NULL},
    {"layers num_layers n_layer", "depth encoder_layers", NULL},
    {"enc_layers", "encoder_layers depth", NULL},
    {"dec_layers", "decoder_layers", "this program's models have no decoder"},
    {"num_heads nheads n_head", "heads", NULL},
    {"num_queries", "queries", "this program's models have no queries; train_detr's have"},
    {"dim_feedforward", "ffn mlp_ratio", NULL},
    {"block_size seq_len context_length", "tokens", "the number of tokens follows from the size of the images"},
    {"vocab_size", "vocabulary", "this program reads images"},
    {"global_pool", "pool", "this program's models have no pooling"},
    {"drop drop_rate", "dropout", NULL},
    /* training */
    {"epoch num_epochs num_train_epochs max_epochs", "epochs", NULL},
    {"max_iters max_steps steps iterations", "steps", "the length of training is counted in epochs: --epochs N"},
    {"bs batch batchsize train_batch_size per_device_train_batch_size", "batch_size", NULL},
    {"validation_batch_size", "micro_batch", NULL},
    {"accum_iter accum_steps grad_accum_steps gradient_accumulation_steps update_freq", "",
     "--micro-batch sets how many samples are computed at a time; gradients add up to --batch-size"},
    {"lr0 base_lr blr learning_rate", "lr", NULL},
    {"min_lr", "lr_min", "this program has no setting for the lowest learning rate"},
    {"warmup_lr", "lr_warmup", "this program has no setting for the learning rate at the start of the warm-up"},
    {"warmup warmup_iters", "warmup_epochs warmup_steps", NO_WARMUP},
    {"warmup_steps", "warmup_epochs", NO_WARMUP},
    {"warmup_epochs", "warmup_steps", NO_WARMUP},
    {"sched scheduler lr_scheduler lr_scheduler_type", "lr_schedule lr_decay lr_drop",
     "the learning rate always follows a cosine after a linear warm-up"},
    {"opt optim optimizer", "", "the optimizer is always AdamW (lr, weight_decay, beta1, beta2, eps)"},
    {"momentum", "beta1", NULL},
    {"betas", "", "the decay rates of AdamW's two moments are --beta1 and --beta2"},
    {"opt_eps", "eps", NULL},
    {"wd", "weight_decay", NULL},
    {"clip grad_clip max_norm max_grad_norm clip_max_norm", "clip_grad", NULL},
    {"ema model_ema model_ema_decay", "ema_decay", NULL},
    {"smoothing", "label_smoothing", "this program's loss has no label smoothing"},
    {"no_flip", "", "switch mirroring off with --flip false"},
    {"hflip fliplr horizontal_flip", "flip", "this program changes no data while it trains"},
    {"randaugment rand_augment auto_augment", "aa", "this program has no RandAugment; train_vit has"},
    {"jitter colour_jitter", "color_jitter", "this program has no colour jitter; train_vit has"},
    {"random_erasing", "reprob", "this program has no random erasing; train_vit has"},
    {"no_aug", "", "each augmentation has a setting, such as --flip false; --help augmentation lists them"},
    {"random_seed", "seed", NULL},
    /* weights and files */
    {"pretrained finetune weights load checkpoint ckpt initial_checkpoint model_path", "init",
     "--init loads safetensors files, which scripts/convert_weights.py makes from PyTorch's"},
    {"start_epoch resume_from continue", "resume", NULL},
    {"output output_dir out_dir save_dir log_dir logdir work_dir project experiment name save", "run_dir", NULL},
    {"save_every save_freq save_period", "",
     "the state is saved after every epoch and when the program is interrupted"},
    {"print_freq log_interval", "log_every", NULL},
    {"eval_interval eval_freq val_interval", "eval_every", NULL},
    {"wandb log_wandb tensorboard", "",
     "the run's folder has report.html, and a log.csv that scripts/plots/log_to_tensorboard.py reads"},
    {"export onnx torchscript", "",
     "checkpoints are safetensors files with timm's names, which timm and PyTorch read as they are"},
    {"cfg yaml hyp", "config", NULL},
    /* what to do */
    {"train", "", "training needs no such setting: without a mode such as --eval the program trains"},
    {"mode", "", "without a mode the program trains; --eval, --predict and others are settings of their own"},
    {"task", "", "train_vit classifies, train_detr detects, and train_ar models bytes"},
    {"val test test_only eval_only evaluate validate", "eval", NULL},
    {"predict", "", "train_ar samples from its model: --sample, --complete and --prompt"},
    {"infer inference", "predict sample", NULL},
    {"classify", "predict", "this program does not classify; train_vit does"},
    {"detect", "predict", "this program does not detect; train_detr does"},
    {"generate num_samples", "sample", DRAWING},
    {"max_new_tokens", "length", DRAWING},
    {"start", "prompt", DRAWING},
    {"summary flops params dry_run", "describe", NULL},
    {"benchmark profile", "bench", NULL},
    {"verbose", "", "progress is always shown on a terminal; --log-every sets how often log.csv gets a row"},
    {"quiet", "", "standard output can be redirected to a file or to /dev/null; warnings go to standard error"},
};
enum { MEANINGS = sizeof meanings / sizeof *meanings };

/* The first of these settings that the config has, or NULL. */
static const char *first_setting(const Config *config, const char *settings) {
    for (size_t length; *settings; settings += length + (settings[length] == ' ')) {
        length = strcspn(settings, " ");
        int i = config_find(config, settings, length);
        if (i >= 0) return config_name(config, i);
    }
    return NULL;
}

const char *foreign_name(const Config *config, const char *name, const char **setting) {
    char word[32];
    snprintf(word, sizeof word, "%s", name);
    for (char *c = word; *c; c++)
        if (*c == '-') *c = '_';
    *setting = NULL;
    for (int i = 0; i < MEANINGS; i++) {
        if (!text_lists(meanings[i].names, word)) continue;
        *setting = first_setting(config, meanings[i].settings);
        return *setting ? NULL : meanings[i].sentence;
    }
    return NULL;
}

const char *foreign_names_at(int i) { return i < MEANINGS ? meanings[i].names : NULL; }
