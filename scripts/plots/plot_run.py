"""Draws the training curves of one run, or of several on top of each other.

    python3 scripts/plots/plot_run.py runs/demo                                   -> runs/demo/curve.png
    python3 scripts/plots/plot_run.py runs/cifar100-softmax-001 runs/cifar100-ripple-001 --out compare.png

    python3 scripts/plots/plot_run.py runs/cifar100-ripple-001 --jsd --out jsd.png    the ripple paper's Figure 3

    python3 scripts/plots/plot_run.py runs/demo-density --level "byte histogram=7.15"   bits per byte, and what to beat

--jsd draws, instead of the curves, the mean Jensen-Shannon divergence in nats between the spatial weights and weights
that halve from ring to ring; the dashed line is the value for uniform weights.

Reads log.csv of each folder (docs/runs.md names its columns).  The validation loss is dashed; a detector's is the
loss of its last decoder layer, and beside it the training loss of that layer is drawn, not the sum over layers that is
minimised.  Of a detector AP50 is drawn, AP fainter; of a density model bits per byte, on the left of the training data,
on the right of the validation split, where --level draws a line.  A run that is still going on can be drawn too.  Needs matplotlib.
"""

import argparse
import csv
import math
import os
import sys


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN_DIR", help="folder with a log.csv")
    parser.add_argument("--out", metavar="FILE", help="picture to write (default: curve.png in the first folder)")
    parser.add_argument("--jsd", action="store_true", help="draw the divergence of the spatial weights instead")
    parser.add_argument("--level", action="append", default=[], metavar="NAME=VALUE", help="bits per byte to compare with")
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import plots  # noqa: F401  finds matplotlib, so it comes first

import matplotlib.pyplot as plt

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666")  # Okabe and Ito's
COLUMNS = ("step", "epoch", "loss", "top1", "top5", "jsd", "ap", "ap50", "val_loss", "focal", "l1", "giou", "bits")
SMOOTH_FROM = 200  # rows of the log beyond which the loss gets a moving average over a faint line
LEGEND_COLUMNS = 4

plt.rcParams.update({
    "font.size": 11, "axes.titlesize": 12, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#888888", "axes.grid": True,
    "grid.color": "#e4e4e4", "grid.linewidth": 0.8, "xtick.color": "#444444", "ytick.color": "#444444",
    "legend.frameon": False,
})


def number(row, key):
    try:
        return float(row[key])
    except (KeyError, TypeError, ValueError):
        return math.nan


def read_log(folder):
    """Rows as dictionaries of numbers; the last one may be half written."""
    path = os.path.join(folder, "log.csv")
    try:
        with open(path, newline="") as file:
            rows = [{key: number(row, key) for key in COLUMNS}
                    for row in csv.DictReader(file)]
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        sys.exit(f"plot_run.py: {path}: {error}")
    rows = [row for row in rows if row["step"] >= 0 and row["epoch"] >= 1 and math.isfinite(row["loss"])]
    if not rows:
        sys.exit(f"plot_run.py: {path}: no rows yet")
    return rows


def steps_per_epoch(rows):
    """Every epoch ends with a row; None before the first has ended."""
    for row, following in zip(rows, rows[1:]):
        if following["epoch"] > row["epoch"]:
            return row["step"] / row["epoch"]
    last = rows[-1]
    ended = any(math.isfinite(last[key]) for key in ("top1", "ap", "bits"))
    return last["step"] / last["epoch"] if ended else None


def moving_average(values, width):
    sums, result = [0.0], []
    for value in values:
        sums.append(sums[-1] + value)
    for i in range(len(values)):
        half = min(i, len(values) - 1 - i, width // 2)
        result.append((sums[i + half + 1] - sums[i - half]) / (2 * half + 1))
    return result


def training_loss(row):
    """Of a detector with a validation loss the last layer's, which set_loss weighs like this."""
    return 2 * row["focal"] + 5 * row["l1"] + 2 * row["giou"]


def draw_loss(axes, x, rows, colour, label):
    """Returns whether there was a validation loss to draw."""
    validation = [(at, row["val_loss"]) for at, row in zip(x, rows) if math.isfinite(row["val_loss"])]
    parts = validation and all(math.isfinite(training_loss(row)) for row in rows)
    loss = [training_loss(row) if parts else row["loss"] for row in rows]
    if is_density(rows):
        loss, validation = [value / math.log(2) for value in loss], []
    smooth = len(loss) >= SMOOTH_FROM
    axes.plot(x, loss, color=colour, linewidth=1.0 if smooth else 1.8, alpha=0.25 if smooth else 1,
              marker=marker(loss, 1), label=None if smooth else label)
    if smooth:
        axes.plot(x, moving_average(loss, len(loss) // 50), color=colour, linewidth=1.8, label=label)
    if validation:
        axes.plot(*zip(*validation), color=colour, linewidth=1.8, linestyle=(0, (4, 2)),
                  marker=marker(validation, 40), markersize=4, markerfacecolor="white")
    return bool(validation)


def marker(points, most):
    """A line through one point is nothing."""
    return "o" if len(points) <= most else None


def detects(rows):
    return any(math.isfinite(row["ap50"]) for row in rows)


def is_density(rows):
    return any(math.isfinite(row["bits"]) for row in rows)


def draw_accuracy(axes, x, rows, colour, label):
    """Returns the last evaluated point, to be labelled, or None."""
    points = [(at, row["top1"]) for at, row in zip(x, rows) if math.isfinite(row["top1"])]
    if is_density(rows):
        points = [(at, row["bits"]) for at, row in zip(x, rows) if math.isfinite(row["bits"])]
    if detects(rows):
        points = [(at, 100 * row["ap50"]) for at, row in zip(x, rows) if math.isfinite(row["ap50"])]
        strict = [(at, 100 * row["ap"]) for at, row in zip(x, rows) if math.isfinite(row["ap"])]
        axes.plot(*zip(*strict), color=colour, linewidth=1.2, alpha=0.5, clip_on=False, marker=marker(strict, 1))
    if not points:
        return None
    axes.plot(*zip(*points), color=colour, linewidth=1.8, marker=marker(points, 40), markersize=4.5,
              label=label, clip_on=False)
    return (*points[-1], colour)


def label_ends(axes, ends, form="{:.2f} %"):
    """The last results at the right edge, pushed apart where they would overlap."""
    if not ends:
        return
    low, high = axes.get_ylim()
    gap, floor = 0.06 * (high - low), -math.inf
    right = max(x for x, _, _ in ends)
    for x, y, colour in sorted(ends, key=lambda end: end[1]):
        floor = max(y, floor + gap)
        axes.annotate(form.format(y), (right, floor), xytext=(8, 0), textcoords="offset points", va="center",
                      color=colour, fontweight="bold", annotation_clip=False)


def names_of(folders):
    """Folder names; with their parents where these alone are not distinct."""
    paths = [os.path.normpath(os.path.abspath(folder)).split(os.sep) for folder in folders]
    for parts in range(1, max(map(len, paths)) + 1):
        names = [os.sep.join(path[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            break
    return names


def draw_levels(axes, levels):
    """A line at each (name, value)."""
    for i, (name, value) in enumerate(sorted(levels, key=lambda level: -level[1])):
        axes.axhline(value, color="#888888", linestyle=(0, (1, 2 + i)), linewidth=1.2)
        axes.annotate(f"{name} {value:.2f}", (1, value), xycoords=("axes fraction", "data"), xytext=(-2, 3),
                      textcoords="offset points", ha="right", fontsize=9, color="#666666")


def draw(folders, out, levels):
    logs = [read_log(folder) for folder in folders]
    names = names_of(folders)
    lengths = [steps_per_epoch(rows) for rows in logs]
    by_epoch = all(lengths)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.2))
    ends, validated = [], False
    for i, (rows, name, length) in enumerate(zip(logs, names, lengths)):
        x = [row["step"] / (length if by_epoch else 1) for row in rows]
        colour = COLOURS[i % len(COLOURS)]
        validated |= draw_loss(left, x, rows, colour, name)
        ends.append(draw_accuracy(right, x, rows, colour, name))
    loss = "last decoder layer's loss" if validated and all(map(detects, logs)) else "training loss"
    left.set_title(f"{loss}; dashed: validation" if validated else loss)
    density = all(map(is_density, logs))
    right.set_title("AP50 (and AP), %" if all(map(detects, logs)) else
                    "bits per byte, validation" if density else "top-1 accuracy on the test images, %")
    if density:
        left.set_title("bits per byte, training")
    for axes in (left, right):
        axes.set_xlabel("epoch" if by_epoch else "step")
        axes.set_xlim(left=0)
    right.set_xlim(left.get_xlim())
    if not any(ends):
        right.text(0.5, 0.5, "not evaluated yet", transform=right.transAxes, ha="center", color="#888888")
    elif density:
        draw_levels(right, levels)
        left.set_ylim(right.get_ylim()[0] - 0.3, 8.2)
        right.set_ylim(left.get_ylim())
    else:
        right.set_ylim(0, 100 if max(end[1] for end in ends if end) > 50 else None)
    label_ends(right, [end for end in ends if end], "{:.3f}" if density else "{:.2f} %")
    rows = -(-len(names) // LEGEND_COLUMNS)
    figure.tight_layout(w_pad=3, rect=(0, 0, 1, 1 - 0.07 * rows))
    if len(names) > 1:
        figure.legend(*left.get_legend_handles_labels(), loc="upper left", bbox_to_anchor=(0.05, 1.0), fontsize=10.5,
                      ncol=min(len(names), LEGEND_COLUMNS))
    else:
        figure.suptitle(names[0], x=0.06, y=0.97, ha="left", color="#666666", fontsize=11)
    figure.savefig(out, dpi=144)


def uniform_divergence(folder):
    """Of uniform from halving weights, for as many rings as the run has; NaN where config.ini does not say."""
    try:
        with open(os.path.join(folder, "config.ini")) as file:
            settings = dict(line.replace(" ", "").strip().split("=", 1) for line in file if "=" in line)
        rings = int(settings["r_max"])
    except (OSError, KeyError, ValueError):
        return math.nan
    halving = [2.0 ** -(r + 1) for r in range(rings)] + [2.0 ** -rings]
    p, total = 1 / (rings + 1), 0
    for q in halving:
        total += (p * math.log(2 * p / (p + q)) + q * math.log(2 * q / (p + q))) / 2
    return total


def draw_divergence(folders, out):
    figure, axes = plt.subplots(figsize=(6.4, 4.2))
    for i, (folder, name) in enumerate(zip(folders, names_of(folders))):
        rows, colour = read_log(folder), COLOURS[i % len(COLOURS)]
        points = [(row["step"], row["jsd"]) for row in rows if math.isfinite(row["jsd"])]
        if not points:
            raise ValueError(f"{folder}: no spatial weights in this run's log")
        axes.plot(*zip(*points), color=colour, linewidth=1.8, label=name)
        uniform = uniform_divergence(folder)
        if math.isfinite(uniform):
            axes.axhline(uniform, color=colour, linestyle="--", linewidth=1, label="uniform weights")
    axes.set_title("Jensen-Shannon divergence from halving weights, nats")
    axes.set_xlabel("step")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.tight_layout()
    figure.savefig(out, dpi=144)


def main():
    arguments = ARGUMENTS
    try:
        levels = [(name, float(value)) for name, value in (level.rsplit("=", 1) for level in arguments.level)]
    except ValueError:
        sys.exit("plot_run.py: --level: expected NAME=VALUE with a number")
    out = arguments.out or os.path.join(arguments.runs[0], "jsd.png" if arguments.jsd else "curve.png")
    try:
        if arguments.jsd:
            draw_divergence(arguments.runs, out)
        else:
            draw(arguments.runs, out, levels)
    except (OSError, ValueError) as error:
        sys.exit(f"plot_run.py: {out}: {error}")
    print(out)


if __name__ == "__main__":
    main()
