#include "data/images/sheet.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "data/images/image.h"

/* == Text: letters of 5 x 7, the left of each row in bit 4 ======================================================== */

enum { LETTER_WIDTH = 5, LETTER_HEIGHT = 7, ADVANCE = 6 };

static const struct {
    char letter;
    uint8_t rows[LETTER_HEIGHT];
} font[] = {
    {'0', {0x0e, 0x11, 0x13, 0x15, 0x19, 0x11, 0x0e}}, {'1', {0x04, 0x0c, 0x04, 0x04, 0x04, 0x04, 0x0e}},
    {'2', {0x0e, 0x11, 0x01, 0x06, 0x08, 0x10, 0x1f}}, {'3', {0x0e, 0x11, 0x01, 0x06, 0x01, 0x11, 0x0e}},
    {'4', {0x02, 0x06, 0x0a, 0x12, 0x1f, 0x02, 0x02}}, {'5', {0x1f, 0x10, 0x1e, 0x01, 0x01, 0x11, 0x0e}},
    {'6', {0x0e, 0x10, 0x10, 0x1e, 0x11, 0x11, 0x0e}}, {'7', {0x1f, 0x01, 0x02, 0x04, 0x04, 0x08, 0x08}},
    {'8', {0x0e, 0x11, 0x11, 0x0e, 0x11, 0x11, 0x0e}}, {'9', {0x0e, 0x11, 0x11, 0x0f, 0x01, 0x01, 0x0e}},
    {'A', {0x0e, 0x11, 0x11, 0x1f, 0x11, 0x11, 0x11}}, {'B', {0x1e, 0x11, 0x11, 0x1e, 0x11, 0x11, 0x1e}},
    {'C', {0x0e, 0x11, 0x10, 0x10, 0x10, 0x11, 0x0e}}, {'D', {0x1e, 0x11, 0x11, 0x11, 0x11, 0x11, 0x1e}},
    {'E', {0x1f, 0x10, 0x10, 0x1e, 0x10, 0x10, 0x1f}}, {'F', {0x1f, 0x10, 0x10, 0x1e, 0x10, 0x10, 0x10}},
    {'G', {0x0e, 0x11, 0x10, 0x17, 0x11, 0x11, 0x0e}}, {'H', {0x11, 0x11, 0x11, 0x1f, 0x11, 0x11, 0x11}},
    {'I', {0x0e, 0x04, 0x04, 0x04, 0x04, 0x04, 0x0e}}, {'J', {0x07, 0x02, 0x02, 0x02, 0x02, 0x12, 0x0c}},
    {'K', {0x11, 0x12, 0x14, 0x18, 0x14, 0x12, 0x11}}, {'L', {0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x1f}},
    {'M', {0x11, 0x1b, 0x15, 0x15, 0x11, 0x11, 0x11}}, {'N', {0x11, 0x19, 0x15, 0x15, 0x13, 0x11, 0x11}},
    {'O', {0x0e, 0x11, 0x11, 0x11, 0x11, 0x11, 0x0e}}, {'P', {0x1e, 0x11, 0x11, 0x1e, 0x10, 0x10, 0x10}},
    {'Q', {0x0e, 0x11, 0x11, 0x11, 0x15, 0x12, 0x0d}}, {'R', {0x1e, 0x11, 0x11, 0x1e, 0x14, 0x12, 0x11}},
    {'S', {0x0f, 0x10, 0x10, 0x0e, 0x01, 0x01, 0x1e}}, {'T', {0x1f, 0x04, 0x04, 0x04, 0x04, 0x04, 0x04}},
    {'U', {0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x0e}}, {'V', {0x11, 0x11, 0x11, 0x11, 0x0a, 0x0a, 0x04}},
    {'W', {0x11, 0x11, 0x11, 0x15, 0x15, 0x1b, 0x11}}, {'X', {0x11, 0x11, 0x0a, 0x04, 0x0a, 0x11, 0x11}},
    {'Y', {0x11, 0x11, 0x0a, 0x04, 0x04, 0x04, 0x04}}, {'Z', {0x1f, 0x01, 0x02, 0x04, 0x08, 0x10, 0x1f}},
    {' ', {0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00}}, {'-', {0x00, 0x00, 0x00, 0x0e, 0x00, 0x00, 0x00}},
    {'.', {0x00, 0x00, 0x00, 0x00, 0x00, 0x0c, 0x0c}}, {',', {0x00, 0x00, 0x00, 0x00, 0x0c, 0x04, 0x08}},
    {'\'', {0x04, 0x04, 0x00, 0x00, 0x00, 0x00, 0x00}}, {'(', {0x02, 0x04, 0x04, 0x04, 0x04, 0x04, 0x02}},
    {')', {0x08, 0x04, 0x04, 0x04, 0x04, 0x04, 0x08}}, {'/', {0x01, 0x01, 0x02, 0x04, 0x08, 0x10, 0x10}},
    {'?', {0x0e, 0x11, 0x01, 0x06, 0x04, 0x00, 0x04}},
};
enum { LETTERS = sizeof font / sizeof *font };

/* Lower-case letters are drawn as capitals, underscores as dashes, characters not in the font as '?'. */
static const uint8_t *letter_rows(char c) {
    int wanted = c == '_' ? '-' : toupper((unsigned char)c);
    for (int i = 0; i < LETTERS; i++)
        if (font[i].letter == wanted) return font[i].rows;
    return font[LETTERS - 1].rows;
}

typedef struct {
    uint8_t *pixels; /* [height,width,3] */
    int height, width;
} Sheet;

static void dot(Sheet *sheet, int y, int x, int size) {
    for (int i = 0; i < size; i++)
        memset(sheet->pixels + ((size_t)(y + i) * (size_t)sheet->width + (size_t)x) * 3, 0, (size_t)size * 3);
}

/* Draws black text with dots of `size` pixels, truncated to the width `room`. */
static void write_label(Sheet *sheet, int y, int x, int room, int size, const char *text) {
    for (; *text && room >= LETTER_WIDTH * size; text++, x += ADVANCE * size, room -= ADVANCE * size) {
        const uint8_t *rows = letter_rows(*text);
        for (int i = 0; i < LETTER_HEIGHT; i++)
            for (int j = 0; j < LETTER_WIDTH; j++)
                if (rows[i] >> (LETTER_WIDTH - 1 - j) & 1) dot(sheet, y + i * size, x + j * size, size);
    }
}

/* == Images ======================================================================================================= */

/* Enlarges each pixel to zoom x zoom pixels. */
static void place_image(Sheet *sheet, int top, int left, int zoom, const uint8_t *pixels, int height, int width) {
    for (int y = 0; y < height * zoom; y++) {
        uint8_t *out = sheet->pixels + ((size_t)(top + y) * (size_t)sheet->width + (size_t)left) * 3;
        const uint8_t *in = pixels + (size_t)(y / zoom) * (size_t)width * 3;
        for (int x = 0; x < width * zoom; x++) memcpy(out + x * 3, in + x / zoom * 3, 3);
    }
}

bool sheet_write(const char *path, const uint8_t *pixels, int n, int height, int width, const int *labels,
                 const char *const *names, Error *error) {
    return sheet_write_clips(path, pixels, n, 1, height, width, labels, names, error);
}

bool sheet_write_clips(const char *path, const uint8_t *pixels, int n, int frames, int height, int width,
                       const int *labels, const char *const *names, Error *error) {
    enum { SMALLEST = 96, GAP = 4 };
    int shorter = height < width ? height : width, zoom = (SMALLEST + shorter - 1) / shorter;
    int strip = (width * zoom + 1) * frames - 1; /* a white line between two frames */
    int size = strip >= 2 * SMALLEST ? 2 : 1, text_height = labels ? (LETTER_HEIGHT + 2) * size : 0;
    int cell_height = height * zoom + text_height + GAP, cell_width = strip + GAP;
    int across = (int)ceil(sqrt((double)n * cell_height / cell_width) - 0.5), down;
    if (across < 1) across = 1;
    down = (n + across - 1) / across;
    if ((size_t)(across * cell_width) * (size_t)(down * cell_height) > IMAGE_MAX_PIXELS)
        return refuse(error, "%d images of %d x %d are too many for one picture", n, height, width);
    Sheet sheet = {.height = down * cell_height + GAP, .width = across * cell_width + GAP};
    size_t bytes = (size_t)sheet.height * (size_t)sheet.width * 3;
    sheet.pixels = malloc(bytes);
    if (!sheet.pixels) return refuse_memory(error, bytes, "a contact sheet");
    memset(sheet.pixels, 255, bytes);
    for (int i = 0; i < n; i++) {
        int top = GAP + i / across * cell_height, left = GAP + i % across * cell_width;
        char number[16];
        for (int t = 0; t < frames; t++)
            place_image(&sheet, top, left + t * (width * zoom + 1), zoom,
                        pixels + ((size_t)i * (size_t)frames + (size_t)t) * (size_t)height * (size_t)width * 3, height,
                        width);
        if (!labels) continue;
        snprintf(number, sizeof number, "%d", labels[i]);
        write_label(&sheet, top + height * zoom + size, left, strip, size, names ? names[labels[i]] : number);
    }
    bool ok = image_write_png(path, sheet.pixels, sheet.height, sheet.width, error);
    free(sheet.pixels);
    return ok;
}
