"""Compares the output of `train_vit --parity IN --out OUT` with a fixture: logits, loss and every gradient.

    python3 tests/reference/compare_parity.py tests/fixtures/ripple.safetensors OUT [--tolerance 1e-5]

Prints for each tensor the worst |got - want| relative to the root mean square of `want`; the exit status is 0 only if
every tensor is there, has its shape and stays within the tolerance.
"""

import argparse
import sys

import numpy as np

import safetensors_io


def relative_error(got, want):
    """max |got - want| / rms(want); NaN where `got` has NaN.  Where all of `want` is zero, only zero is right."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    rms = np.sqrt(np.mean(want ** 2))
    if rms == 0:
        return float("nan") if got.any() else 0.0
    return np.abs(got - want).max() / rms


def compare(got, want, tolerance, measure=relative_error):
    """Both {name: array}, of which logits, loss and grad.* count.  Prints a line a tensor; returns how many fail."""
    compared = {name for name in [*got, *want] if name in ("logits", "loss") or name.startswith("grad.")}
    failures = 0
    for name in sorted(compared, key=lambda name: (name.startswith("grad."), name)):
        if name not in got or name not in want:
            verdict = "MISSING" if name not in got else "UNEXPECTED"
        elif name != "loss" and got[name].shape != want[name].shape:
            verdict = f"SHAPE {list(got[name].shape)}, expected {list(want[name].shape)}"
        else:
            error = measure(got[name].reshape(want[name].shape), want[name])
            verdict = "ok" if error <= tolerance else "FAILED"
            verdict = f"{error:.2e} of rms, {error / tolerance:.2f} of allowed  {verdict}"
        print(f"  {name:44s} {verdict}")
        failures += not verdict.endswith("ok")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("fixture")
    parser.add_argument("output")
    parser.add_argument("--tolerance", type=float, default=1e-5)
    arguments = parser.parse_args()
    want, _ = safetensors_io.read(arguments.fixture)
    got, _ = safetensors_io.read(arguments.output)
    failures = compare(got, want, arguments.tolerance)
    print(f"{arguments.fixture}: {f'{failures} tensors FAILED' if failures else 'ok'}")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
