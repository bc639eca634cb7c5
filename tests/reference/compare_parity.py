"""Compares the output of `train_vit --parity IN --out OUT`, or train_detr's, with a fixture: logits, boxes, loss and
every gradient.

    python3 tests/reference/compare_parity.py tests/fixtures/ripple.safetensors OUT [--tolerance 1e-5] [--whole]

Prints for each tensor the worst |got - want| relative to the root mean square of `want`, and the worst of them last;
the exit status is 0 only if every tensor is there, has its shape and stays within the tolerance.  With --whole, for
bfloat16 activations, the measure is ||got - want|| / ||want||, and the gradients count together, as one vector.
"""

import argparse
import sys


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("fixture")
    parser.add_argument("output")
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("--whole", action="store_true", help="norms, and all gradients as one")
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import numpy as np

import safetensors_io


def relative_error(got, want):
    """max |got - want| / rms(want); NaN where `got` has NaN.  Where all of `want` is zero, only zero is right."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    rms = np.sqrt(np.mean(want ** 2))
    if rms == 0:
        return float("nan") if got.any() else 0.0
    return np.abs(got - want).max() / rms


def compare(got, want, tolerance, measure=relative_error, vanishing=()):
    """Both {name: array}, of which logits, boxes, loss and grad.* count.  Prints a line a tensor; returns how many
    fail.  Gradients that only rounding keeps from zero, `vanishing`, are held to the root mean square of all
    gradients."""
    every = np.concatenate([x.ravel() for name, x in want.items() if name.startswith("grad.")] or [np.zeros(1)])
    compared = {name for name in [*got, *want] if name in ("logits", "boxes", "loss") or name.startswith("grad.")}
    failures, worst = 0, (0.0, "")
    for name in sorted(compared, key=lambda name: (name.startswith("grad."), name)):
        if name not in got or name not in want:
            verdict = "MISSING" if name not in got else "UNEXPECTED"
        elif name != "loss" and got[name].shape != want[name].shape:
            verdict = f"SHAPE {list(got[name].shape)}, expected {list(want[name].shape)}"
        else:
            error = measure(got[name].reshape(want[name].shape), want[name])
            if name in vanishing:
                error = np.abs(got[name]).max() / np.sqrt(np.mean(every.astype(np.float64) ** 2))
            verdict = "ok" if error <= tolerance else "FAILED"
            verdict = f"{error:.2e} of rms, {error / tolerance:.2f} of allowed  {verdict}"
            worst = max(worst, (error, name)) if error == error else (error, name)
        print(f"  {name:44s} {verdict}")
        failures += not verdict.endswith("ok")
    print(f"  worst: {worst[0]:.2e} {worst[1]}")
    return failures


def norm_error(got, want):
    """||got - want|| / ||want||: with 1000 classes and 2 labels a gradient's largest entry is 20 times its root mean
    square, so the worst entry would measure the labels."""
    want = np.asarray(want, np.float64)
    return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)


def compare_whole(got, want, tolerance):
    gradients = sorted(name for name in want if name.startswith("grad."))
    missing = [name for name in [*gradients, "logits", "loss"] if name not in got or got[name].size != want[name].size]
    if missing:
        print(f"  missing, or of another size: {', '.join(missing)}")
        return len(missing)
    for name in gradients:
        print(f"  {name:44s} {norm_error(got[name], want[name]):.2e} of its norm")
    joined = [np.concatenate([x[name].ravel() for name in gradients]) for x in (got, want)]
    errors = {"logits": norm_error(got["logits"], want["logits"]), "all gradients": norm_error(*joined),
              "loss": norm_error(got["loss"].ravel(), want["loss"].ravel())}
    print("  worst: " + ", ".join(f"{name} {error:.2e}" for name, error in errors.items()))
    return sum(not error <= tolerance for error in errors.values())


def main():
    arguments = ARGUMENTS
    want, metadata = safetensors_io.read(arguments.fixture)
    got, _ = safetensors_io.read(arguments.output)
    if arguments.whole:
        failures = compare_whole(got, want, arguments.tolerance)
    else:
        failures = compare(got, want, arguments.tolerance, vanishing=metadata.get("vanishing", "").split())
    print(f"{arguments.fixture}: {f'{failures} tensors FAILED' if failures else 'ok'}")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
