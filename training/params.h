/* The parameter arena: every learnable tensor is declared once - name, shape, initialisation, weight decay - and that
 * table determines memory, views, AdamW groups, clipping, all-reduce ranges, checkpoint entries and --describe.
 * Gradients, moments and the EMA use the same offsets, so updates are loops over flat float32 memory.
 * A buffer is a tensor of the same arena that is drawn at random instead of learned: random features, codes,
 * permutations. */
#ifndef VIT_TRAINING_PARAMS_H
#define VIT_TRAINING_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/tokens/grid.h"
#include "kernels/training/optimizer.h"

enum { PARAM_MAX_DIMS = 5, PARAM_NAME_SIZE = 96 };

typedef enum {
    INIT_ZEROS,
    INIT_ONES,
    INIT_TRUNC_NORMAL,   /* std TRUNC_NORMAL_STD, cut off at +-2 (as in timm, the absolute value 2, not 2 standard deviations) */
    INIT_NORMAL,         /* standard normal */
    INIT_XAVIER_UNIFORM, /* bound sqrt(6 / (fan in + fan out)) of an [out,in] matrix, or of each one in a stack */
    INIT_FAN_IN_UNIFORM, /* bound 1/sqrt(fan): as PyTorch's Conv2d; for a bias, fan is Param.fan */
    INIT_KAIMING_NORMAL  /* standard normal times sqrt(2 / fan): as torchvision's convolutions; fan is Param.fan */
} ParamInit;

#define TRUNC_NORMAL_STD 0.02f

typedef struct Param Param;

/* A layer's own initialisation of a tensor: x [p->size], in host memory, holds the values drawn by the tensor's
 * ParamInit and is changed in place.  Random numbers come from the stream (seed, RNG_INIT, tensor, 0). */
typedef void (*ParamDraw)(float *x, const Param *p, uint64_t seed, uint32_t tensor);

/* Describes a tensor that has values for every position of a grid, such as a position embedding.  With axes = 1 the
 * positions lie along dimension `axis`, row by row, after `prefix` entries that are not on the grid; with axes = 2 they
 * lie along `axis` and the next dimension. */
typedef struct {
    int axis, axes, prefix; /* axes 0: the tensor is not on a grid */
    Grid positions;
} ParamGrid;

/* How a tensor of a model of clips is made from that of an image model (layers/vit/inflate.h). */
typedef enum {
    TIME_NONE,        /* it is the same */
    TIME_TAPS,        /* sums over neighbouring frames */
    TIME_TORUS,       /* a table of offsets around the clip */
    TIME_CIRCLE,      /* a table of offsets around the circle of its tokens */
    TIME_TOEPLITZ,    /* a table of all offsets */
    TIME_FREQUENCIES, /* a filter of frequencies in time */
    TIME_COPIES,      /* values for places or offsets that are not summed over */
    TIME_ADDED        /* features of time, after `prefix` others, which have no weight yet */
} TimeRule;

/* Time is the slowest part of dimension `axis`, or that whole dimension where time has its own: `count` slices, after
 * `prefix` entries without a frame.  A tensor of one slice or none has no axis of time, whatever its rule. */
typedef struct {
    TimeRule rule;
    int axis, count, prefix;
    bool apart;
} ParamTime;

/* The methods of resampling a table to a grid of another size, each equal to a function of PyTorch. */
typedef enum {
    RESAMPLED_ANTIALIASED, /* bicubic, antialias=True: timm's position embeddings */
    RESAMPLED_BICUBIC,     /* bicubic without it: the relative position biases of Swin's own program */
    RESAMPLED_BILINEAR,    /* bilinear without it: PVT's positions */
    RESAMPLED_GEOMETRIC    /* timm's resize_rel_pos_bias_table for relative position biases */
} Resampled;

/* The setting that determines a tensor's shape, for messages, and its value in this stage (-1: in all stages). */
typedef struct {
    const char *name; /* NULL: none */
    double value;
    int stage;
} ParamSetting;

/* A tensor.  A layer declares it with a literal of the fields in the first part; fields that are left out are 0. */
struct Param {
    float **value, **grad; /* addresses of the layer's pointers, set by params_allocate and params_view; a buffer has no
                            * gradient */
    const char *named[3];  /* its name in parts: {"blocks.3.attn.", "qkv", ".weight"} */
    int shape[PARAM_MAX_DIMS]; /* a dimension declared as 0 is left out, such as that of the frames of an image */
    ParamInit init;
    int fan;        /* for INIT_FAN_IN_UNIFORM and INIT_KAIMING_NORMAL */
    int groups;     /* of a convolution, for params_start_fan_out; 0 means 1 */
    float gain;     /* factor of the values that `init` draws; a declared 0 means 1 */
    ParamDraw draw; /* NULL: only `init` */
    bool decay;     /* weight decay applies to it */
    bool frozen;    /* it is a buffer: stored and loaded like parameters, but never trained and not counted as one; its
                     * gradient stays zero, so that the optimizer and clipping do not see it, and the EMA copies it */
    float **host;   /* a buffer's: the layer's pointer to host memory of the same size, in which it prepares the data that
                     * it uploads to *value; NULL: it needs none */
    ParamGrid grid; /* weights trained at another image size are resampled on it */
    Resampled resampled;
    Grid tokens; /* of a table of offsets within windows: the tokens of the whole grid.  If they are equal, a window of
                  * another size is a mistake, not another resolution. */
    ParamTime time;
    ParamSetting from;

    char name[PARAM_NAME_SIZE]; /* the whole name, as in timm: blocks.3.attn.qkv.weight */
    int ndim;                   /* of shape, which begins with the dimensions that are not left out */
    size_t offset, size;        /* in floats; the offset is the same in every arena */
    float rate;                 /* factor of the learning rate, 1 unless params_set_rate says otherwise */
    float *staging;             /* the memory that *host points to */
};

typedef struct {
    Param *items; /* [count], private to training/params.c: use params_at elsewhere */
    int count;
    size_t room;        /* of items */
    size_t total;       /* floats in one arena; each tensor starts on a 64-byte boundary, the gaps stay zero */
    size_t parameters;  /* number of learned floats, without gaps and buffers */
    float *values, *grads;    /* device memory */
    float *exp_avg, *exp_avg_sq; /* AdamW's moments, NULL before params_allocate_optimizer */
    float *ema;               /* NULL without EMA */
    StepStats *step_stats;    /* device memory: the loss and the gradient norm of the current step */
    uint8_t *kinds;           /* device memory: how the optimizer treats each ARENA_PIECE floats */
    float rates[PIECE_RATES]; /* the distinct values of Param.rate; `kinds` has their indices */
    int rate_count;
} Params;

/* Adds a tensor to the arena; params_allocate sets its *value and *grad.  Example:
 *     params_declare(params, (Param){.value = &w, .grad = &dw, .named = {prefix, "qkv.weight"},
 *                                    .init = INIT_TRUNC_NORMAL, .decay = true, .shape = {3 * M, M}}); */
void params_declare(Params *params, Param tensor);

/* Sets the gain of the tensor `prefix` + `name`: its initial values are `gain` times what its ParamInit draws.  Does
 * nothing if there is no such tensor. */
void params_start_scaled(Params *params, const char *prefix, const char *name, float gain);

/* Gives the convolutions among the tensors from index `first` on PVTv2's initial values instead of INIT_FAN_IN_UNIFORM:
 * normal with variance 2 / (k k out / groups), and zero biases. */
void params_start_fan_out(Params *params, int first);

/* Turns weight decay on for all learned tensors from index `first` on. */
void params_decay_from(Params *params, int first);

/* Sets Param.rate of tensor i, and of all tensors in the first `floats` floats of the arena.  There can be PIECE_RATES
 * different factors.  Call before params_allocate_optimizer. */
void params_set_rate(Params *params, int i, float rate);
void params_set_rate_below(Params *params, size_t floats, float rate);

/* Allocates values and (if training) gradients on the device, zeroed, and fills all views. */
void params_allocate(Params *params, bool training);

/* Allocates the moments, and the EMA if asked for, zeroed (the caller copies the initial EMA), and records for
 * the optimizer which tensors have weight decay, which are frozen, and the factors of their learning rates. */
void params_allocate_optimizer(Params *params, bool ema);

/* Points every layer's *value into `arena` (values or ema): evaluation with the EMA weights needs no copy. */
void params_view(Params *params, float *arena);

/* Initialises every tensor from (seed, tensor index), independently of threads, ranks and the other tensors. */
void params_initialize(Params *params, uint64_t seed);

/* Writes the values that params_initialize gives tensor p to host [p->size], in host memory. */
void params_draw(const Params *params, const Param *p, uint64_t seed, float *host);

/* The first tensor of `arena` (values or ema) with an infinity or a NaN, which is put into *value, or NULL. */
const Param *params_not_finite(const Params *params, const float *arena, float *value);

/* The number of declared tensors, and tensor i of them; order of declaration, which is also the arena's. */
int params_count(const Params *params);
const Param *params_at(const Params *params, int i);

/* Number of floats in the learned tensors whose names begin with `prefix`. */
size_t params_size_of(const Params *params, const char *prefix);

/* The tensor of that name, or NULL. */
const Param *params_find(const Params *params, const char *name);

void params_free(Params *params);

#endif
