/* Results per class: the number of correctly classified images of every class, and the confusion matrix. */
#ifndef VIT_CORE_RESULTS_CONFUSION_H
#define VIT_CORE_RESULTS_CONFUSION_H

#include <stdbool.h>

#include "core/error.h"
#include "core/results/outcome.h"

/* Counts of images; doubles, so that ranks can sum them. */
typedef struct {
    int classes;
    double *images, *top1, *top5; /* [classes]: per true class: images, and those with it in the top 1 and top 5 */
    double *predicted;            /* [classes]: images of any class for which this class was predicted */
    double *matrix;               /* [classes,classes]: rows are true classes, columns predicted ones; may be NULL */
} Confusion;

/* Without `matrix`, memory grows with the number of classes instead of its square. */
void confusion_open(Confusion *confusion, int classes, bool matrix);
void confusion_clear(Confusion *confusion); /* all counts are 0 again */

void confusion_add(Confusion *confusion, int label, const Outcome *found);

/* Sums the counts over all ranks; every rank gets the sums. */
void confusion_sum(Confusion *confusion);

/* Dies if the path ends in .png: the file will be CSV. */
void confusion_check_path(const char *path);

/* Writes each file whose path is given and reports it on stdout.  On failure returns false with the file and the reason
 * in `error`.
 * matrix:  CSV with a row for each true class and a column for each predicted one, both labelled with their names
 *          [classes], or with their indices if a name is "" or names is NULL.
 * classes: CSV with class,name,images,top1,top5,precision, the last three in percent, and empty where the divisor
 *          is zero. */
bool confusion_report(const Confusion *confusion, const char *matrix, const char *classes, const char *const *names,
                      Error *error);

#endif
