"""The stem of a hybrid: timm's ResNetV2 without pre-activation, as vit_tiny_r_s16_p8 and its relatives have it.

    a unit is    group norm (32 groups, eps 1e-5) of a convolution whose weights are standardised: each output's row
                 (w - mean) / sqrt(var + 1e-8), the variance biased; TensorFlow's SAME padding
    stem         maxpool 3x3 stride 2 (relu(unit 7x7 stride 2)), padded with minus infinity
    bottleneck   relu(unit3(relu(unit2(relu(unit1(x))))) + x or downsample(x)), 1x1, 3x3 (stride), 1x1 (4 times as wide)
"""

import torch
import torch.nn.functional as F

GROUPS = 32
PREFIX = "patch_embed.backbone."


def blocks_of(config):
    """Blocks of each stage; none: the stem alone."""
    return [int(n) for n in config.stem_blocks.split(",")] if config.stem_blocks != "0" else []


def side(config, n):
    """What is left of a side of the image."""
    for _ in range(2 + max(len(blocks_of(config)) - 1, 0)):
        n = -(-n // 2)
    return n


def channels(config):
    stages = len(blocks_of(config))
    return 4 * config.stem_width << (stages - 1) if stages else config.stem_width


def units(config):
    """[(name of the convolution, name of its norm, in, out, k)]"""
    stages, width = blocks_of(config), config.stem_width
    first = "stem." if stages else ""
    result, before = [(f"{first}conv", f"{first}norm", 3, width, 7)], width
    for i, count in enumerate(stages):
        for j in range(count):
            name, middle, out = f"stages.{i}.blocks.{j}.", width << i, 4 * width << i
            if j == 0:
                result.append((f"{name}downsample.conv", f"{name}downsample.norm", before, out, 1))
            result += [(f"{name}conv1", f"{name}norm1", before, middle, 1),
                       (f"{name}conv2", f"{name}norm2", middle, middle, 3),
                       (f"{name}conv3", f"{name}norm3", middle, out, 1)]
            before = out
    return result


def shapes(config):
    result = {}
    for conv, norm, inside, out, k in units(config):
        result.update({f"{PREFIX}{conv}.weight": (out, inside, k, k), f"{PREFIX}{norm}.weight": (out,),
                       f"{PREFIX}{norm}.bias": (out,)})
    return result


def pad_same(x, k, stride, value=0.0):
    pads = []
    for n in (x.shape[3], x.shape[2]):
        total = max((-(-n // stride) - 1) * stride + k - n, 0)
        pads += [total // 2, total - total // 2]
    return F.pad(x, pads, value=value)


def unit(params, conv, norm, x, stride):
    w = params[f"{PREFIX}{conv}.weight"]
    rows = w.flatten(1)
    rows = (rows - rows.mean(1, keepdim=True)) / (rows.var(1, unbiased=False, keepdim=True) + 1e-8).sqrt()
    x = F.conv2d(pad_same(x, w.shape[-1], stride), rows.reshape(w.shape), stride=stride)
    groups = x.unflatten(1, (GROUPS, -1))
    mean = groups.mean((2, 3, 4), keepdim=True)
    var = ((groups - mean) ** 2).mean((2, 3, 4), keepdim=True)
    x = ((groups - mean) / (var + 1e-5).sqrt()).flatten(1, 2)
    return x * params[f"{PREFIX}{norm}.weight"][:, None, None] + params[f"{PREFIX}{norm}.bias"][:, None, None]


def relu(notes, x):
    notes.kinks.append(x.detach())
    return F.relu(x)


def features(config, params, images, notes):
    """[B,3,Hi,Wi] -> [B,C,Hs,Ws]"""
    stages = blocks_of(config)
    first = "stem." if stages else ""
    x = relu(notes, unit(params, f"{first}conv", f"{first}norm", images, 2))
    x = F.max_pool2d(pad_same(x, 3, 2, -float("inf")), 3, 2)
    for i, count in enumerate(stages):
        for j in range(count):
            name, stride = f"stages.{i}.blocks.{j}.", 2 if i and not j else 1
            y = relu(notes, unit(params, name + "conv1", name + "norm1", x, 1))
            y = relu(notes, unit(params, name + "conv2", name + "norm2", y, stride))
            y = unit(params, name + "conv3", name + "norm3", y, 1)
            if j == 0:
                x = unit(params, name + "downsample.conv", name + "downsample.norm", x, stride)
            x = relu(notes, x + y)
    return x
