/* libFuzzer target: the CSV file of labels.  An accepted file gives sorted classes, and a label and a line for each
 * name.  The buffer is exactly as long as the contract says, so that a byte too far is caught. */
#include <stdlib.h>
#include <string.h>

#include "data/sets/labelled.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    LabelTable table;
    Error error = {.text = ""};
    char *text = malloc(size + 1);
    if (size) memcpy(text, data, size);
    if (label_table_parse(&table, text, size, &error)) {
        for (int c = 1; c < table.class_count; c++)
            if (strcmp(table.classes[c - 1], table.classes[c]) >= 0) abort();
        for (size_t i = 0; i < table.count; i++)
            if (table.label[i] < 0 || table.label[i] >= table.class_count || table.line[i] < 1 || !*table.file[i] ||
                table.split[i] >= LABELLED_SPLITS)
                abort();
    } else if (!*error.text || !memchr(error.text, 0, sizeof error.text)) {
        abort();
    }
    label_table_free(&table);
    return 0;
}
