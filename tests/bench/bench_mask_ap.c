/* How long mask AP takes: converting the polygons of the ground truth to masks, then computing the twelve metrics, for
 * pictures of 640 x 480 with about 7 objects each and 30 detections near them.
 *
 *   build/cpu/tests/bench_mask_ap [PICTURES [FOLDER]]      5000; FOLDER: truth.json and results.json are written there
 *
 * tests/reference/time_mask_ap.py has pycocotools evaluate the same files. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "core/die.h"
#include "core/files.h"
#include "core/progress.h"
#include "core/rng.h"
#include "data/masks/polygon.h"
#include "detection/coco_eval.h"

enum { WIDTH = 640, HEIGHT = 480, CATEGORIES = 80, CORNERS = 26, MOST_OBJECTS = 14, FOUND_EACH = 4 };

static double uniform(uint32_t stream, size_t which, uint64_t i) {
    return (double)rng_uniform(1, RNG_TEST, stream, (uint32_t)which, i);
}

/* A closed outline around a centre; its coordinates are multiples of 1/100 of a pixel, as in COCO. */
typedef struct {
    double x, y, radius, radii[CORNERS];
} Shape;

static Shape draw_shape(size_t object) {
    Shape s = {.x = WIDTH * uniform(0, object, 0), .y = HEIGHT * uniform(0, object, 1)};
    s.radius = 8 * exp(3 * uniform(0, object, 2));
    for (uint64_t c = 0; c < CORNERS; c++) s.radii[c] = 0.6 + 0.4 * uniform(1, object, c);
    return s;
}

static double hundredths(double x, double most) { return rint(100 * fmin(fmax(x, 0), most)) / 100; }

static void outline(double *xy, const Shape *s) {
    for (int c = 0; c < CORNERS; c++) {
        double angle = 6.283185307179586 * c / CORNERS, r = s->radius * s->radii[c];
        xy[2 * c] = hundredths(s->x + r * cos(angle), WIDTH);
        xy[2 * c + 1] = hundredths(s->y + r * sin(angle), HEIGHT);
    }
}

/* A detection of the shape, moved, resized and distorted. */
static Shape found_shape(const Shape *s, size_t found) {
    Shape f = *s;
    double off = 0.3 * uniform(2, found, 0);
    f.x += off * s->radius * (uniform(2, found, 1) - 0.5);
    f.y += off * s->radius * (uniform(2, found, 2) - 0.5);
    f.radius *= 1 + off * (uniform(2, found, 3) - 0.5);
    for (uint64_t c = 0; c < CORNERS; c++) f.radii[c] *= 1 + off * (uniform(3, found, c) - 0.5);
    return f;
}

typedef struct {
    Coco truth;
    double *outlines; /* [annotation_count,CORNERS,2]; row id - 1 */
    size_t room;
    CocoResults found;
} Drawn;

static void box_of(double box[4], const Rle *mask) {
    RleExtent e = rle_extent(mask);
    for (int i = 0; i < 2; i++) {
        box[i] = e.box[i];
        box[i + 2] = e.box[i + 2] - e.box[i];
    }
}

static void draw_object(Drawn *d, int picture, size_t object, Rle *mask) {
    Shape shape = draw_shape(object);
    double box[4];
    int64_t category = 1 + (int64_t)(CATEGORIES * pow(uniform(4, object, 0), 3));
    d->outlines = xgrow(d->outlines, (object + 1) * 2 * CORNERS, &d->room, sizeof *d->outlines, "outlines");
    double *xy = d->outlines + object * 2 * CORNERS;
    outline(xy, &shape);
    polygon_rle(mask, xy, CORNERS, HEIGHT, WIDTH);
    box_of(box, mask);
    coco_add_annotation(&d->truth, (int64_t)object + 1, picture + 1, category, box, rle_extent(mask).area,
                        uniform(4, object, 1) < 0.01);
    coco_masks_set(&d->truth.masks, mask);
    for (size_t k = 0; k < FOUND_EACH; k++) {
        size_t found = object * FOUND_EACH + k;
        double near[2 * CORNERS];
        Shape moved = found_shape(&shape, found);
        CocoDetection detection = {.image_id = picture + 1, .category_id = category, .score = uniform(2, found, 4)};
        if (uniform(2, found, 5) < 0.3) detection.category_id = 1 + (int64_t)(CATEGORIES * uniform(2, found, 6));
        outline(near, &moved);
        polygon_rle(mask, near, CORNERS, HEIGHT, WIDTH);
        box_of(detection.box, mask);
        coco_results_add(&d->found, detection);
        coco_results_add_mask(&d->found, mask);
    }
}

static void draw_all(Drawn *d, int pictures) {
    size_t object = 0;
    Rle mask = {.count = 0};
    for (int64_t id = 1; id <= CATEGORIES; id++) coco_add_category(&d->truth, id, "thing");
    for (int i = 0; i < pictures; i++) {
        coco_add_image(&d->truth, i + 1, "picture.jpg", WIDTH, HEIGHT);
        int objects = 1 + (int)(MOST_OBJECTS * uniform(5, (size_t)i, 0));
        for (int k = 0; k < objects; k++) draw_object(d, i, object++, &mask);
    }
    rle_free(&mask);
    coco_finish(&d->truth, &error_fatal);
}

/* Seconds for computing the masks of the ground truth again, which pycocotools does in each evaluation. */
static double time_truth(const Drawn *d) {
    double start = now_seconds();
    Rle mask = {.count = 0};
    for (size_t i = 0; i < d->truth.annotation_count; i++)
        polygon_rle(&mask, d->outlines + i * 2 * CORNERS, CORNERS, HEIGHT, WIDTH);
    rle_free(&mask);
    return now_seconds() - start;
}

static bool write_truth(FILE *file, const void *content) {
    const Drawn *d = content;
    fputs("{\"images\": [", file);
    for (int i = 0; i < d->truth.image_count; i++)
        fprintf(file, "%s{\"id\": %d, \"file_name\": \"picture.jpg\", \"width\": %d, \"height\": %d}", i ? ", " : "",
                i + 1, WIDTH, HEIGHT);
    fputs("], \"categories\": [", file);
    for (int i = 0; i < CATEGORIES; i++) fprintf(file, "%s{\"id\": %d, \"name\": \"thing\"}", i ? ", " : "", i + 1);
    fputs("], \"annotations\": [", file);
    for (size_t i = 0; i < d->truth.annotation_count; i++) {
        const CocoAnnotation *a = &d->truth.annotations[i];
        const double *xy = d->outlines + (size_t)(a->id - 1) * 2 * CORNERS;
        fprintf(file,
                "%s{\"id\": %jd, \"image_id\": %jd, \"category_id\": %jd, \"iscrowd\": %d, \"area\": %.17g, "
                "\"bbox\": [%g, %g, %g, %g], \"segmentation\": [[",
                i ? ",\n" : "", (intmax_t)a->id, (intmax_t)a->image_id, (intmax_t)a->category_id, a->crowd, a->area,
                a->box[0], a->box[1], a->box[2], a->box[3]);
        for (int c = 0; c < 2 * CORNERS; c++) fprintf(file, "%s%.17g", c ? ", " : "", xy[c]);
        fputs("]]}", file);
    }
    return fputs("]}\n", file) >= 0;
}

static void write_files(const Drawn *d, const char *folder) {
    char path[4096];
    path_join(path, sizeof path, folder, "truth.json");
    file_replace(path, write_truth, d, &error_fatal);
    path_join(path, sizeof path, folder, "results.json");
    coco_results_write(path, &d->found, &error_fatal);
}

static double peak_megabytes(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024;
}

int main(int argc, char **argv) {
    int pictures = argc > 1 ? atoi(argv[1]) : 5000;
    Drawn drawn = {.truth = {.masks = {.kind = COCO_RLE}}};
    double numbers[COCO_NUMBERS];
    if (pictures < 1) die_usage("expected a number of pictures of at least 1");
    draw_all(&drawn, pictures);
    if (argc > 2) write_files(&drawn, argv[2]);

    double before = peak_megabytes(), truth = time_truth(&drawn), start = now_seconds();
    coco_eval(numbers, NULL, COCO_EVAL_MASKS, &drawn.truth, &drawn.found, NULL, &error_fatal);
    double took = now_seconds() - start;
    for (int i = 0; i < COCO_NUMBERS; i++) printf("%.17g%c", numbers[i], i + 1 < COCO_NUMBERS ? ' ' : '\n');
    printf("%d pictures, %zu objects, %zu detections: masks of the ground truth %.3f s, evaluation %.3f s, together "
           "%.3f s, %.0f MB more than before\n",
           pictures, drawn.truth.annotation_count, drawn.found.count, truth, took, truth + took,
           peak_megabytes() - before);
    coco_results_free(&drawn.found);
    coco_close(&drawn.truth);
    free(drawn.outlines);
    return 0;
}
