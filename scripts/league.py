#!/usr/bin/env python3
"""Writes docs/reference/league.md and docs/images/league.svg: the operators of the league by accuracy and speed, and
the verdicts on the papers' claims.

    python3 scripts/league.py            writes both
    python3 scripts/league.py --check    checks that both agree with the files of results

Reads docs/league.csv (sh scripts/league.sh start), docs/league-speed.csv (sh scripts/bench/league_speed.sh), docs/study.csv
(linear and ripple attention for thirty epochs, with a warm-up of three as in the league's) and docs/paper_tables.csv.
Needs only Python.
"""

import argparse
import csv
import math
import os
import statistics
import sys

import league_picture

DOCS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs")
TOKENS = (64, 196, 784)
BUDGETS = (200, 30, 10)  # epochs, the most informative first


# == Results ===========================================================================================================


def table(docs, name):
    path = os.path.join(docs, name)
    if not os.path.exists(path):
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


class Results:
    def __init__(self, docs):
        self.rows = [row for row in table(docs, "league.csv") if row["top1"]]
        self.top1 = {}  # (operator, epochs) -> {seed: percent}
        for line in table(docs, "study.csv"):
            if line["epoch"] == "30":
                name = line["row"].removeprefix("study-")
                self.top1.setdefault((name, 30), {})[line["seed"]] = float(line["top1"])
        for row in self.rows:
            self.top1.setdefault((row["operator"], int(row["epochs"])), {})[row["seed"]] = float(row["top1"])
        self.speed = {(row["operator"], int(row["tokens"])): row for row in table(docs, "league-speed.csv")}
        self.paper = {(row["source"], row["table"], row["row"]): float(row["value"])
                      for row in table(docs, "paper_tables.csv") if row["metric"] == "top1"}

    def mean(self, operator, epochs):
        """Mean, standard error (None for one seed) and number of seeds; None without a row."""
        values = list(self.top1.get((operator, epochs), {}).values())
        if not values:
            return None
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        return statistics.mean(values), error, len(values)


def with_error(mean, error):
    return f"{mean:.2f}" + (f" ± {error:.2f}" if error is not None else "")


# == Tables ============================================================================================================


def speed_cells(results, operator):
    speeds = [results.speed.get((operator, n)) for n in TOKENS]
    return [f"{float(s['train_images_per_s']):.0f}" if s else "" for s in speeds] + \
        [f"{int(s['peak_bytes']) / 2**20:.0f}" if s else "" for s in speeds]


def operators_table(results, epochs):
    best = {name: results.mean(name, epochs) for name, e in results.top1 if e == epochs}
    about = {row["operator"]: row for row in results.rows if row["epochs"] == str(epochs)}
    lines = ["| operator | top-1, % | seeds | parameters | 10⁶ multiply-adds | " +
             " | ".join(f"images/s, {n}" for n in TOKENS) + " | " + " | ".join(f"MiB, {n}" for n in TOKENS) + " |",
             "|---|--:|--:|--:|--:|" + "--:|" * 6]
    for name, (mean, error, seeds) in sorted(best.items(), key=lambda item: (-item[1][0], item[0])):
        row = about.get(name, {})
        label = f"`{name}`" + (f" `{row['flags']}`" if row.get("flags") else "")
        cells = [label, with_error(mean, error), str(seeds), f"{int(row['parameters']):,}" if row else "",
                 row.get("million_macs", ""), *speed_cells(results, name)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def budget_table(results, epochs):
    rows = {name: results.mean(name, epochs) for name, e in results.top1 if e == epochs}
    lines = ["| operator | top-1, % | seeds |", "|---|--:|--:|"]
    lines += [f"| `{name}` | {with_error(mean, error)} | {seeds} |"
              for name, (mean, error, seeds) in sorted(rows.items(), key=lambda item: -item[1][0])]
    return lines if rows else ["No row yet."]


# == Claims ============================================================================================================


class Claim:
    """Claims that the sum of factor times top-1 over terms is above margin: a lead if margin is 0, or with a negative
    margin at most that distance behind.  `paper`: the rows of paper_tables.csv whose figures are quoted, in the order
    of the terms."""

    def __init__(self, text, terms, paper=None, margin=0.0):
        self.text, self.terms, self.paper, self.margin = text, terms, paper, margin

    def papers_figures(self, results):
        if not self.paper:
            return ""
        figures = [results.paper[row] for row in self.paper]
        if len(figures) == 2:
            return f"{figures[0]:.2f} and {figures[1]:.2f}"
        return f"{figures[0] - figures[1]:+.2f} and {figures[2] - figures[3]:+.2f}"

    def answer(self, results):
        """(verdict, measured figures)"""
        for epochs in BUDGETS:
            rows = [results.mean(operator, epochs) for _, operator in self.terms]
            if all(row and row[2] > 1 for row in rows):
                difference = sum(factor * row[0] for (factor, _), row in zip(self.terms, rows))
                error = math.sqrt(sum((factor * row[1]) ** 2 for (factor, _), row in zip(self.terms, rows)))
                means = " and ".join(with_error(*row[:2]) for row in rows)
                figures = f"{means}: {difference:+.2f} ± {error:.2f}, {epochs} epochs"
                if difference - self.margin > error:
                    return "seen", figures
                if difference - self.margin < -error:
                    return "not seen", figures
                return "undecided", figures + ", level"
        told = []
        for operator in dict.fromkeys(operator for _, operator in self.terms):
            some = [(epochs, results.mean(operator, epochs)) for epochs in BUDGETS if results.mean(operator, epochs)]
            told += [f"`{operator}` {some[0][1][0]:.2f} ({some[0][1][2]} seed{'s' * (some[0][1][2] > 1)}, {some[0][0]} epochs)"
                     if some else f"`{operator}` none"]
        return "undecided", "too few rows: " + ", ".join(told)


def leads(text, first, second, paper=None):
    return Claim(text, ((1, first), (-1, second)), paper)


def near(text, first, second, paper, margin=1.0):
    return Claim(text, ((1, first), (-1, second)), paper, -margin)


def wider(text, names, paper):
    a, b, c, d = names
    return Claim(text, ((1, a), (-1, b), (-1, c), (1, d)), paper)


def ripple2(*names, positions=False):
    return [("ripple", "2 cifar100" + ("" if positions else " no-ape"), name) for name in names]


def ripple4(*names):
    return [("ripple", "4 cifar100 rippling", name) for name in names]


def lisa3(*names):
    return [("lisa", "3a operators imagenet1k 150ep", name) for name in names]


def flatten(*names):
    return [("flatten", "imagenet1k", name) for name in names]


CLAIMS = [
    ("Ripple attention, Table 2 (CIFAR-100, DeiT-tiny, 300 epochs)", [
        leads("Without positions, ripple is ahead of linear attention", "ripple", "linear", ripple2("ripple", "deit-la")),
        leads("Without positions, ripple is ahead of softmax attention", "ripple", "softmax", ripple2("ripple", "deit")),
        near("Without positions, ripple is at most a point behind ConViT", "ripple", "convit", ripple2("ripple", "convit")),
        leads("Without positions, ConViT is ahead of softmax attention", "convit", "softmax", ripple2("convit", "deit")),
        leads("With positions, ripple is ahead of linear attention", "ripple+positions", "linear+positions",
              ripple2("ripple", "deit-la", positions=True)),
        leads("With positions, ripple is ahead of softmax attention", "ripple+positions", "softmax+positions",
              ripple2("ripple", "deit", positions=True)),
        near("With positions, ripple is at most a point behind ConViT", "ripple+positions", "convit+positions",
             ripple2("ripple", "convit", positions=True)),
        wider("Ripple leads linear attention by more without positions than with them",
              ("ripple", "linear", "ripple+positions", "linear+positions"),
              ripple2("ripple", "deit-la") + ripple2("ripple", "deit-la", positions=True)),
    ]),
    ("Ripple attention, Table 4 (CIFAR-100; the paper's rows have positions, these have none)", [
        leads("Ripple with distances up to 4 is ahead of ripple with distances up to 2", "ripple", "ripple+r2",
              ripple4("ripple rmax=4", "ripple rmax=2")),
        leads("Ripple with distances up to 2 is ahead of linear attention", "ripple+r2", "linear", ripple4("ripple rmax=2", "deit-la")),
        near("Ripple with distances up to 8 is at most a point behind ripple with distances up to 4", "ripple+r8", "ripple", ripple4("ripple rmax=8", "ripple rmax=4")),
        leads("Ripple with fixed weights is ahead of linear attention", "ripple-fixed", "linear",
              ripple4("ripple-fixed", "deit-la")),
        leads("Ripple with stick breaking is ahead of ripple with fixed weights", "ripple", "ripple-fixed",
              ripple4("ripple rmax=4", "ripple-fixed")),
        leads("Ripple with stick breaking is ahead of ripple with softmax weights", "ripple", "ripple-softmax-weights",
              ripple4("ripple rmax=4", "ripple-softmax-weights")),
        leads("Truncated ripple is ahead of linear attention", "ripple-truncated", "linear",
              ripple4("ripple-truncated", "deit-la")),
        leads("Ripple is ahead of truncated ripple, which sees nothing far away", "ripple", "ripple-truncated",
              ripple4("ripple rmax=4", "ripple-truncated")),
        leads("Logarithmic ripple is ahead of linear attention", "ripple-log", "linear", ripple4("ripple-log", "deit-la")),
        leads("Ripple is ahead of logarithmic ripple", "ripple", "ripple-log", ripple4("ripple rmax=4", "ripple-log")),
    ]),
    ("LiSA, Table 3(a) (ImageNet, 150 epochs; the paper's rows have positions, these have none)", [
        leads("LiSA is ahead of softmax attention", "lisa", "softmax", lisa3("lisa", "softmax")),
        leads("LiSA is ahead of softmax attention with relative positions", "lisa", "softmax+rpe", lisa3("lisa", "softmax+rpe")),
        leads("LiSA is ahead of depthwise convolutions", "lisa", "dwconv7", lisa3("lisa", "dwconv7")),
        leads("LiSA is ahead of global filters", "lisa", "gf", lisa3("lisa", "gf")),
        leads("LiSA is ahead of lambda layers", "lisa", "lambda", lisa3("lisa", "lambda")),
        leads("LiSA is ahead of convolutional attention", "lisa", "convattn", lisa3("lisa", "convattn")),
        leads("LiSA is ahead of the inception mixer", "lisa", "inception", lisa3("lisa", "inception wider")),
        leads("LiSA is ahead of relational self-attention", "lisa", "rsa", lisa3("lisa", "rsa")),
        leads("Relative positions help softmax attention", "softmax+rpe", "softmax", lisa3("softmax+rpe", "softmax")),
        leads("Softmax attention is ahead of depthwise convolutions", "softmax", "dwconv7", lisa3("softmax", "dwconv7")),
        leads("Softmax attention is ahead of global filters", "softmax", "gf", lisa3("softmax", "gf")),
        leads("Convolutional attention is ahead of softmax attention", "convattn", "softmax", lisa3("convattn", "softmax")),
    ]),
    ("FLatten (ImageNet, 300 epochs)", [
        leads("Focused linear attention is ahead of softmax attention", "focused", "softmax",
              flatten("flatten_deit_tiny", "deit_tiny")),
        leads("With keys of a coarser grid, as in PVT, focused is ahead of softmax attention", "focused-reduced", "reduced", flatten("flatten_pvt_tiny", "pvt_tiny")),
        leads("In cross-shaped windows, focused is ahead of softmax attention", "cswin-focused", "cswin", flatten("flatten_cswin_t", "cswin_t")),
        leads("Focused linear attention is ahead of efficient attention", "focused", "efficient"),
        leads("Focused linear attention is ahead of Hydra attention", "focused", "hydra"),
        leads("Focused linear attention is ahead of linear angular attention (Castling)", "focused", "castling"),
        leads("Focused linear attention is ahead of ReLU attention (EfficientViT)", "focused", "relu-linear"),
    ]),
]


def claims_tables(results):
    lines, counts = [], {"seen": 0, "not seen": 0, "undecided": 0}
    for title, claims in CLAIMS:
        lines += ["", f"### {title}", "", "| claim | paper | here | |", "|---|--:|---|---|"]
        for claim in claims:
            verdict, figures = claim.answer(results)
            counts[verdict] += 1
            lines.append(f"| {claim.text} | {claim.papers_figures(results)} | {figures} | **{verdict}** |")
    return [f"{sum(counts.values())} claims: {counts['seen']} seen, {counts['not seen']} not seen, {counts['undecided']} undecided at this "
            "size or for want of rows."] + lines


# == Page ==============================================================================================================

TOP = """# A league: attention operators trained under one recipe

Operators in one small model on CIFAR-100: 8 x 8 tokens of width 48, six blocks with three heads, no positions
(`configs/cpu/study.ini`), random crops and flips, batches of 128, float32, one thread. Only `--attn` and its settings
differ; runs of more than ten epochs warm up for a tenth of them, those of ten for half an epoch. Rows of `ripple` and its
variants have that operator in the first four of the six blocks (`ripple_layers = 4`, as in the paper's model, whose last
blocks have no ripple attention) and linear attention in the other two, or softmax where the operator is
`ripple-explicit-softmax`. `python3 scripts/league.py` writes this page from [league.csv](../league.csv), in which every run is a line with
its flags, seed, figures, processor, commit, seconds and date, and from the speeds in league-speed.csv.

    sh scripts/league.sh start             # goes on with the rows that are missing, until sh scripts/league.sh stop
    sh scripts/bench/league_speed.sh       # adds the speeds that are missing, on a machine that does nothing else
    python3 scripts/league.py              # writes this page and its picture

**What is compared.** Top-1 is the mean over seeds with its standard error. Two rows are level if they differ by less
than the standard error of their difference, which treats the seeds of two rows as independent (paired by
seed, as in [studies.md](../notebook/studies.md), the error of ripple's lead over linear attention is 0.52). A claim that one operator
leads is *seen* if the lead is more than that, *not seen* if the other leads by more, and *undecided* if they are level or
if one of them has fewer than two seeds. If the rows of a claim exist for several numbers of epochs, the largest number that
all of them have is compared. Ten epochs of a small model are weak evidence
about three hundred of a large one: a claim that is not seen here may well be true at the paper's size.

**Why the last epoch, and no validation images.** Runs train on all 50,000 training images, and the figure of a run is
the accuracy on the 10,000 test images after its last epoch, even if it was higher before. No epoch, learning rate,
augmentation or seed is chosen by it, and the recipe is that of a study from before the league, so the test images
influence no choice and are as valid as held-out images. To tune settings for an operator, hold images out first
(`val_fraction`)."""


def page(results):
    lines = [TOP, "", "## All operators, ten epochs", ""]
    if results.speed:
        devices = sorted({f"{row['device']}, {row['date']}" for row in results.speed.values()})
        lines += ["![Top-1 after ten epochs against images per second in training](../images/league.svg)", ""]
        memory = "Images per second of training and peak memory of the process at 64, 196 and 784 tokens, batches of 8 (" + \
            "; ".join(devices) + ")."
    else:
        memory = "Speeds and memory at 64, 196 and 784 tokens are not measured yet."
    lines += [memory, "", *operators_table(results, 10), "", "## Thirty epochs, where papers claim something", "",
              "Linear and ripple attention are those of [studies.md](../notebook/studies.md), the same model and recipe.", "",
              *budget_table(results, 30), "", "## Two hundred epochs", "", *budget_table(results, 200), "",
              "## The papers' claims", "", *claims_tables(results)]
    return "\n".join(lines) + "\n"


def picture(results):
    points = []
    for (name, epochs), _ in sorted(results.top1.items()):
        speed = results.speed.get((name, 64))
        if epochs == 10 and speed:
            mean, error, _ = results.mean(name, 10)
            points.append((name, float(speed["train_images_per_s"]), mean, error or 0))
    return league_picture.draw(points) if points else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a file would change")
    parser.add_argument("--docs", default=DOCS, metavar="FOLDER", help="where all these files are (default docs)")
    arguments = parser.parse_args()
    results = Results(arguments.docs)
    for name, text in (("reference/league.md", page(results)), (os.path.join("images", "league.svg"), picture(results))):
        path = os.path.join(arguments.docs, name)
        if text is None:
            continue
        if not arguments.check:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path + ".part", "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(path + ".part", path)
            continue
        old = None
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                old = file.read()
        if old != text:
            sys.exit(f"league.py: {path}: not what the results give: run python3 scripts/league.py")


if __name__ == "__main__":
    main()
