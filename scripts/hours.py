"""Estimates the training time and memory of the tables' rows from counts; for tables.py --hours.

    hours  = epochs x samples x 6 x multiply-adds / (share x peak) / 3600

A multiply-add is two operations, and a training step has three times those of a forward pass, four times with recompute.

    memory = 16 bytes a parameter (20 with an average of the weights) + activations of the samples processed at once

The bytes are those of the value, its gradient, AdamW's two moments and the average; activations are those in the plan
of --describe.  Epochs and the data set are those of the config, and samples those of the published data set.

    peak and share on two cores: 224 GFLOP/s of oneDNN's square product with floats, of which DeiT-tiny's training step
        reaches 0.66 to 0.79, here 0.72 (docs/notebook/against-pytorch.md, "An AMD EPYC (Zen 4)"); operators below that in its table
        of every operator take longer in proportion, LiSA about 1.5 times as long
    peak and share on an H100: 989 TFLOP/s of dense bfloat16, of which 0.3 is assumed: this program has not run on a GPU yet
    samples at once: on two cores as many as the program takes by itself, with floats; on an H100 64, or the whole batch if
        that is smaller, in bfloat16 (half the bytes); where these do not fit, micro_batch makes them fewer
"""

import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CPU, H100 = 0.72 * 224e9, 0.3 * 989e12  # operations a second
AT_ONCE = 64
# Training samples of an epoch by the setting `data`: images, clips, or for train_ar's texts bytes.
SAMPLES = {"imagenet": 1281167, "datasets/imagenet21k": 14197122, "cifar10": 50000, "cifar100": 50000,
           "datasets/pets": 3680, "datasets/flowers": 1020, "datasets/coco": 118287, "datasets/ADEChallengeData2016": 20210, "datasets/kinetics400": 246535,
           "datasets/ssv2": 168913, "enwik8": 90000000}
HELD_OUT = 2000  # of train_ar's images


def settings_of(path, arguments=()):
    """A config's settings with those that it includes, and the command line's on top; sections do not matter."""
    settings = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            name, equals, value = line.partition("#")[0].partition("=")
            if not equals:
                continue
            if name.strip() == "include":
                settings = {**settings_of(os.path.join(os.path.dirname(path), value.strip())), **settings}
            else:
                settings[name.strip()] = value.strip()
    for name, value in zip(arguments[::2], arguments[1::2]):
        settings[name.lstrip("-").replace("-", "_")] = value
    return settings


def samples_of(settings, program):
    """Samples of an epoch, or None if the data set's size is not known."""
    count = SAMPLES.get(settings.get("data"))
    if count and program == "train_ar":
        count = count // int(settings["tokens"]) if settings["data"] == "enwik8" else count - HELD_OUT
    return count and count * int(settings.get("samples_per_clip", 1))


def class_count(program):
    """The setting for the number of classes if --describe cannot derive it from the data set."""
    counts = {"train_detr": 91, "train_mask_rcnn": 80, "train_semantic_fpn": 150}
    return ["--num-classes", str(counts[program])] if program in counts else []


def describe(row, program, path):
    """Numbers of --describe, and of the samples whose activations it plans; {} if the config or the program is missing,
    or if the program refuses, whose reason is passed on."""
    if not (os.path.exists(path) and os.access(program, os.X_OK)):
        return {}
    command = [program, "--config", path, *row.arguments, *class_count(row.program), "--describe"]
    result = subprocess.run(command, text=True, capture_output=True)
    if result.returncode:
        sys.stderr.write(result.stderr)
        return {}
    found = {name: int(value) for name, value in re.findall(r"^(\w+): (\d+)$", result.stdout, re.M)}
    at_once = re.search(r"^memory for (\d+) \w+ at a time", result.stdout, re.M)
    found["at_once"] = int(at_once.group(1)) if at_once else 1
    return found if "macs" in found else {}


def estimate(row, programs):
    """{'epochs', 'samples', 'cpu_hours', 'gpu_hours', 'cpu_bytes', 'gpu_bytes'} of a row, or {} if nothing is known."""
    path = os.path.join(ROOT, "configs", row.config + ".ini")
    settings = settings_of(path, row.arguments)
    found, samples = describe(row, programs[row.program], path), samples_of(settings, row.program)
    if "steps" in settings and samples:
        settings["epochs"] = -(-int(settings["steps"]) * int(settings["batch_size"]) // samples)
    if not found or "epochs" not in settings:
        return {}
    passes = 4 if settings.get("recompute") == "true" else 3
    state = found["params"] * (20 if float(settings.get("ema_decay", 0)) else 16)
    sample = found["activation_bytes"] / found["at_once"]
    known = {"epochs": int(settings["epochs"]), "samples": samples, "cpu_bytes": state + found["activation_bytes"],
             "gpu_bytes": state + min(AT_ONCE, int(settings.get("batch_size", AT_ONCE))) * sample / 2}
    if samples:
        work = known["epochs"] * samples * 2 * passes * found["macs"]
        known.update(cpu_hours=work / CPU / 3600, gpu_hours=work / H100 / 3600)
    return known


def number(value, scale=1.0, decimals=1):
    return "–" if value is None else f"{value / scale:,.{decimals}f}"


def print_tables(tables, programs):
    print("Estimates from counts, not measurements; scripts/hours.py has the formulas and what is assumed.\n")
    for name, (title, _, rows) in tables.items():
        known = [(row, estimate(row, programs)) for row in rows]
        if not any(facts for _, facts in known):
            continue
        print(f"## {title}  (`--table {name}`)\n\n| model | epochs | samples | hours, two cores, float32 | hours, one H100, "
              "bfloat16 | GiB, two cores | GiB, H100 |\n|---|--:|--:|--:|--:|--:|--:|")
        for row, facts in known:
            print(f"| {row.paper} | {facts.get('epochs', '–')} | {number(facts.get('samples'), 1, 0)} | "
                  f"{number(facts.get('cpu_hours'))} | {number(facts.get('gpu_hours'))} | "
                  f"{number(facts.get('cpu_bytes'), 2**30)} | {number(facts.get('gpu_bytes'), 2**30)} |")
        print()
