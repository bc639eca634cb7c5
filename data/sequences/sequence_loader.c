#include "data/sequences/sequence_loader.h"

#include <assert.h>
#include <stdlib.h>

#include "core/die.h"
#include "core/rng.h"

struct SequenceSlot {
    SequencePart part;
    size_t position; /* in the epoch, of the slot's first sequence */
};

/* == Order ======================================================================================================== */

/* As in data/loading/loader.c: Fisher and Yates. */
static void shuffle(SequenceLoader *loader) {
    uint64_t seed = loader->config.seed;
    uint32_t *order = loader->order;
    for (size_t i = 0; i < loader->length; i++) order[i] = (uint32_t)i;
    if (!loader->config.train) return;
    loader->offset = sequences_offset(loader->set, seed, loader->epoch);
    for (size_t i = loader->length - 1; i > 0; i--) {
        uint32_t j = rng_below(seed, RNG_SHUFFLE, loader->epoch, 0, i, (uint32_t)i + 1), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}

/* == One sequence ================================================================================================= */

typedef struct {
    const SequenceLoader *loader;
    TransformScratch *scratch;
    uint8_t *tokens;
    int *scored_from;
} Job;

static bool load_sequence(void *argument, size_t index, Error *error) {
    const Job *job = argument;
    const SequenceLoader *l = job->loader;
    *job->scored_from = 0;
    if (l->config.train) return sequences_train(l->set, l->offset, index, job->tokens, job->scratch, error);
    return sequences_window(l->set, l->config.split, l->config.step, index, job->tokens, job->scored_from, job->scratch,
                            error);
}

static int open_part(void *argument, int number, size_t batch, int first, int *sequences) {
    const SequenceLoader *loader = argument;
    SequenceSlot *slot = &loader->slots[number];
    slot->part.n = *sequences;
    slot->part.batch = batch;
    slot->part.first = first;
    slot->position = batch * (size_t)loader->config.batch_size + (size_t)first;
    return *sequences;
}

static void fill_sequence(void *argument, int number, int i, TransformScratch *scratch) {
    SequenceLoader *loader = argument;
    SequenceSlot *slot = &loader->slots[number];
    Job job = {loader, scratch, slot->part.tokens + (size_t)i * (size_t)loader->set->row_bytes,
               &slot->part.scored_from[i]};
    parts_load(&loader->parts, loader->order[slot->position + (size_t)i], 1, &job, load_sequence);
}

static void describe(const void *argument, size_t index, char *text, size_t size) {
    const SequenceLoader *loader = argument;
    sequences_name(loader->set, loader->config.train ? SEQUENCES_TRAIN : loader->config.split, index, text, size);
}

/* == A loader ===================================================================================================== */

static void slots_open(SequenceLoader *loader) {
    const SequenceLoaderConfig *c = &loader->config;
    loader->slots = xcalloc((size_t)loader->parts.slots, sizeof *loader->slots, "batches");
    for (int i = 0; i < loader->parts.slots; i++) {
        SequencePart *part = &loader->slots[i].part;
        size_t room = (size_t)loader->parts.room;
        part->tokens = c->allocate(room * (size_t)loader->set->row_bytes, "a batch of sequences");
        part->scored_from = xcalloc(room, sizeof *part->scored_from, "a batch of sequences");
    }
}

static size_t length_of(const SequenceLoader *loader) {
    const SequenceLoaderConfig *c = &loader->config;
    return c->train ? sequences_epoch_length(loader->set) : sequences_windows(loader->set, c->split, c->step);
}

static void check_length(const SequenceLoader *loader) {
    const SequenceLoaderConfig *c = &loader->config;
    if (loader->length >= (c->train ? (size_t)c->batch_size : 1) && loader->length < UINT32_MAX) return;
    if (loader->length >= UINT32_MAX) die("%s: more than %u sequences", loader->set->name, UINT32_MAX - 1);
    if (c->train)
        die("batch_size %d: the training split of %s has only %zu sequences: lower batch_size", c->batch_size,
            loader->set->name, loader->length);
    die("%s: its %s split has no sequence of %d tokens: change shares or validation_images", loader->set->name,
        sequences_split_names[c->split], loader->set->n);
}

void sequence_loader_open(SequenceLoader *loader, const SequenceSet *set, const SequenceLoaderConfig *config) {
    assert(config->batch_size > 0 && set->source);
    *loader = (SequenceLoader){.set = set, .config = *config};
    SequenceLoaderConfig *c = &loader->config;
    if (c->ranks < 1) c->ranks = 1;
    if (c->step < 1) c->step = set->n;
    if (!c->allocate) c->allocate = parts_allocate;
    if (!c->release) c->release = parts_release;
    loader->length = length_of(loader);
    check_length(loader);
    loader->order = xcalloc(loader->length, sizeof *loader->order, "the order of an epoch");
    shuffle(loader);
    PartsConfig parts = {.name = set->name,
                         .count = loader->length,
                         .length = loader->length,
                         .batch_size = c->batch_size,
                         .short_batch = !c->train,
                         .rank = c->rank,
                         .ranks = c->ranks,
                         .part = c->part,
                         .chunk = 4, /* a lock is costly next to a copy, cheap next to a JPEG */
                         .max_damaged = c->max_damaged,
                         .pool = c->pool,
                         .loader = loader,
                         .open = open_part,
                         .fill = fill_sequence,
                         .describe = describe};
    parts_open(&loader->parts, &parts);
    loader->batches = loader->parts.batches;
    slots_open(loader);
}

void sequence_loader_close(SequenceLoader *loader) {
    if (!loader->slots) return;
    int slots = loader->parts.slots;
    parts_close(&loader->parts);
    for (int i = 0; i < slots; i++) {
        loader->config.release(loader->slots[i].part.tokens);
        free(loader->slots[i].part.scored_from);
    }
    free(loader->slots);
    free(loader->order);
    *loader = (SequenceLoader){.batches = 0};
}

void sequence_loader_start(SequenceLoader *loader, uint32_t epoch, size_t batch) {
    if (parts_begun(&loader->parts, epoch, batch)) return;
    parts_stop(&loader->parts);
    bool other = epoch != loader->epoch;
    loader->epoch = epoch;
    if (other && loader->config.train) shuffle(loader);
    parts_start(&loader->parts, epoch, batch);
}

bool sequence_loader_next(SequenceLoader *loader, SequencePart *part) {
    int slot = parts_next(&loader->parts);
    if (slot >= 0) *part = loader->slots[slot].part;
    return slot >= 0;
}

LoaderStats sequence_loader_stats(const SequenceLoader *loader) { return parts_stats(&loader->parts); }
