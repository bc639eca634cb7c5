/* The contents of a run's page besides its log: the model, the first batch as the model sees it, and for each
 * evaluation the confusion of classes and the images with the highest losses.  run_attention.c adds the attention of
 * one image. */
#include "layers/vit/run.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/progress.h"
#include "core/text_stream.h"
#include "kernels/kernels.h"

enum {
    BATCH_PICTURES = 16, BATCH_SIDE = 64, WRONG_SIDE = 72, /* sides in pixels to which larger images are scaled down */
    MOST_IN_MATRIX = 40,     /* largest number of classes in a confusion matrix that is shown as a whole */
    MOST_IN_TABLE = 20,      /* largest number of classes in a table with all of them */
    EXTREMES = 10,           /* number of hardest and of easiest classes, if there are more */
    PAIRS = 20,              /* number of most confused pairs of classes, likewise */
    MOST_WITH_PAIRS = 1000,  /* largest number of classes whose pairs are counted: 8 MB */
    CELLS = 256
};

static const char purpose[] = "the page of the run";

/* == Texts ======================================================================================================== */

/* Captions, or the cells of a table, row by row. */
typedef struct {
    char *at[CELLS];
    int count;
} Texts;

__attribute__((format(printf, 2, 3))) static void put(Texts *texts, const char *format, ...) {
    TextStream text;
    va_list arguments;
    va_start(arguments, format);
    vfprintf(text_open(&text), format, arguments);
    va_end(arguments);
    texts->at[texts->count++] = text_close(&text, purpose);
}

static void texts_free(Texts *texts) {
    while (texts->count) free(texts->at[--texts->count]);
}

static void put_table(Facts *facts, const char *id, const char *title, const char *const *names, int columns,
                      Texts *cells) {
    facts_table(facts, id, title, names, columns, (const char *const *)cells->at, cells->count / columns);
    texts_free(cells);
}

enum { NUMBER = 64 };

/* The name of a class or, if it has none, its number, which is written to `number`. */
static const char *class_name(const VitRun *run, int class, char number[NUMBER]) {
    const Dataset *d = &run->train;
    if (d->class_names && class < d->classes) return d->class_names[class];
    snprintf(number, NUMBER, "class %d", class);
    return number;
}

/* == The model ==================================================================================================== */

/* "ripple and linear": the operators of a stage's blocks, of which some have another one in their later blocks. */
static void operators_of(char text[NUMBER], const Stage *stage) {
    int used = 0;
    for (int i = 0; i < stage->config.depth && used < NUMBER; i++) {
        const AttentionOp *op = stage->blocks[i].attention.op;
        int before = 0;
        while (before < i && stage->blocks[before].attention.op != op) before++;
        if (before == i) used += snprintf(text + used, (size_t)(NUMBER - used), i ? " and %s" : "%s", op->name);
    }
}

static void depth_of(char text[NUMBER], const Stage *s) { snprintf(text, NUMBER, "%d", s->config.depth); }
static void heads_of(char text[NUMBER], const Stage *s) { snprintf(text, NUMBER, "%d", s->config.heads); }
static void dim_of(char text[NUMBER], const Stage *s) { snprintf(text, NUMBER, "%d", s->config.dim); }

/* The values of all stages, "64, 128 and 256", or one value if all are equal. */
static void put_stages(FILE *out, const Vit *vit, void (*of)(char[NUMBER], const Stage *)) {
    char texts[VIT_MAX_STAGES][NUMBER];
    int n = vit_stages(&vit->settings), same = 1;
    for (int i = 0; i < n; i++) {
        of(texts[i], &vit->trunk.stages[i]);
        same += i > 0 && !strcmp(texts[i], texts[0]);
    }
    for (int i = 0; i < (same == n ? 1 : n); i++) fprintf(out, "%s%s", !i ? "" : i + 1 < n ? ", " : " and ", texts[i]);
}

static void put_grids(FILE *out, const Trunk *t) {
    char first[VIT_GRID_SIZE], last[VIT_GRID_SIZE];
    vit_grid_text(first, t->grid, " x ");
    vit_grid_text(last, trunk_last(t)->grid, " x ");
    fputs(first, out);
    if (strcmp(first, last)) fprintf(out, " to %s", last);
}

static void put_patches(FILE *out, const Vit *vit) {
    const VitSettings *s = &vit->settings;
    const Tokenizer *tokenizer = &vit->trunk.embeddings[0].tokenizer;
    if (s->stem == STEM_CONV)
        fprintf(out, "a convolutional tokenizer of %d layers", tokenizer->settings.tokenizer_convs);
    else
        fprintf(out, "%spatches of %d x %d %s", s->patch_overlap ? "overlapping " : "", s->patch_size, s->patch_size,
                s->stem == STEM_HYBRID ? "features of a ResNet stem" : "pixels");
}

/* "4 ripple blocks with 2 heads on 8 x 8 tokens of 128 channels, after patches of 4 x 4 pixels; a class token" */
static void put_sentence(FILE *out, const Vit *vit) {
    static const char *const pools[] = {"a class token", "global average pooling", "global average pooling",
                                        "sequence pooling"};
    const VitSettings *s = &vit->settings;
    int stages = vit_stages(s);
    if (stages > 1) fprintf(out, "%d stages of ", stages);
    put_stages(out, vit, depth_of);
    fputc(' ', out);
    put_stages(out, vit, operators_of);
    fprintf(out, " block%s with ", vit->trunk.depth > 1 ? "s" : "");
    put_stages(out, vit, heads_of);
    fprintf(out, " head%s on ", s->heads.count > 1 || s->heads.at[0] > 1 ? "s" : "");
    put_grids(out, &vit->trunk);
    fputs(" tokens of ", out);
    put_stages(out, vit, dim_of);
    fputs(" channels, after ", out);
    put_patches(out, vit);
    fprintf(out, "; %s%s", pools[s->pool], s->distilled ? " and a distillation token" : "");
}

static size_t block_parameters(const Vit *vit, const Stage *stage) {
    size_t sum = 0;
    for (int i = 0; i < stage->config.depth; i++)
        sum += params_size_of(&vit->model.params, stage->blocks[i].prefix);
    return sum;
}

/* The blocks of each stage, and in a last row the layers before, between and after them. */
static void put_stages_table(Facts *facts, const Vit *vit) {
    static const char *const names[] = {"layers", "operator", "blocks", "dim", "heads", "tokens", "MLP ratio",
                                        "parameters", "million multiply-adds"};
    size_t parameters = vit->model.params.parameters, macs = vit_macs(vit);
    Texts cells = {.count = 0};
    for (int i = 0; i < vit_stages(&vit->settings); i++) {
        const Stage *stage = &vit->trunk.stages[i];
        const StageConfig *c = &stage->config;
        size_t own = block_parameters(vit, stage), own_macs = stage_macs(stage);
        char grid[VIT_GRID_SIZE], operators[NUMBER];
        operators_of(operators, stage);
        put(&cells, "%sblocks", stage->prefix);
        put(&cells, "%s", operators);
        put(&cells, "%d", c->depth);
        put(&cells, "%d", c->dim);
        put(&cells, "%d", c->heads);
        vit_grid_text(grid, stage->grid, " x ");
        if (stage->front.count) put(&cells, "%s + %d", grid, stage->front.count);
        else put(&cells, "%s", grid);
        put(&cells, "%g", (double)c->mlp_ratio);
        put(&cells, "%zu", own);
        put(&cells, "%.2f", (double)own_macs / 1e6);
        parameters -= own;
        macs -= own_macs;
    }
    put(&cells, "patches, norms, classifier");
    for (int i = 0; i < 6; i++) put(&cells, "%s", "");
    put(&cells, "%zu", parameters);
    put(&cells, "%.2f", (double)macs / 1e6);
    put_table(facts, "model", "The model", names, 9, &cells);
}

/* == The first batch ============================================================================================== */

/* The two classes with the largest shares of an image's target; a smoothed target has a little of each. */
static void put_target(Texts *captions, const VitRun *run, const float *target) {
    int C = run->model_settings->num_classes, first = 0, second = -1;
    float smoothing = run->target->label_smoothing, least = smoothing / (float)C;
    char number[2][NUMBER];
    for (int c = 1; c < C; c++)
        if (target[c] > target[first]) first = c;
    for (int c = 0; c < C; c++)
        if (c != first && target[c] > least + 0.005f && (second < 0 || target[c] > target[second])) second = c;
    const char *name = class_name(run, first, number[0]);
    double share = second < 0 ? 0 : 100 * (double)((target[second] - least) / (1 - smoothing));
    if (second < 0) put(captions, "%s", name);
    else put(captions, "%s %.0f\u00a0%%, %s %.0f\u00a0%%", name, 100 - share, class_name(run, second, number[1]), share);
}

/* pixels [Hi,Wi,3] of the model's x [3,Hi,Wi]. */
static void pixels_of(uint8_t *pixels, const float *x, const Dataset *d, size_t area) {
    for (size_t c = 0; c < 3; c++)
        for (size_t i = 0; i < area; i++) {
            float value = 255 * (x[c * area + i] * d->std[c] + d->mean[c]);
            pixels[3 * i + c] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value + 0.5f);
        }
}

void vit_facts_batch(VitRun *run, int n) {
    VitPage *page = &run->page;
    if (!page->batch_left || run->training.state.step) return;
    const VitSettings *s = run->model_settings;
    Facts *facts = training_facts(&run->training);
    size_t area = (size_t)s->img_size[0] * (size_t)s->img_size[1], frames = (size_t)s->frames;
    float *x = xcalloc(3 * area, sizeof *x, purpose);
    uint8_t *pixels = xcalloc(3, area, purpose);
    int apart = mixup_is_on(run->mixup) ? 2 : 1; /* the two samples of a pair are mixed of the same images */
    Texts captions = {.count = 0};
    if (page->batch_left == BATCH_PICTURES)
        facts_pictures(facts, "batch", "The first training batch",
                       frames > 1 ? "The middle frames of clips as the model sees them, after augmentation and mixing."
                                  : "As the model sees it, after augmentation and mixing.");
    for (int i = 0; i < n && page->batch_left; i += apart, page->batch_left--) {
        real_download(x, run->vit.images + ((size_t)i * frames + frames / 2) * 3 * area, 3 * area);
        pixels_of(pixels, x, &run->train, area);
        put_target(&captions, run, run->targets + (size_t)i * (size_t)s->num_classes);
        facts_picture(facts, "batch", pixels, s->img_size[0], s->img_size[1], BATCH_SIDE,
                      captions.at[captions.count - 1]);
    }
    texts_free(&captions);
    free(pixels);
    free(x);
}

/* == Classes ====================================================================================================== */

/* The class that was predicted for most images of this class, or -1. */
static int rival_of(const Confusion *c, int label) {
    const double *row = c->matrix + (size_t)label * (size_t)c->classes;
    int rival = -1;
    for (int i = 0; i < c->classes; i++)
        if (i != label && row[i] > 0 && (rival < 0 || row[i] > row[rival])) rival = i;
    return rival;
}

/* Writes to list [most] the classes with the lowest, or with `easy` the highest, share of correct images, in this
 * order; returns their number. */
static int extreme_classes(int *list, int most, const Confusion *c, bool easy) {
    int count = 0;
    for (int class = 0; class < c->classes; class ++) {
        if (c->images[class] < 1) continue;
        double share = c->top1[class] / c->images[class];
        int place = count;
        for (; place > 0; place--) {
            double other = c->top1[list[place - 1]] / c->images[list[place - 1]];
            if (easy ? share <= other : share >= other) break;
            if (place < most) list[place] = list[place - 1];
        }
        if (place < most) list[place] = class;
        if (place < most && count < most) count++;
    }
    return count;
}

static void put_classes(Facts *facts, const VitRun *run, const char *id, const char *title, bool easy) {
    const char *const names[] = {"class", run->training.unit, "top-1 %", "most often taken for"};
    const Confusion *c = &run->evaluation.confusion;
    int list[MOST_IN_TABLE], most = c->classes > MOST_IN_TABLE ? EXTREMES : MOST_IN_TABLE;
    int count = extreme_classes(list, most, c, easy), columns = c->matrix ? 4 : 3;
    char number[NUMBER];
    Texts cells = {.count = 0};
    for (int i = 0; i < count; i++) {
        int class = list[i], rival = c->matrix ? rival_of(c, class) : -1;
        put(&cells, "%s", class_name(run, class, number));
        put(&cells, "%.0f", c->images[class]);
        put(&cells, "%.2f", 100 * c->top1[class] / c->images[class]);
        if (c->matrix) put(&cells, "%s", rival < 0 ? "" : class_name(run, rival, number));
    }
    put_table(facts, id, title, names, columns, &cells);
}

typedef struct {
    int label, predicted;
    double images;
} Pair;

static int confused_pairs(Pair *list, const Confusion *c) {
    int count = 0;
    const double *images = c->matrix;
    for (int label = 0; label < c->classes; label++)
        for (int predicted = 0; predicted < c->classes; predicted++, images++) {
            if (label == predicted || *images < 1 || (count == PAIRS && *images <= list[PAIRS - 1].images)) continue;
            int place = count < PAIRS ? count++ : PAIRS - 1;
            for (; place > 0 && *images > list[place - 1].images; place--) list[place] = list[place - 1];
            list[place] = (Pair){label, predicted, *images};
        }
    return count;
}

static void put_pairs(Facts *facts, const VitRun *run, const char *title) {
    const char *const names[] = {"true", "predicted", run->training.unit, "% of the class"};
    const Confusion *c = &run->evaluation.confusion;
    Pair list[PAIRS];
    int count = confused_pairs(list, c);
    char number[NUMBER];
    Texts cells = {.count = 0};
    for (int i = 0; i < count; i++) {
        put(&cells, "%s", class_name(run, list[i].label, number));
        put(&cells, "%s", class_name(run, list[i].predicted, number));
        put(&cells, "%.0f", list[i].images);
        put(&cells, "%.2f", 100 * list[i].images / c->images[list[i].label]);
    }
    put_table(facts, "confusion", title, names, 4, &cells);
}

static void put_confusion(Facts *facts, const VitRun *run, const char *when) {
    const Confusion *c = &run->evaluation.confusion;
    const Dataset *d = &run->train;
    const char *const *names = d->class_names && d->classes == c->classes ? d->class_names : NULL;
    char title[96];
    if (c->matrix && c->classes <= MOST_IN_MATRIX) {
        snprintf(title, sizeof title, "Confusion matrix of the %s", when);
        facts_heat(facts, "confusion", title, "true class", "predicted class", names, c->classes, names, c->classes,
                   c->matrix);
    } else if (c->matrix) {
        snprintf(title, sizeof title, "Most confused pairs of the %s", when);
        put_pairs(facts, run, title);
    }
    if (c->classes <= MOST_IN_TABLE) {
        put_classes(facts, run, "classes", "Classes, the hardest first", false);
        return;
    }
    put_classes(facts, run, "hardest", "Hardest classes", false);
    put_classes(facts, run, "easiest", "Easiest classes", true);
}

/* == The highest losses =========================================================================================== */

void vit_facts_add(VitRun *run, const uint8_t *pixels, int label, const float *logits, const Outcome *found) {
    VitPage *page = &run->page;
    WrongImage *list = page->wrong;
    size_t size = vit_pixels(run->model_settings);
    if (!page->is_due) return;
    if (!page->images++) memcpy(run->pixels, pixels, size);
    bool full = page->count == WRONG_IMAGES;
    if (found->place < 1 || found->predicted < 0 || (full && !(found->loss > list[WRONG_IMAGES - 1].loss))) return;
    uint8_t *room = full ? list[WRONG_IMAGES - 1].pixels : page->pixels + (size_t)page->count * size;
    int place = full ? WRONG_IMAGES - 1 : page->count++;
    for (; place > 0 && found->loss > list[place - 1].loss; place--) list[place] = list[place - 1];
    double share = exp((double)logits[found->predicted] - (double)logits[label] - found->loss);
    list[place] = (WrongImage){label, found->predicted, found->loss, 100 * share, room};
    memcpy(room, pixels, size);
}

static void put_wrong(Facts *facts, const VitRun *run, const char *when) {
    const VitPage *page = &run->page;
    const int *size = run->model_settings->img_size;
    char number[2][NUMBER], title[96], text[64];
    Texts captions = {.count = 0};
    snprintf(title, sizeof title, "Highest losses of the %s", when);
    snprintf(text, sizeof text, "Of the %zu images that rank 0 evaluated.", page->images);
    facts_pictures(facts, "wrong", title, distributed_ranks() > 1 ? text : NULL);
    for (int i = 0; i < page->count; i++) {
        const WrongImage *w = &page->wrong[i];
        put(&captions, "%s, taken for %s (%.0f\u00a0%%)", class_name(run, w->label, number[0]),
            class_name(run, w->predicted, number[1]), w->percent);
        facts_picture(facts, "wrong", w->pixels, size[0], size[1], WRONG_SIDE, captions.at[i]);
    }
    texts_free(&captions);
}

/* == The run ====================================================================================================== */

void vit_facts_open(VitRun *run) {
    const Training *t = &run->training;
    const VitSettings *s = run->model_settings;
    Facts *facts = training_facts(&run->training);
    TextStream text;
    if (training_evaluates(t))
        confusion_open(&run->evaluation.confusion, s->num_classes, s->num_classes <= MOST_WITH_PAIRS);
    if (!facts) return;
    put_sentence(text_open(&text), &run->vit);
    char *sentence = text_close(&text, purpose);
    facts_set(facts, "sentence", sentence);
    free(sentence);
    facts_set_number(facts, "macs", (double)vit_macs(&run->vit));
    put_stages_table(facts, &run->vit);
    run->page.batch_left = BATCH_PICTURES;
    if (training_evaluates(t) && !run->test.clips)
        run->page.pixels = xcalloc(WRONG_IMAGES, vit_pixels(s), purpose);
}

/* Pictures are made again after the first and the last evaluation, and if that takes little of the run's time. */
void vit_facts_begin(VitRun *run) {
    const Training *t = &run->training;
    VitPage *page = &run->page;
    page->images = 0;
    page->count = 0;
    page->is_due = page->pixels && (page->seconds <= 0.01 * (now_seconds() - t->started) ||
                                    !training_epoch_follows(t));
}

void vit_facts_end(VitRun *run) {
    const Training *t = &run->training;
    Facts *facts = training_facts(&run->training);
    char when[64];
    if (!facts || t->stopping || run->tested) return;
    double began = now_seconds();
    snprintf(when, sizeof when, "%s %s after epoch %d", vit_run_evaluated(run), t->unit, (int)t->state.epoch + 1);
    put_confusion(facts, run, when);
    if (run->page.is_due && run->page.images) {
        put_wrong(facts, run, when);
        vit_facts_attention(run, when);
    }
    run->page.seconds += now_seconds() - began;
}
