"""Microseconds an image for DeiT's crop, flip and RandAugment: timm on Pillow against tests/bench/bench_augment.c.

    make build/cpu/tests/bench_augment
    chrt -r 1 python3 scripts/bench/bench_augment.py FOLDER [--policy rand-m9-mstd0.5-inc1]

FOLDER contains JPEGs at any depth.  Both programs process the same decoded pictures, at 224 and at 32 pixels, with one
thread each, alternately; each figure is the best of all rounds, and a ratio compares these.  Needs Pillow, timm and
torchvision.
"""

import argparse
import glob
import os
import subprocess
import sys
import tempfile
import time


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--policy", default="rand-m9-mstd0.5-inc1")
    parser.add_argument("--binary", default="build/cpu/tests/bench_augment")
    parser.add_argument("--count", type=int, default=250)
    parser.add_argument("--turns", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import numpy as np
import PIL
import PIL.ImageOps
import timm
import torch
import torchvision
from PIL import Image
from timm.data.auto_augment import rand_augment_transform


def allow_no_bits():
    """Newer Pillow refuses the 0 bits that timm passes to Posterize at strength 10; with older versions all pixels
    became black."""
    posterize = PIL.ImageOps.posterize
    PIL.ImageOps.posterize = lambda image, bits: posterize(image, bits) if bits else Image.new(image.mode, image.size)


def pictures(folder, side, count):
    paths = sorted(path for path in glob.glob(os.path.join(folder, "**", "*"), recursive=True)
                   if path.lower().endswith((".jpeg", ".jpg")))[:count]
    if not paths:
        sys.exit(f"{folder}: no JPEGs")
    return [Image.open(path).convert("RGB").resize((side, side), Image.BICUBIC) for path in paths]


def timm_round(transform, images):
    start = time.perf_counter()
    for image in images:
        transform(image)
    return (time.perf_counter() - start) / len(images) * 1e6


def main():
    options = ARGUMENTS
    torch.set_num_threads(1)
    allow_no_bits()
    print(f"Pillow {PIL.__version__}, timm {timm.__version__}, torchvision {torchvision.__version__}, {options.policy}")
    for side in (224, 32):
        images = pictures(options.folder, side, options.count)
        transform = torchvision.transforms.Compose([
            torchvision.transforms.RandomCrop(side, padding=4), torchvision.transforms.RandomHorizontalFlip(),
            rand_augment_transform(options.policy, {"img_mean": (124, 116, 104)})])
        theirs, ours = [], []
        with tempfile.NamedTemporaryFile() as file:
            file.write(np.stack([np.asarray(image) for image in images]).tobytes())
            file.flush()
            for _ in range(options.turns):
                theirs.append(timm_round(transform, images))
                command = [options.binary, options.policy, str(side), str(len(images)), file.name]
                ours.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        ratio = min(theirs) / min(ours)
        print(f"{side}x{side}: timm {min(theirs):.1f} us, vit.c {min(ours):.1f} us an image: {ratio:.2f} times")


if __name__ == "__main__":
    main()
