/* Rows of tokens in the order of windows, and back. */
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/tokens/grid.h"
#include "kernels/tokens/windows.h"

static void windows_copy(real *rows, real *x, const WindowRows *s, int B, bool back) {
    const WindowShape *w = &s->windows;
    int windows = grid_tokens(window_counts(w)), places = grid_tokens(window_sides(w));
    size_t N = grid_tokens(w->grid), place_row = (size_t)s->parts * s->C, token_row = (size_t)s->parts * s->M;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int window = 0; window < windows; window++)
            for (int i = 0; i < places; i++) {
                int token = window_place(w, window, i).token;
                real *row = rows + (((size_t)b * windows + window) * places + i) * place_row;
                real *of_token = x + (b * N + (token < 0 ? 0 : token)) * token_row;
                for (int part = 0; part < s->parts; part++) {
                    real *here = row + part * (size_t)s->C, *there = of_token + part * (size_t)s->M;
                    if (token >= 0) memcpy(back ? there : here, back ? here : there, s->C * sizeof *here);
                    else if (!back) memset(here, 0, s->C * sizeof *here);
                }
            }
}

void windows_gather(real *rows, const real *x, const WindowRows *shape, int B) {
    windows_copy(rows, (real *)x, shape, B, false);
}

void windows_scatter(real *x, const real *rows, const WindowRows *shape, int B) {
    windows_copy((real *)rows, x, shape, B, true);
}
