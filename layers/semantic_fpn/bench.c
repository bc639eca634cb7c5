#include <string.h>

#include "core/die.h"
#include "data/sets/dataset.h"
#include "kernels/kernels.h"
#include "layers/semantic_fpn/run.h"

static SegmentationPart random_part(const SemanticRun *run, int images) {
    SegmentationPart p = {.n = images, .height = run->view->image_size[0], .width = run->view->image_size[1]};
    size_t pixels = (size_t)images * (size_t)p.height * (size_t)p.width;
    p.pixels = host_malloc(pixels * 3, "a batch");
    p.labels = host_malloc(pixels, "a batch");
    p.size = xcalloc((size_t)images, sizeof *p.size, "a batch");
    p.label_height = p.height;
    p.label_width = p.width;
    bench_fill(p.pixels, pixels * 3, 256, run->training.s->seed);
    bench_fill(p.labels, pixels, run->model_settings->num_classes, run->training.s->seed + 1);
    for (int i = 0; i < images; i++) {
        p.size[i][0] = p.height;
        p.size[i][1] = p.width;
    }
    return p;
}

void semantic_bench_begin(Bench *b, SemanticRun *run) {
    int H = run->view->image_size[0], W = run->view->image_size[1];
    semantic_run_find_classes(run);
    run->eval_room = run->room = (SemanticRoom){semantic_run_micro_batch(run, H, W), H, W, H, W};
    semantic_run_open_model(run, true);
    semantic_eval_open(run);
    run->bench = random_part(run, run->room.B);
    memcpy(run->train.mean, imagenet_mean, sizeof imagenet_mean);
    memcpy(run->train.std, imagenet_std, sizeof imagenet_std);
    bench_begin(b, &run->training, &run->net.model.params, run->room.B);
}

void semantic_bench_load(const Bench *b, SemanticRun *run) {
    run->bench.n = b->n;
    if (b->training) semantic_run_load(run, &run->bench);
}

void semantic_bench_infer(SemanticRun *run) {
    const SegmentationPart *p = &run->bench;
    semantic_eval_pictures(run, &(SemanticPictures){p->pixels, p->n, p->height, p->width, imagenet_mean, imagenet_std});
    for (int i = 0; i < p->n; i++) semantic_eval_classes(run, i, p->height, p->width, NULL);
}

void semantic_bench_print(const Bench *b, SemanticRun *run) {
    SemanticFpn *net = &run->net;
    int H = run->bench.height, W = run->bench.width;
    double macs = (double)semantic_fpn_macs(net, H, W);
    bench_print(b, semantic_run_backbone(run), macs, (double)semantic_fpn_training_macs(net, H, W),
                "\"height\": %d, \"width\": %d, \"trainable_params\": %zu, \"train_images_per_s\": %.4f, "
                "\"infer_images_per_s\": %.4f, \"train_fastest_s\": %.4f, \"infer_fastest_s\": %.4f, "
                "\"infer_mfu\": %.4f",
                H, W, net->model.params.parameters, b->train.images_per_s, b->infer.images_per_s, b->train.fastest,
                b->infer.fastest, bench_peak_share(b, macs, b->infer.images_per_s));
}
