"""Writes tests/fixtures/detection/masks.txt: polygons and their masks by pycocotools, unions, intersections and IoUs,
and training targets by detectron2's rule and by torchvision's RoIAlign, for tests/data/test_masks.c.

    python3 tests/reference/make_mask_fixtures.py               (pip install pycocotools torch torchvision)

50 groups of four polygons in one picture; a group is

    group HEIGHT WIDTH
    polygon POINTS X Y X Y ...                                  four times, each followed by
    mask TEXT AREA X Y WIDTH HEIGHT
    union TEXT AREA, intersection TEXT AREA                     of the first and the second
    ious [4,4], found by row, truth by column                   the second truth is a crowd
    target SIDE X0 Y0 X1 Y1 TEXT TEXT                           of the first: by its polygon, by its bitmap"""

import os
import random
import sys

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

import numpy as np
import torch
from pycocotools import mask as api
from torchvision.ops import roi_align

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "detection", "masks.txt")


def coordinate(draw, kind, side):
    if kind == 0:  # as in COCO's files: many values lie where a rounding turns
        return round(draw.uniform(0, side), 2)
    if kind == 1:
        return draw.randint(0, 2 * side) / 2
    if kind == 2:  # partly outside
        return draw.uniform(-side, 2 * side)
    if kind == 3:
        return draw.randint(0, 10 * side) / 10
    return draw.uniform(0, side)


def draw_polygon(draw, height, width):
    kind, points = draw.randrange(5), []
    for _ in range(draw.choice([3, 3, 4, 5, 7, 12])):
        repeat = points and draw.random() < 0.1
        points.append(points[-1] if repeat else (coordinate(draw, kind, width), coordinate(draw, kind, height)))
    return points


def text(rle):
    return rle["counts"].decode()


def rasterized(points, height, width):
    return api.merge(api.frPyObjects([[number for point in points for number in point]], height, width))


def polygon_target(points, box, side):
    points = np.array(points, np.float32).astype(np.float64) - box[:2]
    ratio = side / np.maximum(box[2:] - box[:2], 0.1)
    return rasterized((points * ratio).tolist(), side, side)


def bitmap_target(rle, box, side):
    bitmap = torch.from_numpy(api.decode(rle).astype(np.float64))[None, None]
    mean = roi_align(bitmap, [torch.from_numpy(box)[None]], side, 1.0, 0, True)[0, 0]
    return api.encode(np.asfortranarray((mean >= 0.5).numpy().astype(np.uint8)))


def draw_side(draw, kind, side, corners, cells):
    """Anywhere; thinner than a tenth, with an edge of the mask in it; or cells of a pixel whose middles lie between two
    pixels, where means of bitmaps are exactly 1/2, also beyond the picture."""
    if kind == 0:
        start = draw.choice(corners) - 0.015
        return [start, start + 0.03]
    if kind < 4:
        return sorted(draw.uniform(0, side) for _ in "12")
    start = draw.randint(-2, side // 2) + 0.5
    return [start, start + cells]


def write_group(file, draw):
    height, width = draw.randint(1, 60), draw.randint(1, 60)
    polygons = [draw_polygon(draw, height, width) for _ in range(4)]
    masks = [rasterized(points, height, width) for points in polygons]
    print("group", height, width, file=file)
    for points, mask in zip(polygons, masks):
        print("polygon", len(points), *(repr(number) for point in points for number in point), file=file)
        print("mask", text(mask), api.area(mask), *(int(number) for number in api.toBbox(mask)), file=file)
    for name, both in (("union", False), ("intersection", True)):
        merged = api.merge(masks[:2], both)
        print(name, text(merged), api.area(merged), file=file)
    print("ious", *(repr(float(x)) for x in api.iou(masks, masks, [0, 1, 0, 0]).reshape(-1)), file=file)
    side, kind, corners = draw.choice([7, 14, 28]), draw.randrange(6), tuple(zip(*polygons[0]))
    x, y = (draw_side(draw, kind, (width, height)[axis], corners[axis], side) for axis in (0, 1))
    box = np.array([x[0], y[0], x[1], y[1]], np.float32).astype(np.float64)
    print("target", side, *(repr(float(number)) for number in box), text(polygon_target(polygons[0], box, side)),
          text(bitmap_target(masks[0], box, side)), file=file)


def main():
    draw = random.Random(28)
    with open(OUT, "w") as file:
        for _ in range(50):
            write_group(file, draw)


if __name__ == "__main__":
    main()
