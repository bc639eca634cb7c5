"""Relative positions of linear attention.  encode(q, k) comes before the feature map; psi(phi) [B,H,N,F] after it, and
stays out of the denominator but for permutations, which `whole` says."""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import nn

from ..layers import Drawn

SINES, TAPS = 12, 200


class Relative(nn.Module):
    whole = False

    def encode(self, q, k):
        return q, k

    def psi(self, phi):
        return phi


class Rope(Relative):
    """Pairs of features turn with the place: in the sequence (Su et al. 2021) or, rope-2d and rope-3d, along each axis
    of the grid, where a class token has no place."""

    def __init__(self, config, H, D, features):
        super().__init__()
        grid = list(itertools.product(*map(range, config.grid)))
        angles = torch.zeros(config.front + len(grid), features // 2, dtype=torch.float64)
        if config.relative == "rope":
            for p in range(features // 2):
                angles[:, p] = torch.arange(len(angles), dtype=torch.float64) * 10000 ** (-2 * p / features)
        else:
            axes = len(config.grid)
            count = features // (2 * axes)
            places = torch.tensor(grid, dtype=torch.float64)
            for axis in range(axes):
                for p in range(count):
                    angles[config.front:, axis * count + p] = places[:, axis] * 10000 ** (-2 * axes * p / features)
        self.register_buffer("cos", angles.cos().to(torch.get_default_dtype()), persistent=False)  # [N,F/2]
        self.register_buffer("sin", angles.sin().to(torch.get_default_dtype()), persistent=False)

    def psi(self, phi):
        pairs = 2 * self.cos.shape[1]
        a, b = phi[..., :pairs].unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack([self.cos * a - self.sin * b, self.sin * a + self.cos * b], dim=-1).flatten(-2)
        return torch.cat([turned, phi[..., pairs:]], dim=-1)


class Permute(Relative):
    """y_(n,f) = phi_(n, pi^n(f)) with a permutation pi for each head (Chen 2021, PermuteFormer)."""

    whole = True

    def __init__(self, config, H, D, features):
        super().__init__()
        self.register_buffer("permutation", torch.stack([torch.randperm(features) for _ in range(H)]))

    def powers(self, N):
        """pi^n for n below N: [H,N,F], by doubling."""
        pi = self.permutation[:, None]
        table = torch.arange(pi.shape[-1], device=pi.device).expand_as(pi)
        while table.shape[1] < N:
            further = pi.gather(-1, table[:, -1:])  # pi^n, where n is the number of rows of the table
            table = torch.cat([table, further.expand_as(table).gather(-1, table)], dim=1)
        return table[:, :N]

    def psi(self, phi):
        return phi.gather(-1, self.powers(phi.shape[2]).expand_as(phi))


class Stochastic(Relative, Drawn):
    """Stochastic positional encoding (Liutkus et al. 2021): q and k times codes [H,N,D,R], R = D realisations of noise,
    which is drawn anew in every step of training."""

    def share(self, H, D, rows):
        self.gate = nn.Parameter(torch.randn(H, D))
        self.register_buffer("noise", torch.randn(H, D, rows, D))
        self.register_buffer("common", torch.randn(H, D, D))

    def encode(self, q, k):
        if self.training:
            self.noise, self.common = torch.randn_like(self.noise), torch.randn_like(self.common)
        g = torch.sigmoid(self.gate)[:, None, :, None]
        codes = ((torch.sqrt(1 - g) * raw + torch.sqrt(g) * self.common[:, None]) / q.shape[-1] ** 0.5
                 for raw in self.raw(q.shape[2]))
        return [torch.einsum("bhnd,hndr->bhnr", x, code) for x, code in zip((q, k), codes)]


class SineSpe(Stochastic):
    """Codes of sines with learned frequencies, phases and gains."""

    def __init__(self, config, H, D, features):
        super().__init__()
        self.freqs, self.offsets = nn.Parameter(torch.randn(H, D, SINES) - 4), nn.Parameter(torch.randn(H, D, SINES))
        gains = torch.randn(H, D, SINES)
        self.gains = nn.Parameter(2 * gains / gains.norm(dim=-1, keepdim=True).sqrt())
        self.share(H, D, 2 * SINES)

    def raw(self, N):
        places = torch.arange(N, device=self.gate.device).to(self.gate.dtype)[:, None, None, None]
        turns = 2 * math.pi * places * (torch.sigmoid(self.freqs) / 2)  # [N,H,D,K]
        z = self.noise * F.softplus(self.gains).repeat(1, 1, 2)[..., None] / math.sqrt(2 * SINES)
        return [torch.einsum("nhdk,hdkr->hndr", torch.cat([angle.cos(), angle.sin()], dim=-1), z)
                for angle in (turns + self.offsets, turns)]


class ConvSpe(Stochastic):
    """Codes of noise over which learned filters of 200 taps have passed."""

    def __init__(self, config, H, D, features):
        super().__init__()
        self.conv_q, self.conv_k = (nn.Parameter(torch.rand(H, D, TAPS) * math.sqrt(2 / TAPS)) for _ in "qk")
        self.share(H, D, math.prod(config.grid) + config.front + TAPS - 1)

    def raw(self, N):
        H, D = self.gate.shape
        signal = self.noise.permute(3, 0, 1, 2).reshape(D, H * D, N + TAPS - 1)  # [R,H D,time]
        return [F.conv1d(signal, filters.reshape(H * D, 1, TAPS), groups=H * D)
                .reshape(D, H, D, N).permute(1, 3, 2, 0) for filters in (self.conv_q, self.conv_k)]


KINDS = {"none": lambda *sizes: Relative(), "rope": Rope, "rope-2d": Rope, "rope-3d": Rope, "permute": Permute,
         "sincspe": SineSpe, "convspe": ConvSpe}
