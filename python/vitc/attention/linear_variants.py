"""Linear attention without feature maps to choose from: each has its own."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from ..layers import Depthwise, Projected, Weight, join_heads, split_heads


def unit(x):
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6)


class Efficient(Projected):
    """softmax_d(q) (softmax_n(k)^T v) (Shen et al. 2021, "Efficient Attention")."""

    def mix(self, q, k, v):
        return join_heads(q.softmax(-1) @ (k.softmax(-2).transpose(-1, -2) @ v))


class Hydra(Projected):
    """As many heads as channels, with the cosine as kernel (Bolya et al. 2022, Hydra Attention)."""

    def mix(self, q, k, v):
        q, k, v = join_heads(q), join_heads(k), join_heads(v)
        return unit(q) * (unit(k) * v).sum(-2, keepdim=True)


class Aggregation(nn.Sequential):
    """A 5x5 depthwise convolution, and a 1x1 one within every head of q, k and v."""

    def __init__(self, config):
        M, D = config.dim, config.dim // config.heads
        super().__init__(Depthwise(3 * M, config.grid, config.kernel(5), bias=False), Weight(3 * M, D, 1, 1))
        bound = D ** -0.5
        nn.init.uniform_(self[1].weight, -bound, bound)
        self.groups = 3 * config.heads

    def forward(self, qkv):
        wide = self[0](qkv).transpose(1, 2)
        return F.conv1d(wide, self[1].weight.squeeze(-1), groups=self.groups).transpose(1, 2)


class ReluLinear(Projected):
    """relu(q) (relu(k)^T v) / (relu(q) . sum relu(k) + 1e-6), of q, k, v and of what their neighbourhoods add up to
    (Cai et al. 2023, EfficientViT)."""

    def __init__(self, config, block=0):
        super().__init__(config, channels=2 * config.dim)
        self.aggreg, self.relu = nn.Sequential(Aggregation(config)), nn.ReLU()

    def mix(self, q, k, v):
        qkv = torch.cat([join_heads(x) for x in (q, k, v)], dim=-1)
        outputs = []
        for scale in (qkv, self.aggreg(qkv)):
            a, b, c = (split_heads(x, self.heads) for x in scale.chunk(3, dim=-1))
            a, b = self.relu(a), self.relu(b)
            y = a @ (b.transpose(-1, -2) @ c) / (a @ b.sum(-2)[..., None] + 1e-6)
            outputs.append(join_heads(y))
        return torch.cat(outputs, dim=-1)


class LogRatio(nn.Module):
    """log(weights / threshold), positive where a weight counts."""

    def forward(self, weights, threshold):
        return (weights / threshold).log()


class Castling(Projected):
    """Linear angular attention: 1/2 + cos(q, k) / pi is linear in k; and a depthwise convolution of v (You et al. 2023,
    Castling-ViT).  In training, with castling_mask, also softmax attention with the weights above it."""

    def __init__(self, config, block=0):
        super().__init__(config)
        self.dconv, self.over = Depthwise(config.dim, config.grid, config.kernel(3), bias=False), LogRatio()

    def mix(self, q, k, v):
        a, b = unit(q), unit(k)
        numerator = 0.5 * v.sum(-2, keepdim=True) + a @ (b.transpose(-1, -2) @ v) / math.pi
        y = numerator / (0.5 * v.shape[-2] + a @ b.sum(-2)[..., None] / math.pi)
        if self.training and self.config.castling_mask > 0:
            weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
            y = y + weights.masked_fill(self.over(weights, self.config.castling_mask) <= 0, 0) @ v
        return join_heads(y) + self.dconv(join_heads(v))
