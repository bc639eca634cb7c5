/* Seconds of RoIAlign forward and backward: 1000 RoIs of a picture of 800 x 1333, padded to whole cells, from four maps
 * of 256 channels; and a lower bound by memory bandwidth, where every cell that a RoI reads is moved once.
 *
 *   build/cpu/tests/bench_roi_align [P [C [RoIs [cpu]]]]      scripts/bench/bench_roi_align.py compares with torchvision
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/bench.h"

enum { HEIGHT = 800, WIDTH = 1344 };

/* Random numbers from 0 to 1, the same as in the script. */
static double drawn(void) {
    static unsigned state = 1;
    state = (state * 1103515245u + 12345u) & 0x7fffffffu;
    return state / 2147483648.0;
}

/* Boxes whose sides are log-uniform from 16 to 640 pixels, clipped to the picture; their levels follow from their
 * areas. */
static void draw_boxes(float *boxes, int *place, int R) {
    for (int r = 0; r < R; r++) {
        double w = 16 * pow(40, drawn()), h = 16 * pow(40, drawn()), x = WIDTH * drawn(), y = HEIGHT * drawn();
        float *b = boxes + 4 * r;
        b[0] = (float)fmax(x - w / 2, 0);
        b[1] = (float)fmax(y - h / 2, 0);
        b[2] = (float)fmin(x + w / 2, WIDTH);
        b[3] = (float)fmin(y + h / 2, HEIGHT);
        double level = floor(4 + log2(sqrt((double)(b[2] - b[0]) * (b[3] - b[1])) / 224) + 1e-6);
        place[2 * r] = 0;
        place[2 * r + 1] = (int)fmin(fmax(level, 2), 5) - 2;
    }
}

/* The number of cells that some RoI covers. */
static size_t cells_read(const float *boxes, const int *place, int R, const RoiAlign *s) {
    size_t cells = 0;
    for (int l = 0; l < s->levels; l++) {
        char *seen = calloc((size_t)(s->rows[l] * s->columns[l]), 1);
        for (int r = 0; r < R; r++) {
            if (place[2 * r + 1] != l) continue;
            const float *b = boxes + 4 * r;
            for (int y = (int)fmaxf(b[1] * s->scale[l] - 0.5f, 0); y < s->rows[l] && (float)y < b[3] * s->scale[l] + 0.5f; y++)
                for (int x = (int)fmaxf(b[0] * s->scale[l] - 0.5f, 0);
                     x < s->columns[l] && (float)x < b[2] * s->scale[l] + 0.5f; x++)
                    seen[y * s->columns[l] + x] = 1;
        }
        for (int i = 0; i < s->rows[l] * s->columns[l]; i++) cells += (size_t)seen[i];
        free(seen);
    }
    return cells;
}

int main(int argc, char **argv) {
    int P = argc > 1 ? atoi(argv[1]) : 7, C = argc > 2 ? atoi(argv[2]) : 256, R = argc > 3 ? atoi(argv[3]) : 1000;
    if (argc > 4) bench_clock = CLOCK_PROCESS_CPUTIME_ID;
    kernels_init();
    RoiAlign s = {1, C, P, ROI_LEVELS, {0}, {0}, {0}};
    real *maps[ROI_LEVELS], *dmaps[ROI_LEVELS];
    size_t map_bytes = 0, out = (size_t)R * (size_t)(P * P) * (size_t)C;
    for (int l = 0; l < ROI_LEVELS; l++) {
        s.rows[l] = HEIGHT >> (l + 2);
        s.columns[l] = WIDTH >> (l + 2);
        s.scale[l] = 1 / (float)(1 << (l + 2));
        size_t n = (size_t)(s.rows[l] * s.columns[l]) * (size_t)C;
        maps[l] = uniform_real(n, -1, 1);
        dmaps[l] = uniform_real(n, -1, 1);
        map_bytes += n * sizeof(real);
    }
    float *boxes = malloc((size_t)R * 4 * sizeof *boxes), *d_boxes = device_malloc((size_t)R * 4 * sizeof *boxes, "boxes");
    int *place = malloc((size_t)R * 2 * sizeof *place), *d_place = device_malloc((size_t)R * 2 * sizeof *place, "levels");
    draw_boxes(boxes, place, R);
    device_upload(d_boxes, boxes, (size_t)R * 4 * sizeof *boxes);
    device_upload(d_place, place, (size_t)R * 2 * sizeof *place);
    real *y = device_malloc(out * sizeof *y, "features"), *dy = uniform_real(out, -1, 1);
    kernels_reserve(roi_align_workspace(&s));

    double forward, backward, zero;
    TIME(forward, 0.5, roi_align_forward(y, (const real *const *)maps, d_boxes, d_place, R, &s));
    TIME(backward, 0.5, roi_align_backward(dmaps, dy, d_boxes, d_place, R, &s));
    TIME(zero, 0.2, for (int l = 0; l < ROI_LEVELS; l++)
                        device_zero(dmaps[l], (size_t)(s.rows[l] * s.columns[l]) * (size_t)C * sizeof(real)));
    size_t cells = cells_read(boxes, place, R, &s) * (size_t)C * sizeof(real), bytes = out * sizeof(real);
    double peak = 1e9 * memory_peak_gbytes();
    printf("%s, %d RoIs, %d x %d, %d channels: forward %.4f s, backward %.4f s, zeroing %.4f s\n", kernels_device(), R, P, P,
           C, forward, backward, zero);
    printf("maps %.0f MB, cells read %.0f MB, result %.0f MB; copies %.1f GB/s: no less than forward %.4f s, backward %.4f s\n",
           1e-6 * (double)map_bytes, 1e-6 * (double)cells, 1e-6 * (double)bytes, 1e-9 * peak,
           (double)(cells + bytes) / peak, (double)(2 * cells + bytes) / peak);
    return 0;
}
