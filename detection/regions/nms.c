#include "detection/regions/nms.h"

#include "detection/regions/box_coder.h"

int nms_sorted(int *keep, const float (*boxes)[4], int n, float threshold, int most) {
    int kept = 0;
    for (int i = 0; i < n && kept < most; i++) {
        int k = 0;
        while (k < kept && !(box_iou(boxes[keep[k]], boxes[i]) > threshold)) k++;
        if (k == kept) keep[kept++] = i;
    }
    return kept;
}
