/* Class names, in the order of the class indices.  Files hold them one per line (CIFAR, checkpoints) or each terminated
 * by a zero byte (packed data sets). */
#ifndef VIT_CORE_RESULTS_CLASS_NAMES_H
#define VIT_CORE_RESULTS_CLASS_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct {
    const char **at; /* [count]; "" where a class has no name */
    int count;
    int named;  /* how many of the names are not "" */
    char *text; /* the memory that `at` points into */
} ClassNames;

/* Splits text [size] at each `ending`, '\n' or 0; the last name may lack it.  With '\n', a '\r' at the end of a line
 * and empty lines after the last name are dropped.  Copies the text. */
void class_names_parse(ClassNames *names, const char *text, size_t size, char ending);

/* Are there exactly `classes` names, none of them ""? */
bool class_names_complete(const ClassNames *names, int classes);

/* Gives the classes past the last name the name "".  False, and there are no names, if there are more than classes. */
bool class_names_extend(ClassNames *names, int classes);

/* The names, one per line, with control characters replaced by '?'; "" if names is NULL.  The caller frees it. */
char *class_names_text(const char *const *names, int count);

/* Sets names to those that class_names_text writes of `others` [count], without "" at the end. */
void class_names_printed(ClassNames *names, const char *const *others, int count);

/* Writes to place [count] the index in `names`, which were read from the file `path`, of each of the class names
 * `others` [count] of the data set `set`.  True if all indices are the same in both.  Dies if a name is missing. */
bool class_names_match(const ClassNames *names, const char *path, int *place, const char *const *others, int count,
                       const char *set);

void class_names_free(ClassNames *names);

enum { CLASS_BEST = 5 };

typedef struct {
    int class;
    double probability;
} ClassScore;

/* The CLASS_BEST most probable classes (or all, if there are fewer), the most probable first; returns how many.
 * Replaces the logits [classes] by their softmax. */
int class_names_best(ClassScore best[CLASS_BEST], float *logits, int classes);

/* " cat 61.2 %, dog 30.1 %, ..." and a newline; class indices in place of names that are "", or of all if names is
 * NULL. */
void class_names_print_best(const char *const *names, const ClassScore *best, int count, FILE *out);

#endif
