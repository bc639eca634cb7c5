"""Sparse attention (Child et al. 2019), in both directions."""

import math

import torch

from rival_operators import join_heads, nothing

SETTINGS = {
    "sparse_heads": "alternate",  # alternate | union | split
    "sparse_stride": 0,           # 0: the grid's width
    "sparse_c": 2,
}


def sparse_sets(config):
    """The two sets of pairs (query, key) between which heads or blocks alternate.  Two masks [N,N]."""
    N = math.prod(config.grid)
    stride = config.sparse_stride or config.grid[-1]
    i, j = torch.arange(N)[:, None], torch.arange(N)[None, :]
    if config.attn == "sparse-strided":
        return (i - j).abs() <= stride, (i - j) % stride == 0
    return i // stride == j // stride, (j % stride >= stride - config.sparse_c).expand(N, N)


def sparse(model, p, q, k, v, block):
    first, second = sparse_sets(model.config)
    heads = q.shape[1]
    of_head = {"alternate": [(first, second)[block % 2]] * heads, "union": [first | second] * heads,
               "split": [first if h < (heads + 1) // 2 else second for h in range(heads)]}[model.config.sparse_heads]
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return join_heads(scores.masked_fill(~torch.stack(of_head), -math.inf).softmax(-1) @ v)


ODD = {"img_size": (10, 14), "dim": 15, "heads": 3}  # a grid of 5 x 7
OPERATORS = {"sparse-strided": (nothing, sparse), "sparse-fixed": (nothing, sparse)}
CASES = {
    "sparse-strided": dict(attn="sparse-strided", **ODD),
    "sparse-strided-union": dict(attn="sparse-strided", sparse_heads="union", sparse_stride=4, **ODD),
    "sparse-fixed": dict(attn="sparse-fixed", sparse_c=3, **ODD),
    "sparse-fixed-split": dict(attn="sparse-fixed", sparse_heads="split", sparse_stride=6, **ODD),
}
