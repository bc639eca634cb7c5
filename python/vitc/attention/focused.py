"""Focused linear attention (Han et al. 2023, FLatten Transformer)."""

import torch.nn.functional as F
from torch import nn

from .. import grids
from ..layers import Depthwise, Projected, join_heads, split_heads, zeros


class Focus(nn.Module):
    """x [...,M] -> the direction of ((relu x + 1e-6) / softplus(scale))^p, with the length that it had before."""

    def __init__(self, power):
        super().__init__()
        self.relu, self.power = nn.ReLU(), power

    def forward(self, x, scale):
        x = (self.relu(x) + 1e-6) / F.softplus(scale)
        power = x ** self.power
        return power / power.norm(dim=-1, keepdim=True) * x.norm(dim=-1, keepdim=True)


def focused_attention(a, b, v):
    """a (b^T v / L) / (a . mean(b) + 1e-6), heads apart: a [...,N,D], b and v [...,L,D]."""
    return a @ (b.transpose(-1, -2) @ v / b.shape[-2]) / (a @ b.mean(-2)[..., None] + 1e-6)


class Focused(Projected):
    """Linear attention of focused q and k, and a depthwise convolution of v whose filters all heads share."""

    def __init__(self, config, block=0):
        super().__init__(config)
        M, D = config.dim, config.dim // config.heads
        self.positional_encoding, self.scale = zeros(1, grids.token_count(config.grid), M), zeros(1, 1, M)
        self.dwc, self.focus = Depthwise(D, config.grid, config.kernel(5)), Focus(config.focused_p)

    def mix(self, q, k, v):
        a = split_heads(self.focus(join_heads(q), self.scale), self.heads)
        b = split_heads(self.focus(join_heads(k) + self.positional_encoding, self.scale), self.heads)
        local = self.dwc(v.flatten(0, 1)).unflatten(0, v.shape[:2])
        return join_heads(focused_attention(a, b, v) + local)
