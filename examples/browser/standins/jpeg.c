/* Replaces libjpeg-turbo in WebAssembly.  There the browser decodes images and the library is given their pixels, so no
 * input is recognised as a JPEG. */
#include "data/images/jpeg.h"

#include <stddef.h>

JpegReader *jpeg_open(void) { return NULL; }
void jpeg_close(JpegReader *reader) { (void)reader; }
bool jpeg_is(const uint8_t *bytes, size_t size) { return (void)bytes, (void)size, false; }

bool jpeg_begin(JpegReader *reader, const uint8_t *bytes, size_t size, size_t most_pixels, int *height, int *width,
                Error *error) {
    (void)reader, (void)bytes, (void)size, (void)most_pixels, (void)height, (void)width;
    return refuse(error, "this build has no decoder of JPEGs");
}

bool jpeg_region(JpegReader *reader, int eighths, const int rows[2], const int columns[2], ImagePart *part,
                 Error *error) {
    (void)reader, (void)eighths, (void)rows, (void)columns, (void)part;
    return refuse(error, "this build has no decoder of JPEGs");
}

bool jpeg_scales(const JpegReader *reader) { return (void)reader, false; }

int jpeg_eighths(int height, int width, int out_height, int out_width) {
    return (void)height, (void)width, (void)out_height, (void)out_width, 8;
}

int jpeg_scaled(int n, int eighths) { return (void)eighths, n; }
