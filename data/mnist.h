/* MNIST (LeCun et al. 1998) and what has its format: idx files, big-endian.
 *   images  uint32 0x803, count, rows, columns, then bytes       labels  uint32 0x801, count, then bytes
 * Grey is repeated in three channels. */
#ifndef VIT_DATA_MNIST_H
#define VIT_DATA_MNIST_H

#include "core/error.h"
#include "data/dataset.h"

enum { MNIST_SIDE = 28, MNIST_CLASSES = 10, MNIST_IMAGES_HEADER = 16, MNIST_LABELS_HEADER = 8 };

/* How many images or labels the bytes of a file hold; 0: `error` says what is wrong.  Labels are all in range then. */
size_t mnist_images(const uint8_t *bytes, size_t size, Error *error);
size_t mnist_labels(const uint8_t *bytes, size_t size, Error *error);

extern const DatasetKind mnist_kind;

#endif
