/* Shared by the programs of all detectors: settings, data sets with their loaders, the detections of an evaluation, the
 * mode --predict, and the contents of a report.  A program's own run begins with a Detector. */
#ifndef VIT_LAYERS_DETECTION_DETECTOR_H
#define VIT_LAYERS_DETECTION_DETECTOR_H

#include "data/detection/detection_loader.h"
#include "data/detection/size_buckets.h"
#include "data/loading/pictures.h"
#include "detection/coco_eval.h"
#include "training/program.h"

/* == Settings ===================================================================================================== */

/* Files that modes of a detector write. */
typedef struct {
    const char *results, *draw;
} DetectionOutputSettings;
extern const ConfigGroup detection_output_settings;

/* Settings for evaluating and showing detections. */
typedef struct {
    int eval_batch, image_size[2];
    float draw_score;
} DetectionViewSettings;
extern const ConfigGroup detection_view_settings;

/* == A run ======================================================================================================== */

typedef struct {
    Training training; /* training.s: the settings that all programs share */
    const ModeSettings *modes;
    const PredictSettings *predict;
    const DetectionOutputSettings *outputs;
    const DetectionSetSettings *data;
    const LoaderSettings *loading;
    const SizeSettings *sizes;
    const DetectionAugmentSettings *augment;
    const DetectionViewSettings *view;

    DetectionSet train, val; /* train is open only in a training run */
    LoaderPool *workers;
    DetectionLoader loader, val_loader;
    DetectionTask task;  /* boxes, or boxes with masks */
    DetectionRule rule;  /* how sides of resized pictures are rounded */
    int multiple;        /* the sides of a batch are multiples of this; 0: 1 */
    int shorter, longer; /* maximum shorter and longer side of a batch */
    const char **names;  /* [ids]: categories by their id, "" for none */
    int ids;
    double *category_ap; /* [categories of val]: COCO_AP of the last evaluation, of masks if the task has them; -1: none */
    double infer_s;      /* seconds per image of the last evaluation on this rank, without waiting for pictures */
} Detector;

/* Checks settings of several groups. */
void detector_check_settings(Detector *d);

/* Opens the validation split, if the call evaluates, and for training also the training split. */
void detector_open_sets(Detector *d, bool train);
/* The number of height x width images at a time: micro_batch or, if that is 0, as many as keep the device busy with a
 * map of that many channels at a quarter of the side. */
int detector_micro_batch(const Detector *d, int height, int width, int channels);
/* Opens the loader of one of the two, for `micro` images at a time. */
void detector_open_loader(Detector *d, bool train, int micro);
/* Sets d->names to the names in the data, at least of all ids below `ids`. */
void detector_names_of_data(Detector *d, int ids);
void detector_close_data(Detector *d);

/* == Evaluation =================================================================================================== */

/* Exchanges detections: each rank has those of its own images before, and all of them, in the order of the images,
 * after the call. */
void detector_exchange(const Detector *d, CocoResults *results);

/* --eval: detections are compared with the data by category id, so an id must mean the same category in both. */
void detector_check_categories(const Detector *d);
/* --eval, on rank 0 only: prints what was evaluated; writes --results.  In between, the program prints its metrics. */
void detector_report_begin(const Detector *d);
void detector_report_end(const Detector *d, const CocoResults *results);

/* == The report =================================================================================================== */

/* After an evaluation, writes to the facts of a training run, if there are any: validation pictures with detections and
 * annotations, and the AP of each category. */
void detector_facts(const Detector *d, Facts *facts, const CocoResults *found);

/* == --predict ==================================================================================================== */

/* A picture for prediction: the original, and a batch of one resized image. */
typedef struct {
    const char *name;   /* for messages */
    int width, height;  /* of the original */
    uint8_t *pixels;    /* [H,W,3], host_malloc */
    int H, W, size[2];  /* size: height and width without padding */
} DetectorPicture;

/* Finds the objects of a picture: results [image id 1], best first. */
typedef void (*DetectPicture)(Detector *d, const DetectorPicture *picture, CocoResults *results);

/* Finds the pictures of --predict and their largest size after resizing (d->shorter and longer), and sets d->names from
 * the checkpoint, for ids below `ids`; 0: for all ids that it names. */
void detector_predict_begin(Detector *d, Pictures *pictures, int ids);
/* Prints the detections in the pictures; with --json and --draw also writes them. */
void detector_predict(Detector *d, Pictures *pictures, DetectPicture detect);

#endif
