"""Cross-shaped windows (Dong et al. 2022, CSwin Transformer), and focused linear attention in them (FLatten's CSwin)."""

import torch
from torch import nn

from .. import grids
from ..layers import Depthwise, Projected, attend, join_heads, split_heads, zeros
from .focused import Focus, focused_attention


def branches(config):
    """Sides of a stripe, vertical and horizontal, or of the grid; of clips through all frames."""
    (*time, rows, columns), stripe = config.grid, config.stripe
    if stripe == 0 or (rows, columns) == (stripe, stripe):
        return [config.grid]
    return [(*time, rows, stripe), (*time, stripe, columns)]


class Stripes(nn.Module):
    """q, k, v [B,N,C] -> [B,N,C]: softmax attention in each stripe, and a depthwise convolution of v in it."""

    def __init__(self, config, stripe, channels, heads):
        super().__init__()
        self.grid, self.stripe, self.heads = config.grid, stripe, heads
        self.get_v = Depthwise(channels, stripe, config.kernel(3))

    def attend(self, q, k, v):
        return join_heads(attend(*(split_heads(x, self.heads) for x in (q, k, v))))

    def forward(self, q, k, v):
        q, k, v = (grids.partition(x.unflatten(1, self.grid), self.stripe).flatten(0, 1) for x in (q, k, v))
        y = self.attend(q, k, v) + self.get_v(v)
        windows = grids.token_count(self.grid) // y.shape[1]
        return grids.departition(y.unflatten(0, (-1, windows)), self.stripe, self.grid).flatten(1, len(self.grid))


class FocusedStripes(Stripes):
    def __init__(self, config, stripe, channels, heads):
        nn.Module.__init__(self)
        self.positional_encoding = zeros(1, grids.token_count(stripe), channels)
        self.scale, self.focus = zeros(1, 1, channels), Focus(config.focused_p)
        self.dwc = Depthwise(channels // heads, stripe, config.kernel(5))
        self.grid, self.stripe, self.heads = config.grid, stripe, heads
        self.get_v = Depthwise(channels, stripe, config.kernel(3))

    def attend(self, q, k, v):
        a = split_heads(self.focus(q, self.scale), self.heads)
        b = split_heads(self.focus(k + self.positional_encoding, self.scale), self.heads)
        v = split_heads(v, self.heads)
        return join_heads(focused_attention(a, b, v) + self.dwc(v.flatten(0, 1)).unflatten(0, v.shape[:2]))


class CSwin(Projected):
    """Half of the heads in vertical stripes, half in horizontal ones; or all in the whole grid."""

    def __init__(self, config, block=0):
        super().__init__(config)
        parts, kind = branches(config), FocusedStripes if config.attn == "cswin-focused" else Stripes
        self.attns = nn.ModuleList(kind(config, stripe, config.dim // len(parts), config.heads // len(parts))
                                   for stripe in parts)

    def forward(self, x):
        parts = [part.chunk(len(self.attns), dim=-1) for part in self.qkv(x).chunk(3, dim=-1)]
        return self.proj(torch.cat([attn(q, k, v) for attn, q, k, v in zip(self.attns, *parts)], dim=-1))
