/* A feature pyramid (Lin et al. 2017): the four features of a backbone, C2 .. C5 at strides 4 to 32, become maps with
 * the same number of channels.
 *   forward   L_i = lateral_i(C_i), a 1 x 1 convolution;  M_5 = L_5;  M_i = L_i + M_(i+1), each value of which is used
 *             for 2 x 2;  P_i = output_i(M_i), a 3 x 3 convolution;  P_6 = P_5 at even rows and columns
 * Level 0 of the arrays is P2.  The batch's H and W are multiples of 32 and may change from call to call. */
#ifndef VIT_LAYERS_PYRAMID_FPN_H
#define VIT_LAYERS_PYRAMID_FPN_H

#include "layers/pyramid/conv_layer.h"

enum { FPN_FEATURES = 4, FPN_LEVELS = 5 };

typedef struct {
    const char *prefix;
    const char *lateral[2], *output[2]; /* the parts of a convolution's name before and after the level's number */
    int in[FPN_FEATURES], channels;
    bool coarsest; /* there is a P6 */
} FpnConfig;

typedef struct {
    FpnConfig config;
    ConvLayer lateral[FPN_FEATURES], output[FPN_FEATURES];
    size_t room;              /* pixels of the largest batch */
    real *m[FPN_FEATURES];    /* kept */
    real *p[FPN_LEVELS];      /* [B,h_i,w_i,channels] */
    real *dp[FPN_LEVELS];     /* scratch for their gradients, which the readers of p fill in */
    real *dm[FPN_FEATURES];   /* scratch */
} Fpn;

void fpn_declare(Fpn *fpn, ConvLayers *convs, Params *params, const FpnConfig *config);

/* Plans activations for up to B images of up to H x W or W x H.  p, and in training dp, are valid until the caller's
 * plan_release. */
void fpn_plan(Fpn *fpn, Plan *plan, int B, int H, int W);

/* Rows or columns of level i for an image with `side` of them; P6 rounds up. */
static inline int fpn_side(int i, int side) { return i < FPN_FEATURES ? side >> (2 + i) : ((side >> 5) + 1) / 2; }
static inline int fpn_levels(const Fpn *fpn) { return fpn->config.coarsest ? FPN_LEVELS : FPN_FEATURES; }

/* features [B,H/4..H/32,W/4..W/32,in_i] -> fpn->p. */
void fpn_forward(const Fpn *fpn, const real *const features[FPN_FEATURES], int B, int H, int W);
/* fpn->dp, which is overwritten -> dfeatures (=) and the gradients of parameters (+=). */
void fpn_backward(const Fpn *fpn, real *const dfeatures[FPN_FEATURES], const real *const features[FPN_FEATURES], int B,
                  int H, int W);

/* Multiply-adds of an image. */
size_t fpn_macs(const Fpn *fpn, int H, int W);

#endif
