#include "data/segmentation/segmentation_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/files.h"
#include "core/text.h"
#include "data/detection/detection_set.h"
#include "data/detection/shape_scenes.h"
#include "data/images/image.h"

enum { MOST_PATH = 4096 };

#define F(KIND, field) CONFIG_FIELD(KIND, SegmentationSetSettings, field)
static const ConfigEntry entries[] = {
    {F(STRING, data), "shapes", .section = "data", .change = CHANGE_PATH,
     .help = "Data set: shapes (generated scenes, no files needed), or the folder with ADE20K's images and annotations"},
    {F(STRING, train_images), "images/training", .argument = "FOLDER",
     .help = "Folder of the training images: an absolute path, or one relative to the folder of data"},
    {F(STRING, train_annotations), "annotations/training", .argument = "FOLDER",
     .help = "Folder of the training annotations: PNG files with the images' names, whose values are classes"},
    {F(STRING, val_images), "images/validation", .argument = "FOLDER",
     .help = "Folder of the validation images: an absolute path, or one relative to the folder of data"},
    {F(STRING, val_annotations), "annotations/validation", .argument = "FOLDER",
     .help = "Folder of their annotations"},
    {F(STRING, class_names), "", .argument = "FILE",
     .help = "File with the names of the classes, one a line or in the form of ADE20K's objectInfo150.txt (default: "
             "objectInfo150.txt in the folder data, if it is there)"},
    {F(INT, seg_classes), "0", .min = 0, .max = SEGMENTATION_MOST_CLASSES, .change = CHANGE_NEVER,
     .help = "Number of classes in the annotations; 0: as many as class_names has names"},
    {F(BOOL, zero_unlabelled), "true", .change = CHANGE_NEVER,
     .help = "In the annotations 0 means no label, and classes are counted from 1, as in ADE20K; otherwise from 0"},
    {F(INT, train_limit), "0", .min = 0, .max = 1e7, .change = CHANGE_NEVER,
     .help = "Use only the first N training images (0: all)"},
    {F(INT, val_limit), "0", .min = 0, .max = 1e7, .help = "Use only the first N validation images (0: all)"},
    {F(INT, scene_size), "128", .min = SCENES_LEAST_SIDE, .max = 1024, .change = CHANGE_NEVER,
     .help = "Side in pixels of the scenes that shapes generates"},
    {F(BOOL, scene_edges), "false", .change = CHANGE_NEVER,
     .help = "In the scenes of shapes, also label the pixels on the edges of figures"},
};
#undef F

static bool is_shapes(const SegmentationSetSettings *s) { return !strcmp(s->data, "shapes"); }

static void check(const Config *config, const void *settings) {
    const SegmentationSetSettings *s = settings;
    if (is_shapes(s) && s->seg_classes && s->seg_classes != SHAPES_CLASSES + 1)
        config_reject(config, "seg_classes", "{data} has %d classes", SHAPES_CLASSES + 1);
    if (!is_shapes(s) && s->zero_unlabelled && s->seg_classes == SEGMENTATION_MOST_CLASSES)
        config_reject(config, "seg_classes", "with {zero_unlabelled} there are at most %d classes, as 255 is no label",
                      SEGMENTATION_MOST_CLASSES - 1);
}

const ConfigGroup segmentation_set_settings = {CONFIG_GROUP(SegmentationSetSettings, entries),
                                               .change = CHANGE_FREELY, .check = check};

int segmentation_set_classes(const SegmentationSetSettings *s) {
    return is_shapes(s) ? SHAPES_CLASSES + 1 : s->seg_classes;
}

/* == Names of classes ============================================================================================= */

/* A line of ADE20K's list is "1<tab>0.1576<tab>11664<tab>1172<tab>wall", or the same with commas; synonyms follow a
 * name after a comma or, in the form with commas, a semicolon.  Keeps the first name of each line. */
static void keep_names(char *text, char separator) {
    char *out = text, *line = strchr(text, '\n'), *next;
    for (line = line ? line + 1 : NULL; line && *line; line = next) {
        next = strchr(line, '\n');
        size_t length = next ? (size_t)(next - line) : strlen(line);
        next = next ? next + 1 : NULL;
        char *name = memrchr(line, separator, length), *end = line + length;
        for (name = name ? name + 1 : line; name < end && !strchr(",;\r", *name);) *out++ = *name++;
        *out++ = '\n';
    }
    *out = 0;
}

static void read_names(ClassNames *names, const SegmentationSetSettings *s) {
    enum { MOST = 1 << 20 };
    char path[MOST_PATH];
    uint8_t *bytes;
    size_t size;
    Error error;
    path_find(path, sizeof path, s->data, *s->class_names ? s->class_names : "objectInfo150.txt");
    if (!*s->class_names && !file_exists(path)) return;
    if (!file_read(path, MOST, &bytes, &size, &error)) die("%s: %s", path, error.text);
    char *text = xcalloc(size + 2, 1, "class names");
    memcpy(text, bytes, size);
    free(bytes);
    if (!strncmp(text, "Idx", 3)) keep_names(text, text[3] ? text[3] : '\t');
    class_names_parse(names, text, strlen(text), '\n');
    free(text);
    for (int c = 0; c < names->count; c++)
        if (!*names->at[c]) die("%s: class %d has no name", path, c);
    if (names->count < 1 || names->count > SEGMENTATION_MOST_CLASSES - s->zero_unlabelled)
        die("%s: %d names, expected 1 to %d", path, names->count, SEGMENTATION_MOST_CLASSES - s->zero_unlabelled);
    if (s->seg_classes && s->seg_classes != names->count)
        die("%s: %d names, but seg_classes is %d", path, names->count, s->seg_classes);
}

static void name_scenes(ClassNames *names) {
    Dataset shapes;
    char text[256] = "ground\n";
    shapes_describe(&shapes);
    for (int c = 0; c < SHAPES_CLASSES; c++) {
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s\n", shapes.class_names[c]);
    }
    class_names_parse(names, text, strlen(text), '\n');
}

/* == Files ======================================================================================================== */

/* The annotation of a picture has its path below the folder, and ends in .png. */
static void annotation_path(const SegmentationSet *set, size_t index, char path[MOST_PATH]) {
    const char *name = set->pictures.at[index].name + strlen(set->image_folder) + 1;
    const char *dot = strrchr(name, '.');
    int length = dot ? (int)(dot - name) : (int)strlen(name);
    if (snprintf(path, MOST_PATH, "%s/%.*s.png", set->label_folder, length, name) >= MOST_PATH)
        die("%s/%s: path too long", set->label_folder, name);
}

/* Usually reads only the file's header. */
static bool read_size(const char *path, SampleBuffer *buffer, int size[2], Error *error) {
    enum { FIRST = 1 << 12, FACTOR = 1 << 5 };
    for (size_t most = FIRST, have = most; have == most && most <= IMAGE_MAX_BYTES; most *= FACTOR) {
        if (!sample_buffer_grow(buffer, most)) return refuse_memory(error, most, "a picture");
        if (!file_read_beginning(path, most, buffer->bytes, &have, error)) return false;
        if (image_size(buffer->bytes, have, &size[0], &size[1], error) || error->lacking) return !error->lacking;
    }
    return false;
}

static bool read_label_size(const char *path, int size[2], Error *error) {
    uint8_t bytes[64];
    size_t have;
    return file_read_beginning(path, sizeof bytes, bytes, &have, error) &&
           image_values_size(bytes, have, &size[0], &size[1], error);
}

/* Reads the headers of a picture and of its annotation.  A picture whose header is damaged is left for the loader to
 * replace, and its size is 0, 0. */
static bool check_files(SegmentationSet *set, size_t i, SampleBuffer *buffer, Error *error) {
    const char *picture = set->pictures.at[i].name;
    char path[MOST_PATH];
    Error why = {.lacking = false};
    int size[2];
    annotation_path(set, i, path);
    if (!file_exists(path)) return refuse(error, "%s: no labels: there is no %s", picture, path);
    if (!read_label_size(path, size, &why)) return refuse(error, "%s: %s", path, why.text);
    why.lacking = false;
    bool ok = read_size(picture, buffer, set->size[i], &why);
    if (!ok && why.lacking) return refuse(error, "%s: %s", picture, why.text);
    if (!ok) set->size[i][0] = set->size[i][1] = 0;
    if (!ok || !memcmp(size, set->size[i], sizeof size)) return true;
    return refuse(error, "%s: %d x %d pixels (height x width), but its picture %s has %d x %d", path, size[0], size[1],
                  picture, set->size[i][0], set->size[i][1]);
}

static void check_all(SegmentationSet *set) {
    SampleBuffer buffer = {NULL, 0};
    Error error;
    for (int i = 0; i < set->count; i++)
        if (!check_files(set, (size_t)i, &buffer, &error)) die("%s", error.text);
    free(buffer.bytes);
}

/* == A set ======================================================================================================== */

static char *folder_path(const char *data, const char *name) {
    char path[MOST_PATH];
    path_find(path, sizeof path, data, name);
    for (size_t length = strlen(path); length > 1 && path[length - 1] == '/';) path[--length] = 0;
    return xstrdup(path);
}

static void keep_first(Pictures *pictures, int limit) {
    for (; limit && pictures->count > (size_t)limit; pictures->count--) free(pictures->at[pictures->count - 1].name);
}

static void open_files(SegmentationSet *set, const SegmentationSetSettings *s, bool train) {
    const char *folder;
    text_name_path(set->name, sizeof set->name, s->data, "images");
    read_names(&set->names, s);
    set->classes = set->names.at ? set->names.count : s->seg_classes;
    if (!set->classes) die("%s: the number of classes is unknown: give seg_classes, or a file as class_names", s->data);
    set->image_folder = folder_path(s->data, train ? s->train_images : s->val_images);
    set->label_folder = folder_path(s->data, train ? s->train_annotations : s->val_annotations);
    if (!folder_exists(folder = set->image_folder) || !folder_exists(folder = set->label_folder))
        die("%s: no such folder", folder);
    pictures_find(&set->pictures, &(ConfigList){1, (const char *const[]){set->image_folder}}, false);
    keep_first(&set->pictures, train ? s->train_limit : s->val_limit);
    set->count = (int)set->pictures.count;
    set->zero_unlabelled = s->zero_unlabelled;
    set->size = xcalloc((size_t)set->count, sizeof *set->size, "the sizes of pictures");
    check_all(set);
}

static void open_scenes(SegmentationSet *set, const SegmentationSetSettings *s, bool train, uint64_t seed) {
    int limit = train ? s->train_limit : s->val_limit;
    snprintf(set->name, sizeof set->name, "shapes");
    name_scenes(&set->names);
    set->classes = SHAPES_CLASSES + 1;
    set->count = limit ? limit : train ? SCENES_TRAIN : SCENES_TEST;
    set->seed = seed;
    set->split = !train;
    set->side = s->scene_size;
    set->edges = s->scene_edges;
    set->size = xcalloc((size_t)set->count, sizeof *set->size, "the sizes of pictures");
    for (int i = 0; i < set->count; i++) set->size[i][0] = set->size[i][1] = set->side;
}

void segmentation_set_open(SegmentationSet *set, const SegmentationSetSettings *s, bool train, uint64_t seed) {
    *set = (SegmentationSet){.side = 0};
    if (is_shapes(s))
        open_scenes(set, s, train, seed);
    else
        open_files(set, s, train);
    memcpy(set->mean, imagenet_mean, sizeof set->mean);
    memcpy(set->std, imagenet_std, sizeof set->std);
}

void segmentation_set_close(SegmentationSet *set) {
    class_names_free(&set->names);
    pictures_free(&set->pictures);
    free(set->size);
    free(set->image_folder);
    free(set->label_folder);
    *set = (SegmentationSet){.side = 0};
}

void segmentation_set_name_image(const SegmentationSet *set, size_t index, char *text, size_t size) {
    if (set->image_folder)
        snprintf(text, size, "%s", set->pictures.at[index].name);
    else
        snprintf(text, size, "image %zu of %s", index, set->name);
}

/* == Pictures and labels ========================================================================================== */

/* Turns stored values into labels; false if a value is neither a class nor unlabelled. */
static bool number_labels(const SegmentationSet *set, uint8_t *labels, const ImageValues *values, const char *path,
                          Error *error) {
    uint8_t label[256];
    bool beyond[256], any = false;
    int first = set->zero_unlabelled;
    size_t n = (size_t)values->height * (size_t)values->width;
    for (int v = 0; v < 256; v++) {
        bool none = v == SEGMENTATION_IGNORED || v < first;
        label[v] = none ? SEGMENTATION_IGNORED : (uint8_t)(v - first);
        beyond[v] = !none && v - first >= set->classes;
    }
    for (size_t i = 0; i < n; i++) {
        labels[i] = label[values->at[i]];
        any |= beyond[values->at[i]];
    }
    for (size_t i = 0; any && i < n; i++)
        if (beyond[values->at[i]])
            return refuse(error, "%s: value %d in row %zu, column %zu, expected %d to %d for %d classes", path,
                          values->at[i], i / (size_t)values->width, i % (size_t)values->width, first,
                          first + set->classes - 1, set->classes);
    return true;
}

static bool has_size(const SegmentationSet *set, int index, const ImagePart *picture, Error *error) {
    const int *size = set->size[index];
    if (picture->height == size[0] && picture->width == size[1]) return true;
    return refuse(error, "%d x %d pixels (height x width), but it had %d x %d when the data set was opened",
                  picture->height, picture->width, size[0], size[1]);
}

static bool read_labels(const SegmentationSet *set, int index, TransformScratch *scratch, const ImagePart *picture,
                        Error *error) {
    char path[MOST_PATH];
    size_t size;
    Error why;
    ImageValues values;
    annotation_path(set, (size_t)index, path);
    if (!file_read_again(path, IMAGE_MAX_BYTES, &scratch->bytes.bytes, &scratch->bytes.room, &size, &why) ||
        !image_decode_values(&values, scratch->bytes.bytes, size, JPEG_MAX_PIXELS, &why)) {
        refuse(error, "%s: %s", path, why.text);
        error->lacking = why.lacking;
        return false;
    }
    bool ok = values.height == picture->height && values.width == picture->width;
    if (!ok)
        refuse(error, "%s: %d x %d pixels (height x width), but the picture has %d x %d", path, values.height,
               values.width, picture->height, picture->width);
    ok = ok && (sample_buffer_grow(&scratch->labels, (size_t)values.height * (size_t)values.width) ||
                refuse_memory(error, 0, "its labels"));
    ok = ok && number_labels(set, scratch->labels.bytes, &values, path, error);
    image_values_free(&values);
    return ok;
}

static bool draw_scene(const SegmentationSet *set, int index, TransformScratch *scratch, ImagePart *picture,
                       Error *error) {
    int label[SCENES_MOST], box[SCENES_MOST][4];
    size_t row = (size_t)set->side, n = row * row;
    if (!sample_buffer_grow(&scratch->pixels, 3 * n) || !sample_buffer_grow(&scratch->labels, n))
        return refuse_memory(error, 0, "its pixels");
    uint8_t *pixels = scratch->pixels.bytes, *labels = scratch->labels.bytes;
    scenes_draw(set->seed, set->split, (uint32_t)index, set->side, pixels, labels, label, box);
    scenes_classes(labels, labels, n, label, !set->edges);
    *picture = (ImagePart){.pixels = pixels, .stride = 3 * row, .height = set->side, .width = set->side};
    return true;
}

bool segmentation_set_read(const SegmentationSet *set, int index, TransformScratch *scratch, ImagePart *picture,
                           uint8_t **labels, Error *error) {
    bool ok;
    if (!set->image_folder) {
        ok = draw_scene(set, index, scratch, picture, error);
    } else {
        ok = detection_picture_read(set->pictures.at[index].name, false, scratch, picture, error) &&
             has_size(set, index, picture, error) && read_labels(set, index, scratch, picture, error);
    }
    *labels = scratch->labels.bytes;
    return ok;
}
