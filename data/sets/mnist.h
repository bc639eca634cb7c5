/* MNIST (LeCun et al. 1998) and other data sets in its format: idx files, big-endian.
 *   images  uint32 0x803, count, rows, columns, then bytes       labels  uint32 0x801, count, then bytes
 * The grey value is repeated in three channels. */
#ifndef VIT_DATA_SETS_MNIST_H
#define VIT_DATA_SETS_MNIST_H

#include "core/error.h"
#include "data/sets/dataset.h"

enum { MNIST_SIDE = 28, MNIST_CLASSES = 10, MNIST_IMAGES_HEADER = 16, MNIST_LABELS_HEADER = 8 };

/* The number of images or labels in a file; on failure 0, with `error` set.  mnist_labels also checks that all labels
 * are in range. */
size_t mnist_images(const uint8_t *bytes, size_t size, Error *error);
size_t mnist_labels(const uint8_t *bytes, size_t size, Error *error);

extern const DatasetKind mnist_kind;

#endif
