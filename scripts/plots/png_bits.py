"""The size of pictures as PNG files, in bits per byte of their pixels: a baseline for density models.

    ./build/cpu/pack_dataset --data shapes --split val --raw --out val.pack
    python3 scripts/plots/png_bits.py val.pack                    every picture in a separate file, written by Pillow
    python3 scripts/plots/png_bits.py val.pack --side 16 --grey   resized and grey, as for train_ar

Reads files that pack_dataset made with --raw (data/sets/record.h describes them).  Needs Pillow, which matplotlib brings.
"""

import argparse
import io
import struct
import sys


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", help="a file of pack_dataset --raw")
    parser.add_argument("--side", type=int, help="resize to this height and width by Pillow's BOX filter")
    parser.add_argument("--grey", action="store_true", help="one channel")
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import plots  # noqa: F401  finds a Python that has Pillow, so it comes first

from PIL import Image

HEADER, ENTRY = "<8sIIQQQQQ", "<QQQIIII"


def pictures(path):
    """The pictures of a packed file, one after another."""
    with open(path, "rb") as file:
        data = file.read()
    magic, version, _, count, index = struct.unpack_from(HEADER, data)[:5]
    if magic != b"VIT.PACK" or version != 1:
        sys.exit(f"png_bits.py: {path}: not a file of pack_dataset")
    for i in range(count):
        offset, _, _, size, _, height, width = struct.unpack_from(ENTRY, data, index + i * struct.calcsize(ENTRY))
        if not height:
            sys.exit(f"png_bits.py: {path}: holds encoded pictures: pack them with --raw")
        yield Image.frombytes("RGB", (width, height), data[offset:offset + size])


def main():
    arguments = ARGUMENTS
    bits = values = 0
    for picture in pictures(arguments.pack):
        if arguments.side:
            picture = picture.resize((arguments.side, arguments.side), Image.BOX)
        if arguments.grey:
            picture = picture.convert("L")
        out = io.BytesIO()
        picture.save(out, "PNG", optimize=True)
        bits += 8 * len(out.getvalue())
        values += picture.width * picture.height * len(picture.getbands())
    print(f"png_bits: {bits / values:.4f}")


if __name__ == "__main__":
    main()
