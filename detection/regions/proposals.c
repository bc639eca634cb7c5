#include "detection/regions/proposals.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "detection/best_keys.h"
#include "detection/regions/box_coder.h"
#include "detection/regions/nms.h"

void proposal_scratch_open(ProposalScratch *s, const ProposalRule *rule, int levels) {
    size_t level = (size_t)rule->of_level, all = level * (size_t)levels;
    const char *what = "proposals";
    s->level_keys = xcalloc(level, sizeof *s->level_keys, what);
    s->keys = xcalloc((size_t)rule->most, sizeof *s->keys, what);
    s->boxes = xcalloc(level, sizeof *s->boxes, what);
    s->kept_boxes = xcalloc(all, sizeof *s->kept_boxes, what);
    s->scores = xcalloc(level, sizeof *s->scores, what);
    s->keep = xcalloc(level, sizeof *s->keep, what);
}

void proposal_scratch_close(ProposalScratch *s) {
    free(s->level_keys);
    free(s->keys);
    free(s->boxes);
    free(s->kept_boxes);
    free(s->scores);
    free(s->keep);
    *s = (ProposalScratch){0};
}

/* The best anchors of a level as boxes, best first, with their scores.  Returns their number. */
static int level_candidates(ProposalScratch *s, int level, const float *logits, const float *deltas, const Anchors *a,
                            int own_h, int own_w, const ProposalRule *rule) {
    int found = 0, rows = anchors_own_cells(a, level, own_h, a->rows[level]);
    int columns = anchors_own_cells(a, level, own_w, a->columns[level]);
    BestKeys best = {.keys = s->level_keys, .most = rule->of_level};
    for (int i = 0; i < rows; i++) {
        uint32_t row = (uint32_t)i * (uint32_t)a->columns[level] * ANCHOR_RATIOS;
        for (uint32_t k = row; k < row + (uint32_t)columns * ANCHOR_RATIOS; k++)
            best_keys_offer(&best, score_key(logits[k], k));
    }
    best_keys_sort(&best);
    for (int k = 0; k < best.count; k++) {
        uint32_t at = key_index(best.keys[k]);
        float *box = s->boxes[found];
        box_decode(box, a->boxes[a->first[level] + at], deltas + 4 * (size_t)at, proposal_weights);
        box_cut(box, own_h, own_w);
        s->scores[found] = logits[at];
        found += box[2] > box[0] && box[3] > box[1];
    }
    return found;
}

int proposals_find(float (*proposals)[4], const float *const *logits, const float *const *deltas, const Anchors *a,
                   int own_h, int own_w, const ProposalRule *rule, ProposalScratch *s) {
    BestKeys best = {.keys = s->keys, .most = rule->most};
    uint32_t all = 0;
    for (int l = 0; l < a->rule.levels; l++) {
        int n = level_candidates(s, l, logits[l], deltas[l], a, own_h, own_w, rule);
        int kept = nms_sorted(s->keep, (const float (*)[4])s->boxes, n, rule->nms, rule->most);
        for (int k = 0; k < kept; k++, all++) {
            memcpy(s->kept_boxes[all], s->boxes[s->keep[k]], sizeof *s->kept_boxes);
            best_keys_offer(&best, score_key(s->scores[s->keep[k]], all));
        }
    }
    best_keys_sort(&best);
    for (int k = 0; k < best.count; k++)
        memcpy(proposals[k], s->kept_boxes[key_index(best.keys[k])], sizeof *proposals);
    return best.count;
}

int region_level(const float box[4], float canonical, int levels) {
    double side = (double)canonical * 0x1.ffffe8bde9c24p-1; /* 2^-1e-6, so that rounding does not decide at a border */
    double area = ((double)box[2] - box[0]) * ((double)box[3] - box[1]);
    int level = 0;
    while (level < levels - 1 && area >= ldexp(side * side, 2 * (level - 1))) level++;
    return level;
}
