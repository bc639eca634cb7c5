"""Plots a file that `train_vit --predict IMAGE --attention FILE` wrote for an image or a clip: the attention maps, the
norms of the tokens, or the ranks of the attention matrices.  Several files, of models with different operators, are
shown next to each other.  For a density model, train_ar writes the attention of its blocks in the middle of sampling a
picture.

    ./build/cpu/train_vit --init runs/demo/best.safetensors --predict test:3 --attention attention.safetensors
    python3 scripts/plots/plot_attention.py attention.safetensors --out attention.png
    python3 scripts/plots/plot_attention.py attention.safetensors --out attention.png --queries 0,3
    python3 scripts/plots/plot_attention.py attention.safetensors --out spatial.png --spatial --layers 1,5,9 --heads 1,2
    python3 scripts/plots/plot_attention.py softmax.safetensors lisa.safetensors --out both.png --queries 0
    python3 scripts/plots/plot_attention.py attention.safetensors --out overlay.png --overlay
    python3 scripts/plots/plot_attention.py softmax.safetensors ripple.safetensors --out rollout.png --rollout
    python3 scripts/plots/plot_attention.py softmax.safetensors lisa.safetensors --out norms.png --norms
    python3 scripts/plots/plot_attention.py linear.safetensors focused.safetensors --out rank.png --rank
    ./build/cpu/train_ar --init runs/demo-density/best.safetensors --sample 4 --out drawn.png --attention half.safetensors
    python3 scripts/plots/plot_attention.py half.safetensors --out half.png --queries 1,2
    python3 scripts/plots/plot_attention.py --patterns --out patterns.png
    ./build/cpu/train_vit --init runs/demo-clips/best.safetensors --predict clip.mp4 --attention clip.safetensors
    python3 scripts/plots/plot_attention.py clip.safetensors --out clip.png --queries 0 --heads 1,2

There is a row for each layer and a column for each head.  Next to them are the image with the query token, and the
attention rollout for that token through all layers (Abnar and Zuidema 2020), drawn over the image.  --overlay draws all
maps over the image.  For a clip, the frames and their maps are next to each other.  --rollout draws the rollout for the
input of the classifier's head: the class token, or all tokens.  --spatial draws the part of the weights that depends
only on distance (ripple's alpha, focused attention's convolution).  --patterns draws the keys of the queries in the
Sparse Transformer's patterns, like Figure 3 of its paper (Child et al. 2019).  All maps of a picture have one colour
scale; where weights are negative (LiSA), blue is below zero and red above.  Needs matplotlib.
"""

import argparse
import json
import os
import struct
import sys


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help="file that train_vit or train_ar --attention wrote")
    parser.add_argument("--out", required=True, metavar="PNG", help="picture to write")
    parser.add_argument("--queries", metavar="N,N",
                        help="which of the query tokens in the files, from 0 (default: all)")
    parser.add_argument("--layers", metavar="N,N", help="which layers, from 1 (default: all)")
    parser.add_argument("--heads", metavar="N,N", help="which heads, from 1 (default: all)")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--spatial", action="store_true", help="the spatial weights instead of the whole attention")
    kind.add_argument("--rollout", action="store_true", help="what reaches the classifier's head through all layers")
    kind.add_argument("--norms", action="store_true", help="the length of the tokens, layer by layer")
    kind.add_argument("--rank", action="store_true", help="the rank of the attention matrices, layer by layer")
    kind.add_argument("--patterns", action="store_true", help="no file: which keys the patterns of train_ar see")
    parser.add_argument("--overlay", action="store_true", help="the maps over the image, in grey")
    return parser, parser.parse_args()


if __name__ == "__main__":
    PARSER, ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import plots  # noqa: F401  finds matplotlib, so it comes first

import numpy as np
import matplotlib.pyplot as plt
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.patches import Rectangle

MARK = "#ff2d2d"
DTYPES = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "I32": "<i4", "U8": "u1"}


def read_safetensors(path):
    """The file has 8 bytes of length, a JSON header with dtype, shape and offset of every tensor, and the tensors."""
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


def between_frames(axes, frames, width):
    """White lines between the frames of a strip."""
    for frame in range(1, frames):
        axes.axvline(frame * width / frames, color="white", linewidth=2)


def draw_image(axes, image, grid, position, frames):
    height, width = image.shape[0] / grid[0], image.shape[1] / grid[1]
    axes.imshow(image, extent=(0, image.shape[1], image.shape[0], 0), interpolation="nearest")
    between_frames(axes, frames, image.shape[1])
    mark_query(axes, *position, height, width, 2)
    bare(axes)
    frame, column = divmod(position[1], grid[1] // frames)
    where = f"row {position[0] + 1}, column {column + 1}"
    axes.set_title(f"token in {f'frame {frame + 1}, ' if frames > 1 else ''}{where}", fontsize=9, pad=4)


def draw_under(axes, image, grid):
    """The image in grey, beneath weights of a token grid."""
    axes.imshow(image @ (0.299, 0.587, 0.114), cmap="gray", vmin=0, vmax=1, extent=(0, grid[1], grid[0], 0),
                interpolation="nearest")


# == One colour scale for all maps of a picture ========================================================================

WEIGHT, SIGNED, ROLLOUT = "weight, %", "weight, of either sign", "rollout, %"
COLOURS = {WEIGHT: "magma", SIGNED: "RdBu_r", ROLLOUT: "viridis"}


def kind_of(weights):
    return SIGNED if (weights < 0).any() else WEIGHT


class Scale:
    """One scale of colours for every kind of map: from 0 to the largest of all weights, of which the square root is
    drawn so that small ones are visible.  If some weights are negative (LiSA), the scale is around zero."""

    def __init__(self, maps):
        """maps: (kind, weights) of all in the picture."""
        self.norms = {}
        for kind in (WEIGHT, SIGNED, ROLLOUT):
            largest = [np.abs(weights).max() for what, weights in maps if what == kind and np.isfinite(weights).all()]
            if largest:
                top = max(largest) or 1
                self.norms[kind] = Normalize(-top, top) if kind == SIGNED else PowerNorm(0.5, 0, top)

    def style(self, kind):
        return {"cmap": COLOURS[kind], "norm": self.norms[kind]}

    def draw_bars(self, place, x, y):
        for kind, norm in self.norms.items():
            axes = place(x, y, BAR, 0.13)
            bar = axes.figure.colorbar(ScalarMappable(norm, COLOURS[kind]), cax=axes, orientation="horizontal")
            if kind != SIGNED:
                bar.set_ticks([norm.vmax * share for share in (0, 0.05, 0.25, 0.5, 1)])
                bar.ax.set_xticklabels([f"{100 * norm.vmax * share:.2g}" for share in (0, 0.05, 0.25, 0.5, 1)])
            bar.ax.tick_params(labelsize=7, length=2, pad=2)
            bar.outline.set_visible(False)
            axes.set_title(kind, fontsize=8, pad=3, loc="left")
            x += BAR + 0.35


def draw_map(axes, kind, weights, grid, position, title, scale, image=None, frames=1):
    """Draws over the image if there is one."""
    bare(axes)
    axes.set_title(title, fontsize=8, pad=3)
    if not np.isfinite(weights).all():
        axes.text(0.5, 0.5, "no weights\nto show", transform=axes.transAxes, ha="center", va="center", fontsize=8,
                  color="#888888")
        return
    if image is not None:
        draw_under(axes, image, grid)
    axes.imshow(weights.reshape(grid), extent=(0, grid[1], grid[0], 0), alpha=1 if image is None else 0.6,
                interpolation="nearest" if image is None else "bilinear", **scale.style(kind))
    axes.set_xlim(0, grid[1])
    axes.set_ylim(grid[0], 0)
    between_frames(axes, frames, grid[1])
    if position is not None:
        mark_query(axes, *position, 1, 1, 1.5)
    largest = np.abs(weights).max()
    axes.set_xlabel(f"±{largest:.2g}" if kind == SIGNED else f"{100 * largest:.2g} %", fontsize=7, color="#666666",
                    labelpad=2)


# == A picture that is half drawn ======================================================================================

PALE = 0.85


def to_pixels(tensors, metadata):
    """Converts train_ar's file to the form of train_vit's: adds up the weights of a pixel's channels, with queries as
    pixels."""
    if "channels" not in metadata:
        return tensors
    channels, weights = int(metadata["channels"]), tensors["weights"]
    return {**tensors, "weights": weights.reshape(*weights.shape[:3], -1, channels).sum(axis=-1),
            "queries": tensors["queries"] // channels}


def half_drawn(image, pixel):
    """The picture without the pixels after that one."""
    drawn = np.arange(image.shape[0] * image.shape[1]).reshape(image.shape[:2]) < pixel
    return np.where(drawn[..., None], image, PALE)


# == Clips =============================================================================================================

def to_strip(tensors, metadata):
    """Converts a clip's file to that of an image: its frames, and the tokens of each, next to each other."""
    sides = grid_of(metadata)
    if len(sides) == 2:
        return tensors, metadata
    frames, rows, columns = sides
    prefix = tensors["weights"].shape[3] - frames * rows * columns
    places = np.arange(frames * rows * columns).reshape(sides).transpose(1, 0, 2).ravel()
    order = np.concatenate([np.arange(prefix), prefix + places])
    strip = {name: tensors[name][..., order] for name in ("weights", "spatial", "norms")}
    for name in ("matrix", "spatial_matrix"):
        if name in tensors:
            strip[name] = tensors[name][..., order, :][..., order]
    image = tensors["image"].transpose(1, 0, 2, 3)
    strip["image"] = image.reshape(image.shape[0], -1, 3)
    strip["queries"] = np.argsort(order)[tensors["queries"]]
    return strip, {**metadata, "grid": f"{rows}x{frames * columns}", "frames": str(frames)}


def frames_of(metadata):
    return int(metadata.get("frames", 1))


def widen(files):
    """How much wider than an image's the maps are."""
    return max(1, 0.7 * max(frames_of(metadata) for _, metadata in files))


# == Patterns ==========================================================================================================

def patterns(tokens, stride, summaries):
    """(title, [N,N] of 0: not attended to, 1: in the first set, 2: only in the second set)."""
    i, j = np.indices((tokens, tokens))
    causal, late = j <= i, j % stride >= stride - summaries
    window, column, block = i - j < stride, (i - j) % stride == 0, i // stride == j // stride
    for title, first, second in (("dense", i == i, i != i), ("window", window, i != i), ("column", i != i, column),
                                 ("strided, merged", window, column), ("block", block, i != i),
                                 ("summary", i != i, late | (i == j)), ("fixed, merged", block, late)):
        yield title, np.where(causal & first, 1, np.where(causal & second, 2, 0))


def draw_patterns(out, side=6, summaries=1):
    """Above, the keys of the query in the middle of a picture of side x side tokens; below, all queries and their keys."""
    shown, query = list(patterns(side * side, side, summaries)), side * side // 2 + side // 2 + 1
    colours = np.array([[0.94, 0.94, 0.94], [0, 0.447, 0.698], [0.337, 0.706, 0.914]])
    figure, rows = plt.subplots(2, len(shown), figsize=(1.75 * len(shown), 4.3), height_ratios=(1, 1.6))
    for (title, seen), above, below in zip(shown, *rows):
        above.imshow(colours[seen[query].reshape(side, side)], extent=(0, side, side, 0))
        mark_query(above, *divmod(query, side), 1, 1, 2)
        for line in range(1, side):
            above.axhline(line, color="white", linewidth=0.8)
            above.axvline(line, color="white", linewidth=0.8)
        above.set_title(title, fontsize=10)
        below.imshow(colours[seen], interpolation="nearest", extent=(0, side * side, side * side, 0))
        below.set_xlabel(f"{(seen > 0).sum()} pairs", fontsize=9, color="#666666")
        bare(above)
        bare(below)
    rows[1][0].set_ylabel("query", fontsize=9, color="#666666")
    figure.suptitle(f"Which keys a query sees: {side * side} tokens, stride {side}, c = {summaries}; above, the tokens as a "
                    "picture, the query framed; below, a row for each query", x=0.01, ha="left", fontsize=10)
    figure.tight_layout(rect=(0, 0, 1, 0.96))
    figure.savefig(out, dpi=110)


# == Attention rollout =================================================================================================

def rollout(tensors):
    """[N,N], rows that sum to one: the share of each token of the image in each token after the last layer.  A layer
    passes on one half of its input (the residual) and mixes the other half with the mean of its heads (Abnar and
    Zuidema 2020). Negative weights count by their absolute values.  None if an operator has no weights, or the file
    does not have all of them."""
    if "matrix" not in tensors:
        return None
    tokens = tensors["matrix"].shape[-1]
    reached = np.eye(tokens)
    for layer in tensors["matrix"]:
        if not np.isfinite(layer).any():
            return None
        mixed = np.nan_to_num(np.abs(layer.astype(np.float64)).mean(axis=0))  # NaN: a class token that is added later
        sums = mixed.sum(axis=1, keepdims=True)
        mixed = np.where(sums > 0, mixed / np.where(sums > 0, sums, 1), np.eye(tokens))
        reached = (mixed + np.eye(tokens)) / 2 @ reached
    return reached


# Inches: a map's width, between maps, under a map for two lines of text, the image's width, around groups, a bar.
CELL, SPACE, LINES, IMAGE, MARGIN, BAR = 1.05, 0.12, 0.40, 2.0, 0.3, 2.3


def grid_of(metadata):
    return tuple(int(side) for side in metadata["grid"].split("x"))


def placer(figure, width, height):
    """Axes by their distance from the left and the top, in inches."""
    return lambda x, y, w, h: figure.add_axes((x / width, 1 - (y + h) / height, w / width, h / height))


def draw_text(figure, width, height, title, legend):
    figure.text(MARGIN / width, 1 - 0.15 / height, title, va="top", fontsize=13, fontweight="bold")
    figure.text(MARGIN / width, 1 - 0.42 / height, legend, va="top", fontsize=9, color="#666666")


def draw(files, which, queries, layers, heads, overlay, out):
    """A group for each query of each file, two groups next to each other: the image, below it the rollout for the token
    through all layers, and on the right the maps, a row for each layer."""
    groups = [(tensors, metadata, query) for query in queries for tensors, metadata in files]
    tall = max(grid_of(metadata)[0] / grid_of(metadata)[1] for _, metadata in files)
    wide = widen(files)
    across = min(len(groups), 2 if wide == 1 else 1)
    image_width, cell = IMAGE * wide, CELL * wide
    down = -(-len(groups) // across)
    rolled = [rollout(tensors) if which == "weights" else None for tensors, _ in files] * len(queries)
    images = 2 if any(one is not None for one in rolled) else 1
    group_width = image_width + 2 * SPACE + len(heads) * (cell + SPACE)
    group_height = max(len(layers) * (cell * tall + LINES), images * (image_width * tall + LINES) + LINES / 2) + 0.1
    width = across * (group_width + MARGIN) + MARGIN
    height = 0.95 + down * group_height + (down - 1) * MARGIN + 0.5
    figure = plt.figure(figsize=(width, height))
    place = placer(figure, width, height)

    maps = []  # axes, kind, weights, grid, position, title, image or None, frames
    for i, (tensors, metadata, query) in enumerate(groups):
        grid, weights, frames = grid_of(metadata), tensors[which], frames_of(metadata)
        image = np.clip(tensors["image"], 0, 1)
        prefix = weights.shape[3] - grid[0] * grid[1]  # a class token has no place on the grid
        token = int(tensors["queries"][query])
        if "channels" in metadata:
            image = half_drawn(image, token)
        position = divmod(token - prefix, grid[1])
        x, y = MARGIN + i % across * (group_width + MARGIN), 0.95 + i // across * (group_height + MARGIN)
        axes = place(x, y, image_width, image_width * tall)
        draw_image(axes, image, grid, position, frames)
        if len(files) > 1:
            axes.set_xlabel(metadata.get("attn", "attention"), fontsize=12, fontweight="bold")
        if rolled[i] is not None:
            axes = place(x, y + (image_width * tall + LINES * 1.35), image_width, image_width * tall)
            maps.append((axes, ROLLOUT, rolled[i][token, prefix:], grid, position, "attention rollout", image, frames))
        for row, layer in enumerate(layers):
            for column, head in enumerate(heads):
                axes = place(x + image_width + 2 * SPACE + column * (cell + SPACE), y + row * (cell * tall + LINES),
                             cell, cell * tall)
                shown = weights[layer, head, query, prefix:]
                maps.append((axes, kind_of(shown), shown, grid, position, f"layer {layer + 1} head {head + 1}",
                             image if overlay else None, frames))
    scale = Scale([(kind, weights) for _, kind, weights, *_ in maps])
    for axes, kind, weights, grid, position, title, image, frames in maps:
        draw_map(axes, kind, weights, grid, position, title, scale, image, frames)
    scale.draw_bars(place, MARGIN, height - 0.37)
    what = {"weights": "What the marked token looks at", "spatial": "What its place alone makes it look at"}[which]
    title = what if len(files) > 1 else f"{what}: {files[0][1].get('attn', 'attention')}"
    draw_text(figure, width, height, title,
              "one colour scale for all maps, at the bottom; beneath each, its largest weight")
    figure.savefig(out, dpi=120)


def draw_rollouts(files, out):
    """A row for each file: the image, the rollout for the head's input, and both over one another."""
    rows = []
    for tensors, metadata in files:
        grid, reached = grid_of(metadata), rollout(tensors)
        if reached is None:
            raise ValueError("no whole matrices in it, or an operator without weights: nothing to roll out")
        prefix = len(reached) - grid[0] * grid[1]
        rows.append((tensors, metadata, grid, reached[0, prefix:] if prefix else reached.mean(axis=0)))
    tall = max(grid[0] / grid[1] for _, _, grid, _ in rows)
    image_width = IMAGE * widen(files)
    width = max(2 * MARGIN + 3 * (image_width + SPACE), 6.2)
    height = 0.95 + len(rows) * (image_width * tall + 0.55) + 0.6
    figure = plt.figure(figsize=(width, height))
    place, scale = placer(figure, width, height), Scale([(ROLLOUT, row[-1]) for row in rows])
    for i, (tensors, metadata, grid, weights) in enumerate(rows):
        y, image, frames = 0.95 + i * (image_width * tall + 0.55), np.clip(tensors["image"], 0, 1), frames_of(metadata)
        axes = [place(MARGIN + column * (image_width + SPACE), y, image_width, image_width * tall)
                for column in range(3)]
        axes[0].imshow(image, interpolation="nearest")
        between_frames(axes[0], frames, image.shape[1])
        bare(axes[0])
        axes[0].set_title(metadata.get("attn", "attention"), fontsize=9, fontweight="bold", pad=4)
        whose = "the class token" if len(weights) < tensors["matrix"].shape[-1] else "the mean of all tokens"
        draw_map(axes[1], ROLLOUT, weights, grid, None, f"to {whose}", scale, frames=frames)
        draw_map(axes[2], ROLLOUT, weights, grid, None, "over the image", scale, image, frames)
    scale.draw_bars(place, MARGIN, height - 0.37)
    draw_text(figure, width, height, "Attention rollout", "how much of each token reaches what the head reads")
    figure.savefig(out, dpi=120)


def draw_norms(files, out):
    """A row for each file: the image, and the length of every token before the first block and after each."""
    columns = 1 + max(len(tensors["norms"]) for tensors, _ in files)
    figure, rows = plt.subplots(len(files), columns, figsize=(1.25 * columns * widen(files), 1.5 * len(files) + 0.5),
                                squeeze=False)
    for (tensors, metadata), axes in zip(files, rows):
        grid, norms = grid_of(metadata), tensors["norms"]
        prefix = norms.shape[1] - grid[0] * grid[1]
        for panel in axes:
            panel.axis("off")
        axes[0].imshow(np.clip(tensors["image"], 0, 1), interpolation="nearest")
        axes[0].set_title(metadata.get("attn", "attention"), fontsize=9, fontweight="bold")
        for layer, (panel, row) in enumerate(zip(axes[1:], norms)):
            panel.imshow(row[prefix:].reshape(grid), cmap="viridis", interpolation="nearest")
            panel.set_title(f"layer {layer}" if layer else "embedding", fontsize=8)
            panel.text(0.5, -0.04, f"{row[prefix:].min():.2g} to {row[prefix:].max():.2g}", transform=panel.transAxes,
                       ha="center", va="top", fontsize=6, color="#666666")
    figure.suptitle("Length of the tokens", x=0.01, ha="left", fontsize=12, fontweight="bold")
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    figure.savefig(out, dpi=120)


def ranks(matrix):
    """[depth], means over the heads; NaN where the operator has no matrix."""
    shown = np.isfinite(matrix).all(axis=(2, 3)).all(axis=1)
    return np.array([np.mean([np.linalg.matrix_rank(head) for head in layer]) if whole else np.nan
                     for layer, whole in zip(matrix, shown)])


def rank_curves(files):
    """(label, ranks).  For focused attention also with its convolution of v, whose mean kernel adds to the matrix."""
    for tensors, metadata in files:
        if "matrix" not in tensors:
            raise ValueError("no whole matrices in it: they are written for few tokens only")
        name = metadata.get("attn", "attention")
        yield name, ranks(tensors["matrix"])
        if name == "focused":
            yield "focused, with its convolution", ranks(tensors["matrix"] + tensors["spatial_matrix"])


def draw_ranks(files, out):
    figure, axes = plt.subplots(figsize=(7.6, 3.4))
    for size, (label, curve) in enumerate(rank_curves(files)):
        axes.plot(range(1, len(curve) + 1), curve, marker="o", markersize=9 - size, label=label)
    tokens = files[0][0]["weights"].shape[3]
    axes.axhline(tokens, color="#999999", linestyle=":", linewidth=1)
    axes.annotate(f"{tokens} tokens", (1, 1.03 * tokens), fontsize=8, color="#666666", va="bottom")
    axes.set_ylim(0, 1.15 * tokens)
    axes.set_xticks(range(1, files[0][0]["weights"].shape[0] + 1))
    axes.set_xlabel("layer")
    axes.set_title("Rank of the attention matrices, mean over the heads", loc="left", fontsize=11, fontweight="bold")
    axes.grid(True, color="#e4e4e4")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    figure.savefig(out, dpi=120)


def chosen(option, text, count, first):
    """The numbers of a list like 1,3 as indices; all of them if it was not given."""
    if not text:
        return list(range(count))
    indices = [int(number) - first for number in text.split(",")]
    if not all(0 <= index < count for index in indices):
        raise ValueError(f"{option} {text}: expected numbers from {first} to {count - 1 + first}")
    return indices


def main():
    arguments = ARGUMENTS
    if bool(arguments.files) == arguments.patterns:
        PARSER.error("--patterns takes no file" if arguments.patterns else "expected a file")
    which = "spatial" if arguments.spatial else "weights"
    files, path = [], "drawing"
    try:
        for path in arguments.files:
            tensors, metadata = read_safetensors(path)
            files.append(to_strip(to_pixels(tensors, metadata), metadata))
            depth, heads, count, _ = (min(sides) for sides in zip(*(tensors[which].shape for tensors, _ in files)))
        path = "drawing"
        if arguments.patterns:
            draw_patterns(arguments.out)
        elif arguments.norms:
            draw_norms(files, arguments.out)
        elif arguments.rollout:
            draw_rollouts(files, arguments.out)
        elif arguments.rank:
            draw_ranks(files, arguments.out)
        else:
            draw(files, which, chosen("--queries", arguments.queries, count, 0),
                 chosen("--layers", arguments.layers, depth, 1), chosen("--heads", arguments.heads, heads, 1),
                 arguments.overlay, arguments.out)
    except (OSError, KeyError, ValueError) as error:
        sys.exit(f"plot_attention.py: {os.path.basename(path)}: {error}")
    print(arguments.out)


if __name__ == "__main__":
    main()
