/* A stand-in for cuBLASLt: column-major matrices, factors in bfloat16 or float, sums in float, the epilogues of a
 * linear layer.
 *
 * The heuristic offers several algorithms that add in different orders, so that a program which confuses two of them
 * gets other bits.  One of them splits the sum and needs a workspace, whose content it destroys.  If the preference
 * allows partial sums that are rounded to D's type, algorithms with such sums come first; if it promises an alignment
 * of more than 16 bytes, another algorithm comes first.  An algorithm may rely on the alignment that its preference
 * promised (256 bytes by default), and is valid only for the problem for which it was found.  With
 * VIT_STANDIN_DENIES there is no algorithm for about half of the problems. */
#include <cublasLt.h>
#include <math.h>
#include <string.h>

#include <algorithm>

#include "tests/emulate/standin.h"

using namespace standin;

/* == Descriptors ================================================================================================== */

struct cublasLtContext {};

struct cublasLtMatrixLayoutOpaque {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t ld;
};

struct cublasLtMatmulDescOpaque {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    int32_t a_transposed, b_transposed;
    uint32_t epilogue;
    void *bias, *aux;
    int64_t aux_ld;
    int32_t bias_type, aux_type;
};

struct cublasLtMatmulPreferenceOpaque {
    uint64_t workspace;
    uint32_t reduction, aligned[4]; /* of A, B, C, D */
};

typedef cublasLtMatrixLayoutOpaque Layout;

const char *cublasLtGetStatusName(cublasStatus_t status) {
#define NAME_OF(name, value) \
    case name: return #name;
    switch (status) { CUBLAS_STATUSES(NAME_OF) }
    return "unknown status";
}
const char *cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    Guard guard("cublasLtCreate");
    forbid_in_capture("cublasLtCreate");
    handle_add(*handle = new cublasLtContext, "cuBLASLt handle");
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    Guard guard("cublasLtDestroy");
    handle_remove("cublasLtDestroy", handle, "cuBLASLt handle");
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

static size_t size_of(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

static void layout_check(const char *call, const Layout &l) {
    if (l.type != CUDA_R_32F && l.type != CUDA_R_16BF) fail(call, "type %d is not stood in for", l.type);
    if (!l.rows || !l.columns) fail(call, "a matrix of %zu x %zu", (size_t)l.rows, (size_t)l.columns);
    if (l.ld < (int64_t)l.rows) fail(call, "columns of %zu numbers lie %lld apart", (size_t)l.rows, (long long)l.ld);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
    Guard guard("cublasLtMatrixLayoutCreate");
    Layout l = {type, rows, columns, ld};
    layout_check("cublasLtMatrixLayoutCreate", l);
    handle_add(*layout = new Layout(l), "matrix layout");
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    Guard guard("cublasLtMatrixLayoutDestroy");
    handle_remove("cublasLtMatrixLayoutDestroy", layout, "matrix layout");
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}

/* Sets a field from an attribute, whose size must be the field's. */
template <typename T>
static void set(const char *call, T *field, const void *value, size_t bytes) {
    if (bytes != sizeof *field) fail(call, "the attribute has %zu bytes, not %zu", sizeof *field, bytes);
    memcpy(field, value, sizeof *field);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void *value,
                                                size_t bytes) {
    const char *call = "cublasLtMatrixLayoutSetAttribute";
    Guard guard(call);
    handle_check(call, layout, "matrix layout");
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_ROWS: set(call, &layout->rows, value, bytes); break;
    case CUBLASLT_MATRIX_LAYOUT_COLS: set(call, &layout->columns, value, bytes); break;
    case CUBLASLT_MATRIX_LAYOUT_LD: set(call, &layout->ld, value, bytes); break;
    default: fail(call, "attribute %d is not stood in for", attribute);
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *matmul, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    Guard guard("cublasLtMatmulDescCreate");
    *matmul = new cublasLtMatmulDescOpaque{compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT,
                                           NULL,    NULL,  0,           -1,          -1};
    handle_add(*matmul, "product");
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmul) {
    Guard guard("cublasLtMatmulDescDestroy");
    handle_remove("cublasLtMatmulDescDestroy", matmul, "product");
    delete matmul;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmul, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes) {
    const char *call = "cublasLtMatmulDescSetAttribute";
    Guard guard(call);
    handle_check(call, matmul, "product");
    int32_t mode = 0;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: set(call, &matmul->a_transposed, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_TRANSB: set(call, &matmul->b_transposed, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: set(call, &matmul->epilogue, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: set(call, &matmul->bias, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: set(call, &matmul->bias_type, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: set(call, &matmul->aux, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: set(call, &matmul->aux_ld, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: set(call, &matmul->aux_type, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET: set(call, &mode, value, bytes); break;
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
        set(call, &mode, value, bytes);
        if (mode) fail(call, "only alpha and beta on the host are stood in for");
        break;
    default: fail(call, "attribute %d is not stood in for", attribute);
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    Guard guard("cublasLtMatmulPreferenceCreate");
    *preference = new cublasLtMatmulPreferenceOpaque{0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
    handle_add(*preference, "preference");
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    Guard guard("cublasLtMatmulPreferenceDestroy");
    handle_remove("cublasLtMatmulPreferenceDestroy", preference, "preference");
    delete preference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes) {
    const char *call = "cublasLtMatmulPreferenceSetAttribute";
    Guard guard(call);
    handle_check(call, p, "preference");
    uint32_t mode = 0;
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_SEARCH_MODE: set(call, &mode, value, bytes); break;
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: set(call, &p->workspace, value, bytes); break;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: set(call, &p->reduction, value, bytes); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: set(call, &p->aligned[0], value, bytes); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: set(call, &p->aligned[1], value, bytes); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: set(call, &p->aligned[2], value, bytes); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: set(call, &p->aligned[3], value, bytes); break;
    default: fail(call, "attribute %d is not stood in for", attribute);
    }
    for (uint32_t aligned : p->aligned)
        if (!aligned || aligned & (aligned - 1)) fail(call, "an alignment of %u bytes", aligned);
    return CUBLAS_STATUS_SUCCESS;
}

/* == Problems and algorithms ====================================================================================== */

/* The parts of an epilogue; bits as in cublasLtEpilogue_t. */
static bool adds_bias(uint32_t e) { return !(e & ~(4u | 2 | 32 | 128)) && e & 4; }
static bool makes_bias_gradient(uint32_t e) { return e == 208 || e == 256 || e == 512; }
static bool has_aux(uint32_t e) { return e & 128; }
static bool reads_aux(uint32_t e) { return e == CUBLASLT_EPILOGUE_DGELU || e == CUBLASLT_EPILOGUE_DGELU_BGRAD; }

namespace {
struct Problem {
    cublasLtMatmulDescOpaque matmul;
    Layout a, b, c, d;
    uint64_t m, n, k;
};
} // namespace


static Problem problem_of(const char *call, cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul,
                          cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                          cublasLtMatrixLayout_t d) {
    handle_check(call, handle, "cuBLASLt handle");
    handle_check(call, matmul, "product");
    for (cublasLtMatrixLayout_t l : {a, b, c, d}) {
        handle_check(call, l, "matrix layout");
        layout_check(call, *l);
    }
    Problem p = {*matmul, *a, *b, *c, *d, 0, 0, 0};
    bool ta = matmul->a_transposed != CUBLAS_OP_N, tb = matmul->b_transposed != CUBLAS_OP_N;
    p.m = ta ? a->columns : a->rows;
    p.k = ta ? a->rows : a->columns;
    p.n = tb ? b->rows : b->columns;
    if ((tb ? b->columns : b->rows) != p.k) fail(call, "A and B do not share k");
    if (d->rows != p.m || d->columns != p.n) fail(call, "D is not op(A) op(B)'s size");
    if (c->rows != d->rows || c->columns != d->columns) fail(call, "C and D differ in size");
    return p;
}

static bool known_epilogue(uint32_t e) {
    switch (e) {
#define CASE_OF(name, value) case name:
        CUBLASLT_EPILOGUES(CASE_OF)
        return true;
    default: return false;
    }
}

/* The types that cublasLtMatmul documents for sums in float. */
static bool supported(const Problem &p) {
    const cublasLtMatmulDescOpaque &m = p.matmul;
    if (m.compute != CUBLAS_COMPUTE_32F && m.compute != CUBLAS_COMPUTE_32F_PEDANTIC) return false;
    if (m.scale != CUDA_R_32F || p.a.type != p.b.type || p.c.type != p.d.type) return false;
    if (p.a.type == CUDA_R_32F && p.d.type != CUDA_R_32F) return false;
    if (m.bias_type >= 0 && m.bias_type != p.d.type) return false;
    if (m.aux_type >= 0 && m.aux_type != p.d.type) return false;
    return known_epilogue(m.epilogue);
}

enum Sum { STRAIGHT, BACKWARDS, PAIRS, SPLIT, SPLIT_ROUNDED, SPLIT_IN_PLACE };

namespace {
/* What an algorithm's opaque words contain. */
struct Algorithm {
    uint64_t mark, problem;
    uint32_t sum, parts;
    uint16_t aligned[4];
    uint64_t workspace;
    uint64_t unused[3];
};
} // namespace

static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t), "fits");
static const uint64_t MARK = 0x616c676f72697468;

static uint64_t hash_of(const Problem &p) {
    uint64_t words[] = {p.m,
                        p.n,
                        p.k,
                        (uint64_t)p.a.ld,
                        (uint64_t)p.b.ld,
                        (uint64_t)p.c.ld,
                        (uint64_t)p.d.ld,
                        (uint64_t)p.a.type,
                        (uint64_t)p.d.type,
                        (uint64_t)p.matmul.a_transposed,
                        (uint64_t)p.matmul.b_transposed,
                        p.matmul.epilogue,
                        (uint64_t)p.matmul.aux_ld};
    uint64_t hash = 1469598103934665603u;
    for (uint64_t word : words) hash = (hash ^ word ^ word >> 7) * 1099511628211u;
    return hash ^ hash >> 29;
}

/* Whether the library is to have no algorithm for this problem. */
static bool denied(const Problem &p) { return setting("VIT_STANDIN_DENIES", 0) && hash_of(p) % 2; }

static uint64_t split_bytes(const Problem &p, uint32_t parts) { return parts * p.m * p.n * sizeof(float); }

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t *results, int *found) {
    const char *call = "cublasLtMatmulAlgoGetHeuristic";
    Guard guard(call);
    Problem p = problem_of(call, handle, matmul, a, b, c, d);
    handle_check(call, preference, "preference");
    if (wanted < 1) fail(call, "%d algorithms are asked for", wanted);
    *found = 0;
    uint64_t hash = hash_of(p);
    if (!supported(p) || denied(p)) return CUBLAS_STATUS_NOT_SUPPORTED;
    enum { PARTS = 3 };
    uint32_t schemes = preference->reduction;
    bool split =
        matmul->epilogue == CUBLASLT_EPILOGUE_DEFAULT && p.k >= PARTS && split_bytes(p, PARTS) <= preference->workspace;
    std::vector<Sum> sums;
    if (split && schemes & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE) sums.push_back(SPLIT_ROUNDED);
    if (split && schemes & CUBLASLT_REDUCTION_SCHEME_INPLACE) sums.push_back(SPLIT_IN_PLACE);
    if (split && schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) sums.push_back(SPLIT);
    for (Sum s : {STRAIGHT, PAIRS, BACKWARDS}) sums.push_back(s);
    if (*std::min_element(preference->aligned, preference->aligned + 4) > 16) std::swap(sums.front(), sums.back());
    for (int i = 0; i < wanted && i < (int)sums.size(); i++) {
        bool parts = sums[(size_t)i] >= SPLIT;
        Algorithm algorithm = {MARK, hash, sums[(size_t)i], parts ? (uint32_t)PARTS : 1u, {}, 0, {}};
        for (int j = 0; j < 4; j++)
            algorithm.aligned[j] = (uint16_t)(preference->aligned[j] < 256 ? preference->aligned[j] : 256);
        algorithm.workspace = parts ? split_bytes(p, PARTS) : 0;
        results[i] = {};
        memcpy(&results[i].algo, &algorithm, sizeof algorithm);
        results[i].workspaceSize = algorithm.workspace;
        results[i].state = CUBLAS_STATUS_SUCCESS;
        results[i].wavesCount = 1;
        *found = i + 1;
    }
    return CUBLAS_STATUS_SUCCESS;
}

static Algorithm algorithm_of(const char *call, const cublasLtMatmulAlgo_t *from, const Problem &p) {
    Algorithm algorithm;
    memcpy(&algorithm, from, sizeof algorithm);
    if (algorithm.mark != MARK) fail(call, "the algorithm comes from no heuristic");
    if (algorithm.problem != hash_of(p)) fail(call, "the algorithm was found for another problem");
    return algorithm;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *from, cublasLtMatmulHeuristicResult_t *result) {
    Guard guard("cublasLtMatmulAlgoCheck");
    Problem p = problem_of("cublasLtMatmulAlgoCheck", handle, matmul, a, b, c, d);
    Algorithm algorithm = algorithm_of("cublasLtMatmulAlgoCheck", from, p);
    *result = {*from, algorithm.workspace, CUBLAS_STATUS_SUCCESS, 1, {}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *from,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void *value,
                                                    size_t bytes, size_t *written) {
    const char *call = "cublasLtMatmulAlgoConfigGetAttribute";
    Guard guard(call);
    Algorithm algorithm;
    memcpy(&algorithm, from, sizeof algorithm);
    if (algorithm.mark != MARK) fail(call, "the algorithm comes from no heuristic");
    if (bytes != sizeof(uint32_t)) fail(call, "the attribute has 4 bytes, not %zu", bytes);
    static const uint32_t schemes[] = {CUBLASLT_REDUCTION_SCHEME_NONE,        CUBLASLT_REDUCTION_SCHEME_NONE,
                                       CUBLASLT_REDUCTION_SCHEME_NONE,        CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
                                       CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, CUBLASLT_REDUCTION_SCHEME_INPLACE};
    uint32_t answer = attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM         ? algorithm.parts
                      : attribute == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME ? schemes[algorithm.sum]
                                                                           : algorithm.sum;
    memcpy(value, &answer, sizeof answer);
    if (written) *written = sizeof answer;
    return CUBLAS_STATUS_SUCCESS;
}

/* == The product ================================================================================================== */

/* For hot loops over memory that has been checked: the sanitizers would make them ten times slower. */
#define LOOPS __attribute__((no_sanitize("address", "undefined"), optimize("O3", "tree-vectorize")))

LOOPS static void widen(float *to, const void *from, cudaDataType type, size_t n) {
    const uint16_t *halves = static_cast<const uint16_t *>(from);
    if (type == CUDA_R_32F) memcpy(to, from, n * sizeof *to);
    else
        for (size_t i = 0; i < n; i++) to[i] = bf16_widen(halves[i]);
}

static float load(const void *p, cudaDataType type, size_t i) {
    return type == CUDA_R_32F ? static_cast<const float *>(p)[i] : bf16_widen(static_cast<const uint16_t *>(p)[i]);
}
static void store(void *p, cudaDataType type, size_t i, float x) {
    if (type == CUDA_R_32F) static_cast<float *>(p)[i] = x;
    else static_cast<uint16_t *>(p)[i] = bf16_round(x);
}

/* op(X), column after column. */
static std::vector<float> gather(const void *p, const Layout &l, bool transposed) {
    std::vector<float> to(l.rows * l.columns), column(l.rows);
    for (size_t j = 0; j < l.columns; j++) {
        widen(column.data(), static_cast<const char *>(p) + j * (size_t)l.ld * size_of(l.type), l.type, l.rows);
        if (!transposed) memcpy(&to[j * l.rows], column.data(), l.rows * sizeof(float));
        else
            for (size_t i = 0; i < l.rows; i++) to[i * l.columns + j] = column[i];
    }
    return to;
}

/* sum [m] += A [k][m] b [k] for k in [first, last). */
LOOPS static void add_columns(float *__restrict__ sum, const float *a, const float *b, size_t m, size_t first,
                              size_t last, bool backwards) {
    for (size_t i = first; i < last; i++) {
        size_t k = backwards ? last - 1 - (i - first) : i;
        const float *column = a + k * m;
        float factor = b[k];
        for (size_t j = 0; j < m; j++) sum[j] += column[j] * factor;
    }
}

LOOPS static void add(float *__restrict__ to, const float *from, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] += from[i];
}

/* One column of op(A) op(B), added in the order of the algorithm. */
static void product_column(const Problem &p, const Algorithm &algorithm, float *sum, const float *a, const float *b) {
    size_t each = algorithm.sum == PAIRS   ? 32
                  : algorithm.sum >= SPLIT ? (p.k + algorithm.parts - 1) / algorithm.parts
                                           : p.k;
    std::vector<float> part(p.m);
    size_t count = (p.k + each - 1) / each;
    for (size_t i = 0; i < p.m; i++) sum[i] = 0;
    for (size_t i = 0; i < count; i++) {
        size_t first = i * each, last = first + each < p.k ? first + each : p.k;
        for (size_t j = 0; j < p.m; j++) part[j] = 0;
        add_columns(part.data(), a, b, p.m, first, last, algorithm.sum == BACKWARDS);
        if (algorithm.sum == SPLIT_ROUNDED && p.d.type == CUDA_R_16BF)
            for (size_t j = 0; j < p.m; j++) part[j] = bf16_widen(bf16_round(part[j]));
        add(sum, part.data(), p.m);
        if (algorithm.sum == SPLIT_IN_PLACE && p.d.type == CUDA_R_16BF)
            for (size_t j = 0; j < p.m; j++) sum[j] = bf16_widen(bf16_round(sum[j]));
    }
}

/* The library's GELU is the approximation with tanh. */
static float gelu(float x) { return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))); }
static float gelu_slope(float x) {
    float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}

namespace {
struct Matrices {
    const void *a, *b, *c;
    void *d, *workspace;
    float alpha, beta;
};
} // namespace


/* Computes a column of D from its sum. */
static void finish_column(const Problem &p, const Matrices &x, size_t j, float *sum, float *bias_gradient) {
    uint32_t e = p.matmul.epilogue;
    cudaDataType type = p.d.type;
    for (size_t i = 0; i < p.m; i++) {
        float y = x.alpha * sum[i];
        size_t aux = j * (size_t)p.matmul.aux_ld + i;
        if (x.beta != 0) y += x.beta * load(x.c, type, j * (size_t)p.c.ld + i);
        if (adds_bias(e)) y += load(p.matmul.bias, type, i);
        if (has_aux(e) && !reads_aux(e)) store(p.matmul.aux, type, aux, y);
        if (reads_aux(e)) y *= gelu_slope(load(p.matmul.aux, type, aux));
        else if (e & 32) y = gelu(y);
        else if (e == CUBLASLT_EPILOGUE_RELU || e == CUBLASLT_EPILOGUE_RELU_BIAS) y = y > 0 ? y : 0;
        if (e == CUBLASLT_EPILOGUE_DGELU_BGRAD) bias_gradient[i] += y;
        store(x.d, type, j * (size_t)p.d.ld + i, y);
    }
}

static void multiply(const Problem &p, const Algorithm &algorithm, const Matrices &x) {
    std::vector<float> a = gather(x.a, p.a, p.matmul.a_transposed != CUBLAS_OP_N);
    std::vector<float> b = gather(x.b, p.b, p.matmul.b_transposed != CUBLAS_OP_N);
    std::vector<float> sum(p.m), gradient(p.m > p.n ? p.m : p.n);
    uint32_t e = p.matmul.epilogue;
    if (algorithm.workspace) memset(x.workspace, 0xFF, algorithm.workspace);
    for (size_t j = 0; j < p.n; j++) {
        product_column(p, algorithm, sum.data(), a.data(), &b[j * p.k]);
        finish_column(p, x, j, sum.data(), gradient.data());
    }
    for (size_t k = 0; e == CUBLASLT_EPILOGUE_BGRADA && k < p.k; k++) add(gradient.data(), &a[k * p.m], p.m);
    for (size_t j = 0; e == CUBLASLT_EPILOGUE_BGRADB && j < p.n; j++)
        for (size_t k = 0; k < p.k; k++) gradient[j] += b[j * p.k + k];
    size_t count = e == CUBLASLT_EPILOGUE_BGRADB ? p.n : p.m;
    for (size_t i = 0; makes_bias_gradient(e) && i < count; i++) store(p.matmul.bias, p.d.type, i, gradient[i]);
}

static Operand matrix(const char *what, const void *p, const Layout &l) {
    return {what, p, ((l.columns - 1) * (size_t)l.ld + l.rows) * size_of(l.type)};
}

/* Checks the bias and the auxiliary matrix as documented; kernels read 16 bytes of them at once. */
static void check_epilogue(const char *call, const Problem &p, std::vector<Operand> *read,
                           std::vector<Operand> *written) {
    const cublasLtMatmulDescOpaque &m = p.matmul;
    uint32_t e = m.epilogue;
    size_t size = size_of(p.d.type);
    if (adds_bias(e) || makes_bias_gradient(e)) {
        if (!m.bias) fail(call, "the epilogue has no bias pointer");
        check_aligned(call, "the bias", m.bias, 16);
        Operand o = {"the bias", m.bias, (e == CUBLASLT_EPILOGUE_BGRADB ? p.n : p.m) * size};
        (adds_bias(e) ? read : written)->push_back(o);
    }
    if (has_aux(e)) {
        if (!m.aux) fail(call, "the epilogue has no auxiliary pointer");
        check_aligned(call, "the auxiliary matrix", m.aux, 16);
        if (m.aux_ld < (int64_t)p.m || m.aux_ld % 8)
            fail(call, "columns of the auxiliary matrix lie %lld apart: at least %zu and a multiple of 8 is wanted",
                 (long long)m.aux_ld, (size_t)p.m);
        Operand o = {"the auxiliary matrix", m.aux, ((p.n - 1) * (size_t)m.aux_ld + p.m) * size};
        (reads_aux(e) ? read : written)->push_back(o);
    }
}

static void check_places(const char *call, const std::vector<Operand> &read, const std::vector<Operand> &written) {
    for (size_t i = 0; i < written.size(); i++) {
        for (const Operand &o : read) check_apart(call, written[i], o);
        for (size_t j = i + 1; j < written.size(); j++) check_apart(call, written[i], written[j]);
    }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul, const void *alpha, const void *A,
                              cublasLtMatrixLayout_t a, const void *B, cublasLtMatrixLayout_t b, const void *beta,
                              const void *C, cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *from, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
    const char *call = "cublasLtMatmul";
    Guard guard(call);
    Problem p = problem_of(call, handle, matmul, a, b, c, d);
    if (!supported(p)) fail(call, "these types and this epilogue %u are not supported together", p.matmul.epilogue);
    if (!from) fail(call, "without an algorithm it is chosen anew by every call");
    Algorithm algorithm = algorithm_of(call, from, p);
    Matrices x = {A, B, C, D, workspace, *static_cast<const float *>(alpha), *static_cast<const float *>(beta)};
    std::vector<Operand> read = {matrix("A", A, p.a), matrix("B", B, p.b)}, written = {matrix("D", D, p.d)};
    const void *places[] = {A, B, x.beta != 0 ? C : NULL, D};
    static const char *const names[] = {"A", "B", "C", "D"};
    for (int i : {0, 1, 3, 2}) check_aligned(call, names[i], places[i], algorithm.aligned[i]);
    if (x.beta != 0 && C == D && p.c.ld != p.d.ld) fail(call, "C and D are one matrix with two layouts");
    if (x.beta != 0 && C != D) read.push_back(matrix("C", C, p.c));
    check_epilogue(call, p, &read, &written);
    size_t moved = p.a.rows * p.a.columns * size_of(p.a.type) + p.b.rows * p.b.columns * size_of(p.b.type) +
                   (x.beta != 0 ? 2 : 1) * p.d.rows * p.d.columns * size_of(p.d.type);
    if (algorithm.workspace > workspace_bytes)
        fail(call, "the algorithm needs %zu bytes of workspace and is given %zu", (size_t)algorithm.workspace,
             workspace_bytes);
    if (workspace_bytes) check_aligned(call, "the workspace", workspace, 256);
    if (workspace_bytes) written.push_back({"the workspace", workspace, workspace_bytes});
    check_places(call, read, written);
    read.insert(read.end(), written.begin(), written.end());
    submit(stream, {call, read, simply([=] { multiply(p, algorithm, x); })}, moved);
    return CUBLAS_STATUS_SUCCESS;
}
