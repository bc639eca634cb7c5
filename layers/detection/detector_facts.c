#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/integers.h"
#include "detection/draw.h"
#include "layers/detection/detector.h"
#include "layers/model_facts.h"

enum { SHOWN = 8, SIDE = 320 };

/* == Pictures ===================================================================================================== */

/* The detections of one image, which are consecutive in `all`, best first. */
static void detections_of(CocoResults *found, const CocoResults *all, int64_t image_id) {
    Rle mask = {0};
    for (size_t i = 0; i < all->count; i++) {
        if (all->detections[i].image_id != image_id) continue;
        coco_results_add(found, all->detections[i]);
        if (!all->masks.count) continue;
        rle_texts_get(&mask, &all->masks, i);
        coco_results_add_mask(found, &mask);
    }
    rle_free(&mask);
}

/* The picture at its size in the report, an integer multiple of its own size if it is small, with the masks of
 * detections: their colours are mixed in before it is scaled down. */
static Image scaled_picture(const ImagePart *picture, const CocoResults *found, double least) {
    int longer = larger(picture->height, picture->width), times = larger(SIDE / longer, 1);
    Image large = {picture->height * times, picture->width * times, NULL}, fit;
    Rle mask = {0};
    large.pixels = xcalloc((size_t)large.height * (size_t)large.width * 3, 1, "a picture");
    draw_enlarged(&large, picture->pixels, times);
    for (size_t i = found->masks.count; i-- > 0;) {
        if (found->detections[i].score < least) continue;
        rle_texts_get(&mask, &found->masks, i);
        draw_mask(&large, &mask, draw_colour(found->detections[i].category_id));
    }
    rle_free(&mask);
    if (longer <= SIDE) return large;
    fit = (Image){larger(large.height * SIDE / longer, 1), larger(large.width * SIDE / longer, 1), NULL};
    fit.pixels = xcalloc((size_t)fit.height * (size_t)fit.width * 3, 1, "a picture");
    image_resize(fit.pixels, fit.height, fit.width, large.pixels, large.height, large.width);
    free(large.pixels);
    return fit;
}

/* inside [height,width] of the shown picture: the annotation's mask or, without one, its box. */
static void fill_object(uint8_t *inside, const Image *shown, const Coco *coco, size_t annotation) {
    const CocoAnnotation *a = &coco->annotations[annotation];
    const CocoImage *image = &coco->images[a->image];
    const Rle *rle = coco->masks.kind ? coco_annotation_mask(coco, annotation) : NULL;
    size_t own = (size_t)image->height * (size_t)image->width;
    uint8_t *mask = rle ? xcalloc(own, 1, "a mask") : NULL;
    if (rle) rle_decode(mask, rle);
    for (int y = 0; y < shown->height; y++)
        for (int x = 0; x < shown->width; x++) {
            double at_x = (x + 0.5) * image->width / shown->width, at_y = (y + 0.5) * image->height / shown->height;
            bool in_box = at_x >= a->box[0] && at_x < a->box[0] + a->box[2] && at_y >= a->box[1] &&
                          at_y < a->box[1] + a->box[3];
            *inside++ = mask ? mask[(size_t)at_y * (size_t)image->width + (size_t)at_x] : in_box;
        }
    free(mask);
}

static void draw_truth(Image *shown, const Coco *coco, const CocoImage *image) {
    uint8_t *inside = xcalloc((size_t)shown->height * (size_t)shown->width, 1, "an object");
    for (size_t i = image->first; i < image->first + (size_t)image->count; i++) {
        if (coco->annotations[i].crowd) continue;
        fill_object(inside, shown, coco, i);
        draw_outline(shown, inside, draw_colour(coco->annotations[i].category_id));
    }
    free(inside);
}

static void draw_found(Image *shown, CocoResults *found, double least, const Coco *coco, const CocoImage *image) {
    double across = (double)shown->width / image->width, down = (double)shown->height / image->height;
    for (size_t i = 0; i < found->count; i++)
        for (int k = 0; k < 4; k++) found->detections[i].box[k] *= k % 2 ? down : across;
    draw_detections(shown, found->detections, (int)found->count, least, NULL, coco);
}

static int objects_of(const Coco *coco, const CocoImage *image, int category) {
    int count = 0;
    for (size_t i = image->first; i < image->first + (size_t)image->count; i++)
        count += coco->annotations[i].category == category && !coco->annotations[i].crowd;
    return count;
}

/* "image 17: 2 circle, 1 star": the annotated objects. */
static void caption_of(char *text, size_t size, const DetectionSet *set, int index) {
    const CocoImage *image = &set->coco.images[index];
    int named = 0;
    if (set->folder) snprintf(text, size, "%.80s:", image->file_name);
    else snprintf(text, size, "image %d:", index);
    for (int c = 0; c < set->coco.category_count; c++) {
        int count = objects_of(&set->coco, image, c);
        size_t used = strlen(text);
        const char *comma = named ? "," : "";
        if (!count) continue;
        snprintf(text + used, size - used, "%s %d %s", comma, count, set->coco.categories[c].name);
        named++;
    }
    if (!named) snprintf(text + strlen(text), size - strlen(text), " nothing");
}

/* False: it does not fit.  A picture that cannot be read was named when it was evaluated. */
static bool show(const Detector *d, Facts *facts, int index, const CocoResults *all, TransformScratch *scratch) {
    const Coco *coco = &d->val.coco;
    const CocoImage *image = &coco->images[index];
    double least = (double)d->view->draw_score;
    CocoResults found = {0};
    ImagePart picture;
    Error error;
    char caption[256];
    if (!detection_set_read(&d->val, index, false, scratch, &picture, &error)) return true;
    detections_of(&found, all, image->id);
    Image shown = scaled_picture(&picture, &found, least);
    draw_truth(&shown, coco, image);
    draw_found(&shown, &found, least, coco, image);
    caption_of(caption, sizeof caption, &d->val, index);
    bool added = facts_picture(facts, "found", shown.pixels, shown.height, shown.width, SIDE, caption);
    free(shown.pixels);
    coco_results_free(&found);
    return added;
}

/* == All of them ================================================================================================== */

static void class_bars(const Detector *d, Facts *facts) {
    const Coco *coco = &d->val.coco;
    const char **names = xcalloc((size_t)coco->category_count, sizeof *names, "names of categories");
    for (int c = 0; c < coco->category_count; c++) names[c] = coco->categories[c].name;
    facts_class_bars(facts, "classes", d->task == DETECTION_MASKS ? "Mask AP of each class" : "AP of each class", names,
                     d->category_ap, coco->category_count);
    free(names);
}

void detector_facts(const Detector *d, Facts *facts, const CocoResults *found) {
    TransformScratch scratch = {0};
    char text[200];
    int count = d->val.coco.image_count, shown = smaller(count, SHOWN);
    if (!facts) return;
    snprintf(text, sizeof text,
             "Validation images after epoch %llu. Solid boxes with a class: detections with a score of at least %g. "
             "Dashed boxes: the annotated objects.",
             (unsigned long long)d->training.state.epoch + 1, (double)d->view->draw_score);
    class_bars(d, facts);
    facts_pictures(facts, "found", "Found and true objects", text);
    for (int i = 0; i < shown; i++)
        if (!show(d, facts, (int)((int64_t)i * count / shown), found, &scratch)) break;
    transform_scratch_free(&scratch);
}
