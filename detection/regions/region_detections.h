/* Makes an image's detections from the outputs of Mask R-CNN's box head. */
#ifndef VIT_DETECTION_REGIONS_REGION_DETECTIONS_H
#define VIT_DETECTION_REGIONS_REGION_DETECTIONS_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    float least_score; /* a detection's score is larger: 0.05 */
    float nms;         /* IoU threshold within a class: 0.5 */
    int most;          /* detections of an image: 100 */
} RegionDetectionRule;
extern const RegionDetectionRule detection_rule;

typedef struct {
    float box[4]; /* x0, y0, x1, y1 in pixels of the resized image, sides larger than 0 */
    float score;
    int label;    /* 1 .. classes - 1: class 0 is the background */
    int proposal;
} RegionDetection;

/* Memory for one image at a time.  A zeroed one is empty. */
typedef struct {
    float *scores;         /* [proposals,classes] */
    uint64_t *keys, *best; /* [proposals], [most] */
    RegionDetection *kept; /* [(classes - 1) most] */
    float (*boxes)[4];     /* [proposals] */
    int *keep;             /* [proposals] */
} DetectionScratch;
void detection_scratch_open(DetectionScratch *scratch, int proposals, int classes, const RegionDetectionRule *rule);
void detection_scratch_close(DetectionScratch *scratch);

/* found (=) [rule->most], best first, of equal scores in order of class, then proposal; returns their number.
 * proposals [R,4];  logits [R,classes];  deltas [R,classes,4], relative to the proposal with region_weights.
 * Scores are softmax(logits); a proposal may be found with several classes. */
int region_detections(RegionDetection *found, const float (*proposals)[4], const float *logits, const float *deltas,
                      int R, int classes, int own_h, int own_w, const RegionDetectionRule *rule, DetectionScratch *scratch);

#endif
