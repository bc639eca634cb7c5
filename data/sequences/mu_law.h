/* Sound in 8 bits, by the mu-law formula with mu = 255, without the steps of telephone networks' G.711. */
#ifndef VIT_DATA_SEQUENCES_MU_LAW_H
#define VIT_DATA_SEQUENCES_MU_LAW_H

#include <stdint.h>

/* x in [-1,1], clamped: y = sign(x) ln(1 + 255 |x|) / ln 256, floor((y + 1) / 2 255 + 1/2); 0 becomes 128. */
uint8_t mu_law_encode(double x);

/* y = 2 byte / 255 - 1, x = sign(y) (256^|y| - 1) / 255.  mu_law_encode returns the same byte again. */
double mu_law_decode(uint8_t byte);

#endif
