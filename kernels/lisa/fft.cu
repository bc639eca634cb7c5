/* The plans of fft.cuh. */
#include "kernels/lisa/fft.cuh"

#include <string.h>

#include "kernels/cuda/runtime.h"
#include "kernels/device/device.h"
#include "kernels/tokens/grid.h"

extern "C" {
#include "core/die.h"
}

struct KnownPlan : FftKnown { /* without the plan's tables */
    Fft fft;
    char *tables; /* all of them on the device */
};

static FftKnown *known;

static void plan_free(FftKnown *k) {
    device_free(static_cast<KnownPlan *>(k)->tables);
    free(k);
}

static void (*close_others)(void);

static void close_all(void) {
    fft_known_free(&known, plan_free);
    if (close_others) close_others();
    close_others = NULL;
}

/* The tables of a plan one after another, in host memory and at their addresses on the device; without memory their
 * bytes are only counted. */
struct Tables {
    char *host, *device;
    size_t bytes;
};

template <typename T>
static T *take(Tables *t, size_t count, const T **on_device) {
    size_t at = t->bytes;
    t->bytes += (count * sizeof(T) + 15) / 16 * 16;
    *on_device = reinterpret_cast<const T *>(t->device + at);
    return t->host ? reinterpret_cast<T *>(t->host + at) : NULL;
}

/* The butterflies of one stage, in blocks of L numbers along the axis. */
static const FftPlace *places_of(Tables *t, const FftAxis &axis, int radix, int L, int N) {
    int m = L / radix, each = axis.n / radix, all = N / radix;
    const FftPlace *on_device;
    FftPlace *places = take(t, (size_t)all, &on_device);
    for (int u = 0; places && u < all; u++) {
        int sequence = u / each, v = u % each, j = v % m;
        int first = sequence / axis.beside * axis.step + sequence % axis.beside;
        places[u] = {first + (v / m * L + j) * axis.stride, j * (radix - 1)};
    }
    return on_device;
}

static const FftStage *stages_of(Tables *t, const FftPlan &plan, Fft *fft) {
    const FftStage *on_device;
    const Complex *turns;
    FftStage *stages = take(t, (size_t)plan.axes * FFT_MAX_STAGES, &on_device);
    Complex *roots = take(t, (size_t)plan.root_count, &turns);
    if (roots) memcpy(roots, plan.roots, (size_t)plan.root_count * sizeof *roots);
    fft->stages = 0;
    fft->passes = 0;
    for (int a = 0; a < plan.axes; a++) {
        const FftAxis &axis = plan.axis[a];
        for (int i = 0, L = axis.n; i < axis.stages; L /= axis.radix[i++]) {
            int radix = axis.radix[i], m = L / radix;
            FftStage stage = {radix, m * axis.stride, divisor_of(plan.N / radix), divisor_of(radix),
                              places_of(t, axis, radix, L, plan.N), turns, turns + m * (radix - 1)};
            if (stages) stages[fft->stages] = stage;
            fft->stages++;
            turns += fft_turns(radix, L);
            fft->passes += radix > FFT_LARGEST_RADIX ? radix : 1;
        }
    }
    return on_device;
}

static const FftFrequencies *pairs_of(Tables *t, const FftPlan &plan) {
    const FftFrequencies *on_device;
    FftFrequencies *pairs = take(t, (size_t)plan.pairs, &on_device);
    int Wg = plan.tokens.columns, columns = Wg / 2 + 1;
    for (int i = 0; pairs && i < plan.pairs; i++) {
        const FftPair &p = plan.pair[i];
        bool both = p.fx == 0 || 2 * p.fx == Wg;
        pairs[i] = {p.a, p.b, p.fy * columns + p.fx,
                    both ? fft_opposite_row(&plan, p.fy) * columns + p.fx : -1};
    }
    return on_device;
}

static void tables_make(KnownPlan *k, Tables t) {
    k->fft.stage = stages_of(&t, k->plan, &k->fft);
    k->fft.pair = pairs_of(&t, k->plan);
    k->bytes = t.bytes;
}

static KnownPlan *plan_make(Grid tokens, bool grid) {
    KnownPlan *k = static_cast<KnownPlan *>(xcalloc(1, sizeof *k, "transform plan"));
    FftPlan plan = k->plan = fft_plan_make(tokens, grid, xcalloc);
    k->fft = {plan.N, plan.pairs, plan.largest, 0, 0, divisor_of(plan.N), divisor_of(plan.pairs), NULL, NULL};
    tables_make(k, {NULL, NULL, 0});
    char *host = static_cast<char *>(xcalloc(1, k->bytes, "transform plan"));
    k->tables = static_cast<char *>(device_malloc(k->bytes, "transform plan"));
    tables_make(k, {host, k->tables, 0});
    device_upload(k->tables, host, k->bytes);
    free(host);
    free(const_cast<float *>(plan.roots));
    free(const_cast<FftPair *>(plan.pair));
    return k;
}

const Fft *fft_device_plan(Grid tokens, bool grid) {
    if (FftKnown *found = fft_known_find(&known, tokens, grid)) return &static_cast<KnownPlan *>(found)->fft;
    device_open();
    if (!known) {
        close_others = library_close;
        library_close = close_all;
    }
    KnownPlan *k = plan_make(tokens, grid);
    fft_known_add(&known, k, plan_free);
    return &k->fft;
}
