/* CIFAR-10 and CIFAR-100 (Krizhevsky 2009) in the official binary layout: records of one label byte (CIFAR-100: two,
 * coarse then fine), then 32 x 32 red, as many green, as many blue bytes. */
#ifndef VIT_DATA_CIFAR_H
#define VIT_DATA_CIFAR_H

#include "core/error.h"
#include "data/dataset.h"

enum { CIFAR_SIDE = 32, CIFAR_PIXELS = 32 * 32 * 3 };

/* How many records `size` bytes of a file of the data set with `classes` classes (10 or 100) hold; `expected` 0: any
 * number but none.  0: `error` says what is wrong. */
size_t cifar_count(size_t size, int classes, size_t expected, Error *error);

/* Checks every label and takes the records apart: pixels [count,32,32,3], labels [count].  `bytes` holds at least the
 * `count` records that cifar_count found.  False: `error` names the record, counted from 0. */
bool cifar_parse(uint8_t *pixels, uint8_t *labels, const uint8_t *bytes, size_t count, int classes, Error *error);

/* Their path is the folder of the .bin files or its parent. */
extern const DatasetKind cifar10_kind, cifar100_kind;

#endif
