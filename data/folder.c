#include "data/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/die.h"
#include "core/files.h"
#include "data/image.h"

enum { IMAGE_PATH_ROOM = DATASET_PATH + 2 * 256 };

/* == Names in a folder ============================================================================================ */

/* Names, each ended by a 0, and where they begin; in the order of strcmp once sorted. */
typedef struct {
    char *text;
    size_t *at;
    size_t count, room, used, text_room;
} Names;

static const char *name_of(const Names *names, size_t i) { return names->text + names->at[i]; }

static void *regrow(void *memory, size_t size) {
    memory = realloc(memory, size);
    if (!memory) die("out of memory: %zu bytes for the names of images", size);
    return memory;
}

static void names_add(Names *names, const char *name) {
    size_t length = strlen(name) + 1;
    if (names->used + length > names->text_room) {
        names->text_room = 2 * names->text_room + length + 4096;
        names->text = regrow(names->text, names->text_room);
    }
    if (names->count == names->room) {
        names->room = 2 * names->room + 64;
        names->at = regrow(names->at, names->room * sizeof *names->at);
    }
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

static bool is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* File systems that do not tell, and links, are asked again. */
static bool entry_is_folder(const struct dirent *entry, const char *folder) {
    char path[DATASET_PATH];
    if (entry->d_type != DT_UNKNOWN && entry->d_type != DT_LNK) return entry->d_type == DT_DIR;
    path_join(path, sizeof path, folder, entry->d_name);
    return is_folder(path);
}

/* Adds the folders in a folder, or its pictures; what is neither hidden nor wanted is counted in *others, and *other is
 * the first of them. */
static void names_list(Names *names, const char *folder, bool folders, size_t *others, char other[256]) {
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
        } else if (!(*others)++) {
            snprintf(other, 256, "%s", entry->d_name);
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
} Folder;

static const char *split_name(bool train) { return train ? "train" : "val"; }

static void list_classes(Names *classes, const char *root) {
    size_t others = 0;
    char other[256];
    names_list(classes, root, true, &others, other);
    if (!classes->count) die("%s: no class folders in it, expected %s/<class>/<image>", root, root);
    if (classes->count > 1000000) die("%s: %zu class folders, expected at most 1000000", root, classes->count);
}

static bool folder_find(char found[DATASET_PATH], const char *path) {
    char root[DATASET_PATH];
    snprintf(found, DATASET_PATH, "%s", path);
    for (int train = 0; train < 2; train++) {
        path_join(root, sizeof root, path, split_name(train));
        if (is_folder(root)) return true;
    }
    return false;
}

/* A class that only one split has would shift the labels of all behind it. */
static void check_same_classes(const char *path, const Names *classes, bool train) {
    char other[DATASET_PATH];
    Names others = {0};
    path_join(other, sizeof other, path, split_name(!train));
    if (!is_folder(other)) return;
    list_classes(&others, other);
    size_t i = 0;
    while (i < classes->count && i < others.count && !strcmp(name_of(classes, i), name_of(&others, i))) i++;
    if (i < classes->count || i < others.count) {
        bool here = i < classes->count &&
                    (i == others.count || strcmp(name_of(classes, i), name_of(&others, i)) < 0);
        die("%s: class %s is in %s but not in %s: train and val need the same class folders", path,
            here ? name_of(classes, i) : name_of(&others, i), split_name(here ? train : !train),
            split_name(here ? !train : train));
    }
    names_free(&others);
}

static void describe(Dataset *dataset, const char *path) {
    size_t length = strlen(path), end = length;
    while (end > 1 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    *dataset = (Dataset){0};
    snprintf(dataset->name, sizeof dataset->name, "%.*s", (int)(end - begin), path + begin);
    if (!*dataset->name || *dataset->name == '.') snprintf(dataset->name, sizeof dataset->name, "images");
    memcpy(dataset->mean, imagenet_mean, sizeof imagenet_mean);
    memcpy(dataset->std, imagenet_std, sizeof imagenet_std);
}

static void folder_describe(Dataset *dataset, const char *path) {
    char root[DATASET_PATH];
    Names classes = {0};
    describe(dataset, path);
    path_join(root, sizeof root, path, split_name(true));
    if (!is_folder(root)) path_join(root, sizeof root, path, split_name(false));
    list_classes(&classes, root);
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

/* Images of one class behind those of the classes before. */
static void list_class(Folder *folder, size_t label, size_t *others, char other[DATASET_PATH]) {
    char path[DATASET_PATH], name[256];
    size_t before = *others;
    Names names = {0};
    path_join(path, sizeof path, folder->root, folder->class_names[label]);
    names_list(&names, path, false, others, name);
    if (!before && *others) snprintf(other, DATASET_PATH, "%.3800s/%s", path, name);
    if (!names.count) die("%s: no images in this class (*.JPEG, *.jpg, *.png or *.bmp)", path);
    folder->labels = regrow(folder->labels, (folder->images.count + names.count) * sizeof *folder->labels);
    for (size_t i = 0; i < names.count; i++) {
        folder->labels[folder->images.count] = (uint32_t)label;
        names_add(&folder->images, name_of(&names, i));
    }
    names_free(&names);
}

/* Every so manyth image, so that all classes stay. */
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

void folder_open(Dataset *dataset, const char *path, bool train, size_t limit) {
    size_t others = 0;
    char other[DATASET_PATH] = "";
    Folder *folder = xcalloc(1, sizeof *folder, "an image folder");
    path_join(folder->root, sizeof folder->root, path, split_name(train));
    if (!is_folder(folder->root))
        die("%s: no such folder: expected the %s images in %s/<class>/", folder->root, train ? "training" : "test",
            folder->root);
    list_classes(&folder->classes, folder->root);
    check_same_classes(path, &folder->classes, train);
    folder->class_names = xcalloc(folder->classes.count, sizeof *folder->class_names, "class names");
    for (size_t c = 0; c < folder->classes.count; c++) folder->class_names[c] = name_of(&folder->classes, c);
    for (size_t c = 0; c < folder->classes.count; c++) list_class(folder, c, &others, other);
    if (others)
        warn("%s: not named like a picture, left out%s", other, others > 1 ? ", and others like it" : "");
    describe(dataset, path);
    dataset->classes = (int)folder->classes.count;
    dataset->class_names = folder->class_names;
    dataset->count = keep(folder, limit);
    dataset->read = folder_read;
    dataset->describe = folder_describe_image;
    dataset->close = folder_close;
    dataset->state = folder;
}

const DatasetKind folder_kind = {.find = folder_find, .open = folder_open, .describe = folder_describe};
