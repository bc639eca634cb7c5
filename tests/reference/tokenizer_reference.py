"""The tokenizer, the pooling and the positions of compact transformers (Hassani et al. 2021) for vit_reference.py.

    layer       maxpool 3x3 stride 2 padding 1 of relu of a convolution k x k without bias, stride max(1, k/2 - 1), padding
                k/2;  tokenizer_width channels between the layers
    pool seq    sum over tokens of softmax_n(x_n.w + b) x_n
    pos sine    sin at even and cos at odd i of p / 10000^(2 (i div 2) / M), not trained
"""

import torch
import torch.nn.functional as F

import stem_reference

PREFIX = "tokenizer.conv_layers."
POOL = "attention_pool."


def stride(config):
    return max(1, config.tokenizer_kernel // 2 - 1)


def side(config, n):
    for _ in range(config.tokenizer_convs):
        n = -(-(-(-n // stride(config))) // 2)
    return n


def shapes(config, dim):
    k, channels = config.tokenizer_kernel, [3] + [config.tokenizer_width] * (config.tokenizer_convs - 1) + [dim]
    return {f"{PREFIX}{i}.0.weight": (channels[i + 1], channels[i], k, k) for i in range(config.tokenizer_convs)}


def tokens(config, params, images, notes):
    """[B,3,Hi,Wi] -> [B,N,M]"""
    x = images
    for i in range(config.tokenizer_convs):
        x = F.conv2d(x, params[f"{PREFIX}{i}.0.weight"], stride=stride(config), padding=config.tokenizer_kernel // 2)
        x = F.max_pool2d(stem_reference.relu(notes, x), 3, 2, 1)
    return x.flatten(2).transpose(1, 2)


def pool(params, x):
    weights = F.linear(x, params[POOL + "weight"], params[POOL + "bias"]).softmax(1)
    return (weights * x).sum(1)


def sines(n, dim):
    p, i = torch.arange(n, dtype=torch.float64)[:, None], torch.arange(dim)
    angles = p / 10000 ** (2 * (i // 2) / dim).double()
    return torch.where(i % 2 == 1, angles.cos(), angles.sin())[None]
