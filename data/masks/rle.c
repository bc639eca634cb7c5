#include "data/masks/rle.h"

#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/integers.h"

static uint32_t pixels_of(const Rle *rle) { return (uint32_t)rle->height * (uint32_t)rle->width; }

static void push(Rle *out, uint32_t run) {
    out->runs = xgrow(out->runs, out->count + 1, &out->room, sizeof *out->runs, "runs of a mask");
    out->runs[out->count++] = run;
}

void rle_begin(Rle *out, int height, int width) {
    out->height = height;
    out->width = width;
    out->count = 0;
}

void rle_append(Rle *out, bool one, uint32_t pixels) {
    if (!out->count) push(out, 0);
    if (out->count % 2 == one) push(out, 0);
    out->runs[out->count - 1] += pixels;
}

void rle_free(Rle *rle) {
    free(rle->runs);
    *rle = (Rle){.count = 0};
}

/* == Numbers and text ============================================================================================= */

static bool too_long(const Rle *out, Error *error) {
    return refuse(error, "the RLE covers more than the %d x %d pixels of its size (height x width)", out->height,
                  out->width);
}

bool rle_set(Rle *out, const uint32_t *runs, size_t count, int height, int width, Error *error) {
    uint32_t left;
    rle_begin(out, height, width);
    left = pixels_of(out);
    for (size_t i = 0; i < count; left -= runs[i++]) {
        if (runs[i] > left) return too_long(out, error);
        push(out, runs[i]);
    }
    return true;
}

/* A number is written five bits at a time, the lowest first, as the characters '0' .. 'o': bit 5 says that more follow,
 * and bit 4 of the last five is the sign.  From the fourth run on it is the difference to the run two before. */
enum { DIGIT = 5, MORE = 32, SIGN = 16, LAST_SHIFT = 30 };

/* Reads the number at text[*at] and moves *at past it; false if it is invalid. */
static bool parse_number(int64_t *number, const char *text, size_t length, size_t *at) {
    uint64_t bits = 0;
    for (int shift = 0; *at < length && shift <= LAST_SHIFT; shift += DIGIT) {
        unsigned c = (unsigned char)text[*at] - (unsigned)'0';
        if (c > 63) return false;
        ++*at;
        bits |= (uint64_t)(c & 31) << shift;
        if (c & MORE) continue;
        if (c & SIGN) bits |= UINT64_MAX << (shift + DIGIT);
        *number = (int64_t)bits;
        return true;
    }
    return false;
}

bool rle_parse(Rle *out, const char *text, size_t length, int height, int width, Error *error) {
    rle_begin(out, height, width);
    int64_t left = pixels_of(out), run;
    for (size_t at = 0; at < length;) {
        size_t start = at;
        if (!parse_number(&run, text, length, &at))
            return refuse(error, "the RLE text is broken at character %zu of %zu", start + 1, length);
        if (out->count > 2) run += out->runs[out->count - 2];
        if (run < 0) return refuse(error, "the RLE text has a run of negative length at character %zu", start + 1);
        if (run > left) return too_long(out, error);
        left -= run;
        push(out, (uint32_t)run);
    }
    return true;
}

/* Appends the text to the first `length` bytes of *text; returns the total length. */
static size_t append_text(char **text, size_t *room, size_t length, const Rle *rle) {
    *text = xgrow(*text, length + rle->count * (LAST_SHIFT / DIGIT + 1) + 1, room, 1, "the text of masks");
    for (size_t i = 0; i < rle->count; i++) {
        int64_t left = rle->runs[i];
        if (i > 2) left -= rle->runs[i - 2];
        for (bool more = true; more;) {
            unsigned digit = (unsigned)left & 31;
            left >>= DIGIT;
            more = left != (digit & SIGN ? -1 : 0);
            (*text)[length++] = (char)('0' + (digit | (more ? MORE : 0)));
        }
    }
    (*text)[length] = 0;
    return length;
}

size_t rle_text(char **text, size_t *room, const Rle *rle) { return append_text(text, room, 0, rle); }

/* == Pixels ======================================================================================================= */

void rle_encode(Rle *out, const uint8_t *pixels, int height, int width) {
    rle_begin(out, height, width);
    for (int x = 0; x < width; x++) {
        const uint8_t *pixel = pixels + x;
        for (int y = 0; y < height; y++, pixel += width) rle_append(out, *pixel, 1);
    }
}

void rle_decode_columns(uint8_t *columns, const Rle *rle, int from, int to) {
    size_t height = (size_t)rle->height, first = height * (size_t)from, last = height * (size_t)to, at = 0;
    memset(columns, 0, last - first);
    for (size_t i = 0; i < rle->count && at < last; i++) {
        size_t start = larger_size(at, first), end = at += rle->runs[i];
        if (end > last) end = last;
        if (i % 2 && start < end) memset(columns + start - first, 1, end - start);
    }
}

void rle_decode(uint8_t *pixels, const Rle *rle) {
    size_t height = (size_t)rle->height, width = (size_t)rle->width, at = 0;
    memset(pixels, 0, height * width);
    for (size_t i = 0; i < rle->count; at += rle->runs[i++])
        for (size_t p = at; i % 2 && p < at + rle->runs[i]; p++) pixels[p % height * width + p / height] = 1;
}

/* == Two masks ==================================================================================================== */

/* A position between runs: `left` pixels of value `one` follow.  After the last run come zeros. */
typedef struct {
    const uint32_t *next, *end;
    uint32_t left;
    bool one;
} Cursor;

static void advance(Cursor *c, uint32_t pixels) {
    c->left -= pixels;
    while (!c->left && c->next < c->end) {
        c->left = *c->next++;
        c->one = !c->one;
    }
    if (!c->left) *c = (Cursor){c->end, c->end, UINT32_MAX, false};
}

static Cursor cursor_at_start(const Rle *rle) {
    Cursor c = {rle->runs, rle->runs + rle->count, 0, true};
    advance(&c, 0);
    return c;
}

static void combine(Rle *out, const Rle *a, const Rle *b, bool both) {
    Cursor ca = cursor_at_start(a), cb = cursor_at_start(b);
    uint32_t left = pixels_of(a);
    rle_begin(out, a->height, a->width);
    while (left) {
        uint32_t step = ca.left < cb.left ? ca.left : cb.left;
        if (step > left) step = left;
        rle_append(out, both ? ca.one && cb.one : ca.one || cb.one, step);
        left -= step;
        advance(&ca, step);
        advance(&cb, step);
    }
}

void rle_union(Rle *out, const Rle *a, const Rle *b) { combine(out, a, b, false); }

void rle_intersection(Rle *out, const Rle *a, const Rle *b) { combine(out, a, b, true); }

RleExtent rle_extent(const Rle *rle) {
    uint32_t height = (uint32_t)rle->height, at = 0;
    RleExtent e = {0, {rle->width, rle->height, 0, 0}};
    for (size_t i = 0; i < rle->count; at += rle->runs[i++]) {
        if (i % 2 == 0 || !rle->runs[i]) continue;
        uint32_t last = at + rle->runs[i] - 1;
        int x0 = (int)(at / height), x1 = (int)(last / height);
        bool turns = x1 > x0; /* such a run touches the last row and the first */
        e.area += rle->runs[i];
        e.box[0] = smaller(e.box[0], x0);
        e.box[1] = turns ? 0 : smaller(e.box[1], (int)(at % height));
        e.box[2] = larger(e.box[2], x1 + 1);
        e.box[3] = turns ? rle->height : larger(e.box[3], (int)(last % height) + 1);
    }
    return e.area ? e : (RleExtent){.area = 0};
}

uint32_t rle_common_area(const Rle *a, const Rle *b) {
    uint32_t area = 0;
    if (a->count < 2 || b->count < 2) return 0;
    uint32_t a0 = a->runs[0], b0 = b->runs[0], a1 = a0 + a->runs[1], b1 = b0 + b->runs[1]; /* runs of ones */
    for (size_t i = 1, j = 1;;) {
        uint32_t start = a0 > b0 ? a0 : b0, end = a1 < b1 ? a1 : b1;
        if (start < end) area += end - start;
        if (a1 < b1) {
            if ((i += 2) >= a->count) return area;
            a0 = a1 + a->runs[i - 1];
            a1 = a0 + a->runs[i];
        } else {
            if ((j += 2) >= b->count) return area;
            b0 = b1 + b->runs[j - 1];
            b1 = b0 + b->runs[j];
        }
    }
}

double rle_iou(const Rle *found, const RleExtent *found_extent, const Rle *truth, const RleExtent *truth_extent,
               bool crowd) {
    const int *f = found_extent->box, *t = truth_extent->box;
    if (f[0] >= t[2] || t[0] >= f[2] || f[1] >= t[3] || t[1] >= f[3]) return 0;
    uint32_t common = rle_common_area(found, truth);
    if (!common) return 0;
    return (double)common / (crowd ? found_extent->area : found_extent->area + truth_extent->area - common);
}

/* == Many masks =================================================================================================== */

struct RlePlace {
    size_t start; /* in the text */
    int height, width;
};

void rle_texts_add(RleTexts *texts, const Rle *rle) {
    texts->places = xgrow(texts->places, texts->count + 1, &texts->room, sizeof *texts->places, "masks");
    texts->places[texts->count++] = (struct RlePlace){texts->length, rle->height, rle->width};
    texts->length = append_text(&texts->text, &texts->text_room, texts->length, rle) + 1;
}

RleText rle_texts_at(const RleTexts *texts, size_t index) {
    const struct RlePlace *place = &texts->places[index];
    size_t end = index + 1 < texts->count ? place[1].start : texts->length;
    return (RleText){texts->text + place->start, end - 1 - place->start, place->height, place->width};
}

void rle_texts_get(Rle *out, const RleTexts *texts, size_t index) {
    RleText mask = rle_texts_at(texts, index);
    rle_parse(out, mask.text, mask.length, mask.height, mask.width, &error_fatal);
}

void rle_texts_free(RleTexts *texts) {
    free(texts->text);
    free(texts->places);
    *texts = (RleTexts){.count = 0};
}
