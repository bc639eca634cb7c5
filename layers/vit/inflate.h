/* Weights of an image model as those of a model of clips (Carreira and Zisserman 2017, I3D).  The rule for a tensor
 * depends on its ParamTime. */
#ifndef VIT_LAYERS_VIT_INFLATE_H
#define VIT_LAYERS_VIT_INFLATE_H

#include "training/params.h"

/* none: the weights are those of a model of clips.  mean: all frames have the same weight, so that for a clip without
 * motion operators have the same results as for its image.  centre: no frame depends on another one, except around
 * LiSA's circle. */
typedef enum { INFLATE_NONE, INFLATE_MEAN, INFLATE_CENTRE } Inflate;
#define INFLATE_KINDS "none", "mean", "centre" /* for CONFIG_CHOICES */

/* The parameter in a model of images that corresponds to p.  Requires p->time.rule. */
Param inflate_flat(const Param *p);

/* Computes `to`, of p's shape, from a tensor with the shape of inflate_flat(p).  Host memory. */
void inflate_tensor(float *to, const Param *p, const float *from, Inflate rule);

#endif
