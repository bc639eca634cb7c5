"""The tokenizer, the pooling and the positions of compact transformers (Hassani et al. 2021)."""

import torch
import torch.nn.functional as F
from torch import nn

from .layers import linear


class Tokenizer(nn.Module):
    """[B,3,Hi,Wi] -> [B,M,Hg,Wg].  A layer is maxpool 3x3 stride 2 padding 1 of relu of a convolution k x k without bias,
    stride max(1, k/2 - 1), padding k/2; tokenizer_width channels between the layers."""

    def __init__(self, config, dim):
        super().__init__()
        k, widths = config.tokenizer_kernel, [3] + [config.tokenizer_width] * (config.tokenizer_convs - 1) + [dim]
        self.conv_layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(channels, out, k, max(1, k // 2 - 1), k // 2, bias=False), nn.ReLU(),
                          nn.MaxPool2d(3, 2, 1)) for channels, out in zip(widths, widths[1:]))
        for layer, *_ in self.conv_layers:
            nn.init.kaiming_normal_(layer.weight)

    def forward(self, images):
        for layer in self.conv_layers:
            images = layer(images)
        return images


class SequencePool(nn.Module):
    """[B,N,M] -> [B,M]: sum over tokens of softmax_n(x_n.w + b) x_n"""

    def __init__(self, dim):
        super().__init__()
        score = linear(dim, 1)
        self.weight, self.bias = score.weight, score.bias

    def forward(self, x):
        return (F.linear(x, self.weight, self.bias).softmax(1) * x).sum(1)


def sines(n, dim):
    """[1,n,dim]: sin at even and cos at odd i of p / 10000^(2 (i div 2) / dim)"""
    p, i = torch.arange(n, dtype=torch.float64)[:, None], torch.arange(dim)
    angles = p / 10000 ** (2 * (i // 2) / dim).double()
    return torch.where(i % 2 == 1, angles.cos(), angles.sin())[None]
