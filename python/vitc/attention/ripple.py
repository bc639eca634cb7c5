"""Ripple attention (Zheng et al. 2022, Ripple Attention) and its ablations: linear attention whose weights are scaled by a
spatial weight for each query and group of keys, the group being a range of distances on the grid."""

import math

import torch
from torch import nn

from .. import grids
from ..layers import Denominator, Projected, attend, join_heads, linear, normal
from .features import MAPS


def group_bounds(config):
    """Group r holds the tokens at distance bounds[r] <= distance < bounds[r+1]; the last has no upper bound."""
    *frames, rows, columns = (side - 1 for side in config.grid)
    farthest = max(*(config.ring_time * last for last in frames), rows, columns)
    if config.attn == "ripple-log":
        return [0] + [1 << i for i in range(farthest.bit_length())]
    return list(range((farthest if config.attn == "ripple-dense" else config.r_max) + 1))


def grid_groups(grid, bounds, ring_time=1):
    """g(n,m), the group of token m seen from token n, by Chebyshev distance; frames are ring_time apart.  [N,N]"""
    apart = [d.abs() for d in grids.differences(grid)]
    if len(grid) == 3:
        apart[0] = apart[0] * ring_time
    distance = torch.stack(apart).amax(0)
    return sum((distance >= bound).long() for bound in bounds[1:]) + torch.zeros_like(distance)


def stick_breaking(o, tau):
    """o [...,R] -> alpha [...,R+1]: s_r = 1 / (1 + (R - r) exp(-o_r)), alpha_r = s_r prod_{r'<r} (1 - s_r'),
    alpha_R = prod (1 - s).  From the first r^ with 1 - sum_{r<=r^} alpha_r < tau on, the groups r^..R share
    1 - sum_{r<r^} alpha_r equally; r^ is a constant of the backward pass."""
    R = o.shape[-1]
    alpha, left = [], torch.ones_like(o[..., 0])
    for r in range(R):
        s = 1 / (1 + (R - r) * torch.exp(-o[..., r]))
        alpha.append(left * s)
        left = left * (1 - s)
    alpha = torch.stack(alpha + [left], dim=-1)
    if tau == 0:
        return alpha
    tail = 1 - alpha[..., :R].cumsum(-1)  # 1 - sum_{r'<=r} alpha_r'
    first = (tail >= tau).sum(-1, keepdim=True)  # r^; R when only the last group is below tau
    before = torch.cat([torch.ones_like(tail[..., :1]), tail], dim=-1)  # 1 - sum_{r'<r} alpha_r'
    share = before.gather(-1, first) / (R - first + 1)
    return torch.where(torch.arange(R + 1, device=o.device) >= first, share, alpha)


class StickBreaking(nn.Module):
    def __init__(self, tau):
        super().__init__()
        self.tau = tau

    def forward(self, o):
        return stick_breaking(o, self.tau)


class SpatialWeights(nn.Module):
    """alpha [B,H,N,G] from v [B,H,N,D]: o_r = sticks_r . (P v), broken like a stick."""

    def __init__(self, config, groups):
        super().__init__()
        self.kind, D = config.attn, config.dim // config.heads
        if self.kind == "ripple-fixed":
            fixed = torch.tensor([2.0 ** -(r + 1) for r in range(groups - 1)] + [2.0 ** -(groups - 1)])
            self.register_buffer("fixed", fixed, persistent=False)
            return
        sticks = groups - (self.kind != "ripple-softmax-weights")
        if sticks == 0:  # of the single group on a grid of one token
            self.register_buffer("fixed", torch.ones(1), persistent=False)
            return
        self.proj = linear(D, D)
        self.sticks = normal(config.heads, sticks, D)
        self.broken = StickBreaking(config.tau)

    def forward(self, v):
        if hasattr(self, "fixed"):
            return self.fixed.to(v.dtype).expand(*v.shape[:3], -1)
        o = self.proj(v) @ self.sticks.transpose(-1, -2)
        if self.kind == "ripple-softmax-weights":
            return o.softmax(-1)
        alpha = self.broken(o)
        if self.kind == "ripple-truncated":
            alpha = torch.cat([alpha[..., :-1], torch.zeros_like(alpha[..., -1:])], dim=-1)
        return alpha


class Ripple(Projected):
    """y = sum_m alpha_g(n,m) phi(q_n).phi(k_m) v_m over the same without v.  Written with all N x N weights, which is
    faster in PyTorch than group by group or by summed-area tables."""

    def __init__(self, config, block=0):
        super().__init__(config)
        bounds = group_bounds(config)
        if config.attn != "ripple-explicit-softmax":
            self.feature = MAPS[config.feature_map](config.heads, config.dim // config.heads)
        self.ripple, self.denominator = SpatialWeights(config, len(bounds)), Denominator()
        self.register_buffer("groups", grid_groups(config.grid, bounds, config.ring_time), persistent=False)

    def mix(self, q, k, v):
        alpha = self.ripple(v)
        weights = self.feature(q, False) @ self.feature(k, True).transpose(-1, -2)
        weights = weights * alpha.gather(-1, self.groups.expand(*weights.shape))
        return join_heads(weights @ v / self.denominator(weights.sum(-1, keepdim=True)))


class ExplicitSoftmax(Ripple):
    """Softmax attention within each group, weighed by alpha.  A group in which a query has no tokens adds nothing."""

    def mix(self, q, k, v):
        alpha, y = self.ripple(v), torch.zeros_like(v)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        for r in range(alpha.shape[-1]):
            inside = self.groups == r
            share = scores.masked_fill(~inside, -math.inf).softmax(-1).masked_fill(~inside, 0)
            y = y + alpha[..., r:r + 1] * share @ v
        return join_heads(y)
