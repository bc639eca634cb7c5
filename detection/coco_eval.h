/* COCO's twelve metrics for boxes and for masks, with the same values as pycocotools' COCOeval, also for ties, ignored
 * regions and rounding. */
#ifndef VIT_DETECTION_COCO_EVAL_H
#define VIT_DETECTION_COCO_EVAL_H

#include <stdio.h>

#include "core/error.h"
#include "data/detection/coco.h"
#include "detection/coco_results.h"

enum {
    COCO_AP,     /* mean over IoU thresholds .50, .55, ... .95; this and what follows, up to 100 detections an image and
                    category where not said otherwise */
    COCO_AP50,   /* at IoU .50 */
    COCO_AP75,   /* at IoU .75 */
    COCO_AP_SMALL, /* area up to 32^2 */
    COCO_AP_MEDIUM,
    COCO_AP_LARGE, /* area from 96^2 */
    COCO_AR1,    /* recall with one detection an image and category */
    COCO_AR10,
    COCO_AR100,
    COCO_AR_SMALL,
    COCO_AR_MEDIUM,
    COCO_AR_LARGE,
    COCO_NUMBERS
};

typedef enum {
    COCO_EVAL_BOXES,
    COCO_EVAL_MASKS /* `truth` was read with COCO_RLE, or has masks of figures, and the detections have masks */
} CocoEvalKind;

/* Evaluates the detections of the images marked in `evaluated` [truth->image_count], or of all images if that is NULL.
 * Detections of other images, and of categories that are not in `truth`, are ignored; a detection of an image that is
 * not in `truth`, as in pycocotools, or with a mask of another size than its image is an error.  An annotation without
 * a mask has an empty one.  A metric without any ground truth is -1.  category_ap
 * [truth->category_count], or NULL: COCO_AP of each category.  Uses OpenMP over (category, image), with the same bits
 * for any number of threads.  Returns false with a reason in `error`. */
bool coco_eval(double numbers[COCO_NUMBERS], double *category_ap, CocoEvalKind kind, const Coco *truth,
               const CocoResults *found, const bool *evaluated, Error *error);

/* Prints the metrics in pycocotools' format. */
void coco_eval_print(const double numbers[COCO_NUMBERS], FILE *out);

#endif
