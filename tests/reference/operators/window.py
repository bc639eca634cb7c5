"""Window attention (Liu et al. 2021, Swin Transformer), with mmdetection's order of padding and shifting."""

import itertools
import math

import torch
import torch.nn.functional as F

from grids import row_major
from rival_operators import join_heads

SETTINGS = {
    "window": "7",  # one number, or a list with one for each stage
    "shift": "alternate",  # none | alternate
    "window_time": 8,  # of clips
}


def asked(config):
    """A window's sides as they are set: (rows, columns), of clips (frames, rows, columns)."""
    side = int(config.window)
    return [config.window_time, side, side][-len(config.grid):]


def sides(config):
    return [min(window, side) for window, side in zip(asked(config), config.grid)]


def shifts(config, block):
    """Along an axis that is not longer than the window nothing is shifted."""
    odd = config.shift == "alternate" and block % 2 == 1
    return [window // 2 if odd and length > window else 0 for window, length in zip(asked(config), config.grid)]


def partition(x, window):
    """x [...,sides of the grid,C] -> [...,windows,places,C]"""
    axes, lead = len(window), x.ndim - len(window) - 1
    for i, side in enumerate(window):
        x = x.unflatten(lead + 2 * i, (-1, side))
    which, inside = range(lead, lead + 2 * axes, 2), range(lead + 1, lead + 2 * axes, 2)
    x = x.permute(*range(lead), *which, *inside, lead + 2 * axes)
    return x.flatten(lead + axes, -2).flatten(lead, lead + axes - 1)


def departition(x, window, grid):
    """The reverse."""
    axes, lead = len(window), x.ndim - 3
    x = x.unflatten(-2, window).unflatten(lead, [side // part for side, part in zip(grid, window)])
    x = x.permute(*range(lead), *(lead + i + j for i in range(axes) for j in (0, axes)), lead + 2 * axes)
    for i in range(axes):
        x = x.flatten(lead + i, lead + i + 1)
    return x


def mask(grid, window, shift):
    """[windows,places,places]: -100 for pairs from opposite sides of the grid.  Swin paints the rolled grid with the
    numbers of its regions and cuts the painting into windows."""
    painting = torch.zeros(*grid, 1, dtype=torch.float64)
    thirds = [(slice(0, -part), slice(-part, -by), slice(-by, None)) for part, by in zip(window, shift)]
    for count, region in enumerate(itertools.product(*thirds)):
        painting[region] = count
    regions = partition(painting, window).squeeze(-1)
    return -100.0 * (regions[:, None, :] != regions[:, :, None]).double()


def table_index(window):
    """[places,places] by query and key."""
    places = torch.cartesian_prod(*map(torch.arange, window))
    away = places[:, None] - places[None, :] + torch.tensor(window) - 1
    return row_major(away.unbind(-1), [2 * side - 1 for side in window])


def shapes(config):
    return {"relative_position_bias_table": (math.prod(2 * side - 1 for side in sides(config)), config.heads)}


def attention(model, p, q, k, v, block):
    config, window, shift = model.config, sides(model.config), shifts(model.config, block)
    more = [-side % part for side, part in zip(config.grid, window)]
    grid = [side + rest for side, rest in zip(config.grid, more)]
    axes, padding = tuple(range(2, 2 + len(grid))), [0, 0, *(n for rest in reversed(more) for n in (0, rest))]
    empty = F.pad(torch.zeros(*config.grid, 1, dtype=q.dtype), padding, value=1.0)

    def windows(x, bias):
        """What qkv makes of zeros is its bias."""
        x = F.pad(x.unflatten(2, config.grid), padding) + empty * bias.view(-1, *[1] * len(grid), bias.shape[-1])
        return partition(torch.roll(x, [-by for by in shift], axes), window)

    biases = p("qkv.bias").unflatten(0, (3, q.shape[1], -1))
    q, k, v = (windows(x, bias) for x, bias in zip((q, k, v), biases))  # each [B,H,windows,places,D]
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    scores = scores + p("relative_position_bias_table")[table_index(window)].permute(2, 0, 1)[:, None]
    y = (scores + mask(grid, window, shift).to(q.dtype)).softmax(-1) @ v
    y = torch.roll(departition(y, window, grid), shift, axes)
    y = y[(..., *(slice(side) for side in config.grid), slice(None))]
    return join_heads(y.flatten(2, 1 + len(grid)))


SWIN = dict(num_classes=5, patch_merging=1, patch_norm=1, stage_norm=0, norm_eps=1e-5, pos_embed="none",
            stage_depths="2,2", stage_heads="2,3", stage_ratios="2,1")
OPERATORS = {"swin": (shapes, attention)}
CASES = {
    # Grids of 6 x 12, 3 x 6 and 2 x 3: shifted, shifted along rows, windows of 2 x 3.
    "window-alternate": dict(attn="swin", window="3", img_size=(12, 24), patch_overlap=1, num_classes=5,
                             stage_dims="6,8,10", stage_depths="2,2,1", stage_heads="3,2,2",
                             stage_ratios="1,1,1"),
    "window-padded": dict(attn="swin", window="4", img_size=(12, 14), dim=12, heads=2, mlp_ratio=2, num_classes=5),
    # Grids of 8 x 6, 4 x 3: windows of 4 x 4, then 2 x 2 that do not divide it; and focused attention in the first.
    "hierarchy-swin": dict(attn="swin", window="4,2", img_size=(16, 12), stage_dims="4,6", **SWIN),
    "hierarchy-swin-focused": dict(attn="focused,swin", window="2", img_size=(16, 12), stage_dims="4,6", **SWIN),
}


# == Against timm ======================================================================================================


def mmdetection(block, grid, window, shift):
    """The attention of timm's block, but padded before it is rolled."""
    from timm.models import swin_transformer as swin

    def attend(x):
        x = F.pad(x, (0, 0, 0, -grid[1] % window[1], 0, -grid[0] % window[0]))
        size = x.shape[1:3]
        x = torch.roll(x, (-shift[0], -shift[1]), (1, 2))
        seen = swin.SwinTransformerBlock.get_attn_mask(block, x)
        x = block.attn(swin.window_partition(x, window).flatten(1, 2), mask=seen)
        x = swin.window_reverse(x.unflatten(1, window), window, *size)
        return torch.roll(x, shift, (1, 2))[:, :grid[0], :grid[1]]

    return attend


def check_torchvision():
    """Windows of clips against torchvision's ShiftedWindowAttention3d: output and gradients."""
    from torchvision.models.video.swin_transformer import ShiftedWindowAttention3d
    from vit_reference import Config, Vit, random_params

    failures = 0
    for grid, window, number in (((4, 6, 6), (2, 3), 0), ((4, 6, 6), (2, 3), 1), ((5, 7, 4), (3, 4), 1),
                                 ((3, 8, 9), (3, 4), 1), ((6, 5, 3), (4, 3), 1)):
        config = Config(attn="swin", window=str(window[1]), window_time=window[0], img_size=grid[1:], frames=grid[0],
                        patch_size=1, dim=24, heads=3, depth=number + 1)
        generator = torch.Generator().manual_seed(sum(grid))
        model = Vit(config, random_params(config, generator))
        x, direction = torch.randn(2, 2, *grid, 24, generator=generator, dtype=torch.float64)
        prefix, sides = f"blocks.{number}.attn.", [window[0], window[1], window[1]]
        theirs = ShiftedWindowAttention3d(24, sides, [side // 2 * number for side in sides], 3).double()
        theirs.load_state_dict({name.removeprefix(prefix): value for name, value in model.params.items()
                                if name.startswith(prefix)}, strict=False)
        leaves = {name: model.params[prefix + name].requires_grad_() for name, _ in theirs.named_parameters()}

        def ours(tokens):
            return model.attention(number, tokens.flatten(1, 3)).unflatten(1, grid)

        x.requires_grad_()
        results = []
        for attend, parameters in ((ours, leaves.values()), (theirs, theirs.parameters())):
            y = attend(x)
            results.append([y.detach(), *torch.autograd.grad((y * direction).sum(), [x, *parameters])])
        errors = [((a - b).norm() / b.norm()).item() for a, b in zip(*results)]
        failures += not max(errors) < 1e-12
        print(f"window {'x'.join(map(str, grid))} w {'x'.join(map(str, sides))} block {number}   output {errors[0]:.1e}"
              f"   worst gradient {max(errors[1:]):.1e}   {'ok' if max(errors) < 1e-12 else 'FAILED'}")
    return failures


def check_timm():
    """Output and gradients of a block with drawn weights; where the grid is no multiple of the window, timm's
    WindowAttention in mmdetection's order; and windows of clips."""
    from functools import partial

    from timm.models.swin_transformer import SwinTransformerBlock
    from vit_reference import Config, Vit, random_params

    failures = 0
    for grid, side, number in (((8, 8), 4, 0), ((8, 8), 4, 1), ((14, 21), 7, 1), ((4, 12), 4, 1), ((3, 10), 5, 1),
                               ((2, 3), 7, 1), ((6, 7), 4, 0), ((6, 7), 4, 1), ((9, 5), 7, 1)):
        config = Config(attn="swin", window=str(side), img_size=grid, patch_size=1, dim=24, heads=3, depth=number + 1)
        generator = torch.Generator().manual_seed(grid[0])
        model = Vit(config, random_params(config, generator))
        x, direction = torch.randn(2, 2, *grid, 24, generator=generator, dtype=torch.float64)
        prefix = f"blocks.{number}."
        theirs = SwinTransformerBlock(24, grid, 3, window_size=side, shift_size=side // 2 * number,
                                      norm_layer=partial(torch.nn.LayerNorm, eps=1e-6)).double()
        theirs.load_state_dict({name.removeprefix(prefix): value for name, value in model.params.items()
                                if name.startswith(prefix)})
        if any(n % part for n, part in zip(grid, theirs.window_size)):
            theirs._attn = mmdetection(theirs, grid, theirs.window_size, theirs.shift_size)
        leaves = {name: model.params[prefix + name].requires_grad_() for name, _ in theirs.named_parameters()}

        def ours(tokens):
            tokens = tokens.flatten(1, 2)
            tokens = tokens + model.attention(number, model.norm(prefix + "norm1", tokens))
            return (tokens + model.mlp(prefix + "mlp.", model.norm(prefix + "norm2", tokens))).unflatten(1, grid)

        x.requires_grad_()
        results = []
        for block, parameters in ((ours, leaves.values()), (theirs, theirs.parameters())):
            y = block(x)
            results.append([y.detach(), *torch.autograd.grad((y * direction).sum(), [x, *parameters])])
        errors = [((a - b).norm() / b.norm()).item() for a, b in zip(*results)]
        good = max(errors) < 1e-12
        failures += not good
        print(f"window {grid[0]}x{grid[1]} w {side} shift {theirs.shift_size}   output {errors[0]:.1e}   "
              f"worst gradient {max(errors[1:]):.1e}   {'ok' if good else 'FAILED'}")
    return failures + check_torchvision()
