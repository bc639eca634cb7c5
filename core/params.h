/* The parameter arena: every learnable tensor is declared once - name, shape, initialisation, decays or not - and from
 * that table come memory, views, AdamW groups, clipping, all-reduce ranges, checkpoint entries and --describe.
 * Gradients, moments and the EMA mirror its offsets, so they are loops over flat float32 memory.
 * A buffer is a tensor of the same arena that is drawn instead of learned: random features, codes, permutations. */
#ifndef VIT_CORE_PARAMS_H
#define VIT_CORE_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/grid.h"

enum { PARAM_MAX_DIMS = 4, PARAM_NAME_SIZE = 64 };

typedef enum {
    INIT_ZEROS,
    INIT_ONES,
    INIT_TRUNC_NORMAL,   /* std 0.02, cut at +-2 (timm's bounds are values, not deviations) */
    INIT_NORMAL,         /* standard normal */
    INIT_XAVIER_UNIFORM, /* bound sqrt(6 / (fan in + fan out)) of a [out,in] matrix, or of each of several */
    INIT_FAN_IN_UNIFORM, /* bound 1/sqrt(fan): PyTorch's Conv2d; for a bias the fan is given in Param.fan */
    INIT_KAIMING_NORMAL  /* standard normal times sqrt(2 / fan): torchvision's convolutions, the fan in Param.fan */
} ParamInit;

typedef struct Param Param;

/* How a layer starts a tensor in a way of its own: x [p->size], host memory, holds what the tensor's ParamInit drew and
 * is changed in place.  Random numbers are elements of the stream (seed, RNG_INIT, tensor, 0). */
typedef void (*ParamDraw)(float *x, const Param *p, uint64_t seed, uint32_t tensor);

/* A tensor that has numbers for every position of a grid.  They lie along dimension `axis`, rows one after another and
 * behind `prefix` positions that are not on the grid, or with axes = 2 along `axis` and the dimension after it. */
typedef struct {
    int axis, axes, prefix; /* axes 0: no such tensor */
    Grid positions;
} ParamGrid;

struct Param {
    char name[PARAM_NAME_SIZE]; /* timm's: blocks.3.attn.qkv.weight */
    int shape[PARAM_MAX_DIMS], ndim;
    size_t offset, size; /* in floats, into every arena that mirrors the table */
    ParamInit init;
    int fan; /* for INIT_FAN_IN_UNIFORM and INIT_KAIMING_NORMAL */
    float gain;     /* of what `init` draws; 1 */
    ParamDraw draw; /* NULL: `init` says it all */
    ParamGrid grid;
    bool decay;
    bool slow;   /* AdamW.slow times the learning rate; to be set before params_allocate_optimizer */
    bool frozen; /* a buffer: stored and loaded like the others, but never trained, and no parameter */
    float **value, **grad; /* where the layer keeps its views; filled by params_allocate and params_view */
    float **host, *staging; /* buffers: host memory of the same size, and where the layer keeps its view of that */
};

typedef struct {
    Param *items; /* [count], for core/params.c alone: others ask params_at */
    int count, capacity;
    size_t total;       /* floats in one arena; each tensor starts on a 64-byte boundary, the gaps stay zero */
    size_t parameters;  /* floats that are parameters: no gaps, no buffers */
    float *values, *grads;    /* device memory */
    float *exp_avg, *exp_avg_sq; /* AdamW's moments, NULL before params_allocate_optimizer */
    float *ema;               /* NULL without EMA */
    uint8_t *kinds;           /* device: what the optimizer does with each ARENA_PIECE floats */
} Params;

/* Declares the tensor `prefix` + `name` ("blocks.3.attn." + "qkv.weight").  *value and *grad point to it from
 * params_allocate on.  Matrices and higher decay unless the name says otherwise through `decay`. */
void params_declare(Params *params, float **value, float **grad, const char *prefix, const char *name, ParamInit init,
                    bool decay, int ndim, const int *shape);

/* The same, with INIT_FAN_IN_UNIFORM and its fan. */
void params_declare_fan(Params *params, float **value, float **grad, const char *prefix, const char *name, int fan,
                        bool decay, int ndim, const int *shape);

/* The fan of the tensor declared last. */
void params_set_fan(Params *params, int fan);

/* The tensor declared last starts as `fill` leaves it. */
void params_draw_with(Params *params, ParamDraw fill);

/* The values that `prefix` + `name` starts with are `gain` times what its ParamInit draws; nothing where there is no
 * such tensor. */
void params_start_scaled(Params *params, const char *prefix, const char *name, float gain);

/* The tensor declared last lies on a grid: weights of a model for images of another size can be resampled. */
void params_on_grid(Params *params, ParamGrid grid);

/* The learned tensors from number `first` on decay. */
void params_decay_from(Params *params, int first);

/* The tensors that lie in the first `floats` floats of the arena are slow, the others are not. */
void params_slow_below(Params *params, size_t floats);

/* Declares a buffer.  Its gradient stays zero, so that the optimizer and clipping do not see it; the EMA copies it.
 * host, where it is not NULL, becomes a view of host memory in which the layer prepares what it uploads to *value. */
void params_declare_buffer(Params *params, float **value, float **host, const char *prefix, const char *name,
                           ParamInit init, int ndim, const int *shape);

/* Allocates values and (if training) gradients on the device, zeroed, and fills all views. */
void params_allocate(Params *params, bool training);

/* Allocates the moments, and the EMA if asked for, zeroed (the EMA starts as a copy by the caller), and tells the
 * optimizer which tensors decay and which are frozen. */
void params_allocate_optimizer(Params *params, bool ema);

/* Points every layer's *value into `arena` (values or ema): evaluation under the EMA costs no copy. */
void params_view(Params *params, float *arena);

/* Draws every tensor from (seed, tensor index); independent of threads, ranks and of the other tensors. */
void params_initialize(Params *params, uint64_t seed);

/* What params_initialize gives that one tensor, to host memory [p->size]. */
void params_draw(const Params *params, const Param *p, uint64_t seed, float *host);

/* The first tensor of `arena` (values or ema) that holds an infinity or a NaN, or NULL. */
const Param *params_not_finite(const Params *params, const float *arena);

/* How many tensors are declared, and tensor number i of them, in the order of declaration and of the arena. */
int params_count(const Params *params);
const Param *params_at(const Params *params, int i);

/* Floats of the learned tensors whose names begin with `prefix`. */
size_t params_size_of(const Params *params, const char *prefix);

/* The tensor of that name, or NULL. */
const Param *params_find(const Params *params, const char *name);

void params_free(Params *params);

#endif
