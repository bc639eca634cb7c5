"""Token grids, (rows, columns) or, of clips, (frames, rows, columns); tokens are in row-major order."""

import math

import torch
import torch.nn.functional as F


def token_count(grid):
    return math.prod(grid)


def differences(grid):
    """For each axis, the query's place less the key's: [N,N]."""
    axes = [places.flatten() for places in torch.meshgrid(*map(torch.arange, grid), indexing="ij")]
    return [places[:, None] - places[None, :] for places in axes]


def row_major(places, sides):
    """The number of a place in a box of these sides."""
    number = torch.zeros_like(places[0])
    for place, side in zip(places, sides):
        number = number * side + place
    return number


def torus(grid):
    """t [N,N]: the offset of each pair, around the grid; and how many offsets there are."""
    return row_major([d % side for d, side in zip(differences(grid), grid)], grid), token_count(grid)


def toeplitz(grid):
    """The same for all offsets."""
    box = [2 * side - 1 for side in grid]
    return row_major([d + side - 1 for d, side in zip(differences(grid), grid)], box), math.prod(box)


def local(grid, box):
    """The same for a window, of odd sides, around the query; -1 outside of it."""
    apart = differences(grid)
    seen = torch.stack([d.abs() <= side // 2 for d, side in zip(apart, box)]).all(0)
    t = row_major([d + side // 2 for d, side in zip(apart, box)], box)
    return torch.where(seen, t, -1), math.prod(box)


def depthwise(x, grid, weight, bias=None, stride=1):
    """x [B,N,C] as an image or clip of C channels; weight [C,1,k,k], in a clip frame by frame, or [C,1,kt,k,k]."""
    image, convolve = x.transpose(1, 2).unflatten(-1, grid), F.conv2d
    if len(grid) == 3:
        convolve, weight = F.conv3d, weight if weight.ndim == 5 else weight[:, :, None]
    padding = [side // 2 for side in weight.shape[2:]]
    strides = [1] * (len(padding) - 2) + [stride] * 2  # no stride in time
    return convolve(image, weight, bias, strides, padding, groups=image.shape[1]).flatten(2).transpose(1, 2)
