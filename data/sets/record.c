#include "data/sets/record.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "core/results/class_names.h"
#include "core/die.h"
#include "core/files.h"
#include "core/text.h"
#include "core/text_stream.h"
#include "data/sets/videos.h"

enum { ALIGN = 8 };

_Static_assert(sizeof(RecordHeader) == 144 && sizeof(RecordEntry) == 40, "these are a file format");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "packed files are read as they lie in memory");

static const char *split_name(bool train) { return train ? "train" : "val"; }

/* == Reading ====================================================================================================== */

/* Whether the data set's name in a file is acceptable: it becomes part of the name of a run's folder. */
static bool name_sound(const char name[32]) {
    return memchr(name, 0, 32) && *name && *name != '.' && !strchr(name, '/');
}

static bool describes_images(const RecordHeader *h) {
    bool sound = h->split <= 1 && h->classes > 0 && h->classes <= 1000000 && h->height <= 65536 &&
                 h->width <= 65536 && !h->height == !h->width && name_sound(h->name) &&
                 (h->version != RECORD_CLIPS || !h->height);
    for (int c = 0; c < 3; c++) sound = sound && isfinite(h->mean[c]) && isfinite(h->std[c]) && h->std[c] > 0;
    return sound;
}

static bool header_parse(RecordHeader *header, const uint8_t *bytes, size_t size, Error *error) {
    if (size < sizeof *header || memcmp(bytes, RECORD_MAGIC, sizeof header->magic))
        return refuse(error, "not a packed data set");
    memcpy(header, bytes, sizeof *header);
    if (header->version != RECORD_VERSION && header->version != RECORD_CLIPS)
        return refuse(error, "packed in version %u of the format, expected %d: pack it again", header->version,
                      RECORD_VERSION);
    if (header->header_checksum != XXH3_64bits(bytes, offsetof(RecordHeader, header_checksum)))
        return refuse(error, "the header is damaged (its checksum differs): pack it again");
    if (!describes_images(header)) return refuse(error, "the header contradicts itself: pack it again");
    return true;
}

/* Sizes in a file with a valid checksum can only be wrong on purpose; they are checked nevertheless. */
static bool header_sound(const RecordHeader *h, size_t size, Error *error) {
    if (size < h->size)
        return refuse(error, "%zu bytes, but it was packed with %llu: the file is cut short", size,
                      (unsigned long long)h->size);
    bool sound = size == h->size && h->count > 0 && h->count < UINT32_MAX && h->index >= sizeof *h &&
                 h->index % ALIGN == 0 && h->index <= size &&
                 h->count <= (size - h->index) / sizeof(RecordEntry) &&
                 h->class_names == h->index + h->count * sizeof(RecordEntry) && h->image_names > h->class_names &&
                 h->image_names < size;
    return sound || refuse(error, "the header contradicts itself: pack it again");
}

static bool names_sound(const RecordFile *file, Error *error) {
    const RecordHeader *h = &file->header;
    size_t names = 0;
    for (uint64_t at = h->class_names; at < h->image_names; at++) names += file->bytes[at] == 0;
    bool sound = names == h->classes && file->bytes[h->image_names - 1] == 0 && file->bytes[h->size - 1] == 0;
    return sound || refuse(error, "the class names are damaged: pack it again");
}

static bool entry_sound(const RecordHeader *h, const RecordEntry *e) {
    uint64_t pixels = (uint64_t)e->height * e->width * 3;
    return e->offset >= sizeof *h && e->offset <= h->index && e->size <= h->index - e->offset &&
           e->label < h->classes && e->name < h->size - h->image_names && e->height <= 65536 && e->width <= 65536 &&
           !e->height == !e->width && (!e->height || !e->size || e->size == pixels) &&
           (!h->height || !e->size || (e->height == h->height && e->width == h->width));
}

bool record_parse(RecordFile *file, const uint8_t *bytes, size_t size, Error *error) {
    RecordHeader *h = &file->header;
    file->bytes = bytes;
    if (!header_parse(h, bytes, size, error) || !header_sound(h, size, error)) return false;
    if (h->tail_checksum != XXH3_64bits(bytes + h->index, h->size - h->index))
        return refuse(error, "the index is damaged (its checksum differs): pack it again");
    if (!names_sound(file, error)) return false;
    file->entries = (const RecordEntry *)(const void *)(bytes + h->index);
    file->image_names = (const char *)bytes + h->image_names;
    for (size_t i = 0; i < h->count; i++) {
        if (entry_sound(h, &file->entries[i])) continue;
        return refuse(error, "the index contradicts itself at image %zu: pack it again", i);
    }
    return true;
}

bool record_sample(const RecordFile *file, size_t index, Sample *sample, Error *error) {
    const RecordEntry *e = &file->entries[index];
    *sample = (Sample){.bytes = file->bytes + e->offset, .size = e->size, .height = (int)e->height,
                       .width = (int)e->width, .label = (int)e->label};
    if (!e->size) return refuse(error, "it was damaged when the file was packed");
    if (e->checksum == XXH3_64bits(sample->bytes, sample->size)) return true;
    return refuse(error, "its checksum differs");
}

const char *record_image_name(const RecordFile *file, size_t index) {
    return file->image_names + file->entries[index].name;
}

/* == Data set ===================================================================================================== */

typedef struct {
    char path[DATASET_PATH];
    RecordFile file;
    size_t limit; /* 0: all; else image i is entry i * count / limit of the file */
    ClassNames class_names;
    int *mirrored; /* [classes] or NULL */
} Record;

static bool is_packed(const char *path) {
    char magic[sizeof RECORD_MAGIC - 1];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return false;
    bool is = pread(fd, magic, sizeof magic, 0) == (ssize_t)sizeof magic && !memcmp(magic, RECORD_MAGIC, sizeof magic);
    close(fd);
    return is;
}

static bool record_find(char found[DATASET_PATH], const char *path) {
    static const char *const files[] = {"train.pack", "val.pack"};
    snprintf(found, DATASET_PATH, "%s", path);
    if (is_packed(path)) return true;
    for (int i = 0; i < 2; i++) {
        path_join(found, DATASET_PATH, path, files[i]);
        if (file_exists(found)) return true;
    }
    return false;
}

void record_read_header(const char *path, RecordHeader *header) {
    uint8_t bytes[sizeof *header];
    Error error;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) die("%s: cannot open: %s", path, strerror(errno));
    file_note(path);
    ssize_t got = pread(fd, bytes, sizeof bytes, 0);
    close(fd);
    if (got < 0) die("%s: cannot read: %s", path, strerror(errno));
    if (!header_parse(header, bytes, (size_t)got, &error)) die("%s: %s", path, error.text);
}

/* The name that the file of the other split would have; false: the split is not in the name of this one. */
static bool name_split(char found[DATASET_PATH], const char *path, bool train) {
    const char *from = split_name(!train), *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path, *at = NULL;
    for (const char *next = name; (next = strstr(next, from)); next++) at = next;
    if (at) snprintf(found, DATASET_PATH, "%.*s%s%s", (int)(at - path), path, split_name(train), at + strlen(from));
    return at;
}

bool record_has_validation(const char *path) {
    char found[DATASET_PATH];
    RecordHeader header;
    record_read_header(path, &header);
    return header.split != 0 || (name_split(found, path, false) && file_exists(found));
}

/* `path`, or the file of the other split in the same folder. */
static void find_split(char found[DATASET_PATH], const char *path, bool train) {
    RecordHeader header;
    record_read_header(path, &header);
    if ((size_t)snprintf(found, DATASET_PATH, "%s", path) >= DATASET_PATH) die("%s: path too long", path);
    if ((header.split == 0) == train) return;
    const char *from = split_name(!train);
    if (!name_split(found, path, train))
        die("%s: holds the %s split, and without '%s' in its name the %s split cannot be found", path, from, from,
            split_name(train));
    if (!file_exists(found)) die("%s: holds the %s split, and its folder has no %s", path, from, found);
    record_read_header(found, &header);
    if ((header.split == 0) != train) die("%s: does not hold the %s split", found, split_name(train));
}

static void describe(Dataset *dataset, const RecordHeader *h) {
    *dataset = (Dataset){.height = (int)h->height, .width = (int)h->width, .classes = (int)h->classes,
                         .clips = h->version == RECORD_CLIPS};
    text_make_name(dataset->name, sizeof dataset->name, h->name, strlen(h->name));
    memcpy(dataset->mean, h->mean, sizeof h->mean);
    memcpy(dataset->std, h->std, sizeof h->std);
}

static void record_describe(Dataset *dataset, const char *path) {
    RecordHeader header;
    record_read_header(path, &header);
    describe(dataset, &header);
}

static size_t place_of(const Record *record, size_t index) {
    return record->limit ? index * record->file.header.count / record->limit : index;
}

static bool record_read(const Dataset *dataset, size_t index, SampleBuffer *buffer, Sample *sample, Error *error) {
    const Record *record = dataset->state;
    (void)buffer;
    return record_sample(&record->file, place_of(record, index), sample, error);
}

static int record_label(const Dataset *dataset, size_t index) {
    const Record *record = dataset->state;
    return (int)record->file.entries[place_of(record, index)].label;
}

static bool record_read_clip(const Dataset *dataset, size_t index, const ClipChoice *choice, SampleBuffer *buffer,
                             const ClipTaker *taker, int *label, Error *error) {
    Sample video;
    bool ok = record_read(dataset, index, buffer, &video, error);
    *label = video.label;
    return ok && videos_read_clip(video.bytes, video.size, video.label, choice, taker, error);
}

static void record_describe_image(const Dataset *dataset, size_t index, char *text, size_t size) {
    const Record *record = dataset->state;
    size_t place = place_of(record, index);
    snprintf(text, size, "%s: %s %zu (%s)", record->path, dataset->clips ? "video" : "image", place,
             record_image_name(&record->file, place));
}

static void record_key(const Dataset *dataset, size_t index, char *text, size_t size) {
    const Record *record = dataset->state;
    snprintf(text, size, "%s", record_image_name(&record->file, place_of(record, index)));
}

static void record_close(Dataset *dataset) {
    Record *record = dataset->state;
    file_unmap(record->file.bytes, record->file.header.size);
    class_names_free(&record->class_names);
    free(record->mirrored);
    free(record);
}

void record_open(Dataset *dataset, const char *path, bool train, size_t limit) {
    Error error;
    const void *map;
    size_t size;
    Record *record = xcalloc(1, sizeof *record, "a packed data set");
    find_split(record->path, path, train);
    if (!file_map(record->path, &map, &size, &error) || !record_parse(&record->file, map, size, &error))
        die("%s: %s", record->path, error.text);
    const RecordHeader *h = &record->file.header;
    class_names_parse(&record->class_names, (const char *)map + h->class_names, h->image_names - h->class_names, 0);
    describe(dataset, h);
    record->limit = limit && limit < h->count ? limit : 0;
    dataset->count = record->limit ? record->limit : h->count;
    dataset->class_names = record->class_names.at;
    dataset->read = record_read;
    if (dataset->clips) dataset->read_clip = record_read_clip;
    if (dataset->clips && h->directed) {
        record->mirrored = xcalloc(h->classes, sizeof *record->mirrored, "classes");
        for (uint32_t c = 0; c < h->classes; c++) record->mirrored[c] = -1;
        dataset->mirrored = record->mirrored;
    }
    dataset->describe = record_describe_image;
    dataset->key = record_key;
    dataset->label = record_label;
    dataset->close = record_close;
    dataset->state = record;
}

const DatasetKind packed_kind = {.find = record_find, .open = record_open, .describe = record_describe};

/* == Writing ====================================================================================================== */

struct RecordWriter {
    char path[DATASET_PATH], partial[DATASET_PATH + 16], journal[DATASET_PATH + 16];
    const Dataset *dataset;
    RecordHeader header;
    int fd, journal_fd;
    RecordEntry *entries; /* [count] */
    size_t appended, flushed;
    uint64_t end; /* offset after the last image */
};

/* The header of the journal; entries for another recipe or data set are unusable. */
#define JOURNAL_MAGIC "VIT.JNL2"
typedef struct {
    char magic[8];
    uint64_t recipe, count;
} Journal;

/* One follows for each image, with its own checksum: a corrupt label would end up in the packed file. */
typedef struct {
    RecordEntry entry;
    uint64_t checksum;
} JournalEntry;

static uint64_t journal_checksum(const RecordEntry *entry, size_t index) {
    return XXH3_64bits_withSeed(entry, sizeof *entry, index);
}

static void put(int fd, const char *path, const void *bytes, size_t size, uint64_t at) {
    const uint8_t *from = bytes;
    while (size) {
        ssize_t done = pwrite(fd, from, size, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) die("%s: cannot write: %s", path, strerror(errno));
        from += done;
        at += (uint64_t)done;
        size -= (size_t)done;
    }
}

static bool get(int fd, void *bytes, size_t size, uint64_t at) {
    uint8_t *to = bytes;
    while (size) {
        ssize_t done = pread(fd, to, size, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        to += done;
        at += (uint64_t)done;
        size -= (size_t)done;
    }
    return true;
}

static void make_lasting(int fd, const char *path) {
    if (fdatasync(fd) && errno != EINVAL) die("%s: cannot write: %s", path, strerror(errno));
}

static int open_to_write(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) die("%s: cannot open: %s", path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) die("%s: another process is packing this file", path);
    return fd;
}

/* A checksum of the recipe, of the header, which has the split and the data set's name, and of all images' names. */
static uint64_t fingerprint(const Dataset *dataset, const RecordHeader *header, uint64_t recipe) {
    char name[DATASET_PATH + 512];
    uint64_t sum = XXH3_64bits_withSeed(header, sizeof *header, recipe);
    for (size_t i = 0; i < dataset->count; i++) {
        dataset_key(dataset, i, name, sizeof name);
        sum = XXH3_64bits_withSeed(name, strlen(name), sum);
    }
    return sum;
}

/* Reads the journal's valid entries whose images are in the file, and returns their number; later images are packed
 * again. */
static size_t journal_read(RecordWriter *w, uint64_t recipe) {
    Journal begun, want = {.recipe = recipe, .count = w->header.count};
    struct stat info;
    memcpy(want.magic, JOURNAL_MAGIC, sizeof want.magic);
    if (fstat(w->fd, &info)) die("%s: cannot read: %s", w->partial, strerror(errno));
    if (!info.st_size || !get(w->journal_fd, &begun, sizeof begun, 0)) { /* afresh, if the partial file is removed */
        put(w->journal_fd, w->journal, &want, sizeof want, 0);
        return 0;
    }
    if (memcmp(&begun, &want, sizeof want))
        die("%s: was begun from other images or with other options: remove it to start afresh", w->partial);
    size_t n = 0;
    for (JournalEntry j; n < want.count && get(w->journal_fd, &j, sizeof j, sizeof want + n * sizeof j); n++) {
        RecordEntry e = j.entry;
        if (j.checksum != journal_checksum(&e, n)) break;
        if (e.offset != w->end || e.size > UINT64_MAX - e.offset || e.offset + e.size > (uint64_t)info.st_size) break;
        w->entries[n] = e;
        w->end += e.size;
    }
    return n;
}

/* A crash may have lost images of the last flush: going backwards from the end, entries whose image does not match its
 * checksum are discarded.  Returns the number of entries left. */
static size_t journal_verify(RecordWriter *w, size_t n) {
    enum { LOOK_BACK = 4096 };
    size_t first = n > LOOK_BACK ? n - LOOK_BACK : 0;
    for (size_t i = first; i < n; i++) {
        const RecordEntry *e = &w->entries[i];
        uint8_t *bytes = xcalloc(1, e->size, "an image");
        bool ok = get(w->fd, bytes, e->size, e->offset) && XXH3_64bits(bytes, e->size) == e->checksum;
        free(bytes);
        if (ok) continue;
        w->end = e->offset;
        return i;
    }
    return n;
}

RecordWriter *record_create(const char *path, const Dataset *dataset, bool train, uint64_t recipe, size_t *done) {
    RecordWriter *w = xcalloc(1, sizeof *w, "packing");
    if ((size_t)snprintf(w->path, sizeof w->path, "%s", path) >= sizeof w->path) die("%s: path too long", path);
    snprintf(w->partial, sizeof w->partial, "%s.partial", w->path);
    snprintf(w->journal, sizeof w->journal, "%s.partial.index", w->path);
    w->dataset = dataset;
    w->header = (RecordHeader){.version = dataset->clips ? RECORD_CLIPS : RECORD_VERSION,
                               .directed = dataset->mirrored != NULL, .split = !train, .count = dataset->count,
                               .classes = (uint32_t)dataset->classes};
    memcpy(w->header.magic, RECORD_MAGIC, sizeof w->header.magic);
    memcpy(w->header.mean, dataset->mean, sizeof dataset->mean);
    memcpy(w->header.std, dataset->std, sizeof dataset->std);
    snprintf(w->header.name, sizeof w->header.name, "%s", dataset->name);
    w->entries = xcalloc(dataset->count, sizeof *w->entries, "the index");
    w->end = sizeof w->header;
    w->fd = open_to_write(w->partial);
    w->journal_fd = open_to_write(w->journal);
    w->appended = journal_verify(w, journal_read(w, fingerprint(dataset, &w->header, recipe)));
    w->flushed = w->appended;
    if (ftruncate(w->journal_fd, (off_t)(sizeof(Journal) + w->flushed * sizeof(JournalEntry))) ||
        ftruncate(w->fd, (off_t)w->end))
        die("%s: cannot write: %s", w->partial, strerror(errno));
    *done = w->appended;
    return w;
}

void record_append(RecordWriter *w, const Sample *sample) {
    if (sample->size > UINT32_MAX)
        die("%s: number %zu has %zu bytes, and 4 GiB are the most: a lower --fps or --resize makes it smaller", w->partial,
            (size_t)w->appended, sample->size);
    RecordEntry *e = &w->entries[w->appended++];
    *e = (RecordEntry){.offset = w->end, .checksum = XXH3_64bits(sample->bytes, sample->size),
                       .size = (uint32_t)sample->size, .label = (uint32_t)sample->label,
                       .height = sample->size ? (uint32_t)sample->height : 0,
                       .width = sample->size ? (uint32_t)sample->width : 0};
    put(w->fd, w->partial, sample->bytes, sample->size, e->offset);
    w->end += e->size;
}

size_t record_damaged(const RecordWriter *w) {
    size_t damaged = 0;
    for (size_t i = 0; i < w->appended; i++) damaged += !w->entries[i].size;
    return damaged;
}

void record_flush(RecordWriter *w) {
    size_t n = w->appended - w->flushed;
    make_lasting(w->fd, w->partial);
    JournalEntry *lines = xcalloc(n, sizeof *lines, "the journal");
    for (size_t i = 0; i < n; i++) {
        lines[i].entry = w->entries[w->flushed + i];
        lines[i].checksum = journal_checksum(&lines[i].entry, w->flushed + i);
    }
    put(w->journal_fd, w->journal, lines, n * sizeof *lines, sizeof(Journal) + w->flushed * sizeof *lines);
    make_lasting(w->journal_fd, w->journal);
    free(lines);
    w->flushed = w->appended;
}

/* Writes the name with its 0 and returns its size. */
static size_t put_name(FILE *out, const char *name) { return fwrite(name, 1, strlen(name) + 1, out); }

/* Writes the index and the names. */
static void write_tail(RecordWriter *w) {
    RecordHeader *h = &w->header;
    const Dataset *d = w->dataset;
    TextStream stream;
    FILE *out = text_open(&stream);
    char name[DATASET_PATH + 512];
    size_t index_size = h->count * sizeof *w->entries, class_size = 0, image_size = 0;
    for (int c = 0; c < d->classes; c++) {
        snprintf(name, sizeof name, "%d", c);
        class_size += put_name(out, d->class_names ? d->class_names[c] : name);
    }
    for (size_t i = 0; i < h->count; i++) {
        dataset_key(d, i, name, sizeof name); /* which does not tell where the data set was stored */
        w->entries[i].name = image_size;
        image_size += put_name(out, name);
    }
    char *names = text_close(&stream, "names");
    h->index = (w->end + ALIGN - 1) / ALIGN * ALIGN;
    h->class_names = h->index + index_size;
    h->image_names = h->class_names + class_size;
    h->size = h->image_names + image_size;
    put(w->fd, w->partial, w->entries, index_size, h->index);
    put(w->fd, w->partial, names, class_size + image_size, h->class_names);
    XXH3_state_t *state = XXH3_createState();
    if (!state) die("out of memory for a checksum");
    XXH3_64bits_reset(state);
    XXH3_64bits_update(state, w->entries, index_size);
    XXH3_64bits_update(state, names, class_size + image_size);
    h->tail_checksum = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    free(names);
}

void record_finish(RecordWriter *w, int height, int width) {
    w->header.height = (uint32_t)height;
    w->header.width = (uint32_t)width;
    write_tail(w);
    w->header.header_checksum = XXH3_64bits(&w->header, offsetof(RecordHeader, header_checksum));
    put(w->fd, w->partial, &w->header, sizeof w->header, 0);
    make_lasting(w->fd, w->partial);
    if (rename(w->partial, w->path)) die("%s: cannot rename to %s: %s", w->partial, w->path, strerror(errno));
    unlink(w->journal);
    close(w->fd);
    close(w->journal_fd);
    free(w->entries);
    free(w);
}
