#include "layers/detection/detector.h"

#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/progress.h"
#include "core/text.h"
#include "kernels/kernels.h"
#include "layers/loading.h"

/* == Settings ===================================================================================================== */

#define F(KIND, field) CONFIG_FIELD(KIND, DetectionOutputSettings, field)
static const ConfigEntry output_entries[] = {
    {F(STRING, results), .section = "in place of training", .command_line_only = true, .argument = "FILE",
     .help = "With --eval: also write all detections to this file, in COCO's JSON format"},
    {F(STRING, draw), .command_line_only = true, .argument = "FILE",
     .help = "With --predict of one image: write the image with its boxes, class names and scores to this PNG file"},
};
#undef F
const ConfigGroup detection_output_settings = {CONFIG_GROUP(DetectionOutputSettings, output_entries)};

#define F(KIND, field) CONFIG_FIELD(KIND, DetectionViewSettings, field)
static const ConfigEntry view_entries[] = {
    {F(INT, eval_batch), "1", .section = "run", .min = 1, .max = 4096,
     .help = "Number of images in a batch of evaluation; results depend a little on it, as images are padded to the "
             "largest of their batch"},
    {F(SIZE, image_size), "800x1120", .min = 1, .max = 8192,
     .help = "Height and width of the image for which --describe counts and --bench measures"},
    {F(FLOAT, draw_score), "0.3", .min = 0, .max = 1, .help = "Lowest score of the detections that --predict reports"},
};
#undef F
const ConfigGroup detection_view_settings = {CONFIG_GROUP(DetectionViewSettings, view_entries),
                                             .change = CHANGE_FREELY};

void detector_check_settings(Detector *d) {
    int batch = d->training.s->batch_size;
    if (d->modes->bench) training_check_ranks(&d->training);
    if (!d->training.mode && batch < distributed_ranks())
        config_reject(&d->training.config, "batch_size", "{batch_size} is less than the %d ranks", distributed_ranks());
    if (*d->outputs->draw && !d->predict->predict.count)
        die_usage("--draw: '%s' would be written by --predict of one picture only", d->outputs->draw);
}

/* == Data ========================================================================================================= */

/* Without boxes, training is impossible and AP undefined; but detections can still be written. */
static void check_boxes(const Detector *d, bool train, bool evaluates) {
    if (train && !d->train.targets)
        die("%s: %s has no boxes to learn from", d->train.name, d->data->train_annotations);
    if (evaluates && !d->val.boxes && (train || !*d->outputs->results))
        die("%s: %s has no boxes to evaluate by%s", d->val.name, d->data->val_annotations,
            train ? "" : ": --results FILE writes the detections");
}

void detector_open_sets(Detector *d, bool train) {
    uint64_t seed = d->training.s->seed;
    bool evaluates = !train || training_evaluates(&d->training);
    if (train) {
        detection_set_open(&d->train, d->data, d->task, true, seed);
        training_fit_batch(&d->training, (size_t)d->train.coco.image_count, d->train.name);
    }
    if (evaluates) detection_set_open(&d->val, d->data, d->task, false, seed);
    check_boxes(d, train, evaluates);
    d->category_ap = xcalloc((size_t)d->val.coco.category_count, sizeof *d->category_ap, "AP of categories");
    if (!distributed_agree(d->val.coco.image_count, 0))
        die("%s: %d validation images here, but other ranks have more or fewer", d->val.name,
            d->val.coco.image_count);
}

int detector_micro_batch(const Detector *d, int height, int width, int channels) {
    int begin, end, given = d->training.s->micro_batch;
    training_share(&d->training, &begin, &end);
    size_t image = (size_t)(height + 3) / 4 * ((size_t)(width + 3) / 4) * (size_t)channels;
    size_t most = given > 0 ? (size_t)given : activations_at_once() / image;
    return most < 1 ? 1 : most < (size_t)(end - begin) ? (int)most : end - begin;
}

void detector_open_loader(Detector *d, bool train, int micro) {
    DetectionLoader *loader = train ? &d->loader : &d->val_loader;
    DetectionLoaderConfig config = {.parts = loading_parts(&d->training, d->loading, &d->workers, train, micro),
                                    .window = d->sizes->size_window,
                                    .augment = detection_augment_of(d->augment, train),
                                    .multiple = d->multiple};
    config.augment.rule = d->rule;
    detection_open(loader, train ? &d->train : &d->val, &config);
    if (loader->shorter > d->shorter) d->shorter = loader->shorter;
    if (loader->longer > d->longer) d->longer = loader->longer;
}

void detector_names_of_data(Detector *d, int ids) {
    const Coco *coco = d->train.coco.image_count ? &d->train.coco : &d->val.coco;
    for (int i = 0; i < coco->category_count; i++)
        if (coco->categories[i].id >= ids) ids = (int)coco->categories[i].id + 1;
    d->ids = ids;
    d->names = xcalloc((size_t)ids, sizeof *d->names, "names of categories");
    for (int i = 0; i < ids; i++) d->names[i] = "";
    for (int i = 0; i < coco->category_count; i++) d->names[coco->categories[i].id] = coco->categories[i].name;
}

void detector_close_data(Detector *d) {
    detection_close(&d->loader);
    detection_close(&d->val_loader);
    loader_pool_close(d->workers);
}

/* == Evaluation =================================================================================================== */

/* A detection as ranks exchange it, followed by the text of its mask. */
typedef struct {
    CocoDetection detection;
    int image, height, width; /* height 0: no mask */
    size_t order, text;       /* its position in the order of ranks; bytes of the following text, rounded up to 8 */
} FoundRecord;

/* The mask of detection i, {0} if there are none. */
static RleText mask_of(const CocoResults *results, size_t i) {
    return results->masks.count ? rle_texts_at(&results->masks, i) : (RleText){0};
}

static size_t text_bytes(const CocoResults *results, size_t i) {
    RleText mask = mask_of(results, i);
    return mask.text ? (mask.length + sizeof(double)) / sizeof(double) * sizeof(double) : 0;
}

static char *own_records(const Detector *d, const CocoResults *results, size_t *bytes) {
    *bytes = 0;
    for (size_t i = 0; i < results->count; i++) *bytes += sizeof(FoundRecord) + text_bytes(results, i);
    char *records = xcalloc(*bytes + 1, 1, "detections"), *to = records;
    for (size_t i = 0; i < results->count; i++) {
        RleText mask = mask_of(results, i);
        FoundRecord record = {.detection = results->detections[i], .height = mask.height, .width = mask.width,
                              .text = text_bytes(results, i)};
        record.image = coco_find_image(&d->val.coco, record.detection.image_id);
        memcpy(to, &record, sizeof record);
        if (mask.text) memcpy(to + sizeof record, mask.text, mask.length);
        to += sizeof record + record.text;
    }
    return records;
}

static int by_image(const void *a, const void *b) {
    const FoundRecord *x = *(const FoundRecord *const *)a, *y = *(const FoundRecord *const *)b;
    if (x->image != y->image) return x->image < y->image ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

static void add_record(CocoResults *results, const FoundRecord *record, Rle *mask) {
    Error error;
    coco_results_add(results, record->detection);
    if (!record->text) return;
    const char *text = (const char *)(record + 1);
    if (!rle_parse(mask, text, strlen(text), record->height, record->width, &error)) die("a mask: %s", error.text);
    coco_results_add_mask(results, mask);
}

void detector_exchange(const Detector *d, CocoResults *results) {
    size_t bytes, total, count = 0;
    Rle mask = {0};
    if (distributed_ranks() == 1) return;
    char *own = own_records(d, results, &bytes), *all = distributed_gather(own, bytes, &total);
    FoundRecord **found = xcalloc(total / sizeof **found + 1, sizeof *found, "detections");
    for (size_t at = 0; at < total; count++) {
        found[count] = (FoundRecord *)(void *)(all + at);
        found[count]->order = count;
        at += sizeof **found + found[count]->text;
    }
    qsort(found, count, sizeof *found, by_image);
    coco_results_free(results);
    *results = (CocoResults){0};
    for (size_t i = 0; i < count; i++) add_record(results, found[i], &mask);
    rle_free(&mask);
    free(found);
    free(all);
    free(own);
}

void detector_report_begin(const Detector *d) {
    progress_show(true, "%d validation images of %s, %d at a time", d->val.coco.image_count, d->val.name,
                  d->view->eval_batch);
}

void detector_report_end(const Detector *d, const CocoResults *results) {
    const char *path = d->outputs->results;
    Error error;
    if (*path && !coco_results_write(path, results, &error)) die("%s: %s", path, error.text);
    if (*path) print_line("%s: %zu detections\n", path, results->count);
}

void detector_check_categories(const Detector *d) {
    ClassNames names, own;
    const char *path = d->training.s->init;
    run_folder_classes(&names, path);
    class_names_printed(&own, d->names, d->ids);
    for (int id = 0; id < names.count && id < own.count; id++)
        if (*names.at[id] && *own.at[id] && strcmp(names.at[id], own.at[id]))
            die("%s: category %d is '%s', but '%s' in what %s was trained on", d->val.name, id, own.at[id],
                names.at[id], path);
    class_names_free(&own);
    class_names_free(&names);
}
