/* The plans of transforms.h.  A plan has no work area of its own: it borrows the kernels' workspace, which --describe
 * counts. */
#include "kernels/lisa/transforms.h"

#include <device.cuh>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device/device.h"
#include "kernels/tokens/grid.h"

extern "C" {
#include "core/die.h"
}

bool transforms_by_cufft(bool fits) {
    const char *asked = getenv("VIT_TRANSFORMS");
    bool cufft = asked && !strcmp(asked, "cufft");
    if (asked && !cufft && strcmp(asked, "blocks"))
        die("VIT_TRANSFORMS=%s in the environment: expected blocks or cufft", asked);
    return transforms_available() && (cufft || !fits);
}

#ifdef VIT_CUFFT

#include <cufft.h>

#define CUFFT_TRY(call)                                                                  \
    do {                                                                                 \
        cufftResult status_ = (call);                                                    \
        if (status_ != CUFFT_SUCCESS) cuda_fail(#call, __FILE__, __LINE__, said(status_)); \
    } while (0)

static const char *said(cufftResult status) {
    switch (status) {
    case CUFFT_ALLOC_FAILED: return "out of device memory";
    case CUFFT_INVALID_SIZE: return "a size that cuFFT does not have";
    case CUFFT_SETUP_FAILED: return "cuFFT cannot start";
    case CUFFT_EXEC_FAILED: return "the transform failed";
    default: break;
    }
    static char text[40];
    snprintf(text, sizeof text, "cuFFT's error %d", (int)status);
    return text;
}

static struct Known {
    Transform transform;
    Known *next;
} *known; /* the most recently used plan first */

/* A model with one grid has fewer: at most five plans for each of its shapes, in training and in evaluation. */
enum { MOST = 256 };

static void (*close_others)(void);

static void plan_free(Known *k) {
    CUFFT_TRY(cufftDestroy(k->transform.forward));
    CUFFT_TRY(cufftDestroy(k->transform.backward));
    free(k);
}

static void close_all(void) {
    while (known) {
        Known *next = known->next;
        plan_free(known);
        known = next;
    }
    if (close_others) close_others();
    close_others = NULL;
}

static int handle_make(const Transform &t, cufftType type, size_t *work_bytes) {
    cufftHandle handle;
    int image[] = {t.tokens.frames, t.tokens.rows, t.tokens.columns}, line[] = {t.N}, still = t.tokens.frames == 1;
    int rank = !t.grid ? 1 : still ? 2 : 3;
    CUFFT_TRY(cufftCreate(&handle));
    CUFFT_TRY(cufftSetAutoAllocation(handle, 0));
    CUFFT_TRY(cufftMakePlanMany(handle, rank, t.grid ? image + still : line, NULL, 1, 0, NULL, 1, 0, type, t.batch,
                                work_bytes));
    CUFFT_TRY(cufftSetStream(handle, kernels_stream));
    return handle;
}

bool transforms_available(void) { return true; }

static bool serves(const Transform &t, Grid tokens, bool grid, int batch) {
    bool same = grid ? t.tokens.frames == tokens.frames && t.tokens.rows == tokens.rows &&
                           t.tokens.columns == tokens.columns
                     : t.N == grid_tokens(tokens);
    return t.grid == grid && t.batch == batch && same;
}

const Transform *transform_plan(Grid tokens, bool grid, int batch) {
    for (Known **k = &known; *k; k = &(*k)->next) {
        if (!serves((*k)->transform, tokens, grid, batch)) continue;
        Known *found = *k;
        *k = found->next;
        found->next = known;
        known = found;
        return &found->transform;
    }
    device_open();
    if (!known) {
        close_others = library_close;
        library_close = close_all;
    }
    Known *k = static_cast<Known *>(xcalloc(1, sizeof *k, "transform plan"));
    Transform *t = &k->transform;
    size_t back;
    *t = {tokens, grid, batch, grid_tokens(tokens), half_of(tokens, grid), 0, 0, 0};
    t->forward = handle_make(*t, CUFFT_R2C, &t->work_bytes);
    t->backward = handle_make(*t, CUFFT_C2R, &back);
    if (back > t->work_bytes) t->work_bytes = back;
    k->next = known;
    known = k;
    Known **last = &known;
    for (int i = 0; *last && i < MOST; i++) last = &(*last)->next;
    if (*last) {
        device_synchronize();
        plan_free(*last);
        *last = NULL;
    }
    return t;
}

void transform_forward(const Transform *t, float2 *X, float *x, void *work) {
    CUFFT_TRY(cufftSetWorkArea(t->forward, work));
    CUFFT_TRY(cufftExecR2C(t->forward, x, X));
}

void transform_backward(const Transform *t, float *x, float2 *X, void *work) {
    CUFFT_TRY(cufftSetWorkArea(t->backward, work));
    CUFFT_TRY(cufftExecC2R(t->backward, X, x));
}

#else

bool transforms_available(void) { return false; }
const Transform *transform_plan(Grid, bool, int) { die("this program was built without cuFFT"); }
void transform_forward(const Transform *, float2 *, float *, void *) {}
void transform_backward(const Transform *, float *, float2 *, void *) {}

#endif
