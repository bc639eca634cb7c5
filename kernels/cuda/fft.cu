/* The plans of fft.cuh. */
#include "kernels/cuda/fft.cuh"

#include "kernels/kernels.h"

extern "C" {
#include "core/die.h"
}

const FftPlan *fft_device_plan(Grid tokens, bool grid) {
    static struct Known {
        FftPlan plan;
        Known *next;
    } *known;
    for (Known *k = known; k; k = k->next)
        if (fft_plan_is(&k->plan, tokens, grid)) return &k->plan;
    FftPlan host = fft_plan_make(tokens, grid, xcalloc);
    size_t roots = (2 * (size_t)host.root_count + 2) * sizeof(float), pairs = host.pairs * sizeof(FftPair);
    float *device_roots = static_cast<float *>(device_malloc(roots, "transform plan"));
    FftPair *device_pair = static_cast<FftPair *>(device_malloc(pairs, "transform plan"));
    device_upload(device_roots, host.roots, 2 * (size_t)host.root_count * sizeof(float));
    device_upload(device_pair, host.pair, pairs);
    free(const_cast<float *>(host.roots));
    free(const_cast<FftPair *>(host.pair));
    host.roots = device_roots;
    host.pair = device_pair;
    Known *k = static_cast<Known *>(xcalloc(1, sizeof *k, "transform plan"));
    *k = {host, known};
    known = k;
    return &k->plan;
}
