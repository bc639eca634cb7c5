"""Draws the confusion matrix that `train_vit --eval --confusion FILE` wrote: rows are the true classes, columns what
their images were taken for, colours the share of a row.

    ./build/cpu/train_vit --init runs/demo/best.safetensors --eval --confusion confusion.csv
    python3 scripts/plots/plot_confusion.py confusion.csv --out confusion.png
    python3 scripts/plots/plot_confusion.py confusion.csv --out confusion.png --worst 20   the twenty worst classes

The number behind each row is its accuracy; up to thirty classes also have the percentages in the cells.  The pairs that
are confused most are printed.  Needs matplotlib.
"""

import argparse
import csv
import os
import sys


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", metavar="CSV", help="what --confusion wrote")
    parser.add_argument("--out", metavar="PNG", help="picture to write (default: the file's name with .png)")
    parser.add_argument("--worst", metavar="N", type=int, help="only the N classes that are named rightly least often")
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import plots  # noqa: F401  finds matplotlib, so it comes first

import numpy as np
import matplotlib.pyplot as plt
from matplotlib.colors import PowerNorm

WRITTEN_UP_TO = 30  # classes whose cells have room for a number
NAMED_UP_TO = 400   # classes that have room for their names
PAIRS = 10


def read(path):
    """Names and counts [classes,classes]."""
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        rows = list(csv.reader(file))
    if not rows or rows[0][:1] != ["true class"]:
        raise ValueError("not a confusion matrix that train_vit --confusion wrote")
    names = rows[0][1:]
    if not names or len(rows) != len(names) + 1 or any(len(row) != len(names) + 1 for row in rows):
        raise ValueError(f"expected {len(names)} rows of {len(names)} counts")
    counts = np.array([[float(x) for x in row[1:]] for row in rows[1:]])
    if not np.isfinite(counts).all() or (counts < 0).any():
        raise ValueError("counts below zero, or none")
    return names, counts


def shares_of(counts):
    """Percent of each row; a class without images has zeros."""
    totals = counts.sum(axis=1, keepdims=True)
    return 100 * counts / np.where(totals > 0, totals, 1)


def short(name, most=22):
    return name if len(name) <= most else name[:most - 1] + "…"


def draw(names, counts, chosen, out):
    shares = shares_of(counts)
    diagonal, images = np.diag(shares)[chosen], counts.sum(axis=1)[chosen]
    part = shares[np.ix_(chosen, chosen)]
    labels, n = [short(names[i]) for i in chosen], len(chosen)
    cell = min(max(5.2 / n, 0.44 if n <= WRITTEN_UP_TO else 0.13), 0.62) if n <= NAMED_UP_TO else 14 / n  # inches
    size, font = n * cell, min(9.0, 62 * cell)
    margin = 0.35 + (0.62 * font / 72 * max(map(len, labels)) if n <= NAMED_UP_TO else 0.3)
    width, height = margin + size + 1.5, margin + size + 0.75
    figure = plt.figure(figsize=(width, height))
    axes = figure.add_axes((margin / width, margin / height, size / width, size / height))
    drawn = axes.imshow(part, cmap="Blues", norm=PowerNorm(0.5, 0, 100), interpolation="nearest")
    axes.tick_params(length=0, labelsize=font, pad=2)
    axes.set_xticks(range(n) if n <= NAMED_UP_TO else [])
    axes.set_yticks(range(n) if n <= NAMED_UP_TO else [])
    if n <= NAMED_UP_TO:
        axes.set_xticklabels(labels, rotation=90)
        axes.set_yticklabels(labels)
    axes.set_xticks(np.arange(-0.5, n), minor=True)
    axes.set_yticks(np.arange(-0.5, n), minor=True)
    if n <= NAMED_UP_TO:
        axes.grid(which="minor", color="#e4e4e4", linewidth=0.8 if n <= WRITTEN_UP_TO else 0.3)
    axes.tick_params(which="minor", length=0)
    for spine in axes.spines.values():
        spine.set_color("#bbbbbb")
    axes.set_ylabel("true class", fontsize=10, color="#666666")
    axes.set_xlabel("taken for", fontsize=10, color="#666666")
    for i in range(n):
        if n <= NAMED_UP_TO:
            axes.text(n - 0.5 + 0.08 / cell, i, f"{diagonal[i]:.0f} %" if images[i] else "no images", va="center",
                      fontsize=font, color="#08306b", fontweight="bold")
        for j in range(n if n <= WRITTEN_UP_TO else 0):
            if part[i, j] >= 0.5:
                axes.text(j, i, f"{part[i, j]:.0f}", ha="center", va="center", fontsize=8,
                          color="white" if part[i, j] > 35 else "#333333")
    place = (margin + size + 0.85) / width if n <= NAMED_UP_TO else (margin + size + 0.2) / width
    long = min(size, 4.0)
    bar = figure.colorbar(drawn, cax=figure.add_axes((place, (margin + size - long) / height, 0.13 / width,
                                                      long / height)))
    bar.set_ticks([0, 1, 5, 20, 50, 100])
    bar.ax.set_yticklabels(["0", "1", "5", "20", "50", "100 %"], fontsize=8)
    bar.outline.set_visible(False)
    total = counts.sum()
    accuracy = 100 * np.trace(counts) / total if total else 0
    left = 0.15 / width
    figure.text(left, 1 - 0.12 / height, "What each class was taken for", va="top", fontsize=12, fontweight="bold")
    which = f"{n} classes" if n == len(names) else f"the {n} of {len(names)} classes named rightly least often"
    figure.text(left, 1 - 0.36 / height, f"{which}; {total:.0f} images, top-1 {accuracy:.2f} %", va="top", fontsize=9,
                color="#666666")
    figure.savefig(out, dpi=120 if n <= WRITTEN_UP_TO else 160)


def print_pairs(names, counts):
    wrong, shares = counts.copy(), shares_of(counts)
    np.fill_diagonal(wrong, 0)
    for at in np.argsort(-wrong, axis=None, kind="stable")[:PAIRS]:
        i, j = divmod(int(at), len(names))
        if wrong[i, j] > 0:
            print(f"{names[i]} taken for {names[j]}: {wrong[i, j]:.0f} images, {shares[i, j]:.1f} %")


def main():
    arguments = ARGUMENTS
    out = arguments.out or os.path.splitext(arguments.file)[0] + ".png"
    path = arguments.file
    try:
        names, counts = read(path)
        chosen = np.arange(len(names))
        if arguments.worst is not None:
            if not 1 <= arguments.worst <= len(names):
                raise ValueError(f"--worst {arguments.worst}: expected 1 to {len(names)}")
            chosen = np.sort(np.argsort(np.diag(shares_of(counts)), kind="stable")[:arguments.worst])
        path = out
        draw(names, counts, chosen, out)
    except (OSError, ValueError) as error:
        sys.exit(f"plot_confusion.py: {path}: {getattr(error, 'strerror', None) or error}")
    print_pairs(names, counts)
    print(out)


if __name__ == "__main__":
    main()
