"""Draws how far one row of a table leads another over the epochs: a line for each pair, the mean over the seeds that both
rows have, with a band from the smallest to the largest difference between runs of one seed.

    python3 scripts/plot_gap.py runs/paper study-ripple:study-linear study-convit:study-softmax --out gap.png

RUNS is the folder in which scripts/reproduce.sh trained several seeds (RUNS/study-ripple-seed1, ...).  A seed counts in an
epoch when both of its runs were evaluated there.  Prints the last difference of each pair.  Needs matplotlib.
"""

import argparse
import csv
import math
import os
import re
import statistics
import sys

import plots  # noqa: F401  finds matplotlib, so it comes first

import matplotlib.pyplot as plt

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito's


def accuracies(folder):
    """Top-1 in percent by epoch."""
    with open(os.path.join(folder, "log.csv"), newline="") as file:
        return {int(row["epoch"]): float(row["top1"]) for row in csv.DictReader(file) if row["top1"]}


def by_seed(runs, row):
    found = {}
    for name in os.listdir(runs):
        match = re.fullmatch(re.escape(row) + r"-seed(\d+)", name)
        if match:
            found[int(match[1])] = accuracies(os.path.join(runs, name))
    return found


def differences(runs, leading, behind):
    """Epoch -> one difference for each seed that both rows have in this epoch."""
    first, second = by_seed(runs, leading), by_seed(runs, behind)
    found = {}
    for seed in sorted(first.keys() & second.keys()):
        for epoch in sorted(first[seed].keys() & second[seed].keys()):
            found.setdefault(epoch, []).append(first[seed][epoch] - second[seed][epoch])
    if not found:
        raise ValueError(f"no seed in which {leading} and {behind} were both evaluated")
    return dict(sorted(found.items()))


def describe(values):
    error = f" +- {statistics.stdev(values) / math.sqrt(len(values)):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):+.2f}{error} points, {len(values)} seed{'s' * (len(values) > 1)}"


def draw(runs, pairs, out):
    figure, axes = plt.subplots(figsize=(7.2, 4.2))
    axes.axhline(0, color="#888888", linewidth=1)
    for pair, colour in zip(pairs, COLOURS):
        leading, behind = pair.split(":")
        found = differences(runs, leading, behind)
        epochs = list(found)
        axes.fill_between(epochs, [min(found[e]) for e in epochs], [max(found[e]) for e in epochs], color=colour,
                          alpha=0.18, linewidth=0)
        axes.plot(epochs, [statistics.mean(found[e]) for e in epochs], color=colour, linewidth=1.8,
                  label=f"{leading} - {behind}")
        print(f"{leading} - {behind}, epoch {epochs[-1]}: {describe(found[epochs[-1]])}")
    axes.set_title("Difference in top-1 accuracy, points", loc="left", fontweight="bold")
    axes.set_xlabel("epoch")
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(out, dpi=144)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", metavar="RUNS", help="folder of the runs")
    parser.add_argument("pairs", nargs="+", metavar="ROW:ROW", help="the row that leads and the one it is compared with")
    parser.add_argument("--out", metavar="FILE", default="gap.png", help="picture to write (default gap.png)")
    arguments = parser.parse_args()
    for pair in arguments.pairs:
        if pair.count(":") != 1:
            parser.error(f"'{pair}': expected two rows with a colon between them, as study-ripple:study-linear")
    if len(arguments.pairs) > len(COLOURS):
        parser.error(f"at most {len(COLOURS)} pairs in one picture")
    try:
        draw(arguments.runs, arguments.pairs, arguments.out)
    except (OSError, KeyError, ValueError) as error:
        sys.exit(f"plot_gap.py: {arguments.runs}: {error}")
    print(arguments.out)


if __name__ == "__main__":
    main()
