"""Attention through landmarks: Nystromformer (Xiong et al. 2021) and SOFT (Lu et al. 2021)."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .. import grids
from ..layers import Depthwise, Mixer, Projected, join_heads, linear, split_heads


def pseudo_inverse(a, power):
    """Six steps of the cubic scheme from a^T / m^power, m each matrix's largest column sum.  a [...,L,L]."""
    identity = torch.eye(a.shape[-1], device=a.device).to(a.dtype)
    z = a.transpose(-1, -2) / a.sum(-2).amax(-1)[..., None, None] ** power
    for _ in range(6):
        w = a @ z
        z = z @ (13 * identity - w @ (15 * identity - w @ (7 * identity - w))) / 4
    return z


class Nystrom(Projected):
    """softmax(q b^T) softmax(a b^T)^+ (softmax(a k^T) v), a and b the means of q and k over cells of the grid; and a
    depthwise convolution of v."""

    def __init__(self, config, block=0):
        super().__init__(config)
        sides = [min(config.landmarks, side) for side in config.grid[-2:]]
        self.register_buffer("cells", grids.cell_means(config.grid, sides), persistent=False)  # [L,N]
        self.conv = Depthwise(config.dim, config.grid, config.kernel(3), bias=False)

    def mix(self, q, k, v):
        scale = math.sqrt(q.shape[-1])
        cells = self.cells.to(q.dtype)
        a, b = cells @ q, cells @ k
        to_landmarks = (q @ b.transpose(-1, -2) / scale).softmax(-1)
        between = (a @ b.transpose(-1, -2) / scale).softmax(-1)
        from_tokens = (a @ k.transpose(-1, -2) / scale).softmax(-1)
        y = to_landmarks @ pseudo_inverse(between, 1) @ (from_tokens @ v)
        return join_heads(y) + self.conv(join_heads(v))


def soft_stride(config):
    sides = config.grid[-2:]
    return min(-(-max(sides) // config.landmarks), *sides)


class Landmarks(nn.Module):
    """gelu(norm(convolution)) of the cells of one head's q, frame by frame: [B H,N,D] -> [B H,L,D]."""

    def __init__(self, config):
        super().__init__()
        D, self.grid, self.stride = config.dim // config.heads, config.grid, soft_stride(config)
        bound = (D * self.stride ** 2) ** -0.5
        self.weight = nn.Parameter(torch.empty(D, D, self.stride, self.stride).uniform_(-bound, bound))
        self.norm = nn.LayerNorm(D, 1e-5)

    def forward(self, q):
        frames = q.unflatten(1, (-1, *self.grid[-2:])).movedim(-1, 2)  # [B H,frames,D,Hg,Wg]
        a = F.conv2d(frames.flatten(0, 1), self.weight, stride=self.stride).flatten(2).transpose(1, 2)
        return F.gelu(self.norm(a)).reshape(q.shape[0], -1, q.shape[-1])


def gaussian(x, z):
    """exp(-|x - z|^2 / 2) of [...,N,D] and [...,L,D]."""
    return torch.exp(-((x[..., :, None, :] - z[..., None, :, :]) ** 2).sum(-1) / 2)


class Soft(Mixer):
    """A Gaussian kernel in softmax's place; k is q."""

    def __init__(self, config, block=0):
        super().__init__(config)
        self.qv, self.landmark = linear(config.dim, 2 * config.dim), Landmarks(config)
        self.conv = Depthwise(config.dim, config.grid, config.kernel(3), bias=False)

    def mix(self, x):
        q, v = (split_heads(part, self.heads) for part in self.qv(x).chunk(2, dim=-1))
        q = q * q.shape[-1] ** -0.25
        a = self.landmark(q.flatten(0, 1)).unflatten(0, q.shape[:2])
        near = gaussian(q, a)
        y = near @ pseudo_inverse(gaussian(a, a), 2) @ (near.transpose(-1, -2) @ v)
        return join_heads(y) + self.conv(join_heads(v))
