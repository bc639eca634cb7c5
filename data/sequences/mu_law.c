#include "data/sequences/mu_law.h"

#include <math.h>

uint8_t mu_law_encode(double x) {
    double loud = fmin(fabs(x), 1), y = copysign(log1p(255 * loud) / log(256), x);
    return (uint8_t)floor((y + 1) / 2 * 255 + 0.5);
}

double mu_law_decode(uint8_t byte) {
    double y = 2 * byte / 255.0 - 1;
    return copysign(expm1(fabs(y) * log(256)) / 255, y);
}
