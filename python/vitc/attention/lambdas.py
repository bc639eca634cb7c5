"""Lambda convolution (Bello 2021, LambdaNetworks) and relational self-attention (Kim et al. 2021, RSA), both with
tables of all offsets."""

import torch
import torch.nn.functional as F
from torch import nn

from ..layers import Mixer, Weight, join_heads, linear, normal, split_heads
from .correlation import Toeplitz


class Lambda(Mixer):
    """y_n = q_n^T sum_m embedding_(n - m) v_m^T, q and v normed."""

    def __init__(self, config, block=0):
        super().__init__(config)
        M, D = config.dim, config.dim // config.heads
        self.qv, self.sums = linear(M, 2 * M, bias=False), Toeplitz(config.grid)
        self.embedding = Weight(self.sums.entries, D)
        self.norm_q, self.norm_v = nn.LayerNorm(D, 1e-6), nn.LayerNorm(D, 1e-6)

    def mix(self, x):
        q, v = (split_heads(z, self.heads) for z in self.qv(x).chunk(2, dim=-1))
        lambdas = self.sums(self.norm_v(v), self.embedding.weight[:, None])
        return join_heads((lambdas @ self.norm_q(q)[..., None])[..., 0])


class Rsa(Mixer):
    """A kernel q (H1 * k + P1) and a feature (G * v + I) (H2 * v), where * adds up over offsets and q, k, v have length
    1 (the paper's V + R for both)."""

    def __init__(self, config, block=0):
        super().__init__(config)
        M, D = config.dim, config.dim // config.heads
        self.qkv = linear(M, 3 * M, bias=False)
        self.by_h1, self.by_h2, self.by_g = (Toeplitz(config.grid) for _ in range(3))
        T = self.by_h1.entries
        self.H1, self.H2, self.G, self.P1 = Weight(T, D, D), Weight(T, D), Weight(T, D), normal(D, D)
        self.I = nn.Parameter(torch.eye(D))

    def mix(self, x):
        q, k, v = (F.normalize(split_heads(z, self.heads), dim=-1, eps=1e-6) for z in self.qkv(x).chunk(3, dim=-1))
        k_h1 = self.by_h1(k, self.H1.weight)  # [B,H,N,C,E]
        v_h2 = self.by_h2(v, self.H2.weight[:, None])
        v_g = self.by_g(v, self.G.weight[:, None])
        kernel = torch.einsum("bhnc,bhnce->bhne", q, k_h1 + self.P1)
        mixed = torch.einsum("bhne,bhnce->bhnc", kernel, v_h2)
        return join_heads(torch.einsum("bhnc,bhncd->bhnd", mixed, v_g + self.I))
