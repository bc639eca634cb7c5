#include "detection/coco_results.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/die.h"
#include "core/json_lists.h"

void coco_results_add(CocoResults *results, CocoDetection detection) {
    if (results->count == results->room) {
        results->room = results->room ? 2 * results->room : 1024;
        results->detections = realloc(results->detections, results->room * sizeof *results->detections);
        if (!results->detections) die("out of memory: %zu detections", results->room);
    }
    results->detections[results->count++] = detection;
}

void coco_results_free(CocoResults *results) {
    free(results->detections);
    *results = (CocoResults){.count = 0};
}

/* == Reading ====================================================================================================== */

enum { IMAGE, CATEGORY, BOX, SCORE, FIELDS };

static const JsonField fields[] = {[IMAGE] = {"image_id", JSON_INTEGER, false},
                                   [CATEGORY] = {"category_id", JSON_INTEGER, false},
                                   [BOX] = {"bbox", JSON_NUMBER4, false},
                                   [SCORE] = {"score", JSON_NUMBER, false}};

static bool take_detection(void *state, const JsonValue *value, uint32_t present, char error[FILE_ERROR]) {
    const double *box = value[BOX].numbers;
    (void)present;
    (void)error;
    coco_results_add(state, (CocoDetection){value[IMAGE].integer, value[CATEGORY].integer,
                                            {box[0], box[1], box[2], box[3]}, value[SCORE].number});
    return true;
}

static const JsonList list = {NULL, fields, FIELDS, take_detection};

bool coco_results_parse(CocoResults *results, const void *bytes, size_t size, size_t piece, char error[FILE_ERROR]) {
    *results = (CocoResults){.count = 0};
    bool ok = json_lists_parse(bytes, size, piece, &list, 1, results, error);
    if (!ok) coco_results_free(results);
    return ok;
}

bool coco_results_read(CocoResults *results, const char *path, char error[FILE_ERROR]) {
    *results = (CocoResults){.count = 0};
    bool ok = json_lists_read(path, &list, 1, results, error);
    if (!ok) coco_results_free(results);
    return ok;
}

/* == Writing ====================================================================================================== */

static bool refuse(char *error, const char *what) {
    snprintf(error, FILE_ERROR, "%s: %s", what, strerror(errno));
    return false;
}

static bool write_detections(FILE *file, const CocoDetection *detections, size_t count) {
    fputc('[', file);
    for (size_t i = 0; i < count; i++) {
        const CocoDetection *d = &detections[i];
        fprintf(file,
                "%s{\"image_id\": %" PRId64 ", \"category_id\": %" PRId64 ", \"bbox\": [%.17g, %.17g, %.17g, %.17g], "
                "\"score\": %.17g}",
                i ? ",\n" : "", d->image_id, d->category_id, d->box[0], d->box[1], d->box[2], d->box[3], d->score);
    }
    fputs("]\n", file);
    return fflush(file) == 0 && !ferror(file) && fsync(fileno(file)) == 0;
}

bool coco_results_write(const char *path, const CocoDetection *detections, size_t count, char error[FILE_ERROR]) {
    char temporary[4096];
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid()) >= sizeof temporary) {
        errno = ENAMETOOLONG;
        return refuse(error, "cannot write");
    }
    FILE *file = fopen(temporary, "we");
    if (!file) return refuse(error, "cannot write");
    bool ok = write_detections(file, detections, count) || refuse(error, "cannot write");
    if (fclose(file) && ok) ok = refuse(error, "cannot write");
    if (ok && rename(temporary, path)) ok = refuse(error, "cannot rename into place");
    if (!ok) unlink(temporary);
    return ok;
}
