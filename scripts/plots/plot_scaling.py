"""Draws time and memory against the number of tokens from the CSV of scripts/bench/scaling.sh, both axes logarithmic.

    python3 scripts/plots/plot_scaling.py docs/scaling.csv --out docs/images/scaling.png

Needs matplotlib.
"""

import argparse
import csv
import sys


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", help="CSV file that scripts/bench/scaling.sh wrote")
    parser.add_argument("--out", required=True, metavar="PNG", help="picture to write")
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import plots  # noqa: F401  finds matplotlib, so it comes first

import matplotlib.pyplot as plt

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666", "#000000")


def read(path):
    """{model: [(tokens, training seconds, activation MiB)]} in the file's order, and the device."""
    models, device = {}, ""
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            models.setdefault(row["model"], []).append(
                (int(row["tokens"]), float(row["train_seconds"]), int(row["activation_bytes"]) / 2**20))
            device = row["device"]
    if not models:
        raise ValueError("no rows")
    return models, device


def draw(path, out):
    models, device = read(path)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.4))
    for colour, (model, points) in zip(COLOURS, models.items()):
        tokens, seconds, mebibytes = zip(*sorted(points))
        left.plot(tokens, seconds, color=colour, marker="o", markersize=4, label=model)
        right.plot(tokens, mebibytes, color=colour, marker="o", markersize=4)
    for axes, title in ((left, "one training step, batch 4, seconds"), (right, "activations, MiB")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("tokens")
        axes.set_title(title, loc="left", fontweight="bold", fontsize=12)
        axes.grid(True, color="#e4e4e4")
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*left.get_legend_handles_labels(), loc="upper center", ncol=4, frameon=False)
    figure.text(0.01, 0.01, device, fontsize=8, color="#666666")
    figure.tight_layout(rect=(0, 0.02, 1, 0.88))
    figure.savefig(out, dpi=144)


def main():
    arguments = ARGUMENTS
    try:
        draw(arguments.csv, arguments.out)
    except (OSError, KeyError, ValueError) as error:
        sys.exit(f"plot_scaling.py: {arguments.csv}: {error}")
    print(arguments.out)


if __name__ == "__main__":
    main()
