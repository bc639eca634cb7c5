/* A learned filter for every channel in the frequency domain; the formulas are those of kernels/lisa/global_filter.c. A
 * block transforms L channels of two images at a time in its shared memory (fft.cuh).  The filter's gradient is summed
 * over slices of the batch in workspace, and the slices are added in order. */
#include "kernels/lisa/fft.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/lisa/transforms.h"
#include "kernels/lisa/global_filter.h"
#include "kernels/tokens/grid.h"

extern "C" {
#include "core/die.h"
}

enum { THREADS = FFT_THREADS, BLOCKS = 528, SHARED_WISH = 64 * 1024 };

struct FilterShape {
    Fft fft;
    int B, N, M, P; /* P pairs of frequencies */
    int L, groups;  /* channels in a block; blocks for all of them */
    int slices, slice; /* of the images, and images in one, an even number */
    Divisor by_M, by_L, by_groups;
};

static size_t sequences_bytes(const Fft &fft, int L) {
    return (size_t)L * fft.N * sizeof(Complex) * (fft.largest > 1 ? 2 : 1);
}

static size_t most_slices(const FilterShape &s) { return ceil_div(BLOCKS, s.groups); }

static FilterShape shape_of(int B, Grid grid, int M) {
    const Fft *fft = fft_device_plan(grid, true);
    FilterShape s = {*fft, B, fft->N, M, fft->P, M, 1, 1, 0, divisor_of(M), {}, {}};
    while (s.L > 1 && 2 * sequences_bytes(s.fft, s.L) > SHARED_WISH) s.L--;
    s.groups = (int)ceil_div(M, s.L);
    s.L = (int)ceil_div(M, s.groups);
    s.slice = (int)ceil_div(B, most_slices(s));
    s.slice += s.slice % 2;
    s.slices = (int)ceil_div(B, s.slice);
    s.by_L = divisor_of(s.L);
    s.by_groups = divisor_of(s.groups);
    return s;
}

/* A smaller batch may have more slices: this is enough for them, too. */
static size_t blocks_workspace(int B, Grid grid, int M) {
    FilterShape s = shape_of(B, grid, M);
    return blocks_for(B, 2, most_slices(s)) * (size_t)s.P * s.M * sizeof(Complex);
}

/* E / N. */
DEVICE Complex filter_of(const Complex *w, const FftFrequencies &p, int c, const FilterShape &s) {
    Complex a = w[(size_t)p.entry * s.M + c];
    if (p.opposite >= 0) {
        Complex b = w[(size_t)p.opposite * s.M + c];
        a = complex_of(0.5f * (a.x + b.x), 0.5f * (a.y - b.y));
    }
    return scaled(1.0f / s.N, a);
}

/* Calls visit(l, n) for the existing channels of a group and n < count, with adjacent channels. */
template <typename Visit>
DEVICE void for_channels(int channels, int count, const FilterShape &s, Visit visit) {
    for (int i = (int)threadIdx.x; i < s.L * count; i += THREADS) {
        int l, n = divided(i, s.by_L, &l);
        if (l < channels) visit(l, n);
    }
}

/* z [L,N] = the spectra of `channels` channels from c of images b and b + 1. */
DEVICE void load_images(Complex *z, Complex *copy, const real *x, int b, int c, int channels, const FilterShape &s) {
    size_t image = (size_t)s.N * s.M;
    for_channels(channels, s.N, s, [&](int l, int i) {
        const real *from = x + b * image + (size_t)i * s.M + c + l;
        z[l * s.N + i] = complex_of(to_float(from[0]), b + 1 < s.B ? to_float(from[image]) : 0);
    });
    block_sync();
    fft_run(z, copy, s.fft, channels, false);
}

/* y = z filtered; in the backward pass with the conjugate filter. */
DEVICE void store_filtered(real *y, Complex *z, Complex *copy, const Complex *w, bool conjugate, int b, int c,
                           int channels, const FilterShape &s) {
    size_t image = (size_t)s.N * s.M;
    for_channels(channels, s.P, s, [&](int l, int i) {
        FftFrequencies p = s.fft.pair[i];
        Complex e = filter_of(w, p, c + l, s), *sequence = z + l * s.N;
        Complex conjugated = complex_of(e.x, -e.y);
        sequence[p.a] = times(sequence[p.a], conjugate ? conjugated : e);
        if (p.a != p.b) sequence[p.b] = times(sequence[p.b], conjugate ? e : conjugated);
    });
    block_sync();
    fft_run(z, copy, s.fft, channels, true);
    for_channels(channels, s.N, s, [&](int l, int i) {
        real *to = y + b * image + (size_t)i * s.M + c + l;
        to[0] = to_real(z[l * s.N + i].x);
        if (b + 1 < s.B) to[image] = to_real(z[l * s.N + i].y);
    });
    block_sync();
}

DEVICE int channels_from(int c, const FilterShape &s) { return s.M - c < s.L ? s.M - c : s.L; }

__global__ void __launch_bounds__(THREADS)
    global_filter_forward_kernel(real *y, const real *x, const Complex *w, FilterShape s) {
    SHARED(Complex, z);
    Complex *copy = z + (size_t)s.L * s.N;
    int group, b = 2 * divided((int)blockIdx.x, s.by_groups, &group), c = group * s.L, channels = channels_from(c, s);
    load_images(z, copy, x, b, c, channels, s);
    store_filtered(y, z, copy, w, false, b, c, channels, s);
}

/* dx, and a slice's share of dE in `shares` [slices,P,M]. */
__global__ void __launch_bounds__(THREADS)
    global_filter_backward_kernel(real *dx, Complex *shares, const real *dy, const real *x, const Complex *w,
                                  FilterShape s) {
    SHARED(Complex, z); /* [L,N] of x and of dy, and a copy */
    Complex *g = z + (size_t)s.L * s.N, *copy = g + (size_t)s.L * s.N;
    int group, slice = divided((int)blockIdx.x, s.by_groups, &group), c = group * s.L, channels = channels_from(c, s);
    for (int n = 0; n < s.slice && slice * s.slice + n < s.B; n += 2) {
        int b = slice * s.slice + n;
        load_images(z, copy, x, b, c, channels, s);
        load_images(g, copy, dy, b, c, channels, s);
        for_channels(channels, s.P, s, [&](int l, int p) {
            Complex x1, x2, d1, d2, *sum = shares + ((size_t)slice * s.P + p) * s.M + c + l;
            fft_part(&x1, &x2, z + l * s.N, s.fft.pair[p]);
            fft_part(&d1, &d2, g + l * s.N, s.fft.pair[p]);
            Complex add = plus(correlation(x1, d1), correlation(x2, d2));
            *sum = n ? plus(*sum, add) : add;
        });
        block_sync();
        store_filtered(dx, g, copy, w, true, b, c, channels, s);
    }
}

/* A thread for every pair and channel. */
__global__ void __launch_bounds__(THREADS)
    global_filter_finish_kernel(Complex *dw, const Complex *shares, FilterShape s) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, all = (size_t)s.P * s.M;
    if (at >= all) return;
    int c;
    FftFrequencies p = s.fft.pair[divided((int)at, s.by_M, &c)];
    Complex sum = complex_of(0, 0);
    for (int slice = 0; slice < s.slices; slice++) sum = plus(sum, shares[slice * all + at]);
    sum = scaled((p.a == p.b ? 1.0f : 2.0f) / s.N, sum);
    if (p.opposite >= 0) sum = scaled(0.5f, sum);
    Complex *own = dw + (size_t)p.entry * s.M + c;
    *own = plus(*own, sum);
    if (p.opposite < 0) return;
    Complex *partner = dw + (size_t)p.opposite * s.M + c;
    *partner = plus(*partner, complex_of(sum.x, -sum.y));
}

static void blocks_forward(void *, real *y, const real *x, const float *w, int B, Grid grid, int M) {
    FilterShape s = shape_of(B, grid, M);
    LAUNCH(global_filter_forward_kernel, (unsigned)(s.groups * ceil_div(B, 2)), THREADS, sequences_bytes(s.fft, s.L), y,
           x, reinterpret_cast<const Complex *>(w), s);
}

static void blocks_backward(void *work, real *dx, float *dw, const real *dy, const real *x, const float *w, int B,
                            Grid grid, int M) {
    FilterShape s = shape_of(B, grid, M);
    Complex *shares = static_cast<Complex *>(work);
    size_t bytes = (size_t)s.L * s.N * sizeof(Complex) + sequences_bytes(s.fft, s.L);
    LAUNCH(global_filter_backward_kernel, (unsigned)(s.groups * s.slices), THREADS, bytes, dx, shares, dy, x,
           reinterpret_cast<const Complex *>(w), s);
    LAUNCH(global_filter_finish_kernel, (unsigned)ceil_div((size_t)s.P * M, THREADS), THREADS, 0,
           reinterpret_cast<Complex *>(dw), shares, s);
}

/* == By cuFFT ===================================================================================================== */

/* Images are processed in chunks.  If there is only a plan for more images than a chunk has, the memory after them is
 * transformed as well, and its result is not read. */
struct FilterChunks {
    Grid grid;
    int M, images;
    const Transform *transform; /* transforms of M images tensors */
    FilterChunks *next;
};

static const size_t MOST_CHUNK_BYTES = (size_t)256 << 20;

static bool same_filter(Grid a, int a_M, Grid b, int b_M) {
    return a.frames == b.frames && a.rows == b.rows && a.columns == b.columns && a_M == b_M;
}

static int images_at_once(int B, Grid grid, int M) {
    size_t each = (size_t)M * (grid_tokens(grid) * sizeof(float) + 2 * (size_t)half_of(grid, true) * sizeof(Complex));
    size_t most = MOST_CHUNK_BYTES > each ? MOST_CHUNK_BYTES / each : 1;
    return most < (size_t)B ? (int)most : B;
}

/* The plan for a chunk, made when memory is planned.  In a step, the smallest one that is large enough is used.  Its
 * transform is made again if it was freed. */
static const FilterChunks *chunks_for(int images, Grid grid, int M, bool in_step) {
    static FilterChunks *known;
    FilterChunks *best = NULL;
    for (FilterChunks *k = known; k; k = k->next)
        if (same_filter(k->grid, k->M, grid, M) && (in_step ? k->images >= images : k->images == images) &&
            (!best || k->images < best->images))
            best = k;
    if (!best) {
        best = static_cast<FilterChunks *>(xcalloc(1, sizeof *best, "transform plan"));
        *best = {grid, M, images, NULL, known};
        known = best;
    }
    best->transform = transform_plan(grid, true, best->images * M);
    return best;
}

struct FilterBuffers {
    float *x;               /* [images,M,N] */
    Complex *spectra, *g;   /* [images,M,F] of x and of dy */
    void *work;
};

static FilterBuffers buffers_of(const FilterChunks *k, void *base, size_t *bytes) {
    size_t next = 0, tensors = (size_t)k->images * k->M;
    auto take = [&](size_t size) {
        void *at = base ? static_cast<char *>(base) + next : NULL;
        next += ceil_div(size, 256) * 256;
        return at;
    };
    FilterBuffers w;
    w.x = static_cast<float *>(take(tensors * k->transform->N * sizeof(float)));
    w.spectra = static_cast<Complex *>(take(tensors * k->transform->F * sizeof(Complex)));
    w.g = static_cast<Complex *>(take(tensors * k->transform->F * sizeof(Complex)));
    w.work = take(k->transform->work_bytes);
    *bytes = next;
    return w;
}

static size_t chunk_bytes(int images, Grid grid, int M, bool in_step) {
    size_t bytes;
    buffers_of(chunks_for(images, grid, M, in_step), NULL, &bytes);
    return bytes;
}

static size_t cufft_workspace(int B, Grid grid, int M, bool in_step) {
    int images = images_at_once(B, grid, M), left = B % images;
    size_t bytes = chunk_bytes(images, grid, M, in_step), last = left ? chunk_bytes(left, grid, M, in_step) : 0;
    return last > bytes ? last : bytes;
}

struct Spectra {
    Grid grid;
    int images, N, F, M;
    Divisor by_F, by_M, by_columns, by_rows; /* columns of a half spectrum */
};

static Spectra spectra_of(const FilterChunks *k, int images) {
    const Transform *t = k->transform;
    return {k->grid, images, t->N, t->F, k->M, divisor_of(t->F), divisor_of(k->M),
            divisor_of(k->grid.columns / 2 + 1), divisor_of(k->grid.rows)};
}

/* The entry of -f, or -1 if that is not in the half spectrum. */
DEVICE int opposite_of(int f, const Spectra &s) {
    int x, y, t = divided(divided(f, s.by_columns, &x), s.by_rows, &y);
    if (x != 0 && 2 * x != s.grid.columns) return -1;
    t = t ? s.grid.frames - t : 0;
    y = y ? s.grid.rows - y : 0;
    return (t * s.grid.rows + y) * (int)s.by_columns.by + x;
}

enum { SQUARE = 32, SQUARE_ROWS = THREADS / SQUARE };

/* planes [images,M,N] = x [images,N,M], or x = planes. */
template <bool BACK>
__global__ void __launch_bounds__(THREADS) global_filter_planes_kernel(float *planes, real *x, int N, int M) {
    SHARED(float, square); /* [SQUARE][SQUARE + 1] */
    int across = (int)threadIdx.x % SQUARE, down = (int)threadIdx.x / SQUARE;
    int n0 = (int)blockIdx.x * SQUARE, m0 = (int)blockIdx.y * SQUARE;
    planes += (size_t)blockIdx.z * N * M;
    x += (size_t)blockIdx.z * N * M;
    for (int i = down; i < SQUARE; i += SQUARE_ROWS) {
        float *to = square + i * (SQUARE + 1) + across;
        if (BACK && m0 + i < M && n0 + across < N) *to = planes[(size_t)(m0 + i) * N + n0 + across];
        if (!BACK && n0 + i < N && m0 + across < M) *to = to_float(x[(size_t)(n0 + i) * M + m0 + across]);
    }
    block_sync();
    for (int i = down; i < SQUARE; i += SQUARE_ROWS) {
        const float *from = square + across * (SQUARE + 1) + i;
        if (BACK && n0 + i < N && m0 + across < M) x[(size_t)(n0 + i) * M + m0 + across] = to_real(*from);
        if (!BACK && m0 + i < M && n0 + across < N) planes[(size_t)(m0 + i) * N + n0 + across] = *from;
    }
}

/* spectra [images,M,F] times E / N, or its conjugate. */
__global__ void __launch_bounds__(THREADS)
    global_filter_multiply_kernel(Complex *spectra, const Complex *w, bool conjugate, Spectra s) {
    int n = (int)(blockIdx.x * THREADS + threadIdx.x), f, c;
    if (n >= s.images * s.M * s.F) return;
    divided(divided(n, s.by_F, &f), s.by_M, &c);
    int opposite = opposite_of(f, s);
    Complex e = w[(size_t)f * s.M + c];
    if (opposite >= 0) {
        Complex b = w[(size_t)opposite * s.M + c];
        e = complex_of(0.5f * (e.x + b.x), 0.5f * (e.y - b.y));
    }
    spectra[n] = scaled(1.0f / s.N, conjugate ? correlation(e, spectra[n]) : times(e, spectra[n]));
}

/* dw [F,M] += conj(spectra) g, summed over the images in order. */
__global__ void __launch_bounds__(THREADS)
    global_filter_correlate_kernel(Complex *dw, const Complex *spectra, const Complex *g, Spectra s) {
    int n = (int)(blockIdx.x * THREADS + threadIdx.x), all = s.M * s.F, f;
    if (n >= all) return;
    int c = divided(n, s.by_F, &f);
    Complex sum = complex_of(0, 0);
    for (int b = 0; b < s.images; b++)
        sum = plus(sum, correlation(spectra[(size_t)b * all + n], g[(size_t)b * all + n]));
    Complex *to = dw + (size_t)f * s.M + c;
    *to = plus(*to, scaled((opposite_of(f, s) < 0 ? 2.0f : 1.0f) / s.N, sum));
}

static dim3 squares(const Spectra &s) {
    return dim3((unsigned)ceil_div(s.N, SQUARE), (unsigned)ceil_div(s.M, SQUARE), (unsigned)s.images);
}
enum { SQUARE_BYTES = SQUARE * (SQUARE + 1) * sizeof(float) };

/* spectra = F x, of images from `first`. */
static void transform(Complex *spectra, const real *x, const FilterBuffers &w, const FilterChunks *k, int first,
                      const Spectra &s) {
    LAUNCH((global_filter_planes_kernel<false>), squares(s), THREADS, SQUARE_BYTES, w.x,
           const_cast<real *>(x) + (size_t)first * s.N * s.M, s.N, s.M);
    transform_forward(k->transform, spectra, w.x, w.work);
}

/* y = the spectra, filtered and transformed back. */
static void filter(real *y, Complex *spectra, const float *filters, bool conjugate, const FilterBuffers &w,
                   const FilterChunks *k, int first, const Spectra &s) {
    LAUNCH(global_filter_multiply_kernel, (unsigned)ceil_div((size_t)s.images * s.M * s.F, THREADS), THREADS, 0,
           spectra, reinterpret_cast<const Complex *>(filters), conjugate, s);
    transform_backward(k->transform, w.x, spectra, w.work);
    LAUNCH((global_filter_planes_kernel<true>), squares(s), THREADS, SQUARE_BYTES, w.x,
           y + (size_t)first * s.N * s.M, s.N, s.M);
}

/* Calls visit(plan, buffers, first image, shape of a chunk) for each chunk. */
template <typename Visit>
static void for_chunks(void *work, int B, Grid grid, int M, Visit visit) {
    int most = images_at_once(B, grid, M);
    for (int first = 0; first < B; first += most) {
        int images = B - first < most ? B - first : most;
        const FilterChunks *k = chunks_for(images, grid, M, true);
        size_t bytes;
        visit(k, buffers_of(k, work, &bytes), first, spectra_of(k, images));
    }
}

static void cufft_forward(void *work, real *y, const real *x, const float *w, int B, Grid grid, int M) {
    for_chunks(work, B, grid, M, [&](const FilterChunks *k, const FilterBuffers &buffers, int first, const Spectra &s) {
        transform(buffers.spectra, x, buffers, k, first, s);
        filter(y, buffers.spectra, w, false, buffers, k, first, s);
    });
}

static void cufft_backward(void *work, real *dx, float *dw, const real *dy, const real *x, const float *w, int B,
                           Grid grid, int M) {
    for_chunks(work, B, grid, M, [&](const FilterChunks *k, const FilterBuffers &buffers, int first, const Spectra &s) {
        transform(buffers.spectra, x, buffers, k, first, s);
        transform(buffers.g, dy, buffers, k, first, s);
        LAUNCH(global_filter_correlate_kernel, (unsigned)ceil_div((size_t)s.M * s.F, THREADS), THREADS, 0,
               reinterpret_cast<Complex *>(dw), buffers.spectra, buffers.g, s);
        filter(dx, buffers.g, w, true, buffers, k, first, s);
    });
}

/* == By blocks or by cuFFT ======================================================================================== */

static bool blocks_fit(int B, Grid grid, int M) {
    return 2 * sequences_bytes(shape_of(B, grid, M).fft, 1) <= launch_shared_most();
}

static bool takes_cufft(int B, Grid grid, int M) { return transforms_by_cufft(blocks_fit(B, grid, M)); }

static size_t workspace_of(int B, Grid grid, int M, bool cufft, bool in_step) {
    return cufft ? cufft_workspace(B, grid, M, in_step) : blocks_workspace(B, grid, M);
}

size_t global_filter_workspace(int B, Grid grid, int M) {
    return workspace_of(B, grid, M, takes_cufft(B, grid, M), false);
}

void global_filter_forward(real *y, const real *x, const float *w, int B, Grid grid, int M) {
    bool cufft = takes_cufft(B, grid, M);
    void *work = cufft ? kernels_workspace(cufft_workspace(B, grid, M, true)) : NULL;
    (cufft ? cufft_forward : blocks_forward)(work, y, x, w, B, grid, M);
}

void global_filter_backward(real *dx, float *dw, const real *dy, const real *x, const float *w, int B, Grid grid,
                            int M) {
    bool cufft = takes_cufft(B, grid, M);
    void *work = kernels_workspace(workspace_of(B, grid, M, cufft, true));
    (cufft ? cufft_backward : blocks_backward)(work, dx, dw, dy, x, w, B, grid, M);
}
