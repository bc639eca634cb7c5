/* Gated positional attention against its definition in double, whose N x N weights are not factorised as in the
 * kernels; and the initial parameters of a ConViT. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <omp.h>

#include "layers/vit/vit.h"
#include "tests/on_device.h"
#include "tests/settings.h"

/* == The kernels ================================================================================================== */

typedef struct {
    int B, T, Hg, Wg, H, D;
} PositionCase;

typedef struct {
    double *axes, *y, *dqkv, *dpos_proj, *dgating;
    double *dpos_proj_size, *dgating_size; /* the summed absolute values of their terms */
} PositionReference;

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static int features_of(PositionCase k) { return k.T > 1 ? 5 : 3; }

static size_t squares_of(PositionCase k) {
    return (size_t)k.Hg * k.Hg + (size_t)k.Wg * k.Wg + (k.T > 1 ? (size_t)k.T * k.T : 0);
}

/* The terms of the exponent of key m for query n. */
static void features_between(int features[5], int n, int m, PositionCase k) {
    int dx = m % k.Wg - n % k.Wg, dy = m / k.Wg % k.Hg - n / k.Wg % k.Hg, dt = m / k.Wg / k.Hg - n / k.Wg / k.Hg;
    memcpy(features, (int[]){dx, dy, dx * dx + dy * dy, dt, dt * dt}, 5 * sizeof *features);
}

/* The positional weights P [N,N] of one head. */
static void weights_reference(double *P, const float *w, PositionCase k) {
    int N = k.T * k.Hg * k.Wg, features[5];
    for (int n = 0; n < N; n++) {
        double *p = P + (size_t)n * N, most = -INFINITY, sum = 0;
        for (int m = 0; m < N; m++) {
            features_between(features, n, m, k);
            p[m] = 0;
            for (int i = 0; i < features_of(k); i++) p[m] += (double)w[i] * features[i];
            most = fmax(most, p[m]);
        }
        for (int m = 0; m < N; m++) sum += p[m] = exp(p[m] - most);
        for (int m = 0; m < N; m++) p[m] /= sum;
    }
}

/* The factors of P: its sums over all axes but one. */
static void axes_reference(double *axes, const double *P, PositionCase k) {
    size_t N = (size_t)k.T * k.Hg * k.Wg, area = (size_t)k.Hg * k.Wg;
    double *columns = axes + (size_t)k.Hg * k.Hg, *frames = columns + (size_t)k.Wg * k.Wg;
    for (size_t m = 0; m < N; m++) {
        for (int y = 0; y < k.Hg; y++) axes[y * k.Hg + m / k.Wg % k.Hg] += P[y * k.Wg * N + m];
        for (int x = 0; x < k.Wg; x++) columns[x * k.Wg + m % k.Wg] += P[x * N + m];
        for (int t = 0; t < k.T && k.T > 1; t++) frames[t * k.T + m / area] += P[t * area * N + m];
    }
}

/* Backpropagates dP, the gradient of sum dy.(P v), to the positional parameters. */
static void softmax_gradient(double *dw, double *dw_size, const double *P, const double *dP, const double *dP_size,
                             double g, PositionCase k) {
    int N = k.T * k.Hg * k.Wg, features[5];
    for (int n = 0; n < N; n++) {
        const double *p = P + (size_t)n * N, *d = dP + (size_t)n * N, *size = dP_size + (size_t)n * N;
        double mean = 0, mean_size = 0;
        for (int m = 0; m < N; m++) {
            mean += p[m] * d[m];
            mean_size += p[m] * size[m];
        }
        for (int m = 0; m < N; m++) {
            double ds = g * p[m] * (d[m] - mean), ds_size = g * p[m] * (size[m] + mean_size);
            features_between(features, n, m, k);
            for (int i = 0; i < features_of(k); i++) {
                dw[i] += ds * features[i];
                dw_size[i] += ds_size * abs(features[i]);
            }
        }
    }
}

static void position_reference(PositionReference r, const float *dqkv, const float *dy, const float *content,
                               const float *qkv, const float *pos_proj, const float *gating, PositionCase k) {
    int N = k.T * k.Hg * k.Wg, F = features_of(k);
    size_t M = (size_t)k.H * k.D;
    double *P = calloc((size_t)N * N, sizeof *P), *dP = calloc((size_t)N * N, sizeof *dP);
    double *dP_size = calloc((size_t)N * N, sizeof *dP_size);
    for (int h = 0; h < k.H; h++) {
        double g = sigmoid(gating[h]), keep = sigmoid(-gating[h]);
        weights_reference(P, pos_proj + F * h, k);
        axes_reference(r.axes + h * squares_of(k), P, k);
        memset(dP, 0, (size_t)N * N * sizeof *dP);
        memset(dP_size, 0, (size_t)N * N * sizeof *dP_size);
        for (int b = 0; b < k.B; b++)
            for (int n = 0; n < N; n++) {
                size_t row = ((size_t)b * N + n) * M + (size_t)h * k.D;
                size_t at_q = 3 * (((size_t)b * N + n) * M) + (size_t)h * k.D;
                for (int c = 0; c < k.D; c++) {
                    r.y[row + c] += keep * content[row + c];
                    for (int part = 0; part < 3; part++)
                        r.dqkv[at_q + part * M + c] += keep * dqkv[at_q + part * M + c];
                    r.dgating[h] -= g * keep * content[row + c] * dy[row + c];
                    r.dgating_size[h] += g * keep * fabs((double)content[row + c] * dy[row + c]);
                }
                for (int m = 0; m < N; m++) {
                    size_t v = (((size_t)b * N + m) * 3 + 2) * M + (size_t)h * k.D;
                    double p = P[(size_t)n * N + m], product = 0, size = 0;
                    for (int c = 0; c < k.D; c++) {
                        r.y[row + c] += g * p * qkv[v + c];
                        r.dqkv[v + c] += g * p * dy[row + c];
                        product += (double)dy[row + c] * qkv[v + c];
                        size += fabs((double)dy[row + c] * qkv[v + c]);
                    }
                    dP[(size_t)n * N + m] += product;
                    dP_size[(size_t)n * N + m] += size;
                    r.dgating[h] += g * keep * p * product;
                    r.dgating_size[h] += g * keep * p * size;
                }
            }
        softmax_gradient(r.dpos_proj + F * h, r.dpos_proj_size + F * h, P, dP, dP_size, g, k);
    }
    free(P);
    free(dP);
    free(dP_size);
}

/* In bfloat16 the kernels keep a weight as the sum of two bfloat16, which has 16 significant bits; a float has 24. */
static const double WEIGHTS = sizeof(real) == 4 ? 1e-5 : 1e-4;

/* Compares dq, dk or dv alone, because dv is the largest. */
static int close_third(int part, const real *d_got, const double *want, size_t n, size_t M) {
    const char *names[] = {"dq", "dk", "dv"};
    float *got = download_real(d_got, 3 * n), *got_part = normals(n, 1);
    double *want_part = zeros(n);
    for (size_t i = 0; i < n; i++) {
        size_t from = (i / M * 3 + (size_t)part) * M + i % M;
        got_part[i] = got[from];
        want_part[i] = want[from];
    }
    return check_close_step(names[part], got_part, want_part, n, WEIGHTS, REAL_STEP);
}

static void position_case(PositionCase k) {
    const PositionAttention shape = {{k.T, k.Hg, k.Wg}, k.H, k.D};
    int N = k.T * k.Hg * k.Wg, longest = k.Hg > k.Wg ? k.Hg : k.Wg, F = features_of(k);
    size_t n = (size_t)k.B * N * k.H * k.D, squares = squares_of(k);
    size_t n_axes = (size_t)k.H * squares, n_daxes = (size_t)k.B * k.H * (squares + 1), n_w = (size_t)(F * k.H);
    printf("gated positional attention B %d grid %dx%dx%d H %d D %d\n", k.B, k.T, k.Hg, k.Wg, k.H, k.D);
    float *qkv = normals(3 * n, 1), *dqkv = normals(3 * n, 1), *dy = normals(n, 1), *content = normals(n, 1);
    float *w = normals(n_w, 0.7f), *gating = normals(k.H, 1), *dw = normals(n_w, 1), *dgating = normals(k.H, 1);
    for (int h = 0; h < k.H; h++) w[F * h + 2] *= 2.0f / (float)longest; /* neither uniform nor one-hot */
    for (int h = 0; h < k.H && k.T > 1; h++) w[F * h + 4] *= 2.0f / (float)k.T;
    real *d_qkv = upload_real(qkv, 3 * n), *d_dy = upload_real(dy, n), *d_content = upload_real(content, n);
    real *d_y = poisoned_real(n), *d_dqkv = upload_real(dqkv, 3 * n), *again = upload_real(dqkv, 3 * n);
    float *d_w = upload(w, n_w), *d_gating = upload(gating, k.H), *d_axes = poisoned(n_axes),
          *d_daxes = poisoned(n_daxes);
    float *d_dw = upload(dw, n_w), *d_dgating = upload(dgating, k.H), *daxes_again = poisoned(n_daxes);
    PositionReference r = {zeros(n_axes), zeros(n), zeros(3 * n), zeros(n_w), zeros(k.H), zeros(n_w), zeros(k.H)};
    for (size_t i = 0; i < n_w; i++) r.dpos_proj_size[i] = fabs(r.dpos_proj[i] = dw[i]);
    for (int h = 0; h < k.H; h++) r.dgating_size[h] = fabs(r.dgating[h] = dgating[h]);
    position_reference(r, dqkv, dy, content, qkv, w, gating, k);

    kernels_reserve(position_attention_workspace(&shape));
    position_axes_forward(d_axes, d_w, &shape);
    assert_true(close_float("axes", d_axes, r.axes, n_axes));
    position_attention_forward(d_y, d_content, d_qkv, d_axes, d_gating, &shape, k.B);
    assert_true(check_close_step("y", download_real(d_y, n), r.y, n, WEIGHTS, REAL_STEP));
    position_attention_backward(d_dqkv, d_daxes, d_dy, d_content, d_qkv, d_axes, d_gating, &shape, k.B);
    for (int part = 0; part < 3; part++) assert_true(close_third(part, d_dqkv, r.dqkv, n, (size_t)k.H * k.D));
    position_axes_backward(d_dw, d_dgating, d_daxes, d_axes, d_gating, &shape, k.B);
    assert_true(close_sums("dpos_proj", download(d_dw, n_w), r.dpos_proj, r.dpos_proj_size, n_w, false));
    assert_true(close_sums("dgating", download(d_dgating, k.H), r.dgating, r.dgating_size, k.H, false));

    position_attention_backward(again, daxes_again, d_dy, d_content, d_qkv, d_axes, d_gating, &shape, k.B);
    assert_memory_equal(download_real(again, 3 * n), download_real(d_dqkv, 3 * n), 3 * n * sizeof(float));
    assert_memory_equal(download(daxes_again, n_daxes), download(d_daxes, n_daxes), n_daxes * sizeof(float));
    position_attention_forward(d_content, d_content, d_qkv, d_axes, d_gating, &shape, k.B); /* in place */
    assert_memory_equal(download_real(d_content, n), download_real(d_y, n), n * sizeof(float));
    release_all();
}

static void test_position_attention(void **state) {
    (void)state;
    const PositionCase cases[] = {
        {3, 1, 5, 7, 5, 4},   {1, 1, 1, 1, 2, 3},  {2, 1, 14, 14, 2, 32}, {2, 1, 1, 9, 2, 5}, {1, 1, 17, 3, 1, 40},
        {2, 1, 3, 16, 1, 64}, {1, 1, 33, 2, 2, 16}, {3, 1, 2, 2, 1, 33},  {2, 3, 5, 7, 3, 5}, {1, 17, 2, 3, 2, 40},
        {2, 2, 1, 1, 1, 4},   {3, 4, 9, 2, 1, 33},  {1, 5, 1, 18, 2, 32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) position_case(cases[i]);
}

/* With the gate closed the output has the bits of the content, whatever v is; with the gate open, the content does not
 * matter. */
static void test_gate_at_its_ends(void **state) {
    (void)state;
    enum { B = 2, Hg = 3, Wg = 5, D = 6, N = B * Hg * Wg * D };
    const PositionAttention shape = {{1, Hg, Wg}, 1, D};
    float *qkv = normals(3 * N, 1), *content = normals(N, 1), closed = -200, open = 200;
    real *d_content = upload_real(content, N), *d_y = poisoned_real(N), *d_z = poisoned_real(N),
         *d_qkv = upload_real(qkv, 3 * N);
    float *d_axes = poisoned(Hg * Hg + Wg * Wg), *d_w = upload(normals(3, 0.5f), 3);
    kernels_reserve(position_attention_workspace(&shape));
    position_axes_forward(d_axes, d_w, &shape);
    position_attention_forward(d_y, d_content, d_qkv, d_axes, upload(&closed, 1), &shape, B);
    assert_memory_equal(download_real(d_y, N), content, N * sizeof(float));
    position_attention_forward(d_y, d_content, d_qkv, d_axes, upload(&open, 1), &shape, B);
    position_attention_forward(d_z, upload_real(normals(N, 1), N), d_qkv, d_axes, upload(&open, 1), &shape, B);
    assert_memory_equal(download_real(d_y, N), download_real(d_z, N), N * sizeof(float));
    release_all();
}

/* == The operator ================================================================================================= */

/* Settings that are never freed. */
static Config *config_of(int heads) {
    Config *config = keep(calloc(1, sizeof *config), false);
    char text[16];
    config_init(config, NULL);
    vit_add_settings(config);
    settings_read(config, "attn = convit\nimg_size = 5x7\npatch_size = 1\nnum_classes = 4\ndim = 36\ndepth = 3\n"
                          "mlp_ratio = 2\npool = cls\nconvit_local_layers = 2\n");
    snprintf(text, sizeof text, "%d", heads);
    settings_put(config, "heads", text);
    return config;
}

static float *first_values(const Vit *vit, const char *name, size_t size) {
    const Param *p = params_find(&vit->model.params, name);
    if (!p) fail_msg("no tensor %s", name);
    assert_int_equal(p->size, size);
    return download(vit->model.params.values + p->offset, size);
}

/* The values are those of facebookresearch/convit's local_init. */
static void test_initial_values(void **state) {
    (void)state;
    static const float six[4][3] = {{-1, -1, -1}, {-1, 1, -1}, {1, -1, -1}, {1, 1, -1}};
    static const float nine[9][3] = {{-2, -2, -1}, {-2, 0, -1}, {-2, 2, -1}, {0, -2, -1}, {0, 0, -1},
                                     {0, 2, -1},   {2, -2, -1}, {2, 0, -1},  {2, 2, -1}};
    for (int heads = 6; heads <= 9; heads += 3) {
        Vit vit;
        vit_create(&vit, config_of(heads));
        params_allocate(&vit.model.params, false);
        params_initialize(&vit.model.params, 7);
        const float *v = first_values(&vit, "blocks.1.attn.v.weight", 36 * 36);
        for (int i = 0; i < 36 * 36; i++) assert_true(v[i] == (i / 36 == i % 36));
        const float *qk = first_values(&vit, "blocks.1.attn.qk.weight", 2 * 36 * 36);
        double squares = 0;
        for (int i = 0; i < 2 * 36 * 36; i++) squares += (double)qk[i] * qk[i];
        assert_true(fabs(sqrt(squares / (2 * 36 * 36)) - 0.02) < 0.002);
        const float *w = first_values(&vit, "blocks.1.attn.pos_proj.weight", 3 * (size_t)heads);
        assert_memory_equal(w, heads == 6 ? &six[0][0] : &nine[0][0], (heads == 6 ? 12 : 27) * sizeof(float));
        for (int i = 12; i < 18 && heads == 6; i++) assert_true(w[i] != 0 && fabsf(w[i]) < 0.2f);
        const float *gating = first_values(&vit, "blocks.1.attn.gating_param", (size_t)heads);
        const float *bias = first_values(&vit, "blocks.1.attn.pos_proj.bias", (size_t)heads);
        for (int h = 0; h < heads; h++) assert_true(gating[h] == 1 && bias[h] == 0);
        vit_destroy(&vit);
        release_all();
    }
}

/* The class token joins at the first plain block and has no position, and q, k and v have no biases in any block. */
static void test_class_token_joins_late(void **state) {
    (void)state;
    Vit vit;
    Config *config = config_of(6);
    vit_create(&vit, config);
    assert_int_equal(vit.trunk.N, 36);
    for (int i = 0; i < 3; i++) assert_int_equal(vit.trunk.stages[0].blocks[i].attention.N, i < 2 ? 35 : 36);
    assert_int_equal(params_find(&vit.model.params, "pos_embed")->shape[1], 35);
    assert_string_equal(vit.trunk.stages[0].blocks[1].attention.op->name, "convit");
    assert_string_equal(vit.trunk.stages[0].blocks[2].attention.op->name, "softmax");
    assert_non_null(params_find(&vit.model.params, "blocks.2.attn.qkv.weight"));
    assert_null(params_find(&vit.model.params, "blocks.2.attn.qkv.bias"));
    assert_null(params_find(&vit.model.params, "blocks.0.attn.qk.bias"));
    vit_destroy(&vit);
    settings_read(config, "pool = gap\nconvit_local_layers = 10\n");
    vit_create(&vit, config);
    assert_int_equal(vit.trunk.N, 35);
    assert_string_equal(vit.trunk.stages[0].blocks[2].attention.op->name, "convit");
    assert_null(params_find(&vit.model.params, "cls_token"));
    vit_destroy(&vit);
}

/* The weights of a picture are those that were applied to v: weights times v is the output.  The spatial part is P. */
static void test_pictured_weights(void **state) {
    (void)state;
    enum { B = 2, N = 35, M = 36, H = 6, D = 6 };
    Vit vit;
    vit_create(&vit, config_of(H));
    vit_plan(&vit, B, true);
    vit_allocate(&vit);
    params_allocate(&vit.model.params, true);
    params_initialize(&vit.model.params, 3);
    Attention *a = &vit.trunk.stages[0].blocks[0].attention;
    float *x = normals(B * N * M, 10), weights[N], place[N];
    const float *v_w = first_values(&vit, "blocks.0.attn.v.weight", M * M),
                *pos_w = first_values(&vit, "blocks.0.attn.pos_proj.weight", 3 * H);
    real *d_x = upload_real(x, B * N * M), *d_y = poisoned_real(B * N * M);
    const Param *proj = params_find(&vit.model.params, "blocks.0.attn.proj.weight");
    device_upload(vit.model.params.values + proj->offset, v_w, M * M * sizeof(float)); /* the identity: y is the mix */
    attention_forward(a, d_y, d_x, B);
    double *want = zeros(B * N * M), *P = zeros(N * N);
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            weights_reference(P, pos_w + 3 * h, (PositionCase){B, 1, 5, 7, H, D});
            for (int n = 0; n < N; n++) {
                double sum = 0;
                a->op->weights(a, weights, b, h, n);
                a->op->spatial(a, place, b, h, n);
                for (int m = 0; m < N; m++) assert_true(fabs(place[m] - P[n * N + m]) < 1e-5);
                for (int m = 0; m < N; m++) {
                    sum += weights[m];
                    for (int c = h * D; c < (h + 1) * D; c++)
                        want[(b * N + n) * M + c] += (double)weights[m] * x[(b * N + m) * M + c]; /* v is x */
                }
                assert_true(fabs(sum - 1) < 1e-5);
            }
        }
    assert_true(close_rounded("weights times v", d_y, want, B * N * M));
    vit_destroy(&vit);
    release_all();
}

/* On the CPU the gradients of parameters do not depend on the number of threads. */
static void test_threads(void **state) {
    (void)state;
    enum { B = 5, Hg = 6, Wg = 5, H = 3, D = 7, N = B * Hg * Wg * H * D, W = 3 * H };
    const PositionAttention shape = {{1, Hg, Wg}, H, D};
    int threads = omp_get_max_threads();
    float *zero_w = normals(W, 0), *zero_g = normals(H, 0), *got[2][2];
    real *d_qkv = upload_real(normals(3 * N, 1), 3 * N), *d_dy = upload_real(normals(N, 1), N);
    real *d_content = upload_real(normals(N, 1), N);
    float *d_w = upload(normals(W, 0.4f), W), *d_gating = upload(normals(H, 1), H),
          *d_axes = poisoned(H * (Hg * Hg + Wg * Wg));
    position_axes_forward(d_axes, d_w, &shape);
    for (int i = 0; i < 2; i++) {
        omp_set_num_threads(i ? 4 : 1);
        kernels_reserve(position_attention_workspace(&shape));
        real *d_dqkv = upload_real(normals(3 * N, 0), 3 * N);
        float *d_daxes = poisoned(B * H * (Hg * Hg + Wg * Wg + 1)), *d_dw = upload(zero_w, W),
              *d_dg = upload(zero_g, H);
        position_attention_backward(d_dqkv, d_daxes, d_dy, d_content, d_qkv, d_axes, d_gating, &shape, B);
        position_axes_backward(d_dw, d_dg, d_daxes, d_axes, d_gating, &shape, B);
        got[i][0] = download(d_dw, W);
        got[i][1] = download(d_dg, H);
    }
    omp_set_num_threads(threads);
    assert_memory_equal(got[0][0], got[1][0], W * sizeof(float));
    assert_memory_equal(got[0][1], got[1][1], H * sizeof(float));
    release_all();
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_position_attention),     cmocka_unit_test(test_gate_at_its_ends),
        cmocka_unit_test(test_initial_values),         cmocka_unit_test(test_class_token_joins_late),
        cmocka_unit_test(test_pictured_weights),       cmocka_unit_test(test_threads),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
