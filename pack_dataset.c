/* pack_dataset: packs a split of any data set that train_vit reads into one file that loads faster
 * (data/sets/record.h).
 *
 *   pack_dataset --data datasets/imagenet --split train --out datasets/imagenet/train.pack
 *   pack_dataset --check datasets/imagenet/train.pack
 *
 * Read it top to bottom: settings, processing of one image, of one video, groups of images that are processed in
 * parallel and written in order, checking, main. */
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/config/config.h"
#include "core/die.h"
#include "core/files.h"
#include "core/json_memory.h"
#include "core/limits.h"
#include "core/progress.h"
#include "core/signals.h"
#include "core/text.h"
#include "core/version.h"
#include "data/images/image.h"
#include "data/images/resample.h"
#include "data/video/clip_file.h"
#include "data/video/clips.h"
#include "data/sets/datasets.h"
#include "data/images/jpeg.h"
#include "data/sets/record.h"
#include "data/sets/videos.h"

/* == Settings ===================================================================================================== */

typedef struct {
    bool help, version, raw, jpeg;
    const char *data, *data_dir, *out, *check;
    int split, resize, quality, limit, threads;
    float fps;
} Settings;

#define F(KIND, field) CONFIG_FIELD(KIND, Settings, field)
static const ConfigEntry entries[] = {
    {F(BOOL, help), .section = "pack", .command_line_only = true, .help = "Print this help (also -h)"},
    {F(BOOL, version), .command_line_only = true, .help = "Print the version"},
    {F(STRING, data),
     .help = "Data set to be packed, as for train_vit: a folder with train/<class>/ and val/<class>/, a packed file, "
             "or a name such as cifar10"},
    {F(STRING, data_dir), "datasets", .argument = "FOLDER",
     .help = "Folder that contains the folders of data sets given by name"},
    {F(CHOICE, split), "train", CONFIG_CHOICES("train", "val"), .help = "Split of the data set to be packed"},
    {F(STRING, out), .argument = "FILE",
     .help = "File to be written; train_vit looks for train.pack and val.pack in the folder of --data"},
    {F(INT, resize), "0", .min = 0, .max = 16384,
     .help = "Shrink images to this short side (bicubic); smaller images are not changed (0: shrink none)"},
    {F(INT, quality), "95", .min = 1, .max = 100, .help = "JPEG quality of images that were shrunk"},
    {F(BOOL, raw), "false", .help = "Store pixels instead of JPEGs: a larger file that needs no decoding"},
    {F(BOOL, jpeg), "false",
     .help = "Store every frame of videos as a JPEG, as --resize and --fps do, too: the file is larger, but any frame "
             "can be read without the others"},
    {F(FLOAT, fps), "0", .min = 0, .max = 600,
     .help = "Number of frames a second of videos to keep: the first frame at or after each multiple of 1 / fps "
             "seconds (0: all)"},
    {F(INT, limit), "0", .min = 0, .max = 1e9, .help = "Pack only N images (0: all)"},
    {F(INT, threads), "0", .min = 0, .max = 1024, .help = "Number of threads (0: one for each core)"},
    {F(STRING, check), .argument = "FILE",
     .help = "Pack nothing, but verify all checksums of this packed file and decode all its images"},
};
#undef F
static const ConfigGroup settings = {CONFIG_GROUP(Settings, entries), .change = CHANGE_FREELY};

/* == One image ==================================================================================================== */

typedef struct {
    Sample sample; /* owns its bytes */
    uint8_t *memory;
    bool damaged;
    Error error;
} Packed;

typedef struct {
    JpegReader *jpeg;
    Resampler resampler;
    SampleBuffer bytes;
} Scratch;

/* Returns all pixels of a sample; the caller frees *owned. */
static bool decode(Scratch *scratch, const Sample *sample, ImagePart *part, Image *owned, Error *error) {
    int height = sample->height, width = sample->width;
    const uint8_t *pixels = sample->bytes;
    *owned = (Image){0};
    if (!height && jpeg_is(sample->bytes, sample->size))
        return jpeg_begin(scratch->jpeg, sample->bytes, sample->size, JPEG_MAX_PIXELS, &height, &width, error) &&
               jpeg_region(scratch->jpeg, 8, (int[]){0, height}, (int[]){0, width}, part, error);
    if (!height) {
        if (!image_decode(owned, sample->bytes, sample->size, IMAGE_MAX_PIXELS, error)) return false;
        height = owned->height;
        width = owned->width;
        pixels = owned->pixels;
    }
    *part = (ImagePart){.pixels = pixels, .stride = (size_t)width * 3, .height = height, .width = width};
    return true;
}

static bool take_memory(Packed *packed, size_t size) {
    packed->memory = malloc(size ? size : 1);
    if (!packed->memory) refuse_memory(&packed->error, size, "an image");
    packed->sample.bytes = packed->memory;
    packed->sample.size = packed->memory ? size : 0;
    return packed->memory != NULL;
}

static bool keep_bytes(Packed *packed, const Sample *sample) {
    if (!take_memory(packed, sample->size)) return false;
    memcpy(packed->memory, sample->bytes, sample->size);
    packed->sample.height = sample->height;
    packed->sample.width = sample->width;
    return true;
}

/* Resizes the whole picture so that its shorter side is `shorter`, like torchvision's Resize. */
static bool shrink(Packed *packed, Scratch *scratch, const ImagePart *part, int shorter) {
    int64_t h = part->height, w = part->width;
    int height = h <= w ? shorter : (int)(h * shorter / w), width = w <= h ? shorter : (int)(w * shorter / h);
    ResampleAxis rows = resample_whole(part->height, height), columns = resample_whole(part->width, width);
    if (!take_memory(packed, (size_t)height * (size_t)width * 3)) return false;
    packed->sample.height = height;
    packed->sample.width = width;
    if (resample(&scratch->resampler, packed->memory, part, &rows, &columns, RESAMPLE_BICUBIC)) return true;
    return refuse_memory(&packed->error, 0, "resizing");
}

static bool keep_pixels(Packed *packed, const ImagePart *part) {
    size_t row = (size_t)part->width * 3;
    if (!take_memory(packed, (size_t)part->height * row)) return false;
    for (int y = 0; y < part->height; y++)
        memcpy(packed->memory + (size_t)y * row, part->pixels + (size_t)y * part->stride, row);
    packed->sample.height = part->height;
    packed->sample.width = part->width;
    return true;
}

static bool compress(Packed *packed, int quality) {
    uint8_t *pixels = packed->memory;
    packed->memory = NULL;
    bool ok = jpeg_encode(pixels, packed->sample.height, packed->sample.width, quality, &packed->memory,
                          &packed->sample.size, &packed->error);
    free(pixels);
    packed->sample.bytes = packed->memory;
    packed->sample.height = packed->sample.width = 0;
    return ok;
}

/* Decodes every image, so that damaged ones are found when they are packed. */
static bool pack_sample(Packed *packed, Scratch *scratch, const Sample *sample, const Settings *s) {
    ImagePart part;
    Image owned;
    if (!decode(scratch, sample, &part, &owned, &packed->error)) return false;
    int shorter = part.height < part.width ? part.height : part.width;
    bool small = !s->resize || shorter <= s->resize, ok;
    if (small && s->raw) ok = keep_pixels(packed, &part);
    else if (small) ok = keep_bytes(packed, sample);
    else ok = shrink(packed, scratch, &part, s->resize) && (s->raw || compress(packed, s->quality));
    if (owned.pixels) image_free(&owned);
    return ok;
}

/* == One video ==================================================================================================== */

static bool has_frames(const Settings *s) { return s->jpeg || s->resize || s->fps > 0; }

typedef struct {
    Scratch *scratch;
    const Settings *s;
    ClipFileWriter writer;
    double due; /* the earliest time of the next frame to keep */
} Frames;

/* Decodes a frame, to find damage. */
static bool check_frame(void *context, int i, const Sample *frame, Error *error) {
    ImagePart part;
    Image owned;
    (void)i;
    if (!decode(context, frame, &part, &owned, error)) return false;
    if (owned.pixels) image_free(&owned);
    return true;
}

/* The frame as a JPEG of the wanted size; a frame that already is one is not changed. */
static bool pack_frame(Packed *packed, Scratch *scratch, const Sample *frame, const Settings *s) {
    ImagePart part;
    Image owned;
    if (!decode(scratch, frame, &part, &owned, &packed->error)) return false;
    int shorter = part.height < part.width ? part.height : part.width;
    bool small = !s->resize || shorter <= s->resize, ok;
    if (small && !frame->height && jpeg_is(frame->bytes, frame->size)) ok = keep_bytes(packed, frame);
    else ok = (small ? keep_pixels(packed, &part) : shrink(packed, scratch, &part, s->resize)) &&
              compress(packed, s->quality);
    if (owned.pixels) image_free(&owned);
    return ok;
}

static bool take_frame(void *context, int i, const Sample *frame, Error *error) {
    Frames *frames = context;
    double fps = (double)frames->s->fps, slack = 1e-6, time = frame->time;
    if (fps > 0) {
        if (i && time <= 0) return refuse(error, "the times of its frames are not known: pack it without --fps");
        if (time < frames->due - slack) return true;
        frames->due = (double)(int64_t)(time * fps + 1 + slack) / fps;
    }
    Packed packed = {.damaged = false};
    bool ok = pack_frame(&packed, frames->scratch, frame, frames->s);
    if (!ok) *error = packed.error;
    ok = ok && clip_file_add(&frames->writer, time, packed.sample.bytes, packed.sample.size, error);
    free(packed.memory);
    return ok;
}

/* Frames as JPEGs, or the file as it is; *label is set in any case. */
static bool pack_video(Packed *packed, Scratch *scratch, const Dataset *dataset, size_t index, const Settings *s,
                       int *label) {
    const ClipChoice all = {.frames = 0};
    Sample video = {0};
    if (!has_frames(s)) {
        const ClipTaker checks = {check_frame, scratch};
        bool ok = dataset->read(dataset, index, &scratch->bytes, &video, &packed->error);
        *label = video.label;
        return ok && videos_read_clip(video.bytes, video.size, video.label, &all, &checks, &packed->error) &&
               keep_bytes(packed, &video);
    }
    Frames frames = {.scratch = scratch, .s = s};
    const ClipTaker taker = {take_frame, &frames};
    if (dataset->read_clip(dataset, index, &all, &scratch->bytes, &taker, label, &packed->error))
        packed->memory = clip_file_finish(&frames.writer, &packed->sample.size, &packed->error);
    packed->sample.bytes = packed->memory;
    clip_file_free(&frames.writer);
    return packed->memory != NULL;
}

/* == All of them ================================================================================================== */

static void pack_image(Packed *packed, Scratch *scratch, const Dataset *dataset, size_t index, const Settings *s) {
    Sample sample = {0};
    *packed = (Packed){0};
    if (dataset->clips)
        packed->damaged = !pack_video(packed, scratch, dataset, index, s, &sample.label);
    else
        packed->damaged = !dataset_read(dataset, index, &scratch->bytes, &sample, &packed->error) ||
                          !pack_sample(packed, scratch, &sample, s);
    packed->sample.label = sample.label;
    if (!packed->damaged) return;
    free(packed->memory);
    packed->memory = NULL;
    packed->sample = (Sample){.label = sample.label};
}

static const char *things(const Dataset *dataset) { return dataset->clips ? "videos" : "images"; }

static Scratch *scratch_open(int threads) {
    Scratch *scratch = xcalloc((size_t)threads, sizeof *scratch, "packing");
    for (int i = 0; i < threads; i++)
        if (!(scratch[i].jpeg = jpeg_open())) die("out of memory for a JPEG decoder");
    return scratch;
}

static void scratch_close(Scratch *scratch, int threads) {
    for (int i = 0; i < threads; i++) {
        jpeg_close(scratch[i].jpeg);
        resampler_free(&scratch[i].resampler);
        free(scratch[i].bytes.bytes);
    }
    free(scratch);
}

static void show(const char *what, size_t done, size_t count, size_t before, double started, bool last) {
    double rate = (double)(done - before) / (now_seconds() - started);
    char left[32];
    duration_text(left, sizeof left, (double)(count - done) / rate);
    progress_show(last, "%s %zu/%zu  %.1f %%  %.0f images/s  ETA %s", what, done, count,
                  100 * (double)done / (double)count, rate, left);
}

/* The picture may be valid: keeps the images packed so far, and running the same command again continues from there. */
static void stop_starved(RecordWriter *writer, const char *name, const Error *error) {
    if (writer) record_flush(writer);
    die("%s: %s%s", name, error->text, writer ? "; the same command continues from here" : "");
}

/* Processes images [first, first + n) with all threads and writes them in order. */
static void pack_window(RecordWriter *writer, Packed *packed, Scratch *scratch, const Dataset *dataset, size_t first,
                        int n, const Settings *s) {
    char name[4096 + 512];
#pragma omp parallel for schedule(dynamic) num_threads(s->threads)
    for (int i = 0; i < n; i++)
        pack_image(&packed[i], &scratch[omp_get_thread_num()], dataset, first + (size_t)i, s);
    for (int i = 0; i < n; i++) {
        if (packed[i].damaged) {
            dataset_name_image(dataset, first + (size_t)i, name, sizeof name);
            progress_end();
            if (packed[i].error.lacking || packed[i].error.unread) stop_starved(writer, name, &packed[i].error);
            warn("%s: %s: packed as damaged", name, packed[i].error.text);
        }
        record_append(writer, &packed[i].sample);
        free(packed[i].memory);
    }
}

static bool makes_jpegs(const Settings *s) { return (s->resize && !s->raw) || s->jpeg || s->fps > 0; }

static int pack(const Settings *s) {
    enum { WINDOW = 256 };
    static Packed packed[WINDOW];
    static const double FLUSH_SECONDS = 10;
    Dataset dataset;
    Error error;
    size_t begun;
    char lost[48] = "";
    int quality = makes_jpegs(s) ? s->quality : 0;
    int options[] = {(int)lrintf(100 * s->fps), s->resize, quality, s->raw + 2 * s->jpeg};
    uint64_t recipe = 0;
    for (int i = 0; i < 4; i++) recipe = recipe << 16 | (uint64_t)options[i];

    signals_open();
    if (file_exists(s->out)) die("%s: is there already: remove it first, or give another --out", s->out);
    if (!dataset_known(s->data, &error)) die_usage("--data: %s", error.text);
    dataset_open(&dataset, s->data, s->data_dir, s->split == 0, (size_t)s->limit);
    if (dataset.clips && !dataset.read) die_usage("--data %s: these clips are generated when they are needed, and "
                                                  "cannot be packed", s->data);
    if (dataset.clips && s->raw) die_usage("--raw: for images only; --jpeg stores the frames of videos as JPEGs");
    if (!dataset.clips && (s->jpeg || s->fps > 0)) die_usage("--%s: for videos only", s->jpeg ? "jpeg" : "fps");
    catch_signals();
    RecordWriter *writer = record_create(s->out, &dataset, s->split == 0, recipe, &begun);
    if (begun) print_line("%s: continues after %zu of %zu images\n", s->out, begun, dataset.count);
    Scratch *scratch = scratch_open(s->threads);
    double started = now_seconds(), flushed = started;
    size_t window = dataset.clips ? 32 : WINDOW; /* held in memory; videos can be large */
    for (size_t i = begun; i < dataset.count && !stop_signal; i += window) {
        size_t left = dataset.count - i;
        int n = (int)(left < window ? left : window);
        pack_window(writer, packed, scratch, &dataset, i, n, s);
        if (now_seconds() - flushed > FLUSH_SECONDS) {
            record_flush(writer);
            flushed = now_seconds();
        }
        show("packing", i + (size_t)n, dataset.count, begun, started, i + (size_t)n == dataset.count || stop_signal);
    }
    scratch_close(scratch, s->threads);
    record_flush(writer);
    if (stop_signal) {
        printf("stopped by %s: the same command continues from here\n", stop_signal_name());
        return 128 + (int)stop_signal;
    }
    int shorter = dataset.height < dataset.width ? dataset.height : dataset.width;
    bool resized = s->resize && s->resize < shorter; /* images of one size: the new one is written for each */
    size_t damaged = record_damaged(writer);
    record_finish(writer, resized ? 0 : dataset.height, resized ? 0 : dataset.width);
    if (damaged) snprintf(lost, sizeof lost, ", %zu of them damaged", damaged);
    print_line("%s: %zu %s of %d classes%s\n", s->out, dataset.count, things(&dataset), dataset.classes, lost);
    dataset_close(&dataset);
    return 0;
}

/* == Checking ===================================================================================================== */

static int check(const Settings *s) {
    RecordHeader header;
    Dataset dataset;
    size_t damaged = 0, done = 0;
    double started = now_seconds();
    record_read_header(s->check, &header);
    record_open(&dataset, s->check, header.split == 0, 0);
    Scratch *scratch = scratch_open(s->threads);
#pragma omp parallel for schedule(dynamic) num_threads(s->threads) reduction(+ : damaged)
    for (size_t i = 0; i < dataset.count; i++) {
        Scratch *own = &scratch[omp_get_thread_num()];
        char name[4096 + 512];
        Error error;
        Sample sample;
        ImagePart part;
        Image owned = {0};
        const ClipChoice all = {.frames = 0};
        const ClipTaker checks = {check_frame, own};
        int label;
        bool ok = dataset.clips ? dataset.read_clip(&dataset, i, &all, &own->bytes, &checks, &label, &error)
                                : dataset_read(&dataset, i, &own->bytes, &sample, &error) &&
                                      decode(own, &sample, &part, &owned, &error);
        if (owned.pixels) image_free(&owned);
        if (!ok) dataset_name_image(&dataset, i, name, sizeof name);
#pragma omp critical
        {
            if (!ok) progress_end();
            if (!ok && error.lacking) stop_starved(NULL, name, &error);
            if (!ok) warn("%s: %s", name, error.text);
            if (++done % 256 == 0 || done == dataset.count)
                show("checking", done, dataset.count, 0, started, done == dataset.count);
        }
        damaged += !ok;
    }
    scratch_close(scratch, s->threads);
    if (damaged) die("%s: %zu of %zu %s are damaged", s->check, damaged, dataset.count, things(&dataset));
    print_line("%s: all %zu %s of %d classes are sound\n", s->check, dataset.count, things(&dataset), dataset.classes);
    dataset_close(&dataset);
    return 0;
}

/* == Main ========================================================================================================= */

/* Refuses settings that were given and have no effect. */
static void check_given(const Config *config, const Settings *s) {
    for (int i = 0; *s->check && i < config->count; i++) {
        const char *name = config_name(config, i);
        if (config_origin(config, name) && strcmp(name, "check") && strcmp(name, "threads"))
            config_reject(config, name, "not together with --check, which takes --threads alone");
    }
    if (config_origin(config, "quality") && !makes_jpegs(s))
        config_reject(config, "quality", "counts only where JPEGs are made: --resize without --raw, --jpeg or --fps");
}

/* Separate from main, so that its locals are not on the stack before limits_open. */
__attribute__((noinline)) static int run(int argc, char **argv) {
    Config config;
    standard_files_open();
    json_memory_begin();
    threads_check();
    config_init(&config, NULL);
    Settings *s = config_add(&config, &settings);
    config_try_arguments(&config, argc, argv, &error_usage);
    if (s->help || s->version) {
        if (s->version) printf("pack_dataset %s\n", VIT_VERSION);
        else printf("pack_dataset puts a split of a data set into one file for train_vit.\n\n");
        if (!s->version) config_help(&config, stdout);
        if (fflush(stdout) != 0 || ferror(stdout)) die("standard output: cannot write all of it");
        return 0;
    }
    check_given(&config, s);
    if (!*s->check && !*s->data) die_usage("--data: not given: which data set is to be packed? (pack_dataset --help)");
    if (!*s->check && !*s->out) die_usage("--out: not given: which file is to be written? (pack_dataset --help)");
    if (!s->threads) s->threads = omp_get_max_threads();
    int status = *s->check ? check(s) : pack(s);
    standard_output_check();
    config_free(&config);
    return status;
}

int main(int argc, char **argv) {
    limits_open(argv);
    return run(argc, argv);
}
