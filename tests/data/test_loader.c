/* Folders, MNIST and packed files as data sets, and the threads that load them: the same bytes for any number of
 * workers and ranks, the message for every kind of damage, and closing at any moment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <xxhash.h>

#include "core/files.h"
#include "data/images/webp.h"
#include "data/sets/datasets.h"
#include "data/sets/folder.h"
#include "data/loading/loader.h"
#include "data/sets/mnist.h"
#include "data/sets/record.h"
#include "data/sets/shapes.h"
#include "tests/check.h"
#include "tests/ranges.h"
#include "tests/scratch.h"
#include "tests/whole_batch.h"

/* == Helpers ====================================================================================================== */

static void copy_file(const char *to, const char *from) {
    Error error;
    uint8_t *bytes;
    size_t size;
    if (!file_read(from, 1 << 24, &bytes, &size, &error)) fail_msg("%s: %s", from, error.text);
    if (!file_write(to, bytes, size, &error)) fail_msg("%s: %s", to, error.text);
    free(bytes);
}

static void copy_picture(const char *to, const char *from) {
    char path[256];
    snprintf(path, sizeof path, "tests/corpus/jpeg/%s", from);
    copy_file(in_folder("%s", to), path);
}

/* images/{train,val}/{ape,bee,cat}: 29 training pictures, of which two are damaged, one of these a text; 7 test
 * pictures. */
static void make_images(void) {
    static const char *const classes[] = {"cat", "ape", "bee"};
    static const char *const pictures[] = {"colour444.jpg", "colour420.jpg", "grey.jpg", "cmyk.jpg",
                                           "progressive.jpg", "png.JPEG",    "arithmetic.jpg", "exif.jpg"};
    char name[256];
    for (int c = 0; c < 3; c++) {
        for (int split = 0; split < 2; split++) {
            snprintf(name, sizeof name, "images/%s/%s", split ? "val" : "train", classes[c]);
            make_folders(in_folder("%s", name));
            for (int i = 0; i < (split ? 2 : 9); i++) {
                snprintf(name, sizeof name, "images/%s/%s/%d.%s", split ? "val" : "train", classes[c], i,
                         i % 2 ? "JPEG" : "jpg");
                copy_picture(name, pictures[(c + i) % 8]);
            }
        }
    }
    copy_picture("images/train/bee/damaged.jpg", "cut.jpg");
    copy_picture("images/train/cat/zzz.jpg", "text.jpg");
    copy_picture("images/val/bee/x.png", "png.JPEG");
    write_text(in_folder("%s", "images/train/cat/readme.txt"), "left out");
    write_text(in_folder("%s", "images/train/cat/.hidden.jpg"), "left out");
}

enum { TRAIN = 29, VAL = 7 };

static int make_data(void **state) {
    if (make_folder(state)) return 1;
    make_images();
    return 0;
}

/* Running it in a child process ends with that status, and the last line on stderr contains all the words. */
static void ends_with(void (*run)(void *), void *argument, int status, const char *const *words) {
    char text[8192];
    int ended = status_of(run, argument, text, sizeof text);
    size_t have = strlen(text);
    text[have ? have - 1 : 0] = 0;
    const char *last = strrchr(text, '\n') ? strrchr(text, '\n') + 1 : text;
    printf("  %s\n", last);
    assert_int_equal(ended, status);
    assert_words(last, words);
}

typedef struct {
    const char *data;
    bool train, nobody;
} Opening;

static void open_it(void *argument) {
    const Opening *opening = argument;
    Dataset dataset;
    if (opening->nobody && getuid() == 0 && setuid(65534)) _exit(76);
    dataset_open(&dataset, opening->data, "datasets", opening->train, 0);
}

static void opening_dies(const char *data, bool train, const char *const *words) {
    ends_with(open_it, &(Opening){data, train, false}, 1, words);
}

/* == Folders ====================================================================================================== */

static void folders_are_sorted_and_labelled(void **state) {
    (void)state;
    Dataset dataset;
    SampleBuffer buffer = {0};
    char name[512];
    Error error;
    int kept = quiet_begin();
    dataset_open(&dataset, in_folder("%s", "images/"), NULL, true, 0);
    quiet_end(kept);
    assert_string_equal(dataset.name, "images");
    assert_int_equal(dataset.count, TRAIN);
    assert_int_equal(dataset.classes, 3);
    assert_int_equal(dataset.height, 0);
    assert_string_equal(dataset.class_names[0], "ape");
    assert_string_equal(dataset.class_names[2], "cat");
    for (size_t i = 0; i < dataset.count; i++) {
        Sample sample;
        assert_true(dataset_read(&dataset, i, &buffer, &sample, &error));
        dataset_name_image(&dataset, i, name, sizeof name);
        assert_non_null(strstr(name, dataset.class_names[sample.label]));
        assert_int_equal(sample.label, i < 9 ? 0 : i < 19 ? 1 : 2);
        struct stat info;
        assert_int_equal(stat(name, &info), 0);
        assert_int_equal(info.st_size, sample.size);
    }
    assert_non_null(strstr(name, "cat/zzz.jpg"));
    assert_int_equal(remove(in_folder("%s", "images/train/cat/.hidden.jpg")), 0);
    dataset_close(&dataset);

    kept = quiet_begin();
    dataset_open(&dataset, in_folder("%s", "images"), NULL, true, 3);
    quiet_end(kept);
    assert_int_equal(dataset.count, 3);
    for (size_t i = 0; i < 3; i++) { /* all classes remain */
        Sample sample;
        assert_true(dataset_read(&dataset, i, &buffer, &sample, &error));
        assert_int_equal(sample.label, i);
    }
    dataset_close(&dataset);
    dataset_open(&dataset, in_folder("%s", "images"), NULL, false, 0);
    assert_int_equal(dataset.count, VAL);
    dataset_close(&dataset);
    dataset_describe(&dataset, in_folder("%s", "images"), NULL);
    assert_int_equal(dataset.classes, 3);
    assert_null(dataset.close);
    free(buffer.bytes);
}

/* Validation images may lie in a folder with another name. */
static void names_of_the_validation_split(void **state) {
    (void)state;
    static const char *const names[] = {"test", "valid", "val"}; /* each is preferred to those before it */
    Dataset dataset;
    char path[128], data[512];
    snprintf(data, sizeof data, "%s/split", folder);
    make_folders(in_folder("%s", "split/train/a"));
    copy_picture("split/train/a/x.jpg", "grey.jpg");
    make_folders(in_folder("%s", "split/test"));
    copy_picture("split/test/x.jpg", "grey.jpg"); /* a test split without class folders does not count */
    dataset_open(&dataset, data, NULL, true, 0);
    assert_int_equal(dataset.count, 1);
    dataset_close(&dataset);
    opening_dies(data, false, WORDS("split/val: no such folder"));
    for (int n = 0; n < 3; n++) {
        snprintf(path, sizeof path, "split/%s/a", names[n]);
        make_folders(in_folder("%s", path));
        for (int i = 0; i < n + 2; i++) {
            snprintf(path, sizeof path, "split/%s/a/%d.jpg", names[n], i);
            copy_picture(path, "grey.jpg");
        }
        dataset_open(&dataset, data, NULL, false, 0);
        assert_int_equal(dataset.count, n + 2);
        dataset_close(&dataset);
    }
}

static void open_and_end(void *data) {
    Dataset dataset;
    dataset_open(&dataset, data, NULL, true, 0);
    exit((int)dataset.count);
}

static void files_that_are_left_out(void **state) {
    (void)state;
    char data[512];
    snprintf(data, sizeof data, "%s/mixed", folder);
    make_folders(in_folder("%s", "mixed/train/a"));
    copy_picture("mixed/train/a/x.jpg", "grey.jpg");
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "mixed/train/a/%d.webp", i);
        copy_picture(name, "../image/rgb.webp");
    }
    int images = webp_supported() ? 4 : 1;
    ends_with(open_and_end, data, images,
              webp_supported() ? WORDS("") : WORDS("train: 3 WebP pictures are left out", "libwebp-dev"));
    write_text(in_folder("%s", "mixed/train/a/one.txt"), "");
    write_text(in_folder("%s", "mixed/train/a/two.txt"), "");
    ends_with(open_and_end, data, images, WORDS("train: 2 files are not named like a picture", ".txt"));
}

static void folders_that_make_no_sense(void **state) {
    (void)state;
    char data[512];
    snprintf(data, sizeof data, "%s/odd", folder);
    make_folders(in_folder("%s", "odd"));
    opening_dies(data, true, WORDS(folder, "odd", "train/<class>/", "CIFAR-10", "MNIST"));
    make_folders(in_folder("%s", "odd/train"));
    opening_dies(data, true, WORDS("odd/train: no class folders"));
    make_folders(in_folder("%s", "odd/train/b"));
    opening_dies(data, true, WORDS("odd/train/b: no images in this class"));
    copy_picture("odd/train/b/x.jpg", "grey.jpg");
    opening_dies(data, false, WORDS("odd/val: no such folder", "odd/val/<class>/"));
    make_folders(in_folder("%s", "odd/val/a"));
    copy_picture("odd/val/a/x.jpg", "grey.jpg");
    opening_dies(data, true, WORDS("class a is in val but not in train"));
    opening_dies(data, false, WORDS("class a is in val but not in train"));
    make_folders(in_folder("%s", "odd/train/a"));
    copy_picture("odd/train/a/x.jpg", "grey.jpg");
    opening_dies(data, false, WORDS("class b is in train but not in val"));
    make_folders(in_folder("%s", "odd/val/b"));
    opening_dies(data, false, WORDS("odd/val/b: no images in this class"));
    make_folders(in_folder("%s", "odd/val/c"));
    opening_dies(data, true, WORDS("class c is in val but not in train"));

    assert_int_equal(chmod(in_folder("%s", "odd/train/a"), 0), 0);
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_equal(rmdir(in_folder("%s", "odd/val/c")), 0);
    ends_with(open_it, &(Opening){data, true, true}, 1, WORDS("odd/train/a: cannot open this folder", "denied"));
    assert_int_equal(chmod(in_folder("%s", "odd/train/a"), 0755), 0);
    opening_dies(in_folder("%s", "odd/train/a/x.jpg"), true, WORDS("x.jpg: not a packed data set"));
    opening_dies(in_folder("%s", "odd/none"), true, WORDS("odd/none: no such folder or file"));
    opening_dies("imagenet", true, WORDS("datasets/imagenet: no such folder"));
    Dataset dataset;
    dataset_describe(&dataset, "imagenet", NULL);
    assert_int_equal(dataset.classes, 1000);
}

/* == MNIST ======================================================================================================== */

static void put_number(uint8_t *at, uint32_t n) {
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(n >> (24 - 8 * i));
}

static void write_idx(const char *name, uint32_t magic, uint32_t count, size_t each, size_t bytes) {
    uint8_t *file = calloc(1, 16 + count * each);
    size_t header = each > 1 ? 16 : 8;
    Error error;
    put_number(file, magic);
    put_number(file + 4, count);
    if (each > 1) {
        put_number(file + 8, 28);
        put_number(file + 12, 28);
    }
    for (size_t i = 0; i < count * each; i++) file[header + i] = each > 1 ? (uint8_t)(i * 7) : (uint8_t)(i % 10);
    assert_true(file_write(in_folder("mnist/%s", name), file, bytes ? bytes : header + count * each, &error));
    free(file);
}

static void mnist_files(void **state) {
    (void)state;
    const char *images = "t10k-images-idx3-ubyte", *labels = "t10k-labels-idx1-ubyte", *data = in_folder("%s", "mnist");
    make_folders(data);
    write_idx(images, 0x803, 5, 784, 0);
    opening_dies(data, false, WORDS(labels, "cannot open"));
    write_idx(labels, 0x801, 4, 1, 0);
    opening_dies(data, false, WORDS("5 images but 4 labels"));
    write_idx(labels, 0x803, 5, 1, 0);
    opening_dies(data, false, WORDS(labels, "begins with 00000803, expected 00000801"));
    write_idx(labels, 0x801, 5, 1, 12);
    opening_dies(data, false, WORDS(labels, "12 bytes, expected 13 for the 5"));
    write_idx(labels, 0x801, 0, 1, 0);
    opening_dies(data, false, WORDS(labels, "its header says that it is empty"));
    write_idx(labels, 0x801, 5, 1, 0);
    write_idx(images, 0x803, 5, 784, 700);
    opening_dies(data, false, WORDS(images, "700 bytes, expected 3936"));
    opening_dies(data, true, WORDS("train-images-idx3-ubyte", "cannot open"));

    uint8_t bytes[13];
    Error error;
    put_number(bytes, 0x801);
    put_number(bytes + 4, 5);
    memset(bytes + 8, 10, 5);
    assert_int_equal(mnist_labels(bytes, 13, &error), 0);
    assert_string_equal(error.text, "label 0 is 10, expected 0 to 9");
    for (size_t size = 0; size < 13; size++) assert_int_equal(mnist_labels(bytes, size, &error), 0);

    write_idx(images, 0x803, 5, 784, 0);
    Dataset dataset;
    uint8_t pixels[784 * 3];
    int label;
    dataset_open(&dataset, data, NULL, false, 0);
    assert_int_equal(dataset.count, 5);
    dataset.get(&dataset, 3, pixels, &label);
    assert_int_equal(label, 3);
    for (size_t i = 0; i < 784; i++)
        for (size_t c = 0; c < 3; c++) assert_int_equal(pixels[3 * i + c], (uint8_t)((3 * 784 + i) * 7));
    dataset_close(&dataset);
}

/* == Packed files ================================================================================================= */

/* Packs a data set without changes. */
static void pack(const char *name, const Dataset *dataset, bool train) {
    size_t done;
    SampleBuffer buffer = {0};
    Error error;
    RecordWriter *writer = record_create(in_folder("%s", name), dataset, train, 1, &done);
    assert_int_equal(done, 0);
    for (size_t i = 0; i < dataset->count; i++) {
        Sample sample;
        assert_true(dataset_read(dataset, i, &buffer, &sample, &error));
        record_append(writer, &sample);
    }
    record_flush(writer);
    record_finish(writer, dataset->height, dataset->width);
    free(buffer.bytes);
}

static void pack_folder(const char *name, bool train) {
    Dataset dataset;
    int kept = quiet_begin();
    folder_open(&dataset, in_folder("%s", "images"), train, 0);
    quiet_end(kept);
    pack(name, &dataset, train);
    dataset_close(&dataset);
}

static void packed_files_hold_what_was_packed(void **state) {
    (void)state;
    Dataset source, packed;
    SampleBuffer buffer = {0}, unused = {0};
    char name[512];
    Error error;
    pack_folder("im-train.pack", true);
    pack_folder("im-val.pack", false);
    int kept = quiet_begin();
    folder_open(&source, in_folder("%s", "images"), true, 0);
    quiet_end(kept);
    for (int beside = 0; beside < 2; beside++) { /* either split's file opens both */
        dataset_open(&packed, in_folder("%s", beside ? "im-val.pack" : "im-train.pack"), NULL, true, 0);
        assert_int_equal(packed.count, source.count);
        assert_int_equal(packed.classes, 3);
        assert_string_equal(packed.class_names[1], "bee");
        assert_memory_equal(packed.mean, source.mean, sizeof packed.mean);
        for (size_t i = 0; i < source.count; i++) {
            Sample a, b;
            assert_true(dataset_read(&source, i, &buffer, &a, &error));
            assert_true(dataset_read(&packed, i, &unused, &b, &error));
            assert_int_equal(a.label, b.label);
            assert_int_equal(a.size, b.size);
            assert_memory_equal(a.bytes, b.bytes, a.size);
        }
        dataset_name_image(&packed, 0, name, sizeof name);
        assert_non_null(strstr(name, "im-train.pack: image 0 (ape/0.jpg)"));
        dataset_close(&packed);
    }
    dataset_describe(&packed, in_folder("%s", "im-val.pack"), NULL);
    assert_int_equal(packed.classes, 3);
    dataset_close(&source);

    shapes_open(&source, false, 0, 20);
    pack("shapes.pack", &source, false);
    dataset_open(&packed, in_folder("%s", "shapes.pack"), NULL, false, 7);
    assert_int_equal(packed.count, 7);
    assert_int_equal(packed.height, SHAPES_SIDE);
    dataset_close(&packed);
    dataset_close(&source);
    opening_dies(in_folder("%s", "shapes.pack"), true, WORDS("shapes.pack: holds the val split", "'val' in its name"));
    assert_int_equal(rename(in_folder("%s", "im-train.pack"), in_folder("%s", "train.pack")), 0);
    opening_dies(in_folder("%s", "im-val.pack"), true, WORDS("im-val.pack: holds the val split", "im-train.pack"));
    free(buffer.bytes);
}

/* A packed file of 3 images in memory. */
static uint8_t *small_file(size_t *size) {
    Dataset dataset;
    Error error;
    uint8_t *bytes;
    folder_open(&dataset, in_folder("%s", "images"), false, 3);
    pack("small.pack", &dataset, false);
    dataset_close(&dataset);
    assert_true(file_read(in_folder("%s", "small.pack"), 1 << 20, &bytes, size, &error));
    return bytes;
}

static void packed_files_cut_short_are_refused(void **state) {
    (void)state;
    size_t size;
    Error error;
    uint8_t *bytes = small_file(&size);
    RecordFile file;
    assert_true(record_parse(&file, bytes, size, &error));
    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *part = malloc(cut ? cut : 1);
        memcpy(part, bytes, cut);
        assert_false(record_parse(&file, part, cut, &error));
        free(part);
    }
    for (size_t cut = 0; cut < size; cut += size / 3) {
        assert_true(file_write(in_folder("%s", "cut-val.pack"), bytes, cut, &error));
        opening_dies(in_folder("%s", "cut-val.pack"), false, WORDS("cut-val.pack", cut ? "cut short" : "not a packed"));
    }
    free(bytes);
}

static void flipped_bits_are_found(void **state) {
    (void)state;
    size_t size, images = 0;
    Error error;
    uint8_t *bytes = small_file(&size);
    RecordFile file;
    assert_true(record_parse(&file, bytes, size, &error));
    uint64_t index = file.header.index, end = file.entries[2].offset + file.entries[2].size;
    for (size_t at = 0; at < size; at++) {
        uint8_t bit = (uint8_t)(1u << (at % 8));
        if (at >= end && at < index) continue; /* padding between images and index has no checksum */
        bytes[at] ^= bit;
        bool ok = record_parse(&file, bytes, size, &error);
        if (ok) { /* The bit was in an image: this one is damaged and the others are not. */
            Sample sample;
            int bad = 0;
            for (size_t i = 0; i < 3; i++) bad += !record_sample(&file, i, &sample, &error);
            assert_int_equal(bad, 1);
            assert_string_equal(error.text, "its checksum differs");
            images++;
        }
        assert_true(ok == (at >= sizeof(RecordHeader) && at < index));
        bytes[at] ^= bit;
    }
    assert_int_equal(images, end - sizeof(RecordHeader));
    bytes[index + 20] ^= 1;
    assert_true(file_write(in_folder("%s", "flip-val.pack"), bytes, size, &error));
    opening_dies(in_folder("%s", "flip-val.pack"), false, WORDS("flip-val.pack: the index is damaged"));
    bytes[10] ^= 1;
    assert_true(file_write(in_folder("%s", "flip-val.pack"), bytes, size, &error));
    opening_dies(in_folder("%s", "flip-val.pack"), false, WORDS("flip-val.pack: packed in version 65537"));
    free(bytes);
}

/* Correct checksums do not make an index valid. */
static void forged_indices_are_refused(void **state) {
    (void)state;
    size_t size;
    Error error;
    uint8_t *bytes = small_file(&size);
    RecordFile file;
    assert_true(record_parse(&file, bytes, size, &error));
    RecordHeader sound = file.header;
    for (uint64_t trial = 0; trial < 4000; trial++) {
        RecordEntry entry, forged;
        memcpy(&entry, bytes + sound.index, sizeof entry);
        forged = entry;
        uint32_t word = rng_below(check_seed(), RNG_TEST, 61, 0, 3 * trial, sizeof entry / 4);
        uint32_t value = rng_bits(check_seed(), RNG_TEST, 61, 0, 3 * trial + 1);
        value >>= rng_below(check_seed(), RNG_TEST, 61, 0, 3 * trial + 2, 32);
        memcpy((uint8_t *)&forged + 4 * word, &value, 4);
        memcpy(bytes + sound.index, &forged, sizeof forged);
        RecordHeader header = sound;
        header.tail_checksum = XXH3_64bits(bytes + sound.index, size - sound.index);
        header.header_checksum = XXH3_64bits(&header, offsetof(RecordHeader, header_checksum));
        memcpy(bytes, &header, sizeof header);
        uint8_t *exact = malloc(size); /* so that a sanitizer detects reads beyond the end */
        memcpy(exact, bytes, size);
        if (record_parse(&file, exact, size, &error)) {
            Sample sample;
            for (size_t i = 0; i < 3; i++) {
                bool ok = record_sample(&file, i, &sample, &error);
                assert_true(!ok || sample.label < 3);
                assert_true(strlen(record_image_name(&file, i)) < size);
            }
        }
        free(exact);
        memcpy(bytes + sound.index, &entry, sizeof entry);
    }
    free(bytes);
}

static void forged_headers_are_refused(void **state) {
    (void)state;
    static const struct {
        float mean, std;
        uint32_t classes;
        const char *name;
    } forged[] = {{0.5f, 0, 3, "x"},       {0.5f, NAN, 3, "x"},         {0.5f, -1, 3, "x"},
                  {0.5f, INFINITY, 3, "x"}, {NAN, 0.5f, 3, "x"},         {0.5f, 0.5f, 1u << 31, "x"},
                  {0.5f, 0.5f, 0, "x"},     {0.5f, 0.5f, 3, ""},         {0.5f, 0.5f, 3, "../x/y"},
                  {0.5f, 0.5f, 3, ".."},    {0.5f, 0.5f, 3, "x/y"}};
    size_t size;
    Error error;
    uint8_t *bytes = small_file(&size);
    RecordFile file;
    RecordHeader header;
    for (size_t i = 0; i <= sizeof forged / sizeof *forged; i++) {
        bool sound = i == sizeof forged / sizeof *forged;
        memcpy(&header, bytes, sizeof header);
        if (!sound) {
            header.mean[1] = forged[i].mean;
            header.std[2] = forged[i].std;
            header.classes = forged[i].classes;
            snprintf(header.name, sizeof header.name, "%s", forged[i].name);
        }
        header.header_checksum = XXH3_64bits(&header, offsetof(RecordHeader, header_checksum));
        uint8_t *copy = malloc(size);
        memcpy(copy, bytes, size);
        memcpy(copy, &header, sizeof header);
        assert_true(record_parse(&file, copy, size, &error) == sound);
        assert_true(file_write(in_folder("%s", "forged-val.pack"), copy, size, &error));
        if (!sound)
            opening_dies(in_folder("%s", "forged-val.pack"), false, WORDS("forged-val.pack", "contradicts itself"));
        free(copy);
    }
    free(bytes);
}

/* An interrupted packing continues after the last flushed image, whatever follows it in the file, and gives the same
 * file. */
static void packing_goes_on(void **state) {
    (void)state;
    Dataset dataset;
    SampleBuffer buffer = {0};
    Error error;
    size_t done, size, again;
    uint8_t *want, *got;
    shapes_open(&dataset, true, 5, 40);
    pack("whole.pack", &dataset, true);
    assert_true(file_read(in_folder("%s", "whole.pack"), 1 << 24, &want, &size, &error));
    for (int damage = 0; damage < 5; damage++) {
        pid_t child = fork();
        if (child == 0) {
            RecordWriter *writer = record_create(in_folder("%s", "again.pack"), &dataset, true, 1, &done);
            for (size_t i = 0; i < 20; i++) {
                Sample sample;
                dataset_read(&dataset, i, &buffer, &sample, &error);
                record_append(writer, &sample);
                if (i == 14) record_flush(writer);
            }
            _exit(0); /* as if killed: five images are missing in the journal */
        }
        waitpid(child, NULL, 0);
        const char *partial = in_folder("%s", "again.pack.partial");
        assert_false(file_exists(in_folder("%s", "again.pack")));
        if (damage == 1) assert_int_equal(truncate(partial, 144 + 12 * 3072 + 7), 0);
        if (damage == 2) {
            int fd = open(partial, O_WRONLY);
            assert_int_equal(pwrite(fd, "xxxx", 4, 144 + 10 * 3072), 4);
            close(fd);
        }
        if (damage == 3) assert_int_equal(truncate(in_folder("%s", "again.pack.partial.index"), 24 + 48 * 9 + 3), 0);
        if (damage == 4) { /* the label of image 8 */
            int fd = open(in_folder("%s", "again.pack.partial.index"), O_RDWR);
            uint8_t label;
            assert_int_equal(pread(fd, &label, 1, 24 + 48 * 8 + offsetof(RecordEntry, label)), 1);
            label ^= 1;
            assert_int_equal(pwrite(fd, &label, 1, 24 + 48 * 8 + offsetof(RecordEntry, label)), 1);
            close(fd);
        }
        RecordWriter *writer = record_create(in_folder("%s", "again.pack"), &dataset, true, 1, &done);
        assert_int_equal(done, damage == 0 ? 15 : damage == 1 ? 12 : damage == 2 ? 10 : damage == 3 ? 9 : 8);
        for (size_t i = done; i < dataset.count; i++) {
            Sample sample;
            assert_true(dataset_read(&dataset, i, &buffer, &sample, &error));
            record_append(writer, &sample);
        }
        record_flush(writer);
        record_finish(writer, dataset.height, dataset.width);
        assert_true(file_read(in_folder("%s", "again.pack"), 1 << 24, &got, &again, &error));
        assert_int_equal(again, size);
        assert_memory_equal(got, want, size);
        assert_false(file_exists(partial));
        assert_false(file_exists(in_folder("%s", "again.pack.partial.index")));
        free(got);
        remove(in_folder("%s", "again.pack"));
    }
    free(want);
    free(buffer.bytes);
    dataset_close(&dataset);
}

/* == The pool ===================================================================================================== */

static const Transform SMALL = {.height = 24, .width = 24, .augment.s.flip = true};
enum { IMAGE = 24 * 24 * 3 };

static void open_images(Dataset *dataset, bool train) {
    int kept = quiet_begin();
    folder_open(dataset, in_folder("%s", "images"), train, 0);
    quiet_end(kept);
}

/* Loads one rank's images of an epoch to their places in the global batches: pixels [count], labels [count]. */
static size_t load_epoch(LoaderConfig config, const Dataset *dataset, int workers, uint32_t epoch, uint8_t *pixels,
                         int *labels) {
    Loader loader;
    LoaderPart part;
    size_t images = 0;
    config.parts.pool = workers ? loader_pool_open(workers) : NULL;
    loader_open(&loader, dataset, &config);
    parts_start(&loader.parts, epoch, 0);
    while (loader_next(&loader, &part)) {
        size_t place = part.batch * (size_t)config.parts.batch_size + (size_t)part.first;
        for (int i = 0; i < part.n; i++, place++, images++) {
            assert_true(place < dataset->count);
            assert_int_equal(labels[place], -1); /* no other rank loaded it */
            memcpy(pixels + place * IMAGE, part.pixels + i * IMAGE, IMAGE);
            labels[place] = part.labels[i];
        }
    }
    parts_close(&loader.parts);
    loader_pool_close(config.parts.pool);
    return images;
}

static void bytes_do_not_depend_on_workers_or_ranks(void **state) {
    (void)state;
    static uint8_t want[TRAIN * IMAGE], got[TRAIN * IMAGE];
    int want_labels[TRAIN], labels[TRAIN];
    for (int kind = 0; kind < 3; kind++) {
        Dataset dataset;
        bool train = kind > 0, keep_last = kind == 2;
        open_images(&dataset, train);
        int kept = quiet_begin();
        LoaderConfig config = {.parts = {.seed = check_seed(), .batch_size = train ? 9 : 5, .train = train,
                                         .keep_last = keep_last, .max_damaged = 0.5f},
                               .transform = SMALL};
        size_t images = !train ? VAL : keep_last ? TRAIN : TRAIN / 9 * 9;
        memset(want, 0, sizeof want);
        memset(want_labels, 0xff, sizeof want_labels);
        Loader loader;
        loader_open(&loader, &dataset, &config);
        parts_epoch(&loader.parts, 4);
        for (size_t b = 0; b < loader.parts.batches; b++) {
            size_t first = b * (size_t)config.parts.batch_size;
            whole_batch(&loader, b, want + first * IMAGE, want_labels + first);
        }
        parts_close(&loader.parts);
        for (int ranks = 1; ranks <= 3; ranks++) {
            for (int workers = 0; workers <= 7; workers += workers == 2 ? 5 : 1) {
                for (int part = 0; part <= 4; part += 2) {
                    size_t loaded = 0;
                    memset(got, 0, sizeof got);
                    memset(labels, 0xff, sizeof labels);
                    for (int rank = 0; rank < ranks; rank++) {
                        config.parts.rank = rank;
                        config.parts.ranks = ranks;
                        config.parts.part = part;
                        loaded += load_epoch(config, &dataset, workers, 4, got, labels);
                    }
                    assert_int_equal(loaded, images); /* none left out, none twice */
                    assert_memory_equal(got, want, sizeof got);
                    assert_memory_equal(labels, want_labels, sizeof labels);
                }
            }
        }
        quiet_end(kept);
        dataset_close(&dataset);
    }
}

/* A folder and its packed file give the same images. */
static void packed_and_folder_give_the_same_bytes(void **state) {
    (void)state;
    static uint8_t a[TRAIN * IMAGE], b[TRAIN * IMAGE];
    int labels_a[TRAIN], labels_b[TRAIN];
    Dataset dataset;
    pack_folder("same-train.pack", true);
    LoaderConfig config = {.parts = {.seed = check_seed(), .batch_size = TRAIN, .train = true, .max_damaged = 0.5f},
                           .transform = SMALL};
    memset(labels_a, 0xff, sizeof labels_a);
    memset(labels_b, 0xff, sizeof labels_b);
    open_images(&dataset, true);
    int kept = quiet_begin();
    load_epoch(config, &dataset, 2, 1, a, labels_a);
    dataset_close(&dataset);
    dataset_open(&dataset, in_folder("%s", "same-train.pack"), NULL, true, 0);
    load_epoch(config, &dataset, 2, 1, b, labels_b);
    dataset_close(&dataset);
    quiet_end(kept);
    assert_memory_equal(a, b, sizeof a);
    assert_memory_equal(labels_a, labels_b, sizeof labels_a);
}

static void a_resumed_epoch_goes_on(void **state) {
    (void)state;
    static uint8_t whole[TRAIN * IMAGE];
    int labels[TRAIN];
    Dataset dataset;
    Loader loader;
    LoaderPart part;
    open_images(&dataset, true);
    int kept = quiet_begin();
    LoaderConfig config = {.parts = {.seed = check_seed(), .batch_size = 5, .train = true, .max_damaged = 0.5f,
                                     .part = 2},
                           .transform = SMALL};
    memset(labels, 0xff, sizeof labels);
    load_epoch(config, &dataset, 2, 7, whole, labels);
    config.parts.pool = loader_pool_open(2);
    loader_open(&loader, &dataset, &config);
    for (size_t from = 0; from < 5; from++) { /* the last start discards what the previous one has loaded */
        parts_start(&loader.parts, from % 2 ? 6 : 8, from);
        if (from % 2) loader_next(&loader, &part);
        parts_start(&loader.parts, 7, from);
        parts_start(&loader.parts, 7, from);
        for (size_t place = from * 5; place < 25; place += (size_t)part.n) {
            assert_true(loader_next(&loader, &part));
            assert_int_equal(part.batch, place / 5);
            assert_int_equal(part.first, place % 5);
            assert_memory_equal(part.pixels, whole + place * IMAGE, (size_t)part.n * IMAGE);
            assert_memory_equal(part.labels, labels + place, (size_t)part.n * sizeof(int));
        }
        assert_false(loader_next(&loader, &part));
        assert_false(loader_next(&loader, &part));
    }
    LoaderStats stats = parts_stats(&loader.parts);
    assert_true(stats.images >= 75 && stats.worked > 0);
    assert_in_range(stats.damaged, 0, 2); /* both may be among the four images that this epoch leaves out */
    parts_close(&loader.parts);
    loader_pool_close(config.parts.pool);
    quiet_end(kept);
    dataset_close(&dataset);
}

/* Two loaders of one pool are closed at random moments. */
static void loaders_end_at_any_moment(void **state) {
    (void)state;
    Dataset train, val;
    open_images(&train, true);
    open_images(&val, false);
    int kept = quiet_begin();
    for (uint64_t i = 0; i < 60; i++) {
        Loader loaders[2];
        LoaderPart part;
        LoaderConfig config = {.parts = {.seed = check_seed(), .batch_size = 6, .train = true, .max_damaged = 0.5f,
                                         .part = 1 + (int)(i % 4), .pool = loader_pool_open(1 + (int)(i % 5))},
                               .transform = SMALL};
        loader_open(&loaders[0], &train, &config);
        config.parts.train = false;
        loader_open(&loaders[1], &val, &config);
        for (int which = 0; which < 2; which++) {
            if (rng_below(check_seed(), RNG_TEST, 71, 0, 4 * i + (uint64_t)which, 3)) {
                parts_start(&loaders[which].parts, 0, 0);
                uint32_t taken = rng_below(check_seed(), RNG_TEST, 71, 0, 4 * i + 2, 5);
                for (uint32_t t = 0; t < taken; t++) loader_next(&loaders[which], &part);
            }
        }
        parts_close(&loaders[i % 2].parts);
        parts_close(&loaders[1 - i % 2].parts);
        loader_pool_close(config.parts.pool);
    }
    quiet_end(kept);
    dataset_close(&train);
    dataset_close(&val);
}

/* == Damage ======================================================================================================= */

/* A damaged image is reported once per loader, and the next readable image replaces it. */
static void damaged_images_are_named_and_replaced(void **state) {
    (void)state;
    char path[SCRATCH_PATH];
    Error error;
    static uint8_t pixels[TRAIN * IMAGE];
    int labels[TRAIN], fd = mkstemp(scratch_path(path)), kept = dup(2);
    Dataset dataset;
    open_images(&dataset, true);
    LoaderConfig config = {.parts = {.seed = check_seed(), .batch_size = TRAIN, .train = false, .max_damaged = 0.5f},
                           .replaces = true, .transform = SMALL};
    fflush(stderr);
    dup2(fd, 2);
    for (uint32_t epoch = 0; epoch < 2; epoch++) {
        memset(labels, 0xff, sizeof labels);
        Loader loader;
        LoaderPart part;
        config.parts.pool = loader_pool_open(2);
        loader_open(&loader, &dataset, &config);
        for (int pass = 0; pass < 3; pass++) {
            parts_start(&loader.parts, 0, 0);
            assert_true(loader_next(&loader, &part));
            memcpy(pixels, part.pixels, sizeof pixels);
            memcpy(labels, part.labels, sizeof labels);
            while (loader_next(&loader, &part)) continue;
        }
        assert_int_equal(parts_stats(&loader.parts).damaged, 2);
        parts_close(&loader.parts);
        loader_pool_close(config.parts.pool);
    }
    fflush(stderr);
    dup2(kept, 2);
    close(kept);
    assert_memory_equal(pixels + 18 * IMAGE, pixels + 19 * IMAGE, IMAGE); /* cat/0.jpg replaces bee/damaged.jpg */
    assert_int_equal(labels[18], 2);
    assert_memory_equal(pixels + 28 * IMAGE, pixels, IMAGE); /* ape/0.jpg replaces cat/zzz.jpg, the last */
    assert_int_equal(labels[28], 0);

    uint8_t *bytes;
    size_t size;
    int lines = 0;
    assert_true(file_read(path, 1 << 16, &bytes, &size, &error));
    char *text = calloc(size + 1, 1);
    memcpy(text, bytes, size);
    printf("%s", text);
    for (char *c = text; *c; c++) lines += *c == '\n';
    assert_int_equal(lines, 4); /* two images, two loaders */
    assert_non_null(strstr(text, "images/train/bee/damaged.jpg: a JPEG cut short"));
    assert_non_null(strstr(text, "images/train/cat/zzz.jpg: not a JPEG, PNG, WebP or BMP"));
    free(text);
    free(bytes);
    close(fd);
    remove(path);
    dataset_close(&dataset);
}

static void an_evaluation_replaces_nothing(void **state) {
    (void)state;
    static uint8_t pixels[TRAIN * IMAGE];
    int labels[TRAIN];
    Dataset dataset;
    Loader loader;
    open_images(&dataset, true);
    LoaderConfig config = {.parts = {.batch_size = TRAIN, .max_damaged = 0.5f}, .transform = SMALL};
    int kept = quiet_begin();
    loader_open(&loader, &dataset, &config);
    loader_fill(&loader, 0, TRAIN, pixels, labels);
    quiet_end(kept);
    for (int i = 0; i < TRAIN; i++) assert_int_equal(labels[i] < 0, i == 18 || i == 28);
    assert_true(labels[18] == -1 - 1 && labels[28] == -1 - 2); /* of bee/damaged.jpg and cat/zzz.jpg */
    parts_close(&loader.parts);
    dataset_close(&dataset);
}

typedef struct {
    float max_damaged;
    int workers;
    const char *data;
} Damage;

static void load_damaged(void *argument) {
    const Damage *damage = argument;
    Dataset dataset;
    Loader loader;
    LoaderPart part;
    dataset_open(&dataset, damage->data, NULL, true, 0);
    LoaderConfig config = {.parts = {.seed = 1, .batch_size = (int)dataset.count, .train = true, .part = 2,
                                     .max_damaged = damage->max_damaged,
                                     .pool = damage->workers ? loader_pool_open(damage->workers) : NULL},
                           .transform = SMALL};
    loader_open(&loader, &dataset, &config);
    parts_start(&loader.parts, 0, 0);
    while (loader_next(&loader, &part)) continue;
    parts_close(&loader.parts);
    loader_pool_close(config.parts.pool);
    exit(0);
}

static void too_many_damaged_end_the_run(void **state) {
    (void)state;
    const char *images = in_folder("%s", "images"), *bad = in_folder("%s", "bad");
    for (int workers = 1; workers <= 3; workers += 2) { /* OpenMP does not work after a fork */
        ends_with(load_damaged, &(Damage){2.0f / TRAIN, workers, images}, 0, WORDS("takes its place"));
        ends_with(load_damaged, &(Damage){1.5f / TRAIN, workers, images}, 1,
                  WORDS("images: damaged images: 2 in one epoch of 29", "max_damaged"));
        ends_with(load_damaged, &(Damage){0, workers, images}, 1, WORDS("damaged images: 1 in one epoch of 29"));
    }
    /* One of four images is more than one percent, but a single damaged image is always allowed. */
    const char *one = in_folder("%s", "one");
    make_folders(in_folder("%s", "one/train/x"));
    for (int i = 0; i < 4; i++) {
        char name[64];
        snprintf(name, sizeof name, "one/train/x/%d.jpg", i);
        copy_picture(name, i == 2 ? "cut.jpg" : "grey.jpg");
    }
    ends_with(load_damaged, &(Damage){0.01f, 1, one}, 0, WORDS("x/2.jpg", "takes its place"));
    ends_with(load_damaged, &(Damage){0, 1, one}, 1,
              WORDS("one: damaged images: 1 in one epoch of 4, more than max_damaged 0 allows; the last is ", "x/2.jpg"));
    make_folders(in_folder("%s", "bad/train/x"));
    copy_picture("bad/train/x/1.jpg", "cut.jpg");
    copy_picture("bad/train/x/2.jpg", "empty.jpg");
    for (int workers = 1; workers <= 3; workers += 2) {
        ends_with(load_damaged, &(Damage){1, workers, bad}, 1, WORDS("bad: none of its images can be read"));
        ends_with(load_damaged, &(Damage){0.5f, workers, bad}, 1, WORDS("bad: damaged images: 2 in one epoch of 2"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_are_sorted_and_labelled),
        cmocka_unit_test(names_of_the_validation_split),
        cmocka_unit_test(files_that_are_left_out),
        cmocka_unit_test(folders_that_make_no_sense),
        cmocka_unit_test(mnist_files),
        cmocka_unit_test(packed_files_hold_what_was_packed),
        cmocka_unit_test(packed_files_cut_short_are_refused),
        cmocka_unit_test(flipped_bits_are_found),
        cmocka_unit_test(forged_indices_are_refused),
        cmocka_unit_test(forged_headers_are_refused),
        cmocka_unit_test(packing_goes_on),
        cmocka_unit_test(bytes_do_not_depend_on_workers_or_ranks),
        cmocka_unit_test(packed_and_folder_give_the_same_bytes),
        cmocka_unit_test(a_resumed_epoch_goes_on),
        cmocka_unit_test(loaders_end_at_any_moment),
        cmocka_unit_test(damaged_images_are_named_and_replaced),
        cmocka_unit_test(an_evaluation_replaces_nothing),
        cmocka_unit_test(too_many_damaged_end_the_run),
    };
    return cmocka_run_group_tests(tests, make_data, remove_folder);
}
