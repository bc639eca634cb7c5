/* CSwin's attention (Dong et al. 2022): cross-shaped windows.  x [B,N,M] -> y [B,N,M]
 * forward   1. q,k,v = x Wqkv^T + b
 *           2. mix: the first half of the heads attends within vertical stripes of the grid, the other half within
 *              horizontal ones (stripes.h); or all heads on the whole grid, in the last of several stages, with stripe
 *              0, and where stripes are as wide as the grid
 *           3. y = mix Wproj^T + b
 * backward  the same steps in reverse
 * saves     qkv, mix, and what the branches save.  Parameters of the branches have the names of the authors' program.
 * In clips a stripe goes through all frames, an extension of this project.  A grid that changes has stripes of the same
 * width, which need not divide it.
 * cswin-focused has focused linear attention within the stripes (Han et al. 2023, FLatten Transformer). */
#include "core/integers.h"
#include "layers/attention.h"
#include "layers/papers.h"
#include "layers/attention/stripes.h"

typedef struct {
    ConfigInts stripe;
} StripeSettings;

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(INTS, StripeSettings, stripe), "1", .section = "attention", .min = 0, .max = 256, .shapeless = true,
     .help = "Width in tokens of the stripes of cross-shaped windows, a divisor of the grid's sides; with several "
             "stages one number or a list (CSwin: 1,2,7,7); 0: the whole grid, which the last of several stages always "
             "has"},
};

static const ConfigGroup stripe_settings = {CONFIG_GROUP(StripeSettings, entries), .change = CHANGE_NEVER};

typedef struct {
    int stripe; /* width, or 0 */
    int count;  /* of branches */
    StripeBranch branches[2];
} CSwin;

extern const AttentionOp cswin_focused_op;

/* The width of stripes; 0: the whole grid. */
static int stripe_of(const Attention *a) {
    const StripeSettings *s = config_settings(a->settings, &stripe_settings);
    int stripe = attention_stage_number(a, "stripe", &s->stripe);
    bool last = a->place.stages > 1 && a->place.stage == a->place.stages - 1;
    return last || (stripe == a->grid.rows && stripe == a->grid.columns) ? 0 : stripe;
}

static void cswin_check(const Attention *a) {
    int stripe = stripe_of(a);
    if (stripe == 0) return;
    if (a->grid.rows % stripe || a->grid.columns % stripe)
        config_reject(a->settings, "stripe",
                      "{stripe=%d} does not divide stage %d's %dx%d tokens, which {img_size} and {patch_size} make: "
                      "use a divisor, 0 for the whole grid, or another img_size", stripe, a->place.stage, a->grid.rows,
                      a->grid.columns);
    if (a->H % 2)
        config_reject(a->settings, "heads", "{heads=%d} in stage %d is odd, but {attn=%s} divides the heads between "
                      "vertical and horizontal stripes: use an even number, or stripe 0 there", a->H, a->place.stage,
                      a->op->name);
}

/* The rows and columns of branch i's stripes. */
static Grid sides_of(const CSwin *s, int i, Grid grid) {
    if (s->stripe && i == 0) grid.columns = s->stripe;
    if (s->stripe && i == 1) grid.rows = s->stripe;
    return grid;
}

/* Places in all stripes of branch i. */
static size_t places_of(const CSwin *s, int i, Grid grid) {
    Grid sides = sides_of(s, i, grid);
    WindowShape windows = {.grid = grid, .wh = sides.rows, .ww = sides.columns, .wt = sides.frames};
    return (size_t)grid_tokens(window_counts(&windows)) * (size_t)grid_tokens(sides);
}

static void cswin_declare(Attention *a, Params *params) {
    CSwin *s = a->state;
    s->stripe = stripe_of(a);
    s->count = s->stripe ? 2 : 1;
    int heads = a->H / s->count;
    for (int i = 0; i < s->count; i++) {
        Grid sides = sides_of(s, i, a->grid);
        stripes_create(&s->branches[i], a, i, sides.rows, sides.columns, i * heads, heads, a->op == &cswin_focused_op);
        stripes_declare(&s->branches[i], params);
    }
}

static void cswin_follow_grid(Attention *a) {
    CSwin *s = a->state;
    for (int i = 0; i < s->count; i++) {
        Grid sides = sides_of(s, i, a->grid);
        stripes_set_sides(&s->branches[i], a, sides.rows, sides.columns);
    }
}

/* With rows and columns exchanged, a grid may need more padding. */
static void cswin_plan(Attention *a, Plan *plan, int B) {
    CSwin *s = a->state;
    Grid turned = {1, a->grid.columns, a->grid.rows};
    for (int i = 0; i < s->count; i++) {
        StripeBranch *branch = &s->branches[i];
        if (a->changes) branch->most = larger_size(branch->most, places_of(s, i, turned));
        stripes_plan(branch, plan, B);
    }
}

static void cswin_forward(const Attention *a, int B) {
    const CSwin *s = a->state;
    for (int i = 0; i < s->count; i++) stripes_forward(&s->branches[i], a->frame.mix, a->frame.qkv_act, B);
}

static void cswin_backward(const Attention *a, int B) {
    const CSwin *s = a->state;
    for (int i = 0; i < s->count; i++)
        stripes_backward(&s->branches[i], a->frame.dqkv, a->frame.dmix, a->frame.qkv_act, B);
}

static size_t cswin_macs(const Attention *a) {
    const CSwin *s = a->state;
    size_t macs = 0;
    for (int i = 0; i < s->count; i++) macs += stripes_macs(&s->branches[i]);
    return macs;
}

static const char *cswin_path(const Attention *a) {
    return ((const CSwin *)a->state)->stripe ? "stripes" : "whole grid";
}

static void cswin_weights(const Attention *a, float *weights, int b, int head, int query) {
    const CSwin *s = a->state;
    int heads = s->branches[0].stripe.H;
    stripes_weights(&s->branches[head / heads], a->frame.qkv_act, weights, b, head % heads, query);
}

#define CSWIN_OP                    \
    .state_size = sizeof(CSwin),    \
    .check = cswin_check,           \
    .declare = cswin_declare,       \
    .plan = cswin_plan,             \
    .follow_grid = cswin_follow_grid, \
    .mix_forward = cswin_forward,   \
    .mix_backward = cswin_backward, \
    .macs = cswin_macs,             \
    .path = cswin_path,             \
    .weights = cswin_weights

const AttentionOp cswin_op = {
    .name = "cswin",
    .summary = "softmax within vertical and horizontal stripes, convolution of v (CSwin)",
    .paper = PAPER_CSWIN,
    .settings = ATTENTION_SETTINGS(&stripe_settings),
    .any_grid = true,
    CSWIN_OP,
};

const AttentionOp cswin_focused_op = {
    .name = "cswin-focused",
    .summary = "focused attention within vertical and horizontal stripes (FLatten)",
    .paper = PAPER_FLATTEN,
    .settings = ATTENTION_SETTINGS(&stripe_settings, &focused_settings),
    CSWIN_OP,
};
