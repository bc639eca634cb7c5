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


def toeplitz(grid):
    """t [N,N]: the number of the offset of each pair, query less key; and how many offsets there are."""
    box = [2 * side - 1 for side in grid]
    return row_major([d + side - 1 for d, side in zip(differences(grid), grid)], box), math.prod(box)


def depthwise(x, grid, weight, bias=None, stride=1):
    """x [B,N,C] as an image or clip of C channels; weight [C,1,k,k], in a clip frame by frame, or [C,1,kt,k,k]."""
    image, convolve = x.transpose(1, 2).unflatten(-1, grid), F.conv2d
    if len(grid) == 3:
        convolve, weight = F.conv3d, weight if weight.ndim == 5 else weight[:, :, None]
    padding = [side // 2 for side in weight.shape[2:]]
    strides = [1] * (len(padding) - 2) + [stride] * 2  # no stride in time
    return convolve(image, weight, bias, strides, padding, groups=image.shape[1]).flatten(2).transpose(1, 2)


def cell_means(grid, sides, overlap=False):
    """[L,N]: the matrix that averages every cell of a grid divided into `sides` cells, in every frame by itself.
    Where the sides do not divide the grid, a cell's last row and column end before the next cell's or, with overlap, as
    in adaptive pooling, take in what the two share."""
    matrix = torch.ones(1, 1)
    for size, side in zip(grid, (*grid[:-2], *sides)):
        along = torch.zeros(side, size)
        for i in range(side):
            first, end = i * size // side, (-(-(i + 1) * size // side) if overlap else (i + 1) * size // side)
            along[i, first:end] = 1 / (end - first)
        matrix = torch.kron(matrix, along)
    return matrix


def partition(x, window):
    """x [B,sides of the grid,C] -> [B,windows,places,C]"""
    axes = len(window)
    for i, side in enumerate(window):
        x = x.unflatten(1 + 2 * i, (-1, side))
    x = x.permute(0, *range(1, 1 + 2 * axes, 2), *range(2, 2 + 2 * axes, 2), 1 + 2 * axes)
    return x.flatten(1 + axes, -2).flatten(1, axes)


def departition(x, window, grid):
    """The reverse."""
    axes = len(window)
    x = x.unflatten(2, window).unflatten(1, [side // part for side, part in zip(grid, window)])
    x = x.permute(0, *(1 + i + j for i in range(axes) for j in (0, axes)), 1 + 2 * axes)
    for i in range(axes):
        x = x.flatten(1 + i, 2 + i)
    return x
