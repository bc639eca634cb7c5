/* Paths, folders and whole files. */
#ifndef VIT_CORE_FILES_H
#define VIT_CORE_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "core/error.h"

/* folder + "/" + name in a buffer of `size`; dies when it does not fit. */
void path_join(char *path, size_t size, const char *folder, const char *name);

bool file_exists(const char *path);

/* Makes the folder and its parents; dies with the one that could not be made, and why. */
void make_folders(const char *path);

/* Reads all of a regular file of at most `most` bytes into *bytes, which the caller frees.  False: `error` says why,
 * here and below without the file's name. */
bool file_read(const char *path, size_t most, uint8_t **bytes, size_t *size, Error *error);

/* The same into a buffer that is used again: *bytes has *room bytes (NULL and 0 at first) and grows as it has to. */
bool file_read_again(const char *path, size_t most, uint8_t **bytes, size_t *room, size_t *size, Error *error);

/* Replaces the file as a whole by what fill(file, content) writes (false: an error, which errno tells): under a
 * temporary name in the same folder, flushed to the disk, renamed, and the folder flushed.  False: `error` says why,
 * the temporary file is gone, and what was there before is untouched unless only flushing the folder failed.
 * A symbolic link stays, and the file that it leads to is replaced.  A device or a pipe is written to. */
bool file_replace(const char *path, bool (*fill)(FILE *file, const void *content), const void *content, Error *error);

/* Removes what processes that were killed while they replaced this file have left beside it. */
void file_remove_stale(const char *path);

/* file_replace by these bytes. */
bool file_write(const char *path, const void *bytes, size_t size, Error *error);

/* file_write of a text; dies with the path and the reason. */
void write_text(const char *path, const char *text);

/* The bytes of a regular file in memory, read-only; NULL for an empty one.  A file that is cut short while it is
 * mapped, or whose disk fails, ends the program with a line that names it.  One thread at a time. */
bool file_map(const char *path, const void **bytes, size_t *size, Error *error);
void file_unmap(const void *bytes, size_t size);

/* Standard input, output and error that were closed (>&-) become /dev/null: the next file opened would take their
 * numbers, and what is printed would land in it.  The first call of main. */
void standard_files_open(void);

/* Flushes standard output; dies when not all of it could be written. */
void standard_output_check(void);

#endif
