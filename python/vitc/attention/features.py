"""Feature maps phi of linear attention: z [B,H,N,D] -> [B,H,N,F], all of them of z / D^(1/4).  A map is
called for q and then for k.  What is drawn instead of learned is a buffer; in training each call for q draws it anew."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from ..layers import Constant, Drawn, xavier, zeros


class Mlp(nn.Module):
    """relu(W2 [sin W1 z; cos W1 z] + b2), F = D (Zheng et al. 2022, Ripple Attention); W1 learned or drawn."""

    def __init__(self, H, D, learned=True):
        super().__init__()
        if learned:
            self.w1 = nn.Parameter(torch.randn(D, D))
        else:
            self.register_buffer("w1", torch.randn(D, D))
        self.w2, self.b2, self.relu = xavier(D, 2 * D), zeros(D), nn.ReLU()

    def forward(self, z, keys):
        angle = F.linear(z * z.shape[-1] ** -0.25, self.w1)
        return self.relu(F.linear(torch.cat([angle.sin(), angle.cos()], dim=-1), self.w2, self.b2))


class RandomMlp(Mlp, Drawn):
    def __init__(self, H, D):
        super().__init__(H, D, learned=False)

    def forward(self, z, keys):
        if self.training and not keys:
            self.w1 = torch.randn_like(self.w1)
        return super().forward(z, keys)


class Relu(nn.Module):
    """relu(W z + b), F = D (Kasai et al. 2021, T2R)."""

    def __init__(self, H, D):
        super().__init__()
        self.weight, self.bias, self.relu = xavier(D, D), zeros(D), nn.ReLU()

    def forward(self, z, keys):
        return self.relu(F.linear(z * z.shape[-1] ** -0.25, self.weight, self.bias))


class Dpfp(nn.Module):
    """u_i u_(i-1) of u = relu([z; -z]), F = 2 D (Schlag et al. 2021)."""

    def __init__(self, H, D):
        super().__init__()
        self.relu = nn.ReLU()

    def forward(self, z, keys):
        z = z * z.shape[-1] ** -0.25
        u = self.relu(torch.cat([z, -z], dim=-1))
        return u * u.roll(1, dims=-1)


class Random(Drawn):
    """D random directions for each head."""

    def __init__(self, H, D):
        super().__init__()
        self.register_buffer("weight", self.draw(torch.empty(H, D, D)))
        self.most = Constant()

    def draw(self, like):
        return torch.randn_like(like)

    def project(self, z, keys):
        """W z [B,H,N,D] and |z|^2 / 2 [B,H,N,1]"""
        if self.training and not keys:
            self.weight = self.draw(self.weight)
        z = z * z.shape[-1] ** -0.25
        return z @ self.weight.transpose(-1, -2), z.square().sum(-1, keepdim=True) / 2


class Rfa(Random):
    """exp(|z|^2 / 2) [sin W z; cos W z] / sqrt(D), F = 2 D (Peng et al. 2021), over the largest height."""

    def forward(self, z, keys):
        u, square = self.project(z, keys)
        height = torch.exp(square - self.most(square.amax(2, keepdim=True)))
        return height * torch.cat([u.sin(), u.cos()], dim=-1) / math.sqrt(u.shape[-1])


class Performer(Random):
    """(exp(W z - |z|^2 / 2 - max) + 1e-4) / sqrt(D), F = D (Choromanski et al. 2021, FAVOR+).  The directions of a
    head are orthogonal, with the lengths of normal vectors."""

    def draw(self, like):
        rows = torch.randn(like.shape, device=like.device, dtype=torch.promote_types(like.dtype, torch.float32))
        q, r = torch.linalg.qr(rows.transpose(-1, -2))
        q = q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
        return (q.transpose(-1, -2) * rows.norm(dim=-1, keepdim=True)).to(like.dtype)

    def forward(self, z, keys):
        u, square = self.project(z, keys)
        most = self.most(u.amax((2, 3), keepdim=True) if keys else u.amax(3, keepdim=True))
        return (torch.exp(u - square - most) + 1e-4) / math.sqrt(u.shape[-1])


MAPS = {"mlp": Mlp, "mlp-random-w1": RandomMlp, "t2r": Relu, "mlp-no-fc": Relu, "dpfp": Dpfp, "rfa": Rfa,
        "performer": Performer}
MAY_BE_NEGATIVE = ("rfa",)


def feature_count(name, D):
    return 2 * D if name in ("rfa", "dpfp") else D
