"""Compact transformers in plain PyTorch (Hassani et al. 2021, "Escaping the Big Data Paradigm with Compact
Transformers"), under the names of the authors' state dicts: CCT, CVT and ViT-Lite.  Without dropout and drop path."""

import math

import torch
from torch import nn
from torch.nn import functional


class Tokenizer(nn.Module):
    """images [B,3,H,W] -> tokens [B,N,M]: convolutions, each with ReLU and max pool; or one convolution to patches."""

    def __init__(self, kernel, convolutions, width, dim, patch):
        super().__init__()
        self.pools = not patch
        if patch:
            layers = [nn.Conv2d(3, dim, patch, patch)]
        else:
            channels = [3] + [width] * (convolutions - 1) + [dim]
            layers = [nn.Conv2d(a, b, kernel, max(1, kernel // 2 - 1), max(1, kernel // 2), bias=False)
                      for a, b in zip(channels, channels[1:])]
        self.conv_layers = nn.ModuleList(nn.ModuleList([layer]) for layer in layers)

    def forward(self, x):
        for layer, in self.conv_layers:
            x = layer(x)
            if self.pools:
                x = functional.max_pool2d(functional.relu(x), 3, 2, 1)
        return x.flatten(2).transpose(1, 2)


class Attention(nn.Module):

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, M = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, M // self.heads).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / math.sqrt(M // self.heads)).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(B, N, M))


class Block(nn.Module):
    """The second norm replaces the stream: the MLP adds to what it reads."""

    def __init__(self, dim, heads, hidden):
        super().__init__()
        self.pre_norm, self.norm1 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.self_attn = Attention(dim, heads)
        self.linear1, self.linear2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x):
        x = self.norm1(x + self.self_attn(self.pre_norm(x)))
        return x + self.linear2(functional.gelu(self.linear1(x)))


def sines(N, dim):
    angles = torch.tensor([[n / 10000 ** (2 * (i // 2) / dim) for i in range(dim)] for n in range(N)])
    angles[:, 0::2], angles[:, 1::2] = angles[:, 0::2].sin(), angles[:, 1::2].cos()
    return angles[None]


class Classifier(nn.Module):

    def __init__(self, tokens, dim, depth, heads, ratio, classes, pool, positions):
        super().__init__()
        self.pool = pool
        if pool == "seq":
            self.attention_pool = nn.Linear(dim, 1)
        else:
            self.class_emb = nn.Parameter(torch.zeros(1, 1, dim))
            tokens += 1
        if positions == "learned":
            self.positional_emb = nn.Parameter(torch.zeros(1, tokens, dim))
        elif positions == "sine":
            self.positional_emb = nn.Parameter(sines(tokens, dim), requires_grad=False)
        else:
            self.positional_emb = None
        self.blocks = nn.ModuleList(Block(dim, heads, int(dim * ratio)) for _ in range(depth))
        self.norm, self.fc = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, x):
        if self.pool == "cls":
            x = torch.cat([self.class_emb.expand(len(x), -1, -1), x], 1)
        if self.positional_emb is not None:
            x = x + self.positional_emb
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        if self.pool == "cls":
            return self.fc(x[:, 0])
        return self.fc((self.attention_pool(x).softmax(1).transpose(1, 2) @ x).squeeze(1))


class CompactTransformer(nn.Module):

    def __init__(self, size=32, kernel=3, convolutions=2, width=64, patch=0, dim=128, depth=2, heads=2, ratio=1,
                 classes=10, pool="seq", positions="learned"):
        super().__init__()
        self.tokenizer = Tokenizer(kernel, convolutions, width, dim, patch)
        with torch.no_grad():
            tokens = self.tokenizer(torch.zeros(1, 3, size, size)).shape[1]
        self.classifier = Classifier(tokens, dim, depth, heads, ratio, classes, pool, positions)

    def forward(self, x):
        return self.classifier(self.tokenizer(x))
