/* Three linear layers with ReLU between them.  x [n,dim] -> y [n,out]
 * forward   hidden_1 = relu(x W1^T + b1), hidden_2 = relu(hidden_1 W2^T + b2), y = hidden_2 W3^T + b3
 * backward  the same steps in reverse
 * saves     hidden_1 and hidden_2. */
#include "layers/detr/perceptron.h"

#include <stdio.h>

enum { HIDDEN_LAYERS = PERCEPTRON_LAYERS - 1 };

void perceptron_declare(Perceptron *p, Params *params, const char *prefix, int dim, int out, ParamInit weight) {
    for (int i = 0; i < PERCEPTRON_LAYERS; i++) {
        char name[PARAM_NAME_SIZE];
        snprintf(name, sizeof name, "layers.%d.", i);
        projection_declare_as(&p->layers[i], params, prefix, name, dim, i < HIDDEN_LAYERS ? dim : out, weight,
                              INIT_FAN_IN_UNIFORM);
    }
}

void perceptron_plan(Perceptron *p, Plan *plan, const char *prefix, size_t n) {
    size_t bytes = n * (size_t)p->layers[0].out * sizeof(real);
    for (int i = 0; i < HIDDEN_LAYERS; i++) {
        plan_pair(plan, prefix, "hidden", &p->hidden[i], &p->dhidden[i], bytes);
    }
}

void perceptron_forward(const Perceptron *p, real *y, const real *x, size_t n) {
    const Dropout none = {0};
    for (int i = 0; i < HIDDEN_LAYERS; i++) {
        projection_forward(&p->layers[i], p->hidden[i], x, n);
        relu_dropout_forward(p->hidden[i], p->hidden[i], &none, 1, n * (size_t)p->layers[i].out);
        x = p->hidden[i];
    }
    projection_forward(&p->layers[HIDDEN_LAYERS], y, x, n);
}

void perceptron_backward(const Perceptron *p, real *dx, const real *dy, const real *x, size_t n) {
    for (int i = HIDDEN_LAYERS; i > 0; i--) {
        projection_backward(&p->layers[i], p->dhidden[i - 1], dy, p->hidden[i - 1], n);
        relu_dropout_backward(p->dhidden[i - 1], p->dhidden[i - 1], p->hidden[i - 1], 0,
                              n * (size_t)p->layers[i].in);
        dy = p->dhidden[i - 1];
    }
    projection_backward(&p->layers[0], dx, dy, x, n);
}

size_t perceptron_macs(const Perceptron *p, size_t n) {
    size_t macs = 0;
    for (int i = 0; i < PERCEPTRON_LAYERS; i++) macs += projection_macs(&p->layers[i], n);
    return macs;
}
