#include "data/loading/pictures.h"

#include <errno.h>
#include <fts.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/die.h"
#include "core/files.h"
#include "data/images/image.h"
#include "data/images/picture.h"
#include "data/video/video.h"

static void add(Pictures *pictures, const char *name, bool searched) {
    pictures->at = xgrow(pictures->at, pictures->count + 1, &pictures->room, sizeof *pictures->at, "pictures");
    pictures->at[pictures->count++] = (Picture){xstrdup(name), searched};
}

static int by_name(const FTSENT **a, const FTSENT **b) { return strcmp((*a)->fts_name, (*b)->fts_name); }

static bool is_hidden(const FTSENT *entry) { return entry->fts_level > FTS_ROOTLEVEL && entry->fts_name[0] == '.'; }

/* A folder's fts_number says which kinds of file have been seen in it. */
enum { SEEN_PICTURE = 1, SEEN_VIDEO = 2 };

static void add_file(Pictures *pictures, FTSENT *entry, bool clips) {
    bool picture = image_has_name(entry->fts_name), video = video_has_name(entry->fts_name);
    if (picture || video) file_refuse_output(entry->fts_path, entry->fts_statp);
    if (clips ? video : picture) add(pictures, entry->fts_path, true);
    entry->fts_parent->fts_number |= picture ? SEEN_PICTURE : video ? SEEN_VIDEO : 0;
}

/* Links are followed, except a link to a folder that contains it. */
static void add_folder(Pictures *pictures, const char *folder, bool clips) {
    size_t before = pictures->count;
    char *root = xstrdup(folder);
    size_t length = strlen(root);
    while (length > 1 && root[length - 1] == '/') root[--length] = 0;
    FTS *tree = fts_open((char *const[]){root, NULL}, FTS_LOGICAL | FTS_NOCHDIR, by_name);
    if (!tree) die("%s: cannot open this folder: %s", folder, strerror(errno));
    for (FTSENT *entry; (errno = 0, entry = fts_read(tree));) {
        if (entry->fts_info == FTS_D && is_hidden(entry)) fts_set(tree, entry, FTS_SKIP);
        bool closed = entry->fts_info == FTS_DNR && entry->fts_level > FTS_ROOTLEVEL;
        if (closed)
            warn("%s: cannot read this folder: %s; left out", entry->fts_path, strerror(entry->fts_errno));
        else if (entry->fts_info == FTS_DNR || entry->fts_info == FTS_ERR)
            die("%s: cannot read this folder: %s", entry->fts_path, strerror(entry->fts_errno));
        bool file = entry->fts_info == FTS_F || entry->fts_info == FTS_DEFAULT || entry->fts_info == FTS_NS ||
                    entry->fts_info == FTS_SLNONE; /* an unreadable file is reported when it is opened */
        if (file && !is_hidden(entry)) add_file(pictures, entry, clips);
        bool frames = entry->fts_info == FTS_DP && entry->fts_number == SEEN_PICTURE;
        if (clips && frames) add(pictures, entry->fts_path, true);
    }
    if (errno) die("%s: cannot read this folder: %s", folder, strerror(errno));
    fts_close(tree);
    free(root);
    if (pictures->count == before && clips)
        die("%s: no clips in this folder: no file's name ends as a video's, such as .mp4, and no folder holds pictures",
            folder);
    if (pictures->count == before)
        die("%s: no pictures in this folder: no file's name ends in .png, .jpg, .jpeg or .bmp", folder);
}

void pictures_find(Pictures *pictures, const ConfigList *given, bool clips) {
    *pictures = (Pictures){.count = 0};
    for (int i = 0; i < given->count; i++) {
        struct stat info;
        bool there = stat(given->items[i], &info) == 0;
        if (there && S_ISDIR(info.st_mode)) {
            add_folder(pictures, given->items[i], clips);
            continue;
        }
        if (there) file_refuse_output(given->items[i], &info);
        add(pictures, given->items[i], false);
    }
}

void pictures_free(Pictures *pictures) {
    for (size_t i = 0; i < pictures->count; i++) free(pictures->at[i].name);
    free(pictures->at);
    *pictures = (Pictures){.count = 0};
}

void picture_refuse(const Picture *picture, const Error *error) {
    if (!picture->searched || error->lacking) die("%s: %s", picture->name, error->text);
    warn("%s: %s; left out", picture->name, error->text);
}

bool picture_pixels(uint8_t *pixels, const char *name, const Transform *transform, bool squeezed, Error *error) {
    static TransformScratch scratch;
    if (video_has_name(name)) return refuse(error, "a video, but this model takes images");
    return picture_of_file(pixels, name, transform, squeezed, &scratch, error);
}
