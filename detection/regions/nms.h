/* Greedy non-maximum suppression: boxes in descending order of their scores, equal scores in order of their index; a
 * box is removed if its IoU with a kept one is greater than `threshold`. */
#ifndef VIT_DETECTION_REGIONS_NMS_H
#define VIT_DETECTION_REGIONS_NMS_H

/* boxes [n]: x0, y0, x1, y1, sorted by score.  keep (=) [n]: the indices of the kept boxes, in that order.  Returns
 * their number; stops once there are `most`. */
int nms_sorted(int *keep, const float (*boxes)[4], int n, float threshold, int most);

#endif
