#include "data/loader.h"

#include <assert.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/progress.h"
#include "core/rng.h"
#include "data/mixup.h"
#include "data/sampler.h"

enum { FAILURE_ROOM = 1024 };

/* One part and how far it is. */
typedef struct {
    LoaderPart part;
    size_t position; /* of its first image in the epoch */
    int taken;     /* images that some thread has begun */
    int done;
} Slot;

/* Parts between `released` and `opened` are in memory, part number i in slots[i % count]; next is the one that
 * loader_next gives out.  Everything here is the pool's mutex's. */
struct LoaderRing {
    Slot *slots;
    int count, room; /* room: images a part */
    uint64_t opened, next, released;
    size_t begun; /* the batch of loader_start */
    size_t batch; /* where the part after the last one opened begins: its batch, and its place in it */
    int first;
    bool running;
    int busy; /* workers at an image of this loader */
    int chunk; /* images a worker takes at a time */

    char failure[FAILURE_ROOM];
    uint8_t *damaged;      /* [count]: was named */
    size_t damaged_epoch;  /* images of this epoch and rank that were replaced */
    LoaderStats stats;
    TransformScratch *scratch; /* [threads] of loader_fill */
    int threads;
};

struct LoaderPool {
    pthread_mutex_t mutex;
    pthread_cond_t work, filled;
    pthread_t *threads;
    int workers;
    Loader *loaders[4];
    int loader_count;
    bool stop;
};

/* What is not in the pool's care, or has no pool, is behind this one. */
static pthread_mutex_t lone_mutex = PTHREAD_MUTEX_INITIALIZER;

static pthread_mutex_t *mutex_of(const Loader *loader) {
    return loader->config.pool ? &loader->config.pool->mutex : &lone_mutex;
}

/* == Order ======================================================================================================== */

/* Fisher and Yates: place i takes one of the i + 1 images not placed yet, so each of the n! orders is equally likely
 * to the bias of rng_below.  One thread, some 10 ns an image. */
static void shuffle(Loader *loader) {
    uint64_t seed = loader->config.seed;
    uint32_t *order = loader->order;
    for (size_t i = 0; i < loader->dataset->count; i++) order[i] = (uint32_t)i;
    if (!loader->config.train) return;
    for (size_t i = loader->dataset->count - 1; i > 0; i--) {
        uint32_t j = rng_below(seed, RNG_SHUFFLE, loader->epoch, 0, i, (uint32_t)i + 1);
        uint32_t swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}

/* Images of an epoch. */
static size_t length_of(const Loader *loader) {
    return loader->config.train ? sampler_length(loader->dataset->count, loader->config.repeats) : loader->dataset->count;
}

/* Where in the epoch's order a position lies: mixup's partners are neighbours (mixup.h). */
static size_t place_of(const Loader *loader, size_t position) {
    size_t n = (size_t)loader->config.batch_size, batch = position / n;
    if (!loader->config.train || !loader->config.pairs) return position;
    return batch * n + mixup_sample(position % n, n);
}

uint32_t loader_draw(const Loader *loader, size_t position) {
    int repeats = loader->config.train ? loader->config.repeats : 1;
    return sampler_draw(loader->order, loader->dataset->count, repeats, place_of(loader, position));
}

/* Images of that batch, all ranks'. */
static int batch_images(const Loader *loader, size_t batch) {
    size_t size = (size_t)loader->config.batch_size, left = loader->dataset->count - batch * size;
    return left < size ? (int)left : (int)size;
}

/* Of n images of a batch, where the rank's begin. */
static int share(int n, int rank, int ranks) { return (int)((int64_t)n * rank / ranks); }

/* == One image ==================================================================================================== */

/* Names image `index` on stderr the first time. */
static void report(Loader *loader, size_t index, const char *error) {
    LoaderRing *ring = loader->ring;
    char name[FAILURE_ROOM / 2];
    pthread_mutex_lock(mutex_of(loader));
    bool known = ring->damaged[index];
    ring->damaged[index] = 1;
    ring->stats.damaged += !known;
    pthread_mutex_unlock(mutex_of(loader));
    if (known) return;
    dataset_name_image(loader->dataset, index, name, sizeof name);
    warn("%s: %s: the next image that can be read takes its place", name, error);
}

static void count_damaged(Loader *loader) {
    LoaderRing *ring = loader->ring;
    size_t count = loader->dataset->count / (size_t)loader->config.ranks;
    pthread_mutex_lock(mutex_of(loader));
    float damaged = (float)++ring->damaged_epoch;
    if (damaged / (float)(count ? count : 1) > loader->config.max_damaged && !*ring->failure)
        snprintf(ring->failure, sizeof ring->failure,
                 "%s: damaged images: %zu in one epoch of %zu, more than max_damaged %g allows", loader->dataset->name,
                 ring->damaged_epoch, count, (double)loader->config.max_damaged);
    pthread_mutex_unlock(mutex_of(loader));
}

static void fail(Loader *loader, const char *failure) {
    pthread_mutex_lock(mutex_of(loader));
    if (!*loader->ring->failure) snprintf(loader->ring->failure, FAILURE_ROOM, "%s", failure);
    pthread_mutex_unlock(mutex_of(loader));
}

static bool failed(const Loader *loader) {
    pthread_mutex_lock(mutex_of(loader));
    bool yes = *loader->ring->failure != 0;
    pthread_mutex_unlock(mutex_of(loader));
    return yes;
}

/* The image at that position of the epoch, or in place of a damaged one the next of the data set, drawn as the first would
 * have been. */
static void load_image(Loader *loader, TransformScratch *scratch, size_t position, uint8_t *out, int *label) {
    const Dataset *dataset = loader->dataset;
    const LoaderConfig *c = &loader->config;
    TransformKey key = {c->seed, loader->epoch, loader_draw(loader, position)};
    for (size_t tried = 0; tried < dataset->count && !failed(loader); tried++) {
        size_t index = (key.draw + tried) % dataset->count;
        char error[FILE_ERROR];
        Sample sample;
        if (dataset_read(dataset, index, &scratch->bytes, &sample, error) &&
            transform_sample(scratch, out, &sample, dataset->height > 0, &c->transform, key, error)) {
            *label = sample.label;
            return;
        }
        report(loader, index, error);
        if (!tried) count_damaged(loader);
    }
    fail(loader, "no image of the data set can be read");
}

/* == The pool ===================================================================================================== */

/* Which images the samples of an opened part need, of a batch of n. */
static void slot_pair(const Loader *loader, Slot *slot, size_t n) {
    LoaderPart *p = &slot->part;
    size_t begin = (size_t)p->first;
    p->count = p->n;
    for (int i = 0; i < 2 * p->n; i++) p->pairs[i] = i / 2;
    if (loader->config.train && loader->config.pairs) p->count = mixup_part(&begin, p->pairs, begin, p->n, n);
    slot->position = p->batch * (size_t)loader->config.batch_size + begin;
    for (int i = 0; i < p->count; i++) p->draws[i] = loader_draw(loader, slot->position + (size_t)i);
}

/* Opens the next part of the epoch if there is one and room for it. */
static Slot *open_part(Loader *loader) {
    LoaderRing *r = loader->ring;
    if (r->opened - r->released == (uint64_t)r->count) return NULL;
    for (; r->batch < loader->batches; r->batch++, r->first = -1) {
        int n = batch_images(loader, r->batch), begin = share(n, loader->config.rank, loader->config.ranks);
        int end = share(n, loader->config.rank + 1, loader->config.ranks);
        if (r->first < begin) r->first = begin;
        if (r->first >= end) continue;
        Slot *slot = &r->slots[r->opened++ % (uint64_t)r->count];
        slot->part.n = end - r->first < r->room ? end - r->first : r->room;
        slot->part.batch = r->batch;
        slot->part.first = r->first;
        slot_pair(loader, slot, (size_t)n);
        slot->taken = slot->done = 0;
        r->first += slot->part.n;
        return slot;
    }
    return NULL;
}

/* A slot of which images are still to be begun. */
static Slot *open_slot(Loader *loader) {
    LoaderRing *r = loader->ring;
    if (!r->running || *r->failure) return NULL;
    if (r->opened > r->next) {
        Slot *last = &r->slots[(r->opened - 1) % (uint64_t)r->count];
        if (last->taken < last->part.count) return last;
    }
    return open_part(loader);
}

static void work(LoaderPool *pool, Loader *loader, Slot *slot, TransformScratch *scratch) {
    LoaderRing *r = loader->ring;
    const Transform *t = &loader->config.transform;
    size_t image = (size_t)t->height * (size_t)t->width * 3;
    int first = slot->taken, left = slot->part.count - first, n = left < r->chunk ? left : r->chunk;
    slot->taken += n;
    r->busy++;
    pthread_mutex_unlock(&pool->mutex);
    double begin = now_seconds();
    for (int i = first; i < first + n; i++)
        load_image(loader, scratch, slot->position + (size_t)i, slot->part.pixels + (size_t)i * image,
                   &slot->part.labels[i]);
    double took = now_seconds() - begin;
    pthread_mutex_lock(&pool->mutex);
    r->busy--;
    r->stats.worked += took;
    r->stats.images += (uint64_t)n;
    slot->done += n;
    if (slot->done == slot->part.count || *r->failure || !r->running) pthread_cond_broadcast(&pool->filled);
}

static void *worker(void *argument) {
    LoaderPool *pool = argument;
    TransformScratch scratch = {0};
    pthread_mutex_lock(&pool->mutex);
    while (!pool->stop) {
        bool idle = true;
        for (int i = 0; i < pool->loader_count && !pool->stop; i++) {
            Slot *slot = open_slot(pool->loaders[i]);
            if (!slot) continue;
            work(pool, pool->loaders[i], slot, &scratch);
            idle = false;
            break; /* the loaders may have changed meanwhile */
        }
        if (idle && !pool->stop) pthread_cond_wait(&pool->work, &pool->mutex);
    }
    pthread_mutex_unlock(&pool->mutex);
    transform_scratch_free(&scratch);
    return NULL;
}

int loader_cores(void) { return omp_get_num_procs(); }

LoaderPool *loader_pool_open(int workers) {
    LoaderPool *pool = xcalloc(1, sizeof *pool, "the loader's threads");
    sigset_t all, before;
    pool->workers = workers > 0 ? workers : loader_cores();
    pool->threads = xcalloc((size_t)pool->workers, sizeof *pool->threads, "the loader's threads");
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->filled, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; i < pool->workers; i++) {
        int trouble = pthread_create(&pool->threads[i], NULL, worker, pool);
        if (trouble) die("workers %d: cannot start thread %d: %s", pool->workers, i + 1, strerror(trouble));
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return pool;
}

void loader_pool_close(LoaderPool *pool) {
    if (!pool) return;
    pthread_mutex_lock(&pool->mutex);
    assert(pool->loader_count == 0);
    pool->stop = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 0; i < pool->workers; i++) pthread_join(pool->threads[i], NULL);
    pthread_mutex_destroy(&pool->mutex);
    pthread_cond_destroy(&pool->work);
    pthread_cond_destroy(&pool->filled);
    free(pool->threads);
    free(pool);
}

/* == A loader ===================================================================================================== */

static void free_pixels(void *memory) { free(memory); }
static void *allocate_pixels(size_t bytes, const char *what) { return xcalloc(bytes, 1, what); }

/* Enough parts that no worker waits for room while one part is used and one handed over. */
static void ring_open(Loader *loader) {
    const LoaderConfig *c = &loader->config;
    LoaderRing *r = loader->ring = xcalloc(1, sizeof *r, "a loader");
    int most = (c->batch_size + c->ranks - 1) / c->ranks, workers = c->pool ? c->pool->workers : 0;
    size_t image = (size_t)c->transform.height * (size_t)c->transform.width * 3;
    r->room = c->part > 0 && c->part < most ? c->part : most;
    r->chunk = loader->dataset->get ? 16 : 1; /* a mutex costs little beside a JPEG, and much beside a copy */
    r->count = workers ? 2 + (4 * workers * r->chunk + r->room - 1) / r->room : 1;
    r->slots = xcalloc((size_t)r->count, sizeof *r->slots, "batches");
    for (int i = 0; i < r->count; i++) {
        LoaderPart *part = &r->slots[i].part;
        size_t most_images = (size_t)r->room + 2;
        part->pixels = c->allocate(most_images * image, "a batch of images");
        part->labels = xcalloc(most_images, sizeof *part->labels, "a batch of labels");
        part->draws = xcalloc(most_images, sizeof *part->draws, "a batch of draws");
        part->pairs = xcalloc((size_t)r->room, 2 * sizeof *part->pairs, "a batch of pairs");
    }
    r->damaged = xcalloc(loader->dataset->count, 1, "damaged images");
    r->threads = omp_get_max_threads();
    r->scratch = xcalloc((size_t)r->threads, sizeof *r->scratch, "loading");
}

void loader_open(Loader *loader, const Dataset *dataset, const LoaderConfig *config) {
    size_t batch = (size_t)config->batch_size;
    assert(config->batch_size > 0 && dataset->count > 0 && dataset->count < UINT32_MAX);
    *loader = (Loader){.dataset = dataset, .config = *config};
    if (config->train && length_of(loader) < batch)
        die("batch_size %d: the training split of %s has only %zu images: lower batch_size", config->batch_size,
            dataset->name, length_of(loader));
    LoaderConfig *c = &loader->config;
    if (c->ranks < 1) c->ranks = 1;
    if (c->repeats < 1) c->repeats = 1;
    if (!c->allocate) c->allocate = allocate_pixels;
    if (!c->release) c->release = free_pixels;
    c->transform.train = c->train;
    loader->batches = c->train ? length_of(loader) / batch : (dataset->count + batch - 1) / batch;
    loader->order = xcalloc(dataset->count, sizeof *loader->order, "the order of an epoch");
    shuffle(loader);
    ring_open(loader);
    if (!c->pool) return;
    pthread_mutex_lock(&c->pool->mutex);
    assert(c->pool->loader_count < 4);
    c->pool->loaders[c->pool->loader_count++] = loader;
    pthread_mutex_unlock(&c->pool->mutex);
}

/* No worker touches this loader after it. */
static void halt(Loader *loader) {
    LoaderPool *pool = loader->config.pool;
    loader->ring->running = false;
    while (pool && loader->ring->busy) pthread_cond_wait(&pool->filled, &pool->mutex);
}

void loader_close(Loader *loader) {
    LoaderPool *pool = loader->config.pool;
    LoaderRing *r = loader->ring;
    if (!r) return;
    if (pool) {
        pthread_mutex_lock(&pool->mutex);
        halt(loader);
        int kept = 0;
        for (int i = 0; i < pool->loader_count; i++)
            if (pool->loaders[i] != loader) pool->loaders[kept++] = pool->loaders[i];
        pool->loader_count = kept;
        pthread_mutex_unlock(&pool->mutex);
    }
    for (int i = 0; i < r->count; i++) {
        LoaderPart *part = &r->slots[i].part;
        loader->config.release(part->pixels);
        free(part->labels);
        free(part->draws);
        free(part->pairs);
    }
    for (int i = 0; i < r->threads; i++) transform_scratch_free(&r->scratch[i]);
    free(r->scratch);
    free(r->slots);
    free(r->damaged);
    free(r);
    free(loader->order);
    *loader = (Loader){.batches = 0};
}

void loader_epoch(Loader *loader, uint32_t epoch) {
    if (epoch == loader->epoch) return;
    loader->epoch = epoch;
    if (loader->config.train) shuffle(loader);
}

void loader_start(Loader *loader, uint32_t epoch, size_t batch) {
    LoaderRing *r = loader->ring;
    if (r->running && loader->epoch == epoch && r->begun == batch && r->next == 0) return;
    pthread_mutex_lock(mutex_of(loader));
    halt(loader);
    loader_epoch(loader, epoch);
    r->opened = r->next = r->released = 0;
    r->damaged_epoch = 0;
    r->begun = r->batch = batch;
    r->first = -1;
    r->running = true;
    if (loader->config.pool) pthread_cond_broadcast(&loader->config.pool->work);
    pthread_mutex_unlock(mutex_of(loader));
}

/* Waits for the pool to fill the next part. */
static Slot *wait_for_part(Loader *loader) {
    LoaderRing *r = loader->ring;
    LoaderPool *pool = loader->config.pool;
    pthread_cond_broadcast(&pool->work); /* there is room for one part more */
    if (r->opened == r->next && !open_part(loader)) return NULL;
    Slot *slot = &r->slots[r->next % (uint64_t)r->count];
    double begin = now_seconds();
    bool waited = false;
    while (slot->done < slot->part.count && !*r->failure) {
        pthread_cond_wait(&pool->filled, &pool->mutex);
        waited = true;
    }
    if (waited) r->stats.stalled += now_seconds() - begin;
    return slot;
}

bool loader_next(Loader *loader, LoaderPart *part) {
    LoaderRing *r = loader->ring;
    assert(r->running);
    pthread_mutex_lock(mutex_of(loader));
    r->released = r->next;
    Slot *slot = loader->config.pool ? wait_for_part(loader) : open_part(loader);
    if (slot) r->next++;
    pthread_mutex_unlock(mutex_of(loader));
    if (slot && !loader->config.pool) {
        double begin = now_seconds();
        loader_fill(loader, slot->position, slot->part.count, slot->part.pixels, slot->part.labels);
        r->stats.stalled += now_seconds() - begin;
    }
    if (*r->failure) die("%s", r->failure);
    if (slot) *part = slot->part;
    return slot != NULL;
}

void loader_fill(Loader *loader, size_t first, int n, uint8_t *pixels, int *labels) {
    LoaderRing *r = loader->ring;
    const Transform *t = &loader->config.transform;
    size_t image = (size_t)t->height * (size_t)t->width * 3;
    assert(first + (size_t)n <= length_of(loader));

#pragma omp parallel for schedule(dynamic) num_threads(r->threads)
    for (int i = 0; i < n; i++) {
        TransformScratch *scratch = &r->scratch[omp_get_thread_num()];
        load_image(loader, scratch, first + (size_t)i, pixels + (size_t)i * image, &labels[i]);
    }
    r->stats.images += (uint64_t)n;
    if (*r->failure) die("%s", r->failure);
}

int loader_batch(Loader *loader, size_t batch, uint8_t *pixels, int *labels) {
    int n = batch_images(loader, batch);
    assert(batch < loader->batches);
    loader_fill(loader, batch * (size_t)loader->config.batch_size, n, pixels, labels);
    return n;
}

LoaderStats loader_stats(const Loader *loader) {
    pthread_mutex_lock(mutex_of(loader));
    LoaderStats stats = loader->ring->stats;
    pthread_mutex_unlock(mutex_of(loader));
    return stats;
}

void loader_targets(float *targets, const int *labels, int n, int classes, float smoothing) {
    float off = smoothing / (float)classes;
    for (int i = 0; i < n; i++) {
        for (int c = 0; c < classes; c++) targets[(size_t)i * (size_t)classes + (size_t)c] = off;
        targets[(size_t)i * (size_t)classes + (size_t)labels[i]] = 1.0f - smoothing + off;
    }
}
