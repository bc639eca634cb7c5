#!/usr/bin/env python3
"""Fills tables of the pages, each from one file of measurements or from what the programs print.

    python3 scripts/shared_tables.py            rewrites the pages
    python3 scripts/shared_tables.py --check    writes nothing; exit status 1 if a page would change

A page marks the place with the lines <!-- table: NAME --> and <!-- end of NAME -->; the text between them is replaced.
Measurements are read from docs/*.csv, ideas and papers of operators from `train_vit --help` (TRAIN_VIT names the program,
default build/cpu/train_vit), sizes of density models from `--describe` of the train_ar in the same folder, hours from
scripts/tables.py.  Needs only Python and the programs.
"""

import argparse
import csv
import glob
import os
import re
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def rows(name):
    with open(os.path.join(ROOT, "docs", name), newline="") as file:
        return list(csv.DictReader(file))


def speed(commands=False):
    """Images per second of DeiT-tiny against PyTorch: for each model the measurement with the smallest lead."""
    lines = ["| attention | precision | vit.c | PyTorch | ratio | machine |" + " command |" * commands,
             "|---|---|--:|--:|--:|---|" + "---|" * commands]
    for row in rows("speed.csv"):
        line = "| {model} | {precision} | {vitc} | {pytorch} | {ratio} | {machine} |".format(**row)
        lines.append(line + f" `{row['command']}` |" * commands)
    return lines


# The growth of an operator's work with the number of tokens N.  R: rings; L: landmarks; w: side of a window or width of
# a stripe; r: reduction.
GROWTH = {
    "softmax": "N²", "linear": "N", "ripple": "N R", "ripple-fixed": "N R", "ripple-softmax-weights": "N R",
    "ripple-truncated": "N R", "ripple-log": "N log N", "ripple-dense": "N √N", "ripple-explicit-softmax": "N²",
    "convit": "N²", "focused": "N", "sparse-strided": "N √N", "sparse-fixed": "N √N", "efficient": "N", "hydra": "N",
    "relu-linear": "N", "castling": "N", "nystrom": "N L²", "soft": "N L²", "lisa": "N log N", "sa9": "N²",
    "sa9-heads": "N²", "sa10": "N²", "sa11": "N²", "gf": "N log N", "dwconv7": "N", "convattn": "N²", "lambda": "N²",
    "inception": "N²", "rsa": "N²", "conv": "N", "sepconv": "N", "swin": "N w²", "reduced": "N² / r²",
    "cswin": "N √N w", "cswin-focused": "N", "focused-reduced": "N",
}


def printed(name, *words):
    """What the program of that name prints."""
    folder = os.path.dirname(os.environ.get("TRAIN_VIT", "build/cpu/train_vit"))
    return subprocess.run([os.path.join(folder, name), *words], check=True, capture_output=True, text=True).stdout


def operators():
    """One row an operator: idea, growth, parameters, speed relative to softmax attention's, accuracy in the league, paper."""
    listed = re.search(r"(?m)^Attention operators.*\n((?:  .*\n)+)", printed("train_vit", "--help"))[1]
    league, speeds = {}, {}
    for row in rows("league.csv"):
        if row["top1"] and row["epochs"] == "10":
            league.setdefault(row["operator"], []).append(row)
    if os.path.exists("docs/league-speed.csv"):
        speeds = {(row["operator"], row["tokens"]): float(row["train_images_per_s"]) for row in rows("league-speed.csv")}
    lines = ["| `--attn` | idea | work | parameters | 64 | 196 | 784 | top-1, % | paper |", "|---|---|---|--:|--:|--:|--:|--:|---|"]
    for line in listed.splitlines():
        name, idea = line.split(None, 1)
        trained = league.get(name, [])
        values = [float(row["top1"]) for row in trained]
        top1 = f"{statistics.mean(values):.1f}" if values else ""
        if len(values) > 1:
            top1 += f" ± {statistics.stdev(values) / len(values) ** 0.5:.1f}"
        ratios = [f"{speeds[name, n] / speeds['softmax', n]:.2f}" if (name, n) in speeds and ("softmax", n) in speeds else ""
                  for n in ("64", "196", "784")]
        links = ", ".join(f"[{paper}](https://arxiv.org/abs/{paper})" for paper in
                          re.findall(r"arXiv:([0-9.]+[0-9])", printed("train_vit", "--help", name)))
        parameters = f"{int(trained[0]['parameters']):,}" if trained else ""
        lines.append(f"| `{name}` | {idea} | {GROWTH[name]} | {parameters} | {' | '.join(ratios)} | {top1} | {links} |")
    return lines


DENSITY_MODELS = {"cifar10": "", "cifar10-fixed": "", "cifar10-dense": "", "enwik8": "", "enwik8-strided": "",
                  "enwik8-dense": "", "imagenet64": "", "music": " (65,536 samples)", "cifar100": ", two cores",
                  "text": ", two cores"}


def density_models():
    """Parameters, multiply-adds and memory of the configs of train_ar."""
    lines = ["| config | parameters | 10^9 multiply-adds, forward | and backward | activations, MiB | weights and optimizer, MiB "
             "| cache, MiB |", "|---|--:|--:|--:|--:|--:|--:|"]
    for name, remark in DENSITY_MODELS.items():
        text = printed("train_ar", "--config", f"configs/ar/{name}.ini", "--batch-size", "1", "--describe")
        parameters, forward, training, kept, scratch, weights, cache = (
            float(re.search(words + r" ([\d.]+)", text)[1]) for words in (
                "params:", "\nmacs:", "training_macs:", "kept", "scratch", "moments(?: and average)?:", "while sampling:"))
        lines.append(f"| `{name}`{remark} | {parameters:,.0f} | {forward / 1e9:,.1f} | {training / 1e9:,.1f} "
                     f"| {kept + scratch:,.0f} | {weights:,.0f} | {cache:,.0f} |")
    return lines


REPRODUCED = ("compact-100", "ripple-2", "ripple-1", "lisa-3a", "lisa-5", "hosts", "sparse-1", "lisa-8")


def hours():
    """Estimated hours of training for some of the papers' tables: their cheapest and their most expensive row."""
    lines = ["| `--table` | what | rows | hours for a row, two CPU cores | hours for a row, one H100 |", "|---|---|--:|--:|--:|"]
    for name in REPRODUCED:
        command = [sys.executable, "scripts/tables.py", "--hours", "--table", name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        title = re.search(r"(?m)^## (.*?)  \(`", text)[1]
        costs = [[cell.strip().replace(",", "") for cell in line.split("|")[4:6]] for line in text.splitlines()
                 if re.match(r"\| .* \| [0-9]", line)]
        span = [f"{min(values):,.0f} to {max(values):,.0f}" if column == 0 else f"{min(values):,.1f} to {max(values):,.1f}"
                for column in (0, 1) for values in [[float(row[column]) for row in costs if row[column] != "–"]]]
        lines.append(f"| {name} | {title} | {len(costs)} | {span[0]} | {span[1]} |")
    return lines


def study(first="linear", second="ripple", epochs=(6, 10, 15, 20, 25, 30)):
    """Top-1 of two rows of the study for each seed, the lead of the second, and its mean after the last epoch."""
    top1 = {(row["row"], row["seed"], int(row["epoch"])): float(row["top1"]) for row in rows("study.csv") if row["top1"]}
    seeds = sorted({seed for row, seed, _ in top1 if row == f"study-{second}"})
    values = {name: [[top1[f"study-{name}", seed, epoch] for seed in seeds] for epoch in epochs] for name in (first, second)}
    leads = [[b - a for a, b in zip(*pair)] for pair in zip(values[first], values[second])]
    lines = ["| epoch | " + " | ".join(map(str, epochs)) + " |", "|---|" + "--:|" * len(epochs)]
    for label, cells, form in [(f"{first}, %", values[first], "{:.2f}"), (f"{second}, %", values[second], "{:.2f}"),
                               ("lead, points", leads, "{:+.2f}")]:
        lines.append(f"| {label} | " + " | ".join(", ".join(map(form.format, cell)) for cell in cells) + " |")
    error = statistics.stdev(leads[-1]) / len(seeds) ** 0.5
    means = [statistics.mean(cells[-1]) for cells in (values[first], values[second], leads)]
    return lines + ["", f"After {epochs[-1]} epochs {first} attention reaches {means[0]:.2f} % and {second} attention {means[1]:.2f} %, a lead of "
                    f"{means[2]:.2f} ± {error:.2f}", f"points (mean and standard error of {len(seeds)} seeds)."]


TABLES = {"density models": density_models, "hours": hours, "operators": operators, "study": study, "speed": speed, "speed with commands": lambda: speed(commands=True)}


def filled(text, path):
    def table(found):
        if found[2] not in TABLES:
            sys.exit(f"shared_tables.py: {path}: no table is called '{found[2]}': expected {', '.join(TABLES)}")
        return found[1] + "\n".join(TABLES[found[2]]()) + "\n\n" + found[3]

    return re.sub(r"(<!-- table: (.*?) -->\n\n)(?:.*?\n\n)?(<!-- end of \2 -->)", table, text, flags=re.DOTALL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a page would change")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    for path in ["README.md", *sorted(glob.glob("docs/**/*.md", recursive=True))]:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        new = filled(text, path)
        if new == text:
            continue
        if arguments.check:
            sys.exit(f"shared_tables.py: {path}: not what docs/*.csv and the programs say: run python3 scripts/shared_tables.py")
        with open(path + ".part", "w", encoding="utf-8") as file:
            file.write(new)
        os.replace(path + ".part", path)


if __name__ == "__main__":
    main()
