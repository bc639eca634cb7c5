"""Writes tests/fixtures/detection/set_loss_<case>.safetensors: DETR's set loss with SMCA's constants in float64
PyTorch, written from its definition: one query, one target at a time.

    python3 tests/reference/make_set_loss_fixtures.py

Tensors: logits [L,B,Q,C], boxes [L,B,Q,4], target_boxes [T,4], labels [T], first [B+1]; expected: loss [5] (total;
focal, l1, giou and share of wrong classes in the last layer), query [L,T], dlogits, dboxes.  Metadata: box_count."""

import os
import sys

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

import safetensors_io

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "detection")


def corners(box):
    cx, cy, w, h = box.unbind(-1)
    return torch.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], -1)


def giou(a, b):
    """Of two boxes by centre.  Boxes that just touch have the derivative of boxes that overlap: so does clamp in
    PyTorch 1.13, with which the published models were trained; in 2.15 it has none at its limit."""
    a, b = corners(a), corners(b)
    side = torch.minimum(a[2:], b[2:]) - torch.maximum(a[:2], b[:2])
    side = torch.where(side < 0, torch.zeros_like(side), side)
    inter = side[0] * side[1]
    union = (a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - inter
    hull = (torch.maximum(a[2:], b[2:]) - torch.minimum(a[:2], b[:2])).prod()
    return inter / union - (hull - union) / hull


def assignment(logits, boxes, target_boxes, labels):
    """The query of each target, -1 for none."""
    cost = np.zeros((len(logits), len(labels)))
    p = torch.sigmoid(logits)
    for i in range(len(logits)):
        for j, label in enumerate(labels):
            q = p[i, label].item()
            focal = 0.25 * (1 - q)**2 * -np.log(q + 1e-8) - 0.75 * q**2 * -np.log(1 - q + 1e-8)
            l1 = (boxes[i] - target_boxes[j]).abs().sum().item()
            cost[i, j] = 2 * focal + 5 * l1 - 2 * giou(boxes[i], target_boxes[j]).item()
    query = np.full(len(labels), -1)
    rows, columns = linear_sum_assignment(cost)
    query[columns] = rows
    return query


def set_loss(logits, boxes, target_boxes, labels, first, box_count):
    layers, images = logits.shape[:2]
    total, last, queries, wrong, matched = 0, None, [], 0, 0
    for layer in range(layers):
        focal = l1 = overlap = torch.zeros((), dtype=torch.float64)
        of_layer = []
        for b in range(images):
            some = slice(first[b], first[b + 1])
            x, box = logits[layer, b], boxes[layer, b]
            query = assignment(x.detach(), box.detach(), target_boxes[some], labels[some])
            of_layer += query.tolist()
            y = torch.zeros_like(x)
            for j, i in enumerate(query):
                if i < 0:
                    continue
                label = labels[some][j]
                y[i, label] = 1
                l1 = l1 + (box[i] - target_boxes[some][j]).abs().sum()
                overlap = overlap + 1 - giou(box[i], target_boxes[some][j])
                if layer == layers - 1:
                    matched += 1
                    wrong += int(x[i].argmax() != label)
            log_p, log_rest = torch.nn.functional.logsigmoid(x), torch.nn.functional.logsigmoid(-x)
            p = torch.sigmoid(x)
            focal = focal + (y * -0.25 * (1 - p)**2 * log_p + (1 - y) * -0.75 * p**2 * log_rest).sum()
        queries.append(of_layer)
        last = [focal / box_count, l1 / box_count, overlap / box_count]
        total = total + 2 * last[0] + 5 * last[1] + 2 * last[2]
    return total, last, wrong / max(matched, 1), queries


def write(case, logits, boxes, target_boxes, labels, first, box_count):
    """Inputs are rounded to float32 before anything is computed from them."""
    tensors = {"logits": logits, "boxes": boxes, "target_boxes": target_boxes}
    tensors = {name: np.asarray(value, dtype=np.float32) for name, value in tensors.items()}
    x, box, target = (torch.tensor(value, dtype=torch.float64) for value in tensors.values())
    x.requires_grad_()
    box.requires_grad_()
    total, last, wrong, queries = set_loss(x, box, target, labels, first, box_count)
    total.backward()
    tensors |= {"labels": np.asarray(labels, dtype=np.int32), "first": np.asarray(first, dtype=np.int32),
                "query": np.asarray(queries, dtype=np.int32), "dlogits": x.grad.numpy(), "dboxes": box.grad.numpy(),
                "loss": np.array([total.item(), *(part.item() for part in last), wrong])}
    os.makedirs(OUT, exist_ok=True)
    safetensors_io.write(os.path.join(OUT, f"set_loss_{case}.safetensors"), tensors, {"box_count": repr(box_count)})
    print(f"{case}: total {total.item():.6f}, wrong {wrong:.2f}")


def drawn(rng, layers, queries, columns, counts, spread):
    images, targets = len(counts), sum(counts)
    first = np.concatenate([[0], np.cumsum(counts)])
    logits = rng.normal(-1, spread, (layers, images, queries, columns))
    boxes = rng.uniform(0.05, 0.6, (layers, images, queries, 4))
    boxes[..., :2] = rng.uniform(0.2, 0.8, boxes[..., :2].shape)
    target = rng.uniform(0.05, 0.6, (targets, 4))
    return logits, boxes, target, rng.integers(0, columns, targets), first


def main():
    rng = np.random.default_rng(1)
    write("plain", *drawn(rng, 2, 20, 12, (4, 0, 7), 1.5), 5.5)
    write("crowded", *drawn(rng, 3, 5, 4, (9, 1), 2), 10.0)  # more targets than queries
    logits, boxes, target, labels, first = drawn(rng, 1, 10, 5, (3, 4), 1)
    write("extreme", logits * 40, boxes, target, labels, first, 7.0)  # saturated on both sides
    # Corners that coincide, boxes that touch, are equal, lie apart: binary fractions, exact in every precision.  One
    # query each, so that the assignment is no question.
    cases = [([.5, .5, .25, .25], [.5, .5, .25, .25]), ([.5, .5, .25, .25], [.75, .5, .25, .25]),
             ([.25, .25, .25, .25], [.25, .625, .125, .5]), ([.5, .5, .5, .5], [.5, .5, .25, .125]),
             ([.25, .25, .125, .125], [.75, .75, .25, .25]), ([.375, .5, .25, .5], [.5, .5, .5, .5])]
    logits = rng.normal(0, 1, (1, len(cases), 1, 2))
    write("corners", logits, [[[box] for box, _ in cases]], [target for _, target in cases], np.zeros(len(cases), int),
          np.arange(len(cases) + 1), 2.0)


if __name__ == "__main__":
    main()
