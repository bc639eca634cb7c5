/* A tensor of a model of clips is [outer, T slices, inner]; each slice is the image's tensor times a factor:
 *                       mean                  centre
 *   taps in time        1/T                   1 in the middle
 *   torus, circle       1/T                   1 for dt = 0
 *   toeplitz            1/T', T = 2 T' - 1    1 for dt = 0, in the middle
 *   frequencies         1 for frequency 0     1
 *   copies              1                     1
 *   added               0, and the image has none of them
 * For a clip without motion only the sum over t of a table's values for (t, y, x) matters, so 1/T is one of many
 * possible choices; numbers that a softmax divides by their sum are copied. */
#include "layers/vit/inflate.h"

#include <string.h>

Param inflate_flat(const Param *p) {
    Param flat = *p;
    const ParamTime *time = &p->time;
    flat.time = (ParamTime){0};
    flat.size = (p->size - (size_t)time->prefix * (p->size / (size_t)p->shape[time->axis])) / (size_t)time->count;
    flat.size += (size_t)time->prefix * (p->size / (size_t)p->shape[time->axis]);
    flat.grid.positions.frames = 1;
    if (time->rule == TIME_ADDED) {
        flat.shape[time->axis] = time->prefix;
        flat.size = p->size / (size_t)p->shape[time->axis] * (size_t)time->prefix;
    } else if (time->apart) {
        flat.ndim--;
        if (flat.grid.axis > time->axis) flat.grid.axis--;
        memmove(flat.shape + time->axis, p->shape + time->axis + 1,
                (size_t)(flat.ndim - time->axis) * sizeof *flat.shape);
    } else {
        flat.shape[time->axis] = (p->shape[time->axis] - time->prefix) / time->count + time->prefix;
    }
    return flat;
}

static float factor_of(const ParamTime *time, int slice, Inflate rule) {
    float every = 1 / (float)time->count;
    bool mean = rule == INFLATE_MEAN, middle = slice == time->count / 2;
    switch (time->rule) {
    case TIME_TAPS: return mean ? every : middle;
    case TIME_CIRCLE:
    case TIME_TORUS: return mean ? every : slice == 0;
    case TIME_TOEPLITZ: return mean ? 2 / (float)(time->count + 1) : middle;
    case TIME_FREQUENCIES: return mean ? slice == 0 : 1;
    default: return 1;
    }
}

void inflate_tensor(float *to, const Param *p, const float *from, Inflate rule) {
    const ParamTime *time = &p->time;
    size_t outer = 1, rest = 1;
    for (int d = 0; d < time->axis; d++) outer *= (size_t)p->shape[d];
    for (int d = time->axis + 1; d < p->ndim; d++) rest *= (size_t)p->shape[d];
    size_t front = (size_t)time->prefix * rest;
    size_t inner = ((size_t)p->shape[time->axis] * rest - front) / (size_t)time->count;
    if (time->rule == TIME_ADDED) {
        size_t added = (size_t)time->count * inner;
        for (size_t o = 0; o < outer; o++) {
            memcpy(to + o * (front + added), from + o * front, front * sizeof *to);
            memset(to + o * (front + added) + front, 0, added * sizeof *to);
        }
        return;
    }
    for (size_t o = 0; o < outer; o++, from += inner) {
        memcpy(to, from, front * sizeof *to);
        to += front;
        from += front;
        for (int slice = 0; slice < time->count; slice++, to += inner) {
            float factor = factor_of(time, slice, rule);
            for (size_t i = 0; i < inner; i++) to[i] = factor * from[i];
        }
    }
}
