"""Test accuracy of logistic regression on raw pixels: how far a classifier gets without looking at shapes.

    linear_probe.py TRAIN TEST [CLASSES]     records of 1 label byte + 32 x 32 x 3 bytes
"""
import sys

import numpy as np


def load(path):
    records = np.fromfile(path, np.uint8).reshape(-1, 1 + 3072)
    return records[:, 1:].astype(np.float32) / 255, records[:, 0].astype(np.int64)


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def main():
    x, y = load(sys.argv[1])
    x_test, y_test = load(sys.argv[2])
    classes = int(sys.argv[3]) if len(sys.argv) > 3 else 10
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


main()
