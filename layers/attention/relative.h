/* Relative positions in linear attention: maps of q and k that stand before the feature map, or of the features.
 * Adding one is a file that ends in a const RelativeKind, a line in relative.c, and a fixture. */
#ifndef VIT_LAYERS_RELATIVE_H
#define VIT_LAYERS_RELATIVE_H

#include "layers/attention/attention.h"

typedef struct Relative Relative;

typedef struct RelativeKind {
    const char *name, *summary;
    bool numerator; /* the denominator keeps the features as they were */
    void (*declare)(Relative *r, const Attention *a, Params *params);
    void (*plan)(Relative *r, const Attention *a, Plan *plan, int B);
    void (*draw)(const Relative *r, const Attention *a, uint64_t seed, uint32_t step); /* as FeatureMapKind's */
    /* Before the feature map: coded from qkv, and the q and k thirds of dqkv from dcoded.  NULL: they stay. */
    void (*code)(const Relative *r, const Attention *a, const real *qkv, int B);
    void (*code_backward)(const Relative *r, const Attention *a, real *dqkv, const real *qkv, int B);
    /* After it: turned from phi, and dphi from dturned.  NULL: they stay. */
    void (*turn)(const Relative *r, const Attention *a, const real *phi, int B);
    void (*turn_backward)(const Relative *r, const Attention *a, real *dphi, int B);
    size_t (*macs)(const Relative *r, const Attention *a);
} RelativeKind;

struct Relative {
    const RelativeKind *kind;
    int F;                  /* features of the map between the two */
    real *coded, *dcoded;   /* [B,N,3,H,D] kept, scratch; v is not there */
    real *turned, *dturned; /* [B,N,2,H,F] kept, scratch */
    float *turns;           /* [N,F/2,2] kept: rope's cosines and sines */
    float *permutation;     /* [H,F] buffer */
    int *order;             /* [H,N,F] kept: its powers */
    float *freqs, *dfreqs, *offsets, *doffsets, *gains, *dgains; /* [H,D,K] sincspe */
    float *wq, *dwq, *wk, *dwk;                                  /* [H,D,K] convspe */
    float *gate, *dgate;                                         /* [H,D] both */
    float *noise, *noise_host; /* buffer: sincspe's z [H,D,2K,D], convspe's x [H,D,N+K-1,D] */
    float *common, *common_host; /* [H,D,D] buffer: e of both */
};

/* The table, NULL-terminated, and the setting that chooses from it; without that, as in a detector, there is none. */
extern const RelativeKind *const relative_kinds[];
typedef struct {
    const RelativeKind *relative;
} RelativeSettings;
extern const ConfigGroup relative_settings;

void relative_declare(Relative *r, const Attention *a, Params *params, int F);
/* Scratch lives until the caller's plan_release. */
void relative_plan(Relative *r, const Attention *a, Plan *plan, int B);
void relative_draw(const Relative *r, const Attention *a, uint64_t seed, uint32_t step);
/* What the feature map reads, qkv itself or coded, and what attention reads, phi itself or turned. */
const real *relative_code(const Relative *r, const Attention *a, const real *qkv, int B);
const real *relative_turn(const Relative *r, const Attention *a, const real *phi, int B);
/* Where their gradients belong: dphi or dturned, dqkv or dcoded ... */
real *relative_turn_slot(const Relative *r, real *dphi);
real *relative_code_slot(const Relative *r, real *dqkv);
/* ... and their way back to dphi and to dqkv; parameters (+=). */
void relative_turn_backward(const Relative *r, const Attention *a, real *dphi, int B);
void relative_code_backward(const Relative *r, const Attention *a, real *dqkv, const real *qkv, int B);
size_t relative_macs(const Relative *r, const Attention *a);

#endif
