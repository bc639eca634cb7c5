/* CIFAR-10 and CIFAR-100 (Krizhevsky 2009) in the official binary layout: records of one label byte (CIFAR-100: two,
 * coarse then fine), then 32 x 32 bytes of red, of green and of blue. */
#ifndef VIT_DATA_SETS_CIFAR_H
#define VIT_DATA_SETS_CIFAR_H

#include "core/error.h"
#include "data/sets/dataset.h"

enum { CIFAR_SIDE = 32, CIFAR_PIXELS = 32 * 32 * 3 };

/* The number of records in a file of `size` bytes, for the data set with `classes` (10 or 100) classes.  It must equal
 * `expected`, or with `expected` 0 be at least one.  On failure returns 0 and sets `error`. */
size_t cifar_count(size_t size, int classes, size_t expected, Error *error);

/* Checks every label and unpacks the records into pixels [count,32,32,3] and labels [count].  `bytes` holds at least
 * `count` records, as counted by cifar_count.  On failure returns false; `error` names the record, counted from 0. */
bool cifar_parse(uint8_t *pixels, uint8_t *labels, const uint8_t *bytes, size_t count, int classes, Error *error);

/* The path given to them is the folder with the .bin files or its parent. */
extern const DatasetKind cifar10_kind, cifar100_kind;

#endif
