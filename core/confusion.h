/* Which classes a model tells apart: for every class how many of its images were named rightly, and which classes were
 * taken for which. */
#ifndef VIT_CORE_CONFUSION_H
#define VIT_CORE_CONFUSION_H

#include <stdbool.h>

#include "core/outcome.h"

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

void confusion_add(Confusion *confusion, int label, const Outcome *found);

/* Of all ranks, on each of them. */
void confusion_sum(Confusion *confusion);

/* Dies where the user seems to expect a picture. */
void confusion_check_path(const char *path);

/* Writes what has a path and says on stdout what was written.  Dies with the file and the reason.
 * matrix:  CSV with a row for each true class and a column for each predicted one, both headed by their names
 *          [classes], or by their numbers where names is NULL.
 * classes: CSV with class,name,images,top1,top5,precision, the last three in percent, and empty where there was nothing
 *          to divide by. */
void confusion_report(const Confusion *confusion, const char *matrix, const char *classes, const char *const *names);

#endif
