/* The batch that a detector's --parity reads from a safetensors file: `images` [B,3,H,W], normalised and padded with
 * zeros; `sizes` [B,2], height and width of each image without padding; `counts` [B], the number of targets of each
 * image; `target_boxes` [T,4], cx, cy, w, h as fractions of the image without padding; and `labels` [T]. */
#ifndef VIT_DETECTION_PARITY_BATCH_H
#define VIT_DETECTION_PARITY_BATCH_H

#include "core/safetensors.h"
#include "data/detection/detection_loader.h"

typedef struct {
    int B, H, W, T;
    float *images; /* [B,H,W,3] */
    int *sizes;    /* [B,2] */
    DetectionPart part; /* only n, boxes, labels and first are set */
} ParityBatch;

/* Labels must be from 0 to `classes`.  Dies with a message that names the file and the reason. */
void parity_batch_read(ParityBatch *p, const SafeTensors *st, int classes);

#endif
