"""Writes tests/fixtures/detection/resized.txt, rescaled.txt and moved_boxes.txt: the arithmetic of DETR's transforms in
Python's doubles (sizes) and PyTorch's floats (boxes), written from its definition, and mmdetection's rule for sizes.

    python3 tests/reference/make_detection_augment_fixtures.py

resized.txt:      width height scale max_size -> width height
rescaled.txt:     the same
moved_boxes.txt:  width height mirror steps { width height left top crop_width crop_height } x steps
                  boxes { x0 y0 x1 y1 -> kept cx cy w h } x boxes, floats in hexadecimal"""

import os
import random
import sys

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

import torch

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "detection")


def resized(w, h, scale, most):
    if most and max(w, h) / min(w, h) * scale > most:
        scale = int(round(most * min(w, h) / max(w, h)))
    if min(w, h) == scale:
        return w, h
    return (scale, int(scale * h / w)) if w < h else (int(scale * w / h), scale)


def rescaled(w, h, scale, most):
    """mmcv's rescale_size and _scale_size (image/geometric.py)."""
    factor = min(most / max(h, w), scale / min(h, w)) if most else scale / min(h, w)
    return int(w * float(factor) + 0.5), int(h * float(factor) + 0.5)


def moved(box, size, mirror, steps):
    """None where a crop loses the box."""
    box = torch.tensor(box, dtype=torch.float32)
    if mirror:
        box = box[[2, 1, 0, 3]] * torch.tensor([-1.0, 1, -1, 1]) + torch.tensor([size[0], 0.0, size[0], 0])
    for n, (w, h, left, top, crop_w, crop_h) in enumerate(steps):
        ratio = [w / size[0], h / size[1]]
        box = box * torch.tensor(ratio + ratio, dtype=torch.float32)
        if n < len(steps) - 1:
            corners = (box - torch.tensor([left, top, left, top])).reshape(2, 2)
            corners = torch.min(corners, torch.tensor([crop_w, crop_h], dtype=torch.float32)).clamp(min=0)
            if not (corners[1] > corners[0]).all():
                return None
            box = corners.flatten()
        size = (crop_w, crop_h)
    x0, y0, x1, y1 = box.unbind()
    w, h = float(size[0]), float(size[1])
    return torch.stack([(x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0]) / torch.tensor([w, h, w, h])


def main():
    draw = random.Random(1)
    os.makedirs(OUT, exist_ok=True)
    sizes = [(640, 480), (480, 640), (640, 427), (500, 375), (800, 800), (1333, 800), (2666, 1600), (612, 612),
             (2, 1000), (1000, 3), (1, 1)]
    with open(os.path.join(OUT, "resized.txt"), "w") as file:
        for n in range(400):
            w, h = sizes[n] if n < len(sizes) else (draw.randint(30, 1500), draw.randint(30, 1500))
            scale, most = draw.choice([480, 512, 600, 800, 400]), draw.choice([1333, 1333, 0, 900])
            ow, oh = resized(w, h, scale, most)
            if min(ow, oh) > 0:
                file.write(f"{w} {h} {scale} {most} {ow} {oh}\n")
    other = random.Random(2)
    with open(os.path.join(OUT, "rescaled.txt"), "w") as file:
        for n in range(400):
            w, h = sizes[n] if n < len(sizes) else (other.randint(30, 1500), other.randint(30, 1500))
            scale, most = other.choice([800, 800, 512, 600, 97]), other.choice([1333, 1333, 2048, 0, 900])
            ow, oh = rescaled(w, h, scale, most)
            if min(ow, oh) > 0:
                file.write(f"{w} {h} {scale} {most} {ow} {oh}\n")
    with open(os.path.join(OUT, "moved_boxes.txt"), "w") as file:
        for _ in range(30):
            size = w, h = draw.randint(100, 700), draw.randint(100, 700)
            steps = []
            if draw.random() < 0.6:
                rw, rh = resized(w, h, draw.choice([400, 500, 600]), 0)
                cw, ch = draw.randint(384, min(rw, 600)), draw.randint(384, min(rh, 600))
                steps.append((rw, rh, draw.randint(0, rw - cw), draw.randint(0, rh - ch), cw, ch))
                w, h = cw, ch
            w, h = resized(w, h, draw.choice([480, 640, 800]), 1333)
            steps.append((w, h, 0, 0, w, h))
            mirror = draw.randint(0, 1)
            words = [*size, mirror, len(steps), *(number for step in steps for number in step), 5]
            for _ in range(5):
                x, y = sorted(draw.uniform(0, size[0]) for _ in "01"), sorted(draw.uniform(0, size[1]) for _ in "01")
                box = torch.tensor([x[0], y[0], x[1], y[1]], dtype=torch.float32).tolist()
                out = moved(box, size, mirror, steps)
                words += [number.hex() for number in box]
                words += [0] if out is None else [1, *(number.hex() for number in out.tolist())]
            file.write(" ".join(map(str, words)) + "\n")


if __name__ == "__main__":
    main()
