"""Writes tests/fixtures/data/augment.safetensors: small pictures, and what timm and Pillow make of them.

    python3 tests/reference/make_augment_fixtures.py           writes it again
    python3 tests/reference/make_augment_fixtures.py --check   recomputes and compares with the file there

Needs Pillow, timm and torchvision; the file's metadata name the releases it was made with.  Pillow 9.4 and 13.0 give
the same bytes on x86-64, and timm 1.0 the same arguments as 0.3 to 0.5, the releases DeiT was trained with, wherever
the strength is at most 10.

    pictures [n,3] int64: height, width, first byte in `pixels`
    cases [m,5] float32: picture, operation (0.. in the order of NAMES, JITTER behind), strength, negative, bicubic;
        of a jitter case: picture, JITTER + place of the order among its six permutations, brightness, contrast,
        saturation
    arguments [m] float64: what timm hands to the operation (0 of a jitter case)
    results [...] uint8: the pictures of all cases, one behind the other
"""

import argparse
import itertools
import os
import sys


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import numpy as np
import PIL
import timm
import torchvision
from PIL import Image
from timm.data import auto_augment
from torchvision.transforms import functional

import safetensors_io

FIXTURE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "data", "augment.safetensors")
FILL = (124, 116, 104)

# data/images/randaugment.h
NAMES = ["AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "PosterizeIncreasing", "Solarize",
         "SolarizeIncreasing", "SolarizeAdd", "Color", "ColorIncreasing", "Contrast", "ContrastIncreasing",
         "Brightness", "BrightnessIncreasing", "Sharpness", "SharpnessIncreasing", "ShearX", "ShearY", "TranslateXRel",
         "TranslateYRel"]
JITTER = len(NAMES)
GEOMETRIC = {"Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel"}
SIGNED = GEOMETRIC | {"ColorIncreasing", "ContrastIncreasing", "BrightnessIncreasing", "SharpnessIncreasing"}
PLAIN = {"AutoContrast", "Equalize", "Invert"}

# picture -> strengths that every operation is tried with
STRENGTHS = [[0, 2.3, 9.1, 10], [8.7], [9.4], [7], [10]]


def pictures():
    """Noise on a slope, noise of few values, a step with flat sides, one colour, and fewer pixels than a kernel has."""
    random = np.random.RandomState(5)
    slope = np.add.outer(np.arange(13) * 6, np.arange(11) * 9)[..., None] + [20, 60, 90]
    step = np.zeros((7, 10, 3)) + [250, 10, 128]
    step[:, 4:] = [3, 255, 64]
    return [np.clip(array, 0, 255).astype(np.uint8)
            for array in (slope + random.normal(0, 25, slope.shape), random.randint(90, 99, (8, 17, 3)), step,
                          np.full((4, 5, 3), 77), random.randint(0, 256, (2, 1, 3)))]


def randaugment_case(picture, name, strength, negative, bicubic):
    image, filters = Image.fromarray(picture), (Image.BILINEAR, Image.BICUBIC)
    auto_augment._randomly_negate = lambda v: -v if negative else v
    level = auto_augment.LEVEL_TO_ARG[name]
    arguments = level(strength, {}) if level else ()
    if name.startswith("Posterize") and arguments[0] == 0:  # late releases of Pillow refuse; before, all became black
        return 0, np.zeros_like(picture)
    out = auto_augment.NAME_TO_OP[name](image, *arguments, fillcolor=FILL, resample=filters[bicubic])
    return arguments[0] if arguments else 0, np.asarray(out)


def jitter_case(picture, order, factors):
    image = Image.fromarray(picture)
    adjust = (functional.adjust_brightness, functional.adjust_contrast, functional.adjust_saturation)
    for i in order:
        image = adjust[i](image, factors[i])
    return np.asarray(image)


def build():
    images, cases, arguments, results = pictures(), [], [], []
    for p, image in enumerate(images):
        for i, name in enumerate(NAMES):
            for strength, negative, bicubic in itertools.product(
                    STRENGTHS[p] if name not in PLAIN else [5], (0, 1) if name in SIGNED else (0,),
                    (0, 1) if name in GEOMETRIC else (0,)):
                case = np.float32([p, i, strength, negative, bicubic])
                argument, result = randaugment_case(image, name, float(case[2]), negative, bicubic)
                cases.append(case)
                arguments.append(argument)
                results.append(result.ravel())
        for place, order in enumerate(itertools.permutations(range(3))):
            factors = np.float32([0.6 + 0.15 * place, 1.4 - 0.11 * place, 0.7 + 0.13 * place])
            cases.append(np.float32([p, JITTER + place, *factors]))
            arguments.append(0)
            results.append(jitter_case(image, order, [float(f) for f in factors]).ravel())
    first = np.cumsum([0] + [image.size for image in images])
    return {"pictures": np.int64([[*image.shape[:2], at] for image, at in zip(images, first)]),
            "pixels": np.concatenate([image.ravel() for image in images]),
            "cases": np.stack(cases), "arguments": np.float64(arguments), "results": np.concatenate(results)}


def main():
    tensors = build()
    if not ARGUMENTS.check:
        safetensors_io.write(FIXTURE, tensors, {"pillow": PIL.__version__, "timm": timm.__version__,
                                                "torchvision": torchvision.__version__})
        print(f"{FIXTURE}: {len(tensors['cases'])} cases, {os.path.getsize(FIXTURE)} bytes")
        return 0
    stored, metadata = safetensors_io.read(FIXTURE)
    wrong = [name for name in tensors if not np.array_equal(tensors[name], stored[name])]
    print(f"made with {metadata}; here Pillow {PIL.__version__}, timm {timm.__version__}: "
          + (f"different: {wrong}" if wrong else "the same"))
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main())
