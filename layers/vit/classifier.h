/* The head: pooled features [n,M] -> logits [n,C].
 *   linear  one linear layer, as in DeiT
 *   mlp     fc2(norm(gelu(fc1 x))), 4 M wide, as in MetaFormer and in LiSA's Table 5
 *   tanh    fc2(tanh(fc1 x)), M wide, as in ViT's pre-training */
#ifndef VIT_LAYERS_VIT_CLASSIFIER_H
#define VIT_LAYERS_VIT_CLASSIFIER_H

#include "training/plan.h"
#include "layers/layer_norm.h"
#include "layers/projection.h"

typedef enum { HEAD_LINEAR, HEAD_MLP, HEAD_TANH } HeadKind;

/* The words of the setting's CONFIG_CHOICES, in the order of HeadKind. */
#define HEAD_KINDS "linear", "mlp", "tanh"

typedef struct {
    HeadKind kind;
    Projection fc1, out; /* fc1 unless linear */
    NormLayer norm;      /* mlp only */
    real *a, *g, *h;     /* [n,hidden] kept: fc1's output, the activation's, the norm's */
    real *dh, *dg;       /* [n,hidden] scratch */
} Classifier;

/* Declares `linear` + ".weight" and ".bias" (timm's "head" or "head.fc"), or "head.fc1.*", "head.norm.*" (mlp) and
 * "head.fc2.*". */
void classifier_declare(Classifier *c, Params *params, HeadKind kind, const char *linear, int dim, int classes);
void classifier_plan(Classifier *c, Plan *plan, size_t n);
void classifier_forward(const Classifier *c, real *logits, const real *x, size_t n);
/* dx (=), parameters (+=). */
void classifier_backward(const Classifier *c, real *dx, const real *dlogits, const real *x, size_t n);
size_t classifier_macs(const Classifier *c, size_t n);

#endif
