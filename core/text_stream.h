/* A stream that writes into memory.
 *
 *     TextStream text;
 *     FILE *out = text_open(&text);
 *     fprintf(out, "%d of %d", i, n);
 *     char *words = text_close(&text, "the words of a message"); */
#ifndef VIT_CORE_TEXT_STREAM_H
#define VIT_CORE_TEXT_STREAM_H

#include <stddef.h>
#include <stdio.h>

typedef struct {
    FILE *out;
    char *text;
    size_t size;
} TextStream;

/* Both end the program if memory runs out; `what` says for what.  text_close returns the text, which the caller
 * frees. */
FILE *text_open(TextStream *stream);
char *text_close(TextStream *stream, const char *what);

#endif
