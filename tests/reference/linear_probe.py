"""Test accuracy of logistic regression on raw pixels of the embedded data set, data/sets/shapes.c: how far a classifier
gets without looking at shapes.  It must stay below 40 %.

    python3 tests/reference/linear_probe.py [CC]      from the repository root; compiles data/sets/shapes.c
"""
import ctypes
import subprocess
import sys
import tempfile

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

import numpy as np


def shapes_library(compiler):
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/shapes.so"
        command = [compiler, "-std=gnu11", "-O2", "-D_GNU_SOURCE", "-shared", "-fPIC", "-I."]
        subprocess.run(command + ["data/sets/shapes.c", "core/die.c", "-o", path, "-lm"], check=True)
        return ctypes.CDLL(path)


def draw(library, split, count):
    pixels, labels = np.empty((count, 3072), np.uint8), np.empty(count, np.int32)
    for i in range(count):
        library.shapes_draw(ctypes.c_uint64(0), ctypes.c_uint32(split), ctypes.c_uint32(i),
                            ctypes.c_void_p(pixels[i].ctypes.data), ctypes.c_void_p(labels[i:].ctypes.data), None)
    return pixels.astype(np.float32) / 255, labels


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def main():
    classes = 10
    library = shapes_library(sys.argv[1] if len(sys.argv) > 1 else "cc")
    x, y = draw(library, 0, 20000)
    x_test, y_test = draw(library, 1, 2000)
    mean, std = x.mean(0), x.std(0)
    x, x_test = (x - mean) / std, (x_test - mean) / std
    target = np.eye(classes, dtype=np.float32)[y]
    best = 0
    for decay in (1e-2, 1e-1):
        random = np.random.default_rng(1)
        w, b = np.zeros((x.shape[1], classes), np.float32), np.zeros(classes, np.float32)
        speed = np.zeros_like(w)
        for epoch in range(12):
            for batch in np.array_split(random.permutation(len(x)), len(x) // 200):
                error = (softmax(x[batch] @ w + b) - target[batch]) / len(batch)
                speed = 0.9 * speed - 2e-3 * 0.7**epoch * (x[batch].T @ error + decay * w)
                w += speed
                b -= 2e-2 * 0.7**epoch * error.sum(0)
        train = ((x @ w + b).argmax(1) == y).mean()
        test = ((x_test @ w + b).argmax(1) == y_test).mean()
        best = max(best, test)
        print(f"weight decay {decay:g}: train {train:.4f} test {test:.4f}")
    print(f"linear probe: best test accuracy {100 * best:.1f} %, chance {100 / classes:.1f} %")
    sys.exit(1 if best >= 0.4 else 0)


main()
