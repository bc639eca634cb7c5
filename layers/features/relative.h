/* Relative position encodings of linear attention.  Each transforms q and k before the feature map (`code`) or the
 * features after it (`features`).  A new one needs a file that ends in a const RelativeKind, a line in relative.c, and
 * a fixture. */
#ifndef VIT_LAYERS_FEATURES_RELATIVE_H
#define VIT_LAYERS_FEATURES_RELATIVE_H

#include "layers/attention.h"

typedef struct Relative Relative;

typedef struct RelativeKind {
    const char *name, *summary, *paper; /* begins like ConfigChoice; paper NULL: none */
    bool numerator; /* the numerator has positions; the denominator uses the features without them */
    void (*declare)(Relative *r, const Attention *a, Params *params);
    void (*plan)(Relative *r, const Attention *a, Plan *plan, int B);
    void (*draw)(const Relative *r, const Attention *a, uint64_t seed, uint32_t step); /* as FeatureMapKind's */
    /* These compute coded from qkv before the feature map, and the q and k thirds of dqkv from dcoded.  NULL: q and k
     * stay as they are. */
    void (*code)(const Relative *r, const Attention *a, const real *qkv, int B);
    void (*code_backward)(const Relative *r, const Attention *a, real *dqkv, const real *qkv, int B);
    /* These compute psi from phi after the feature map, and dphi from dpsi.  NULL: the features stay as they are. */
    void (*features)(const Relative *r, const Attention *a, const real *phi, int B);
    void (*features_backward)(const Relative *r, const Attention *a, real *dphi, int B);
    size_t (*macs)(const Relative *r, const Attention *a);
} RelativeKind;

struct Relative {
    const RelativeKind *kind;
    int F;                  /* number of features of the feature map */
    real *coded, *dcoded;   /* [B,N,3,H,D] kept, scratch: encoded q and k; the v third is not used */
    real *psi, *dpsi;       /* [B,N,2,H,F] kept, scratch: encoded features */
    float *rotations;       /* [N,F/2,2] kept: rope's cosines and sines */
    float *permutation;     /* [H,F] buffer */
    int *order;             /* [H,N,F] kept: powers of the permutation (permute_table) */
    float *freqs, *dfreqs, *offsets, *doffsets, *gains, *dgains; /* [H,D,K] sincspe */
    float *wq, *dwq, *wk, *dwk;                                  /* [H,D,K] convspe */
    float *gate, *dgate;                                         /* [H,D] sincspe and convspe */
    float *noise, *noise_host; /* buffer: sincspe's z [H,D,2K,D], convspe's x [H,D,N+K-1,D] */
    float *common, *common_host; /* [H,D,D] buffer: e of sincspe and convspe */
};

/* All kinds, NULL-terminated, and the setting that chooses one.  In a program without that setting (train_detr) there
 * are no relative positions. */
extern const RelativeKind *const relative_kinds[];
typedef struct {
    const RelativeKind *relative;
} RelativeSettings;
extern const ConfigGroup relative_settings;

void relative_declare(Relative *r, const Attention *a, Params *params, int F);
/* Scratch is valid until the caller's plan_release. */
void relative_plan(Relative *r, const Attention *a, Plan *plan, int B);
void relative_draw(const Relative *r, const Attention *a, uint64_t seed, uint32_t step);
/* The input of the feature map: qkv, or coded after computing it.  The input of the attention: phi, or psi after
 * computing it. */
const real *relative_code(const Relative *r, const Attention *a, const real *qkv, int B);
const real *relative_features(const Relative *r, const Attention *a, const real *phi, int B);
/* Where the gradients of these inputs must be written: dphi or dpsi, dqkv or dcoded. */
real *relative_features_slot(const Relative *r, real *dphi);
real *relative_code_slot(const Relative *r, real *dqkv);
/* These compute from them the gradients dphi and dqkv (=);  parameters (+=). */
void relative_features_backward(const Relative *r, const Attention *a, real *dphi, int B);
void relative_code_backward(const Relative *r, const Attention *a, real *dqkv, const real *qkv, int B);
size_t relative_macs(const Relative *r, const Attention *a);

#endif
