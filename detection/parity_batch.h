/* The batch that --parity of a detector reads from another framework's file: `images` [B,3,H,W] normalised and padded with
 * zeros, `sizes` [B,2] own height and width, `counts` [B] targets of each image, `target_boxes` [T,4] (cx, cy, w, h
 * relative to the image's own size) and `labels` [T]. */
#ifndef VIT_DETECTION_PARITY_BATCH_H
#define VIT_DETECTION_PARITY_BATCH_H

#include "core/safetensors.h"
#include "data/detection_loader.h"

typedef struct {
    int B, H, W, T;
    float *images; /* [B,H,W,3] */
    int *sizes;    /* [B,2] */
    DetectionPart part; /* n, boxes, labels and first alone */
} ParityBatch;

/* Labels are 0 to `classes`.  Dies with the file and what is wrong with it. */
void parity_batch_read(ParityBatch *p, const SafeTensors *st, int classes);

#endif
