"""Writes tests/fixtures/detection/moved_pixels.txt: DETR's transforms of pictures (datasets/transforms.py: hflip,
resize, crop, resize) by Pillow.

    python3 tests/reference/make_detection_pixels.py

A case: width height mirror steps { width height left top crop_width crop_height } x steps, then the pixels of the
result in hexadecimal.  The picture has the formula of tests/data/test_pictures.c."""

import os
import random
import sys

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

import numpy
from PIL import Image

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "detection", "moved_pixels.txt")


def picture(width, height):
    y, x, c = numpy.meshgrid(numpy.arange(height), numpy.arange(width), numpy.arange(3), indexing="ij")
    value = 37 * y + 11 * x * x + 53 * c + 5 * x * y + ((x * y * 7919) >> 5)
    return Image.fromarray((value % 256).astype(numpy.uint8))


def main():
    draw = random.Random(3)
    with open(OUT, "w") as file:
        for case in range(8):
            width, height, mirror = draw.randint(9, 40), draw.randint(9, 40), case % 2
            image = picture(width, height)
            if mirror:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            steps = []
            for n in range(1 + case // 2 % 2):
                w, h = draw.randint(12, 28), draw.randint(12, 28)
                crop = [0, 0, w, h]
                if n == 0 and case // 2 % 2:
                    cw, ch = draw.randint(5, w), draw.randint(5, h)
                    crop = [draw.randint(0, w - cw), draw.randint(0, h - ch), cw, ch]
                image = image.resize((w, h), Image.Resampling.BILINEAR)
                image = image.crop((crop[0], crop[1], crop[0] + crop[2], crop[1] + crop[3]))
                steps.append([w, h] + crop)
            numbers = [width, height, mirror, len(steps)] + sum(steps, [])
            file.write(" ".join(map(str, numbers)) + "\n" + image.tobytes().hex() + "\n")


if __name__ == "__main__":
    main()
