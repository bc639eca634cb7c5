"""Writes tests/fixtures/detection/matching.txt: what scipy's linear_sum_assignment pays for matrices that
tests/detection/test_matching.c forms by the same arithmetic.

    python3 tests/reference/make_matching_fixtures.py"""

import os
import sys

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

import numpy as np
from scipy.optimize import linear_sum_assignment

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "detection", "matching.txt")

SIZES = [(100, 300), (63, 300), (7, 300), (300, 300), (1, 300), (301, 65), (128, 64), (64, 129), (500, 100)]


def hashed(seed, i, j):
    """24 random bits of (seed, i, j), in 32-bit arithmetic that wraps."""
    x = (np.uint32(seed) * np.uint32(0x9E3779B9)) ^ (i * np.uint32(0x85EBCA6B)) ^ (j * np.uint32(0xC2B2AE35))
    for _ in range(2):
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
        x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return (x >> np.uint32(8)).astype(np.float64)


def costs(kind, seed, rows, columns):
    i, j = np.meshgrid(np.arange(rows, dtype=np.uint32), np.arange(columns, dtype=np.uint32), indexing="ij")
    unit = hashed(seed, i, j) / 2**24
    if kind == "uniform":
        return unit * 10 - 5
    if kind == "whole":  # many ties
        return np.floor(unit * 8)
    if kind == "columns":  # all rows want the same columns: long paths
        return hashed(seed + 1, j * 0, j) / 2**20 + unit / 64
    return (i + 1.0) * (j + 1.0)  # product: every row is rearranged


def main():
    np.seterr(over="ignore")
    os.makedirs(os.path.dirname(OUT), exist_ok=True)
    with open(OUT, "w") as file:
        for seed, (rows, columns) in enumerate(SIZES, 1):
            for kind in ("uniform", "whole", "columns", "product"):
                matrix = costs(kind, seed, rows, columns).astype(np.float32).astype(np.float64)
                pairs = linear_sum_assignment(matrix)
                file.write(f"{kind} {seed} {rows} {columns} {float(matrix[pairs].sum())!r}\n")


if __name__ == "__main__":
    main()
