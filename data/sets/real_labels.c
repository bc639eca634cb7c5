#include "data/sets/real_labels.h"

#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/json_lists.h"

static bool take_labels(void *state, const JsonValue *labels, uint32_t count, Error *error) {
    RealLabels *real = state;
    size_t used = real->first[real->images];
    real->labels = xgrow(real->labels, used + count, &real->label_room, sizeof *real->labels, "labels");
    real->first = xgrow(real->first, real->images + 2, &real->image_room, sizeof *real->first, "labels");
    for (size_t i = 0; i < count; i++) {
        int64_t label = labels[i].integer;
        if (label < 0 || label >= real->classes)
            return refuse(error, "label %lld, but the data set has %d classes", (long long)label, real->classes);
        real->labels[used + i] = (int)label;
    }
    real->first[++real->images] = used + count;
    return true;
}

/* The number in .../ILSVRC2012_val_00000017.JPEG; 0: there is none. */
static size_t number_in(const char *name) {
    static const char beginning[] = "ILSVRC2012_val_";
    const char *at = NULL;
    for (const char *next = name; (next = strstr(next, beginning)); next++) at = next;
    return at ? strtoull(at + strlen(beginning), NULL, 10) : 0;
}

/* Every image of the data set has its place in the file, and no other image has the same. */
static bool find_images(RealLabels *real, const Dataset *dataset, Error *error) {
    bool *taken = xcalloc(real->images, sizeof *taken, "the images of ImageNet ReaL");
    bool ok = true;
    real->number = xcalloc(dataset->count, sizeof *real->number, "the images of ImageNet ReaL");
    for (size_t i = 0; ok && i < dataset->count; i++) {
        char name[2 * DATASET_PATH];
        dataset_name_image(dataset, i, name, sizeof name);
        size_t number = number_in(name);
        if (!number) {
            ok = refuse(error, "its labels are found by names like ILSVRC2012_val_00000001.JPEG, unlike %s", name);
        } else if (number > real->images) {
            ok = refuse(error, "has labels for %zu images, and none for %s", real->images, name);
        } else if (taken[number - 1]) {
            ok = refuse(error, "%s has the same number as another image", name);
        } else {
            taken[number - 1] = true;
            real->number[i] = number - 1;
        }
    }
    free(taken);
    return ok;
}

bool real_labels_open(RealLabels *real, const char *path, const Dataset *dataset, bool whole, Error *error) {
    const JsonList list = {.take = take_labels};
    *real = (RealLabels){.classes = dataset->classes};
    real->first = xgrow(NULL, 1, &real->image_room, sizeof *real->first, "labels");
    real->first[0] = 0;
    bool ok = json_lists_read(path, &list, 1, real, error);
    if (ok && whole && real->images != dataset->count)
        ok = refuse(error, "has labels for %zu images, but %s has %zu test images", real->images, dataset->name,
                    dataset->count);
    ok = ok && find_images(real, dataset, error);
    if (!ok) real_labels_close(real);
    return ok;
}

const int *real_labels_of(const RealLabels *real, size_t index, size_t *count) {
    const size_t *first = real->first + real->number[index];
    *count = first[1] - first[0];
    return real->labels + first[0];
}

void real_labels_close(RealLabels *real) {
    free(real->labels);
    free(real->first);
    free(real->number);
    *real = (RealLabels){.images = 0};
}
