"""Draws where the heads of a model look: what `train_vit --predict IMAGE --attention FILE` wrote, one row a layer, one
column a head, and beside them the image with the token that is looking.

    ./build/cpu/train_vit --init runs/demo/best.safetensors --predict test:3 --attention attention.safetensors
    python3 scripts/plot_attention.py attention.safetensors --out attention.png
    python3 scripts/plot_attention.py attention.safetensors --out attention.png --queries 0,3
    python3 scripts/plot_attention.py attention.safetensors --out spatial.png --spatial --layers 1,5,9 --heads 1,2

--spatial draws what the distance alone decides (ripple's alpha), before queries and keys have their say.  Each map is scaled to its own largest weight; that weight is written beneath it.  Needs matplotlib.
"""

import argparse
import json
import os
import struct
import sys

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.patches import Rectangle  # noqa: E402

MARK = "#ff2d2d"
DTYPES = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "I32": "<i4", "U8": "u1"}


def read_safetensors(path):
    """8 bytes of length, a JSON header with dtype, shape and place of every tensor, the tensors."""
    with open(path, "rb") as file:
        data = file.read()
    if len(data) < 8 or struct.unpack("<Q", data[:8])[0] > len(data) - 8:
        raise ValueError("not a safetensors file")
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:start])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, end = entry["data_offsets"]
            tensors[name] = np.frombuffer(data[start + first:start + end],
                                          DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors, header.get("__metadata__", {})


def mark_query(axes, row, column, height, width, line):
    """A frame around the query token, in units where a token is height x width."""
    axes.add_patch(Rectangle((column * width, row * height), width, height, fill=False, edgecolor=MARK,
                             linewidth=line, clip_on=False))


def bare(axes):
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def draw_image(axes, image, grid, position):
    height, width = image.shape[0] / grid[0], image.shape[1] / grid[1]
    axes.imshow(image, extent=(0, image.shape[1], image.shape[0], 0), interpolation="nearest")
    mark_query(axes, *position, height, width, 2)
    bare(axes)
    axes.set_title(f"token in row {position[0] + 1}, column {position[1] + 1}", fontsize=9, pad=4)


def draw_map(axes, weights, grid, position, title):
    bare(axes)
    axes.set_title(title, fontsize=8, pad=3)
    if not np.isfinite(weights).all():
        axes.text(0.5, 0.5, "no weights\nto show", transform=axes.transAxes, ha="center", va="center", fontsize=8,
                  color="#888888")
        return
    largest = weights.max()
    axes.imshow(weights.reshape(grid), cmap="magma", vmin=0, vmax=largest if largest > 0 else 1,
                extent=(0, grid[1], grid[0], 0), interpolation="nearest")
    mark_query(axes, *position, 1, 1, 1.5)
    axes.set_xlabel(f"{100 * largest:.2g} %", fontsize=7, color="#666666", labelpad=2)


# Inches: a map's width, between maps, under a map for two lines of text, the image's width, around groups.
CELL, SPACE, LINES, IMAGE, MARGIN = 1.05, 0.12, 0.40, 2.0, 0.3


def draw(tensors, metadata, which, queries, layers, heads, out):
    """A group for each query, two groups side by side: the image, and right of it the maps, a row for each layer."""
    weights, image, tokens = tensors[which], np.clip(tensors["image"], 0, 1), tensors["queries"]
    N = weights.shape[3]
    grid = tuple(int(side) for side in metadata["grid"].split("x"))
    prefix = N - grid[0] * grid[1]  # a class token has no place on the grid
    tall = grid[0] / grid[1]
    across = min(len(queries), 2)
    down = -(-len(queries) // across)
    group_width = IMAGE + 2 * SPACE + len(heads) * (CELL + SPACE)
    group_height = max(len(layers) * (CELL * tall + LINES), IMAGE * tall) + 0.1
    width = across * (group_width + MARGIN) + MARGIN
    height = 0.95 + down * group_height + (down - 1) * MARGIN
    figure = plt.figure(figsize=(width, height))

    def place(x, y, w, h):
        """Axes by their distance from the left and the top."""
        return figure.add_axes((x / width, 1 - (y + h) / height, w / width, h / height))

    for i, query in enumerate(queries):
        position = divmod(int(tokens[query]) - prefix, grid[1])
        x, y = MARGIN + i % across * (group_width + MARGIN), 0.95 + i // across * (group_height + MARGIN)
        draw_image(place(x, y, IMAGE, IMAGE * tall), image, grid, position)
        for row, layer in enumerate(layers):
            for column, head in enumerate(heads):
                axes = place(x + IMAGE + 2 * SPACE + column * (CELL + SPACE), y + row * (CELL * tall + LINES), CELL,
                             CELL * tall)
                draw_map(axes, weights[layer, head, query, prefix:], grid, position,
                         f"layer {layer + 1} head {head + 1}")
    what = {"weights": "What the marked token looks at", "spatial": "What its place alone makes it look at"}[which]
    title = f"{what}: {metadata.get('attn', 'attention')}"
    figure.text(MARGIN / width, 1 - 0.15 / height, title, va="top", fontsize=13, fontweight="bold")
    figure.text(MARGIN / width, 1 - 0.42 / height, "bright: much weight; beneath each map, its largest", va="top",
                fontsize=9, color="#666666")
    figure.savefig(out, dpi=120)


def chosen(option, text, count, first):
    """The numbers of a list like 1,3 as indices; all of them when it was not given."""
    if not text:
        return list(range(count))
    indices = [int(number) - first for number in text.split(",")]
    if not all(0 <= index < count for index in indices):
        raise ValueError(f"{option} {text}: expected numbers from {first} to {count - 1 + first}")
    return indices


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="what --attention wrote")
    parser.add_argument("--out", required=True, metavar="PNG", help="picture to write")
    parser.add_argument("--queries", metavar="N,N", help="which of the query tokens in the file, from 0 (default: all)")
    parser.add_argument("--layers", metavar="N,N", help="which layers, from 1 (default: all)")
    parser.add_argument("--heads", metavar="N,N", help="which heads, from 1 (default: all)")
    parser.add_argument("--spatial", action="store_true", help="the spatial weights instead of the whole attention")
    arguments = parser.parse_args()
    which = "spatial" if arguments.spatial else "weights"
    try:
        tensors, metadata = read_safetensors(arguments.file)
        depth, heads, count, _ = tensors[which].shape
        draw(tensors, metadata, which, chosen("--queries", arguments.queries, count, 0),
             chosen("--layers", arguments.layers, depth, 1), chosen("--heads", arguments.heads, heads, 1), arguments.out)
    except (OSError, KeyError, ValueError) as error:
        sys.exit(f"plot_attention.py: {os.path.basename(arguments.file)}: {error}")
    print(arguments.out)


if __name__ == "__main__":
    main()
