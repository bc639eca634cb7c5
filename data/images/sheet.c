#include "data/images/sheet.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/images/drawing.h"
#include "data/images/image.h"

bool sheet_write(const char *path, const uint8_t *pixels, int n, int frames, int height, int width,
                 const int *labels, const char *const *names, Error *error) {
    enum { SMALLEST = 96, GAP = 4 };
    int shorter = height < width ? height : width, zoom = (SMALLEST + shorter - 1) / shorter;
    int strip = (width * zoom + 1) * frames - 1; /* a white line between two frames */
    int size = strip >= 2 * SMALLEST ? 2 : 1, text_height = labels ? (DRAW_LETTER_HEIGHT + 1) * size : 0;
    int cell_height = height * zoom + text_height + GAP, cell_width = strip + GAP;
    int across = (int)ceil(sqrt((double)n * cell_height / cell_width) - 0.5), down;
    if (across < 1) across = 1;
    down = (n + across - 1) / across;
    if ((size_t)(across * cell_width) * (size_t)(down * cell_height) > IMAGE_MAX_PIXELS)
        return refuse(error, "%d images of %d x %d are too many for one picture", n, height, width);
    if (!pixels) return true;
    Image sheet = {.height = down * cell_height + GAP, .width = across * cell_width + GAP};
    size_t bytes = (size_t)sheet.height * (size_t)sheet.width * 3;
    sheet.pixels = malloc(bytes);
    if (!sheet.pixels) return refuse_memory(error, bytes, "a contact sheet");
    memset(sheet.pixels, 255, bytes);
    for (int i = 0; i < n; i++) {
        int top = GAP + i / across * cell_height, left = GAP + i % across * cell_width;
        char number[16];
        for (int t = 0; t < frames; t++)
            draw_pixels(&sheet, left + t * (width * zoom + 1), top,
                        pixels + ((size_t)i * (size_t)frames + (size_t)t) * (size_t)height * (size_t)width * 3, height,
                        width, zoom);
        if (!labels) continue;
        snprintf(number, sizeof number, "%d", labels[i]);
        draw_text_within(&sheet, left, top + height * zoom + size, strip, names ? names[labels[i]] : number, size,
                         (DrawColour){{0, 0, 0}});
    }
    bool ok = image_write_png(path, sheet.pixels, sheet.height, sheet.width, error);
    free(sheet.pixels);
    return ok;
}
