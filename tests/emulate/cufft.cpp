/* A stand-in for cuFFT: batched transforms of one to three dimensions in float, computed by their definition.  Every
 * call destroys the work area, and a transform from complex to real numbers also its input, as the documentation allows
 * for two or more dimensions. */
#include <cufft.h>
#include <math.h>
#include <string.h>

#include <complex>
#include <map>

#include "tests/emulate/standin.h"

using namespace standin;

typedef std::complex<double> Complex;

namespace {
/* How the numbers of a batch are laid out in memory. */
struct Data {
    int embed[3], stride, distance;
};

struct Plan {
    bool made, automatic;
    int rank, n[3], batch;
    cufftType type;
    Data in, out;
    size_t work_bytes;
    void *work;
    cudaStream_t stream;
    bool stream_set;
};
} // namespace

static std::map<int, Plan> plans;
static int plan_last;

static Plan *plan_of(const char *call, cufftHandle handle) {
    auto found = plans.find(handle);
    if (found == plans.end()) fail(call, "no plan, or one that was destroyed");
    return &found->second;
}

cufftResult cufftCreate(cufftHandle *handle) {
    Guard guard("cufftCreate");
    *handle = ++plan_last;
    plans[*handle] = {};
    plans[*handle].automatic = true;
    return CUFFT_SUCCESS;
}

cufftResult cufftDestroy(cufftHandle handle) {
    Guard guard("cufftDestroy");
    forbid_in_capture("cufftDestroy");
    Plan *p = plan_of("cufftDestroy", handle);
    if (p->automatic && p->work) cudaFree(p->work);
    plans.erase(handle);
    return CUFFT_SUCCESS;
}

/* The size of the last dimension. */
static int last_of(const Plan &p, bool complex) {
    return complex && p.type != CUFFT_C2C ? p.n[p.rank - 1] / 2 + 1 : p.n[p.rank - 1];
}

static Data data_of(const char *call, const Plan &p, const int *embed, int stride, int distance, bool complex) {
    Data d = {{1, 1, 1}, 1, 1};
    for (int i = 0; i < p.rank; i++) d.embed[i] = i == p.rank - 1 ? last_of(p, complex) : p.n[i];
    if (!embed) { /* the library ignores stride and distance */
        for (int i = 0; i < p.rank; i++) d.distance *= d.embed[i];
        return d;
    }
    if (stride < 1 || distance < 0) fail(call, "stride %d, distance %d", stride, distance);
    for (int i = 0; i < p.rank; i++) {
        if (i && embed[i] < d.embed[i])
            fail(call, "dimension %d of %d numbers is embedded in %d", i, d.embed[i], embed[i]);
        d.embed[i] = embed[i];
    }
    d.stride = stride;
    d.distance = distance;
    return d;
}

static size_t numbers(const Plan &p, const Data &d, bool complex) {
    size_t last = 0;
    for (int i = 0; i < p.rank; i++)
        last = last * (size_t)(i ? d.embed[i] : 1) + (size_t)(i == p.rank - 1 ? last_of(p, complex) : p.n[i]) - 1;
    return (size_t)(p.batch - 1) * (size_t)d.distance + last * (size_t)d.stride + 1;
}

static bool in_complex(const Plan &p) { return p.type != CUFFT_R2C; }
static bool out_complex(const Plan &p) { return p.type != CUFFT_C2R; }

static Plan plan_describe(const char *call, int rank, const int *n, const int *in_embed, int in_stride, int in_distance,
                          const int *out_embed, int out_stride, int out_distance, cufftType type, int batch) {
    Plan p = {};
    if (rank < 1 || rank > 3) fail(call, "rank %d", rank);
    if (batch < 1) fail(call, "batch %d", batch);
    if (!in_embed != !out_embed) fail(call, "only one of the two sides has an advanced layout");
    p.rank = rank;
    p.batch = batch;
    p.type = type;
    size_t all = (size_t)batch;
    for (int i = 0; i < rank; i++) {
        if (n[i] < 1) fail(call, "dimension %d has %d numbers", i, n[i]);
        p.n[i] = n[i];
        all *= (size_t)n[i];
    }
    p.in = data_of(call, p, in_embed, in_stride, in_distance, in_complex(p));
    p.out = data_of(call, p, out_embed, out_stride, out_distance, out_complex(p));
    p.work_bytes = all * sizeof(cufftComplex);
    return p;
}

cufftResult cufftEstimateMany(int rank, int *n, int *in_embed, int in_stride, int in_distance, int *out_embed,
                              int out_stride, int out_distance, cufftType type, int batch, size_t *work_bytes) {
    Guard guard("cufftEstimateMany");
    *work_bytes = plan_describe("cufftEstimateMany", rank, n, in_embed, in_stride, in_distance, out_embed, out_stride,
                                out_distance, type, batch)
                      .work_bytes;
    return CUFFT_SUCCESS;
}

cufftResult cufftMakePlanMany(cufftHandle handle, int rank, int *n, int *in_embed, int in_stride, int in_distance,
                              int *out_embed, int out_stride, int out_distance, cufftType type, int batch,
                              size_t *work_bytes) {
    const char *call = "cufftMakePlanMany";
    Guard guard(call);
    forbid_in_capture(call);
    Plan *p = plan_of(call, handle);
    if (p->made) fail(call, "the plan is made already");
    Plan made = plan_describe(call, rank, n, in_embed, in_stride, in_distance, out_embed, out_stride, out_distance,
                              type, batch);
    made.made = true;
    made.automatic = p->automatic;
    made.stream = p->stream;
    made.stream_set = p->stream_set;
    if (made.automatic && cudaMalloc(&made.work, made.work_bytes) != cudaSuccess) return CUFFT_ALLOC_FAILED;
    *p = made;
    *work_bytes = made.work_bytes;
    return CUFFT_SUCCESS;
}

cufftResult cufftPlanMany(cufftHandle *handle, int rank, int *n, int *in_embed, int in_stride, int in_distance,
                          int *out_embed, int out_stride, int out_distance, cufftType type, int batch) {
    size_t work_bytes;
    cufftCreate(handle);
    return cufftMakePlanMany(*handle, rank, n, in_embed, in_stride, in_distance, out_embed, out_stride, out_distance,
                             type, batch, &work_bytes);
}
cufftResult cufftPlan1d(cufftHandle *plan, int n, cufftType type, int batch) {
    return cufftPlanMany(plan, 1, &n, NULL, 1, 0, NULL, 1, 0, type, batch);
}
cufftResult cufftPlan2d(cufftHandle *plan, int n0, int n1, cufftType type) {
    int n[] = {n0, n1};
    return cufftPlanMany(plan, 2, n, NULL, 1, 0, NULL, 1, 0, type, 1);
}

cufftResult cufftGetSize(cufftHandle handle, size_t *work_bytes) {
    Guard guard("cufftGetSize");
    Plan *p = plan_of("cufftGetSize", handle);
    if (!p->made) fail("cufftGetSize", "the plan is not made yet");
    *work_bytes = p->work_bytes;
    return CUFFT_SUCCESS;
}

cufftResult cufftSetAutoAllocation(cufftHandle handle, int automatic) {
    Guard guard("cufftSetAutoAllocation");
    Plan *p = plan_of("cufftSetAutoAllocation", handle);
    if (p->made) fail("cufftSetAutoAllocation", "the plan is made already, and has its work area");
    p->automatic = automatic;
    return CUFFT_SUCCESS;
}

cufftResult cufftSetWorkArea(cufftHandle handle, void *work) {
    const char *call = "cufftSetWorkArea";
    Guard guard(call);
    Plan *p = plan_of(call, handle);
    if (!p->made) fail(call, "the plan is not made yet");
    if (p->automatic) fail(call, "the plan has a work area of its own: cufftSetAutoAllocation");
    check_device(call, {"the work area", work, p->work_bytes});
    check_aligned(call, "the work area", work, 256);
    p->work = work;
    return CUFFT_SUCCESS;
}

cufftResult cufftSetStream(cufftHandle handle, cudaStream_t stream) {
    Guard guard("cufftSetStream");
    Plan *p = plan_of("cufftSetStream", handle);
    if (stream) handle_check("cufftSetStream", stream, "stream");
    p->stream = stream;
    p->stream_set = true;
    return CUFFT_SUCCESS;
}

/* == The transform ================================================================================================ */

static size_t place(const Plan &p, const Data &d, int batch, const int *at) {
    size_t index = 0;
    for (int i = 0; i < p.rank; i++) index = index * (size_t)(i ? d.embed[i] : 1) + (size_t)at[i];
    return (size_t)batch * (size_t)d.distance + index * (size_t)d.stride;
}

/* Transforms [n0][n1][n2] along one dimension. */
static void transform(std::vector<Complex> *x, const int *n, int rank, int along, int sign) {
    size_t count = (size_t)n[along], step = 1, all = x->size();
    for (int i = along + 1; i < rank; i++) step *= (size_t)n[i];
    std::vector<Complex> roots(count), line(count);
    for (size_t i = 0; i < count; i++) roots[i] = std::polar(1.0, sign * 2 * M_PI * (double)i / (double)count);
    for (size_t first = 0; first < all; first++) {
        if (first / step % count) continue;
        for (size_t i = 0; i < count; i++) {
            line[i] = 0;
            for (size_t k = 0; k < count; k++) line[i] += (*x)[first + k * step] * roots[i * k % count];
        }
        for (size_t i = 0; i < count; i++) (*x)[first + i * step] = line[i];
    }
}

/* Calls each(index into [n0][n1][n2], coordinates) for the numbers whose last coordinate is below `last`. */
template <typename Each>
static void for_all(const Plan &p, int last, Each each) {
    int at[3] = {}, n[3] = {1, 1, 1};
    for (int i = 0; i < p.rank; i++) n[i] = p.n[i];
    size_t all = (size_t)n[0] * (size_t)n[1] * (size_t)n[2];
    for (size_t i = 0; i < all; i++) {
        size_t rest = i;
        for (int d = p.rank - 1; d >= 0; d--) {
            at[d] = (int)(rest % (size_t)n[d]);
            rest /= (size_t)n[d];
        }
        if (at[p.rank - 1] < last) each(i, at);
    }
}

/* Fills in the half that a transform of real numbers does not store: the conjugates of the opposite elements. */
static void complete(const Plan &p, std::vector<Complex> *x) {
    int half = last_of(p, true);
    std::vector<Complex> given = *x;
    for_all(p, p.n[p.rank - 1], [&](size_t i, const int *at) {
        if (at[p.rank - 1] < half) return;
        size_t opposite = 0;
        for (int d = 0; d < p.rank; d++) opposite = opposite * (size_t)p.n[d] + (size_t)((p.n[d] - at[d]) % p.n[d]);
        (*x)[i] = std::conj(given[opposite]);
    });
}

static void execute(const Plan &p, const void *in, void *out, int sign) {
    size_t all = 1;
    for (int i = 0; i < p.rank; i++) all *= (size_t)p.n[i];
    std::vector<std::vector<Complex>> x((size_t)p.batch);
    for (int b = 0; b < p.batch; b++) {
        std::vector<Complex> &one = x[(size_t)b];
        one.resize(all);
        for_all(p, last_of(p, in_complex(p)), [&](size_t i, const int *at) {
            size_t from = place(p, p.in, b, at);
            one[i] = in_complex(p) ? Complex(static_cast<const cufftComplex *>(in)[from].x,
                                             static_cast<const cufftComplex *>(in)[from].y)
                                   : Complex(static_cast<const float *>(in)[from]);
        });
        if (p.type == CUFFT_C2R) complete(p, &one);
        for (int along = 0; along < p.rank; along++) transform(&one, p.n, p.rank, along, sign);
    }
    memset(p.work, 0xFF, p.work_bytes);
    if (p.type == CUFFT_C2R && p.rank > 1)
        memset(const_cast<void *>(in), 0xFF, numbers(p, p.in, true) * sizeof(cufftComplex));
    for (int b = 0; b < p.batch; b++)
        for_all(p, last_of(p, out_complex(p)), [&](size_t i, const int *at) {
            size_t to = place(p, p.out, b, at);
            Complex y = x[(size_t)b][i];
            if (out_complex(p)) static_cast<cufftComplex *>(out)[to] = {(float)y.real(), (float)y.imag()};
            else static_cast<float *>(out)[to] = (float)y.real();
        });
}

static cufftResult run(const char *call, cufftHandle handle, cufftType type, const void *in, void *out, int sign) {
    Guard guard(call);
    Plan p = *plan_of(call, handle);
    if (!p.made) fail(call, "the plan is not made yet");
    if (p.type != type) fail(call, "the plan was made for another type of transform");
    if (!p.stream_set)
        fail(call, "the plan has no stream: it would run in the legacy stream, for which no other waits");
    if (!p.work) fail(call, "the plan has no work area");
    size_t in_bytes = numbers(p, p.in, in_complex(p)) * (in_complex(p) ? sizeof(cufftComplex) : sizeof(float));
    size_t out_bytes = numbers(p, p.out, out_complex(p)) * (out_complex(p) ? sizeof(cufftComplex) : sizeof(float));
    Operand from = {"the input", in, in_bytes}, to = {"the output", out, out_bytes},
            work = {"the work area", p.work, p.work_bytes};
    check_aligned(call, "the input", in, sizeof(cufftComplex));
    check_aligned(call, "the output", out, sizeof(cufftComplex));
    if (in != out) check_apart(call, from, to);
    else if (p.type != CUFFT_C2C && p.rank > 0 &&
             (p.type == CUFFT_R2C ? p.in : p.out).distance != 2 * (p.type == CUFFT_R2C ? p.out : p.in).distance &&
             p.batch > 1)
        fail(call, "in place, real rows are padded to twice the complex ones");
    check_apart(call, from, work);
    check_apart(call, to, work);
    submit(p.stream, {call, {from, to, work}, simply([=] { execute(p, in, out, sign); })},
           in_bytes + out_bytes);
    return CUFFT_SUCCESS;
}

cufftResult cufftExecC2C(cufftHandle plan, cufftComplex *in, cufftComplex *out, int direction) {
    if (direction != CUFFT_FORWARD && direction != CUFFT_INVERSE) fail("cufftExecC2C", "direction %d", direction);
    return run("cufftExecC2C", plan, CUFFT_C2C, in, out, direction);
}
cufftResult cufftExecR2C(cufftHandle plan, cufftReal *in, cufftComplex *out) {
    return run("cufftExecR2C", plan, CUFFT_R2C, in, out, CUFFT_FORWARD);
}
cufftResult cufftExecC2R(cufftHandle plan, cufftComplex *in, cufftReal *out) {
    return run("cufftExecC2R", plan, CUFFT_C2R, in, out, CUFFT_INVERSE);
}
