/* Images in a folder, with their labels in a CSV file.  It has a line for each image, `file,label` or
 * `file,label,split`: the file's path below the folder, its label, and train, val or test.  ./ and second slashes in a
 * path are left out.  A field may be in double quotes, within which two double quotes mean one.  A first line with a
 * field file, filename, image or path, in any case, is a header: it also has label or class, and it may have split, in
 * any order.  Classes are numbered in the order of their labels (strcmp), images in the order of the lines. */
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

/* Parses `size` bytes and takes ownership of them; one more byte must be allocated after them.  False: `error` names
 * the line. */
bool label_table_parse(LabelTable *table, char *text, size_t size, Error *error);
void label_table_free(LabelTable *table);

/* Three functions: open the images of a split (with LABELLED_VALIDATION the test images, if there are none for
 * validation); describe the data set; report which splits there are.  On error ends the process with a line that names
 * the file, and the line in it. */
void labelled_open(Dataset *dataset, const char *folder, const char *csv, LabelledSplit split, size_t limit);
void labelled_describe(Dataset *dataset, const char *folder, const char *csv);
DatasetSplits labelled_splits(const char *csv);

#endif
