/* The plans of fft.cuh. */
#include "kernels/lisa/fft.cuh"

#include "kernels/device/device.h"
#include "kernels/tokens/grid.h"

extern "C" {
#include "core/die.h"
}

template <typename T>
static T *on_host(size_t count) {
    return static_cast<T *>(xcalloc(count, sizeof(T), "transform plan"));
}

/* The copy on the device; the host's is gone. */
template <typename T>
static const T *to_device(T *host, size_t count) {
    T *device = static_cast<T *>(device_malloc(count * sizeof(T), "transform plan"));
    device_upload(device, host, count * sizeof(T));
    free(host);
    return device;
}

/* The butterflies of one stage, in blocks of L numbers along the axis. */
static const FftPlace *places_of(const FftAxis &axis, int radix, int L, int N) {
    int m = L / radix, each = axis.n / radix, all = N / radix;
    FftPlace *places = on_host<FftPlace>((size_t)all);
    for (int u = 0; u < all; u++) {
        int sequence = u / each, v = u % each, j = v % m;
        int first = sequence / axis.beside * axis.step + sequence % axis.beside;
        places[u] = {first + (v / m * L + j) * axis.stride, j * (radix - 1)};
    }
    return to_device(places, (size_t)all);
}

static const FftStage *stages_of(const FftPlan &plan, Fft *fft) {
    FftStage *stages = on_host<FftStage>((size_t)plan.axes * FFT_MAX_STAGES);
    const Complex *turns = reinterpret_cast<const Complex *>(to_device(const_cast<float *>(plan.roots),
                                                                       2 * (size_t)plan.root_count + 1));
    for (int a = 0; a < plan.axes; a++) {
        const FftAxis &axis = plan.axis[a];
        for (int i = 0, L = axis.n; i < axis.stages; L /= axis.radix[i++]) {
            int radix = axis.radix[i], m = L / radix;
            stages[fft->stages++] = {radix, m * axis.stride, divisor_of(plan.N / radix), divisor_of(radix),
                                     places_of(axis, radix, L, plan.N), turns, turns + m * (radix - 1)};
            turns += fft_turns(radix, L);
            fft->passes += radix > FFT_LARGEST_RADIX ? radix : 1;
        }
    }
    return to_device(stages, (size_t)plan.axes * FFT_MAX_STAGES);
}

static const FftFrequencies *pairs_of(const FftPlan &plan) {
    FftFrequencies *pairs = on_host<FftFrequencies>((size_t)plan.pairs);
    int Wg = plan.tokens.columns, columns = Wg / 2 + 1;
    for (int i = 0; i < plan.pairs; i++) {
        const FftPair &p = plan.pair[i];
        bool both = p.fx == 0 || 2 * p.fx == Wg;
        pairs[i] = {p.a, p.b, p.fy * columns + p.fx,
                    both ? fft_opposite_row(&plan, p.fy) * columns + p.fx : -1};
    }
    free(const_cast<FftPair *>(plan.pair));
    return to_device(pairs, (size_t)plan.pairs);
}

const Fft *fft_device_plan(Grid tokens, bool grid) {
    static struct Known {
        FftPlan plan; /* without its tables */
        Fft fft;
        Known *next;
    } *known;
    for (Known *k = known; k; k = k->next)
        if (fft_plan_is(&k->plan, tokens, grid)) return &k->fft;
    FftPlan plan = fft_plan_make(tokens, grid, xcalloc);
    Fft fft = {plan.N, plan.pairs, plan.largest, 0, 0, divisor_of(plan.N), divisor_of(plan.pairs), NULL, NULL};
    fft.stage = stages_of(plan, &fft);
    fft.pair = pairs_of(plan);
    Known *k = static_cast<Known *>(xcalloc(1, sizeof *k, "transform plan"));
    *k = {plan, fft, known};
    known = k;
    return &k->fft;
}
