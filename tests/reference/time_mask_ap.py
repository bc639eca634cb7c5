"""Times pycocotools and detection/coco_eval.c on the same masks, in one run, and compares their twelve numbers.

    make build/cpu/tests/bench_mask_ap
    python3 tests/reference/time_mask_ap.py [PICTURES]          5000        (pip install pycocotools)

Neither time has the reading of files in it; both have the polygons of the ground truth made into masks."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build", "cpu", "tests", "bench_mask_ap")


def ours(pictures, folder, threads):
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    output = subprocess.run([BENCH, str(pictures), folder], check=True, capture_output=True, text=True, env=environment)
    numbers, line = output.stdout.splitlines()
    print(f"vit.c, {threads} threads: {line}")
    return [float(word) for word in numbers.split()], float(line.split("together ")[1].split()[0])


def theirs(folder):
    with open(os.path.join(folder, "truth.json")) as file:
        dataset = json.load(file)
    with open(os.path.join(folder, "results.json")) as file:
        results = json.load(file)
    for result in results:
        del result["bbox"]  # else a detection's area would be its box's
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = dataset
        truth.createIndex()
        start = time.monotonic()
        evaluation = COCOeval(truth, truth.loadRes(results), "segm")
        evaluation.evaluate()
        evaluation.accumulate()
        took = time.monotonic() - start
        evaluation.summarize()
    print(f"pycocotools: {took:.2f} s")
    return [float(number) for number in evaluation.stats], took


def main():
    pictures = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    with tempfile.TemporaryDirectory() as folder:
        one, alone = ours(pictures, folder, 1)
        two, together = ours(pictures, folder, 2)
        want, took = theirs(folder)
        again, once_more = ours(pictures, folder, 1)
    difference = max(abs(a - b) for a, b in zip(one, want, strict=True))
    print(f"largest difference {difference:.3g}; {took / max(alone, once_more):.1f} times as fast with one thread, "
          f"{took / together:.1f} with two")
    return 0 if difference <= 1e-12 and one == two == again else 1


if __name__ == "__main__":
    sys.exit(main())
