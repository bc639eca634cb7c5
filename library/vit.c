/* The calls of vit.h.  What they call ends the process where something is wrong (core/die.h); here it comes back instead:
 * `attempt` runs a step of a call in a scope (library/scope.h), die returns to it with the message, and memory that the
 * step has allocated is freed. */
#include "library/vit.h"

#include <locale.h>
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/config/config.h"
#include "core/die.h"
#include "core/files.h"
#include "core/json_memory.h"
#include "core/results/class_names.h"
#include "core/text.h"
#include "core/version.h"
#include "data/images/picture.h"
#include "kernels/kernels.h"
#include "layers/vit/vit.h"
#include "library/exceptions.h"
#include "library/scope.h"
#include "training/checkpoint.h"
#include "training/run_folder.h"

struct vit_model {
    Config config;
    Vit vit;
    const TransformSettings *transform;
    ClassNames names;
    int threads;        /* the most for which there is memory */
    char operators[VIT_ATTN_SIZE];
    float mean[3], std[3];
    int data_size[2];   /* height and width of the data set's images; 0: they differ */
    uint8_t *pixels;    /* [Hi,Wi,3] of the image that was classified last */
    float *logits;      /* [C] */
    bool classified;    /* there is such an image */
    bool attended;      /* the training plan, which keeps what attention is read from, has seen it */
};

/* == Turns ======================================================================================================== */

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local struct {
    jmp_buf failed;
    char message[sizeof(((vit_error *)0)->text)];
} call;

static void come_back(int status, const char *message) {
    (void)status;
    snprintf(call.message, sizeof call.message, "%s", message);
    text_make_printable(call.message);
    longjmp(call.failed, 1);
}

static bool fail(vit_error *error, const char *text) {
    if (error) snprintf(error->text, sizeof error->text, "%s", text);
    return false;
}

static void run(void (*step)(void *context), void *context) {
    char thrown[256];
    if (exceptions_run(step, context, thrown, sizeof thrown)) return;
    kernels_recover();
    die("%s", thrown);
}

/* Runs step(context) in a turn of its own.  False: it has died, with the reason in *error. */
static bool attempt(void (*step)(void *context), void *context, vit_error *error) {
    pthread_mutex_lock(&turn);
    die_in_library(come_back, scope_share);
    json_memory_begin();
    int threads = omp_get_max_threads(); /* of this thread of the caller */
    locale_t points = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0); /* in numbers: the caller may have set commas */
    locale_t before = points ? uselocale(points) : (locale_t)0;
    scope_begin();
    bool failed = setjmp(call.failed) != 0;
    if (!failed) run(step, context);
    scope_end(failed);
    if (points) uselocale(before), freelocale(points);
    omp_set_num_threads(threads);
    json_memory_end();
    safetensors_hold(NULL, NULL, 0);
    pthread_mutex_unlock(&turn);
    fail(error, failed ? call.message : "");
    return !failed;
}

/* == Models ======================================================================================================= */

/* The lines of a checkpoint's settings that are the model's or say how images are resized; the others are those of its
 * training. */
static char *known_lines(const Config *config, char *text) {
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

static void read_settings(vit_model *m, const char *path) {
    char *text = run_folder_config(path);
    if (!text) die("%s: no settings in it: expected a checkpoint that train_vit has written", path);
    config_init(&m->config, "config");
    VitSettings *s = vit_add_settings(&m->config);
    m->transform = config_add(&m->config, &transform_settings);
    char *lines = known_lines(&m->config, text);
    config_try_text(&m->config, lines, strlen(lines), path, &error_fatal);
    vit_use_settings(&m->config);
    s->recompute = false; /* recomputing would overwrite what vit_attention reads */
    config_try_set(&m->config, "castling_mask", "0", path, &error_fatal); /* a branch of training alone */
    transform_check(&m->config, m->transform, s->img_size[0], s->img_size[1]);
    if (s->num_classes < 1) die("%s: not a classifier's checkpoint, such as train_vit writes", path);
    if (s->frames > 1) die("%s: a model of clips of %d frames; this library classifies images", path, s->frames);
    free(lines);
    free(text);
}

typedef struct {
    const char *path;  /* the file's path, or for a checkpoint in memory its name in messages */
    const void *bytes; /* NULL: read from the file */
    size_t size;
    vit_model *model;
} Opening;

static void open_model(void *context) {
    Opening *o = context;
    uint8_t *read = NULL;
    Error error;
    if (!o->bytes && !file_read(o->path, SIZE_MAX, &read, &o->size, &error)) die("%s: %s", o->path, error.text);
    safetensors_hold(o->path, read ? read : o->bytes, o->size);
    vit_model *m = o->model = xcalloc(1, sizeof *m, "a model");
    read_settings(m, o->path);
    Vit *vit = &m->vit;
    const VitSettings *s = &vit->settings;
    vit_create(vit, &m->config);
    m->threads = omp_get_max_threads();
    vit_plan(vit, 1, true);
    vit_allocate(vit);
    params_allocate(&vit->model.params, false);
    checkpoint_load_weights(&vit->model.params, o->path, NULL);
    if (!run_folder_normalisation(m->mean, m->std, o->path)) die("%s: it does not say how pixels are normalised", o->path);
    run_folder_image_size(m->data_size, o->path);
    run_folder_classes(&m->names, o->path);
    class_names_extend(&m->names, s->num_classes);
    vit_attn_names(s, m->operators);
    m->pixels = host_malloc(3 * (size_t)vit_height(m) * (size_t)vit_width(m), "an image");
    m->logits = xcalloc((size_t)s->num_classes, sizeof *m->logits, "logits");
    free(read);
}

vit_model *vit_open(const char *path, vit_error *error) {
    Opening o = {.path = path};
    return attempt(open_model, &o, error) ? o.model : NULL;
}

vit_model *vit_open_memory(const void *data, size_t bytes, vit_error *error) {
    Opening o = {.path = "checkpoint", .bytes = data ? data : "", .size = data ? bytes : 0};
    return attempt(open_model, &o, error) ? o.model : NULL;
}

static void close_model(void *context) {
    vit_model *m = context;
    class_names_free(&m->names);
    host_free(m->pixels);
    free(m->logits);
    vit_destroy(&m->vit);
    config_free(&m->config);
    free(m);
}

void vit_close(vit_model *m) {
    if (m) attempt(close_model, m, NULL);
}

const char *vit_version(void) { return VIT_VERSION; }
int vit_height(const vit_model *m) { return m->vit.settings.img_size[0]; }
int vit_width(const vit_model *m) { return m->vit.settings.img_size[1]; }
int vit_classes(const vit_model *m) { return m->vit.settings.num_classes; }
const char *vit_operator(const vit_model *m) { return m->operators; }
size_t vit_parameters(const vit_model *m) { return m->vit.model.params.parameters; }

const char *vit_class_name(const vit_model *m, int index) {
    return index >= 0 && index < m->names.count && *m->names.at[index] ? m->names.at[index] : NULL;
}

/* == Classification =============================================================================================== */

typedef struct {
    vit_model *model;
    const char *path;      /* of an image, or NULL for pixels */
    const uint8_t *pixels;
    int height, width;
    float *probabilities;
} Classifying;

static void prepare(const Classifying *c) {
    vit_model *m = c->model;
    int size[2] = {vit_height(m), vit_width(m)};
    bool whole = m->data_size[0] == size[0] && m->data_size[1] == size[1];
    Transform transform = {.height = size[0], .width = size[1], .s = *m->transform};
    TransformScratch scratch = {0};
    Error error;
    if (!c->path && (c->height < 1 || c->width < 1 || c->height > IMAGE_MAX_SIDE || c->width > IMAGE_MAX_SIDE))
        die("an image of %d x %d pixels, expected 1 to %d a side", c->height, c->width, IMAGE_MAX_SIDE);
    bool ok = c->path ? picture_of_file(m->pixels, c->path, &transform, whole, &scratch, &error)
                      : picture_of_pixels(m->pixels, c->pixels, c->height, c->width, &transform, whole, &scratch, &error);
    transform_scratch_free(&scratch); /* before it dies: libjpeg's memory is not of the scope */
    if (!ok) die("%s%s%s", c->path ? c->path : "", c->path ? ": " : "", error.text);
}

static void limit_threads(const vit_model *m) {
    if (omp_get_max_threads() > m->threads) omp_set_num_threads(m->threads);
}

static void classify(void *context) {
    Classifying *c = context;
    vit_model *m = c->model;
    int C = vit_classes(m);
    double largest = -INFINITY, sum = 0;
    m->classified = m->attended = false;
    limit_threads(m);
    prepare(c);
    model_set_training(&m->vit.model, false);
    vit_load_pixels(&m->vit, m->pixels, m->mean, m->std, 1);
    vit_forward(&m->vit, 1, false);
    real_download(m->logits, m->vit.logits, (size_t)C);
    for (int i = 0; i < C; i++) {
        if (!isfinite(m->logits[i])) die("the model's output is not finite: its weights are damaged, or too large");
        largest = fmax(largest, m->logits[i]);
    }
    for (int i = 0; i < C; i++) sum += exp(m->logits[i] - largest);
    for (int i = 0; i < C; i++) c->probabilities[i] = (float)(exp(m->logits[i] - largest) / sum);
    m->classified = true;
}

bool vit_classify(vit_model *m, const uint8_t *pixels, int height, int width, float *probabilities, vit_error *error) {
    if (!pixels) return fail(error, "an image without pixels");
    Classifying c = {.model = m, .pixels = pixels, .height = height, .width = width, .probabilities = probabilities};
    return attempt(classify, &c, error);
}

bool vit_classify_file(vit_model *m, const char *path, float *probabilities, vit_error *error) {
    return attempt(classify, &(Classifying){.model = m, .path = path, .probabilities = probabilities}, error);
}

static void require_image(const vit_model *m) {
    if (!m->classified) die("no image has been classified, or the last one could not be");
}

static void copy_logits(void *context) {
    const Classifying *c = context;
    require_image(c->model);
    memcpy(c->probabilities, c->model->logits, (size_t)vit_classes(c->model) * sizeof(float));
}

bool vit_logits(vit_model *m, float *logits, vit_error *error) {
    return attempt(copy_logits, &(Classifying){.model = m, .probabilities = logits}, error);
}

/* == Attention ==================================================================================================== */

/* Several stages have several grids. */
int vit_blocks(const vit_model *m) {
    const Trunk *trunk = &m->vit.trunk;
    bool weighs = m->vit.settings.dim.count == 1;
    for (int i = 0; weighs && i < trunk->depth; i++) weighs = trunk_block(trunk, i)->attention.op->weights != NULL;
    return weighs ? trunk->depth : 0;
}

int vit_heads(const vit_model *m) { return m->vit.trunk.stages[0].config.heads; }
int vit_rows(const vit_model *m) { return m->vit.trunk.grid.rows; }
int vit_columns(const vit_model *m) { return m->vit.trunk.grid.columns; }

typedef struct {
    vit_model *model;
    int block, head, token;
    float *weights;
} Attending;

static void attend(void *context) {
    Attending *t = context;
    vit_model *m = t->model;
    const Attention *a = &trunk_block(&m->vit.trunk, t->block)->attention;
    int size = vit_rows(m) * vit_columns(m), before = a->N - size; /* tokens in front of the grid's */
    require_image(m);
    limit_threads(m);
    if (!m->attended) {
        model_set_training(&m->vit.model, true);
        vit_load_pixels(&m->vit, m->pixels, m->mean, m->std, 1);
        vit_forward(&m->vit, 1, false);
        m->attended = true;
    }
    float *row = xcalloc((size_t)a->N, sizeof *row, "a row of attention");
    a->op->weights(a, row, 0, t->head, before + t->token);
    memcpy(t->weights, row + before, (size_t)size * sizeof *row);
    free(row);
}

bool vit_attention(vit_model *m, int block, int head, int token, float *weights, vit_error *error) {
    if (!vit_blocks(m)) return fail(error, "this model has no attention weights on one grid");
    if (block < 0 || block >= vit_blocks(m) || head < 0 || head >= vit_heads(m)) return fail(error, "no such block or head");
    if (token < 0 || token >= vit_rows(m) * vit_columns(m)) return fail(error, "no such token");
    return attempt(attend, &(Attending){m, block, head, token, weights}, error);
}
