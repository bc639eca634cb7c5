/* Swin's attention (Liu et al. 2021): softmax attention within windows of the grid, which in every other block of a
 * stage are shifted by half their side.  x [B,N,M] -> y [B,N,M]
 * forward   1. q,k,v = x Wqkv^T + b   2. mix_n = sum_m softmax_m(q_n.k_m / sqrt D + table[n - m]) v_m over n's window,
 *              100 less where shifting brought n and m together from opposite sides of the grid
 *           3. y = mix Wproj^T + b
 * backward  3. dmix   2. dq, dk, dv, dtable from the saved log-sum-exp, window by window   1. dx
 * saves     qkv, mix, lse [B,H,N].  Parameter names are timm's.
 * A grid that windows do not divide is padded with zeros on the right and below before it is shifted, as in mmdetection
 * (timm shifts first).  q, k, v of a zero are the biases b: such places are keys, and their gradients go to b.  Along
 * an axis that is no longer than the window, the window is as long as the axis and is not shifted.  A grid that changes
 * has the windows of the model's own grid, which are shifted along axes of any length, as in mmdetection.  For clips,
 * time is an axis like the others (Liu et al. 2022, Video Swin). */
#include <math.h>
#include <stdlib.h>

#include "core/die.h"
#include "core/integers.h"
#include "layers/papers.h"
#include "layers/attention.h"

typedef enum { SHIFT_NONE, SHIFT_ALTERNATE } Shift;

typedef struct {
    ConfigInts window;
    int window_time;
    Shift shift;
    bool bias_geometric;
} WindowSettings;

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(INTS, WindowSettings, window), "7", .section = "attention", .min = 1, .max = 256,
     .help = "Side of a window in tokens; with several stages one number or a list. Where a side of the grid is not "
             "longer than that, the windows are as long as the grid and are not shifted"},
    {CONFIG_FIELD(INT, WindowSettings, window_time), "8", .min = 1, .max = 256,
     .help = "Length of swin's windows in frames of tokens, shifted as their sides are; a clip that is not longer has "
             "windows of all its frames"},
    {CONFIG_FIELD(CHOICE, WindowSettings, shift), "alternate", .shapeless = true, CONFIG_CHOICES("none", "alternate"),
     .help = "alternate: the windows of every other block of a stage are shifted by half their side; none: no window "
             "is shifted"},
    {CONFIG_FIELD(BOOL, WindowSettings, bias_geometric), "false",
     .help = "Relative position biases of --init are resized to windows of another side as in timm, by interpolation "
             "at geometrically growing distances; false: bicubically, as in Swin's own program"},
};

static const ConfigGroup window_settings = {CONFIG_GROUP(WindowSettings, entries), .change = CHANGE_NEVER};

typedef struct {
    WindowShape windows;
    bool shifts;           /* the windows of this block are shifted */
    float *lse;            /* [B,H,N] */
    float *table, *dtable; /* [(2wt-1)(2wh-1)(2ww-1),H] */
} Window;

static void window_declare(Attention *a, Params *params) {
    Window *s = a->state;
    const WindowSettings *settings = config_settings(a->settings, &window_settings);
    int side = attention_stage_number(a, "window", &settings->window);
    int frames = settings->window_time;
    bool shifts = s->shifts = settings->shift == SHIFT_ALTERNATE && a->place.block_in_stage % 2 == 1;
    s->windows = (WindowShape){.grid = a->grid,
                               .wh = smaller(side, a->grid.rows),
                               .ww = smaller(side, a->grid.columns),
                               .wt = smaller(frames, a->grid.frames),
                               .shift_y = shifts && a->grid.rows > side ? side / 2 : 0,
                               .shift_x = shifts && a->grid.columns > side ? side / 2 : 0,
                               .shift_t = shifts && a->grid.frames > frames ? frames / 2 : 0};
    Grid offsets = grid_offsets(window_sides(&s->windows));
    params_declare(params, (Param){.value = &s->table, .grad = &s->dtable,
                                   .named = {a->prefix, "relative_position_bias_table"}, .init = INIT_TRUNC_NORMAL,
                                   .shape = {grid_tokens(offsets), a->H}, .from = {"window", side, a->place.stage},
                                   .grid = {0, 1, 0, offsets}, .time = {TIME_COPIES, 0, offsets.frames, 0, false},
                                   .resampled = settings->bias_geometric ? RESAMPLED_GEOMETRIC : RESAMPLED_BICUBIC,
                                   .tokens = a->grid});
}

static void window_follow_grid(Attention *a) {
    Window *s = a->state;
    s->windows.grid = a->grid;
    s->windows.shift_y = s->shifts ? s->windows.wh / 2 : 0;
    s->windows.shift_x = s->shifts ? s->windows.ww / 2 : 0;
}

static void window_plan(Attention *a, Plan *plan, int B) {
    Window *s = a->state;
    plan_keep(plan, a->prefix, "lse", &s->lse, attention_head_floats(a, B));
    plan_workspace(plan, window_attention_workspace(&s->windows, (AttentionShape[]){attention_shape(a, B)}));
}

static void window_forward(const Attention *a, int B) {
    const Window *s = a->state;
    window_attention_forward(a->frame.mix, s->lse, a->frame.qkv_act, &(WindowParameters){a->frame.qkv.b, s->table},
                             &s->windows, (AttentionShape[]){attention_shape(a, B)});
}

static void window_backward(const Attention *a, int B) {
    const Window *s = a->state;
    window_attention_backward(a->frame.dqkv, &(WindowGradients){a->frame.qkv.db, s->dtable}, a->frame.dmix,
                              a->frame.mix, s->lse, a->frame.qkv_act,
                              &(WindowParameters){a->frame.qkv.b, s->table}, &s->windows,
                              (AttentionShape[]){attention_shape(a, B)});
}

static size_t window_macs(const Attention *a) {
    const Window *s = a->state;
    size_t places = (size_t)grid_tokens(window_sides(&s->windows));
    size_t windows = (size_t)grid_tokens(window_counts(&s->windows));
    return 2 * windows * places * places * (size_t)a->M;
}

/* The window that contains the token, and the place in it. */
static int find_token(const WindowShape *windows, int token, int *place) {
    int n = grid_tokens(window_sides(windows));
    for (int window = 0;; window++)
        for (*place = 0; *place < n; ++*place)
            if (window_place(windows, window, *place).token == token) return window;
}

/* The weights sum to one minus the weight of places without a token. */
static void window_weights(const Attention *a, float *weights, int b, int head, int query) {
    const Window *s = a->state;
    Grid sides = window_sides(&s->windows);
    int i, window = find_token(&s->windows, query, &i);
    size_t row = 3 * (size_t)a->M, size = (size_t)grid_tokens(grid_offsets(sides)) * (size_t)a->H;
    int region = window_place(&s->windows, window, i).region;
    float *qkv = xcalloc((size_t)a->N, row * sizeof *qkv, "attention picture"), lse;
    float *table = xcalloc(size, sizeof *table, "attention picture");
    real_download(qkv, a->frame.qkv_act + (size_t)b * (size_t)a->N * row, (size_t)a->N * row);
    device_download(table, s->table, size * sizeof *table);
    device_download(&lse, s->lse + ((size_t)b * (size_t)a->H + (size_t)head) * (size_t)a->N + query, sizeof lse);
    const float *q = qkv + (size_t)query * row + (size_t)(head * a->D);
    for (int m = 0; m < a->N; m++) weights[m] = 0;
    for (int j = 0; j < grid_tokens(sides); j++) {
        WindowPlace key = window_place(&s->windows, window, j);
        if (key.token < 0) continue;
        const float *k = qkv + (size_t)key.token * row + (size_t)(a->M + head * a->D);
        float score = 0;
        for (int d = 0; d < a->D; d++) score += q[d] * k[d];
        score = score / sqrtf((float)a->D) + table[window_offset(&s->windows, i, j) * a->H + head] -
                (key.region == region ? 0 : WINDOW_APART);
        weights[key.token] = expf(score - lse);
    }
    free(table);
    free(qkv);
}

const AttentionOp window_op = {
    .name = "swin",
    .summary = "softmax within windows that shift from block to block (Swin)",
    .paper = PAPER_SWIN,
    .settings = ATTENTION_SETTINGS(&window_settings),
    .any_grid = true,
    .state_size = sizeof(Window),
    .declare = window_declare,
    .plan = window_plan,
    .follow_grid = window_follow_grid,
    .mix_forward = window_forward,
    .mix_backward = window_backward,
    .macs = window_macs,
    .weights = window_weights,
};
