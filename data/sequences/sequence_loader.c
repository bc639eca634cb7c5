#include "data/sequences/sequence_loader.h"

#include <assert.h>
#include <string.h>

#include "core/die.h"

typedef struct {
    SequencePart part;
    size_t position; /* position in the epoch of the part's first sequence */
} SequenceSlot;

/* == One sequence ================================================================================================= */

typedef struct {
    const SequenceLoader *loader;
    TransformScratch *scratch;
    uint8_t *tokens;
    int *scored_from;
} SequenceJob;

static bool load_sequence(void *argument, size_t index, Error *error) {
    const SequenceJob *job = argument;
    const SequenceLoader *l = job->loader;
    const PartsConfig *c = &l->config.parts;
    *job->scored_from = 0;
    if (c->train) {
        size_t offset = sequences_offset(l->set, c->seed, l->parts.epoch);
        return sequences_train(l->set, offset, index, job->tokens, job->scratch, error);
    }
    return sequences_window(l->set, l->config.split, l->config.step, index, job->tokens, job->scored_from, job->scratch,
                            error);
}

static int open_part(void *argument, void *memory, size_t batch, int first, int *sequences) {
    const SequenceLoader *loader = argument;
    SequenceSlot *slot = memory;
    slot->part.n = *sequences;
    slot->part.batch = batch;
    slot->part.first = first;
    slot->position = batch * (size_t)loader->config.parts.batch_size + (size_t)first;
    return *sequences;
}

static void fill_sequence(void *argument, void *memory, int i, TransformScratch *scratch) {
    SequenceLoader *loader = argument;
    const SequenceSlot *slot = memory;
    SequenceJob job = {loader, scratch, slot->part.tokens + (size_t)i * (size_t)loader->set->row_bytes,
               &slot->part.scored_from[i]};
    size_t index = loader->parts.order[slot->position + (size_t)i];
    if (loader->config.parts.train) {
        parts_load(&loader->parts, index, 1, &job, load_sequence, PARTS_REPLACED);
    } else if (!parts_try(&loader->parts, index, &job, load_sequence, "left out")) {
        memset(job.tokens, 0, (size_t)loader->set->row_bytes);
        *job.scored_from = loader->set->n;
    }
}

static void describe(const void *argument, size_t index, char *text, size_t size) {
    const SequenceLoader *loader = argument;
    sequences_name(loader->set, loader->config.parts.train ? SEQUENCES_TRAIN : loader->config.split, index, text, size);
}

/* == A loader ===================================================================================================== */

static size_t length_of(const SequenceLoader *loader) {
    const SequenceLoaderConfig *c = &loader->config;
    return c->parts.train ? sequences_epoch_length(loader->set) : sequences_windows(loader->set, c->split, c->step);
}

static void check_length(const SequenceLoader *loader, size_t length) {
    const SequenceLoaderConfig *c = &loader->config;
    if (length >= UINT32_MAX) die("%s: more than %u sequences", loader->set->name, UINT32_MAX - 1);
    if (length || c->parts.train) return;
    if (loader->set->kind == SEQUENCES_IMAGES)
        die("%s: no %s images: put them into val/<class>/, or use %s", loader->set->name,
            sequences_split_names[c->split],
            c->split == SEQUENCES_TEST ? "--eval-split validation" : "validation_images above 0 or eval_every 0");
    die("%s: its %s split has no sequence of %d tokens: change shares", loader->set->name,
        sequences_split_names[c->split], loader->set->n);
}

void sequence_loader_open(SequenceLoader *loader, const SequenceSet *set, const SequenceLoaderConfig *config) {
    assert(set->source);
    *loader = (SequenceLoader){.set = set, .config = *config};
    if (config->step < 1) loader->config.step = set->n;
    size_t length = length_of(loader), row = (size_t)set->row_bytes;
    check_length(loader, length);
    PartsSource source = {
        .name = set->name,
        .noun = "sequences",
        .count = length,
        .length = length,
        .chunk = 4, /* a lock is costly next to a copy, cheap next to a JPEG */
        .loader = loader,
        .slot_size = sizeof(SequenceSlot),
        .arrays = {{offsetof(SequenceSlot, part.tokens), row, 0, "a batch of sequences"},
                   {offsetof(SequenceSlot, part.scored_from), sizeof(int), 0, "a batch of sequences"}},
        .open = open_part,
        .fill = fill_sequence,
        .describe = describe};
    parts_open(&loader->parts, &config->parts, &source);
}

bool sequence_loader_next(SequenceLoader *loader, SequencePart *part) {
    const SequenceSlot *slot = parts_next(&loader->parts);
    if (slot) *part = slot->part;
    return slot;
}
