/* The attention of one image for the page of a run, laid over the image: of each head of the last block, and the
 * rollout over all blocks (Abnar and Zuidema 2020).
 *
 *   A_i [N,N]   weights of block i, the mean of its heads; negative weights count as 0, and rows sum to 1
 *   rollout     q (I + A_depth)/2 ... (I + A_1)/2 from right to left as products of a row and a matrix, where the row q
 *               stands for the class token, or without one for the mean of all tokens */
#include "layers/vit/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "kernels/kernels.h"

enum {
    MOST_TOKENS = 256, /* number of tokens of a block whose rows are all read */
    MOST_HEADS = 8,
    SIDE = 96          /* side of a picture in pixels: smaller images are enlarged and larger ones scaled down */
};

/* == Rows ========================================================================================================= */

static int front_of(const Attention *a) { return a->N - grid_tokens(a->grid); }

/* Adds `share` of the weights of a head's query to sum [N].  A row of zeros means the token itself. */
static void add_row(float *sum, float *row, const Attention *a, int head, int query, float share) {
    float total = 0;
    a->op->weights(a, row, 0, head, query);
    for (int m = 0; m < a->N; m++) total += row[m] = fmaxf(row[m], 0);
    if (!(total > 0)) sum[query] += share;
    for (int m = 0; total > 0 && m < a->N; m++) sum[m] += share * row[m] / total;
}

/* The share of each token in the query: 1 for the class token, or 1/N for each token; if there are too many tokens to
 * read all rows, 1 for the token in the middle. */
static void query_shares(float *shares, const Attention *a) {
    Grid grid = a->grid;
    bool one = front_of(a) > 0 || a->N > MOST_TOKENS;
    for (int n = 0; n < a->N; n++) shares[n] = one ? 0 : 1 / (float)a->N;
    if (one) shares[front_of(a) > 0 ? 0 : grid.rows / 2 * grid.columns + grid.columns / 2] = 1;
}

/* sum [N] over the heads `first` to `end` - 1, for tokens with these shares. */
static void seen(float *sum, float *row, const float *shares, const Attention *a, int first, int end) {
    for (int m = 0; m < a->N; m++) sum[m] = 0;
    for (int n = 0; n < a->N; n++)
        for (int head = first; shares[n] > 0 && head < end; head++)
            add_row(sum, row, a, head, n, shares[n] / (float)(end - first));
}

/* shares [N] of the last block's tokens become those of the first one's.  A token that is added in a later block keeps
 * its share in the earlier ones. */
static void roll_out(float *shares, float *sum, float *row, const Trunk *t) {
    for (int i = t->depth - 1; i >= 0; i--) {
        const Attention *a = &trunk_block(t, i)->attention;
        float *own = shares + (t->N - a->N);
        seen(sum, row, own, a, 0, a->H);
        for (int n = 0; n < a->N; n++) own[n] = 0.5f * (own[n] + sum[n]);
    }
}

/* == Pictures ===================================================================================================== */

/* The weight at a position of the image, interpolated between the tokens around it. */
static float weight_at(const float *weights, Grid grid, float y, float x) {
    float down = fminf(fmaxf(y * (float)grid.rows - 0.5f, 0), (float)(grid.rows - 1));
    float across = fminf(fmaxf(x * (float)grid.columns - 0.5f, 0), (float)(grid.columns - 1));
    int r = (int)down, c = (int)across, below = r + 1 < grid.rows ? r + 1 : r, right = c + 1 < grid.columns ? c + 1 : c;
    float v = down - (float)r, h = across - (float)c;
    float top = weights[r * grid.columns + c] * (1 - h) + weights[r * grid.columns + right] * h;
    float bottom = weights[below * grid.columns + c] * (1 - h) + weights[below * grid.columns + right] * h;
    return top * (1 - v) + bottom * v;
}

/* A grey picture under black, red, yellow and white for weights from 0 to the greatest one; NULL: only the picture. */
static void lay_over(uint8_t *out, const uint8_t *pixels, int H, int W, int scale, const float *weights, Grid grid) {
    float greatest = 0;
    for (int n = 0; weights && n < grid_tokens(grid); n++) greatest = fmaxf(greatest, weights[n]);
    for (int y = 0; y < H * scale; y++)
        for (int x = 0; x < W * scale; x++, out += 3) {
            const uint8_t *p = pixels + 3 * (y / scale * W + x / scale);
            if (!weights) {
                memcpy(out, p, 3);
                continue;
            }
            float heat = weight_at(weights, grid, ((float)y + 0.5f) / (float)(H * scale),
                                   ((float)x + 0.5f) / (float)(W * scale)) / fmaxf(greatest, 1e-30f);
            float grey = 0.3f * (float)p[0] + 0.6f * (float)p[1] + 0.1f * (float)p[2];
            for (int c = 0; c < 3; c++)
                out[c] = (uint8_t)(0.4f * grey + 153 * fminf(fmaxf(3 * heat - (float)c, 0), 1));
        }
}

typedef struct {
    Facts *facts;
    const VitRun *run;
    uint8_t *memory;
    int scale;
} Overlays;

static void put_overlay(const Overlays *o, const float *weights, Grid grid, const char *caption) {
    const int *size = o->run->model_settings->img_size;
    lay_over(o->memory, o->run->pixels, size[0], size[1], o->scale, weights, grid);
    facts_picture(o->facts, "attention", o->memory, size[0] * o->scale, size[1] * o->scale, SIDE, caption);
}

static void put_heads(const Overlays *o, const Attention *a, float *shares, float *sum, float *row) {
    char caption[32];
    query_shares(shares, a);
    for (int head = 0; head < a->H && head < MOST_HEADS; head++) {
        seen(sum, row, shares, a, head, head + 1);
        snprintf(caption, sizeof caption, "head %d", head + 1);
        put_overlay(o, sum + front_of(a), a->grid, caption);
    }
}

static void put_rollout(const Overlays *o, const Trunk *t, float *shares, float *sum, float *row) {
    const Attention *last = &trunk_block(t, t->depth - 1)->attention;
    query_shares(shares, last);
    roll_out(shares, sum, row, t);
    put_overlay(o, shares + front_of(last), last->grid, "rollout over all blocks");
}

/* == The run ====================================================================================================== */

/* Only tokens that stay the same through all blocks, whose activations are kept, have a rollout. */
static bool has_rollout(const VitSettings *s, const Trunk *t) {
    bool all = vit_stages(s) == 1 && !s->recompute && t->N <= MOST_TOKENS;
    for (int i = 0; all && i < t->depth; i++) all = trunk_block(t, i)->attention.op->weights;
    return all;
}

static void begin_section(Facts *facts, const Attention *a, const char *when) {
    char text[256];
    const char *who = front_of(a) > 0       ? "the class token looks"
                      : a->N <= MOST_TOKENS ? "all tokens look on average"
                                            : "the token in the middle looks";
    snprintf(text, sizeof text, "Where %s in the last block, head by head, for the first of the %s: black is zero, "
             "white the largest weight.", who, when);
    facts_pictures(facts, "attention", "Attention", text);
}

void vit_facts_attention(VitRun *run, const char *when) {
    const VitSettings *s = run->model_settings;
    Vit *vit = &run->vit;
    const Trunk *t = &vit->trunk;
    const Attention *a = &trunk_block(t, t->depth - 1)->attention;
    if (!a->op->weights) return;
    int longest = s->img_size[0] > s->img_size[1] ? s->img_size[0] : s->img_size[1];
    size_t N = (size_t)(t->N > a->N ? t->N : a->N);
    float *floats = xcalloc(N, 3 * sizeof *floats, "the page of the run");
    Overlays o = {training_facts(&run->training), run, NULL, longest < SIDE ? SIDE / longest : 1};
    o.memory = xcalloc(3 * vit_pixels(s), (size_t)(o.scale * o.scale), "the page of the run");
    model_set_training(&vit->model, true); /* the training plan keeps what is read here */
    vit_load_pixels(vit, run->pixels, run->test.mean, run->test.std, 1);
    vit_forward(vit, 1, false);
    begin_section(o.facts, a, when);
    put_overlay(&o, NULL, a->grid, "the image");
    put_heads(&o, a, floats, floats + N, floats + 2 * N);
    if (t->depth > 1 && has_rollout(s, t)) put_rollout(&o, t, floats, floats + N, floats + 2 * N);
    free(o.memory);
    free(floats);
}
