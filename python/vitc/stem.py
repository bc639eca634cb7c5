"""The stem of a hybrid: timm's ResNetV2 without pre-activation, as vit_tiny_r_s16_p8 and its relatives have it.

    a unit is    group norm (32 groups, eps 1e-5) of a convolution whose weights are standardised: each output's row
                 (w - mean) / sqrt(var + 1e-8), the variance biased; TensorFlow's SAME padding
    stem         maxpool 3x3 stride 2 (relu(unit 7x7 stride 2)), padded with minus infinity
    bottleneck   relu(unit3(relu(unit2(relu(unit1(x))))) + x or downsample(x)), 1x1, 3x3 (stride), 1x1 (4 times as wide)
"""

import torch.nn.functional as F
from torch import nn

GROUPS = 32


def pad_same(x, k, stride, value=0.0):
    pads = []
    for n in (x.shape[3], x.shape[2]):
        total = max((-(-n // stride) - 1) * stride + k - n, 0)
        pads += [total // 2, total - total // 2]
    return F.pad(x, pads, value=value)


class Convolution(nn.Conv2d):
    """Standardised and padded; no bias."""

    def __init__(self, channels, out, k, stride=1):
        super().__init__(channels, out, k, stride, bias=False)
        nn.init.kaiming_normal_(self.weight)

    def forward(self, x):
        rows = self.weight.flatten(1)
        rows = (rows - rows.mean(1, keepdim=True)) / (rows.var(1, unbiased=False, keepdim=True) + 1e-8).sqrt()
        stride = self.stride[0]
        return F.conv2d(pad_same(x, self.weight.shape[-1], stride), rows.reshape(self.weight.shape), stride=stride)


class Down(nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        self.conv, self.norm = Convolution(channels, out, 1, stride), nn.GroupNorm(GROUPS, out)

    def forward(self, x):
        return self.norm(self.conv(x))


class Bottleneck(nn.Module):
    def __init__(self, channels, middle, stride, first):
        super().__init__()
        self.downsample = Down(channels, 4 * middle, stride) if first else nn.Identity()
        self.conv1, self.norm1 = Convolution(channels, middle, 1), nn.GroupNorm(GROUPS, middle)
        self.conv2, self.norm2 = Convolution(middle, middle, 3, stride), nn.GroupNorm(GROUPS, middle)
        self.conv3, self.norm3 = Convolution(middle, 4 * middle, 1), nn.GroupNorm(GROUPS, 4 * middle)
        self.relu = nn.ReLU()

    def forward(self, x):
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.relu(self.norm2(self.conv2(y)))
        return self.relu(self.downsample(x) + self.norm3(self.conv3(y)))


class Entry(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv, self.norm, self.relu = Convolution(3, width, 7, 2), nn.GroupNorm(GROUPS, width), nn.ReLU()

    def forward(self, images):
        return F.max_pool2d(pad_same(self.relu(self.norm(self.conv(images))), 3, 2, -float("inf")), 3, 2)


class Stage(nn.Module):
    def __init__(self, channels, middle, blocks, stride):
        super().__init__()
        self.blocks = nn.Sequential(*(Bottleneck(4 * middle if j else channels, middle, 1 if j else stride, not j)
                                      for j in range(blocks)))

    def forward(self, x):
        return self.blocks(x)


class Backbone(nn.Module):
    """[B,3,Hi,Wi] -> [B,channels,Hs,Ws]; without stages its entry alone."""

    def __init__(self, config):
        super().__init__()
        self.stem, self.channels = Entry(config.stem_width), config.stem_width
        stages = []
        for i, blocks in enumerate(map(int, config.stem_blocks.split(","))):
            middle = config.stem_width << i
            stages.append(Stage(self.channels, middle, blocks, 2 if i else 1))
            self.channels = 4 * middle
        self.stages = nn.Sequential(*stages)

    def forward(self, images):
        return self.stages(self.stem(images))


def backbone(config):
    if config.stem_blocks != "0":
        return Backbone(config)
    entry = Entry(config.stem_width)
    entry.channels = config.stem_width
    return entry
