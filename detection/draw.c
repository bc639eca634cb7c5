#include "detection/draw.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/integers.h"

/* == Pixels ======================================================================================================= */

static void fill(Image *image, int x0, int y0, int x1, int y1, DrawColour colour) {
    x0 = clamp(x0, 0, image->width);
    x1 = clamp(x1, 0, image->width);
    y0 = clamp(y0, 0, image->height);
    y1 = clamp(y1, 0, image->height);
    for (int y = y0; y < y1; y++) {
        uint8_t *pixel = image->pixels + ((size_t)y * (size_t)image->width + (size_t)x0) * 3;
        for (int x = x0; x < x1; x++, pixel += 3) memcpy(pixel, colour.channel, 3);
    }
}

void draw_frame(Image *image, const int box[4], int thickness, DrawColour colour) {
    int x0 = box[0], y0 = box[1], x1 = box[2], y1 = box[3];
    int across = thickness < x1 - x0 ? thickness : x1 - x0, down = thickness < y1 - y0 ? thickness : y1 - y0;
    if (x0 >= x1 || y0 >= y1) return;
    fill(image, x0, y0, x1, y0 + down, colour);
    fill(image, x0, y1 - down, x1, y1, colour);
    fill(image, x0, y0, x0 + across, y1, colour);
    fill(image, x1 - across, y0, x1, y1, colour);
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

/* == Text ========================================================================================================= */

enum { GLYPH_WIDTH = 5, GLYPH_HEIGHT = 8, GLYPH_STEP = 6 };

/* A font of 5 x 8 cells.  Each glyph is eight digits to base 32 (0-9, a-v), its rows from the top; the five bits of a
 * digit are the cells of a row, the highest bit the leftmost.  The last row is below the baseline. */
static const char font[][GLYPH_HEIGHT + 1] = {
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
    for (; *text; x += GLYPH_STEP * scale) {
        const char *rows = next_glyph(&text);
        for (int row = 0; row < GLYPH_HEIGHT; row++) {
            int bits = rows[row] <= '9' ? rows[row] - '0' : rows[row] - 'a' + 10;
            for (int cell = 0; cell < GLYPH_WIDTH; cell++) {
                int left = x + cell * scale, top = y + row * scale;
                if (bits >> (GLYPH_WIDTH - 1 - cell) & 1) fill(image, left, top, left + scale, top + scale, colour);
            }
        }
    }
}

void draw_enlarged(Image *image, const uint8_t *pixels, int times) {
    size_t width = (size_t)image->width, own = width / (size_t)times;
    for (size_t i = 0; i < (size_t)image->height * width; i++)
        memcpy(image->pixels + 3 * i, pixels + 3 * (i / width / (size_t)times * own + i % width / (size_t)times), 3);
}

/* == Masks ======================================================================================================== */

static void mix(uint8_t *pixel, DrawColour colour) {
    for (int k = 0; k < 3; k++) pixel[k] = (uint8_t)((pixel[k] + colour.channel[k] + 1) / 2);
}

void draw_mask(Image *image, const Rle *mask, DrawColour colour) {
    int times = smaller(image->height / mask->height, image->width / mask->width);
    size_t at = 0, height = (size_t)mask->height;
    for (size_t i = 0; i < mask->count; at += mask->runs[i++]) {
        for (size_t p = at; i % 2 && p < at + mask->runs[i]; p++) {
            size_t left = p / height * (size_t)times, top = p % height * (size_t)times;
            for (int y = 0; y < times; y++)
                for (int x = 0; x < times; x++)
                    mix(image->pixels + ((top + (size_t)y) * (size_t)image->width + left + (size_t)x) * 3, colour);
        }
    }
}

/* == Detections =================================================================================================== */

/* Letters are black on light colours and white on dark ones (luma of BT.601). */
static DrawColour ink_on(DrawColour plate) {
    int luma = 299 * plate.channel[0] + 587 * plate.channel[1] + 114 * plate.channel[2];
    uint8_t level = luma > 128000 ? 0 : 255;
    return (DrawColour){{level, level, level}};
}

/* A coordinate of any size, NaN included, within a margin around the picture. */
static int near_picture(double x, int side) { return (int)fmin(fmax(rint(x), -16), side + 16); }

/* The label is drawn above the box if there is room, otherwise inside it, and moved into the picture if necessary. */
static void draw_plate(Image *image, const int box[4], const char *text, int scale, DrawColour colour) {
    int width = draw_text_width(text, scale) + 4 * scale, height = (GLYPH_HEIGHT + 2) * scale;
    int x = clamp(box[0], 0, image->width > width ? image->width - width : 0);
    int y = clamp(box[1] >= height ? box[1] - height : box[1], 0, image->height > height ? image->height - height : 0);
    fill(image, x, y, x + width, y + height, colour);
    draw_text(image, x + 2 * scale, y + scale, text, scale, ink_on(colour));
}

/* Letters stay a fortieth of the picture high, so that they are legible where it is shown as a whole. */
static int letter_scale(const Image *image) {
    int side = image->height > image->width ? image->height : image->width;
    return clamp((side + 140) / 280, 1, 16);
}

static void draw_detection(Image *image, const CocoDetection *d, const Coco *coco) {
    int scale = letter_scale(image);
    int category = coco_find_category(coco, d->category_id);
    const int box[4] = {near_picture(d->box[0], image->width), near_picture(d->box[1], image->height),
                        near_picture(d->box[0] + d->box[2], image->width),
                        near_picture(d->box[1] + d->box[3], image->height)};
    char text[96];
    if (category >= 0) {
        snprintf(text, sizeof text, "%.60s %.0f%%", coco->categories[category].name, 100 * d->score);
    } else {
        snprintf(text, sizeof text, "%jd %.0f%%", (intmax_t)d->category_id, 100 * d->score);
    }
    DrawColour colour = draw_colour(d->category_id);
    draw_frame(image, box, scale + 1, colour);
    draw_plate(image, box, text, scale, colour);
}

void draw_detections(Image *image, const CocoDetection *detections, int count, double least, const RleTexts *masks,
                     const Coco *coco) {
    Rle mask = {.count = 0};
    for (int i = count; masks && i-- > 0;) {
        if (detections[i].score < least) continue;
        rle_texts_get(&mask, masks, (size_t)i);
        draw_mask(image, &mask, draw_colour(detections[i].category_id));
    }
    rle_free(&mask);
    for (int i = count; i-- > 0;)
        if (detections[i].score >= least) draw_detection(image, &detections[i], coco);
}
