#include <stdio.h>
#include <stdlib.h>

#include "core/die.h"
#include "core/integers.h"
#include "data/images/image.h"
#include "data/segmentation/segmentation_sheet.h"
#include "layers/model_facts.h"
#include "layers/semantic_fpn/run.h"

/* Three pictures of this side and the gaps of a sheet are as wide as a column of a page. */
enum { SIDE = 208, WIDEST = 640 };

void semantic_facts(SemanticRun *run) {
    Facts *facts = training_facts(&run->training);
    SemanticFpn *net = &run->net;
    int H = run->room.H, W = run->room.W;
    ModelTable table = {.params = &net->model.params};
    char backbone[160], text[400];
    if (!facts) return;
    backbone_tell(&net->backbone, backbone, sizeof backbone);
    snprintf(text, sizeof text,
             "Semantic FPN on %s: a feature pyramid of %d channels, and a head of %d channels with %s norms that gives "
             "every pixel one of %d classes.",
             backbone, net->settings.fpn_dim, net->settings.head_dim,
             net->settings.seg_norm == SEG_NORM_BN ? "batch" : "group", net->settings.num_classes);
    facts_set(facts, "sentence", text);
    semantic_fpn_parts(net, H, W, model_table_part, &table);
    model_table_end(&table, facts, (double)semantic_fpn_macs(net, H, W));
}

/* Scales classes [height,width] down to out [to_height,to_width]. */
static void scale_classes(uint8_t *out, int to_height, int to_width, const uint8_t *classes, int height, int width) {
    for (int y = 0; y < to_height; y++)
        for (int x = 0; x < to_width; x++)
            *out++ = classes[(size_t)y * (size_t)height / (size_t)to_height * (size_t)width +
                             (size_t)x * (size_t)width / (size_t)to_width];
}

void semantic_facts_keep(SemanticRun *run, const SegmentationPart *part, int b, int height, int width) {
    int image = part->image[b], more = larger(height, width), most = smaller(run->val.count, SEMANTIC_KEPT);
    SemanticKept *kept = &run->kept[run->kept_count];
    if (!training_facts(&run->training) || run->kept_count == most) return;
    if (image < (int)((int64_t)run->kept_count * run->val.count / most)) return;
    *kept = (SemanticKept){image, more > SIDE ? larger(height * SIDE / more, 1) : height,
                           more > SIDE ? larger(width * SIDE / more, 1) : width, NULL, NULL, NULL};
    size_t pixels = (size_t)kept->height * (size_t)kept->width;
    kept->pixels = xcalloc(pixels, 5, "a picture");
    kept->labels = kept->pixels + 3 * pixels;
    kept->classes = kept->labels + pixels;
    image_resize(kept->pixels, kept->height, kept->width,
                 part->pixels + (size_t)b * (size_t)part->height * (size_t)part->width * 3, part->height, part->width);
    scale_classes(kept->labels, kept->height, kept->width, run->own_labels, height, width);
    scale_classes(kept->classes, kept->height, kept->width, run->classes, height, width);
    run->kept_count++;
}

/* Adds the picture with its labels and its predictions; frees it. */
static void show(SemanticRun *run, Facts *facts, SemanticKept *kept) {
    const SegmentationView view = {kept->height, kept->width, kept->pixels, (size_t)kept->width * 3, kept->labels,
                                   (size_t)kept->width, kept->classes};
    int more = larger(kept->height, kept->width), less = smaller(kept->height, kept->width);
    char caption[256];
    Image sheet;
    Error error;
    segmentation_set_name_image(&run->val, (size_t)kept->image, caption, sizeof caption);
    if (segmentation_sheet(&sheet, &view, 1, SIDE / more * less, semantic_run_names(run), &error)) {
        facts_picture(facts, "segmented", sheet.pixels, sheet.height, sheet.width, WIDEST, caption);
        free(sheet.pixels);
    }
    free(kept->pixels);
}

void semantic_facts_evaluated(SemanticRun *run) {
    Facts *facts = training_facts(&run->training);
    int classes = run->model_settings->num_classes;
    double iou[SEGMENTATION_MOST_CLASSES];
    char text[160];
    if (!facts) return;
    for (int c = 0; c < classes; c++) iou[c] = segmentation_iou(segmentation_pixels_of(&run->counts, c));
    facts_class_bars(facts, "classes", "IoU of each class", semantic_run_names(run), iou, classes);
    snprintf(text, sizeof text,
             "Validation pictures after epoch %llu: the picture, its labels, and what was predicted.",
             (unsigned long long)run->training.state.epoch + 1);
    facts_pictures(facts, "segmented", "Labels and predictions", text);
    for (int i = 0; i < run->kept_count; i++) show(run, facts, &run->kept[i]);
    run->kept_count = 0;
}
