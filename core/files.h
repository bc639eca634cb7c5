/* Paths, folders and whole files. */
#ifndef VIT_CORE_FILES_H
#define VIT_CORE_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>

#include "core/error.h"

/* Writes folder + "/" + name into a buffer of `size`; dies if it does not fit. */
void path_join(char *path, size_t size, const char *folder, const char *name);

/* The same, or the name alone if it is an absolute path. */
void path_find(char *path, size_t size, const char *folder, const char *name);

bool file_exists(const char *path);
bool file_is_regular(const char *path);
bool folder_exists(const char *path);

/* Are these names of the same file or folder?  If one of them does not exist, only if they are the same text. */
bool file_is_same(const char *a, const char *b);

/* Makes the folder and its parents; dies with the one that could not be made, and why. */
void make_folders(const char *path);

/* Opens a regular file for reading; a named pipe is refused without waiting for its writer.  On failure returns -1 with
 * the reason in `error`. */
int file_open(const char *path, Error *error);

/* Reads all of a regular file of at most `most` bytes into *bytes, which the caller frees.  On failure returns false
 * with the reason in `error`, here and below without the file's name. */
bool file_read(const char *path, size_t most, uint8_t **bytes, size_t *size, Error *error);

/* Reads the file into a buffer that is used again: *bytes has *room bytes (initially NULL and 0) and is enlarged as
 * needed. */
bool file_read_again(const char *path, size_t most, uint8_t **bytes, size_t *room, size_t *size, Error *error);

/* Reads the first `most` bytes of a regular file, or all of them if it has fewer; *size says how many. */
bool file_read_beginning(const char *path, size_t most, uint8_t *bytes, size_t *size, Error *error);

/* Atomically replaces the file by what fill(file, content) writes (false: error, with errno set): writes a temporary
 * file in the same folder, syncs it to disk, renames it and syncs the folder.  On failure returns false with the reason
 * in `error`; the temporary file is removed, and the old file is untouched unless only the sync of the folder failed.
 * If the path is a symbolic link, its target is replaced.  A device or a pipe is written to directly. */
bool file_replace(const char *path, bool (*fill)(FILE *file, const void *content), const void *content, Error *error);

/* Checks before long work whether file_replace could succeed: writes one byte to a temporary file and removes it; a
 * device is opened and written nothing, a pipe is not opened.  On failure returns false with the reason in `error`. */
bool file_try(const char *path, Error *error);

/* Makes the path an output of this call; `setting` names it in messages and must stay valid.  Returns false with the
 * reason in `error` if it is a regular file that is also an input - one that the functions above or below have opened,
 * or file_note has noted -, another output, or where standard output or error goes.  From here on a function of this
 * header that is to open this file to read it ends the program, before the file is lost.  Files are compared by device
 * and inode.  Not thread-safe. */
bool file_claim(const char *path, const char *setting, Error *error);

/* Notes an input that is opened by other means, if it is there. */
void file_note(const char *path);

/* Ends the program if `info` is an output of this call, which is about to be read as the input `path`. */
void file_refuse_output(const char *path, const struct stat *info);

/* file_replace with these bytes as the content. */
bool file_write(const char *path, const void *bytes, size_t size, Error *error);

/* file_write of a string; on failure dies with the path and the reason. */
void write_text(const char *path, const char *text);

/* Maps a regular file into memory, read-only; *bytes is NULL for an empty file.  If the file is truncated while it is
 * mapped, or its disk fails, the program ends with a line that names it.  Not thread-safe. */
bool file_map(const char *path, const void **bytes, size_t *size, Error *error);
void file_unmap(const void *bytes, size_t size);

/* Opens /dev/null for each of standard input, output and error that is closed (>&-).  Otherwise the next file opened
 * would get that descriptor, and printed text would be written into it.  Must be the first call in main. */
void standard_files_open(void);

/* Flushes standard output; dies if not everything could be written. */
void standard_output_check(void);

#endif
