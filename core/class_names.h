/* Names of classes in the order of their numbers, as files hold them: one a line in CIFAR's and in checkpoints, each
 * ended by a 0 in packed data sets. */
#ifndef VIT_CORE_CLASS_NAMES_H
#define VIT_CORE_CLASS_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct {
    const char **at; /* [count]; "" where a class has no name */
    int count;
    int named;  /* of them are not "" */
    char *text; /* where the names lie */
} ClassNames;

/* Takes text [size] apart at each `ending`, '\n' or 0; the last name may lack it.  Of lines, '\r' before the end and
 * empty ones behind the last name do not count.  Copies the text. */
void class_names_parse(ClassNames *names, const char *text, size_t size, char ending);

/* There are `classes` of them and none is "". */
bool class_names_complete(const ClassNames *names, int classes);

/* One a line, control characters as '?'; names NULL: "".  The caller frees. */
char *class_names_text(const char *const *names, int count);

/* place [count] (=): where each name of a data set `set` stands among the names in the file `path`.  True: in the same
 * places.  Dies where one is missing. */
bool class_names_match(const ClassNames *names, const char *path, int *place, const char *const *others, int count,
                       const char *set);

void class_names_free(ClassNames *names);

enum { CLASS_BEST = 5 };

typedef struct {
    int class;
    double probability;
} ClassScore;

/* The five likeliest of `classes`, or all of fewer, the likeliest first; returns how many.  Softmax of the logits
 * [classes] in place. */
int class_names_best(ClassScore best[CLASS_BEST], float *logits, int classes);

/* " cat 61.2 %, dog 30.1 %, ..." and the line's end; by number where names is NULL. */
void class_names_print_best(const char *const *names, const ClassScore *best, int count, FILE *out);

#endif
