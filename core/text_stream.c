#include "core/text_stream.h"

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
    return stream->text;
}
