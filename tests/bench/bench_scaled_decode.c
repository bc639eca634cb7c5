/* The difference in evaluation between JPEGs decoded at a fraction of their size and Pillow's pixels.
 *
 *     build/cpu/tests/bench_scaled_decode SIZE FILE.jpg... */
#include <stdio.h>
#include <stdlib.h>

#include "core/die.h"
#include "core/files.h"
#include "data/images/image.h"
#include "data/images/transform.h"

static double mean_difference(const uint8_t *a, const uint8_t *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += abs(a[i] - b[i]);
    return sum / (double)n;
}

int main(int argc, char **argv) {
    int size = argc > 2 ? atoi(argv[1]) : 0, above = 0, differ = 0;
    if (size < 1) die_usage("usage: bench_scaled_decode SIZE FILE.jpg...");
    size_t n = 3 * (size_t)size * (size_t)size;
    uint8_t *fast = xcalloc(n, 1, "pixels"), *exact = xcalloc(n, 1, "pixels");
    TransformScratch scratch = {0};
    double worst = 0, sum = 0;
    for (int i = 2; i < argc; i++) {
        Error error;
        uint8_t *bytes;
        size_t length;
        if (!file_read(argv[i], IMAGE_MAX_BYTES, &bytes, &length, &error)) die("%s: %s", argv[i], error.text);
        Sample sample = {.bytes = bytes, .size = length};
        Transform transform = {.height = size, .width = size};
        bool ok = transform_sample(&scratch, fast, &sample, false, &transform, (TransformKey){0}, &error);
        transform.s.exact_decode = true;
        ok = ok && transform_sample(&scratch, exact, &sample, false, &transform, (TransformKey){0}, &error);
        if (!ok) die("%s: %s", argv[i], error.text);
        double difference = mean_difference(fast, exact, n);
        differ += difference > 0;
        above += difference > 1;
        worst = difference > worst ? difference : worst;
        sum += difference;
        free(bytes);
    }
    printf("%d files at %d x %d: %d differ, %d by more than one grey level in the mean, worst %.2f, mean %.2f\n", argc - 2,
           size, size, differ, above, worst, sum / (argc - 2));
    transform_scratch_free(&scratch);
    free(fast);
    free(exact);
}
