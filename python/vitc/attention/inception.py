"""Inception mixer (Si et al. 2022, iFormer), keys and values not pooled."""

import torch
import torch.nn.functional as F
from torch import nn

from ..layers import Depthwise, Mixer, attend, join_heads, linear, split_heads


class High(nn.Module):
    """A convolution of one half of the channels, and the largest of the 3x3 neighbours, in clips of the same frame, of
    the other."""

    def __init__(self, config, C):
        super().__init__()
        self.grid = config.grid
        self.conv1 = linear(C, 2 * C, bias=False)
        self.proj1 = Depthwise(2 * C, config.grid, config.kernel(3), bias=False)
        self.proj2, self.largest = linear(C, 2 * C), nn.MaxPool2d(3, 1, 1)

    def forward(self, first, second):
        image = second.transpose(1, 2).unflatten(-1, (-1, *self.grid[-2:])).flatten(1, 2)
        largest = self.largest(image).unflatten(1, (second.shape[-1], -1)).flatten(2).transpose(1, 2)
        return F.gelu(self.proj1(self.conv1(first))), F.gelu(self.proj2(largest))


class Low(nn.Module):
    """Softmax attention."""

    def __init__(self, channels, heads):
        super().__init__()
        self.qkv, self.heads = linear(channels, 3 * channels), heads

    def forward(self, x):
        return join_heads(attend(*(split_heads(z, self.heads) for z in self.qkv(x).chunk(3, dim=-1))))


class Inception(Mixer):
    """Convolution, maxima and attention side by side, each for its channels; then a depthwise convolution that is added
    to them."""

    def __init__(self, config, block=0):
        low = config.inception_heads or config.heads // 2
        L = low * (config.dim // config.heads)
        C = (config.dim - L) // 2
        super().__init__(config, channels=4 * C + L)
        self.parts = (C, C, L)
        self.high_mixer, self.low_mixer = High(config, C), Low(L, low)
        self.conv_fuse = Depthwise(4 * C + L, config.grid, config.kernel(3), bias=False)

    def mix(self, x):
        first, second, last = x.split(self.parts, dim=-1)
        wide = torch.cat([*self.high_mixer(first, second), self.low_mixer(last)], dim=-1)
        return wide + self.conv_fuse(wide)
