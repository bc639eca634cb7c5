#include "core/results/predictions.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/results/class_names.h"
#include "core/die.h"
#include "core/files.h"
#include "core/json_make.h"
#include "core/text.h"

/* Writes the latest picture as a line. */
static void finish(Predictions *p) {
    if (!p->lines) p->lines = open_memstream(&p->text, &p->size);
    if (!p->lines) die("out of memory: predictions as JSON");
    if (!p->picture) return;
    if (ftell(p->lines) > 0) fputs(",\n", p->lines);
    if (json_dumpf(p->picture, p->lines, JSON_REAL_PRECISION(9)) != 0) die("out of memory: predictions as JSON");
    json_decref(p->picture);
    p->picture = p->found = NULL;
}

static void begin(Predictions *p, const char *file) {
    finish(p);
    p->picture = json_object();
    json_put(p->picture, "file", json_text_of(file));
}

void predictions_begin(Predictions *p, const char *file, int width, int height) {
    if (!p->wanted) return;
    begin(p, file);
    if (width > 0) json_put(p->picture, "width", json_integer(width));
    if (width > 0) json_put(p->picture, "height", json_integer(height));
    p->found = json_array();
    json_put(p->picture, "predictions", p->found);
}

void predictions_fail(Predictions *p, const char *file, const char *reason) {
    if (!p->wanted) return;
    begin(p, file);
    json_put(p->picture, "error", json_text_of(reason));
}

static json_t *add(Predictions *p, int id, const char *name) {
    json_t *object = json_object();
    json_add(p->found, object);
    json_put(object, "id", json_integer(id));
    json_put(object, "name", name && *name ? json_text_of(name) : json_null());
    return object;
}

void predictions_add(Predictions *p, int id, const char *name, double probability) {
    if (p->wanted) json_put(add(p, id, name), "probability", json_number_of(probability));
}

void predictions_add_box(Predictions *p, int id, const char *name, double score, const double box[4]) {
    if (!p->wanted) return;
    json_t *object = add(p, id, name), *numbers = json_array();
    json_put(object, "score", json_number_of(score));
    json_put(object, "box", numbers);
    for (int side = 0; side < 4; side++) json_add(numbers, json_number_of(box[side]));
}

void predictions_add_mask(Predictions *p, const char *counts, int height, int width) {
    if (!p->wanted) return;
    json_t *object = json_array_get(p->found, json_array_size(p->found) - 1);
    json_t *mask = json_object(), *size = json_array();
    json_add(size, json_integer(height));
    json_add(size, json_integer(width));
    json_put(mask, "size", size);
    json_put(mask, "counts", json_text_of(counts));
    json_put(object, "segmentation", mask);
}

void predictions_add_region(Predictions *p, int id, const char *name, double share, int height, int width,
                            const char *counts) {
    if (!p->wanted) return;
    json_put(add(p, id, name), "share", json_number_of(share));
    predictions_add_mask(p, counts, height, width);
}

static bool put(FILE *file, const void *content) {
    const Predictions *p = content;
    return fputs("[\n", file) >= 0 && fwrite(p->text, 1, p->size, file) == p->size && fputs("\n]\n", file) >= 0;
}

int predictions_classes(Predictions *p, const char *file, float *logits, int classes, const char *const *names) {
    ClassScore best[CLASS_BEST];
    int count = class_names_best(best, logits, classes);
    print_line("%s:", file);
    class_names_print_best(names, best, count, stdout);
    predictions_begin(p, file, 0, 0);
    for (int i = 0; i < count; i++)
        predictions_add(p, best[i].class, names ? names[best[i].class] : NULL, best[i].probability);
    return best[0].class;
}

static void print_frame(const FrameScore *f) {
    printf(" %d", f->frame);
    if (isfinite(f->time)) printf(" (%.2f s)", f->time);
    printf(" %.1f %%", 100 * f->probability);
}

void predictions_frames(Predictions *p, const char *name, int class, const FrameScore *frames, int count) {
    if (name && *name) print_line("  frames that alone look most like %s:", name);
    else print_line("  frames that alone look most like class %d:", class);
    for (int i = 0; i < count; i++) {
        if (i) putchar(',');
        print_frame(&frames[i]);
    }
    putchar('\n');
    if (!p->wanted) return;
    json_t *list = json_array();
    json_put(p->picture, "frames", list);
    for (int i = 0; i < count; i++) {
        json_t *object = json_object();
        json_add(list, object);
        json_put(object, "frame", json_integer(frames[i].frame));
        json_put(object, "time", json_number_of(frames[i].time));
        json_put(object, "probability", json_number_of(frames[i].probability));
    }
}

void predictions_write(Predictions *p, const char *path) {
    Error error;
    if (!p->wanted) return;
    finish(p);
    if (fclose(p->lines) != 0) die("out of memory: predictions as JSON");
    if (!file_replace(path, put, p, &error)) die("%s: %s", path, error.text);
    free(p->text);
    *p = (Predictions){0};
}
