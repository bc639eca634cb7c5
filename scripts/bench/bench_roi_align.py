"""Compares the speed of RoIAlign in build/cpu/tests/bench_roi_align and in torchvision, on the same boxes.  Measurements
alternate, and results are ratios.

    python3 scripts/bench/bench_roi_align.py [--threads 2] [--size 7] [--channels 256] [--rois 1000] [--rounds 3]

torchvision.ops.roi_align(aligned=True, sampling_ratio=0) is called once for each of four maps with that map's boxes, on
maps in its own layout, [1,C,H,W]; its backward pass makes new gradients, that of vit.c adds to existing ones.  Needs
torchvision."""

import argparse
import math
import os
import re
import subprocess
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--threads", default="2")
parser.add_argument("--size", type=int, default=7)
parser.add_argument("--channels", type=int, default=256)
parser.add_argument("--rois", type=int, default=1000)
parser.add_argument("--rounds", type=int, default=3)
args = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = args.threads

import torch
import torchvision

torch.set_num_threads(int(args.threads))
HEIGHT, WIDTH = 800, 1344
BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build", "cpu", "tests", "bench_roi_align")


def draw_boxes():
    """The boxes of each level, drawn as tests/bench/bench_roi_align.c does."""
    state, levels = 1, [[], [], [], []]

    def drawn():
        nonlocal state
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        return state / 2147483648

    for _ in range(args.rois):
        w, h = 16 * 40**drawn(), 16 * 40**drawn()
        x, y = WIDTH * drawn(), HEIGHT * drawn()
        box = [max(x - w / 2, 0), max(y - h / 2, 0), min(x + w / 2, WIDTH), min(y + h / 2, HEIGHT)]
        level = math.floor(4 + math.log2(math.sqrt((box[2] - box[0]) * (box[3] - box[1])) / 224) + 1e-6)
        levels[min(max(level, 2), 5) - 2].append(box)
    return [torch.tensor(boxes).reshape(-1, 4) for boxes in levels]


def best_of(call, least=1.0):
    call()
    best, spent, calls = 1e9, 0, 0
    while spent < least or calls < 2:
        began = time.perf_counter()
        call()
        took = time.perf_counter() - began
        best, spent, calls = min(best, took), spent + took, calls + 1
    return best


def torch_times(boxes):
    maps = [torch.rand(1, args.channels, HEIGHT >> l, WIDTH >> l, requires_grad=True) for l in (2, 3, 4, 5)]

    def forward():
        return [torchvision.ops.roi_align(m, [b], args.size, 0.25 / (1 << l), sampling_ratio=0, aligned=True)
                for l, (m, b) in enumerate(zip(maps, boxes))]

    results = forward()
    slopes = [torch.rand_like(r) for r in results]
    with torch.no_grad():
        alone = best_of(forward)
    return alone, best_of(lambda: torch.autograd.grad(results, maps, slopes, retain_graph=True))


def our_times():
    out = subprocess.run([BENCH, str(args.size), str(args.channels), str(args.rois)], capture_output=True, text=True,
                         check=True).stdout
    print("  " + out.strip().replace("\n", "\n  "))
    return tuple(map(float, re.search(r"forward ([\d.]+) s, backward ([\d.]+) s", out).groups()))


def main():
    boxes = draw_boxes()
    print(f"torchvision {torchvision.__version__}, {args.threads} threads, {[len(b) for b in boxes]} RoIs of each level, "
          f"best of {args.rounds} rounds")
    ours, theirs = [1e9, 1e9], [1e9, 1e9]
    for _ in range(args.rounds):
        ours = [min(a, b) for a, b in zip(ours, our_times())]
        theirs = [min(a, b) for a, b in zip(theirs, torch_times(boxes))]
    for name, a, b in zip(("forward", "backward", "both"), (*ours, sum(ours)), (*theirs, sum(theirs))):
        print(f"{name}: vit.c {a:.4f} s, torchvision {b:.4f} s, {b / a:.1f} times vit.c's")


if __name__ == "__main__":
    if not os.path.exists(BENCH):
        sys.exit("bench_roi_align.py: make build/cpu/tests/bench_roi_align first")
    main()
