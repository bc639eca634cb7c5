#include "data/loading/parts.h"

#include <assert.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/progress.h"
#include "core/rng.h"

#define F(KIND, field) CONFIG_FIELD(KIND, LoaderSettings, field)
static const ConfigEntry entries[] = {
    {F(INT, workers), "0", .section = "data", .min = 0, .max = 1024, .ranks_differ = true,
     .help = "Number of threads that load images (0: one when training on the CPU, one for each core with a GPU)"},
    {F(FLOAT, max_damaged), "0.01", .min = 0, .max = 1,
     .help = "Largest share of damaged images in an epoch, but at least one image: damaged images are reported and, in "
             "training, replaced by others, and a run with more of them stops (0: it stops at the first)"},
};
#undef F
const ConfigGroup loader_settings = {CONFIG_GROUP(LoaderSettings, entries), .change = CHANGE_FREELY};

enum { MOST_LOADERS = 4 };

struct LoaderPool {
    pthread_mutex_t mutex;
    pthread_cond_t work, filled;
    pthread_t *threads;
    int workers;
    Parts *loaders[MOST_LOADERS];
    int loader_count;
    bool stop;
};

/* The mutex of loaders without a pool. */
static pthread_mutex_t lone_mutex = PTHREAD_MUTEX_INITIALIZER;

static pthread_mutex_t *mutex_of(const Parts *parts) {
    return parts->config.pool ? &parts->config.pool->mutex : &lone_mutex;
}

/* == Damaged images =============================================================================================== */

/* Names image `index` on stderr the first time, and counts it.  Prints nothing after a failure was recorded, whose
 * message should be the last.
 *
 * In a small data set a single image exceeds max_damaged, so one is always allowed unless max_damaged is 0, however
 * often an epoch takes it.  An image that was only tried as a replacement fills no positions: what an epoch names must
 * not exceed the share of the whole data set. */
static void report(Parts *parts, size_t index, int positions, const char *error, const char *consequence) {
    size_t views = parts->source.views > 1 ? (size_t)parts->source.views : 1;
    size_t all = parts->source.count, count = all * views / (size_t)parts->config.ranks;
    char name[PARTS_FAILURE / 2];
    pthread_mutex_lock(mutex_of(parts));
    bool failed = *parts->failure, first = !parts->damaged[index] && !failed;
    if (first) {
        parts->damaged[index] = 1;
        parts->stats.damaged++;
        parts->named_epoch++;
    }
    size_t damaged = parts->damaged_epoch += (size_t)positions;
    if (parts->named_epoch * count > damaged * all) damaged = parts->named_epoch, count = all;
    float share = (float)damaged / (float)(count ? count : 1), most = parts->config.max_damaged;
    bool ends = share > most && (parts->stats.damaged > 1 || most <= 0) && !failed;
    if (first || ends) parts->source.describe(parts->source.loader, index, name, sizeof name);
    if (first) warn("%s: %s: %s", name, error, consequence);
    if (ends)
        snprintf(parts->failure, sizeof parts->failure,
                 "%s: damaged images: %zu in one epoch of %zu, more than max_damaged %g allows; the last is %s: repair "
                 "or remove them, or raise max_damaged",
                 parts->source.name, damaged, count, (double)most, name);
    pthread_mutex_unlock(mutex_of(parts));
}

static void fail(Parts *parts, const char *failure) {
    pthread_mutex_lock(mutex_of(parts));
    if (!*parts->failure) snprintf(parts->failure, sizeof parts->failure, "%s", failure);
    pthread_mutex_unlock(mutex_of(parts));
}

/* Another image would also need the memory or the library, and this one may be undamaged.  The run ends, and no image
 * is counted as damaged. */
static void starve(Parts *parts, size_t index, const char *error) {
    char name[PARTS_FAILURE / 2], failure[PARTS_FAILURE];
    parts->source.describe(parts->source.loader, index, name, sizeof name);
    snprintf(failure, sizeof failure, "%s: %.480s", name, error);
    fail(parts, failure);
}

static bool failed(const Parts *parts) {
    pthread_mutex_lock(mutex_of(parts));
    bool yes = *parts->failure != 0;
    pthread_mutex_unlock(mutex_of(parts));
    return yes;
}

/* failure is written under the mutex, so a reader that holds it sees the complete text. */
void parts_check(const Parts *parts) {
    if (failed(parts)) die("%s", parts->failure);
}

size_t parts_load(Parts *parts, size_t index, int positions, void *job,
                  bool (*load)(void *job, size_t index, Error *error), const char *consequence) {
    Error error;
    for (size_t tried = 0; tried < parts->source.count && !failed(parts); tried++) {
        size_t at = (index + tried) % parts->source.count;
        if (load(job, at, &error)) return at;
        if (error.lacking) return starve(parts, at, error.text), index;
        report(parts, at, tried ? 0 : positions, error.text, consequence);
    }
    char failure[PARTS_FAILURE];
    snprintf(failure, sizeof failure, "%s: none of its %s can be read", parts->source.name, parts->source.noun);
    fail(parts, failure);
    return index;
}

bool parts_try(Parts *parts, size_t index, void *job, bool (*load)(void *job, size_t index, Error *error),
               const char *consequence) {
    Error error;
    if (failed(parts)) return false;
    if (load(job, index, &error)) return true;
    if (error.lacking) return starve(parts, index, error.text), false;
    report(parts, index, 1, error.text, consequence);
    return false;
}

/* == The pool ===================================================================================================== */

int parts_batch(const Parts *parts, size_t batch) {
    size_t size = (size_t)parts->config.batch_size, left = parts->source.length - batch * size;
    return left < size ? (int)left : (int)size;
}

/* The first of a rank's samples in a batch of n. */
static int share(int n, int rank, int ranks) { return (int)((int64_t)n * rank / ranks); }

/* Opens the next part of the epoch and returns its slot; -1 if there is no further part or no free slot. */
static int open_part(Parts *p) {
    const PartsConfig *c = &p->config;
    const PartsSource *s = &p->source;
    if (p->opened - p->released == (uint64_t)p->slots) return -1;
    for (; p->batch < p->batches; p->batch++, p->first = -1) {
        int n = parts_batch(p, p->batch), begin = share(n, c->rank, c->ranks), end = share(n, c->rank + 1, c->ranks);
        if (p->first < begin) p->first = begin;
        if (p->first >= end) continue;
        int slot = (int)(p->opened++ % (uint64_t)p->slots), left = end - p->first;
        int samples = left < p->room ? left : p->room;
        void *memory = p->slot[slot].memory;
        p->slot[slot] = (PartsSlot){memory, s->open(s->loader, memory, p->batch, p->first, &samples), 0, 0};
        p->first += samples;
        return slot;
    }
    return -1;
}

/* A slot with samples that no thread has started, or -1. */
static int open_slot(Parts *p) {
    if (!p->running || *p->failure) return -1;
    if (p->opened > p->next) {
        int last = (int)((p->opened - 1) % (uint64_t)p->slots);
        if (p->slot[last].taken < p->slot[last].count) return last;
    }
    return open_part(p);
}

static void work(LoaderPool *pool, Parts *p, int number, TransformScratch *scratch) {
    const PartsSource *s = &p->source;
    PartsSlot *slot = &p->slot[number];
    int first = slot->taken, left = slot->count - first, n = left < s->chunk ? left : s->chunk;
    slot->taken += n;
    p->busy++;
    pthread_mutex_unlock(&pool->mutex);
    double begin = now_seconds();
    for (int i = first; i < first + n; i++) s->fill(s->loader, slot->memory, i, scratch);
    double took = now_seconds() - begin;
    pthread_mutex_lock(&pool->mutex);
    p->busy--;
    p->stats.worked += took;
    p->stats.images += (uint64_t)n;
    slot->done += n;
    if (slot->done == slot->count || *p->failure || !p->running) pthread_cond_broadcast(&pool->filled);
}

static void *worker(void *argument) {
    LoaderPool *pool = argument;
    TransformScratch scratch = {0};
    pthread_mutex_lock(&pool->mutex);
    while (!pool->stop) {
        bool idle = true;
        for (int i = 0; i < pool->loader_count && !pool->stop; i++) {
            int slot = open_slot(pool->loaders[i]);
            if (slot < 0) continue;
            work(pool, pool->loaders[i], slot, &scratch);
            idle = false;
            break; /* work released the mutex, so the list of loaders may have changed */
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
    sigdelset(&all, SIGBUS); /* raised when a mapped file is truncated (file_map); the reading thread must receive it */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; i < pool->workers; i++) {
        int trouble = pthread_create(&pool->threads[i], NULL, worker, pool);
        if (trouble) die("workers %d: cannot start thread %d: %s", pool->workers, i + 1, strerror(trouble));
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return pool;
}

LoaderPool *loader_pool_start(const LoaderSettings *s, bool device_shares_cores) {
    int share = device_shares_cores ? 1 : loader_cores() / distributed_core_share();
    return loader_pool_open(s->workers ? s->workers : share > 1 ? share : 1);
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

/* == A loader's parts ============================================================================================= */

static void order_epoch(Parts *parts) {
    const PartsConfig *c = &parts->config;
    for (size_t i = 0; i < parts->source.count; i++) parts->order[i] = (uint32_t)i;
    if (parts->source.shuffle) parts->source.shuffle(parts->source.loader);
    else if (c->train) rng_shuffle(parts->order, parts->source.count, 1, c->seed, RNG_SHUFFLE, parts->epoch, 0);
}

static void *allocate(size_t bytes, const char *what) { return xcalloc(bytes, 1, what); }

static void slots_open(Parts *parts) {
    const PartsSource *s = &parts->source;
    parts->slot = xcalloc((size_t)parts->slots, sizeof *parts->slot, "batches");
    for (int i = 0; i < parts->slots; i++) {
        char *slot = parts->slot[i].memory = xcalloc(1, s->slot_size, "batches");
        for (const PartsArray *a = s->arrays; a->what; a++) {
            size_t count = (size_t)parts->room + a->spare;
            void *array = a == s->arrays ? parts->config.allocate(count * a->element, a->what)
                                         : xcalloc(count, a->element, a->what);
            memcpy(slot + a->field, &array, sizeof array);
        }
    }
}

static void slots_close(Parts *parts) {
    for (int i = 0; i < parts->slots; i++) {
        const char *slot = parts->slot[i].memory;
        for (const PartsArray *a = parts->source.arrays; a->what; a++) {
            void *array;
            memcpy(&array, slot + a->field, sizeof array);
            (a == parts->source.arrays ? parts->config.release : free)(array);
        }
        free(parts->slot[i].memory);
    }
    free(parts->slot);
}

/* There are enough slots that no worker waits for a free one while one part is in use and the next one is being passed
 * on. */
static int slots_needed(const Parts *parts) {
    int workers = parts->config.pool ? parts->config.pool->workers : 0;
    return workers ? 2 + (4 * workers * parts->source.chunk + parts->room - 1) / parts->room : 1;
}

void parts_open(Parts *parts, const PartsConfig *config, const PartsSource *source) {
    assert(config->batch_size > 0 && source->count < UINT32_MAX);
    *parts = (Parts){.config = *config, .source = *source};
    PartsConfig *c = &parts->config;
    size_t batch = (size_t)c->batch_size;
    if (c->train && source->length < batch)
        die("batch_size %d: the training split of %s has only %zu %s: lower batch_size", c->batch_size, source->name,
            source->length, source->noun);
    if (c->ranks < 1) c->ranks = 1;
    if (!c->allocate) c->allocate = allocate;
    if (!c->release) c->release = free;
    int most = (c->batch_size + c->ranks - 1) / c->ranks;
    parts->batches = (source->length + (c->train && !c->keep_last ? 0 : batch - 1)) / batch;
    parts->room = c->part > 0 && c->part < most ? c->part : most;
    parts->slots = slots_needed(parts);
    slots_open(parts);
    parts->order = xcalloc(source->count, sizeof *parts->order, "the order of an epoch");
    order_epoch(parts);
    parts->damaged = xcalloc(source->count, 1, "damaged images");
    parts->threads = omp_get_max_threads();
    parts->scratch = xcalloc((size_t)parts->threads, sizeof *parts->scratch, "loading");
    if (!c->pool) return;
    pthread_mutex_lock(&c->pool->mutex);
    assert(c->pool->loader_count < MOST_LOADERS);
    c->pool->loaders[c->pool->loader_count++] = parts;
    pthread_mutex_unlock(&c->pool->mutex);
}

/* Called with the mutex held. */
static void halt(Parts *parts) {
    LoaderPool *pool = parts->config.pool;
    parts->running = false;
    while (pool && parts->busy) pthread_cond_wait(&pool->filled, &pool->mutex);
}

void parts_close(Parts *parts) {
    LoaderPool *pool = parts->config.pool;
    if (!parts->slot) return;
    if (pool) {
        pthread_mutex_lock(&pool->mutex);
        halt(parts);
        int kept = 0;
        for (int i = 0; i < pool->loader_count; i++)
            if (pool->loaders[i] != parts) pool->loaders[kept++] = pool->loaders[i];
        pool->loader_count = kept;
        pthread_mutex_unlock(&pool->mutex);
    }
    for (int i = 0; i < parts->threads; i++) transform_scratch_free(&parts->scratch[i]);
    slots_close(parts);
    free(parts->scratch);
    free(parts->order);
    free(parts->damaged);
    *parts = (Parts){.slots = 0};
}

void parts_epoch(Parts *parts, uint32_t epoch) {
    if (epoch == parts->epoch) return;
    parts->epoch = epoch;
    if (parts->config.train) order_epoch(parts);
}

/* No worker touches the loader's memory while the order changes. */
void parts_start(Parts *parts, uint32_t epoch, size_t batch) {
    if (parts->running && parts->begun_epoch == epoch && parts->begun == batch && parts->next == 0) return;
    pthread_mutex_lock(mutex_of(parts));
    halt(parts);
    pthread_mutex_unlock(mutex_of(parts));
    parts_epoch(parts, epoch);
    pthread_mutex_lock(mutex_of(parts));
    parts->opened = parts->next = parts->released = 0;
    parts->damaged_epoch = parts->named_epoch = 0;
    parts->begun_epoch = epoch;
    parts->begun = parts->batch = batch;
    parts->first = -1;
    parts->running = true;
    if (parts->config.pool) pthread_cond_broadcast(&parts->config.pool->work);
    pthread_mutex_unlock(mutex_of(parts));
}

/* Waits for the pool to fill the next part. */
static int wait_for_part(Parts *parts) {
    LoaderPool *pool = parts->config.pool;
    pthread_cond_broadcast(&pool->work); /* a slot has become free */
    if (parts->opened == parts->next && open_part(parts) < 0) return -1;
    int number = (int)(parts->next % (uint64_t)parts->slots);
    PartsSlot *slot = &parts->slot[number];
    double begin = now_seconds();
    bool waited = false;
    while (slot->done < slot->count && !*parts->failure) {
        pthread_cond_wait(&pool->filled, &pool->mutex);
        waited = true;
    }
    if (waited) parts->stats.stalled += now_seconds() - begin;
    return number;
}

/* Fills a slot with OpenMP; ends the process when too many samples are damaged. */
static void fill_slot(Parts *parts, const PartsSlot *slot) {
    const PartsSource *s = &parts->source;
#pragma omp parallel for schedule(dynamic) num_threads(parts->threads)
    for (int i = 0; i < slot->count; i++)
        s->fill(s->loader, slot->memory, i, &parts->scratch[omp_get_thread_num()]);
    parts->stats.images += (uint64_t)slot->count;
    parts_check(parts);
}

void *parts_next(Parts *parts) {
    assert(parts->running);
    pthread_mutex_lock(mutex_of(parts));
    parts->released = parts->next;
    int slot = parts->config.pool ? wait_for_part(parts) : open_part(parts);
    if (slot >= 0) parts->next++;
    pthread_mutex_unlock(mutex_of(parts));
    if (slot >= 0 && !parts->config.pool) {
        double begin = now_seconds();
        fill_slot(parts, &parts->slot[slot]);
        parts->stats.stalled += now_seconds() - begin;
    }
    parts_check(parts);
    return slot >= 0 ? parts->slot[slot].memory : NULL;
}

LoaderStats parts_stats(const Parts *parts) {
    pthread_mutex_lock(mutex_of(parts));
    LoaderStats stats = parts->stats;
    pthread_mutex_unlock(mutex_of(parts));
    return stats;
}
