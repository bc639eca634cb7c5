#include "layers/vit/attention_picture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/die.h"
#include "core/safetensors.h"

enum { QUERIES = 4, MOST_WEIGHTS = 1 << 24 };

/* The row of token `query` of the first image, from op->spatial or op->weights. */
static void attention_row(float *row, bool spatial, const Vit *vit, const Attention *a, int head, int query) {
    int absent = vit->trunk.N - a->N;
    void (*row_of)(const Attention *, float *, int, int, int) = spatial ? a->op->spatial : a->op->weights;
    for (int m = 0; m < vit->trunk.N; m++) row[m] = NAN;
    if (row_of && query >= absent) row_of(a, row + absent, 0, head, query - absent);
}

/* to [depth,heads,count,N]: the rows of these queries, or of the first `count` tokens. */
static void attention_rows(float *to, bool spatial, const Vit *vit, const int64_t *queries, int count) {
    int heads = vit->trunk.stages[0].config.heads;
    for (int row = 0; row < vit->trunk.depth * heads * count; row++) {
        const Attention *a = &trunk_block(&vit->trunk, row / (heads * count))->attention;
        int query = queries ? (int)queries[row % count] : row % count;
        attention_row(to + (size_t)row * (size_t)vit->trunk.N, spatial, vit, a, row / count % heads, query);
    }
}

static void stream_norms(float *norms, const Vit *vit) {
    const Stage *stage = &vit->trunk.stages[0];
    size_t M = (size_t)stage->config.dim, N = (size_t)vit->trunk.N;
    float *x = xcalloc(N * M, sizeof *x, "attention picture");
    for (int i = 0; i <= vit->trunk.depth; i++) {
        const Station *s = &stage->stations[2 * i];
        float *row = norms + (size_t)i * N;
        size_t absent = N - (size_t)s->N;
        real_download(x, s->x, (size_t)s->N * M);
        for (size_t n = 0; n < N; n++) {
            double squares = n < absent ? NAN : 0;
            for (size_t c = 0; n >= absent && c < M; c++)
                squares += (double)x[(n - absent) * M + c] * x[(n - absent) * M + c];
            row[n] = (float)sqrt(squares);
        }
    }
    free(x);
}

/* The pixels of the frame at the middle of each patch of a clip, between 0 and 1; those of an image. */
static void middle_frames(float *out, const Vit *vit, const uint8_t *pixels) {
    const VitSettings *s = &vit->settings;
    size_t size = 3 * (size_t)s->img_size[0] * (size_t)s->img_size[1];
    int step = s->tubelet > 1 ? 2 : 1;
    for (int t = 0; t < vit->trunk.grid.frames; t++)
        for (size_t i = 0; i < size; i++) *out++ = (float)pixels[(size_t)(step * t) * size + i] / 255;
}

void attention_picture_write(const Vit *vit, const uint8_t *pixels, const char *path) {
    size_t depth = (size_t)vit->trunk.depth, H = (size_t)vit->trunk.stages[0].config.heads, N = (size_t)vit->trunk.N, count = QUERIES;
    size_t rows = depth * H, height = (size_t)vit->settings.img_size[0], width = (size_t)vit->settings.img_size[1];
    bool whole = rows * N * N <= MOST_WEIGHTS;
    const char *what = "attention picture";
    int64_t queries[QUERIES];
    char grid[48], attn[VIT_ATTN_SIZE];
    int area = vit->trunk.grid.rows * vit->trunk.grid.columns, T = vit->trunk.grid.frames, before = vit->trunk.N - (T - T / 2) * area;
    bool clip = vit->settings.frames > 1;
    size_t frames = (size_t)T;
    for (int q = 0; q < QUERIES; q++)
        queries[q] = before + (vit->trunk.grid.rows * (1 + 2 * (q / 2)) / 4) * vit->trunk.grid.columns +
                     vit->trunk.grid.columns * (1 + 2 * (q % 2)) / 4;
    SafeTensorEntry out[] = {
        {"weights", SAFE_F32, 4, {depth, H, count, N}, xcalloc(rows * count, N * sizeof(float), what)},
        {"spatial", SAFE_F32, 4, {depth, H, count, N}, xcalloc(rows * count, N * sizeof(float), what)},
        {"image", SAFE_F32, 3, {height, width, 3}, xcalloc(3 * frames * height, width * sizeof(float), what)},
        {"norms", SAFE_F32, 2, {depth + 1, N}, xcalloc(depth + 1, N * sizeof(float), what)},
        {"queries", SAFE_I64, 1, {count}, queries},
        {"matrix", SAFE_F32, 4, {depth, H, N, N}, whole ? xcalloc(rows * N, N * sizeof(float), what) : NULL},
        {"spatial_matrix", SAFE_F32, 4, {depth, H, N, N}, whole ? xcalloc(rows * N, N * sizeof(float), what) : NULL},
    };
    if (clip) out[2] = (SafeTensorEntry){"image", SAFE_F32, 4, {frames, height, width, 3}, out[2].data};
    attention_rows((float *)out[0].data, false, vit, queries, QUERIES);
    attention_rows((float *)out[1].data, true, vit, queries, QUERIES);
    middle_frames((float *)out[2].data, vit, pixels);
    stream_norms((float *)out[3].data, vit);
    if (whole) attention_rows((float *)out[5].data, false, vit, NULL, vit->trunk.N);
    if (whole) attention_rows((float *)out[6].data, true, vit, NULL, vit->trunk.N);
    if (clip) snprintf(grid, sizeof grid, "%dx%dx%d", T, vit->trunk.grid.rows, vit->trunk.grid.columns);
    else snprintf(grid, sizeof grid, "%dx%d", vit->trunk.grid.rows, vit->trunk.grid.columns);
    SafeMetadata metadata[] = {{"grid", grid}, {"attn", vit_attn_names(&vit->settings, attn)}};
    safetensors_write(path, out, whole ? 7 : 5, metadata, 2, &error_fatal);
    for (int i = 0; i < 7; i++)
        if (out[i].data != queries) free((void *)out[i].data);
}
