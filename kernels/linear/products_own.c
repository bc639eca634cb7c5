/* The products of a linear layer in plain C.  The weights, or x where it is the second factor, are copied to panels by
 * each product (kernels/linear/panels.h); x and dy are read in place, or widened a few rows at a time. */
#include <stdbool.h>

#include "core/die.h"
#include "core/integers.h"
#include "kernels/cpu/activations.h"
#include "kernels/device/device.h"
#include "kernels/device/workspace.h"
#include "kernels/linear/panels.h"
#include "kernels/linear/products.h"

/* == Rows of real times panels ==================================================================================== */

/* y [m,n] with rows y_row apart = x [m,k] with rows x_row apart times panels, + b. */
typedef struct {
    real *y;
    const real *x;
    const float *panels, *b;
    size_t m, y_row, x_row;
    int n, k;
} Rows;

/* If y is float and a panel ends within it, the product is computed in y, which is initialised with the bias. */
static void rows_by_panel(const Rows *r, const float *a, size_t lda, size_t row, int m, int j) {
    int width = panel_width(j, r->n);
    const float *panel = r->panels + (size_t)j * (size_t)r->k * PANEL, *b = r->b ? r->b + j * PANEL : NULL;
    real *y = r->y + row * r->y_row + (size_t)(j * PANEL);
    float tile[PANEL_ROWS_MOST * PANEL], *c = tile;
    size_t ldc = PANEL;
#ifdef VIT_FP32
    if (width % TILE == 0) c = y, ldc = r->y_row;
#endif
    for (int i = 0; b && i < m; i++)
        for (int e = 0; e < width; e += TILE) vec_store(c + (size_t)i * ldc + e, vec_load_part(b + e, (size_t)(width - e)));
    panel_multiply(c, ldc, a, lda, panel, m, width, r->k, b != NULL);
    for (int i = 0; c == tile && i < m; i++) reals_round(y + (size_t)i * r->y_row, c + i * PANEL, (size_t)width);
}

static void rows_task(const Rows *r, const PanelTasks *tasks, int task, float *wide) {
    size_t row = (size_t)(task % tasks->row_tasks) * (size_t)tasks->rows;
    int m = r->m - row < (size_t)tasks->rows ? (int)(r->m - row) : tasks->rows;
    int first = task / tasks->row_tasks * tasks->panels, end = smaller(first + tasks->panels, panels_of(r->n));
    FloatRows a = reals_as_floats(wide, (size_t)r->k, r->x + row * r->x_row, r->x_row, m, r->k);
    for (int j = first; j < end; j++) rows_by_panel(r, a.at, a.row, row, m, j);
}

/* Floats of widened rows, for each thread. */
static size_t wide_floats(const PanelTasks *tasks, int k) {
    return sizeof(real) == 4 ? 0 : workspace_slice((size_t)tasks->rows * (size_t)k);
}

/* == Kept weights ================================================================================================= */

typedef struct {
    const float *w;
    int in, out;
    float *panels;
} Kept;

static Kept *kept;
static size_t kept_count, kept_room;
static bool keeping;

void products_keep_weights(bool keep) {
    for (size_t i = 0; !keep && i < kept_count; i++) device_free(kept[i].panels);
    if (!keep) kept_count = 0;
    keeping = keep;
}

static void pack_weights(float *panels, const float *w, int in, int out) {
#pragma omp for schedule(static)
    for (int j = 0; j < panels_of(out); j++)
        panel_of_columns(panels + (size_t)j * (size_t)in * PANEL, w + (size_t)j * PANEL * (size_t)in, (size_t)in, in,
                         panel_width(j, out));
}

static const float *kept_weights(const float *w, int in, int out) {
    for (size_t i = 0; i < kept_count; i++)
        if (kept[i].w == w && kept[i].in == in && kept[i].out == out) return kept[i].panels;
    memory_shared_begin();
    kept = xgrow(kept, kept_count + 1, &kept_room, sizeof *kept, "a list of weights");
    float *panels = device_malloc(panels_floats(in, out) * sizeof *panels, "weights in panels");
    memory_shared_end();
#pragma omp parallel
    pack_weights(panels, w, in, out);
    kept[kept_count++] = (Kept){w, in, out, panels};
    return panels;
}

/* == The three products of a layer ================================================================================ */

void product_forward(real *y, const real *x, const float *w, const float *b, const LinearShape *s) {
    int in = s->in, out = s->out;
    PanelTasks tasks = panel_tasks(s->n, out, in);
    size_t wide = wide_floats(&tasks, in), shared = keeping ? 0 : panels_floats(in, out);
    float *room = panels_room(shared + wide * (size_t)omp_get_max_threads());
    Rows rows = {y, x, keeping ? kept_weights(w, in, out) : room, b, s->n, (size_t)linear_y_row(s), (size_t)in, out, in};
#pragma omp parallel
    {
        if (!keeping) pack_weights(room, w, in, out);
#pragma omp for schedule(static)
        for (int t = 0; t < tasks.tasks; t++)
            rows_task(&rows, &tasks, t, room + shared + wide * (size_t)omp_get_thread_num());
    }
}

/* dx = dy times panels of rows of w, which are floats, or reals in product_square. */
static void backward_input(real *dx, const real *dy, const float *w, const real *w_real, const LinearShape *s) {
    int in = s->in, out = s->out;
    PanelTasks tasks = panel_tasks(s->n, in, out);
    size_t wide = wide_floats(&tasks, out), shared = panels_floats(out, in);
    float *room = panels_room(shared + wide * (size_t)omp_get_max_threads());
    Rows rows = {dx, dy, room, NULL, s->n, (size_t)in, (size_t)linear_y_row(s), in, out};
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int j = 0; j < panels_of(in); j++) {
            float *panel = room + (size_t)j * (size_t)out * PANEL;
            if (w) panel_of_rows(panel, w + j * PANEL, (size_t)in, out, panel_width(j, in));
            else panel_of_reals(panel, w_real + j * PANEL, (size_t)in, out, panel_width(j, in));
        }
#pragma omp for schedule(static)
        for (int t = 0; t < tasks.tasks; t++)
            rows_task(&rows, &tasks, t, room + shared + wide * (size_t)omp_get_thread_num());
    }
}

void product_backward_input(real *dx, const real *dy, const float *w, const LinearShape *shape) {
    backward_input(dx, dy, w, NULL, shape);
}

void product_square(real *c, const real *a, const real *b, int side) {
    backward_input(c, a, NULL, b, &(LinearShape){(size_t)side, side, side, 0});
}

/* Some rows of dw += dy^T x over `count` rows of dy and x, whose panels are given. */
static void weight_task(float *dw, const real *dy, const float *panels, float *turned, int count, const LinearShape *s,
                        const PanelTasks *tasks, int task) {
    int row = task % tasks->row_tasks * tasks->rows, m = smaller(s->out - row, tasks->rows);
    int first = task / tasks->row_tasks * tasks->panels, end = smaller(first + tasks->panels, panels_of(s->in));
    float tile[PANEL_ROWS_MOST * PANEL];
    panel_turn(turned, dy + row, (size_t)linear_y_row(s), m, count);
    for (int j = first; j < end; j++) {
        int width = panel_width(j, s->in);
        panel_multiply_turned(tile, turned, panels + (size_t)j * (size_t)count * PANEL, m, width, count);
        for (int i = 0; i < m; i++) {
            float *to = dw + (size_t)(row + i) * (size_t)s->in + (size_t)(j * PANEL);
            for (int e = 0; e < width; e += TILE)
                vec_store_part(to + e, vec_load_part(to + e, (size_t)(width - e)) + vec_load(tile + i * PANEL + e),
                               (size_t)(width - e));
        }
    }
}

/* Rows of dy and x are summed a few hundred at a time, each sum from zero, so that long sums keep their digits. */
void product_backward_weight(float *dw, const real *dy, const real *x, const LinearShape *s) {
    int step = panel_step(s->n);
    PanelTasks tasks = panel_tasks((size_t)s->out, s->in, step);
    size_t shared = panels_floats(step, s->in), turned = workspace_slice((size_t)tasks.rows * (size_t)step);
    float *room = panels_room(shared + turned * (size_t)omp_get_max_threads());
#pragma omp parallel
    for (size_t p = 0; p < s->n; p += (size_t)step) {
        int count = s->n - p < (size_t)step ? (int)(s->n - p) : step;
#pragma omp for schedule(static)
        for (int j = 0; j < panels_of(s->in); j++)
            panel_of_reals(room + (size_t)j * (size_t)count * PANEL, x + p * (size_t)s->in + (size_t)(j * PANEL),
                           (size_t)s->in, count, panel_width(j, s->in));
#pragma omp for schedule(static)
        for (int t = 0; t < tasks.tasks; t++)
            weight_task(dw, dy + p * (size_t)linear_y_row(s), room, room + shared + turned * (size_t)omp_get_thread_num(),
                        count, s, &tasks, t);
    }
}
