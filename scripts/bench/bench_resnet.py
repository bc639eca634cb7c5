"""Compares the speed of ResNet-50 with frozen batch norms on one image, in build/cpu/tests/bench_resnet and PyTorch.
Measurements alternate, and results are ratios.

    python3 scripts/bench/bench_resnet.py [--size 800x1066] [--threads 1] [--runs 3] [--rounds 2] [--compile] [--cpu]

PyTorch runs in its fastest form: batch norms folded into weights and biases, channels last, and, with --compile,
torch.compile.  Training computes the gradients of layers 2 to 4 as the detector does.  --cpu measures processor time
instead of clock time, for one thread on a busy machine.  Needs PyTorch 2 and, for --compile, a C++ compiler."""

import argparse
import os
import re
import subprocess
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--size", default="800x1066")
parser.add_argument("--threads", default="1")
parser.add_argument("--runs", type=int, default=3)
parser.add_argument("--rounds", type=int, default=2)
parser.add_argument("--compile", action="store_true")
parser.add_argument("--cpu", action="store_true")
args = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = args.threads

import torch
import torch.nn.functional as F

torch.set_num_threads(int(args.threads))
HEIGHT, WIDTH = map(int, args.size.split("x"))
BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build", "cpu", "tests", "bench_resnet")
clock = time.process_time if args.cpu else time.perf_counter


class Conv(torch.nn.Module):
    """A convolution whose batch norm is constant: scale is folded into the weight also in training, as in vit.c; a
    frozen one has no gradient."""

    def __init__(self, inputs, outputs, k, stride, trained):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(outputs, inputs, k, k) * (2 / (outputs * k * k))**0.5, trained)
        self.register_buffer("scale", torch.ones(outputs, 1, 1, 1))
        self.register_buffer("shift", torch.zeros(outputs))
        self.stride, self.pad = stride, k // 2

    def forward(self, x):
        weight = self.weight if not self.weight.requires_grad else self.weight * self.scale
        return F.conv2d(x, weight, self.shift, self.stride, self.pad)


class Block(torch.nn.Module):
    def __init__(self, inputs, width, stride, first, trained):
        super().__init__()
        self.conv1 = Conv(inputs, width, 1, 1, trained)
        self.conv2 = Conv(width, width, 3, stride, trained)
        self.conv3 = Conv(width, 4 * width, 1, 1, trained)
        self.downsample = Conv(inputs, 4 * width, 1, stride, trained) if first else torch.nn.Identity()

    def forward(self, x):
        h = torch.relu_(self.conv2(torch.relu_(self.conv1(x))))
        return torch.relu_(self.conv3(h) + self.downsample(x))


def resnet50():
    layers, inputs = [Conv(3, 64, 7, 2, False), torch.nn.ReLU(True), torch.nn.MaxPool2d(3, 2, 1)], 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for block in range(count):
            width = 64 << stage
            layers.append(Block(inputs, width, 2 if stage and not block else 1, not block, stage > 0))
            inputs = 4 * width
    return torch.nn.Sequential(*layers)


def best_of(step):
    best = 1e9
    for run in range(args.runs + 1):
        start = clock()
        step()
        if run:
            best = min(best, clock() - start)
    return best


def torch_times(channels_last, compiled):
    torch.manual_seed(0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = resnet50().to(memory_format=layout)
    image = torch.randn(1, 3, HEIGHT, WIDTH).contiguous(memory_format=layout)
    run = torch.compile(model) if compiled else model

    def forward():
        with torch.inference_mode():
            run(image)

    def train():
        model.zero_grad()
        run(image).sum().backward()

    return best_of(forward), best_of(train)


def our_times():
    out = subprocess.run([BENCH, str(HEIGHT), str(WIDTH), str(args.runs)] + (["cpu"] if args.cpu else []),
                         capture_output=True, text=True, check=True).stdout
    forward, both = map(float, re.search(r"forward ([\d.]+) s.*backward ([\d.]+) s", out).groups())
    print("  " + out.strip().replace("\n", "; "))
    return forward, both


def main():
    variants = {"eager": (False, False), "eager, channels last": (True, False)}
    if args.compile:
        variants["compile, channels last"] = (True, True)
    print(f"PyTorch {torch.__version__}, {args.size}, {args.threads} threads, "
          f"{'processor time' if args.cpu else 'clock'}, best of {args.runs} in each of {args.rounds} rounds")
    ours, theirs = [1e9, 1e9], {name: [1e9, 1e9] for name in variants}
    for _ in range(args.rounds):
        ours = [min(a, b) for a, b in zip(ours, our_times())]
        for name, variant in variants.items():
            theirs[name] = [min(a, b) for a, b in zip(theirs[name], torch_times(*variant))]
    print(f"vit.c: forward {ours[0]:.3f} s, with backward {ours[1]:.3f} s")
    for name, times in theirs.items():
        print(f"PyTorch {name}: forward {times[0]:.3f} s ({times[0] / ours[0]:.2f} times vit.c's), "
              f"with backward {times[1]:.3f} s ({times[1] / ours[1]:.2f} times)")


if __name__ == "__main__":
    if not os.path.exists(BENCH):
        sys.exit("bench_resnet.py: make build/cpu/tests/bench_resnet first")
    main()
