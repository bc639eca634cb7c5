/* Patch embedding, a convolution as a linear layer.  x [B,C,Hi,Wi] or [B,Hi*Wi,C] -> y [B,N,M]
 * forward   1. cols = windows of x as rows   2. raw = cols W^T + b   3. y = raw or norm(raw)
 * backward  3. draw   2. dW, db, dcols = draw W   1. dx = the sum over windows
 * saves     raw if there is a norm; cols are computed again.
 * Source: Dosovitskiy et al. 2021; overlapping: Wang et al. 2022 (PVTv2), 7x7 windows 4 apart from the image, then 3x3
 * windows 2 apart; tubelets: Arnab et al. 2021 (ViViT), here with overlap in time, as in UniFormer and MViT. */
#include "layers/vit/embedding.h"

void embedding_create(Embedding *e, int C, int Hi, int Wi, bool planes, int stride, bool overlap,
                      bool normed) {
    int k = overlap ? 2 * stride - 1 : stride;
    e->windows = (Unfold){Hi, Wi, C, k, stride, overlap ? k / 2 : 0, planes, 0, 0, 0};
    e->grid = unfold_grid(&e->windows);
    e->apart = 1;
    e->normed = normed;
}

void embedding_pad(Embedding *e, int pad) {
    e->windows.pad = pad;
    embedding_set_input(e, e->windows.Hi, e->windows.Wi);
}

void embedding_create_merging(Embedding *e, int C, Grid tokens) {
    *e = (Embedding){.kind = EMBEDS_CELLS};
    merging_create(&e->merging, C, tokens);
    e->grid = e->merging.grid;
}

void embedding_create_tokenizer(Embedding *e, const TokenizerSettings *settings, int way, int Hi, int Wi,
                                bool planes) {
    *e = (Embedding){.kind = EMBEDS_CONVOLUTIONS};
    tokenizer_create(&e->tokenizer, settings, way, Hi, Wi, planes);
    e->grid = (Grid){1, tokenizer_side(settings, Hi), tokenizer_side(settings, Wi)};
}

void embedding_destroy(Embedding *e) {
    if (e->kind == EMBEDS_CONVOLUTIONS) tokenizer_destroy(&e->tokenizer);
}

void embedding_set_input(Embedding *e, int Hi, int Wi) {
    if (e->kind == EMBEDS_CELLS) {
        merging_set_tokens(&e->merging, (Grid){e->grid.frames, Hi, Wi});
        e->grid = e->merging.grid;
        return;
    }
    e->windows.Hi = Hi;
    e->windows.Wi = Wi;
    e->grid = unfold_grid(&e->windows);
    e->grid.frames *= e->apart;
}

const char *embedding_kind(const Embedding *e) {
    static const char *const kinds[] = {[EMBEDS_CELLS] = "patch merging", [EMBEDS_CONVOLUTIONS] = "convolutional tokenizer"};
    return e->kind != EMBEDS_PATCHES ? kinds[e->kind] : e->windows.pad ? "overlapping patches" : "patch projection";
}

void embedding_take_frames(Embedding *e, int frames, int tubelet) {
    if (e->kind != EMBEDS_PATCHES) return; /* the others support images only */
    if (tubelet > 1) e->windows.frames = frames, e->windows.kt = tubelet, e->windows.stride_t = 2;
    else e->apart = frames;
    embedding_set_input(e, e->windows.Hi, e->windows.Wi);
}

void embedding_declare(Embedding *e, Params *params, const char *prefix, int M) {
    if (e->kind == EMBEDS_CELLS) {
        merging_declare(&e->merging, params, prefix, M);
        return;
    }
    if (e->kind == EMBEDS_CONVOLUTIONS) {
        tokenizer_declare(&e->tokenizer, params, prefix, M);
        return;
    }
    const Unfold *s = &e->windows;
    int fan = s->C * unfold_taps(s);
    e->proj.in = fan;
    e->proj.out = M;
    params_declare(params, (Param){.value = &e->proj.w, .grad = &e->proj.dw, .named = {prefix, "proj.weight"},
                                   .init = INIT_FAN_IN_UNIFORM, .fan = fan, .decay = true,
                                   .shape = {M, s->C, s->frames ? s->kt : 0, s->k, s->k},
                                   .time = {TIME_TAPS, 2, s->kt, 0, true}});
    params_declare(params, (Param){.value = &e->proj.b, .grad = &e->proj.db, .named = {prefix, "proj.bias"},
                                   .init = INIT_FAN_IN_UNIFORM, .fan = fan, .shape = {M}});
    /* The epsilon is that of these norms in timm's pvt_v2, whose other norms have TIMM_NORM_EPS. */
    if (e->normed) norm_layer_declare(&e->norm, params, prefix, "norm", M, PYTORCH_NORM_EPS, false);
}

static size_t rows_of(const Embedding *e, int B) { return (size_t)B * (size_t)grid_tokens(e->grid); }

void embedding_plan(Embedding *e, Plan *plan, const char *prefix, int B) {
    if (e->kind == EMBEDS_CELLS) {
        merging_plan(&e->merging, plan, prefix, B);
        return;
    }
    if (e->kind == EMBEDS_CONVOLUTIONS) {
        tokenizer_plan(&e->tokenizer, plan, prefix, B);
        return;
    }
    size_t rows = rows_of(e, B), bytes = rows * (size_t)e->proj.out * sizeof(real);
    if (e->normed) {
        plan_keep(plan, prefix, "raw", &e->raw, bytes);
        norm_layer_plan(&e->norm, plan, prefix, rows);
    }
    PlanMark mark = plan_mark(plan);
    plan_borrow(plan, prefix, "cols", &e->cols, rows * (size_t)e->proj.in * sizeof(real));
    if (plan->training && e->normed) plan_borrow(plan, prefix, "draw", &e->draw, bytes);
    plan_release(plan, mark);
}

static void windows_of(const Embedding *e, const real *x, int B) {
    const Unfold *s = &e->windows;
    int images = B * e->apart;
    if (s->planes && s->k == s->stride && !s->frames)
        patchify(e->cols, x, &(ImageShape){images, s->Hi, s->Wi}, s->k);
    else unfold_forward(e->cols, x, s, images);
}

void embedding_forward(const Embedding *e, real *y, const real *x, int B) {
    if (e->kind == EMBEDS_CELLS) {
        merging_forward(&e->merging, y, x, B);
        return;
    }
    if (e->kind == EMBEDS_CONVOLUTIONS) {
        tokenizer_forward(&e->tokenizer, y, x, B);
        return;
    }
    size_t rows = rows_of(e, B);
    windows_of(e, x, B);
    projection_forward(&e->proj, e->normed ? e->raw : y, e->cols, rows);
    if (e->normed) norm_layer_forward(&e->norm, y, e->raw, rows);
}

void embedding_backward(const Embedding *e, real *dx, const real *dy, const real *x, int B) {
    if (e->kind == EMBEDS_CELLS) {
        merging_backward(&e->merging, dx, dy, x, B);
        return;
    }
    if (e->kind == EMBEDS_CONVOLUTIONS) {
        tokenizer_backward(&e->tokenizer, dy, x, B);
        return;
    }
    size_t rows = rows_of(e, B);
    const real *draw = e->normed ? e->draw : dy;
    if (e->normed) norm_layer_backward(&e->norm, e->draw, dy, e->raw, rows);
    windows_of(e, x, B);
    projection_backward(&e->proj, NULL, draw, e->cols, rows);
    if (!dx) return;
    linear_backward_input(e->cols, draw, e->proj.w, &(LinearShape){rows, e->proj.in, e->proj.out, 0});
    unfold_backward(dx, e->cols, &e->windows, B * e->apart);
}

size_t embedding_macs(const Embedding *e) {
    if (e->kind == EMBEDS_CONVOLUTIONS) return tokenizer_macs(&e->tokenizer);
    return projection_macs(e->kind == EMBEDS_CELLS ? &e->merging.reduction : &e->proj, rows_of(e, 1));
}
