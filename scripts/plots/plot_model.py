"""Draws weights of a checkpoint, as in the ViT paper's Figure 7: the first principal components of the patch
embedding's filters, and the similarity of all tokens' position embeddings.

    python3 scripts/plots/plot_model.py runs/cifar100-softmax-001/best.safetensors --out model.png

Needs matplotlib.
"""

import argparse
import os
import sys


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="weights of train_vit (safetensors)")
    parser.add_argument("--out", required=True, metavar="PNG", help="picture to write")
    parser.add_argument("--columns", type=int, metavar="N", help="tokens in a row of the grid (default: a square grid)")
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import plots  # noqa: F401  finds matplotlib, so it comes first

import numpy as np
import matplotlib.pyplot as plt

from plot_attention import read_safetensors

COMPONENTS, ACROSS, MOST_TILES = 28, 7, 8


def principal_filters(weight):
    """[M,3,P,P] -> the first components [up to 28,P,P,3], each stretched to 0..1, and their share in the filters' sum
    of squares."""
    M, _, P, _ = weight.shape
    _, size, components = np.linalg.svd(weight.reshape(M, -1).astype(np.float64), full_matrices=False)
    first = components[:COMPONENTS].reshape(-1, 3, P, P).transpose(0, 2, 3, 1)
    low, high = first.min(axis=(1, 2, 3), keepdims=True), first.max(axis=(1, 2, 3), keepdims=True)
    return (first - low) / np.maximum(high - low, 1e-12), (size[:COMPONENTS] ** 2).sum() / (size**2).sum()


def similarities(embedding, grid):
    """Cosines between all tokens on the grid: [Hg,Wg,Hg,Wg]."""
    unit = embedding / np.maximum(np.linalg.norm(embedding, axis=1, keepdims=True), 1e-12)
    return (unit @ unit.T).reshape(*grid, *grid)


def tiles(count):
    """At most eight of `count` rows, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, MOST_TILES)).round().astype(int))


def grid_shape(tokens, side):
    """Rows and columns of the grid: the image is assumed to be square unless the number of tokens excludes that."""
    for front in range(3 if side else 0):  # with a class token, or with that and a distillation token
        if (tokens - front) % side == 0:
            return front, ((tokens - front) // side, side)
    root = int(round(tokens**0.5))
    if root * root == tokens:
        return 0, (root, root)
    root = int(round((tokens - 1) ** 0.5))
    if root * root == tokens - 1:
        return 1, (root, root)  # a class token in front
    raise ValueError(f"pos_embed of {tokens} tokens: no square grid" +
                     ("" if side else "; --columns says how wide it is"))


def draw_filters(figure, weight):
    filters, share = principal_filters(weight)
    down = -(-len(filters) // ACROSS)
    spaces = {"left": 0.03, "right": 0.97, "bottom": 0.03, "top": 0.9, "hspace": 0.08, "wspace": 0.08}
    panels = figure.subplots(down, ACROSS, squeeze=False, gridspec_kw=spaces).ravel()
    for panel in panels:
        panel.axis("off")
    for panel, image in zip(panels, filters):
        panel.imshow(image, interpolation="nearest")
    figure.suptitle(f"Patch embedding: {len(filters)} principal components, {100 * share:.0f} %", x=0.02, ha="left",
                    fontsize=11, fontweight="bold")


def draw_positions(figure, embedding, columns):
    prefix, grid = grid_shape(len(embedding), columns)
    cosines = similarities(embedding[prefix:].astype(np.float64), grid)
    rows, across = tiles(grid[0]), tiles(grid[1])
    spaces = {"left": 0.05, "right": 0.97, "bottom": 0.06, "top": 0.9, "hspace": 0.08, "wspace": 0.08}
    panels = figure.subplots(len(rows), len(across), squeeze=False, gridspec_kw=spaces)
    for i, y in enumerate(rows):
        for j, x in enumerate(across):
            image = panels[i][j].imshow(cosines[y, x], vmin=-1, vmax=1, cmap="viridis", interpolation="nearest")
            panels[i][j].set_xticks([])
            panels[i][j].set_yticks([])
            if i == len(rows) - 1:
                panels[i][j].set_xlabel(x + 1, fontsize=7)
            if j == 0:
                panels[i][j].set_ylabel(y + 1, fontsize=7)
    figure.colorbar(image, ax=panels, shrink=0.9, pad=0.02).set_label("cosine", fontsize=8)
    figure.suptitle("Position embedding: likeness of a token's to all others'", x=0.02, ha="left", fontsize=11,
                    fontweight="bold")


def draw(tensors, columns, out):
    weight = tensors["patch_embed.proj.weight"]
    position = tensors.get("pos_embed")
    figure = plt.figure(figsize=(5.6 if position is None else 10.4, 3.6 if position is None else 4.4))
    left, right = (figure, None) if position is None else figure.subfigures(1, 2)
    draw_filters(left, weight)
    if right is not None:
        draw_positions(right, position[0], columns)
    figure.savefig(out, dpi=110)


def main():
    arguments = ARGUMENTS
    try:
        tensors, _ = read_safetensors(arguments.checkpoint)
        if "patch_embed.proj.weight" not in tensors:
            raise ValueError("no patch_embed.proj.weight in it: is this a checkpoint of train_vit?")
        draw(tensors, arguments.columns, arguments.out)
    except (OSError, KeyError, ValueError) as error:
        sys.exit(f"plot_model.py: {os.path.basename(arguments.checkpoint)}: {error}")
    print(arguments.out)


if __name__ == "__main__":
    main()
