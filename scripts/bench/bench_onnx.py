#!/usr/bin/env python3
"""Size, error and speed of models as ONNX, as a Markdown table: a model of every attention operator with 64 tokens, or
the models of config files.

    python3 scripts/bench/bench_onnx.py build/cpu/train_vit [CONFIG.ini ...]

Without config files: 4 blocks of width 192 with 6 heads on 32 x 32 images in patches of 4 x 4, with train_vit's
defaults.  The weights are the initial ones, on which speed does not depend.  The caption has the machine, the versions,
the date and the command.  A line has the size of the file, the largest difference of ONNX Runtime's logits from the
module's over their root mean square, and the milliseconds that ONNX Runtime, the PyTorch module and the program (--bench)
need for one image with one thread and with two.  The three are measured one after the other, REPEATS times; a line has
the smallest time of each, because other programs on the machine can only lengthen it."""

import argparse
import datetime
import json
import os
import re
import shlex
import subprocess
import sys
import time

REPEATS, SECONDS = 3, 0.2
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary", help="build/cpu/train_vit")
    parser.add_argument("configs", nargs="*", metavar="CONFIG.ini", help="(default: every operator with 64 tokens)")
    parser.add_argument("--attn", help="only these operators, as in softmax,lisa")
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import onnxruntime
import torch

sys.path[:0] = [os.path.join(ROOT, "python"), os.path.join(ROOT, "tests", "reference")]
import vitc
from compare_parity import relative_error
from vit_reference import read_ini
from vitc import config as settings
from vitc import export

OWN = dict(img_size="32", patch_size="4", dim="192", depth="4", heads="6", pool="gap")
# Operators that do not work with a plain model's defaults.
MORE = {"reduced": dict(reduction="2"), "focused-reduced": dict(reduction="2"), "convattn": dict(kv_stride="2")}
ALONE = {"conv", "sepconv"}  # blocks of a hierarchy's first stages


def shortest(call):
    """The seconds of the shortest call within SECONDS seconds."""
    call()
    best, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        begun = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begun)
    return best


def bench(binary, words, threads):
    """What --bench reports."""
    command = [*shlex.split(binary), *words, "--batch-size", "1", "--bench", "--bench-seconds", str(SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    if done.returncode:
        sys.exit(f"{shlex.join(command)}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def session(graph, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def measure(binary, words, chosen):
    """The program's device, and [megabytes, error, milliseconds of ONNX Runtime with 1 and 2 threads, PyTorch and the
    program]."""
    torch.manual_seed(1)
    model = vitc.Vit(settings.read(vitc.Config, chosen)).eval()
    graph = export.as_onnx(model).SerializeToString()
    image = export.example(model, 1)
    sessions = {threads: session(graph, threads) for threads in (1, 2)}
    feed = {"images": image.numpy()}
    with torch.no_grad():
        error = relative_error(sessions[1].run(None, feed)[0], model(image).numpy())
    best = {}
    for _ in range(REPEATS):
        for threads in (1, 2):
            torch.set_num_threads(threads)
            own = bench(binary, words, threads)
            with torch.no_grad():
                times = (shortest(lambda: sessions[threads].run(None, feed)), shortest(lambda: model(image)),
                         own["infer_batch_seconds"])
            for name, seconds in zip(("onnx", "torch", "vit"), times):
                best[name, threads] = min(best.get((name, threads), float("inf")), seconds)
    times = (f"{1e3 * best[name, threads]:.2f}" for name in ("onnx", "torch", "vit") for threads in (1, 2))
    return own["device"], [f"{len(graph) / 1e6:.2f}", f"{error:.1e}", *times]


def caption(device):
    with open("/proc/cpuinfo") as file:
        cpu = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "CPU")
    return (f"{cpu}, {os.cpu_count()} cores; vit.c: {re.sub('[0-9]+ threads?, ', '', device)}; ONNX Runtime "
            f"{onnxruntime.__version__}, PyTorch {torch.__version__}; {datetime.date.today().isoformat()}; "
            f"`python3 {shlex.join(sys.argv)}`. Milliseconds for one image, with one thread / with two:\n\n"
            "| model | attention | MB | error | " + " | ".join(
                f"{name} {threads}" for name in ("ONNX Runtime", "PyTorch", "vit.c") for threads in "12") + " |\n"
            "|---|---" + "|--:" * 8 + "|")


def main():
    for wrong in [path for path in ARGUMENTS.configs if not os.path.isfile(path)]:
        sys.exit(f"{wrong}: no such file")
    chosen = ARGUMENTS.attn.split(",") if ARGUMENTS.attn else [name for name in vitc.OPERATORS if name not in ALONE]
    for wrong in set(chosen) - {*vitc.OPERATORS}:
        sys.exit(f"--attn: no operator '{wrong}' (one of {', '.join(vitc.OPERATORS)})")
    if ARGUMENTS.configs:
        cases = [(os.path.basename(path).removesuffix(".ini"), ["--config", path], read_ini(path))
                 for path in ARGUMENTS.configs]
    else:
        cases = [("plain", None, {"attn": attn, **OWN, **MORE.get(attn, {})}) for attn in chosen]
    for i, (name, words, strings) in enumerate(cases):
        words = words or ["--data", "cifar10", *(word for setting, text in strings.items()
                                                 for word in ("--" + setting.replace("_", "-"), text))]
        device, figures = measure(ARGUMENTS.binary, words, strings)
        if i == 0:
            print(caption(device))
        print("| " + " | ".join([name, strings.get("attn", "softmax"), *figures]) + " |", flush=True)


if __name__ == "__main__":
    main()
