"""Draws the lead of one row of a table over another by epoch: a line for each pair, the mean over the seeds that both
rows have, with a band from the smallest to the largest difference between runs of one seed.

    python3 scripts/plots/plot_gap.py runs/paper study-ripple:study-linear study-convit:study-softmax --out gap.png
    python3 scripts/plots/plot_gap.py docs/study.csv study-ripple:study-linear
    python3 scripts/plots/plot_gap.py runs/paper study-ripple:study-linear --save study.csv

RUNS is the folder in which scripts/reproduce.sh trained several seeds (RUNS/study-ripple-seed1, ...), or a CSV file
that --save wrote.  A seed counts in an epoch when both of its runs were evaluated there.  Prints the last difference of
each pair.  --save writes every evaluated epoch of the runs to a file and keeps runs of other rows and seeds in it, so
that a study can be made in parts.  Needs matplotlib.
"""

import argparse
import csv
import math
import os
import re
import statistics
import sys


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", metavar="RUNS", help="folder of the runs, or a file that --save wrote")
    parser.add_argument("pairs", nargs="+", metavar="ROW:ROW", help="the row that leads and the one it is compared with")
    parser.add_argument("--out", metavar="FILE", default="gap.png", help="picture to write (default gap.png)")
    parser.add_argument("--save", metavar="FILE", help="file in which the runs' epochs are kept")
    return parser, parser.parse_args()


if __name__ == "__main__":
    PARSER, ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import plots  # noqa: F401  finds matplotlib, so it comes first

import matplotlib.pyplot as plt

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito's


KEPT = ("epoch", "top1", "top5", "jsd", "tau_ended", "tau_equal")


def runs_of_folder(folder):
    """Row and seed -> the lines of its log.csv that have an accuracy."""
    found = {}
    for name in sorted(os.listdir(folder)):
        log = os.path.join(folder, name, "log.csv")
        if os.path.exists(log):
            row, _, seed = name.partition("-seed")
            with open(log, newline="") as file:
                found[row, int(seed or 0)] = [line for line in csv.DictReader(file) if line.get("top1")]
    return found


def runs_of_file(path):
    found = {}
    with open(path, newline="") as file:
        table = csv.DictReader(file)
        if not {"row", "seed", "epoch", "top1"} <= set(table.fieldnames or ()):
            raise ValueError("neither a folder of runs nor a file that --save wrote")
        for line in table:
            found.setdefault((line["row"], int(line["seed"])), []).append(line)
    return found


def save(runs, path):
    """Writes the runs, and those runs of the file that are not among them."""
    everything = {**(runs_of_file(path) if os.path.exists(path) else {}), **runs}
    with open(path + ".part", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("row", "seed") + KEPT)
        for (row, seed), lines in sorted(everything.items()):
            writer.writerows([row, seed] + [line.get(column, "") for column in KEPT] for line in lines)
    os.replace(path + ".part", path)


def by_seed(runs, row):
    """Seed -> top-1 in percent by epoch."""
    return {seed: {int(line["epoch"]): float(line["top1"]) for line in lines}
            for (name, seed), lines in runs.items() if name == row}


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
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, -0.14))  # below the curves, which fill the axes
    figure.tight_layout()
    figure.savefig(out, dpi=144)


def main():
    arguments = ARGUMENTS
    for pair in arguments.pairs:
        if pair.count(":") != 1:
            PARSER.error(f"'{pair}': expected two rows with a colon between them, as study-ripple:study-linear")
    if len(arguments.pairs) > len(COLOURS):
        PARSER.error(f"at most {len(COLOURS)} pairs in one picture")
    try:
        runs = runs_of_folder(arguments.runs) if os.path.isdir(arguments.runs) else runs_of_file(arguments.runs)
        draw(runs, arguments.pairs, arguments.out)
        if arguments.save:
            save(runs, arguments.save)
    except (OSError, KeyError, ValueError) as error:
        sys.exit(f"plot_gap.py: {arguments.runs}: {error}")
    print(arguments.out)


if __name__ == "__main__":
    main()
