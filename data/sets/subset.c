#include "data/sets/subset.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/rng.h"

/* == Labels ======================================================================================================= */

int *dataset_labels(const Dataset *d) {
    int *labels = xcalloc(d->count, sizeof *labels, "the labels of images");
    SampleBuffer buffer = {0};
    Sample sample;
    Error error;
    for (size_t i = 0; i < d->count; i++) {
        if (d->label) labels[i] = d->label(d, i);
        else if (dataset_read(d, i, &buffer, &sample, &error)) labels[i] = sample.label;
        else die("%s", error.text);
    }
    free(buffer.bytes);
    return labels;
}

/* == A view ======================================================================================================= */

/* The data set that two views share. */
typedef struct {
    Dataset whole;
    int views;
} Shared;

typedef struct {
    Shared *shared;
    uint32_t *index; /* [count]: of the image in the whole data set */
} View;

static const View *view_of(const Dataset *d) { return d->state; }

static void view_get(const Dataset *d, size_t i, uint8_t *pixels, int *label) {
    const Dataset *whole = &view_of(d)->shared->whole;
    whole->get(whole, view_of(d)->index[i], pixels, label);
}

static bool view_read(const Dataset *d, size_t i, SampleBuffer *buffer, Sample *sample, Error *error) {
    const Dataset *whole = &view_of(d)->shared->whole;
    return whole->read(whole, view_of(d)->index[i], buffer, sample, error);
}

static int view_label(const Dataset *d, size_t i) {
    const Dataset *whole = &view_of(d)->shared->whole;
    return whole->label(whole, view_of(d)->index[i]);
}

static void view_describe(const Dataset *d, size_t i, char *text, size_t size) {
    dataset_name_image(&view_of(d)->shared->whole, view_of(d)->index[i], text, size);
}

static void view_key(const Dataset *d, size_t i, char *text, size_t size) {
    dataset_key(&view_of(d)->shared->whole, view_of(d)->index[i], text, size);
}

static bool is_view(const Dataset *d) { return d->describe == view_describe; }

const Dataset *subset_whole(const Dataset *d) { return is_view(d) ? &view_of(d)->shared->whole : d; }

size_t subset_index(const Dataset *d, size_t i) { return is_view(d) ? view_of(d)->index[i] : i; }

static void view_close(Dataset *d) {
    View *view = d->state;
    if (!--view->shared->views) {
        dataset_close(&view->shared->whole);
        free(view->shared);
    }
    free(view->index);
    free(view);
}

/* Makes the view of the images of the shared data set for which held[i] is `which`. */
static void view_open(Dataset *d, Shared *shared, const uint8_t *held, uint8_t which) {
    const Dataset *whole = &shared->whole;
    View *view = xcalloc(1, sizeof *view, "a part of a data set");
    *d = *whole;
    d->count = 0;
    for (size_t i = 0; i < whole->count; i++) d->count += held[i] == which;
    view->shared = shared;
    view->index = xcalloc(d->count, sizeof *view->index, "a part of a data set");
    for (size_t i = 0, at = 0; i < whole->count; i++)
        if (held[i] == which) view->index[at++] = (uint32_t)i;
    d->get = whole->get ? view_get : NULL;
    d->read = whole->read ? view_read : NULL;
    d->label = whole->label ? view_label : NULL;
    d->describe = view_describe;
    d->key = view_key;
    d->close = view_close;
    d->state = view;
    shared->views++;
}

/* == Which images are held ======================================================================================== */

typedef struct {
    uint64_t key; /* the images of a class with the smallest keys are held */
    uint32_t index;
    int label;
} Place;

static int by_label_and_key(const void *a, const void *b) {
    const Place *p = a, *q = b;
    if (p->label != q->label) return p->label < q->label ? -1 : 1;
    if (p->key != q->key) return p->key < q->key ? -1 : 1;
    return p->index < q->index ? -1 : p->index > q->index;
}

/* 64 random bits for that seed and the FNV-1a hash of that name. */
static uint64_t key_of(uint64_t seed, const char *name) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name; name++) hash = (hash ^ (uint8_t)*name) * 0x100000001b3u;
    uint32_t low = (uint32_t)hash, high = (uint32_t)(hash >> 32);
    return (uint64_t)rng_bits(seed, RNG_HOLD_OUT, low, high, 0) << 32 | rng_bits(seed, RNG_HOLD_OUT, low, high, 1);
}

static Place *places_of(const Dataset *whole, uint64_t seed) {
    Place *places = xcalloc(whole->count, sizeof *places, "the names of images");
    int *labels = dataset_labels(whole);
    char name[DATASET_PATH + 512];
    for (size_t i = 0; i < whole->count; i++) {
        dataset_key(whole, i, name, sizeof name);
        places[i] = (Place){key_of(seed, name), (uint32_t)i, labels[i]};
    }
    free(labels);
    qsort(places, whole->count, sizeof *places, by_label_and_key);
    return places;
}

/* How many images of a class are held.  A fraction that was a float can be a little less than the decimal that a user
 * wrote: 0.02 of 25 images is one image.  Larger shares are not corrected, because existing runs have been split with
 * them. */
static size_t share_of(size_t count, double fraction) {
    long share = lround(fraction * (double)count);
    return (size_t)(share ? share : lround(fraction * (double)count * (1 + (double)FLT_EPSILON)));
}

static bool refuse_class(const Dataset *whole, int label, size_t count, double fraction, bool none, Error *error) {
    char name[64];
    if (whole->class_names) snprintf(name, sizeof name, "class %.50s", whole->class_names[label]);
    else snprintf(name, sizeof name, "class %d", label);
    if (count == 1) return refuse(error, "%g of %s, which has one image, cannot validate: it needs two", fraction, name);
    if (none)
        return refuse(error, "%g of the %zu images of %s leaves none to validate: at least %.2g is needed", fraction,
                      count, name, ceil(50.0 / (double)count) / 100);
    return refuse(error, "%g of the %zu images of %s leaves none to train on", fraction, count, name);
}

bool subset_divide(Dataset *rest, Dataset *held, Dataset *whole, double fraction, uint64_t seed, Error *error) {
    Place *places = places_of(whole, seed);
    uint8_t *is_held = xcalloc(whole->count, 1, "a part of a data set");
    size_t fewest = 0; /* images of a class of which none or all would be held */
    int refused = 0;
    for (size_t first = 0, end; first < whole->count; first = end) {
        for (end = first; end < whole->count && places[end].label == places[first].label;) end++;
        size_t count = end - first, share = share_of(count, fraction);
        for (size_t i = first; i < first + share; i++) is_held[places[i].index] = 1;
        if ((share == 0 || share == count) && (!fewest || count < fewest)) {
            fewest = count;
            refused = places[first].label;
        }
    }
    bool ok = !fewest || refuse_class(whole, refused, fewest, fraction, share_of(fewest, fraction) == 0, error);
    if (ok) {
        Shared *shared = xcalloc(1, sizeof *shared, "a data set");
        shared->whole = *whole;
        view_open(rest, shared, is_held, 0);
        view_open(held, shared, is_held, 1);
    }
    free(is_held);
    free(places);
    return ok;
}
