/* Images in a folder whose labels a CSV file has: a line for each image, `file,label` or `file,label,split`, with the
 * file's path below the folder and train, val or test.  A field may be in double quotes, in which a double one is a
 * single one.  A first line with a field file, filename, image or path, in any case, is a header: it has label or class
 * and, if you like, split besides, in any order.  Classes are numbered in the order of their labels (strcmp), images in
 * the order of the lines. */
#ifndef VIT_DATA_SETS_LABELLED_H
#define VIT_DATA_SETS_LABELLED_H

#include "data/sets/datasets.h"

typedef enum { LABELLED_TRAIN, LABELLED_VALIDATION, LABELLED_TEST, LABELLED_SPLITS } LabelledSplit;

typedef struct {
    char *text;        /* the file, in which fields end with a 0 */
    const char **file; /* [count] */
    int *label, *line; /* [count] */
    uint8_t *split;    /* [count] of LabelledSplit */
    size_t count;
    const char **classes; /* [class_count], sorted */
    int class_count;
} LabelTable;

/* Parses `size` bytes, which it takes over with a byte of room behind them.  False: `error` names the line. */
bool label_table_parse(LabelTable *table, char *text, size_t size, Error *error);
void label_table_free(LabelTable *table);

/* Opens the images of a split, or with LABELLED_VALIDATION those that test where none validate; describes the data set;
 * says which splits there are.  On error ends the process with a line that names the file, and the line in it. */
void labelled_open(Dataset *dataset, const char *folder, const char *csv, LabelledSplit split, size_t limit);
void labelled_describe(Dataset *dataset, const char *folder, const char *csv);
DatasetSplits labelled_splits(const char *csv);

#endif
