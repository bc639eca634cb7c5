#include "data/sets/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/files.h"
#include "core/text.h"
#include "data/images/image.h"
#include "data/images/webp.h"

enum { IMAGE_PATH_ROOM = DATASET_PATH + 2 * 256 };

/* == Names in a folder ============================================================================================ */

/* A list of names in one block, each terminated by a 0, and their offsets; sorting orders them by strcmp. */
typedef struct {
    char *text;
    size_t *at;
    size_t count, room, used, text_room;
} Names;

static const char *name_of(const Names *names, size_t i) { return names->text + names->at[i]; }

static void names_add(Names *names, const char *name) {
    size_t length = strlen(name) + 1;
    names->text = xgrow(names->text, names->used + length, &names->text_room, 1, "the names of images");
    names->at = xgrow(names->at, names->count + 1, &names->room, sizeof *names->at, "the names of images");
    memcpy(names->text + names->used, name, length);
    names->at[names->count++] = names->used;
    names->used += length;
}

static int compare_names(const void *a, const void *b, void *text) {
    return strcmp((const char *)text + *(const size_t *)a, (const char *)text + *(const size_t *)b);
}

static void names_sort(Names *names) {
    if (names->count) qsort_r(names->at, names->count, sizeof *names->at, compare_names, names->text);
}

static void names_free(Names *names) {
    free(names->text);
    free(names->at);
    *names = (Names){0};
}

/* Uses stat for links and on file systems that do not report the type. */
static bool entry_is_folder(const struct dirent *entry, const char *folder) {
    char path[DATASET_PATH];
    if (entry->d_type != DT_UNKNOWN && entry->d_type != DT_LNK) return entry->d_type == DT_DIR;
    path_join(path, sizeof path, folder, entry->d_name);
    return folder_exists(path);
}

/* The number of skipped files, hidden ones not counted: WebP pictures that this build cannot read, and all others. */
typedef struct {
    size_t webp, count;
    char first[256];
} Others;

/* Adds the subfolders of a folder, or its pictures; other entries are counted in `others`. */
static void names_list(Names *names, const char *folder, bool folders, Others *others) {
    DIR *list = opendir(folder);
    if (!list) die("%s: cannot open this folder: %s", folder, strerror(errno));
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(list);
        if (!entry && errno) die("%s: cannot read this folder: %s", folder, strerror(errno));
        if (!entry) break;
        if (entry->d_name[0] == '.') continue;
        if (folders ? entry_is_folder(entry, folder) : image_has_name(entry->d_name)) {
            names_add(names, entry->d_name);
        } else if (text_has_extension(entry->d_name, "webp")) {
            others->webp++;
        } else if (!others->count++) {
            snprintf(others->first, sizeof others->first, "%s", entry->d_name);
        }
    }
    closedir(list);
    names_sort(names);
}

/* == A split ====================================================================================================== */

typedef struct {
    char root[DATASET_PATH]; /* the split's folder */
    Names classes, images;
    const char **class_names; /* [classes] */
    uint32_t *labels;         /* [count] */
    size_t label_room;
} Folder;

static bool has_folders(const char *path) {
    Names names = {0};
    names_list(&names, path, true, &(Others){.count = 0});
    bool has = names.count > 0;
    names_free(&names);
    return has;
}

static bool has_split(const char *path, const char *name) {
    char root[DATASET_PATH];
    path_join(root, sizeof root, path, name);
    return folder_exists(root) && (strcmp(name, "test") || has_folders(root));
}

/* Are its folders classes, at least one of which has a picture? */
static bool is_bare(const char *path) {
    static const char *const splits[] = {"train", "val", "valid", "test"};
    char folder[DATASET_PATH];
    Names classes = {0}, images = {0};
    bool bare = folder_exists(path);
    for (size_t i = 0; bare && i < sizeof splits / sizeof *splits; i++) {
        path_join(folder, sizeof folder, path, splits[i]);
        bare = !folder_exists(folder);
    }
    if (bare) names_list(&classes, path, true, &(Others){.count = 0});
    for (size_t i = 0; i < classes.count && !images.count; i++) {
        path_join(folder, sizeof folder, path, name_of(&classes, i));
        names_list(&images, folder, false, &(Others){.count = 0});
    }
    bare = bare && images.count > 0;
    names_free(&classes);
    names_free(&images);
    return bare;
}

void folder_splits(const char *path, bool *validation, bool *test) {
    *validation = has_split(path, "val") || has_split(path, "valid");
    *test = has_split(path, "test");
}

/* The folder of a split, "" if there are only class folders; for validation, the first of val, valid and test that
 * exists.  A test folder may also hold images without class folders, which cannot be used here. */
static const char *split_name(const char *path, bool train) {
    static const char *const names[] = {"val", "valid", "test"};
    if (train) return is_bare(path) ? "" : "train";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (has_split(path, names[i])) return names[i];
    return "val";
}

static void list_classes(Names *classes, const char *root) {
    names_list(classes, root, true, &(Others){.count = 0});
    if (!classes->count) die("%s: no class folders in it, expected %s/<class>/<image>", root, root);
    if (classes->count > 1000000) die("%s: %zu class folders, expected at most 1000000", root, classes->count);
}

static bool folder_find(char found[DATASET_PATH], const char *path) {
    char root[DATASET_PATH];
    snprintf(found, DATASET_PATH, "%s", path);
    for (int train = 0; train < 2; train++) {
        path_join(root, sizeof root, path, split_name(path, train));
        if (folder_exists(root)) return true;
    }
    return is_bare(path);
}

/* A class that only one of two splits has would shift the labels of all later classes.  The second one is read here. */
static void check_same_classes(const char *path, const Names *classes, const char *split, const char *second) {
    char root[DATASET_PATH];
    Names others = {0};
    path_join(root, sizeof root, path, second);
    if (!folder_exists(root)) return;
    list_classes(&others, root);
    size_t i = 0;
    while (i < classes->count && i < others.count && !strcmp(name_of(classes, i), name_of(&others, i))) i++;
    if (i < classes->count || i < others.count) {
        bool here = i < classes->count &&
                    (i == others.count || strcmp(name_of(classes, i), name_of(&others, i)) < 0);
        const char *other = strcmp(split, "train") ? split : second;
        die("%s: class %s is in %s but not in %s: train and %s need the same class folders", path,
            here ? name_of(classes, i) : name_of(&others, i), here ? split : second, here ? second : split, other);
    }
    names_free(&others);
}

static void folder_describe(Dataset *dataset, const char *path) {
    char root[DATASET_PATH];
    Names classes = {0};
    dataset_of_photographs(dataset, path, "images");
    path_join(root, sizeof root, path, split_name(path, true));
    if (!folder_exists(root)) path_join(root, sizeof root, path, split_name(path, false));
    list_classes(&classes, is_bare(path) ? path : root);
    dataset->classes = (int)classes.count;
    names_free(&classes);
}

static void path_of(const Folder *folder, size_t index, char path[IMAGE_PATH_ROOM]) {
    snprintf(path, IMAGE_PATH_ROOM, "%s/%s/%s", folder->root, folder->class_names[folder->labels[index]],
             name_of(&folder->images, index));
}

static bool folder_read(const Dataset *dataset, size_t index, SampleBuffer *buffer, Sample *sample, Error *error) {
    const Folder *folder = dataset->state;
    char path[IMAGE_PATH_ROOM];
    path_of(folder, index, path);
    *sample = (Sample){.label = (int)folder->labels[index]};
    bool ok = file_read_again(path, IMAGE_MAX_BYTES, &buffer->bytes, &buffer->room, &sample->size, error);
    sample->bytes = buffer->bytes;
    return ok;
}

static void folder_describe_image(const Dataset *dataset, size_t index, char *text, size_t size) {
    char path[IMAGE_PATH_ROOM];
    path_of(dataset->state, index, path);
    snprintf(text, size, "%s", path);
}

static void folder_close(Dataset *dataset) {
    Folder *folder = dataset->state;
    names_free(&folder->classes);
    names_free(&folder->images);
    free(folder->class_names);
    free(folder->labels);
    free(folder);
}

/* Appends the images of one class. */
static void list_class(Folder *folder, size_t label, Others *others, char other[DATASET_PATH]) {
    char path[DATASET_PATH];
    size_t before = others->count;
    Names names = {0};
    path_join(path, sizeof path, folder->root, folder->class_names[label]);
    names_list(&names, path, false, others);
    if (!before && others->count) snprintf(other, DATASET_PATH, "%.3800s/%s", path, others->first);
    if (!names.count && others->webp > 0 && !webp_supported())
        die("%s: no images in this class but WebP, and this build has no libwebp: install libwebp-dev and run make "
            "again", path);
    if (!names.count)
        die("%s: no images in this class (*.JPEG, *.jpg, *.png, *.bmp%s)", path, webp_supported() ? ", *.webp" : "");
    size_t count = folder->images.count + names.count;
    folder->labels = xgrow(folder->labels, count, &folder->label_room, sizeof *folder->labels, "the labels of images");
    for (size_t i = 0; i < names.count; i++) {
        folder->labels[folder->images.count] = (uint32_t)label;
        names_add(&folder->images, name_of(&names, i));
    }
    names_free(&names);
}

/* Keeps `limit` images at even intervals, so that all classes remain. */
static size_t keep(Folder *folder, size_t limit) {
    size_t count = folder->images.count;
    if (!limit || limit >= count) return count;
    for (size_t i = 0; i < limit; i++) {
        size_t from = i * count / limit;
        folder->images.at[i] = folder->images.at[from];
        folder->labels[i] = folder->labels[from];
    }
    return folder->images.count = limit;
}

static int folder_label(const Dataset *dataset, size_t index) {
    return (int)((const Folder *)dataset->state)->labels[index];
}

static void split_open(Dataset *dataset, const char *path, const char *split, bool train, size_t limit) {
    Others others = {.count = 0};
    char other[DATASET_PATH] = "";
    Folder *folder = xcalloc(1, sizeof *folder, "an image folder");
    if (*split) path_join(folder->root, sizeof folder->root, path, split);
    else snprintf(folder->root, sizeof folder->root, "%s", path);
    if (!folder_exists(folder->root))
        die("%s: no such folder: expected the %s images in %s/<class>/%s", folder->root, train ? "training" : "test",
            folder->root, train ? "" : " (val_fraction 0.1 validates with training images, eval_every 0 trains without)");
    list_classes(&folder->classes, folder->root);
    if (*split) check_same_classes(path, &folder->classes, split, split_name(path, !train));
    folder->class_names = xcalloc(folder->classes.count, sizeof *folder->class_names, "class names");
    for (size_t c = 0; c < folder->classes.count; c++) folder->class_names[c] = name_of(&folder->classes, c);
    for (size_t c = 0; c < folder->classes.count; c++) list_class(folder, c, &others, other);
    if (others.webp)
        warn("%s: %zu WebP pictures are left out: this build has no libwebp: install libwebp-dev and run make again",
             folder->root, others.webp);
    if (others.count)
        warn("%s: %zu files are not named like a picture and are left out, the first is %s", folder->root,
             others.count, other);
    dataset_of_photographs(dataset, path, "images");
    dataset->classes = (int)folder->classes.count;
    dataset->class_names = folder->class_names;
    dataset->count = keep(folder, limit);
    dataset->read = folder_read;
    dataset->describe = folder_describe_image;
    dataset->label = folder_label;
    dataset->close = folder_close;
    dataset->state = folder;
}

void folder_open(Dataset *dataset, const char *path, bool train, size_t limit) {
    split_open(dataset, path, split_name(path, train), train, limit);
}

void folder_open_test(Dataset *dataset, const char *path, size_t limit) {
    split_open(dataset, path, "test", false, limit);
}

const DatasetKind folder_kind = {.find = folder_find, .open = folder_open, .describe = folder_describe};
