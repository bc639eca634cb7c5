#include "core/text_stream.h"

#include <stdlib.h>
#include <string.h>

#include "core/die.h"

FILE *text_open(TextStream *stream) {
    *stream = (TextStream){0};
    stream->out = open_memstream(&stream->text, &stream->size);
    if (!stream->out) die("out of memory for a text");
    return stream->out;
}

char *text_close(TextStream *stream, const char *what) {
    int lost = ferror(stream->out);
    if (fclose(stream->out) || lost || !stream->text) die("out of memory for %s", what);
    /* Returns a copy, because memory allocated by the C library itself would leak if a message ends a call of the
     * library (library/scope.h). */
    char *copy = malloc(stream->size + 1);
    if (!copy) die("out of memory for %s", what);
    memcpy(copy, stream->text, stream->size + 1);
    free(stream->text);
    return stream->text = copy;
}
