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

/* Each letter is seven digits to base 32 (0-9, a-v), its rows from the top. */
static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ -.,'()/?";
static const char font[][LETTER_HEIGHT + 1] = {
    "ehjlphe", "4c4444e", "eh168gv", "eh161he", "26aiv22", "vgu11he", "egguhhe", "v124488", "ehhehhe",
    "ehhf11e", "ehhvhhh", "uhhuhhu", "ehggghe", "uhhhhhu", "vgguggv", "vgguggg", "ehgnhhe", "hhhvhhh",
    "e44444e", "72222ic", "hikokih", "ggggggv", "hrllhhh", "hplljhh", "ehhhhhe", "uhhuggg", "ehhhlid",
    "uhhukih", "fgge11u", "v444444", "hhhhhhe", "hhhhaa4", "hhhllrh", "hha4ahh", "hha4444", "v1248gv",
    "0000000", "000e000", "00000cc", "0000c48", "4400000", "2444442", "8444448", "11248gg", "eh16404",
};

/* Lower-case letters are drawn as capitals, underscores as dashes, characters not in the font as '?'. */
static const char *letter_rows(char c) {
    const char *found = strchr(letters, c == '_' ? '-' : toupper((unsigned char)c));
    return font[(found ? found : strchr(letters, '?')) - letters];
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
        const char *rows = letter_rows(*text);
        for (int i = 0; i < LETTER_HEIGHT; i++) {
            int bits = rows[i] <= '9' ? rows[i] - '0' : rows[i] - 'a' + 10;
            for (int j = 0; j < LETTER_WIDTH; j++)
                if (bits >> (LETTER_WIDTH - 1 - j) & 1) dot(sheet, y + i * size, x + j * size, size);
        }
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

bool sheet_write(const char *path, const uint8_t *pixels, int n, int frames, int height, int width,
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
