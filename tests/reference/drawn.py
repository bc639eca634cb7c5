"""Fixtures whose inputs are drawn until they suit float32.  Which draw is the first that does depends on the order in
which a version of PyTorch sums, so that its seed is searched for once; tests/reference/seeds.csv keeps it."""

import os

import safetensors_io
from compare_parity import relative_error

FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "seeds.csv")
# What another order of sums changes, of outputs in float64 and of those that a file has in float32.
ROUNDING = {"float64": 1e-12, "float32": 1e-6}


def seeds():
    with open(FILE) as file:
        return {fixture: int(seed) for fixture, seed in (line.split(",") for line in file.readlines()[1:])}


def seed_of(fixture):
    """None for a new fixture, such as smca/ripple; one whose line is taken out of the file is drawn anew."""
    return seeds().get(fixture)


def differing(path, tensors, inputs, vanishing=()):
    """The names of the tensors that a file does not have, has besides, or has with other values.  inputs: names of
    those that must be the same to the bit; vanishing: of those that only rounding keeps from zero."""
    there = safetensors_io.read(path)[0]
    wrong = set(there) ^ set(tensors)
    for name in set(there) & set(tensors) - set(vanishing):
        old, new = there[name], tensors[name]
        allowed = 0 if name in inputs else ROUNDING.get(str(old.dtype), 0)
        if old.dtype != new.dtype or old.shape != new.shape or not relative_error(old, new) <= allowed:
            wrong.add(name)
    return sorted(wrong)


def keep(fixture, seed):
    known = seeds()
    if known.get(fixture) != seed:
        with open(FILE, "w") as file:
            file.write("fixture,seed\n")
            file.writelines(f"{name},{n}\n" for name, n in sorted({**known, fixture: seed}.items()))


def write(path, inputs, outputs, metadata, vanishing=()):
    """A file that differs by rounding alone stays as it is.  Returns what was done."""
    if os.path.exists(path) and not differing(path, {**inputs, **outputs}, inputs, vanishing):
        return "as it was"
    safetensors_io.write(path, {**inputs, **outputs}, metadata)
    return "written"
