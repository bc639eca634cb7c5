/* Three linear layers with ReLU between them, as in DETR's box head.  x [n,dim] -> y [n,out] */
#ifndef VIT_LAYERS_DETR_PERCEPTRON_H
#define VIT_LAYERS_DETR_PERCEPTRON_H

#include "training/plan.h"
#include "layers/projection.h"

enum { PERCEPTRON_LAYERS = 3 };

typedef struct {
    Projection layers[PERCEPTRON_LAYERS];
    real *hidden[PERCEPTRON_LAYERS - 1]; /* kept, after ReLU */
    real *dhidden[PERCEPTRON_LAYERS - 1]; /* scratch */
} Perceptron;

void perceptron_declare(Perceptron *p, Params *params, const char *prefix, int dim, int out, ParamInit weight);
/* dhidden is valid until the caller's plan_release. */
void perceptron_plan(Perceptron *p, Plan *plan, const char *prefix, size_t n);
void perceptron_forward(const Perceptron *p, real *y, const real *x, size_t n);
/* dx (=);  parameters (+=). */
void perceptron_backward(const Perceptron *p, real *dx, const real *dy, const real *x, size_t n);
size_t perceptron_macs(const Perceptron *p, size_t n);

#endif
