/* y = x sigmoid(1.702 x); kernels/linear/sigmoid_gelu.c has the formulas.  One exponential and one reciprocal each. */
#include "kernels/linear/activation.cuh"
#include "kernels/linear/elementwise.h"

namespace {
struct SigmoidGelu {
    DEVICE float sigmoid_of(float x) { return fast_reciprocal(1 + fast_exp2(-1.702f * 1.44269504f * x)); }
    DEVICE float value(float x) { return x * sigmoid_of(x); }
    DEVICE void gradient(float &dx, float &y, float dy, float x) {
        float s = sigmoid_of(x);
        y = x * s;
        dx = dy * fmaf(1.702f * y, 1 - s, s);
    }
};
} // namespace

void sigmoid_gelu_forward(real *y, const real *x, size_t n) { activation_forward<SigmoidGelu>(y, x, n); }

void sigmoid_gelu_backward(real *dx, real *y, const real *dy, const real *x, size_t n) {
    activation_backward<SigmoidGelu>(dx, y, dy, x, n);
}
