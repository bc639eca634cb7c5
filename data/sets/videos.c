#include "data/sets/videos.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "core/die.h"
#include "core/files.h"
#include "core/json_lists.h"
#include "data/video/clip_file.h"
#include "data/video/clips.h"
#include "data/images/image.h"
#include "data/video/video.h"

enum { MOST_CLASSES = 1000000, PATH_ROOM = DATASET_PATH + 1024 };

typedef enum { LAYOUT_NONE, LAYOUT_FOLDERS, LAYOUT_LIST, LAYOUT_KINETICS, LAYOUT_SOMETHING } VideosLayout;

typedef struct {
    char *name; /* path below the root, or the name without folder and extension */
    int label;
    int frames; /* number of frames of a folder, if it is in the list; otherwise 0 */
} Video;

typedef struct {
    char root[DATASET_PATH]; /* the data set's folder; for class folders the split's */
    char split[16];          /* train or val */
    VideosLayout layout;
    Video *at; /* [count] */
    size_t count, room;
    char **classes; /* [class_count] */
    size_t class_count, class_room;
    int *mirrored; /* [class_count] or NULL */
} Videos;

/* == Growing lists ================================================================================================ */

static void add_video(Videos *v, const char *name, int label, int frames) {
    v->at = xgrow(v->at, v->count + 1, &v->room, sizeof *v->at, "the names of videos");
    v->at[v->count++] = (Video){xstrdup(name), label, frames};
}

static void add_class(Videos *v, const char *name) {
    if (v->class_count >= MOST_CLASSES) die("%s: more than %d classes", v->root, MOST_CLASSES);
    v->classes = xgrow(v->classes, v->class_count + 1, &v->class_room, sizeof *v->classes, "classes");
    v->classes[v->class_count++] = xstrdup(name);
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void sort_classes(Videos *v) {
    size_t kept = 0;
    if (!v->class_count) return;
    qsort(v->classes, v->class_count, sizeof *v->classes, by_text);
    for (size_t i = 0; i < v->class_count; i++) {
        if (kept && !strcmp(v->classes[kept - 1], v->classes[i])) free(v->classes[i]);
        else v->classes[kept++] = v->classes[i];
    }
    v->class_count = kept;
}

static int class_of(const Videos *v, const char *name) {
    char *const *found = bsearch(&name, v->classes, v->class_count, sizeof *v->classes, by_text);
    return found ? (int)(found - v->classes) : -1;
}

/* == Folders ====================================================================================================== */

static int visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }
static int is_picture(const struct dirent *entry) { return visible(entry) && image_has_name(entry->d_name); }

static void free_entries(struct dirent **entries, int count) {
    for (int i = 0; i < count; i++) free(entries[i]);
    free(entries);
}

static const char *split_folder(const char *path, bool train) {
    static const char *const names[] = {"val", "valid", "test"};
    char folder[DATASET_PATH];
    for (int i = 0; !train && i < 3; i++) {
        path_join(folder, sizeof folder, path, names[i]);
        if (folder_exists(folder)) return names[i];
    }
    return train ? "train" : "val";
}

/* Whether the entry of a class folder is a video. */
static bool is_video(const char *folder, const char *name) {
    char path[PATH_ROOM + 256];
    if (video_has_name(name)) return true;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return folder_exists(path);
}

/* Calls take for each class folder of the split until it returns true. */
static bool each_class(const char *root, bool (*take)(Videos *v, const char *folder, const char *name), Videos *v) {
    struct dirent **classes;
    char folder[PATH_ROOM];
    bool done = false;
    int count = scandir(root, &classes, visible, alphasort), reason = errno;
    if (count < 0 && folder_exists(root)) die("%s: cannot read this folder: %s", root, strerror(reason));
    for (int i = 0; i < count && !done; i++) {
        snprintf(folder, sizeof folder, "%s/%s", root, classes[i]->d_name);
        done = folder_exists(folder) && take(v, folder, classes[i]->d_name);
    }
    if (count >= 0) free_entries(classes, count);
    return done;
}

/* Sets the layout if the folder holds videos, or folders but no pictures; the first class that is not empty decides. */
static bool holds_videos(Videos *v, const char *folder, const char *name) {
    struct dirent **entries;
    bool found = false, pictures = false;
    (void)name;
    int count = scandir(folder, &entries, visible, NULL);
    for (int i = 0; i < count && !pictures; i++) {
        pictures = image_has_name(entries[i]->d_name);
        found = found || is_video(folder, entries[i]->d_name);
    }
    if (count >= 0) free_entries(entries, count);
    if (found && !pictures) v->layout = LAYOUT_FOLDERS;
    return count > 0;
}

static bool take_class(Videos *v, const char *folder, const char *name) {
    (void)folder;
    add_class(v, name);
    return false;
}

static bool take_videos(Videos *v, const char *folder, const char *name) {
    struct dirent **entries;
    char path[PATH_ROOM];
    int label = class_of(v, name), count = scandir(folder, &entries, visible, alphasort);
    if (count < 0) die("%s: cannot open this folder: %s", folder, strerror(errno));
    for (int i = 0; i < count; i++) {
        if (!is_video(folder, entries[i]->d_name)) continue;
        snprintf(path, sizeof path, "%s/%s", name, entries[i]->d_name);
        add_video(v, path, label, 0);
    }
    free_entries(entries, count);
    return false;
}

/* Collects the classes of both splits, so that they are numbered alike, and the videos of one. */
static void read_folders(Videos *v, const char *path) {
    char root[DATASET_PATH];
    for (int train = 0; train < 2; train++) {
        path_join(root, sizeof root, path, split_folder(path, train));
        each_class(root, take_class, v);
    }
    sort_classes(v);
    each_class(v->root, take_videos, v);
}

/* == Lists ======================================================================================================== */

/* The file of a split: the first existing one of all forms and names. */
static VideosLayout find_list(char found[DATASET_PATH], const char *path, bool train) {
    static const char *const names[2][3] = {{"val", "validation", "test"}, {"train", NULL, NULL}};
    static const char *const prefixes[] = {"", "something-something-v2-"};
    static const char *const endings[] = {"txt", "csv", "json"};
    char name[128];
    for (int n = 0; n < 3 && names[train][n]; n++)
        for (int e = 0; e < 3; e++)
            for (int p = 0; p < 2; p++) {
                snprintf(name, sizeof name, "%s%s.%s", prefixes[p], names[train][n], endings[e]);
                path_join(found, DATASET_PATH, path, name);
                if (file_exists(found)) return e == 2 ? LAYOUT_SOMETHING : LAYOUT_LIST;
            }
    return LAYOUT_NONE;
}

/* Splits a line of comma-separated values in place; "a ""b""" is a "b".  Returns the number of fields. */
static int split_csv(char *line, char *fields[], int most) {
    int count = 0;
    char *in = line, *out = line;
    while (count < most) {
        bool quoted = *in == '"';
        fields[count++] = out;
        if (quoted) in++;
        while (*in && (quoted || *in != ',')) {
            if (quoted && *in == '"' && in[1] != '"') {
                quoted = false;
                in++;
                continue;
            }
            if (quoted && *in == '"') in++;
            *out++ = *in++;
        }
        bool more = *in++ == ',';
        *out++ = 0;
        if (!more) break;
    }
    return count;
}

static bool read_number(const char *text, int *number) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end || errno || value < 0 || value > 100000000) return false;
    *number = (int)value;
    return true;
}

/* Cuts the last field off a line; NULL if there is only one. */
static char *last_field(char *line) {
    size_t end = strlen(line);
    while (end && line[end - 1] != ' ' && line[end - 1] != '\t' && line[end - 1] != ',') end--;
    if (!end) return NULL;
    char *field = line + end;
    while (end && (line[end - 1] == ' ' || line[end - 1] == '\t' || line[end - 1] == ',')) line[--end] = 0;
    return field;
}

static void refuse_line(const char *list, size_t number, const char *what) { die("%s:%zu: %s", list, number, what); }

static bool quoted(const char *text) {
    size_t length = strlen(text);
    return length > 1 && text[0] == '"' && text[length - 1] == '"';
}

/* `path label` or `path frames label`; a path may have spaces and be quoted, and whether it is a file distinguishes the
 * two forms. */
static void take_line(Videos *v, char *line, const char *list, size_t number) {
    int label = 0, frames = 0;
    size_t length = strlen(line);
    char *text = last_field(line);
    if (!text || !read_number(text, &label) || label >= MOST_CLASSES)
        refuse_line(list, number, "expected a path and a label");
    if (!quoted(line) && !video_has_name(line)) {
        char copy[PATH_ROOM];
        snprintf(copy, sizeof copy, "%s", line);
        char *middle = length < sizeof copy ? last_field(copy) : NULL;
        if (middle && read_number(middle, &frames)) line[strlen(copy)] = 0;
        else frames = 0;
    }
    if (quoted(line)) {
        line[strlen(line) - 1] = 0;
        line++;
    }
    if (!*line) refuse_line(list, number, "expected a path and a label");
    add_video(v, line, label, frames);
}

/* label,youtube_id,time_start,time_end: the file's name is id_%06d_%06d. */
static void take_kinetics(Videos *v, char *line, const char *list, size_t number) {
    char *fields[8], name[256];
    int start = 0, end = 0, count = split_csv(line, fields, 8);
    if (count < 4 || !*fields[0] || !read_number(fields[2], &start) || !read_number(fields[3], &end))
        refuse_line(list, number, "expected label,youtube_id,time_start,time_end");
    snprintf(name, sizeof name, "%.200s_%06d_%06d", fields[1], start, end);
    add_class(v, fields[0]);
    add_video(v, name, (int)v->class_count - 1, 0);
}

/* A list may begin with UTF-8's byte order mark, which is skipped. */
static FILE *open_list(const char *list) {
    char mark[3];
    Error error;
    int fd = file_open(list, &error);
    if (fd < 0) die("%s: %s", list, error.text);
    FILE *file = fdopen(fd, "r");
    if (!file) die("%s: cannot open: %s", list, strerror(errno));
    if (fread(mark, 1, 3, file) != 3 || memcmp(mark, "\xef\xbb\xbf", 3)) rewind(file);
    return file;
}

static void each_line(Videos *v, const char *list, void (*take)(Videos *, char *, const char *, size_t), bool skip) {
    char *line = NULL;
    size_t room = 0, number = 0;
    FILE *file = open_list(list);
    for (ssize_t length; (length = getline(&line, &room, file)) >= 0;) {
        while (length && isspace((unsigned char)line[length - 1])) line[--length] = 0;
        if (++number == 1 && skip) continue;
        if (strlen(line) != (size_t)length || length > DATASET_PATH) refuse_line(list, number, "no line of text");
        if (length) take(v, line, list, number);
    }
    if (ferror(file)) die("%s: cannot read: %s", list, strerror(errno));
    fclose(file);
    free(line);
}

static bool is_kinetics(const char *list) {
    static const char head[] = "label,youtube_id,";
    char start[sizeof head] = "";
    FILE *file = open_list(list);
    bool found = fread(start, 1, sizeof head - 1, file) == sizeof head - 1 && !strcmp(start, head);
    fclose(file);
    return found;
}

static void take_name(Videos *v, char *line, const char *list, size_t number) {
    (void)list, (void)number;
    add_class(v, line);
}

/* Reads the list of the split, followed by that of the other split for its classes.  Returns the number of the split's
 * own videos. */
static size_t read_both(Videos *v, const char *path, const char *list) {
    char other[DATASET_PATH];
    bool kinetics = v->layout == LAYOUT_KINETICS;
    each_line(v, list, kinetics ? take_kinetics : take_line, kinetics);
    size_t own = v->count;
    if (find_list(other, path, strcmp(v->split, "train") != 0) == LAYOUT_LIST && (!kinetics || is_kinetics(other)))
        each_line(v, other, kinetics ? take_kinetics : take_line, kinetics);
    return own;
}

static void keep_first(Videos *v, size_t count) {
    for (size_t i = count; i < v->count; i++) free(v->at[i].name);
    v->count = count;
}

/* Labels are numbers, with names from classes.txt or the numbers as names. */
static void read_list(Videos *v, const char *path, const char *list) {
    char names[DATASET_PATH], number[16];
    size_t own = read_both(v, path, list);
    int most = -1;
    for (size_t i = 0; i < v->count; i++) most = v->at[i].label > most ? v->at[i].label : most;
    keep_first(v, own);
    path_join(names, sizeof names, path, "classes.txt");
    if (file_exists(names)) each_line(v, names, take_name, false);
    if (v->class_count && (int)v->class_count <= most)
        die("%s: label %d, but %s names %zu classes", list, most, names, v->class_count);
    for (int c = (int)v->class_count; c <= most; c++) {
        snprintf(number, sizeof number, "%d", c);
        add_class(v, number);
    }
}

/* Classes are the names of both lists, sorted.  At first there is one for each video. */
static void read_kinetics(Videos *v, const char *path, const char *list) {
    size_t own = read_both(v, path, list), count = v->class_count;
    char **name = v->classes;
    v->classes = NULL;
    v->class_count = v->class_room = 0;
    for (size_t i = 0; i < count; i++) add_class(v, name[i]);
    sort_classes(v);
    for (size_t i = 0; i < count; i++) {
        v->at[i].label = class_of(v, name[i]);
        free(name[i]);
    }
    free(name);
    keep_first(v, own);
}

/* == Something-Something ========================================================================================== */

typedef struct {
    Videos *videos;
    json_t *labels;
} Something;

/* The template without its brackets is the class. */
static bool take_record(void *state, const JsonValue *value, uint32_t present, Error *error) {
    const Something *s = state;
    char name[JSON_TEXT_MOST + 1];
    int label, at = 0;
    if (!(present & 2)) return refuse(error, "no template: this list has no labels");
    for (const char *c = value[1].text; *c; c++)
        if (*c != '[' && *c != ']') name[at++] = *c;
    name[at] = 0;
    const char *text = json_string_value(json_object_get(s->labels, name));
    if (!text || !read_number(text, &label)) return refuse(error, "'%s' is not in the list of labels", name);
    add_video(s->videos, value[0].text, label, 0);
    return true;
}

/* Finds the file with the labels of Something-Something; false if there is none. */
static bool find_labels(char file[DATASET_PATH], const char *path) {
    path_join(file, DATASET_PATH, path, "something-something-v2-labels.json");
    if (!file_exists(file)) path_join(file, DATASET_PATH, path, "labels.json");
    return file_exists(file);
}

static json_t *read_labels(Videos *v, const char *path) {
    char file[DATASET_PATH];
    json_error_t trouble;
    const char *name;
    json_t *value;
    find_labels(file, path);
    FILE *open = open_list(file);
    json_t *labels = json_loadf(open, 0, &trouble);
    fclose(open);
    if (!labels) die("%s: %s", file, trouble.text);
    size_t count = json_is_object(labels) ? json_object_size(labels) : 0;
    if (!count || count > MOST_CLASSES) die("%s: expected an object of classes", file);
    for (size_t c = 0; c < count; c++) add_class(v, "");
    json_object_foreach(labels, name, value) {
        int label;
        if (!json_is_string(value) || !read_number(json_string_value(value), &label) || (size_t)label >= count ||
            *v->classes[label])
            die("%s: %s: expected each number below %zu once, as text", file, name, count);
        free(v->classes[label]);
        v->classes[label] = xstrdup(name);
    }
    return labels;
}

static void read_something(Videos *v, const char *path, const char *list) {
    static const JsonField fields[] = {{"id", JSON_TEXT, false}, {"template", JSON_TEXT, true}};
    Something s = {v, read_labels(v, path)};
    const JsonList records = {.fields = fields, .field_count = 2, .take = take_record};
    Error error;
    if (!json_lists_read(list, &records, 1, &s, &error)) die("%s: %s", list, error.text);
    json_decref(s.labels);
    v->mirrored = xcalloc(v->class_count, sizeof *v->mirrored, "classes");
    for (size_t c = 0; c < v->class_count; c++) v->mirrored[c] = -1; /* left is not right */
}

/* == One video ==================================================================================================== */

/* The places where a video may be, in the order in which they are tried; false after the last one. */
static bool place_of(const Videos *v, size_t index, int attempt, char path[PATH_ROOM]) {
    static const char *const endings[] = {".mp4", ".webm", ".mkv", ".avi"};
    const Video *video = &v->at[index];
    const char *folders[] = {"", "videos/", v->split, "20bn-something-something-v2/"};
    if (v->layout == LAYOUT_FOLDERS || v->layout == LAYOUT_LIST) {
        bool absolute = *video->name == '/' && v->layout == LAYOUT_LIST;
        snprintf(path, PATH_ROOM, "%s%s%s", absolute ? "" : v->root, absolute ? "" : "/", video->name);
        return !attempt;
    }
    int ending = attempt % 4, folder = attempt / 4 % 4, form = attempt / 16;
    if (form > (v->layout == LAYOUT_KINETICS ? 2 : 0)) return false;
    char class_name[256] = "";
    if (form) snprintf(class_name, sizeof class_name, "%.250s/", v->classes[video->label]);
    for (char *c = class_name; form == 2 && *c; c++)
        if (*c == ' ') *c = '_';
    snprintf(path, PATH_ROOM, "%s/%s%s%s%s%s", v->root, folders[folder], folder == 2 ? "/" : "", class_name, video->name,
             endings[ending]);
    return true;
}

static bool find_video(const Videos *v, size_t index, char path[PATH_ROOM]) {
    for (int attempt = 0; place_of(v, index, attempt, path); attempt++)
        if (file_exists(path)) return true;
    place_of(v, index, 0, path);
    return false;
}

/* A list may name videos that are not there; those that were found in folders were.  errno is find_video's. */
static bool refuse_missing(const Videos *v, Error *error) {
    bool listed = v->layout != LAYOUT_FOLDERS && (errno == ENOENT || errno == ENOTDIR);
    return listed && folder_exists(v->root) ? refuse(error, "no such file") : refuse_errno(error, "cannot open");
}

typedef struct {
    const ClipTaker *taker;
    const VideoReader *video;
    const int *index;
    int label;
} VideoJob;

static bool pass_frame(void *context, int i, const uint8_t *pixels, int height, int width, Error *error) {
    const VideoJob *frames = context;
    Sample frame = {.bytes = pixels, .size = (size_t)height * (size_t)width * 3, .height = height, .width = width,
                    .label = frames->label, .time = video_time(frames->video, frames->index[i]),
                    .frame = frames->index[i]};
    return frames->taker->take(frames->taker->context, i, &frame, error);
}

bool videos_read_clip(const uint8_t *bytes, size_t size, int label, const ClipChoice *choice, const ClipTaker *taker,
                      Error *error) {
    if (clip_file_is(bytes, size)) return clip_file_read(bytes, size, label, choice, taker, error);
    VideoReader *video = video_open(bytes, size, VIDEO_MAX_PIXELS, error);
    ClipIndex index = {.count = 0};
    if (!video) return false;
    bool ok = clip_index(&index, video_frames(video), video_fps(video), choice, error);
    VideoJob frames = {taker, video, index.at, label};
    ok = ok && video_read(video, index.at, index.count, pass_frame, &frames, error);
    clip_index_free(&index);
    video_close(video);
    return ok;
}

/* The pictures of a folder; a repeated frame is read again. */
static bool read_frames(const char *path, int frames, int label, const ClipChoice *choice, SampleBuffer *buffer,
                        const ClipTaker *taker, Error *error) {
    char file[PATH_ROOM + 256];
    struct dirent **pictures;
    ClipIndex index = {.count = 0};
    int count = scandir(path, &pictures, is_picture, versionsort);
    if (count < 0) return refuse_errno(error, "cannot open this folder");
    bool ok = count > 0 && count >= frames;
    if (!count) refuse(error, "no pictures in this folder");
    else if (!ok) refuse(error, "%d pictures in this folder, but the list says %d", count, frames);
    ok = ok && clip_index(&index, frames ? frames : count, 0, choice, error);
    for (int i = 0; ok && i < index.count; i++) {
        const char *name = pictures[index.at[i]]->d_name;
        Sample frame = {.label = label, .frame = index.at[i]};
        snprintf(file, sizeof file, "%s/%s", path, name);
        ok = file_read_again(file, IMAGE_MAX_BYTES, &buffer->bytes, &buffer->room, &frame.size, error);
        frame.bytes = buffer->bytes;
        ok = ok && taker->take(taker->context, i, &frame, error);
        bool unread = !ok && error->unread;
        if (!ok && !error->lacking) refuse(error, "%s: %s", name, error->text);
        error->unread = unread;
    }
    clip_index_free(&index);
    free_entries(pictures, count);
    return ok;
}

static bool read_place(const char *path, int frames, int label, const ClipChoice *choice, SampleBuffer *buffer,
                       const ClipTaker *taker, Error *error) {
    size_t size;
    if (folder_exists(path)) return read_frames(path, frames, label, choice, buffer, taker, error);
    return file_read_again(path, VIDEO_FILE_MOST, &buffer->bytes, &buffer->room, &size, error) &&
           videos_read_clip(buffer->bytes, size, label, choice, taker, error);
}

bool videos_read_path(const char *path, const ClipChoice *choice, SampleBuffer *buffer, const ClipTaker *taker,
                      Error *error) {
    return read_place(path, 0, 0, choice, buffer, taker, error);
}

static bool videos_read(const Dataset *dataset, size_t index, const ClipChoice *choice, SampleBuffer *buffer,
                        const ClipTaker *taker, int *label, Error *error) {
    const Videos *v = dataset->state;
    char path[PATH_ROOM];
    *label = v->at[index].label;
    if (!find_video(v, index, path)) return refuse_missing(v, error);
    return read_place(path, v->at[index].frames, *label, choice, buffer, taker, error);
}

/* The frames of a folder have no times. */
static bool collect_frame(void *context, int i, const Sample *frame, Error *error) {
    (void)i;
    return clip_file_add(context, 0, frame->bytes, frame->size, error);
}

/* A file, or a sequence of the pictures in a folder. */
static bool videos_read_whole(const Dataset *dataset, size_t index, SampleBuffer *buffer, Sample *sample, Error *error) {
    const Videos *v = dataset->state;
    char path[PATH_ROOM];
    *sample = (Sample){.label = v->at[index].label};
    if (!find_video(v, index, path)) return refuse_missing(v, error);
    if (!folder_exists(path)) {
        bool ok = file_read_again(path, VIDEO_FILE_MOST, &buffer->bytes, &buffer->room, &sample->size, error);
        sample->bytes = buffer->bytes;
        return ok;
    }
    ClipFileWriter writer = {.count = 0};
    ClipChoice all = {.frames = 0};
    ClipTaker taker = {collect_frame, &writer};
    uint8_t *bytes = NULL;
    if (read_frames(path, v->at[index].frames, sample->label, &all, buffer, &taker, error))
        bytes = clip_file_finish(&writer, &sample->size, error);
    clip_file_free(&writer);
    if (!bytes) return false;
    free(buffer->bytes);
    *buffer = (SampleBuffer){bytes, sample->size};
    sample->bytes = bytes;
    return true;
}

static void describe_video(const Dataset *dataset, size_t index, char *text, size_t size) {
    char path[PATH_ROOM];
    find_video(dataset->state, index, path);
    snprintf(text, size, "%s", path);
}

/* == A data set =================================================================================================== */

static void free_videos(Videos *v) {
    for (size_t i = 0; i < v->count; i++) free(v->at[i].name);
    for (size_t i = 0; i < v->class_count; i++) free(v->classes[i]);
    free(v->at);
    free(v->classes);
    free(v->mirrored);
    free(v);
}

static void videos_close(Dataset *dataset) { free_videos(dataset->state); }

static bool holds_pictures(Videos *v, const char *folder, const char *name) {
    struct dirent **pictures;
    (void)v, (void)name;
    int count = scandir(folder, &pictures, is_picture, NULL);
    if (count >= 0) free_entries(pictures, count);
    return count > 0;
}

/* Whether there is no doubt that a list is of videos: its first line is Kinetics' or a label after a path that is no
 * picture's, or Something-Something's labels are in the same folder. */
static bool lists_clips(const char *list, VideosLayout layout, const char *path) {
    char labels[DATASET_PATH];
    if (layout == LAYOUT_SOMETHING) return find_labels(labels, path);
    if (is_kinetics(list)) return true;
    char *line = NULL;
    size_t room = 0;
    int label;
    FILE *file = open_list(list);
    ssize_t length = getline(&line, &room, file);
    while (length > 0 && isspace((unsigned char)line[length - 1])) line[--length] = 0;
    char *field = length > 0 ? last_field(line) : NULL;
    if (field && strlen(line) > 1 && line[strlen(line) - 1] == '"') line[strlen(line) - 1] = 0; /* a quoted path */
    bool clips = field && read_number(field, &label) && !image_has_name(line);
    fclose(file);
    free(line);
    return clips;
}

static bool videos_find(char found[DATASET_PATH], const char *path) {
    static Videos peek;
    char list[DATASET_PATH], root[DATASET_PATH];
    peek.layout = LAYOUT_NONE;
    snprintf(found, DATASET_PATH, "%s", path);
    if (!folder_exists(path)) return false;
    bool pictures = each_class(path, holds_pictures, &peek);
    for (int train = 0; train < 2; train++) {
        path_join(root, sizeof root, path, split_folder(path, train));
        pictures = pictures || each_class(root, holds_pictures, &peek);
        each_class(root, holds_videos, &peek);
    }
    for (int train = 0; train < 2; train++) {
        VideosLayout layout = find_list(list, path, train);
        if (layout && (!pictures || lists_clips(list, layout, path))) return true;
    }
    return peek.layout == LAYOUT_FOLDERS;
}

/* Reads names, labels and classes of a split. */
static Videos *read_split(const char *path, bool train) {
    char list[DATASET_PATH];
    Videos *v = xcalloc(1, sizeof *v, "a data set of videos");
    v->layout = find_list(list, path, train);
    snprintf(v->root, sizeof v->root, "%s", path);
    snprintf(v->split, sizeof v->split, "%s", train ? "train" : split_folder(path, false));
    if (v->layout == LAYOUT_SOMETHING) {
        read_something(v, path, list);
    } else if (v->layout == LAYOUT_LIST && is_kinetics(list)) {
        v->layout = LAYOUT_KINETICS;
        read_kinetics(v, path, list);
    } else if (v->layout == LAYOUT_LIST) {
        read_list(v, path, list);
    } else {
        v->layout = LAYOUT_FOLDERS;
        path_join(v->root, sizeof v->root, path, split_folder(path, train));
        read_folders(v, path);
    }
    return v;
}

/* Keeps `limit` videos at even intervals. */
static void keep(Videos *v, size_t limit) {
    size_t count = v->count;
    if (!limit || limit >= count) return;
    for (size_t i = 0, kept = 0; i < count; i++) {
        if (kept < limit && i == kept * count / limit) v->at[kept++] = v->at[i];
        else free(v->at[i].name);
    }
    v->count = limit;
}

static void videos_open(Dataset *dataset, const char *path, bool train, size_t limit) {
    Videos *v = read_split(path, train);
    if (!v->count)
        die("%s: no %s videos: expected %s/<class>/<video>, or a list %s.txt, %s.csv or %s.json", path,
            train ? "training" : "test", v->split, v->split, v->split, v->split);
    keep(v, limit);
    dataset_of_photographs(dataset, path, "videos");
    dataset->clips = true;
    dataset->count = v->count;
    dataset->classes = (int)v->class_count;
    dataset->class_names = (const char *const *)v->classes;
    dataset->mirrored = v->mirrored;
    dataset->read = videos_read_whole;
    dataset->read_clip = videos_read;
    dataset->describe = describe_video;
    dataset->close = videos_close;
    dataset->state = v;
}

static void videos_describe(Dataset *dataset, const char *path) {
    char list[DATASET_PATH], root[DATASET_PATH];
    path_join(root, sizeof root, path, "train");
    bool train = find_list(list, path, true) || folder_exists(root);
    Videos *v = read_split(path, train);
    dataset_of_photographs(dataset, path, "videos");
    dataset->clips = true;
    dataset->classes = (int)v->class_count;
    free_videos(v);
}

const DatasetKind videos_kind = {.find = videos_find, .open = videos_open, .describe = videos_describe};
