/* Safetensors: named tensors in one file, the format of checkpoints, of pretrained weights and of --parity.
 *
 *     8 bytes   length n of the header, little-endian
 *     n bytes   JSON: {"__metadata__": {"key": "text"},
 *                      "name": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}, ...}, then spaces
 *     rest      the tensors, row-major and little-endian; data_offsets count from here
 *
 * All functions that can fail return false and write one line - file, tensor, the values at fault - into
 * `error`; none of them ends the program. */
#ifndef VIT_CORE_SAFETENSORS_H
#define VIT_CORE_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

enum { SAFETENSORS_MAX_DIMS = 8, SAFETENSORS_MAX_HEADER = 100 * 1000 * 1000 };

typedef enum {
    SAFE_BOOL,
    SAFE_U8,
    SAFE_I8,
    SAFE_F8_E5M2,
    SAFE_F8_E4M3,
    SAFE_I16,
    SAFE_U16,
    SAFE_F16,
    SAFE_BF16,
    SAFE_I32,
    SAFE_U32,
    SAFE_F32,
    SAFE_F64,
    SAFE_I64,
    SAFE_U64,
    SAFE_DTYPE_COUNT
} SafeDtype;

typedef struct {
    const char *name;
    const char *file; /* for messages */
    SafeDtype dtype;
    int ndim; /* 0 is a scalar */
    size_t shape[SAFETENSORS_MAX_DIMS];
    size_t size;      /* elements: the product of the shape */
    size_t bytes;
    const void *data; /* read-only and not necessarily aligned: read it with safetensors_to_... or memcpy */
} SafeTensor;

typedef struct {
    SafeTensor *tensors; /* [count], in the order of their data */
    int count;
    const SafeTensor **by_name; /* [count], the tensors sorted by name */
    char *file;
    void *json; /* owns the names and the metadata */
    const void *map; /* NULL when parsed from memory */
    size_t map_size;
} SafeTensors;

/* Maps the file read-only and checks all of its header: known dtypes, sizes that agree with shapes, no duplicate
 * names, all data used exactly once.  If the file is truncated while it is open, the program ends (file_map);
 * replacing it by rename is harmless. */
bool safetensors_open(SafeTensors *st, const char *path, Error *error);

/* Opens a file that is in memory, which must stay valid while `st` is used; `file` is its name in messages. */
bool safetensors_parse(SafeTensors *st, const void *bytes, size_t size, const char *file, Error *error);

/* From now on safetensors_open reads these bytes if it is given this path, and does not open a file.  libvit needs this
 * because truncating a mapped file would end the process.  path NULL: every path is a file again. */
void safetensors_hold(const char *path, const void *bytes, size_t size);

/* Frees everything; the tensors' data, names and metadata are invalid afterwards.  A zeroed struct is allowed. */
void safetensors_close(SafeTensors *st);

/* The tensor or metadata value of that name, or NULL if there is none. */
const SafeTensor *safetensors_find(const SafeTensors *st, const char *name);
const char *safetensors_metadata(const SafeTensors *st, const char *key);

/* Converts the tensor to out [tensor->size].  Accepts F32, F16, BF16 (exact) and F64 (rounded to nearest). */
bool safetensors_to_float(const SafeTensor *tensor, float *out, Error *error);

/* Converts the tensor to out [tensor->size].  Accepts I64, I32, I16, I8, U8. */
bool safetensors_to_int64(const SafeTensor *tensor, int64_t *out, Error *error);

typedef struct {
    const char *name;
    SafeDtype dtype;
    int ndim;
    size_t shape[SAFETENSORS_MAX_DIMS];
    const void *data;
} SafeTensorEntry;

typedef struct {
    const char *key, *value;
} SafeMetadata;

/* Atomically replaces `path` (file_replace in core/files.h).  Wider dtypes come first, so that all data is aligned;
 * otherwise the given order is kept.  Names and texts must be UTF-8. */
bool safetensors_write(const char *path, const SafeTensorEntry *entries, int count, const SafeMetadata *metadata,
                       int metadata_count, Error *error);

#endif
