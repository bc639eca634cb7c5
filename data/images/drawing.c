#include "data/images/drawing.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "core/integers.h"

/* == Pixels ======================================================================================================= */

void draw_fill(Image *image, int x0, int y0, int x1, int y1, DrawColour colour) {
    x0 = clamp(x0, 0, image->width);
    x1 = clamp(x1, 0, image->width);
    y0 = clamp(y0, 0, image->height);
    y1 = clamp(y1, 0, image->height);
    for (int y = y0; y < y1; y++) {
        uint8_t *pixel = image->pixels + ((size_t)y * (size_t)image->width + (size_t)x0) * 3;
        for (int x = x0; x < x1; x++, pixel += 3) memcpy(pixel, colour.channel, 3);
    }
}

/* Colours differ by steps of the golden angle around the circle of hues, and by three levels of brightness. */
DrawColour draw_colour(int64_t id) {
    uint64_t n = (uint64_t)id;
    double hue = fmod((double)(n % 1000) * 0.61803398875, 1) * 6, level = 255 - 45 * (double)(n % 3);
    DrawColour colour;
    for (int k = 0; k < 3; k++) {
        double away = fabs(fmod(hue + 6 - 2 * k, 6) - 3); /* 3 at this channel's own hue, 0 opposite */
        colour.channel[k] = (uint8_t)lrint(level * fmin(fmax(away - 1, 0), 1));
    }
    return colour;
}

/* The luma of BT.601 decides. */
DrawColour draw_ink_on(DrawColour plate) {
    int luma = 299 * plate.channel[0] + 587 * plate.channel[1] + 114 * plate.channel[2];
    uint8_t level = luma > 128000 ? 0 : 255;
    return (DrawColour){{level, level, level}};
}

void draw_pixels(Image *image, int left, int top, const uint8_t *pixels, int height, int width, int times) {
    for (int y = 0; y < height * times; y++) {
        uint8_t *out = image->pixels + ((size_t)(top + y) * (size_t)image->width + (size_t)left) * 3;
        const uint8_t *in = pixels + (size_t)(y / times) * (size_t)width * 3;
        for (int x = 0; x < width * times; x++) memcpy(out + x * 3, in + x / times * 3, 3);
    }
}

void draw_enlarged(Image *image, const uint8_t *pixels, int times) {
    draw_pixels(image, 0, 0, pixels, image->height / times, image->width / times, times);
}

/* == Text ========================================================================================================= */

enum { GLYPH_WIDTH = 5, GLYPH_STEP = 6 };

/* A font of 5 x 8 cells.  Each glyph is eight digits to base 32 (0-9, a-v), its rows from the top; the five bits of a
 * digit are the cells of a row, the highest bit the leftmost.  The last row is below the baseline. */
static const char font[][DRAW_LETTER_HEIGHT + 1] = {
    "00000000", "44444040", "aa000000", "aavavaa0", "4fke5u40", "pp248jj0", "cik8lid0", "44000000",/*   ! " # $ % & ' */
    "24888420", "84222480", "04lel400", "044v4400", "00000448", "000v0000", "00000cc0", "11248gg0",/* ( ) * + , - . / */
    "ehjlphe0", "4c4444e0", "eh1248v0", "v2421he0", "26aiv220", "vgu11he0", "68guhhe0", "v1244440",/* 0 1 2 3 4 5 6 7 */
    "ehhehhe0", "ehhf12c0", "00400400", "00400448", "248g8420", "00v0v000", "84212480", "eh124040",/* 8 9 : ; < = > ? */
    "ehnlmge0", "4ahhvhh0", "uhhuhhu0", "ehggghe0", "sihhhis0", "vgguggv0", "vgguggg0", "ehgnhhf0",/* @ A B C D E F G */
    "hhhvhhh0", "e44444e0", "72222ic0", "hikokih0", "ggggggv0", "hrllhhh0", "hpljhhh0", "ehhhhhe0",/* H I J K L M N O */
    "uhhuggg0", "ehhhlid0", "uhhukih0", "fgge11u0", "v4444440", "hhhhhhe0", "hhhhaa40", "hhhllrh0",/* P Q R S T U V W */
    "hha4ahh0", "hha44440", "v1248gv0", "e88888e0", "gg842110", "e22222e0", "4ah00000", "0000000v",/* X Y Z [ \ ] ^ _ */
    "84000000", "00e1fhf0", "gguhhhu0", "00eggge0", "11fhhhf0", "00ehvge0", "68u88880", "00fhhhfe",/* ` a b c d e f g */
    "gguhhhh0", "40c444e0", "2062222c", "ggikoki0", "c44444e0", "00qllll0", "00uhhhh0", "00ehhhe0",/* h i j k l m n o */
    "00uhhugg", "00fhhf11", "00mpggg0", "00fge1u0", "88u88860", "00hhhjd0", "00hhha40", "00hllla0",/* p q r s t u v w */
    "00ha4ah0", "00hhhf1e", "00v248v0", "24484420", "44444444", "84424480", "008l2000" /* x y z { | } ~ */
};

/* The glyph of the character at *text; moves *text to the next character, over continuation bytes of UTF-8. */
static const char *next_glyph(const char **text) {
    unsigned char c = (unsigned char)*(*text)++;
    while (((unsigned char)**text & 0xc0) == 0x80) (*text)++;
    return font[c >= ' ' && c <= '~' ? c - ' ' : '?' - ' '];
}

int draw_text_width(const char *text, int scale) {
    int glyphs = 0;
    for (; *text; glyphs++) next_glyph(&text);
    return glyphs ? (glyphs * GLYPH_STEP - 1) * scale : 0;
}

void draw_text(Image *image, int x, int y, const char *text, int scale, DrawColour colour) {
    draw_text_within(image, x, y, INT_MAX, text, scale, colour);
}

void draw_text_within(Image *image, int x, int y, int room, const char *text, int scale, DrawColour colour) {
    for (; *text && room >= GLYPH_WIDTH * scale; x += GLYPH_STEP * scale, room -= GLYPH_STEP * scale) {
        const char *rows = next_glyph(&text);
        for (int row = 0; row < DRAW_LETTER_HEIGHT; row++) {
            int bits = rows[row] <= '9' ? rows[row] - '0' : rows[row] - 'a' + 10;
            for (int cell = 0; cell < GLYPH_WIDTH; cell++) {
                int left = x + cell * scale, top = y + row * scale;
                if (bits >> (GLYPH_WIDTH - 1 - cell) & 1) draw_fill(image, left, top, left + scale, top + scale, colour);
            }
        }
    }
}
