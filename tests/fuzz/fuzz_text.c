/* libFuzzer target: bytes printed as text for a terminal.  The output is valid UTF-8 without control characters other
 * than newlines and tabs, is no longer than the input, and does not change when it is printed again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"

static char *print(const void *bytes, size_t size, size_t *length) {
    char *text = NULL;
    FILE *out = open_memstream(&text, length);
    if (!out) abort();
    print_bytes_to(out, bytes, size);
    fclose(out);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t length, again_length;
    uint8_t *exact = malloc(size ? size : 1);
    memcpy(exact, data, size);
    char *text = print(exact, size, &length);
    if (length > size || strlen(text) != length || !text_is_utf8(text)) abort();
    for (size_t i = 0; i < length; i++)
        if ((text[i] >= 0 && text[i] < 0x20 && text[i] != '\n' && text[i] != '\t') || text[i] == 0x7f) abort();
    char *again = print(text, length, &again_length);
    if (again_length != length || memcmp(again, text, length)) abort();
    free(again);
    free(text);
    free(exact);
    return 0;
}
