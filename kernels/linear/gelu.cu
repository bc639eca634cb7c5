/* The exact Gaussian error linear unit as a separate kernel. */
#include "kernels/linear/activation.cuh"
#include "kernels/linear/gelu.cuh"
#include "kernels/linear/elementwise.h"

namespace {
struct Gelu {
    DEVICE float value(float x) { return gelu(x); }
    DEVICE void gradient(float &dx, float &y, float dy, float x) { gelu_gradient(dx, y, dy, x); }
};
} // namespace

void gelu_forward(real *y, const real *x, size_t n) { activation_forward<Gelu>(y, x, n); }

void gelu_backward(real *dx, real *y, const real *dy, const real *x, size_t n) {
    activation_backward<Gelu>(dx, y, dy, x, n);
}
