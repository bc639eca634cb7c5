/* Time and memory for reading an annotation file without segmentations, with polygons and with run lengths, each in its
 * own process.  Without FILE a file of the size of COCO's instances_train2017.json is written first (118287 images,
 * 860001 annotations, polygons of 26 points, about 450 MB).
 *
 *   build/cpu/tests/bench_coco [FILE] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/die.h"
#include "core/rng.h"
#include "data/detection/coco.h"

enum { IMAGES = 118287, ANNOTATIONS = 860001, CATEGORIES = 90, CORNERS = 26 };

static double uniform(uint64_t annotation, uint64_t i) { return rng_uniform(1, RNG_TEST, 0, (uint32_t)annotation, i); }

static void write_annotation(FILE *file, uint64_t i) {
    double x = 400 * uniform(i, 0), y = 300 * uniform(i, 1), w = 1 + 200 * uniform(i, 2), h = 1 + 150 * uniform(i, 3);
    fprintf(file, "%s{\"segmentation\": [[", i ? ", " : "");
    for (uint64_t c = 0; c < CORNERS; c++) { /* an ellipse with random radii */
        double angle = 6.2831853 * (double)c / CORNERS, reach = 0.6 + 0.4 * uniform(i, 4 + c);
        fprintf(file, "%s%.2f, %.2f", c ? ", " : "", x + w / 2 * (1 + reach * cos(angle)),
                y + h / 2 * (1 + reach * sin(angle)));
    }
    fprintf(file,
            "]], \"area\": %.4f, \"iscrowd\": 0, \"image_id\": %d, \"bbox\": [%.2f, %.2f, %.2f, %.2f], "
            "\"category_id\": %d, \"id\": %llu}",
            0.6 * w * h, 1 + (int)(uniform(i, 90) * IMAGES), x, y, w, h, 1 + (int)(uniform(i, 91) * CATEGORIES),
            (unsigned long long)i + 1);
}

static void write_file(FILE *file) {
    fputs("{\"info\": {\"year\": 2017}, \"images\": [", file);
    for (int i = 0; i < IMAGES; i++)
        fprintf(file, "%s{\"license\": 3, \"file_name\": \"%012d.jpg\", \"height\": 480, \"width\": 640, \"id\": %d}",
                i ? ", " : "", i + 1, i + 1);
    fputs("], \"annotations\": [", file);
    for (uint64_t i = 0; i < ANNOTATIONS; i++) write_annotation(file, i);
    fputs("], \"categories\": [", file);
    for (int i = 0; i < CATEGORIES; i++)
        fprintf(file, "%s{\"id\": %d, \"name\": \"thing %d\"}", i ? ", " : "", i + 1, i + 1);
    fputs("]}\n", file);
}

static struct rusage usage_now(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage;
}

static double peak_megabytes(void) { return (double)usage_now().ru_maxrss / 1024; }

/* Processor time of this process, which other processes disturb little. */
static double core_seconds(void) {
    struct rusage u = usage_now();
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void read_file(const char *path, CocoMaskKind kind) {
    static const char *const kinds[] = {"boxes", "polygons", "run lengths"};
    Error error;
    Coco coco;
    struct stat status;
    double before = peak_megabytes(), start = core_seconds();
    if (!coco_read(&coco, path, kind, &error)) die("%s: %s", path, error.text);
    double took = core_seconds() - start;
    if (stat(path, &status)) status.st_size = 0;
    printf("%-11s  %.0f MB, %d images, %zu annotations: %.2f s, %.0f MB/s, %.0f MB of memory\n", kinds[kind],
           (double)status.st_size / 1e6, coco.image_count, coco.annotation_count, took,
           (double)status.st_size / 1e6 / took, peak_megabytes() - before);
    coco_close(&coco);
}

int main(int argc, char **argv) {
    char made[] = "/tmp/vit_bench_coco_XXXXXX";
    const char *path = argc > 1 ? argv[1] : made;
    int failed = 0, status;
    if (argc < 2) {
        int fd = mkstemp(made);
        FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
        if (!file) die("%s: cannot be written", made);
        write_file(file);
        if (fclose(file)) die("%s: cannot be written", made);
    }
    for (CocoMaskKind kind = COCO_NO_MASKS; kind <= COCO_RLE && !failed; kind++) {
        pid_t child = fork();
        if (child < 0) die("no process can be started");
        if (!child) {
            read_file(path, kind);
            return 0;
        }
        failed = waitpid(child, &status, 0) < 0 || status;
    }
    if (argc < 2) unlink(made);
    return failed;
}
