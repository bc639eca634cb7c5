"""Window attention (Liu et al. 2021, Swin Transformer), with mmdetection's order of padding and shifting."""

import itertools
import math

import torch
import torch.nn.functional as F

from ..grids import departition, partition, row_major
from ..layers import Projected, attend, normal


def asked(config):
    """A window's sides as they are set: (rows, columns), of clips (frames, rows, columns)."""
    return [config.window_time, config.window, config.window][-len(config.grid):]


def shifted_mask(grid, window, shift):
    """[windows,places,places]: -100 for pairs from opposite sides of the grid.  Swin paints the rolled grid with the
    numbers of its regions and cuts the painting into windows."""
    painting = torch.zeros(1, *grid, 1)
    thirds = [(slice(0, -part), slice(-part, -by), slice(-by, None)) for part, by in zip(window, shift)]
    for count, region in enumerate(itertools.product(*thirds)):
        painting[(0, *region)] = count
    regions = partition(painting, window)[0, ..., 0]
    return torch.where(regions[:, None, :] != regions[:, :, None], -100.0, 0.0)


def table_index(window):
    """[places,places] by query and key."""
    places = torch.cartesian_prod(*map(torch.arange, window))
    away = places[:, None] - places[None, :] + torch.tensor(window) - 1
    return row_major(away.unbind(-1), [2 * side - 1 for side in window])


class Window(Projected):
    """Softmax attention in windows, with a bias by offset; in every other block the windows are shifted by half a side
    along the axes that are longer than it."""

    def __init__(self, config, block=0):
        super().__init__(config)
        grid, odd = config.grid, config.shift == "alternate" and block % 2 == 1
        self.window = [min(window, side) for window, side in zip(asked(config), grid)]
        self.shift = [window // 2 if odd and side > window else 0 for window, side in zip(asked(config), grid)]
        self.more = [-side % part for side, part in zip(grid, self.window)]
        self.relative_position_bias_table = normal(math.prod(2 * side - 1 for side in self.window), config.heads)
        self.register_buffer("index", table_index(self.window), persistent=False)
        padded = [side + more for side, more in zip(grid, self.more)]
        self.register_buffer("mask", shifted_mask(padded, self.window, self.shift), persistent=False)

    def forward(self, x):
        grid = self.config.grid
        axes, more = tuple(range(1, 1 + len(grid))), [n for rest in reversed(self.more) for n in (0, rest)]
        x = F.pad(x.unflatten(1, grid), (0, 0, *more))  # before qkv, which makes its bias of zeros
        padded = x.shape[1:-1]
        x = partition(torch.roll(x, [-by for by in self.shift], axes), self.window)  # [B,windows,places,M]
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(3, 0, 1, 4, 2, 5).flatten(2, 3)
        bias = self.relative_position_bias_table[self.index].permute(2, 0, 1) + self.mask[:, None]
        y = attend(q, k, v, bias.flatten(0, 1))  # each window's heads side by side, [B,windows H,places,D]
        y = y.unflatten(1, (-1, self.heads)).transpose(2, 3).flatten(3)
        y = torch.roll(departition(y, self.window, padded), self.shift, axes)
        y = y[(slice(None), *(slice(side) for side in grid))]
        return self.proj(y.flatten(1, len(grid)))
