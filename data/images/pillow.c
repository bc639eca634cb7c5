/* Pillow's pixel arithmetic (src/libImaging/Blend.c, Filter.c, Geometry.c, Convert.c; ImageOps.py, ImageEnhance.py).
 *
 *   table      v -> t[v], a table for each channel
 *   blend      a + f (b - a) in float, clipped, truncated
 *   grey       (19595 R + 38470 G + 7471 B + 32768) >> 16
 *   smooth     3 x 3 weights, 5 in the centre and 1 elsewhere, over 13, rounded; the border is unchanged
 *   affine     in double: cubic(v0..v3, d) = v1 + d (p2 + d (p3 + d p4)), p2 = v2 - v0, p3 = 2 (v0 - v1) + v2 - v3,
 *              p4 = v1 - v0 + v3 - v2; linear(v0, v1, d) = v0 + (v1 - v0) d; rows first, then down; truncated.
 *
 * This file is compiled without fused multiply-add (Makefile), whose rounding is not Pillow's. */
#include "data/images/pillow.h"

#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/integers.h"

/* == Tables ======================================================================================================= */

/* Two histograms per channel, so that equal neighbouring values do not increment the same counter in sequence. */
static void histogram(size_t counts[3][256], const uint8_t *pixels, size_t n) {
    uint32_t part[2][3][256] = {0};
    for (size_t i = 0; i < n; i++)
        for (int c = 0; c < 3; c++) part[i & 1][c][pixels[3 * i + c]]++;
    for (int c = 0; c < 3; c++)
        for (int v = 0; v < 256; v++) counts[c][v] = (size_t)part[0][c][v] + part[1][c][v];
}

static void look_up(uint8_t *pixels, size_t n, uint8_t table[3][256]) {
    for (size_t i = 0; i < n; i++)
        for (int c = 0; c < 3; c++) pixels[3 * i + c] = table[c][pixels[3 * i + c]];
}

static uint8_t clip8(long v) { return v < 0 ? 0 : v > 255 ? 255 : (uint8_t)v; }

void pillow_autocontrast(uint8_t *pixels, size_t n) {
    size_t counts[3][256];
    uint8_t table[3][256];
    histogram(counts, pixels, n);
    for (int c = 0; c < 3; c++) {
        int low = 0, high = 255;
        while (low < 255 && !counts[c][low]) low++;
        while (high > 0 && !counts[c][high]) high--;
        double scale = high > low ? 255.0 / (high - low) : 1, offset = high > low ? -low * scale : 0;
        for (int v = 0; v < 256; v++) table[c][v] = clip8((long)(v * scale + offset));
    }
    look_up(pixels, n, table);
}

void pillow_equalize(uint8_t *pixels, size_t n) {
    size_t counts[3][256];
    uint8_t table[3][256];
    histogram(counts, pixels, n);
    for (int c = 0; c < 3; c++) {
        int last = 255;
        while (last > 0 && !counts[c][last]) last--;
        size_t step = (n - counts[c][last]) / 255, sum = step / 2;
        for (int v = 0; v < 256; sum += counts[c][v++]) table[c][v] = step ? clip8((long)(sum / step)) : (uint8_t)v;
    }
    look_up(pixels, n, table);
}

void pillow_invert(uint8_t *pixels, size_t n) {
    for (size_t i = 0; i < 3 * n; i++) pixels[i] = (uint8_t)~pixels[i];
}

void pillow_posterize(uint8_t *pixels, size_t n, int bits) {
    uint8_t mask = bits <= 0 ? 0 : bits >= 8 ? 255 : (uint8_t)(0xff << (8 - bits));
    for (size_t i = 0; i < 3 * n; i++) pixels[i] &= mask;
}

void pillow_solarize(uint8_t *pixels, size_t n, int threshold) {
    for (size_t i = 0; i < 3 * n; i++) pixels[i] = pixels[i] < threshold ? pixels[i] : (uint8_t)~pixels[i];
}

void pillow_solarize_add(uint8_t *pixels, size_t n, int add) {
    uint8_t most = (uint8_t)(add < 255 ? 255 - add : 0), more = clip8(add);
    for (size_t i = 0; i < 3 * n; i++) {
        uint8_t v = pixels[i], sum = v > most ? 255 : (uint8_t)(v + more);
        pixels[i] = v < 128 ? sum : v;
    }
}

/* == Blends ======================================================================================================= */

static inline uint8_t blend(int a, int b, float f) {
    float v = (float)a + f * (float)(b - a);
    v = v > 0 ? v : 0;
    v = v < 255 ? v : 255;
    return (uint8_t)(int)v;
}

void pillow_brightness(uint8_t *pixels, size_t n, float factor) {
    for (size_t i = 0; i < 3 * n; i++) pixels[i] = blend(0, pixels[i], factor);
}

void pillow_color(uint8_t *pixels, size_t n, float factor) {
    for (size_t i = 0; i < n; i++) {
        uint8_t *p = pixels + 3 * i;
        int g = pillow_grey(p);
        uint8_t r = blend(g, p[0], factor), green = blend(g, p[1], factor), b = blend(g, p[2], factor);
        p[0] = r;
        p[1] = green;
        p[2] = b;
    }
}

void pillow_contrast(uint8_t *pixels, size_t n, float factor) {
    size_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += (size_t)pillow_grey(pixels + 3 * i);
    int mean = (int)((double)sum / (double)n + 0.5);
    for (size_t i = 0; i < 3 * n; i++) pixels[i] = blend(mean, pixels[i], factor);
}

/* An integer over 13 never has the fraction one half, so (sum + 6) / 13 rounds exactly. */
void pillow_sharpness(uint8_t *pixels, uint8_t *scratch, int height, int width, float factor) {
    size_t row = (size_t)width * 3;
    if (height < 3 || width < 3) return;
    memcpy(scratch, pixels, row * (size_t)height);
    for (int y = 1; y < height - 1; y++) {
        const uint8_t *in = scratch + (size_t)y * row, *up = in - row, *down = in + row;
        uint8_t *out = pixels + (size_t)y * row;
        for (size_t i = 3; i < row - 3; i++) {
            unsigned sum = (unsigned)up[i - 3] + up[i] + up[i + 3] + in[i - 3] + 5u * in[i] + in[i + 3] + down[i - 3] +
                           down[i] + down[i + 3];
            out[i] = blend((int)((sum + 6) / 13), in[i], factor);
        }
    }
}

/* == Affine maps ================================================================================================== */

/* The source of a map: floats, three per pixel, with replicated edges as wide as the bicubic kernel needs.  A vector of
 * four floats reads one more than a pixel has. */
enum { BORDER = 2, ALIGN = 64 };

/* The scratch memory of one map, and the source positions of the pixels of one row. */
typedef struct {
    int height, width;
    PillowFilter filter;
    const uint8_t *fill; /* [3] */
    const float *first;  /* pixel (0, 0) of the source */
    ptrdiff_t stride;    /* in floats */
    double *dx, *dy;     /* [width] fractional position in the kernel's inner square */
    int *column, *row;   /* [width] that square's corner; row OUTSIDE: use fill */
    double *slide;       /* [3*width] dx of each number, if neighbours have neighbouring sources */
} Map;

#define OUTSIDE INT_MIN

static size_t aligned(size_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

static size_t source_size(int height, int width) {
    return aligned((((size_t)height + 2 * BORDER) * ((size_t)width + 2 * BORDER) * 3 + 1) * sizeof(float));
}

size_t pillow_scratch(int height, int width) {
    size_t w = (size_t)width;
    return source_size(height, width) + 5 * aligned(w * sizeof(double)) + 2 * aligned(w * sizeof(int)) + ALIGN;
}

static Map map_open(uint8_t *scratch, const uint8_t *pixels, int height, int width, PillowFilter filter,
                    const uint8_t *fill) {
    size_t line = (size_t)width * 3, numbers = aligned((size_t)width * sizeof(double));
    uint8_t *start = scratch + (ALIGN - (uintptr_t)scratch % ALIGN) % ALIGN;
    uint8_t *arrays = start + source_size(height, width);
    float *out = (float *)start;
    Map map = {height, width, filter, fill, .stride = (ptrdiff_t)line + 2 * BORDER * 3};
    map.first = out + BORDER * map.stride + BORDER * 3;
    map.dx = (double *)arrays;
    map.dy = (double *)(arrays + numbers);
    map.slide = (double *)(arrays + 2 * numbers);
    map.column = (int *)(arrays + 5 * numbers);
    map.row = (int *)(arrays + 5 * numbers + aligned((size_t)width * sizeof(int)));
    for (int y = -BORDER; y < height + BORDER; y++) {
        const uint8_t *in = pixels + (size_t)clamp(y, 0, height - 1) * line;
        for (int i = 0; i < BORDER * 3; i++) *out++ = in[i % 3];
        for (size_t i = 0; i < line; i++) *out++ = in[i];
        for (int i = 0; i < BORDER * 3; i++) *out++ = in[line - 3 + (size_t)(i % 3)];
    }
    *out = 0;
    return map;
}

typedef double Four __attribute__((vector_size(32)));
typedef int FourInts __attribute__((vector_size(16)));
typedef float FourFloats __attribute__((vector_size(16)));
typedef int64_t FourLongs __attribute__((vector_size(32)));
typedef uint8_t FourBytes __attribute__((vector_size(4)));

/* These are macros so that the same code works on one float and on a vector. */
#define CUBIC(v0, v1, v2, v3, d) \
    ((v1) + (d) * ((v2) - (v0) + (d) * (2 * ((v0) - (v1)) + (v2) - (v3) + (d) * ((v1) - (v0) - (v2) + (v3)))))
#define LINEAR(v0, v1, d) ((v0) + ((v1) - (v0)) * (d))

/* A pixel's three floats and one more. */
static inline Four load(const float *p) {
    FourFloats v;
    memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, Four);
}

static inline Four cubic_row(const float *p, double d) {
    Four v0 = load(p - 3), v1 = load(p), v2 = load(p + 3), v3 = load(p + 6);
    return CUBIC(v0, v1, v2, v3, d);
}

static inline Four cubic_at(const float *p, ptrdiff_t stride, double dx, double dy) {
    Four v0, v1, v2, v3;
    if (dx == 0) {
        v0 = load(p - stride), v1 = load(p), v2 = load(p + stride), v3 = load(p + 2 * stride);
    } else {
        v0 = cubic_row(p - stride, dx), v1 = cubic_row(p, dx);
        v2 = cubic_row(p + stride, dx), v3 = cubic_row(p + 2 * stride, dx);
    }
    return CUBIC(v0, v1, v2, v3, dy);
}

static inline Four linear_at(const float *p, ptrdiff_t stride, double dx, double dy) {
    Four v00 = load(p), v01 = load(p + 3), v10 = load(p + stride), v11 = load(p + stride + 3);
    Four v0 = LINEAR(v00, v01, dx), v1 = LINEAR(v10, v11, dx);
    return LINEAR(v0, v1, dy);
}

static inline void store_pixel(uint8_t *out, Four v) {
    Four zero = {0}, most = zero + 255;
    FourLongs low = v > zero, high = v > most;
    v = (Four)(((FourLongs)v & low & ~high) | ((FourLongs)most & high));
    FourBytes bytes = __builtin_convertvector(__builtin_convertvector(v, FourInts), FourBytes);
    memcpy(out, &bytes, 3);
}

/* The general affine map, pixel by pixel. */
static void sample_row(const Map *map, uint8_t *out) {
    for (int x = 0; x < map->width; x++, out += 3) {
        if (map->row[x] == OUTSIDE) {
            memcpy(out, map->fill, 3);
            continue;
        }
        const float *p = map->first + (ptrdiff_t)map->row[x] * map->stride + (ptrdiff_t)map->column[x] * 3;
        if (map->filter == PILLOW_BICUBIC) store_pixel(out, cubic_at(p, map->stride, map->dx[x], map->dy[x]));
        else store_pixel(out, linear_at(p, map->stride, map->dx[x], map->dy[x]));
    }
}

/* Computes the source positions of row y. */
static void place_row(Map *map, int y, const double m[6]) {
    double width = map->width, height = map->height;
    for (int x = 0; x < map->width; x++) {
        double u = m[0] * (x + 0.5) + m[1] * (y + 0.5) + m[2], v = m[3] * (x + 0.5) + m[4] * (y + 0.5) + m[5];
        bool inside = u >= 0 && u < width && v >= 0 && v < height;
        double column = floor(u - 0.5), row = floor(v - 0.5);
        map->dx[x] = u - 0.5 - column;
        map->dy[x] = v - 0.5 - row;
        map->column[x] = inside ? (int)column : 0;
        map->row[x] = inside ? (int)row : OUTSIDE;
    }
}

/* Computes n bytes, each from its neighbours `next` numbers apart. */
static void slide_numbers(uint8_t *out, const float *in, ptrdiff_t next, const double *d, int n, PillowFilter filter) {
    for (int i = 0; i < n && filter == PILLOW_BILINEAR; i++) {
        double v0 = in[i], v1 = in[i + next];
        out[i] = (uint8_t)(int)LINEAR(v0, v1, d[i]);
    }
    for (int i = 0; i < n && filter == PILLOW_BICUBIC; i++) {
        double v0 = in[i - next], v1 = in[i], v2 = in[i + next], v3 = in[i + 2 * next], v = CUBIC(v0, v1, v2, v3, d[i]);
        v = v > 0 ? v : 0;
        v = v < 255 ? v : 255;
        out[i] = (uint8_t)(int)v;
    }
}

/* Maps of the form (1, m1, m2, 0, 1, m5) with m1 = m2 = 0 or m5 = 0 move whole rows: byte i of the result comes from
 * the bytes around i + a constant, and either dx or dy is 0.  False when rounding breaks that. */
static bool slide_row(Map *map, uint8_t *out) {
    int first = 0, last = map->width;
    while (first < last && map->row[first] == OUTSIDE) first++;
    while (last > first && map->row[last - 1] == OUTSIDE) last--;
    bool one_row = true, across = true, down = true;
    for (int x = first; x < last; x++) {
        one_row &= map->row[x] == map->row[first] && map->column[x] - x == map->column[first] - first;
        across &= map->dy[x] == 0;
        down &= map->dx[x] == 0 && map->dy[x] == map->dy[first];
    }
    if (!one_row || !(across || down)) return false;
    for (int x = 0; x < first; x++) memcpy(out + x * 3, map->fill, 3);
    for (int x = last; x < map->width; x++) memcpy(out + x * 3, map->fill, 3);
    if (first == last) return true;
    const float *in = map->first + (ptrdiff_t)map->row[first] * map->stride + (ptrdiff_t)map->column[first] * 3;
    double *d = map->slide;
    for (int x = first; x < last; x++)
        for (int c = 0; c < 3; c++) *d++ = across ? map->dx[x] : map->dy[x];
    slide_numbers(out + first * 3, in, across ? 3 : map->stride, map->slide, (last - first) * 3, map->filter);
    return true;
}

/* The pixel of a coordinate, -1 before the first. */
static int pixel_at(double v) { return v < 0 ? -1 : (int)v; }

static bool is_within(int i, int n) { return i >= 0 && i < n; }

/* The nearest pixels of a map that only scales and moves: one column of the source for each column. */
static void move_nearest(uint8_t *pixels, const uint8_t *source, int height, int width, const double m[6],
                         const uint8_t fill[3]) {
    double v = m[5] + m[4] * 0.5;
    for (int y = 0; y < height; y++, v += m[4]) {
        double u = m[2] + m[0] * 0.5;
        int row = pixel_at(v);
        for (int x = 0; x < width; x++, u += m[0], pixels += 3) {
            int column = pixel_at(u);
            bool inside = is_within(row, height) && is_within(column, width);
            memcpy(pixels, inside ? source + ((size_t)row * (size_t)width + (size_t)column) * 3 : fill, 3);
        }
    }
}

/* The nearest pixels of any map, in units of 1/65536. */
static void turn_nearest(uint8_t *pixels, const uint8_t *source, int height, int width, const double m[6],
                         const uint8_t fill[3]) {
    int fixed[6];
    for (int i = 0; i < 6; i++) {
        double v = i % 3 < 2 ? m[i] : m[i] + m[i - 2] * 0.5 + m[i - 1] * 0.5;
        fixed[i] = (int)floor(v * 65536 + 0.5);
    }
    for (int y = 0; y < height; y++, fixed[2] += fixed[1], fixed[5] += fixed[4]) {
        int u = fixed[2], v = fixed[5];
        for (int x = 0; x < width; x++, u += fixed[0], v += fixed[3], pixels += 3) {
            int column = u >> 16, row = v >> 16;
            bool inside = is_within(row, height) && is_within(column, width);
            memcpy(pixels, inside ? source + ((size_t)row * (size_t)width + (size_t)column) * 3 : fill, 3);
        }
    }
}

void pillow_affine(uint8_t *pixels, uint8_t *scratch, int height, int width, const double m[6], PillowFilter filter,
                   const uint8_t fill[3]) {
    if (filter == PILLOW_NEAREST) {
        memcpy(scratch, pixels, (size_t)height * (size_t)width * 3);
        (m[1] == 0 && m[3] == 0 ? move_nearest : turn_nearest)(pixels, scratch, height, width, m, fill);
        return;
    }
    Map map = map_open(scratch, pixels, height, width, filter, fill);
    bool slides = m[0] == 1 && m[3] == 0;
    for (int y = 0; y < height; y++, pixels += (size_t)width * 3) {
        place_row(&map, y, m);
        if (!slides || !slide_row(&map, pixels)) sample_row(&map, pixels);
    }
}

/* Python's round(x, 15). */
static double round15(double x) {
    char text[32];
    snprintf(text, sizeof text, "%.15f", x);
    return strtod(text, NULL);
}

void pillow_rotate(uint8_t *pixels, uint8_t *scratch, int height, int width, double degrees, PillowFilter filter,
                   const uint8_t fill[3]) {
    double turn = fmod(degrees, 360), x = width / 2.0, y = height / 2.0;
    if (turn < 0) turn += 360;
    if (turn == 0) return;
    double angle = -(turn * (M_PI / 180)), cosine = round15(cos(angle)), sine = round15(sin(angle));
    double m[6] = {cosine, sine, cosine * -x + sine * -y + 0.0, -sine, cosine, -sine * -x + cosine * -y + 0.0};
    m[2] += x;
    m[5] += y;
    pillow_affine(pixels, scratch, height, width, m, filter, fill);
}
