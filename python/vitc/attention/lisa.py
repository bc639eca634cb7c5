"""Lightweight structure-aware attention (Kwon et al. 2023, LiSA), the structure-aware attentions that lead to it, and
GFNet's global filter (Rao et al. 2021)."""

import torch
from torch import nn

from .. import grids
from ..layers import Mixer, Projected, Weight, join_heads, normal
from .correlation import Circular, Fourier, Local, Toeplitz, multiply
from .linear_variants import unit


def sums(config):
    """Makes what adds up over keys by their offset."""
    if config.attn != "lisa":
        return Toeplitz(config.grid)
    if config.lisa_kernel:
        return Local(config.grid, config.kernel(config.lisa_kernel, whole=True))
    return Circular((grids.token_count(config.grid),) if config.lisa_fft == "1d" else config.grid)


class Patterns(nn.Module):
    """E patterns of the offset t of a pair: wa [T,D,E], or for all channels [T,E], wb [T,E], and b [D,E]."""

    def __init__(self, D, T, E, shared):
        super().__init__()
        self.wa, self.wb, self.b = normal(T, *([E] if shared else [D, E])), normal(T, E), normal(D, E)


class Lisa(Projected):
    """s_(n,e) = q_n . sum_m wa_(t(n,m),e) k_m and y_n = sum_e s_(n,e) (sum_m wb_(t(n,m),e) v_m + b_e), q and k of
    length 1: lisa with offsets around the sequence, the grid (lisa_fft) or in a window (lisa_kernel), and with a norm
    of the output; sa11 with all offsets; sa10 with one wa for all channels."""

    def __init__(self, config, block=0):
        super().__init__(config)
        self.by_wa, self.by_wb = sums(config), sums(config)
        self.lisa = Patterns(config.dim // config.heads, self.by_wa.entries, config.lisa_patterns,
                             config.attn == "sa10")
        if config.attn == "lisa":
            self.norm = nn.LayerNorm(config.dim, 1e-6)

    def mix(self, q, k, v):
        wa, wb = self.lisa.wa, self.lisa.wb[:, None]
        s = torch.einsum("bhnc,bhnce->bhne", unit(q), self.by_wa(unit(k), wa if wa.ndim == 3 else wa[:, None]))
        y = join_heads(torch.einsum("bhne,bhnce->bhnc", s, self.by_wb(v, wb) + self.lisa.b))
        return self.norm(y) if self.config.attn == "lisa" else y


class Relation(nn.Module):
    def __init__(self, T, tables):
        super().__init__()
        self.rpe = normal(T, tables)


class StructureAware(Projected):
    """(cos(q_n, k_m) rpe_(t(n,m))) v_m, one table for all heads or for each."""

    def __init__(self, config, block=0):
        super().__init__(config)
        t, T = grids.toeplitz(config.grid)
        self.register_buffer("offsets", t, persistent=False)
        self.sa = Relation(T, config.heads if config.attn == "sa9-heads" else 1)

    def mix(self, q, k, v):
        weights = self.sa.rpe[self.offsets].permute(2, 0, 1)  # [1 or H,N,N]
        return join_heads((unit(q) @ unit(k).transpose(-1, -2) * weights) @ v)


class Filter(nn.Module):
    def __init__(self, half, channels):
        super().__init__()
        self.complex_weight = normal(*half, channels, 2)


class GlobalFilter(Mixer):
    """A filter of each channel in the frequencies of the grid."""

    def __init__(self, config, block=0):
        super().__init__(config)
        self.fourier = Fourier(config.grid)
        self.filter = Filter(self.fourier.half, config.dim)

    def mix(self, x):
        kind = torch.promote_types(x.dtype, torch.float32)
        w = self.filter.complex_weight.to(kind).flatten(0, -3)
        w = w.unbind(-1) if self.fourier.matrices else torch.view_as_complex(w)
        with torch.autocast(x.device.type, enabled=False):
            return self.fourier.inverse(multiply(self.fourier(x.to(kind)), w)).to(x.dtype)
