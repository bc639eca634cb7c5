"""Softmax attention (Vaswani et al. 2017), with a relative position bias on request, and sparse attention in both
directions (Child et al. 2019, "Generating Long Sequences with Sparse Transformers")."""

import torch
import torch.nn.functional as F

from .. import grids
from ..layers import Projected, Weight, attend, join_heads


class Softmax(Projected):
    """softmax(q k^T / sqrt(D) + b) v.  b is by place of the key less that of the query; zero for a class token."""

    def __init__(self, config, block=0):
        super().__init__(config)
        if config.rpe != "none":
            tables = config.heads if config.rpe == "heads" else 1
            self.rpe = Weight(tables, *(2 * side - 1 for side in config.grid))
            self.register_buffer("offsets", grids.toeplitz(config.grid)[0].T.contiguous(), persistent=False)

    def mix(self, q, k, v):
        bias = None
        if self.config.rpe != "none":
            front = self.config.front
            bias = F.pad(self.rpe.weight.flatten(1)[:, self.offsets], (front, 0, front, 0))  # [1 or H,N,N]
        return join_heads(attend(q, k, v, bias, self.config.attn_dropout if self.training else 0))


class Sparse(Projected):
    """Softmax attention of which each block, or head, has one of two sets of pairs, or their union."""

    def __init__(self, config, block=0):
        super().__init__(config)
        first, second = sparse_sets(config)
        H = config.heads
        of_head = {"alternate": [(first, second)[(config.first_block + block) % 2]], "union": [first | second],
                   "split": [first] * ((H + 1) // 2) + [second] * (H // 2)}[config.sparse_heads]
        self.register_buffer("seen", torch.stack(of_head), persistent=False)  # [1 or H,N,N]

    def mix(self, q, k, v):
        return join_heads(attend(q, k, v, self.seen))


def sparse_sets(config):
    """The two sets of pairs (query, key): two masks [N,N]."""
    N = grids.token_count(config.grid)
    stride = config.sparse_stride or config.grid[-1]
    i, j = torch.arange(N)[:, None], torch.arange(N)[None, :]
    if config.attn == "sparse-strided":
        return (i - j).abs() <= stride, (i - j) % stride == 0
    return i // stride == j // stride, (j % stride >= stride - config.sparse_c).expand(N, N)
