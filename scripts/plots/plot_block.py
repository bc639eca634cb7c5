"""Draws time and memory of one block against the number of tokens from the CSV of scripts/bench/bench_block.sh, all
axes logarithmic, and prints the table with each row's times as multiples of those of softmax attention.

    python3 scripts/plots/plot_block.py runs/block.csv --out runs/block.png

Needs matplotlib.
"""

import argparse
import csv
import sys


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("csv", help="CSV file that scripts/bench/bench_block.sh wrote")
    parser.add_argument("--out", required=True, metavar="PNG", help="picture to write")
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import plots  # noqa: F401  finds matplotlib, so it comes first

import matplotlib.pyplot as plt

COLOURS = {"softmax": "#0072b2", "convattn": "#e69f00", "lisa": "#d55e00", "lisa-3d": "#009e73"}
MORE_COLOURS = ("#cc79a7", "#56b4e9", "#666666")
LINES = {"vit.c": "-", "PyTorch eager": "--", "PyTorch compile": ":"}
PANELS = (("infer_ms", 1, "inference, ms a batch"), ("train_ms", 1, "training step, ms a batch"),
          ("train_bytes", 2**20, "activations in training, MiB"))


def read(path):
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise ValueError("no rows")
    return rows


def draw(rows, out):
    figure, panels = plt.subplots(1, len(PANELS), figsize=(12, 4.2))
    curves = list(dict.fromkeys((row["by"], row["operator"]) for row in rows))
    others = [name for name in dict.fromkeys(name for _, name in curves) if name not in COLOURS]
    for axes, (key, unit, title) in zip(panels, PANELS):
        for by, operator in curves:
            points = sorted((int(row["tokens"]), float(row[key]) / unit) for row in rows
                            if (row["by"], row["operator"]) == (by, operator) and row[key])
            colour = COLOURS.get(operator) or MORE_COLOURS[others.index(operator) % len(MORE_COLOURS)]
            if points:
                axes.plot(*zip(*points), LINES.get(by, "-."), color=colour, marker="o", markersize=4,
                          label=operator if by == "vit.c" else f"{operator}, {by}")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("tokens")
        axes.set_title(title, loc="left", fontweight="bold", fontsize=11)
        axes.grid(True, color="#e4e4e4")
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="upper center", ncol=max(4, (len(curves) + 1) // 2), frameon=False)
    figure.text(0.01, 0.01, f"batch {rows[0]['batch']}; {rows[0]['device']}", fontsize=8, color="#666666")
    figure.tight_layout(rect=(0, 0.02, 1, 0.88))
    figure.savefig(out, dpi=110)


def ratio(row, key, softmax):
    base = softmax.get((row["by"], row["grid"]))
    return f" ({float(row[key]) / float(base[key]):.2f})" if base and base is not row else ""


def mebibytes(text):
    return f"{int(text) / 2**20:.1f}" if text else ""


def print_table(rows):
    softmax = {(row["by"], row["grid"]): row for row in rows if row["operator"] == "softmax"}
    print("| grid | operator | 10^6 multiply-adds | inference, ms | training, ms | inference, MiB | training, MiB |")
    print("|--:|---|--:|--:|--:|--:|--:|")
    for row in sorted(rows, key=lambda row: int(row["tokens"])):
        name = row["operator"] if row["by"] == "vit.c" else f"{row['operator']}, {row['by']}"
        times = [f"{float(row[key]):.1f}{ratio(row, key, softmax)}" for key in ("infer_ms", "train_ms")]
        macs = f"{float(row['mmacs']):.1f}" if row["mmacs"] else ""
        *frames, side = row["grid"].split("x")
        print(f"| {' x '.join((*frames, side, side))} | {name} | {macs} | {times[0]} | {times[1]} "
              f"| {mebibytes(row['infer_bytes'])} | {mebibytes(row['train_bytes'])} |")


def main():
    arguments = ARGUMENTS
    try:
        rows = read(arguments.csv)
        draw(rows, arguments.out)
        print_table(rows)
    except (OSError, KeyError, ValueError) as error:
        sys.exit(f"plot_block.py: {arguments.csv}: {error}")
    print(arguments.out)


if __name__ == "__main__":
    main()
