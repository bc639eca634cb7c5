#include "detection/regions/anchors.h"

#include <math.h>
#include <stdlib.h>

#include "core/die.h"

static void level_make(Anchors *a, int level) {
    static const double ratios[ANCHOR_RATIOS] = {0.5, 1, 2};
    double s = a->rule.stride[level];
    size_t at = a->first[level];
    for (int i = 0; i < a->rows[level]; i++)
        for (int j = 0; j < a->columns[level]; j++)
            for (int r = 0; r < ANCHOR_RATIOS; r++, at++) {
                double w = a->rule.size * s / sqrt(ratios[r]) / 2, h = a->rule.size * s * sqrt(ratios[r]) / 2;
                float *box = a->boxes[at];
                box[0] = (float)(j * s - w);
                box[1] = (float)(i * s - h);
                box[2] = (float)(j * s + w);
                box[3] = (float)(i * s + h);
                a->elements[at] = (uint32_t)level << 28 | (uint32_t)i << 15 | (uint32_t)j << 2 | (uint32_t)r;
            }
}

void anchors_make(Anchors *a, const AnchorRule *rule, int H, int W) {
    if (a->H == H && a->W == W) return;
    a->rule = *rule;
    a->H = H;
    a->W = W;
    a->first[0] = 0;
    for (int l = 0; l < rule->levels; l++) {
        a->rows[l] = (H + rule->stride[l] - 1) / rule->stride[l];
        a->columns[l] = (W + rule->stride[l] - 1) / rule->stride[l];
        a->first[l + 1] = a->first[l] + (size_t)a->rows[l] * (size_t)a->columns[l] * ANCHOR_RATIOS;
    }
    a->count = a->first[rule->levels];
    a->boxes = xgrow(a->boxes, a->count, &a->room, sizeof *a->boxes, "anchors");
    a->elements = xgrow(a->elements, a->count, &a->elements_room, sizeof *a->elements, "anchors");
    for (int l = 0; l < rule->levels; l++) level_make(a, l);
}

void anchors_free(Anchors *a) {
    free(a->boxes);
    free(a->elements);
    *a = (Anchors){0};
}

int anchors_own_cells(const Anchors *a, int level, int own, int cells) {
    int stride = a->rule.stride[level], padded = (own + 31) / 32 * 32, count = (padded + stride - 1) / stride;
    return count < cells ? count : cells;
}

void anchors_valid(uint8_t *valid, const Anchors *a, int own_h, int own_w) {
    for (int l = 0; l < a->rule.levels; l++) {
        int rows = anchors_own_cells(a, l, own_h, a->rows[l]), columns = anchors_own_cells(a, l, own_w, a->columns[l]);
        uint8_t *to = valid + a->first[l];
        for (int i = 0; i < a->rows[l]; i++)
            for (int j = 0; j < a->columns[l]; j++)
                for (int r = 0; r < ANCHOR_RATIOS; r++) *to++ = i < rows && j < columns;
    }
}
