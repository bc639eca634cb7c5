"""Convolutions in attention's place: ConvNeXt's depthwise 7x7 (Liu et al. 2022), UniFormer's block (Li et al. 2022) and
MetaFormer's inverted separable convolution (Yu et al. 2022), each over the token grid."""

import torch.nn.functional as F
from torch import nn

from ..layers import Depthwise, Mixer, linear


class Depthwise7(Mixer):
    def __init__(self, config, block=0):
        super().__init__(config)
        self.dwconv = Depthwise(config.dim, config.grid, config.kernel(7))

    def mix(self, x):
        return self.dwconv(x)


class Conv(nn.Module):
    """linear, depthwise 5x5, linear"""

    def __init__(self, config, block=0):
        super().__init__()
        M = config.dim
        self.conv1 = linear(M, M)
        self.conv = Depthwise(M, config.grid, config.kernel(5, time=config.conv_time_kernel))
        self.conv2 = linear(M, M)

    def forward(self, x):
        return self.conv2(self.conv(self.conv1(x)))


class SepConv(nn.Module):
    """linear to twice the width, GELU, depthwise 7x7, linear; without biases"""

    def __init__(self, config, block=0):
        super().__init__()
        M = config.dim
        self.pwconv1 = linear(M, 2 * M, bias=False)
        self.dwconv = Depthwise(2 * M, config.grid, config.kernel(7, time=config.conv_time_kernel), bias=False)
        self.pwconv2 = linear(2 * M, M, bias=False)

    def forward(self, x):
        return self.pwconv2(self.dwconv(F.gelu(self.pwconv1(x))))
