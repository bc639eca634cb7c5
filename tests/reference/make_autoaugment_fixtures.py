"""Writes tests/fixtures/data/autoaugment.safetensors: what torchvision's AutoAugment makes of small pictures, with the
policy, the pair of operations and their signs given; and the variant of Compact Transformers, made of Pillow's calls.

    python3 tests/reference/make_autoaugment_fixtures.py               writes it again
    python3 tests/reference/make_autoaugment_fixtures.py --check       recomputes and compares with the file there
    python3 tests/reference/make_autoaugment_fixtures.py --sides 32,31 --seed 7 --out FILE
                                                                       the same for other pictures
    python3 tests/reference/make_autoaugment_fixtures.py --authors FOLDER
                                                                       compares the variant of Compact Transformers with
                                                                       their own code, cloned into FOLDER

    pictures [n,3] int64: height, width, first byte in `pixels`
    cases [m,4] int64: picture, policy (1 cifar10, 2 imagenet, 3 compact), pair, signs (bit 0 and 1: the first and the
        second operation is negative)
    results [...] uint8: the pictures of all cases, one behind the other
    probabilities [2,25,2] float32: cifar10's and imagenet's of each pair
"""

import argparse
import os
import sys

FIXTURE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "data", "autoaugment.safetensors")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--sides", default="12,9,11,16", help="heights and widths, alternating")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--out", default=FIXTURE)
    parser.add_argument("--authors", metavar="FOLDER", help="a clone of SHI-Labs/Compact-Transformers")
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import numpy as np
import PIL
import torchvision
from PIL import Image, ImageEnhance, ImageOps
from torchvision.transforms import AutoAugment, AutoAugmentPolicy, InterpolationMode, autoaugment

import safetensors_io

GREY = (128, 128, 128)


def torchvision_case(image, policy, pair, signs):
    module = AutoAugment((AutoAugmentPolicy.CIFAR10, AutoAugmentPolicy.IMAGENET)[policy - 1])
    space = module._augmentation_space(10, (image.height, image.width))
    for half, (name, _, number) in enumerate(module.policies[pair]):
        magnitudes, signed = space[name]
        magnitude = float(magnitudes[number].item()) if number is not None else 0.0
        if signed and signs >> half & 1:
            magnitude = -magnitude
        image = autoaugment._apply_op(image, name, magnitude, interpolation=InterpolationMode.NEAREST, fill=None)
    return image


def affine(image, matrix, resample):
    return image.transform(image.size, Image.AFFINE, matrix, resample, fillcolor=GREY)


def turned(image, degrees):
    """Rotation in front of grey, by a fourth channel that says where the picture is."""
    turned_image = image.convert("RGBA").rotate(degrees)
    return Image.composite(turned_image, Image.new("RGBA", image.size, GREY + (128,)), turned_image).convert("RGB")


def compact_operation(image, name, number, sign):
    third, full = np.linspace(0, 0.3, 10)[number] * sign, np.linspace(0, 0.9, 10)[number] * sign
    way = np.linspace(0, 150 / 331, 10)[number] * sign
    operations = {
        "ShearX": lambda: affine(image, (1, third, 0, 0, 1, 0), Image.BICUBIC),
        "ShearY": lambda: affine(image, (1, 0, 0, third, 1, 0), Image.BICUBIC),
        "TranslateX": lambda: affine(image, (1, 0, way * image.width, 0, 1, 0), Image.NEAREST),
        "TranslateY": lambda: affine(image, (1, 0, 0, 0, 1, way * image.height), Image.NEAREST),
        "Rotate": lambda: turned(image, np.linspace(0, 30, 10)[number]),
        "Color": lambda: ImageEnhance.Color(image).enhance(1 + full),
        "Contrast": lambda: ImageEnhance.Contrast(image).enhance(1 + full),
        "Sharpness": lambda: ImageEnhance.Sharpness(image).enhance(1 + full),
        "Brightness": lambda: ImageEnhance.Brightness(image).enhance(1 + full),
        "Posterize": lambda: ImageOps.posterize(image, int(np.round(np.linspace(8, 4, 10), 0)[number])),
        "Solarize": lambda: ImageOps.solarize(image, np.linspace(256, 0, 10)[number]),
        "AutoContrast": lambda: ImageOps.autocontrast(image),
        "Equalize": lambda: ImageOps.equalize(image),
        "Invert": lambda: ImageOps.invert(image),
    }
    return operations[name]()


def compact_case(image, pair, signs):
    for half, (name, _, number) in enumerate(AutoAugment(AutoAugmentPolicy.CIFAR10).policies[pair]):
        image = compact_operation(image, name, number or 0, -1 if signs >> half & 1 else 1)
    return image


def authors_case(theirs, image, pair, signs):
    """The same by the code of Compact Transformers, whose choice between -1 and 1 is made here."""
    sub = theirs.CIFAR10Policy().policies[pair]
    for half, operation, magnitude in ((0, sub.operation1, sub.magnitude1), (1, sub.operation2, sub.magnitude2)):
        theirs.random.choice = lambda options, half=half: options[0] if signs >> half & 1 else options[1]
        image = operation(image, magnitude)
    return image


def compare_with_authors(folder, sides, seed):
    sys.path.insert(0, os.path.join(folder, "examples"))
    from utils import autoaug as theirs

    listed = [(first[1], second[1]) for first, second in AutoAugment(AutoAugmentPolicy.CIFAR10).policies]
    cases = wrong = 0
    for image in map(Image.fromarray, pictures(sides, seed)):
        for pair in range(25):
            for signs in range(4):
                cases += 1
                ours, want = compact_case(image, pair, signs), authors_case(theirs, image, pair, signs)
                wrong += ours.tobytes() != want.tobytes()
    same = listed == [(sub.p1, sub.p2) for sub in theirs.CIFAR10Policy().policies]
    print(f"{cases} cases, {wrong} differ from the authors'; the probabilities are {'the same' if same else 'others'}")
    return wrong + (not same)


def pictures(sides, seed):
    """Noise on a slope."""
    random = np.random.RandomState(seed)
    for height, width in zip(sides[::2], sides[1::2]):
        slope = np.add.outer(np.arange(height) * 6, np.arange(width) * 9)[..., None] + [20, 60, 90]
        yield np.clip(slope + random.normal(0, 25, slope.shape), 0, 255).astype(np.uint8)


def build(sides, seed):
    images, cases, results = list(pictures(sides, seed)), [], []
    for p, pixels in enumerate(images):
        image = Image.fromarray(pixels)
        for policy in (1, 2, 3):
            for pair in range(25):
                for signs in range(4):
                    out = (torchvision_case(image, policy, pair, signs) if policy < 3
                           else compact_case(image, pair, signs))
                    cases.append((p, policy, pair, signs))
                    results.append(np.asarray(out).ravel())
    first = np.cumsum([0] + [image.size for image in images])
    return {"pictures": np.int64([[*image.shape[:2], at] for image, at in zip(images, first)]),
            "pixels": np.concatenate([image.ravel() for image in images]),
            "cases": np.int64(cases), "results": np.concatenate(results),
            "probabilities": np.float32([[[half[1] for half in pair] for pair in AutoAugment(policy).policies]
                                         for policy in (AutoAugmentPolicy.CIFAR10, AutoAugmentPolicy.IMAGENET)])}


def main():
    sides = [int(side) for side in ARGUMENTS.sides.split(",")]
    if ARGUMENTS.authors:
        return compare_with_authors(ARGUMENTS.authors, sides, ARGUMENTS.seed) > 0
    tensors = build(sides, ARGUMENTS.seed)
    if not ARGUMENTS.check:
        safetensors_io.write(ARGUMENTS.out, tensors, {"pillow": PIL.__version__, "torchvision": torchvision.__version__})
        print(f"{ARGUMENTS.out}: {len(tensors['cases'])} cases, {os.path.getsize(ARGUMENTS.out)} bytes")
        return 0
    stored, metadata = safetensors_io.read(ARGUMENTS.out)
    wrong = [name for name in tensors if not np.array_equal(tensors[name], stored[name])]
    print(f"made with {metadata}; here Pillow {PIL.__version__}, torchvision {torchvision.__version__}: "
          + (f"different: {wrong}" if wrong else "the same"))
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main())
