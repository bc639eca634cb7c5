#include "layers/attention/grid_table.h"

#include <stdio.h>

#include "kernels/device/device.h"

static size_t bytes_of(const GridTable *t) {
    return (size_t)grid_tokens(t->shape.to) * (size_t)t->shape.inner * sizeof(float);
}

void grid_table_plan(GridTable *t, Plan *plan, const char *prefix, const char *name, bool changes) {
    char here[32];
    if (!changes) return;
    snprintf(here, sizeof here, "%s_here", name);
    plan_borrow(plan, prefix, here, &t->now, bytes_of(t));
    snprintf(here, sizeof here, "d%s_here", name);
    if (plan->training) plan_borrow(plan, prefix, here, &t->dnow, bytes_of(t));
    plan_workspace(plan, table_resample_workspace(&t->shape));
}

const float *grid_table_values(const GridTable *t) {
    if (!table_resamples(&t->shape)) return t->w;
    table_resample_forward(t->now, t->w, &t->shape);
    return t->now;
}

float *grid_table_gradient(const GridTable *t) {
    if (!table_resamples(&t->shape)) return t->dw;
    device_zero(t->dnow, bytes_of(t));
    return t->dnow;
}

void grid_table_backward(const GridTable *t) {
    if (table_resamples(&t->shape)) table_resample_backward(t->dw, t->dnow, &t->shape);
}
