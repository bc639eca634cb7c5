#include "data/sequences/sequences.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/die.h"
#include "core/files.h"
#include "core/integers.h"
#include "core/rng.h"
#include "core/text.h"
#include "data/sets/datasets.h"
#include "data/images/image.h"
#include "data/images/pillow.h"
#include "data/sequences/sound.h"

/* == Settings ===================================================================================================== */

enum { HELD_OUT = 2000, PHOTOGRAPH_SIDE = 64 };

#define F(KIND, field) CONFIG_FIELD(KIND, SequencesSettings, field)
static const ConfigEntry entries[] = {
    {F(STRING, data), "shapes", .section = "data", .change = CHANGE_PATH,
     .help = "Data set: shapes (generated images, no files needed), " DATASETS_WITH_FILES(", ") ", enwik8, a folder "
             "with the files of one of these, with a folder for each class or with train/<class>/ and val/<class>/, a "
             "file made by pack_dataset, a WAV file or a folder of them, or any other file, which is read as text"},
    {F(STRING, data_dir), "datasets", .argument = "FOLDER", .change = CHANGE_FREELY, .ranks_differ = true,
     .help = "Folder that contains the folders of " DATASETS_WITH_FILES(" and ") ", and the file enwik8"},
    {F(CHOICE, kind), "auto",
     CONFIG_CHOICES([SEQUENCES_AUTO] = "auto", [SEQUENCES_IMAGES] = "images", [SEQUENCES_TEXT] = "text",
                    [SEQUENCES_AUDIO] = "audio"),
     .help = "Kind of the data; auto: as the files show"},
    {F(INT, tokens), "1024", .min = 1, .max = 1 << 24,
     .help = "Bytes of text or samples of sound in a sequence; for images it follows from height, width and channels"},
    {F(INT, image_side), "0", .min = 0, .max = 1024,
     .help = "Height and width of images, resized by Pillow's BOX filter (0: the data set's own, 64 if its pictures "
             "differ in size)"},
    {F(BOOL, grey), "false", .help = "One channel instead of three"},
    {F(INT, rate), "12000", .min = 1000, .max = 192000, .help = "Samples a second of sound; other rates are converted"},
    {F(FLOATS, shares), "90,5,5", .min = 0, .max = 1e9,
     .help = "Shares of text or sound for training, validation and test, in this order"},
    {F(INT, validation_images), "-1", .min = -1, .max = 1e8,
     .help = "Training images held out for validation (-1: 2000, or a tenth if that is less; 0: none, and the test "
             "images are used for validation)"},
    {F(UINT64, split_seed), "0", .help = "Seed of the choice of the images that are held out"},
    {F(INT, train_limit), "0", .min = 0, .max = 1e8, .help = "Use only N of the training sequences (0: all)"},
    {F(INT, test_limit), "0", .min = 0, .max = 1e8, .change = CHANGE_FREELY,
     .help = "Use only N of the validation and of the test sequences (0: all)"},
};
#undef F

/* == What `data` is =============================================================================================== */

static const char *const text_set = "enwik8"; /* the only named set besides the data sets of images */

const char *const sequences_split_names[SEQUENCES_SPLITS] = {"training", "validation", "test"};

static SequencesKind kind_named(const char *data) {
    return dataset_named(data) ? SEQUENCES_IMAGES : strcmp(data, text_set) ? SEQUENCES_AUTO : SEQUENCES_TEXT;
}

static void check(const Config *config, const void *settings) {
    const SequencesSettings *s = settings;
    SequencesKind named = kind_named(s->data);
    double sum = 0;
    for (int i = 0; i < s->shares.count; i++) sum += (double)s->shares.at[i];
    if (s->shares.count != SEQUENCES_SPLITS || sum <= 0)
        config_reject(config, "shares", "expected three numbers: the shares of training, validation and test");
    if (named && s->kind && s->kind != named)
        config_reject(config, "kind", "{data} is %s, not {kind}: choose data of that kind, or kind auto",
                      named == SEQUENCES_IMAGES ? "a set of images" : "text");
    bool path = strchr(s->data, '/') || file_exists(s->data);
    const char *near = named || path ? NULL : dataset_nearest(s->data, text_set);
    if (near) config_reject(config, "data", "unknown data set '%s' (did you mean '%s'?)", s->data, near);
}

const ConfigGroup sequences_settings = {CONFIG_GROUP(SequencesSettings, entries),
                                        .change = CHANGE_NEVER, .check = check};

static int by_name(const FTSENT **a, const FTSENT **b) { return strcmp((*a)->fts_name, (*b)->fts_name); }

/* The WAV files at or below a path, in the order of their names; *count of them.  NULL: none.  Hidden files are left
 * out. */
static char **find_wavs(const char *path, size_t *count) {
    char **found = NULL, *root = xstrdup(path);
    size_t room = 0;
    *count = 0;
    FTS *tree = fts_open((char *const[]){root, NULL}, FTS_LOGICAL | FTS_NOCHDIR, by_name);
    if (!tree) die("%s: cannot open: %s", path, strerror(errno));
    for (FTSENT *entry; (errno = 0, entry = fts_read(tree));) {
        bool below = entry->fts_level > FTS_ROOTLEVEL;
        if (below && entry->fts_name[0] == '.') {
            fts_set(tree, entry, FTS_SKIP);
            continue;
        }
        bool unread = entry->fts_info == FTS_DNR || entry->fts_info == FTS_ERR || entry->fts_info == FTS_NS;
        bool wav = !below || text_has_extension(entry->fts_name, "wav wave");
        if (unread || (wav && entry->fts_info == FTS_SLNONE)) /* a link to nothing, whose fts_errno is 0 */
            die("%s: cannot read: %s", entry->fts_path, strerror(unread ? entry->fts_errno : ENOENT));
        if (!wav || entry->fts_info != FTS_F) continue;
        found = xgrow(found, *count + 1, &room, sizeof *found, "the names of WAV files");
        found[(*count)++] = xstrdup(entry->fts_path);
    }
    if (errno) die("%s: cannot read this folder: %s", path, strerror(errno));
    fts_close(tree);
    free(root);
    return found;
}

static void free_names(char **names, size_t count) {
    for (size_t i = 0; i < count; i++) free(names[i]);
    free(names);
}

static bool has_wavs(const char *folder) {
    size_t count;
    char **names = find_wavs(folder, &count);
    free_names(names, count);
    return count > 0;
}

static bool is_wav(const char *path) {
    char head[12] = "";
    Error error;
    int fd = file_open(path, &error);
    if (fd < 0) die("%s: %s", path, error.text);
    ssize_t got = pread(fd, head, sizeof head, 0);
    close(fd);
    bool riff = got == sizeof head && (!memcmp(head, "RIFF", 4) || !memcmp(head, "RF64", 4) || !memcmp(head, "RIFX", 4));
    return riff && !memcmp(head + 8, "WAVE", 4);
}

/* Determines the kind of `data`; for text and audio, `path` receives its location. */
static SequencesKind kind_of(const SequencesSettings *s, char path[DATASET_PATH]) {
    struct stat info;
    if (strlen(s->data) >= DATASET_PATH) die("%.100s...: path too long", s->data);
    snprintf(path, DATASET_PATH, "%s", s->data);
    SequencesKind named = kind_named(s->data);
    if (named == SEQUENCES_TEXT) path_join(path, DATASET_PATH, *s->data_dir ? s->data_dir : "datasets", text_set);
    if (named) return named;
    file_note(path);
    if (s->kind) return s->kind;
    if (stat(path, &info)) {
        if (errno != ENOENT && errno != ENOTDIR) die("%s: cannot open: %s", path, strerror(errno));
        die("%s: no such file or folder", path);
    }
    if (dataset_is_there(path)) return SEQUENCES_IMAGES;
    if (!S_ISDIR(info.st_mode)) return is_wav(path) ? SEQUENCES_AUDIO : SEQUENCES_TEXT;
    if (!has_wavs(path))
        die("%s: neither a data set of pictures nor WAV files are in this folder (convert other sound to WAV, and join "
            "texts to one file)", path);
    return SEQUENCES_AUDIO;
}

/* == A set ======================================================================================================== */

/* One split of a stream. */
typedef struct {
    size_t begin, size;
} Range;

struct SequencesSource {
    Dataset train, test;
    uint32_t *split; /* [train.count]: a permutation; training images first, then those for validation */
    size_t trained;  /* training images, before any limit */
    bool tests_validate;

    char path[DATASET_PATH]; /* of a stream */
    const uint8_t *bytes;
    size_t size;
    bool mapped;
    Range ranges[SEQUENCES_SPLITS];
};

/* The number of bytes in a row in excess of its predicted tokens. */
static size_t extra(const SequenceSet *set) { return set->kind == SEQUENCES_TEXT; }

static void describe_images(SequenceSet *set, const SequencesSettings *s, const Dataset *dataset) {
    int own_height = dataset->height ? dataset->height : PHOTOGRAPH_SIDE;
    int own_width = dataset->width ? dataset->width : PHOTOGRAPH_SIDE;
    snprintf(set->name, sizeof set->name, "%s", dataset->name);
    set->height = s->image_side ? s->image_side : own_height;
    set->width = s->image_side ? s->image_side : own_width;
    set->channels = s->grey ? 1 : 3;
    if ((int64_t)set->height * set->width * set->channels > 1 << 24)
        die("%s: images of %d x %d: expected at most %d bytes: lower image_side", set->name, set->height, set->width,
            1 << 24);
    set->n = set->row_bytes = set->height * set->width * set->channels;
}

static void describe_stream(SequenceSet *set, const SequencesSettings *s, const char *path) {
    text_name_path(set->name, sizeof set->name, path, "bytes");
    set->n = s->tokens;
    set->row_bytes = s->tokens + (int)extra(set);
    set->rate = set->kind == SEQUENCES_AUDIO ? s->rate : 0;
}

void sequences_describe(SequenceSet *set, const SequencesSettings *s) {
    char path[DATASET_PATH];
    *set = (SequenceSet){.kind = kind_of(s, path)};
    if (set->kind != SEQUENCES_IMAGES) return describe_stream(set, s, path);
    Dataset dataset;
    dataset_describe(&dataset, s->data, s->data_dir);
    if (dataset.clips) die_usage("%s has clips, which this program cannot read as sequences of bytes: give images, "
                                 "text or sound as data", dataset.name);
    describe_images(set, s, &dataset);
    dataset_close(&dataset);
}

/* == Images ======================================================================================================= */

/* A permutation of the training images, whose end is held out. */
static void split_images(SequencesSource *source, uint64_t seed, size_t held_out) {
    size_t count = source->train.count;
    source->split = xcalloc(count, sizeof *source->split, "the split of the images");
    for (size_t i = 0; i < count; i++) source->split[i] = (uint32_t)i;
    if (held_out) rng_shuffle(source->split, count, 1, seed, RNG_HOLD_OUT, 0, 0);
    source->trained = count - held_out;
}

/* Any number of images can be generated; of other data sets, the images after the limit are left out after the
 * split. */
static void open_images(SequenceSet *set, const SequencesSettings *s) {
    SequencesSource *source = set->source;
    size_t drawn = dataset_generates(s->data) && s->train_limit
                       ? (size_t)s->train_limit + (size_t)(s->validation_images < 0 ? HELD_OUT : s->validation_images)
                       : 0;
    dataset_open(&source->train, s->data, s->data_dir, true, drawn);
    DatasetSplits splits = dataset_splits(s->data, s->data_dir);
    if (splits.validation || splits.test)
        dataset_open(&source->test, s->data, s->data_dir, false, (size_t)s->test_limit);
    describe_images(set, s, &source->train);
    size_t count = source->train.count, tenth = count / 10;
    size_t held_out = s->validation_images >= 0 ? (size_t)s->validation_images : tenth < HELD_OUT ? tenth : HELD_OUT;
    if (count > UINT32_MAX || source->test.count > UINT32_MAX) die("%s: more than %u images", set->name, UINT32_MAX);
    if (held_out >= count)
        die_usage("validation_images %zu: %s has %zu training images: lower it", held_out, set->name, count);
    split_images(source, s->split_seed, held_out);
    source->tests_validate = !held_out;
    set->count[SEQUENCES_TRAIN] = dataset_limited(source->trained, (size_t)s->train_limit);
    set->count[SEQUENCES_TEST] = source->test.count;
    set->count[SEQUENCES_VALIDATION] = held_out ? dataset_limited(held_out, (size_t)s->test_limit) : source->test.count;
}

/* The data set and index of image `index` of a split. */
static const Dataset *place_of(const SequenceSet *set, SequencesSplit split, size_t index, size_t *at) {
    const SequencesSource *source = set->source;
    *at = index;
    if (split == SEQUENCES_TEST || (split == SEQUENCES_VALIDATION && source->tests_validate)) return &source->test;
    *at = source->split[split == SEQUENCES_TRAIN ? index : source->trained + index];
    return &source->train;
}

bool sequences_from_pixels(const SequenceSet *set, uint8_t *tokens, int rows, const uint8_t *pixels, int height,
                           int width, TransformScratch *scratch, Error *error) {
    size_t count = (size_t)rows * (size_t)set->width;
    bool resize = height != rows || width != set->width;
    if (resize) {
        uint8_t *out = tokens;
        if (set->channels == 1) {
            if (!sample_buffer_grow(&scratch->crop, 3 * count)) return refuse_memory(error, 3 * count, "an image");
            out = scratch->crop.bytes;
        }
        ImagePart part = {.pixels = pixels, .stride = (size_t)width * 3, .height = height, .width = width};
        ResampleAxis down = resample_whole(height, rows), across = resample_whole(width, set->width);
        if (!resample(&scratch->resampler, out, &part, &down, &across, RESAMPLE_BOX))
            return refuse_memory(error, 0, "resizing an image");
        pixels = out;
    }
    for (size_t i = 0; i < count && set->channels == 1; i++) tokens[i] = (uint8_t)pillow_grey(pixels + 3 * i);
    if (set->channels == 3 && pixels != tokens) memcpy(tokens, pixels, 3 * count);
    return true;
}

static bool read_image(const SequenceSet *set, SequencesSplit split, size_t index, uint8_t *tokens,
                       TransformScratch *scratch, Error *error) {
    size_t at;
    const Dataset *dataset = place_of(set, split, index, &at);
    Sample sample;
    if (!dataset_read(dataset, at, &scratch->bytes, &sample, error)) return false;
    if (sample.height)
        return sequences_from_pixels(set, tokens, set->height, sample.bytes, sample.height, sample.width, scratch,
                                     error);
    Image image;
    if (!image_decode(&image, sample.bytes, sample.size, IMAGE_MAX_PIXELS, error)) return false;
    bool ok = sequences_from_pixels(set, tokens, set->height, image.pixels, image.height, image.width, scratch, error);
    image_free(&image);
    return ok;
}

/* == Streams ====================================================================================================== */

static void open_text(SequencesSource *source, const char *name) {
    Error error;
    const void *map;
    if (!strcmp(name, "enwik8") && !file_exists(source->path))
        die("%s: no such file: put the first 10^8 bytes of the English Wikipedia there (mattmahoney.net/dc/enwik8.zip)",
            source->path);
    if (!file_map(source->path, &map, &source->size, &error)) die("%s: %s", source->path, error.text);
    source->bytes = map;
    source->mapped = true;
    if (!source->size) die("%s: empty", source->path);
}

/* The outcome of reading one WAV file. */
typedef struct {
    uint8_t *samples; /* NULL: an error */
    size_t count;
    Error error;
} Decoded;

/* file_map is not thread-safe, but reading mapped files is. */
static void decode_wav(Decoded *decoded, const char *path, int rate) {
    const void *map = NULL;
    size_t size;
    bool mapped;
#pragma omp critical(wav)
    mapped = file_map(path, &map, &size, &decoded->error);
    if (mapped && !sound_decode(&decoded->samples, &decoded->count, map, size, rate, &decoded->error))
        decoded->samples = NULL;
#pragma omp critical(wav)
    if (mapped) file_unmap(map, size);
}

/* The files' samples, one file after another. */
static uint8_t *join(SequencesSource *source, Decoded *decoded, size_t files) {
    for (size_t i = 0; i < files; i++) source->size += decoded[i].count;
    uint8_t *all = xcalloc(source->size, 1, "sound"), *end = all;
    for (size_t i = 0; i < files; i++) {
        memcpy(end, decoded[i].samples, decoded[i].count);
        end += decoded[i].count;
        free(decoded[i].samples);
    }
    return all;
}

/* Opens no more files at a time than file_map can track. */
static void open_audio(SequencesSource *source, int rate) {
    enum { AT_ONCE = 12 };
    size_t files;
    char **names = find_wavs(source->path, &files);
    if (!files) die("%s: no WAV files in this folder", source->path);
    Decoded *decoded = xcalloc(files, sizeof *decoded, "WAV files");
#pragma omp parallel for schedule(dynamic) \
    num_threads(smaller(omp_get_max_threads(), files < AT_ONCE ? (int)files : AT_ONCE))
    for (size_t i = 0; i < files; i++) decode_wav(&decoded[i], names[i], rate);
    for (size_t i = 0; i < files; i++)
        if (!decoded[i].samples) die("%s: %s", names[i], decoded[i].error.text);
    source->bytes = join(source, decoded, files);
    free(decoded);
    free_names(names, files);
}

/* Splits a stream by the shares, and cuts each split to its limit: text needs one byte more than it predicts, and
 * training up to n - 1 bytes for the offset. */
static void split_stream(SequenceSet *set, const SequencesSettings *s) {
    SequencesSource *source = set->source;
    double sum = 0, before = 0;
    for (int i = 0; i < SEQUENCES_SPLITS; i++) sum += (double)s->shares.at[i];
    for (int i = 0; i < SEQUENCES_SPLITS; i++) {
        size_t begin = (size_t)((double)source->size * before / sum);
        before += (double)s->shares.at[i];
        size_t end = i + 1 < SEQUENCES_SPLITS ? (size_t)((double)source->size * before / sum) : source->size;
        int limit = i == SEQUENCES_TRAIN ? s->train_limit : s->test_limit;
        size_t n = (size_t)set->n, spare = i == SEQUENCES_TRAIN ? n - 1 : 0, size = end - begin;
        if (limit && size > (size_t)limit * n + spare + extra(set)) size = (size_t)limit * n + spare + extra(set);
        if (s->shares.at[i] > 0 && size < n + spare + extra(set))
            die("%s: %zu %s, of which the %s share has %zu: expected at least %zu there: lower tokens or change shares",
                source->path, source->size, set->kind == SEQUENCES_TEXT ? "bytes" : "samples",
                sequences_split_names[i], size, n + spare + extra(set));
        source->ranges[i] = (Range){begin, size};
        set->count[i] = size;
    }
}

static size_t targets_of(const SequenceSet *set, SequencesSplit split) {
    size_t size = set->source->ranges[split].size;
    return size > extra(set) ? size - extra(set) : 0;
}

static void copy_row(const SequenceSet *set, SequencesSplit split, size_t begin, uint8_t *tokens) {
    const Range *range = &set->source->ranges[split];
    assert(begin + (size_t)set->row_bytes <= range->size);
    memcpy(tokens, set->source->bytes + range->begin + begin, (size_t)set->row_bytes);
}

size_t sequences_count_bytes(const SequenceSet *set, SequencesSplit split, size_t counts[256]) {
    const Range *range = &set->source->ranges[split];
    memset(counts, 0, 256 * sizeof *counts);
    for (size_t i = 0; i < range->size; i++) counts[set->source->bytes[range->begin + i]]++;
    return range->size;
}

/* == Opening ====================================================================================================== */

void sequences_open(SequenceSet *set, const SequencesSettings *s) {
    SequencesSource *source = xcalloc(1, sizeof *source, "a data set");
    *set = (SequenceSet){.kind = kind_of(s, source->path), .source = source};
    if (set->kind == SEQUENCES_IMAGES) return open_images(set, s);
    describe_stream(set, s, source->path);
    if (set->kind == SEQUENCES_TEXT)
        open_text(source, s->data);
    else
        open_audio(source, s->rate);
    split_stream(set, s);
}

void sequences_close(SequenceSet *set) {
    SequencesSource *source = set->source;
    if (source) {
        dataset_close(&source->train);
        dataset_close(&source->test);
        free(source->split);
        if (source->mapped)
            file_unmap(source->bytes, source->size);
        else
            free((void *)(uintptr_t)source->bytes);
        free(source);
    }
    *set = (SequenceSet){.source = NULL};
}

/* == Training ===================================================================================================== */

size_t sequences_epoch_length(const SequenceSet *set) {
    size_t n = (size_t)set->n;
    if (set->kind == SEQUENCES_IMAGES) return set->count[SEQUENCES_TRAIN];
    size_t windows = (targets_of(set, SEQUENCES_TRAIN) + 1) / n;
    return windows ? windows - 1 : 0; /* at the greatest offset, n - 1 */
}

size_t sequences_offset(const SequenceSet *set, uint64_t seed, uint32_t epoch) {
    return set->kind == SEQUENCES_IMAGES ? 0 : rng_below(seed, RNG_WINDOWS, epoch, 0, 0, (uint32_t)set->n);
}

bool sequences_train(const SequenceSet *set, size_t offset, size_t index, uint8_t *tokens, TransformScratch *scratch,
                     Error *error) {
    if (set->kind == SEQUENCES_IMAGES) return read_image(set, SEQUENCES_TRAIN, index, tokens, scratch, error);
    copy_row(set, SEQUENCES_TRAIN, offset + index * (size_t)set->n, tokens);
    return true;
}

/* == Evaluation =================================================================================================== */

size_t sequences_scored(const SequenceSet *set, SequencesSplit split) {
    return set->kind == SEQUENCES_IMAGES ? set->count[split] * (size_t)set->n : targets_of(set, split);
}

size_t sequences_windows(const SequenceSet *set, SequencesSplit split, int step) {
    if (set->kind == SEQUENCES_IMAGES) return set->count[split];
    size_t targets = targets_of(set, split), n = (size_t)set->n;
    assert(step >= 1 && step <= set->n);
    return targets < n ? 0 : 1 + (targets - n + (size_t)step - 1) / (size_t)step;
}

bool sequences_window(const SequenceSet *set, SequencesSplit split, int step, size_t index, uint8_t *tokens,
                      int *scored_from, TransformScratch *scratch, Error *error) {
    *scored_from = 0;
    if (set->kind == SEQUENCES_IMAGES) return read_image(set, split, index, tokens, scratch, error);
    size_t last = targets_of(set, split) - (size_t)set->n, begin = index * (size_t)step;
    size_t scored = index ? begin - (size_t)step + (size_t)set->n : 0; /* earlier windows have scored all before it */
    if (begin > last) begin = last;
    *scored_from = (int)(scored - (index ? begin : 0));
    copy_row(set, split, begin, tokens);
    return true;
}

void sequences_name(const SequenceSet *set, SequencesSplit split, size_t index, char *text, size_t size) {
    size_t at;
    if (set->kind == SEQUENCES_IMAGES) {
        const Dataset *dataset = place_of(set, split, index, &at);
        dataset_name_image(dataset, at, text, size);
    } else {
        snprintf(text, size, "%s: sequence %zu of the %s split", set->source->path, index,
                 sequences_split_names[split]);
    }
}
