"""Density models of bytes as train_ar trains them: Sparse Transformers (Child et al. 2019).

Letters: B sequences, n tokens, M width, H heads.  A block is x += attn(norm1(x)), x += mlp(norm2(x)) with
mlp = fc2(z sigmoid(1.702 z)), z = fc1; norms of blocks have eps 1e-5, the last one 1e-6.  Token i is predicted from those
before it: of an image the first from a learned start."""

import math
from dataclasses import dataclass

import torch
from torch import nn

from .layers import attend, hidden_width, linear

SETS = {"sparse-strided": ("window", "column"), "sparse-fixed": ("block", "summary")}


@dataclass(frozen=True)
class Config:
    """The settings of train_ar that say what a model is (docs/reference/settings-ar.md), and what its sequences are."""

    image: tuple = ()      # H, W, C
    tokens: int = 0        # of text or sound
    starts: bool = False   # a learned vector precedes the tokens, the first of which is predicted, too; images have one
    attn: str = "softmax"  # softmax | sparse-strided | sparse-fixed
    scheme: str = "interleaved"
    sets: str = ""
    stride: int = 128
    window: int = 0
    summary: int = 32
    sub_blocks: int = 1
    vocabulary: int = 256
    dim: int = 256
    depth: int = 8
    heads: int = 2
    qk_ratio: float = 1.0
    mlp_ratio: float = 4.0
    embedding: str = "auto"
    dropout: float = 0.0
    embedding_dropout: float = 0.0

    @property
    def n(self):
        return math.prod(self.image) if self.image else self.tokens

    def tables(self):
        """[(name, entries, divisor)] of the positions: place i has the entry i div divisor mod entries of each."""
        if self.image and self.embedding != "attention":
            height, width, channels = self.image
            return [("row", height, width * channels), ("column", width, channels), ("channel", channels, 1)]
        return [("row", -(-self.n // self.stride), self.stride), ("column", self.stride, 1)]


def sees(config, kind, head):
    """[n,n] of bool: may query i, a row, see key j."""
    i, j = torch.arange(config.n)[:, None], torch.arange(config.n)[None, :]
    l, place = config.stride, torch.arange(config.n)[None, :] % config.stride
    v = head % config.sub_blocks
    summary = (place >= l - config.summary * (v + 1)) & (place < l - config.summary * v)
    sets = {"dense": j >= 0, "window": i - j < (config.window or l), "column": (i - j) % l == 0,
            "block": i // l == j // l, "summary": summary | (i == j),
            "strided": (i - j < l) | ((i - j) % l == 0), "fixed": (i // l == j // l) | summary}
    return sets[kind] & (j <= i)


def kinds(config, block):
    """The set of each head."""
    if config.attn == "softmax":
        return ["dense"] * config.heads
    if config.scheme == "merged":
        return [config.attn.removeprefix("sparse-")] * config.heads
    if config.scheme == "split":
        return [SETS[config.attn][h >= (config.heads + 1) // 2] for h in range(config.heads)]
    names = [word.strip() for word in config.sets.removesuffix(",").split(",")] if config.sets else SETS[config.attn]
    return [names[block % len(names)]] * config.heads


class Attention(nn.Module):
    """Softmax attention with queries and keys of a width of their own, [B,n,M] -> [B,n,M]"""

    def __init__(self, config, block):
        super().__init__()
        M, keys = config.dim, round(config.dim * config.qk_ratio)
        self.heads, self.parts = config.heads, (keys, keys, M)
        self.qkv, self.proj = linear(M, sum(self.parts)), linear(M, M)
        self.dense, seen = set(kinds(config, block)) == {"dense"}, None
        if not self.dense:
            seen = torch.stack([sees(config, kind, h) for h, kind in enumerate(kinds(config, block))])
        self.register_buffer("seen", seen, persistent=False)  # [H,n,n]

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).split(self.parts, -1))
        return self.proj(attend(q, k, v, self.seen, causal=self.dense).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1, self.fc2 = linear(dim, hidden), linear(hidden, dim)

    def forward(self, x):
        z = self.fc1(x)
        return self.fc2(z * torch.sigmoid(1.702 * z))


class Block(nn.Module):
    def __init__(self, config, i):
        super().__init__()
        M = config.dim
        self.norm1, self.norm2 = nn.LayerNorm(M, 1e-5), nn.LayerNorm(M, 1e-5)
        self.attn, self.mlp = Attention(config, i), Mlp(M, hidden_width(config))
        self.drop1, self.drop2 = nn.Dropout(config.dropout), nn.Dropout(config.dropout)

    def forward(self, x):
        x = x + self.drop1(self.attn(self.norm1(x)))
        return x + self.drop2(self.mlp(self.norm2(x)))


class Positions(nn.Module):
    """Adds the tables of positions to x [B,n,M]."""

    def __init__(self, config):
        super().__init__()
        self.tables = config.tables()
        for name, entries, _ in self.tables:
            self.register_parameter(name, nn.Parameter(0.01 * torch.randn(entries, config.dim)))

    def forward(self, x):
        place = torch.arange(x.shape[1], device=x.device)
        for name, entries, divisor in self.tables:
            x = x + getattr(self, name)[place // divisor % entries]
        return x


class Density(nn.Module):
    """tokens [B,n] (int64) -> logits [B,n,vocabulary]: for these tokens, and of text for those that follow."""

    def __init__(self, config):
        super().__init__()
        self.config, M = config, config.dim
        self.token_embed = nn.Embedding(config.vocabulary, M)
        self.pos_embed = Positions(config)
        self.start = nn.Parameter(torch.zeros(1, 1, M)) if config.starts or config.image else None
        self.blocks = nn.ModuleList(Block(config, i) for i in range(config.depth))
        self.norm, self.head = nn.LayerNorm(M, 1e-6), linear(M, config.vocabulary, bias=False)
        self.drop = nn.Dropout(config.embedding_dropout)

    def forward(self, tokens):
        x = self.pos_embed(self.token_embed(tokens))
        if self.start is not None:
            x = torch.cat([self.start.expand(x.shape[0], -1, -1), x[:, :-1]], 1)
        x = self.drop(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
