"""Gated positional self-attention (d'Ascoli et al. 2021, ConViT)."""

import torch
from torch import nn

from .. import grids
from ..layers import Mixer, join_heads, linear, ones, split_heads


class Convit(Mixer):
    """a = (1 - g) softmax(q k^T / sqrt(D)) + g softmax(position), g a gate for each head; position is linear in
    (dx, dy, dx^2 + dy^2) from the query to the key, in clips also in dt and dt^2."""

    def __init__(self, config, block=0):
        super().__init__(config)
        M = config.dim
        self.qk, self.v = linear(M, 2 * M, bias=False), linear(M, M, bias=False)
        nn.init.eye_(self.v.weight)
        *dt, dy, dx = (-apart for apart in grids.differences(config.grid))
        places = torch.stack([dx, dy, dx ** 2 + dy ** 2, *dt, *(d ** 2 for d in dt)], dim=-1)
        self.register_buffer("places", places.to(torch.get_default_dtype()), persistent=False)  # [N,N,3 or 5]
        self.pos_proj = linear(places.shape[-1], config.heads)
        self.gating_param = ones(config.heads)

    def mix(self, x):
        q, k, v = (split_heads(part, self.heads) for part in (*self.qk(x).chunk(2, dim=-1), self.v(x)))
        position = self.pos_proj(self.places).permute(2, 0, 1).softmax(-1)  # [H,N,N]
        content = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
        g = self.gating_param.sigmoid()[:, None, None]
        a = (1 - g) * content + g * position
        return join_heads(a / a.sum(-1, keepdim=True) @ v)
