/* Which classes a model tells apart: for every class how many of its images were named rightly, and which classes were
 * taken for which. */
#ifndef VIT_CORE_CONFUSION_H
#define VIT_CORE_CONFUSION_H

#include <stdbool.h>

#include "core/error.h"

/* Counts of images; doubles, so that ranks can sum them. */
typedef struct {
    int classes;
    double *images, *top1, *top5; /* [classes]: of the true class, and those of them with it first or among five */
    double *predicted;            /* [classes]: images, of any class, that were taken for this one */
    double *matrix;               /* [classes,classes]: row, the true class; column, what it was taken for; or NULL */
} Confusion;

/* Without `matrix` the memory is in proportion to the classes only. */
void confusion_open(Confusion *confusion, int classes, bool matrix);
void confusion_close(Confusion *confusion);

/* One image: `place` classes had a higher score than its label; `predicted` has the highest, -1: none has any. */
void confusion_add(Confusion *confusion, int label, int place, int predicted);

/* Of all ranks, on each of them. */
void confusion_sum(Confusion *confusion);

/* The matrix as CSV: a row for each true class, a column for each predicted one, both headed by their names [classes],
 * or by their numbers where names is NULL.  False: `error` says why not. */
bool confusion_write(const char *path, const Confusion *confusion, const char *const *names, Error *error);

/* The classes as CSV: class,name,images,top1,top5,precision, all in percent; empty where there was nothing to divide
 * by. */
bool confusion_write_classes(const char *path, const Confusion *confusion, const char *const *names, Error *error);

/* The class with images of which the fewest were named rightly; -1: none has any. */
int confusion_worst(const Confusion *confusion);

#endif
