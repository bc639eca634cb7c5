/* Evaluation by sliding windows, as mmsegmentation's slide_inference: windows of crop x crop pixels, `stride` apart.
 * The last window of a row or column is moved back so that it ends with the picture, and a side shorter than the crop
 * has one window of its own length.  A pixel's logits are averaged over the windows that contain it. */
#ifndef VIT_DATA_SEGMENTATION_SLIDING_WINDOWS_H
#define VIT_DATA_SEGMENTATION_SLIDING_WINDOWS_H

typedef struct {
    int top, left, height, width;
} SlidingWindow;

/* The number of windows of a picture height x width. */
int sliding_count(int height, int width, int crop, int stride);

/* Window `i`, row after row. */
SlidingWindow sliding_window(int height, int width, int crop, int stride, int i);

#endif
