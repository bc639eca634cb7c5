/* Resampling, one axis at a time, rows first, rounded to 8 bits between the passes.
 *   scale = in / out,  s = max(scale, 1),  centre_j = (j + 1/2) scale
 *   out_j = sum_i w_ij in_i / sum_i w_ij,   w_ij = k((i + 1/2 - centre_j) / s)  where |i + 1/2 - centre_j| < 2 s
 *   k(x) = (a+2)|x|^3 - (a+3)|x|^2 + 1  for |x| < 1,   a|x|^3 - 5a|x|^2 + 8a|x| - 4a  for |x| < 2,   a = -1/2
 * Source: Keys 1981; a, support and order are Pillow's (src/libImaging/Resample.c), whose weights have 22 bits. */
#include "data/image.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/die.h"

/* The most that stb may ask for at once while it decodes one picture: a PNG of 100 bytes can announce a chunk of 2^30,
 * and one of a megabyte can unfold to a thousand. */
static _Thread_local size_t ceiling;

static void *bounded_realloc(void *memory, size_t size) {
    return size > ceiling ? NULL : realloc(memory, size);
}

/* Zeroed: stb_image 2.27 decodes with Huffman tables that a JPEG never defined. */
static void *bounded_calloc(size_t size) {
    return size > ceiling ? NULL : calloc(1, size);
}

/* This file is the one that instantiates stb.  It is handed memory only, so that limits and reads are ours. */
#define STBI_MALLOC(size) bounded_calloc(size)
#define STBI_REALLOC(memory, size) bounded_realloc(memory, size)
#define STBI_FREE(memory) free(memory)
#define STB_IMAGE_IMPLEMENTATION
#define STBI_NO_STDIO
#define STBI_NO_HDR
#define STBI_NO_LINEAR
#define STBI_ONLY_JPEG
#define STBI_ONLY_PNG
#define STBI_ONLY_BMP
#define STBI_MAX_DIMENSIONS IMAGE_MAX_SIDE
#include <stb/stb_image.h>

#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STBI_WRITE_NO_STDIO
#include <stb/stb_image_write.h>

/* == In =========================================================================================================== */

/* stb_image 2.27, Debian 12's, writes past its Huffman tables when a JPEG gives one more than 256 symbols, and reads
 * past others when more than 255 of them have up to 9 bits or a DC table gives a difference of more than 15 bits
 * (nothings/stb issues 1289 and 933, mended in 2.28).  None occurs in a JPEG that anything else would read.  True:
 * the tables of one segment, `left` bytes behind its marker, are free of them; a file that ends goes on with zeros, as
 * it does for stb. */
static bool huffman_tables_sound(const uint8_t *table, size_t left) {
    size_t segment = left < 2 ? 0 : (size_t)table[0] << 8 | table[1];
    for (size_t at = 2; at < segment && at < left;) {
        size_t symbols = 0, quick = 0;
        bool dc = table[at] < 16;
        if (table[at] >> 4 > 1 || (table[at] & 15) > 3) return true; /* stb refuses the file here by itself */
        at++;
        for (int bits = 1; bits <= 16; bits++, at++) {
            symbols += at < left ? table[at] : 0;
            if (bits <= 9) quick = symbols;
        }
        if (symbols > 256 || quick > 255) return false;
        for (size_t i = 0; i < symbols; i++, at++) {
            if (dc && at < left && table[at] > 15) return false;
        }
    }
    return true;
}

/* Every place from which stb could read a table is looked at: behind the leading application segments and comments,
 * which it skips by their lengths, each FF C4. */
static bool jpeg_sound(const uint8_t *bytes, size_t size) {
    size_t at = 0;
    while (at < size && bytes[at] == 0xff) at++;
    if (at == 0 || at == size || bytes[at++] != 0xd8) return true; /* not a JPEG */
    while (at + 4 <= size && bytes[at] == 0xff && (bytes[at + 1] >> 4 == 0xe || bytes[at + 1] == 0xfe)) {
        size_t length = (size_t)bytes[at + 2] << 8 | bytes[at + 3];
        if (length < 2 || length > size - at - 2) break;
        at += 2 + length;
    }
    for (; at + 2 <= size; at++) {
        if (bytes[at] == 0xff && bytes[at + 1] == 0xc4 && !huffman_tables_sound(bytes + at + 2, size - at - 2))
            return false;
    }
    return true;
}

static bool refuse_size(char *error, int height, int width, size_t most_pixels) {
    snprintf(error, FILE_ERROR, "%d x %d pixels, expected at most %d a side and %zu in all", height, width,
             IMAGE_MAX_SIDE, most_pixels);
    return false;
}

bool image_decode(Image *image, const uint8_t *bytes, size_t size, size_t most_pixels, char error[FILE_ERROR]) {
    int height, width, channels;
    if (!size || size > IMAGE_MAX_BYTES) {
        snprintf(error, FILE_ERROR, "%zu bytes, expected 1 to %d", size, IMAGE_MAX_BYTES);
        return false;
    }
    if (!jpeg_sound(bytes, size)) {
        snprintf(error, FILE_ERROR, "a damaged picture (Huffman table out of range)");
        return false;
    }
    /* The file twice while chunks are gathered; 4 channels of 16 bits a pixel, twice while they unfold; margins. */
    ceiling = 2 * size + 16 * most_pixels + (1 << 24);
    if (!stbi_info_from_memory(bytes, (int)size, &width, &height, &channels)) {
        snprintf(error, FILE_ERROR, "not a JPEG, PNG or BMP picture (%s)", stbi_failure_reason());
        return false;
    }
    if (height < 1 || width < 1 || height > IMAGE_MAX_SIDE || width > IMAGE_MAX_SIDE ||
        (size_t)height * (size_t)width > most_pixels) {
        return refuse_size(error, height, width, most_pixels);
    }
    uint8_t *pixels = stbi_load_from_memory(bytes, (int)size, &width, &height, &channels, 3);
    if (!pixels) {
        snprintf(error, FILE_ERROR, "a damaged picture (%s)", stbi_failure_reason());
        return false;
    }
    *image = (Image){height, width, pixels};
    return true;
}

bool image_read(Image *image, const char *path, char error[FILE_ERROR]) {
    uint8_t *bytes;
    size_t size;
    if (!file_read(path, IMAGE_MAX_BYTES, &bytes, &size, error)) return false;
    bool ok = image_decode(image, bytes, size, IMAGE_MAX_PIXELS, error);
    free(bytes);
    return ok;
}

void image_free(Image *image) {
    stbi_image_free(image->pixels);
    *image = (Image){.height = 0};
}

/* == Resize ======================================================================================================= */

static double cubic(double x) {
    const double a = -0.5;
    x = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
    return 0;
}

/* The taps of one output: weights of the inputs first .. first + count - 1, summing to 1. */
static int taps(double *weight, int *first, int j, int out, int in) {
    double scale = (double)in / out, stretch = fmax(scale, 1), centre = (j + 0.5) * scale, sum = 0;
    int low = (int)fmax(centre - 2 * stretch + 0.5, 0), high = (int)fmin(centre + 2 * stretch + 0.5, in);
    for (int i = low; i < high; i++) sum += weight[i - low] = cubic((i + 0.5 - centre) / stretch);
    for (int i = low; i < high; i++) weight[i - low] /= sum;
    *first = low;
    return high - low;
}

static uint8_t round_to_byte(double x) {
    return (uint8_t)fmin(fmax(x + 0.5, 0), 255);
}

/* out [lines, out, 3], in [lines, in, 3], where one axis is resampled and the other walked: steps are in bytes. */
static void resample(uint8_t *out, int out_size, size_t out_step, size_t out_line, const uint8_t *in, int in_size,
                     size_t in_step, size_t in_line, int lines) {
    double *weight = xcalloc((size_t)in_size + 1, sizeof *weight, "resampling weights");
    for (int j = 0; j < out_size; j++) {
        int first, count = taps(weight, &first, j, out_size, in_size);
        for (int line = 0; line < lines; line++) {
            const uint8_t *from = in + (size_t)line * in_line + (size_t)first * in_step;
            double sum[3] = {0};
            for (int i = 0; i < count; i++, from += in_step) {
                for (int c = 0; c < 3; c++) sum[c] += weight[i] * from[c];
            }
            uint8_t *to = out + (size_t)line * out_line + (size_t)j * out_step;
            for (int c = 0; c < 3; c++) to[c] = round_to_byte(sum[c]);
        }
    }
    free(weight);
}

void image_resize(uint8_t *out, int out_height, int out_width, const uint8_t *in, int height, int width) {
    size_t row = (size_t)width * 3, out_row = (size_t)out_width * 3;
    uint8_t *rows = xcalloc((size_t)height, out_row, "a picture half resized"); /* [height,out_width,3] */
    resample(rows, out_width, 3, out_row, in, width, 3, row, height);
    resample(out, out_height, out_row, 3, rows, height, out_row, 3, out_width);
    free(rows);
}

/* == Out ========================================================================================================== */

bool image_write_png(const char *path, const uint8_t *pixels, int height, int width, char error[FILE_ERROR]) {
    int size;
    if (height < 1 || width < 1 || height > IMAGE_MAX_SIDE || width > IMAGE_MAX_SIDE ||
        (size_t)height * (size_t)width > IMAGE_MAX_PIXELS) {
        return refuse_size(error, height, width, IMAGE_MAX_PIXELS);
    }
    uint8_t *png = stbi_write_png_to_mem(pixels, width * 3, width, height, 3, &size);
    if (!png) {
        snprintf(error, FILE_ERROR, "out of memory for a PNG of %d x %d", height, width);
        return false;
    }
    bool ok = file_write(path, png, (size_t)size, error);
    STBIW_FREE(png);
    return ok;
}
