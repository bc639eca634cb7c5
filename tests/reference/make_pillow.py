"""Writes what Pillow makes of pictures: tests/fixtures/data/pillow.safetensors, and the pictures in tests/corpus/jpeg.

    /usr/bin/python3 tests/reference/make_pillow.py           (Debian 12's Pillow 9.4; 11.3 gives the same bytes)

Pillow 12.3 changed the order of the two passes where a picture becomes lower and wider; DeiT was trained with the order
before.  jpegtran (libjpeg-turbo-progs) makes the arithmetic-coded file.

resize.N        expected [h,w,3] of a formula's picture [in_h,in_w,3]; resize.N.sizes = in_h, in_w, filter (0 bicubic,
                1 bilinear, 2 box)
decode.<file>   convert("RGB") of the picture in the corpus
crop.N          crop (top, left, height, width in crop.N.box) of colour420.jpg, resized to [h,w]
evaluate.N      colour420.jpg with its short side resized to evaluate.N.sizes[0], the centre [h,w] of that
"""

import io
import os
import subprocess
import sys

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

import numpy as np
import PIL
from PIL import Image

import safetensors_io

TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
CORPUS = os.path.join(TESTS, "corpus", "jpeg")
HEIGHT, WIDTH = 43, 61  # no multiple of any block


def formula(height, width):
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    return ((37 * y + 11 * x * x + 53 * c + 5 * x * y + ((x * y * 7919) >> 5)) & 255).astype(np.uint8)


def photo():
    """Smooth colours, edges and some texture: what a JPEG is good at, and what shows its blocks."""
    y, x = np.meshgrid(np.linspace(0, 1, HEIGHT), np.linspace(0, 1, WIDTH), indexing="ij")
    red, green, blue = 255 * x, 255 * y, 255 * (1 - x) * y
    disc = (x - 0.6) ** 2 + (y - 0.4) ** 2 < 0.06
    waves = 40 * np.sin(40 * x + 25 * y * y)
    return np.clip(np.stack([np.where(disc, 230, red + waves), green + waves, np.where(disc, 20, blue)], -1), 0,
                   255).astype(np.uint8)


def jpeg(image, **options):
    out = io.BytesIO()
    image.save(out, "JPEG", quality=88, **options)
    return out.getvalue()


def arithmetic(data):
    return subprocess.run(["jpegtran", "-arithmetic"], input=data, stdout=subprocess.PIPE, check=True).stdout


def patch(data, marker, offset, value):
    """One byte behind a marker's length."""
    at = data.index(bytes([0xFF, marker])) + 4 + offset
    return data[:at] + bytes([value]) + data[at + 1:]


def pictures():
    """Sound ones by name, then those that must be refused."""
    rgb = Image.fromarray(photo())
    cmyk = Image.fromarray(np.concatenate([255 - photo(), photo()[..., :1] // 3], -1), "CMYK")
    colour420 = jpeg(rgb, subsampling=2)
    adobe_ycck = patch(jpeg(cmyk), 0xEE, 11, 2)  # the same samples, declared as YCCK
    png = io.BytesIO()
    rgb.save(png, "PNG")
    broken_exif = b"Exif\0\0MM\0*\xff\xff\xff\xff broken"
    sound = {
        "colour444.jpg": jpeg(rgb, subsampling=0),
        "colour422.jpg": jpeg(rgb, subsampling=1),
        "colour420.jpg": colour420,
        "progressive.jpg": jpeg(rgb, progressive=True),
        "grey.jpg": jpeg(rgb.convert("L")),
        "cmyk.jpg": jpeg(cmyk),
        "ycck.jpg": adobe_ycck,
        "arithmetic.jpg": arithmetic(colour420),
        "exif.jpg": jpeg(rgb, exif=broken_exif),
        "png.JPEG": png.getvalue(),
        "trailing.jpg": colour420 + b"after the end",
    }
    bomb = patch(colour420, 0xC0, 1, 0xFF)
    for offset in (2, 3, 4):
        bomb = patch(bomb, 0xC0, offset, 0xDC)
    refused = {
        "empty.jpg": b"",
        "cut.jpg": colour420[:len(colour420) * 2 // 3],
        "cut_progressive.jpg": sound["progressive.jpg"][:len(sound["progressive.jpg"]) // 2],
        "header_only.jpg": colour420[:colour420.index(b"\xff\xda")],
        "bomb.jpg": bomb,
        "twelve_bits.jpg": patch(colour420, 0xC0, 0, 12),
        "two_channels.jpg": patch(colour420, 0xC0, 5, 2),
        "text.jpg": b"This is not a picture.\n",
    }
    return sound, refused


def as_image(data):
    return Image.open(io.BytesIO(data)).convert("RGB")


def main():
    version = tuple(int(part) for part in PIL.__version__.split(".")[:2])
    if version >= (12, 3):
        sys.exit(f"Pillow {PIL.__version__} resizes in another order: use one before 12.3")
    os.makedirs(CORPUS, exist_ok=True)
    tensors = {}
    filters = [Image.BICUBIC, Image.BILINEAR, Image.BOX]
    sizes = [(6, 8, 9, 11), (6, 8, 4, 3), (17, 23, 17, 9), (31, 5, 8, 40), (5, 31, 40, 8), (64, 48, 33, 47),
             (100, 90, 21, 34), (3, 200, 7, 19), (1, 1, 5, 4), (57, 43, 1, 1), (33, 70, 34, 66)]
    for n, (in_h, in_w, h, w) in enumerate(sizes):
        for f, resampling in enumerate(filters):
            made = Image.fromarray(formula(in_h, in_w)).resize((w, h), resampling)
            tensors[f"resize.{3 * n + f}"] = np.array(made)
            tensors[f"resize.{3 * n + f}.sizes"] = np.array([in_h, in_w, f], np.int32)

    sound, refused = pictures()
    for name, data in {**sound, **refused}.items():
        with open(os.path.join(CORPUS, name), "wb") as file:
            file.write(data)
    for name, data in sound.items():
        tensors[f"decode.{name}"] = np.array(as_image(data))

    image = as_image(sound["colour420.jpg"])
    for n, (top, left, height, width, h, w) in enumerate([(0, 0, HEIGHT, WIDTH, 24, 24), (5, 17, 20, 31, 32, 32),
                                                          (30, 40, 13, 21, 16, 16), (11, 3, 9, 7, 24, 20)]):
        made = image.crop((left, top, left + width, top + height)).resize((w, h), Image.BICUBIC)
        tensors[f"crop.{n}"] = np.array(made)
        tensors[f"crop.{n}.box"] = np.array([top, left, height, width], np.int32)
    for n, (short, size) in enumerate([(32, 28), (43, 43), (57, 50), (20, 17)]):
        large = image.resize((int(short * WIDTH / HEIGHT), short), Image.BICUBIC)
        left, top = round((large.width - size) / 2), round((large.height - size) / 2)
        tensors[f"evaluate.{n}"] = np.array(large.crop((left, top, left + size, top + size)))
        tensors[f"evaluate.{n}.sizes"] = np.array([short], np.int32)
    safetensors_io.write(os.path.join(TESTS, "fixtures", "data", "pillow.safetensors"), tensors)


if __name__ == "__main__":
    main()
