"""Tables on a grid, carried over to another grid by PyTorch: what layers/vit/resample_grid.c is compared with.

    new = interpolate(table as [1,channels,rows,columns], size, mode="bicubic", antialias=True, align_corners=False)

in float64, positions before the grid copied.  Swin's tables of relative positions are resampled without antialias, as
its own program does for fine-tuning, or by timm's resize_rel_pos_bias_table, and PVT's positions bilinearly, as its program
does.  That first call is what timm's resample_abs_pos_embed makes, and its result (float32) must be this one.  Writes
tests/fixtures/finetune/resample.safetensors.  Needs a current PyTorch and timm.
"""

import os
import sys

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

import numpy as np
import torch
import torch.nn.functional as F

import safetensors_io

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "finetune", "resample.safetensors")

# name -> shape with the grid's dimensions as (rows, columns), where they are, positions before them, new grid
CASES = {
    "pos_embed": ((1, (14, 14), 3), 1, 1, (24, 24)),
    "smaller": ((1, (9, 12), 4), 1, 0, (5, 7)),
    "one_each": ((1, (5, 7), 4), 1, 2, (9, 4)),
    "wa": (((6, 5), 3, 2), 0, 0, (11, 8)),
    "toeplitz": ((3, (9, 13)), 1, 0, (17, 25)),
    "point": ((1, (1, 1), 5), 1, 1, (3, 2)),
    "swin": (((13, 13), 3), 0, 0, (23, 23)),
    "swin_smaller": (((13, 9), 2), 0, 0, (5, 3)),
    "swin_narrow": (((1, 3), 2), 0, 0, (7, 5)),
    "timm": (((13, 13), 3), 0, 0, (23, 23)),
    "timm_smaller": (((13, 9), 2), 0, 0, (5, 3)),
    "timm_narrow": (((1, 3), 2), 0, 0, (7, 5)),
    "timm_one_axis": (((13, 7), 2), 0, 0, (13, 15)),
    "pvt": ((1, (8, 8), 3), 1, 0, (12, 11)),
    "pvt_cls": ((1, (7, 7), 2), 1, 1, (4, 10)),
}
OTHERS = {"swin": "bicubic", "pvt": "bilinear", "timm": "geometric"}  # without antialias, by the case's first word


def resampled(table, prefix, grid, size, other):
    """table [outer,prefix + rows*columns,inner]; other: a mode without antialias, or None"""
    outer, _, inner = table.shape
    front, rest = table[:, :prefix], table[:, prefix:].reshape(outer, *grid, inner).permute(0, 3, 1, 2)
    rest = F.interpolate(rest, size=size, mode=other or "bicubic", antialias=not other, align_corners=False)
    return torch.cat([front, rest.permute(0, 2, 3, 1).reshape(outer, -1, inner)], dim=1)


def resized_by_timm(table, grid, size):
    """timm's own function for tables of relative positions, [rows*columns,heads], which computes in the default type"""
    from timm.layers import resize_rel_pos_bias_table
    windows = [tuple((side + 1) // 2 for side in sides) for sides in (size, grid)]
    torch.set_default_dtype(torch.float64)
    wanted = resize_rel_pos_bias_table(table[0], windows[0], (size[0] * size[1], table.shape[2]), windows[1])
    torch.set_default_dtype(torch.float32)
    return wanted[None]


def compare_with_timm(table, prefix, grid, size, wanted):
    try:
        from timm.layers import resample_abs_pos_embed
    except ImportError:
        return "timm is not here"
    theirs = resample_abs_pos_embed(table.float(), size, grid, num_prefix_tokens=prefix)
    worst = (theirs.double() - wanted).abs().max().item()
    assert worst < 1e-5, worst
    return f"timm's differs by {worst:.0e}"


def main():
    random = np.random.RandomState(1)
    tensors, metadata = {}, {}
    for name, (shape, axis, prefix, size) in CASES.items():
        grid = shape[axis]
        outer, inner = int(np.prod(shape[:axis])), int(np.prod(shape[axis + 1:]))
        table = random.standard_normal((outer, prefix + grid[0] * grid[1], inner)).astype(np.float32)
        wide = torch.from_numpy(table).double()
        other = OTHERS.get(name.split("_")[0])
        if other == "geometric":
            wanted = resized_by_timm(wide, grid, size)
        else:
            wanted = resampled(wide, prefix, grid, size, other)
        two = name == "toeplitz"  # rows and columns in dimensions of their own
        old, new = ((*grid,), size) if two else ((prefix + grid[0] * grid[1],), (prefix + size[0] * size[1],))
        tensors[name + ".from"] = table.reshape(*shape[:axis], *old, *shape[axis + 1:])
        tensors[name + ".to"] = wanted.numpy().reshape(*shape[:axis], *new, *shape[axis + 1:])
        metadata[name] = "axis %d axes %d prefix %d from %dx%d to %dx%d" % (axis, 1 + two, prefix, *grid, *size)
        if other:
            metadata[name] += " by " + other
        timm_has = outer == 1 and not other
        print(name, metadata[name], compare_with_timm(wide, prefix, grid, size, wanted) if timm_has else "")
    metadata["torch"] = torch.__version__
    os.makedirs(os.path.dirname(PATH), exist_ok=True)
    safetensors_io.write(PATH, tensors, metadata)
    print(f"{os.path.getsize(PATH) / 1024:.0f} KiB")


if __name__ == "__main__":
    sys.exit(main())
