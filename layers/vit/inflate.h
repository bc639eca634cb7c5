/* Weights of an image model as those of a model of clips (Carreira and Zisserman 2017, I3D).  What a tensor needs
 * depends on its ParamTime. */
#ifndef VIT_LAYERS_VIT_INFLATE_H
#define VIT_LAYERS_VIT_INFLATE_H

#include "training/params.h"

/* none: the weights are of clips already.
 * mean: every frame counts alike: on a clip without motion, operators give what they give on its image.
 * centre: no frame sees another one, except around LiSA's circle. */
typedef enum { INFLATE_NONE, INFLATE_MEAN, INFLATE_CENTRE } Inflate;
#define INFLATE_KINDS "none", "mean", "centre" /* for CONFIG_CHOICES */

/* The parameter that p would be in a model of images.  Requires p->time.rule. */
Param inflate_flat(const Param *p);

/* to, of p's shape, from a tensor of inflate_flat(p)'s.  Host memory. */
void inflate_tensor(float *to, const Param *p, const float *from, Inflate rule);

#endif
