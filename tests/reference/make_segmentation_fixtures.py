"""Writes tests/fixtures/segmentation: what OpenCV, Pillow and the rules of mmcv and mmsegmentation make of sizes, labels,
colours and windows.  Needs numpy, opencv-python and Pillow.

    python3 tests/reference/make_segmentation_fixtures.py

sizes.txt        height width long short -> height width of mmcv's rescale_size, and of PVT's AlignResize after it
nearest.txt      n m -> for cv2.resize(INTER_NEAREST) of n values to m: sum of index[i] * (i + 1) * 2654435761 mod 2^64
photometric.txt  brighten contrast_first saturate turn contrast_last brightness contrast saturation hue
                 -> sum of value[i] * (i + 1) * 2654435761 mod 2^64 over all 2^24 colours, after
                 mmsegmentation's PhotoMetricDistortion with these draws (floats in hexadecimal)
windows.txt      height width crop stride count { top left height width } x count, as in slide_inference
values-*.png     PNG files of stored values, listed in values.txt: name height width and the values in hexadecimal
wrong-*          pictures that are no annotations"""

import os
import struct
import sys
import zlib

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

import cv2
import numpy as np
from PIL import Image

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "segmentation")
PRIME = 2654435761


def fitted(h, w, longest, shortest):
    """mmcv.imrescale's size."""
    factor = min(longest / max(h, w), shortest / min(h, w))
    return int(h * factor + 0.5), int(w * factor + 0.5)


def aligned(n):
    return int(np.ceil(n / 32)) * 32


def digest(values):
    weights = np.arange(1, values.size + 1, dtype=np.uint64) * np.uint64(PRIME)
    return int(np.sum(values.ravel().astype(np.uint64) * weights, dtype=np.uint64))


def nearest(n, m):
    """Indices in two bytes, as two rows that are resized to themselves."""
    index = np.arange(n)
    rows = np.stack([index & 255, index >> 8]).astype(np.uint8)
    low, high = (cv2.resize(row[None], (m, 1), interpolation=cv2.INTER_NEAREST)[0].astype(int) for row in rows)
    return low + 256 * high


def convert(img, alpha=1, beta=0):
    img = img.astype(np.float32) * alpha + beta
    return np.clip(img, 0, 255).astype(np.uint8)


def distorted(img, brighten, first, saturate, turn, last, brightness, contrast, saturation, hue):
    """PhotoMetricDistortion.transform of mmsegmentation 1.2, its draws given."""
    if brighten:
        img = convert(img, beta=brightness)
    if first:
        img = convert(img, alpha=contrast)
    if saturate:
        img = cv2.cvtColor(img, cv2.COLOR_RGB2HSV)
        img[:, :, 1] = convert(img[:, :, 1], alpha=saturation)
        img = cv2.cvtColor(img, cv2.COLOR_HSV2RGB)
    if turn:
        img = cv2.cvtColor(img, cv2.COLOR_RGB2HSV)
        img[:, :, 0] = (img[:, :, 0].astype(int) + hue) % 180
        img = cv2.cvtColor(img, cv2.COLOR_HSV2RGB)
    if last:
        img = convert(img, alpha=contrast)
    return img


def windows(h_img, w_img, crop, stride):
    """EncoderDecoder.slide_inference of mmsegmentation."""
    found = []
    for h_idx in range(max(h_img - crop + stride - 1, 0) // stride + 1):
        for w_idx in range(max(w_img - crop + stride - 1, 0) // stride + 1):
            y2, x2 = min(h_idx * stride + crop, h_img), min(w_idx * stride + crop, w_img)
            y1, x1 = max(y2 - crop, 0), max(x2 - crop, 0)
            found.append((y1, x1, y2 - y1, x2 - x1))
    return found


def interlaced(path, values, depth, colour, palette):
    """Adam7, which Pillow does not write."""
    raw = b""
    for top, left, down, across in ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2),
                                    (1, 0, 2, 1)):
        for row in values[top::down, left::across]:
            bits = "".join(format(v, f"0{depth}b") for v in row)
            if bits:
                bits += "0" * (-len(bits) % 8)
                raw += b"\0" + bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", values.shape[1], values.shape[0], depth, colour, 0, 0, 1))]
    chunks += [(b"PLTE", palette)] if palette else []
    chunks += [(b"IDAT", zlib.compress(raw, 9)), (b"IEND", b"")]
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for kind, data in chunks:
            file.write(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)))


def write_sizes(rng):
    with open(os.path.join(OUT, "sizes.txt"), "w") as file:
        cases = [(512, 683, 2048, 512), (364, 500, 2048, 512), (300, 2000, 2048, 512), (1, 300, 2048, 512),
                 (128, 128, 512, 128), (683, 512, 1024, 256), (4000, 3000, 2048, 512), (96, 96, 2048, 512)]
        cases += [(int(h), int(w), int(s * rng.integers(1, 5)), int(s)) for h, w, s in rng.integers(32, 2000, (150, 3))]
        for h, w, longest, shortest in cases:
            fit = fitted(h, w, longest, shortest)
            print(h, w, longest, shortest, *fit, *map(aligned, fit), file=file)


def write_nearest(rng):
    with open(os.path.join(OUT, "nearest.txt"), "w") as file:
        pairs = [(3, 7), (7, 3), (49, 343), (683, 1366), (683, 341), (500, 703), (1, 9), (9, 1)]
        for n, m in pairs + [tuple(map(int, p)) for p in rng.integers(1, 2200, (250, 2))]:
            print(n, m, digest(nearest(n, m)), file=file)


def write_photometric(rng):
    at = np.arange(1 << 24, dtype=np.uint32)
    colours = np.stack([at >> 16, at >> 8 & 255, at & 255], -1).astype(np.uint8).reshape(4096, 4096, 3)
    steps = [(1, 0, 0, 0, 0), (0, 1, 0, 0, 0), (0, 0, 1, 0, 0), (0, 0, 0, 1, 0), (0, 0, 0, 1, 0), (1, 1, 1, 1, 0),
             (1, 0, 1, 1, 1), (0, 1, 0, 1, 0)]
    with open(os.path.join(OUT, "photometric.txt"), "w") as file:
        for n, step in enumerate(steps):
            values = [float(np.float32(v)) for v in (rng.uniform(-32, 32), rng.uniform(0.5, 1.5), rng.uniform(0.5, 1.5))]
            hue = (-18, 17, 0)[n] if n < 3 else int(rng.integers(-18, 18))
            out = distorted(colours, *step, *values, hue)
            print(*step, *(v.hex() for v in values), hue, digest(out), file=file)


def write_windows(rng):
    with open(os.path.join(OUT, "windows.txt"), "w") as file:
        cases = [(512, 683, 512, 341), (512, 512, 512, 341), (300, 1000, 512, 341), (100, 90, 32, 32), (33, 65, 32, 20)]
        cases += [(int(h), int(w), int(c), int(rng.integers(1, c + 1))) for h, w, c in rng.integers(20, 90, (40, 3))]
        for h, w, crop, stride in cases:
            found = windows(h, w, crop, stride)
            print(h, w, crop, stride, len(found), *(v for window in found for v in window), file=file)


def write_values(rng):
    listed = open(os.path.join(OUT, "values.txt"), "w")

    def note(name, values):
        print(name, *values.shape, values.tobytes().hex(), file=listed)
        return os.path.join(OUT, name)

    grey = rng.integers(0, 256, (13, 17), dtype=np.uint8)
    Image.fromarray(grey).save(note("values-grey.png", grey))
    Image.fromarray(grey).save(note("values-key.png", grey), transparency=int(grey[0, 0]))
    interlaced(note("values-grey-interlaced.png", grey), grey, 8, 0, b"")
    for bits in (1, 2, 4, 8):
        n = 1 << bits
        values = rng.integers(0, n, (13, 17), dtype=np.uint8)
        palette = rng.integers(0, 256, 3 * n, dtype=np.uint8).tobytes()
        picture = Image.frombytes("P", (17, 13), values.tobytes())
        picture.putpalette(palette)
        alpha = rng.integers(0, 256, n, dtype=np.uint8).tobytes()
        picture.save(note(f"values-palette{bits}.png", values), bits=bits, transparency=alpha)
        interlaced(note(f"values-palette{bits}-interlaced.png", values), values, bits, 3, palette)
    listed.close()
    wrong = os.path.join(OUT, "wrong-")
    Image.fromarray(grey.astype(np.uint16) * 5).save(wrong + "16.png")
    Image.fromarray(grey > 100).save(wrong + "1.png")
    Image.fromarray(np.stack([grey] * 3, -1)).save(wrong + "rgb.png")
    Image.fromarray(np.stack([grey] * 4, -1)).save(wrong + "rgba.png")
    Image.fromarray(grey).convert("LA").save(wrong + "la.png")
    Image.fromarray(grey).save(wrong + "jpeg.png", format="jpeg")


def main():
    os.makedirs(OUT, exist_ok=True)
    for n, write in enumerate((write_sizes, write_nearest, write_photometric, write_windows, write_values)):
        write(np.random.default_rng(n))


if __name__ == "__main__":
    main()
