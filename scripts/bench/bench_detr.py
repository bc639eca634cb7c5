"""Compares the speed of train_detr with the published SMCA-DETR code on the CPU, and that of train_detr's three
encoders with each other.  Measurements alternate, and results are ratios.

    python3 scripts/bench/bench_detr.py CHECKOUT [--size 800x1066] [--threads 2] [--rounds 1] [--runs 3] [--compile]

CHECKOUT is a copy of gaopengcuhk/SMCA-DETR.  One image, ResNet-50, 300 queries, seven boxes.  Training is
forward, loss with matching, backward, clipping and AdamW, dropout on; inference is the forward pass.  The fastest step
counts on both sides.  Needs PyTorch 2, torchvision and SciPy, build/cpu/train_detr and, for --compile, a C++
compiler."""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "tests", "reference"))
parser = argparse.ArgumentParser()
parser.add_argument("checkout")
parser.add_argument("--size", default="800x1066")
parser.add_argument("--threads", default="2")
parser.add_argument("--rounds", type=int, default=1)
parser.add_argument("--runs", type=int, default=3)
parser.add_argument("--compile", action="store_true")
args = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = args.threads
warnings.filterwarnings("ignore")

import torch

import official_smca

torch.set_num_threads(int(args.threads))
HEIGHT, WIDTH = map(int, args.size.split("x"))
TARGETS, CONFIGS = 7, ("smca", "smca-la", "smca-ripple")


def best_of(step):
    best = 1e9
    for run in range(args.runs + 1):
        start = time.perf_counter()
        step()
        if run:
            best = min(best, time.perf_counter() - start)
    return best


def official_times(compiled, channels_last):
    """Seconds of a training step and of inference."""
    torch.manual_seed(0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model, criterion = official_smca.load(args.checkout)
    model.to(memory_format=layout)
    if compiled:
        model.compile()
    groups = [{"params": [x for name, x in model.named_parameters()
                          if x.requires_grad and ("backbone" in name) == below],
               "lr": rate} for below, rate in ((False, 1e-4), (True, 1e-5))]
    optimizer = torch.optim.AdamW(groups, weight_decay=1e-4)
    image = torch.randn(1, 3, HEIGHT, WIDTH).contiguous(memory_format=layout)
    targets = official_smca.targets_of([(HEIGHT, WIDTH)], [TARGETS], 0.2 + 0.4 * torch.rand(TARGETS, 4),
                                       torch.arange(1, TARGETS + 1))

    def train():
        loss = official_smca.total_loss(criterion, official_smca.predict(model, image, targets), targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()

    def infer():
        with torch.no_grad():
            official_smca.predict(model, image, targets)

    model.train()
    seconds = best_of(train)
    model.eval()
    return seconds, best_of(infer)


def our_times(config):
    out = subprocess.run([os.path.join(ROOT, "build", "cpu", "train_detr"), "--config",
                          os.path.join(ROOT, "configs", "coco", config + ".ini"), "--backbone-weights", "",
                          "--batch-size", "1", "--image-size", args.size, "--bench", "--bench-seconds", str(args.runs)],
                         capture_output=True, text=True, check=True).stdout
    speed = json.loads(out.strip().splitlines()[-1])
    return speed["train_fastest_s"], speed["infer_fastest_s"]


def main():
    variants = {"official, eager": (False, False), "official, channels last": (False, True)}
    if args.compile:
        variants["official, compiled"] = (True, False)
    best = {}
    for _ in range(args.rounds):
        for name in [*CONFIGS, *variants]:
            times = our_times(name) if name in CONFIGS else official_times(*variants[name])
            best[name] = [min(a, b) for a, b in zip(best.get(name, (1e9, 1e9)), times)]
            print(f"{name}: training {times[0]:.3f} s, inference {times[1]:.3f} s", flush=True)
    print(f"PyTorch {torch.__version__}, {args.size}, {args.threads} threads, fastest of all rounds, "
          "times that of smca:")
    for name, (train, infer) in best.items():
        print(f"  {name:24s} training {train:7.3f} s ({train / best['smca'][0]:.2f})   "
              f"inference {infer:7.3f} s ({infer / best['smca'][1]:.2f})")
    print(f"  smca-ripple / smca-la: training {best['smca-ripple'][0] / best['smca-la'][0]:.3f}, "
          f"inference {best['smca-ripple'][1] / best['smca-la'][1]:.3f}")


if __name__ == "__main__":
    main()
