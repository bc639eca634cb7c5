/* Small files of a run directory. */
#ifndef VIT_CORE_FILES_H
#define VIT_CORE_FILES_H

#include <stdbool.h>
#include <stddef.h>

/* folder + "/" + name in a buffer of `size`; dies when it does not fit. */
void path_join(char *path, size_t size, const char *folder, const char *name);

bool file_exists(const char *path);

/* Makes the folder and its parents; dies with the one that could not be made, and why. */
void make_folders(const char *path);

/* Replaces `path` by `text`: temporary file, flush, rename.  Dies with the operation, the path and the reason. */
void write_text(const char *path, const char *text);

#endif
