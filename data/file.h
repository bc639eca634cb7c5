/* Whole files, in and out. */
#ifndef VIT_DATA_FILE_H
#define VIT_DATA_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A line for the user from a function that does not end the run: what is wrong, without the file's name. */
enum { FILE_ERROR = 256 };

/* Reads all of a regular file of at most `most` bytes into *bytes, which the caller frees.  False: `error` says why. */
bool file_read(const char *path, size_t most, uint8_t **bytes, size_t *size, char error[FILE_ERROR]);

/* Replaces the file as a whole: a temporary name in the same folder, flushed to the disk, renamed.  False: `error` says
 * why, and what was there before is untouched. */
bool file_write(const char *path, const void *bytes, size_t size, char error[FILE_ERROR]);

#endif
