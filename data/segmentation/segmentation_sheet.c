#include "data/segmentation/segmentation_sheet.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/integers.h"
#include "core/results/segmentation.h"
#include "data/images/drawing.h"
#include "data/images/image.h"

/* Each group of three bits of the class number gives one high bit to red, green and blue, as in PASCAL VOC's colour map. */
void segmentation_colour(uint8_t rgb[3], int class) {
    memset(rgb, 0, 3);
    for (int bit = 0; bit < 8; bit++)
        for (int k = 0; k < 3; k++)
            if (3 * bit + k < 8) rgb[k] |= (uint8_t)((class >> (3 * bit + k) & 1) << (7 - bit));
}

/* == The legend =================================================================================================== */

typedef struct {
    int class;
    size_t pixels;
} Share;

typedef struct {
    Share share[256]; /* [count], the most frequent first */
    int count;
    size_t total;
    bool shares; /* entries show their share of the labelled pixels, if there are labels without predictions */
    int scale, column, rows, columns; /* scale of letters; width of a column in pixels; arrangement of the entries */
} Legend;

enum { GAP = 4, NAME = 24, LINE = DRAW_LETTER_HEIGHT + 2 };

static int more_frequent(const void *a, const void *b) {
    const Share *x = a, *y = b;
    return x->pixels != y->pixels ? (x->pixels < y->pixels ? 1 : -1) : x->class - y->class;
}

static void count_pixels(size_t pixels[256], const SegmentationView *view, const uint8_t *classes) {
    for (int y = 0; y < view->height; y++)
        for (int x = 0; x < view->width; x++) pixels[classes[(size_t)y * view->label_stride + (size_t)x]]++;
}

static void count_classes(Legend *legend, const SegmentationView *views, int n) {
    size_t pixels[256] = {0};
    for (int i = 0; i < n; i++) {
        count_pixels(pixels, &views[i], views[i].labels);
        if (views[i].predicted) count_pixels(pixels, &views[i], views[i].predicted);
    }
    for (int c = 0; c < 256; c++) {
        if (!pixels[c]) continue;
        legend->share[legend->count++] = (Share){c, pixels[c]};
        legend->total += pixels[c];
    }
    qsort(legend->share, (size_t)legend->count, sizeof *legend->share, more_frequent);
}

static void entry_text(char text[64], const Legend *legend, int i, const char *const *names) {
    const Share *s = &legend->share[i];
    char share[16] = "";
    if (legend->shares) snprintf(share, sizeof share, " %.1f%%", 100 * (double)s->pixels / (double)legend->total);
    if (s->class == SEGMENTATION_IGNORED)
        snprintf(text, 64, "no label%s", share);
    else if (names)
        snprintf(text, 64, "%.*s%s", NAME, names[s->class], share);
    else
        snprintf(text, 64, "class %d%s", s->class, share);
}

/* Fills columns from left to right, as many as `width` has room for. */
static void arrange(Legend *legend, int width, const char *const *names) {
    char text[64];
    legend->scale = width >= 640 ? 2 : 1;
    for (int i = 0; i < legend->count; i++) {
        entry_text(text, legend, i, names);
        legend->column = larger(legend->column, (LINE + 2) * legend->scale + draw_text_width(text, legend->scale));
    }
    legend->column += 2 * GAP;
    legend->columns = clamp(width / legend->column, 1, larger(legend->count, 1));
    legend->rows = (legend->count + legend->columns - 1) / legend->columns;
}

static void draw_legend(Image *sheet, int top, const Legend *legend, const char *const *names) {
    int line = LINE * legend->scale, letters = DRAW_LETTER_HEIGHT * legend->scale;
    for (int i = 0; i < legend->count; i++) {
        char text[64];
        DrawColour colour;
        int x = GAP + i / legend->rows * legend->column, y = top + i % legend->rows * line;
        segmentation_colour(colour.channel, legend->share[i].class);
        entry_text(text, legend, i, names);
        draw_fill(sheet, x, y, x + letters, y + letters, colour);
        draw_text(sheet, x + line + 2 * legend->scale, y, text, legend->scale, (DrawColour){{0, 0, 0}});
    }
}

/* == Pictures ===================================================================================================== */

/* out [height,width,3]: the picture, or with classes a mixture of 2/5 of the picture and 3/5 of the colour of its
 * class. */
static void compose(uint8_t *out, const SegmentationView *view, const uint8_t *classes) {
    for (int y = 0; y < view->height; y++) {
        const uint8_t *in = view->pixels + (size_t)y * view->stride;
        for (int x = 0; x < view->width; x++, out += 3, in += 3) {
            uint8_t colour[3];
            if (classes) segmentation_colour(colour, classes[(size_t)y * view->label_stride + (size_t)x]);
            for (int k = 0; k < 3; k++) out[k] = classes ? (uint8_t)((2 * in[k] + 3 * colour[k]) / 5) : in[k];
        }
    }
}

typedef struct {
    int height, width, zoom, panels, across, down; /* size of the largest picture; number of pictures of a view;
                                                    * arrangement of the views */
} Grid;

static Grid arrange_views(const SegmentationView *views, int n, int least) {
    Grid g = {.height = 1, .width = 1, .panels = views[0].predicted ? 3 : 2};
    for (int i = 0; i < n; i++) {
        g.height = larger(g.height, views[i].height);
        g.width = larger(g.width, views[i].width);
    }
    int shorter = smaller(g.height, g.width);
    g.zoom = (least + shorter - 1) / shorter;
    g.across = clamp((int)ceil(sqrt((double)n * g.height / ((double)g.panels * g.width)) - 0.5), 1, n);
    g.down = (n + g.across - 1) / g.across;
    return g;
}

static bool draw_views(Image *sheet, const SegmentationView *views, int n, const Grid *g, Error *error) {
    size_t bytes = (size_t)g->height * (size_t)g->width * 3;
    int cell_height = g->height * g->zoom + GAP, cell_width = g->panels * (g->width * g->zoom + GAP);
    uint8_t *pixels = malloc(bytes);
    if (!pixels) return refuse_memory(error, bytes, "a picture of classes");
    for (int i = 0; i < n; i++) {
        const uint8_t *const classes[] = {NULL, views[i].labels, views[i].predicted};
        for (int panel = 0; panel < g->panels; panel++) {
            int left = GAP + i % g->across * cell_width + panel * (g->width * g->zoom + GAP / 2);
            compose(pixels, &views[i], classes[panel]);
            draw_pixels(sheet, left, GAP + i / g->across * cell_height, pixels, views[i].height, views[i].width,
                        g->zoom);
        }
    }
    free(pixels);
    return true;
}

bool segmentation_sheet(Image *sheet, const SegmentationView *views, int n, int least, const char *const *names,
                        Error *error) {
    Grid g = arrange_views(views, n, least);
    Legend legend = {.shares = !views[0].predicted};
    int64_t width = GAP + (int64_t)g.across * g.panels * (g.width * g.zoom + GAP);
    int64_t top = GAP + (int64_t)g.down * (g.height * g.zoom + GAP);
    if (width > IMAGE_MAX_SIDE || top > IMAGE_MAX_SIDE || width * top > IMAGE_MAX_PIXELS)
        return refuse(error, "%d pictures of %d x %d are too many for one picture", n, g.height, g.width);
    count_classes(&legend, views, n);
    arrange(&legend, (int)width, names);
    *sheet = (Image){.height = (int)top + legend.rows * LINE * legend.scale + GAP,
                     .width = larger((int)width, legend.column)};
    size_t bytes = (size_t)sheet->height * (size_t)sheet->width * 3;
    sheet->pixels = malloc(bytes);
    if (!sheet->pixels) return refuse_memory(error, bytes, "a picture of classes");
    memset(sheet->pixels, 255, bytes);
    if (!draw_views(sheet, views, n, &g, error)) return free(sheet->pixels), false;
    draw_legend(sheet, (int)top, &legend, names);
    return true;
}

bool segmentation_sheet_write(const char *path, const SegmentationView *views, int n, const char *const *names,
                              Error *error) {
    enum { SMALLEST = 192 };
    Image sheet;
    if (!segmentation_sheet(&sheet, views, n, SMALLEST, names, error)) return false;
    bool ok = image_write_png(path, sheet.pixels, sheet.height, sheet.width, error);
    free(sheet.pixels);
    return ok;
}
