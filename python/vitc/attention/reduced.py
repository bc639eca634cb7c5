"""Attention to fewer keys (Wang et al. 2021 and 2022, PVT and PVTv2), and focused linear attention to them (Han et al.
2023, FLatten's PVT)."""

from dataclasses import replace

import torch.nn.functional as F
from torch import nn

from .. import grids
from ..layers import Depthwise, Mixer, attend, join_heads, linear, split_heads, zeros
from .focused import Focus, focused_attention


class Reduced(Mixer):
    """Softmax attention to keys and values of squares of `reduction` tokens to a side, by a convolution and a norm or,
    with reduction_cells, of that number of means to a side, by a linear layer, a norm and GELU."""

    def __init__(self, config, block=0):
        super().__init__(config)
        M, cells, r = config.dim, config.reduction_cells, 1 if config.reduction_cells else config.reduction
        self.q, self.kv, self.reduces = linear(M, M), linear(M, 2 * M), bool(cells) or config.reduction != 1
        if self.reduces:
            self.sr, self.norm = nn.Conv2d(M, M, r, r), nn.LayerNorm(M, 1e-5)
        if cells:
            self.register_buffer("cells", grids.cell_means(config.grid, (cells, cells), overlap=True), persistent=False)

    def keys(self, x):
        """[B,N,M] -> [B,L,M]; a frame of a clip is an image"""
        if not self.reduces:
            return x
        if self.config.reduction_cells:
            means = self.cells.to(x.dtype) @ x
            return F.gelu(self.norm(F.linear(means, self.sr.weight.flatten(1), self.sr.bias)))
        images = x.unflatten(1, (-1, *self.config.grid[-2:])).flatten(0, 1).movedim(-1, 1)
        return self.norm(self.sr(images).flatten(2).transpose(1, 2).reshape(x.shape[0], -1, x.shape[-1]))

    def projections(self, x):
        """q [B,N,M], k and v [B,L,M]"""
        return self.q(x), *self.kv(self.keys(x)).chunk(2, dim=-1)

    def mix(self, x):
        dropout = self.config.attn_dropout if self.training else 0
        q, k, v = (split_heads(part, self.heads) for part in self.projections(x))
        return join_heads(attend(q, k, v, dropout=dropout))


class FocusedReduced(Reduced):
    """Focused linear attention in softmax's place, and a convolution of v that is brought to all tokens."""

    def __init__(self, config, block=0):
        super().__init__(replace(config, reduction_cells=0))
        (rows, columns), M, r = config.grid, config.dim, config.reduction
        self.positional_encoding = zeros(1, (rows // r) * (columns // r), M)
        self.scale, self.focus = zeros(1, 1, M), Focus(config.focused_p)
        self.dwc = Depthwise(M // config.heads, config.grid, config.kernel(5))

    def mix(self, x):
        q, k, v = self.projections(x)
        a = split_heads(self.focus(q, self.scale), self.heads)
        b = split_heads(self.focus(k + self.positional_encoding, self.scale), self.heads)
        y = focused_attention(a, b, split_heads(v, self.heads))
        v = F.interpolate(v.transpose(1, 2), size=x.shape[1], mode="linear").transpose(1, 2)
        local = self.dwc(split_heads(v, self.heads).flatten(0, 1)).unflatten(0, y.shape[:2])
        return join_heads(y + local)
