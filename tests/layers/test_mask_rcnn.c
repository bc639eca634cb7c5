/* Properties of Mask R-CNN that its program's tests do not cover: an image without objects, no proposals, boxes without
 * width, micro-batches, masks that lie in their boxes, quick convolutions, and steps that allocate no memory. */
#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "core/die.h"
#include "data/sets/dataset.h"
#include "layers/mask_rcnn/run.h"
#include "tests/on_device.h"
#include "tests/settings.h"

enum { SIDE = 64, IMAGES = 2, OBJECTS = 3 };

static const char text[] = "backbone_blocks = 1,1,1,1\nbackbone_width = 32\nfpn_width = 32\nbox_width = 16\n"
                           "mask_width = 32\nnum_classes = 4\nanchor_size = 4\nanchor_sample = 32\nregion_sample = 32\n"
                           "proposals = 40\ntrain_candidates = 100\neval_candidates = 100\ndetections = 20\n";

/* Two images with three triangles, one of which is as large as its image. */
typedef struct {
    Config config;
    MaskRun run;
    uint8_t *pixels;
    float points[OBJECTS][6];
    int corners, sizes[2 * IMAGES], labels[OBJECTS], first[IMAGES + 1];
    float boxes[OBJECTS][4];
    ObjectMask masks[OBJECTS];
} World;

static World world, exact; /* `world` has quick convolutions, as in training */

static void set_object(World *w, int i, float x0, float y0, float x1, float y1) {
    w->corners = 3;
    memcpy(w->boxes[i], (float[]){x0, y0, x1, y1}, sizeof w->boxes[i]);
    memcpy(w->points[i], (float[]){x0, y1, x1, y1, (x0 + x1) / 2, y0}, sizeof w->points[i]);
    w->masks[i] = (ObjectMask){.points = w->points[i], .ring_points = &w->corners, .rings = 1, .scale = {1, 1}};
    w->labels[i] = 1 + i;
}

static Truth truth_of(const World *w) {
    return (Truth){.size = w->sizes, .boxes = (const float(*)[4])w->boxes, .labels = w->labels, .masks = w->masks,
                   .first = w->first};
}

static void load(World *w, int first, int images) {
    mask_rcnn_load(&w->run.model, w->pixels + (size_t)first * SIDE * SIDE * 3, w->sizes + 2 * first, imagenet_mean,
                   imagenet_std, images, SIDE, SIDE);
}

static void world_open(World *w, int way) {
    MaskRcnn *m = &w->run.model;
    config_init(&w->config, NULL);
    backbone_add_settings(&w->config);
    config_add(&w->config, &mask_rcnn_settings);
    settings_read(&w->config, text);
    backbone_use_settings(&w->config);
    mask_rcnn_create(m, &w->config, way);
    mask_rcnn_plan(m, IMAGES, SIDE, SIDE, true);
    mask_rcnn_allocate(m);
    params_allocate(&m->model.params, true);
    params_initialize(&m->model.params, check_seed());
    mask_rcnn_fold(m);
    loss_work_open(&w->run.work, m, OBJECTS, 10);
    mask_run_open_evaluation(&w->run);
    static int ids[] = {0, 1, 2, 3, 4};
    w->run.ids = ids;
    w->pixels = host_malloc(IMAGES * SIDE * SIDE * 3, "test");
    for (size_t i = 0; i < IMAGES * SIDE * SIDE * 3; i++)
        w->pixels[i] = (uint8_t)rng_below(check_seed(), RNG_TEST, 1, 0, i, 256);
    for (int i = 0; i < 2 * IMAGES; i++) w->sizes[i] = SIDE;
    set_object(w, 0, 4, 6, 30, 40);
    set_object(w, 1, 20, 20, 50, 44);
    set_object(w, 2, 0, 0, SIDE, SIDE);
    memcpy(w->first, (int[]){0, 2, 3}, sizeof w->first);
}

static int open_worlds(void **state) {
    (void)state;
    world_open(&world, CONVOLUTION_QUICK);
    world_open(&exact, CONVOLUTION_CENTRED);
    return 0;
}

static int close_worlds(void **state) {
    (void)state;
    mask_rcnn_destroy(&world.run.model);
    mask_rcnn_destroy(&exact.run.model);
    return 0;
}

/* Losses of images first .. first + count - 1; their gradients are added to the previous ones. */
static MaskRcnnLoss step(World *w, Truth t, int first, int count) {
    MaskRcnn *m = &w->run.model;
    MaskRcnnLoss loss = {0};
    LossDraw draw = {check_seed(), 3, (uint32_t)first, IMAGES};
    t.size += 2 * first;
    t.first += first;
    model_set_training(&m->model, true);
    load(w, first, count);
    mask_rcnn_forward(m);
    choose_regions(m, &w->run.work, &t, &draw);
    mask_rcnn_forward_boxes(m);
    mask_rcnn_forward_masks(m);
    mask_rcnn_loss(m, &w->run.work, &t, &draw, true, &loss);
    mask_rcnn_backward(m, NULL);
    return loss;
}

static double *gradients_of(World *w) {
    Params *p = &w->run.model.model.params;
    float *host = xcalloc(p->total, sizeof *host, "test");
    double *g = xcalloc(p->total, sizeof *g, "test");
    device_download(host, p->grads, p->total * sizeof *host);
    for (size_t i = 0; i < p->total; i++) g[i] = (double)host[i];
    device_zero(p->grads, p->total * sizeof *host);
    free(host);
    return g;
}

static void test_micro_batches(void **state) {
    World *w = &world;
    size_t n = w->run.model.model.params.total;
    double norm = 0, worst = 0, tolerance = sizeof(real) == 2 ? 0.2 : 1e-3;
    (void)state;
    MaskRcnnLoss whole = step(w, truth_of(w), 0, IMAGES);
    double *both = gradients_of(w);
    MaskRcnnLoss a = step(w, truth_of(w), 0, 1), b = step(w, truth_of(w), 1, 1);
    double *parts = gradients_of(w);
    for (size_t i = 0; i < n; i++) {
        norm += both[i] * both[i];
        worst += (both[i] - parts[i]) * (both[i] - parts[i]);
    }
    print_message("total %g, by parts %g, gradients differ by %g\n", mask_rcnn_loss_total(&whole),
                  mask_rcnn_loss_total(&a) + mask_rcnn_loss_total(&b), sqrt(worst / norm));
    assert_true(norm > 0 && sqrt(worst / norm) < tolerance);
    for (int i = 0; i < LOSS_TERMS; i++) {
        assert_true(whole.term[i] > 0);
        assert_true(fabs(a.term[i] + b.term[i] - whole.term[i]) < tolerance * whole.term[i]);
    }
    free(both);
    free(parts);
}

/* Quick and exact convolutions give the same losses and gradients for the same regions, except where a ReLU changes its
 * sign, and in bfloat16 also where the error of a box does. */
static void test_quick(void **state) {
    World *w = &world;
    size_t n = w->run.model.model.params.total;
    double norm = 0, worst = 0, tolerance = sizeof(real) == 2 ? 0.7 : 1e-2;
    Truth quick_truth = truth_of(w), exact_truth = truth_of(&exact);
    (void)state;
    quick_truth.proposals = exact_truth.proposals = (const float(*)[4])w->boxes;
    quick_truth.first_proposal = exact_truth.first_proposal = w->first;
    MaskRcnnLoss quick = step(w, quick_truth, 0, IMAGES), slow = step(&exact, exact_truth, 0, IMAGES);
    double *a = gradients_of(w), *b = gradients_of(&exact);
    for (size_t i = 0; i < n; i++) {
        norm += b[i] * b[i];
        worst += (a[i] - b[i]) * (a[i] - b[i]);
    }
    print_message("quick %.9g, exact %.9g, gradients differ by %g\n", mask_rcnn_loss_total(&quick),
                  mask_rcnn_loss_total(&slow), sqrt(worst / norm));
    assert_true(norm > 0 && sqrt(worst / norm) < tolerance);
    for (int i = 0; i < LOSS_TERMS; i++)
        assert_true(fabs(quick.term[i] - slow.term[i]) <= (sizeof(real) == 2 ? 0.02 : 1e-4) * slow.term[i]);
    free(a);
    free(b);
}

/* Batch sizes that were seen before allocate nothing.  The bound leaves 8 kB for small objects of oneDNN, which it
 * frees in every call but which stay in the allocator's cache of each thread and count as used. */
static void test_memory(void **state) {
    World *w = &world;
    size_t before = 0;
    (void)state;
    for (int turn = 0; turn < 4; turn++) {
        if (turn == 2) before = mallinfo2().uordblks + mallinfo2().hblkhd;
        step(w, truth_of(w), 0, IMAGES);
        for (int i = 0; i < IMAGES; i++) step(w, truth_of(w), turn % 2 ? i : IMAGES - 1 - i, 1);
    }
    size_t after = mallinfo2().uordblks + mallinfo2().hblkhd;
    print_message("%zd bytes more\n", (ssize_t)(after - before));
    assert_true(after < before + 8192);
    free(gradients_of(w));
}

static void test_no_objects(void **state) {
    World *w = &world;
    Truth t = truth_of(w);
    (void)state;
    t.first = (int[]){0, 0, 0};
    MaskRcnnLoss loss = step(w, t, 0, IMAGES);
    double *g = gradients_of(w), squares = 0;
    for (size_t i = 0; i < w->run.model.model.params.total; i++) squares += g[i] * g[i];
    assert_true(loss.term[LOSS_MASK] == 0 && loss.term[LOSS_BOX] == 0 && loss.term[LOSS_RPN_BOX] == 0);
    assert_true(loss.term[LOSS_OBJECTNESS] > 0 && loss.term[LOSS_CLASS] > 0 && isfinite(mask_rcnn_loss_total(&loss)));
    assert_true(isfinite(squares) && squares > 0);
    assert_int_equal(w->run.model.masks.count, 0);
    free(g);
}

static void test_no_regions(void **state) {
    World *w = &world;
    Truth t = truth_of(w);
    float none[1][4];
    (void)state;
    t.first = t.first_proposal = (int[]){0, 0, 0};
    t.proposals = (const float(*)[4])none;
    MaskRcnnLoss loss = step(w, t, 0, IMAGES);
    free(gradients_of(w));
    assert_int_equal(w->run.model.regions.count, 0);
    assert_true(loss.term[LOSS_CLASS] == 0 && isfinite(mask_rcnn_loss_total(&loss)));
}

/* Boxes have a positive area and lie in the image, as RoIAlign requires. */
static void assert_sides(const Regions *regions) {
    for (int i = 0; i < regions->count; i++) {
        const float *box = regions->boxes[i];
        assert_true(box[2] > box[0] && box[3] > box[1]);
        assert_true(box[0] >= 0 && box[1] >= 0 && box[2] <= SIDE && box[3] <= SIDE);
    }
}

static void test_detections(void **state) {
    World *w = &world;
    MaskRcnn *m = &w->run.model;
    CocoResults results = {0};
    Rle mask = {0};
    enum { HEIGHT = 37, WIDTH = 90 };
    (void)state;
    model_set_training(&m->model, false);
    load(w, 0, IMAGES);
    mask_run_detect(&w->run, w->sizes, NULL);
    assert_true(m->regions.count > 0 && m->masks.count > 0);
    assert_sides(&m->regions);
    assert_sides(&m->masks);
    for (int b = 0; b < IMAGES; b++) mask_run_results(&w->run, b, w->sizes + 2 * b, b + 1, WIDTH, HEIGHT, &results);
    assert_int_equal(results.count, m->masks.count);
    for (size_t i = 0; i < results.count; i++) {
        const double *box = results.detections[i].box;
        rle_texts_get(&mask, &results.masks, i);
        RleExtent extent = rle_extent(&mask);
        assert_true(mask.height == HEIGHT && mask.width == WIDTH);
        assert_true(box[0] >= 0 && box[1] >= 0 && box[0] + box[2] <= WIDTH + 1e-9 && box[1] + box[3] <= HEIGHT + 1e-9);
        if (!extent.area) continue;
        assert_true(extent.box[0] >= floor(box[0]) - 2 && extent.box[2] <= ceil(box[0] + box[2]) + 2);
        assert_true(extent.box[1] >= floor(box[1]) - 2 && extent.box[3] <= ceil(box[1] + box[3]) + 2);
    }
    rle_free(&mask);
    coco_results_free(&results);
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_micro_batches),
        cmocka_unit_test(test_quick),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_no_objects),
        cmocka_unit_test(test_no_regions),
        cmocka_unit_test(test_detections),
    };
    int failed = cmocka_run_group_tests(tests, open_worlds, close_worlds);
    kernels_exit();
    return failed;
}
