#include "kernels/linear/panels.h"

#include <omp.h>
#include <string.h>

#include "core/integers.h"
#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"

/* == Panels ======================================================================================================= */

void panel_of_rows(float *panel, const float *b, size_t ld, int k, int width) {
    for (int p = 0; p < k; p++, b += ld, panel += PANEL)
        for (int j = 0; j < PANEL; j += TILE)
            vec_store(panel + j, j < width ? vec_load_part(b + j, (size_t)(width - j)) : vec_set(0));
}

void panel_of_reals(float *panel, const real *b, size_t ld, int k, int width) {
    for (int p = 0; p < k; p++, b += ld, panel += PANEL)
        for (int j = 0; j < PANEL; j += TILE)
            vec_store(panel + j, j < width ? real_load_part(b + j, (size_t)(width - j)) : vec_set(0));
}

/* Squares of vectors are transposed in registers. */
void panel_of_columns(float *panel, const float *b, size_t ld, int k, int width) {
    for (int j = 0; j < PANEL; j += TILE) {
        int p = 0;
        if (j + TILE <= width)
            for (; p + TILE <= k; p += TILE) tile_transpose(panel + p * PANEL + j, PANEL, b + (size_t)j * ld + p, ld);
        for (; p < k; p++)
            for (int i = j; i < j + TILE; i++) panel[p * PANEL + i] = i < width ? b[(size_t)i * ld + (size_t)p] : 0;
    }
}

/* == Products ===================================================================================================== */

void panel_multiply(float *c, size_t ldc, const float *a, size_t lda, const float *panel, int m, int width, int k, bool add) {
    int step = panel_step((size_t)k);
    for (int p = 0; p == 0 || p < k; p += step) {
        int count = smaller(k - p, step);
        if (width > PANEL - TILE)
            tile_columns(TILE_VECS, c, ldc, a + p, lda, 1, panel + (size_t)p * PANEL, PANEL, m, count, add || p);
        else
            for (int j = 0; j < width; j += TILE)
                tile_columns(1, c + j, ldc, a + p, lda, 1, panel + (size_t)p * PANEL + j, PANEL, m, count, add || p);
    }
}

/* turned: blocks [k,TILE_ROWS] of TILE_ROWS columns of a, all filled at the same time so that a is read row by row. */
void panel_turn(float *turned, const real *a, size_t lda, int m, int k) {
    enum { AHEAD = 8 }; /* rows: the hardware does not prefetch the next one */
    for (int p = 0; p < k; p++, a += lda) {
        float *to = turned + p * TILE_ROWS, part[TILE_ROWS];
        int i = 0;
        for (; i + TILE_ROWS <= m; i += TILE_ROWS, to += (size_t)k * TILE_ROWS) {
            __builtin_prefetch(a + AHEAD * lda + i);
            for (int r = 0; r < TILE_ROWS; r++) part[r] = real_get(a[i + r]);
            memcpy(to, part, sizeof part);
        }
        for (int r = 0; i < m && r < TILE_ROWS; r++) to[r] = i + r < m ? real_get(a[i + r]) : 0;
    }
}

void panel_multiply_turned(float *c, const float *turned, const float *panel, int m, int width, int k) {
    for (int i = 0; i < m; i += TILE_ROWS, turned += (size_t)k * TILE_ROWS, c += TILE_ROWS * PANEL)
        if (width > PANEL - TILE) tile_micro(TILE_ROWS, TILE_VECS, c, PANEL, turned, 1, TILE_ROWS, panel, PANEL, k, false);
        else
            for (int j = 0; j < width; j += TILE)
                tile_micro(TILE_ROWS, 1, c + j, PANEL, turned, 1, TILE_ROWS, panel + j, PANEL, k, false);
}

/* == Threads ====================================================================================================== */

/* The rows of A at a time take at most 128 KiB, if there are then at least two blocks; columns are divided if there are
 * fewer groups of rows than threads. */
PanelTasks panel_tasks(size_t m, int n, int k) {
    enum { FLOATS = 1 << 15 };
    size_t threads = (size_t)omp_get_max_threads(), most = FLOATS / (size_t)(k ? k : 1) / TILE_ROWS * TILE_ROWS;
    if (most < 2 * TILE_ROWS) most = 2 * TILE_ROWS;
    if (most > PANEL_ROWS_MOST) most = PANEL_ROWS_MOST;
    size_t rounds = (m + threads * most - 1) / (threads * most), each = threads * (rounds ? rounds : 1);
    size_t rows = ((m + each - 1) / each + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    if (!rows) rows = TILE_ROWS;
    size_t row_tasks = (m + rows - 1) / rows, columns = panels_of(n), groups = 1;
    if (row_tasks < threads) groups = (threads + row_tasks - 1) / (row_tasks ? row_tasks : 1);
    if (groups > columns) groups = columns ? columns : 1;
    size_t panels = (columns + groups - 1) / groups;
    groups = panels ? (columns + panels - 1) / panels : 0;
    return (PanelTasks){(int)rows, (int)panels, (int)row_tasks, (int)(row_tasks * groups)};
}

float *panels_room(size_t n) {
    static void *room;
    static size_t bytes;
    return workspace_grow(&room, &bytes, n * sizeof(float), "factors of products");
}
