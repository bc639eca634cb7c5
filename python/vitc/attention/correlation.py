"""Sums over keys with tables of the offset, y_n = sum_m table_(n - m) x_m: by Fourier transforms, N log N, or over a
window around the query by a convolution."""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import nn


class Fourier(nn.Module):
    """Tokens of a grid <-> their spectrum on a box at least as large.  A transform is an FFT or, once as_products() was
    called, two products with matrices of cosines and sines, which a graph without complex numbers can hold; a spectrum
    is then a pair.  What comes back are the box's last places, as many as the grid has."""

    def __init__(self, grid, box=None):
        super().__init__()
        self.grid, self.box = tuple(grid), tuple(box or grid)
        self.half = (*self.box[:-1], self.box[-1] // 2 + 1)
        self.matrices = False

    def as_products(self):
        frequencies = torch.cartesian_prod(*map(torch.arange, self.half)).reshape(-1, len(self.box)).double()
        last = frequencies[:, -1]
        twice = (last > 0) & (2 * last != self.box[-1])  # the other half of the spectrum has them, too
        weights = ((1 + twice.double()) / math.prod(self.box))[:, None]
        for name, first, scale in (("to", [0] * len(self.box), 1), ("from", self.first(), weights)):
            places = list(itertools.product(*(range(n, n + side) for side, n in zip(self.grid, first))))
            angles = 2 * math.pi * (frequencies / torch.tensor(self.box)) @ torch.tensor(places).double().T
            for part, values in (("cos", angles.cos()), ("sin", angles.sin())):
                matrix = (scale * values).to(torch.get_default_dtype())
                matrix = matrix if name == "to" else matrix.T.contiguous()
                self.register_buffer(f"{name}_{part}", matrix, persistent=False)
        self.matrices = True

    def first(self):
        return [box - side for box, side in zip(self.box, self.grid)]

    def forward(self, x):
        """[B,N,C] -> [B,frequencies,C]"""
        if self.matrices:
            return self.to_cos @ x, -(self.to_sin @ x)
        axes = tuple(range(1, 1 + len(self.grid)))
        return torch.fft.rfftn(x.unflatten(1, self.grid), s=self.box, dim=axes).flatten(1, axes[-1])

    def of_table(self, table):
        """Of the whole box: [T,C] -> [frequencies,C], or a pair."""
        axes = tuple(range(len(self.box)))
        spectrum = torch.fft.rfftn(table.unflatten(0, self.box), dim=axes).flatten(0, axes[-1])
        return (spectrum.real, spectrum.imag) if self.matrices else spectrum

    def inverse(self, spectrum):
        """[B,frequencies,C] -> [B,N,C]"""
        if self.matrices:
            return self.from_cos @ spectrum[0] - self.from_sin @ spectrum[1]
        axes = tuple(range(1, 1 + len(self.grid)))
        y = torch.fft.irfftn(spectrum.unflatten(1, self.half), s=self.box, dim=axes)
        for axis, side, first in zip(axes, self.grid, self.first()):
            y = y.narrow(axis, first, side)
        return y.flatten(1, axes[-1])


def multiply(x, y):
    """Complex tensors, or pairs."""
    if isinstance(x, torch.Tensor):
        return x * y
    (a, b), (c, d) = x, y
    return a * c - b * d, a * d + b * c


def each(function, x):
    return function(x) if isinstance(x, torch.Tensor) else tuple(function(part) for part in x)


class Circular(nn.Module):
    """Offsets around the grid, or around the sequence of tokens; one table [T,C,E] or [T,1,E], T the grid's tokens."""

    def __init__(self, grid, box=None):
        super().__init__()
        self.fourier = Fourier(grid, box)
        self.entries, self.constant = math.prod(self.fourier.box), None

    def spectrum(self, table):
        """[frequencies,1,C,E]; in a graph of products a constant, from the first call on."""
        if self.constant is None:
            found = each(lambda part: part.unflatten(-1, table.shape[1:])[:, None],
                         self.fourier.of_table(table.flatten(1)))
            if not self.fourier.matrices:
                return found
            self.constant = tuple(part.detach() for part in found)
        return self.constant

    def forward(self, x, table):
        """x [B,H,N,C] -> [B,H,N,C,E]; spectra are in float32 at least"""
        kind, (B, H, N, C) = torch.promote_types(x.dtype, torch.float32), x.shape
        with torch.autocast(x.device.type, enabled=False):
            of_x = self.fourier(x.to(kind).transpose(1, 2).reshape(B, N, H * C))
            of_x = each(lambda part: part.unflatten(-1, (H, C))[..., None], of_x)  # [B,frequencies,H,C,1]
            y = each(lambda part: part.flatten(2), multiply(of_x, self.spectrum(table.to(kind))))
            return self.fourier.inverse(y).unflatten(-1, (H, C, -1)).transpose(1, 2).to(x.dtype)


class Toeplitz(Circular):
    """All offsets, on a box in which those around its sides meet no token; T = prod(2 side - 1)."""

    def __init__(self, grid):
        super().__init__(grid, [2 * side - 1 for side in grid])


class Local(nn.Module):
    """Offsets within a window of odd sides; T = prod(box)."""

    def __init__(self, grid, box):
        super().__init__()
        self.grid, self.box, self.entries = grid, box, math.prod(box)

    def forward(self, x, table):
        """As Circular's."""
        (B, H, N, C), E = x.shape, table.shape[-1]
        weight = table.expand(-1, C, E).flip(0).permute(1, 2, 0).reshape(C * E, 1, *self.box)
        image = x.flatten(0, 1).transpose(1, 2).unflatten(-1, self.grid)
        convolve = F.conv3d if len(self.box) == 3 else F.conv2d
        y = convolve(image, weight, padding=[side // 2 for side in self.box], groups=C)
        return y.flatten(2).transpose(1, 2).reshape(B, H, N, C, E)
