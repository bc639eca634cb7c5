"""Pieces that several operators are made of, with train_vit's initial values."""

import torch
import torch.nn.functional as F
from torch import nn

from . import grids


def normal(*shape):
    """Deviation 0.02, cut off at 2, as in timm."""
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(shape), std=0.02))


def xavier(*shape):
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(shape)))


def zeros(*shape):
    return nn.Parameter(torch.zeros(shape))


def ones(*shape):
    return nn.Parameter(torch.ones(shape))


def linear(inputs, outputs, bias=True):
    layer = nn.Linear(inputs, outputs, bias)
    nn.init.trunc_normal_(layer.weight, std=0.02)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class Drawn(nn.Module):
    """A module with buffers that are drawn anew in training."""


class Weight(nn.Module):
    """A table by itself, under the name of a layer's weight."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = normal(*shape)


class Depthwise(nn.Module):
    """A convolution of each channel of x [B,N,C] by itself, with zeros around the grid."""

    def __init__(self, channels, grid, kernel, bias=True, stride=1):
        super().__init__()
        self.grid, self.stride = grid, stride
        bound = torch.Size(kernel).numel() ** -0.5
        self.weight = nn.Parameter(torch.empty(channels, 1, *kernel).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound)) if bias else None

    def forward(self, x):
        return grids.depthwise(x, self.grid, self.weight, self.bias, self.stride)


def hidden_width(config):
    """The product is rounded to float32, as in the program, before it is cut to an integer."""
    return int(torch.tensor(config.mlp_ratio, dtype=torch.float32, device="cpu") * config.dim)


class Mlp(nn.Module):
    """fc2(gelu(fc1 x)), or fc2(gelu(depthwise3x3(fc1 x))), with a ReLU before the convolution on request."""

    def __init__(self, config):
        super().__init__()
        hidden = hidden_width(config)
        self.fc1, self.fc2 = linear(config.dim, hidden), linear(hidden, config.dim)
        self.relu = nn.ReLU() if config.mlp_relu else nn.Identity()
        self.dwconv = Depthwise(hidden, config.grid, config.kernel(3)) if config.mlp_conv else nn.Identity()
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x):
        return self.fc2(self.drop(F.gelu(self.dwconv(self.relu(self.fc1(x))))))


class DropPath(nn.Module):
    """In training, an image's branch is left out with this probability, and made larger otherwise."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, x):
        if not self.rate or not self.training:
            return x
        kept = torch.rand(x.shape[0], *[1] * (x.ndim - 1), device=x.device) >= self.rate
        return x * kept / (1 - self.rate)


class Constant(nn.Module):
    """What counts as a constant of the backward pass."""

    def forward(self, x):
        return x.detach()


def split_heads(x, heads):
    """[B,N,M] -> [B,H,N,D]"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x):
    """[B,H,N,D] -> [B,N,M]"""
    return x.transpose(1, 2).flatten(2)


def attend(q, k, v, mask=None, dropout=0.0, causal=False):
    """Softmax attention of q [...,N,D] to k and v [...,L,D]; mask [...,N,L]: what is added to the scores, or whether a
    query sees a key; dropout: rate of the weights';
    causal, without a mask: a query sees no key after it."""
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal)
    if causal:
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5  # PyTorch 1.13 does not have it
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return F.dropout(scores.softmax(-1), dropout) @ v


class Denominator(nn.Module):
    """Of linear attention, from the sum over keys: plus 1e-6 or, where features may be negative, held 1e-2 away from
    zero."""

    def __init__(self, may_be_negative=False):
        super().__init__()
        self.may_be_negative = may_be_negative

    def forward(self, total):
        if not self.may_be_negative:
            return total + 1e-6
        return torch.where(total < 0, -1.0, 1.0).to(total.dtype) * total.abs().clamp(min=1e-2)


class Projected(nn.Module):
    """An operator on queries, keys and values: x [B,N,M] -> q, k, v [B,H,N,D] -> mix(q, k, v) [B,N,C] -> [B,N,M]."""

    def __init__(self, config, block=0, channels=None):
        super().__init__()
        self.config, self.heads = config, config.heads
        self.qkv = linear(config.dim, 3 * config.dim, config.qkv_bias and config.attn != "convit")
        self.proj = linear(channels or config.dim, config.dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(self.mix(q, k, v))


class Mixer(nn.Module):
    """An operator with projections of its own: x [B,N,M] -> mix(x) [B,N,C] -> [B,N,M]."""

    def __init__(self, config, block=0, channels=None):
        super().__init__()
        self.config, self.heads = config, config.heads
        self.proj = linear(channels or config.dim, config.dim)

    def forward(self, x):
        return self.proj(self.mix(x))
