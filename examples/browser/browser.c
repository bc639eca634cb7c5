/* What worker.js asks of a model.  An instance of the module has one model: where something is refused (core/die.h) it
 * ends, as a process would, with an exception in JavaScript that has the message. */
#include <emscripten.h>
#include <stdlib.h>
#include <string.h>

#include "core/config/config.h"
#include "core/die.h"
#include "core/results/class_names.h"
#include "kernels/kernels.h"
#include "layers/vit/fit_weights.h"
#include "layers/vit/vit.h"
#include "training/run_folder.h"

static struct {
    Config config;
    Vit vit, origin;
    ClassNames names;
    float mean[3], std[3];
    bool attended; /* the training plan, which keeps what attention is read from, has seen the picture */
} model;

EM_JS(void, throw_text, (const char *text), { throw new Error(UTF8ToString(text)); })

static void leave(int status, const char *message) {
    (void)status;
    throw_text(message);
}

/* == Opening ====================================================================================================== */

/* The lines of a saved config that are settings of the model; the others are those of its training. */
static char *model_lines(const Config *config, char *text) {
    char *kept = xcalloc(strlen(text) + 2, 1, "settings"), *end = kept;
    for (char *rest = text, *line; (line = strsep(&rest, "\n"));) {
        size_t name = strspn(line, "abcdefghijklmnopqrstuvwxyz0123456789_");
        bool known = false;
        for (int i = 0; !known && i < config->count; i++)
            known = strlen(config_name(config, i)) == name && !strncmp(config_name(config, i), line, name);
        if (known) end = stpcpy(stpcpy(end, line), "\n");
    }
    return kept;
}

static void read_settings(const char *checkpoint) {
    char *text = run_folder_config(checkpoint);
    if (!text) die("it has no settings: only checkpoints of train_vit tell how their model is built");
    config_init(&model.config, "config");
    const VitSettings *s = vit_add_settings(&model.config);
    char *lines = model_lines(&model.config, text);
    config_try_text(&model.config, lines, strlen(lines), checkpoint, &error_fatal);
    vit_use_settings(&model.config);
    if (s->num_classes < 1) die("it is no classifier's, such as train_vit saves");
    if (s->frames > 1) die("its model takes clips of %d frames, and a page has one picture", s->frames);
    free(lines);
    free(text);
}

/* Opens the checkpoint that lies at this path of the module's file system. */
EMSCRIPTEN_KEEPALIVE void browser_open(const char *checkpoint) {
    die_as_rank(0, 1, leave);
    kernels_init();
    read_settings(checkpoint);
    vit_create(&model.vit, &model.config);
    vit_create(&model.origin, &model.config);
    vit_plan(&model.vit, 1, true);
    vit_allocate(&model.vit);
    params_allocate(&model.vit.model.params, false);
    fit_weights(&model.vit.model, checkpoint, &model.origin.model, NULL, 0, INFLATE_NONE);
    if (!run_folder_normalisation(model.mean, model.std, checkpoint)) die("it does not say how pixels are normalised");
    run_folder_classes(&model.names, checkpoint);
    if (!class_names_complete(&model.names, model.vit.settings.num_classes)) class_names_free(&model.names);
}

/* == Sizes ======================================================================================================== */

EMSCRIPTEN_KEEPALIVE int browser_height(void) { return model.vit.settings.img_size[0]; }
EMSCRIPTEN_KEEPALIVE int browser_width(void) { return model.vit.settings.img_size[1]; }
EMSCRIPTEN_KEEPALIVE int browser_classes(void) { return model.vit.settings.num_classes; }
EMSCRIPTEN_KEEPALIVE int browser_rows(void) { return model.vit.trunk.grid.rows; }
EMSCRIPTEN_KEEPALIVE int browser_columns(void) { return model.vit.trunk.grid.columns; }
EMSCRIPTEN_KEEPALIVE int browser_blocks(void) { return model.vit.trunk.depth; }
EMSCRIPTEN_KEEPALIVE int browser_heads(void) { return model.vit.trunk.stages[0].config.heads; }
EMSCRIPTEN_KEEPALIVE double browser_parameters(void) { return (double)model.vit.model.params.parameters; }

EMSCRIPTEN_KEEPALIVE const char *browser_operator(void) {
    static char names[VIT_ATTN_SIZE];
    return vit_attn_names(&model.vit.settings, names);
}

/* "" where the checkpoint does not name its classes. */
EMSCRIPTEN_KEEPALIVE const char *browser_class(int i) { return i < model.names.count ? model.names.at[i] : ""; }

/* == Pictures ===================================================================================================== */

static void forward(bool training) {
    model_set_training(&model.vit.model, training);
    vit_forward(&model.vit, 1, false);
}

/* pixels [height,width,3] -> logits [classes], with the plan of inference, which is the faster one. */
EMSCRIPTEN_KEEPALIVE void browser_classify(const uint8_t *pixels, float *logits) {
    model_set_training(&model.vit.model, false);
    vit_load_pixels(&model.vit, pixels, model.mean, model.std, 1);
    forward(false);
    real_download(logits, model.vit.logits, (size_t)browser_classes());
    model.attended = false;
}

/* The picture that was classified last: the weights [rows,columns] with which a head takes up the values of the other
 * tokens for the token at that place of the grid.  0: its operator has no such weights, or there are several grids. */
EMSCRIPTEN_KEEPALIVE int browser_attention(const uint8_t *pixels, int block, int head, int token, float *weights) {
    const Trunk *trunk = &model.vit.trunk;
    if (model.vit.settings.dim.count > 1) return 0;
    const Attention *a = &trunk_block(trunk, block)->attention;
    int size = browser_rows() * browser_columns(), before = a->N - size; /* tokens in front of the grid's */
    if (!a->op->weights) return 0;
    if (!model.attended) {
        model_set_training(&model.vit.model, true);
        vit_load_pixels(&model.vit, pixels, model.mean, model.std, 1);
        forward(true);
        model.attended = true;
    }
    float *row = xcalloc((size_t)a->N, sizeof *row, "a row of attention");
    a->op->weights(a, row, 0, head, before + token);
    memcpy(weights, row + before, (size_t)size * sizeof *weights);
    free(row);
    return 1;
}
