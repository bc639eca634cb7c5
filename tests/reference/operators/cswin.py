"""Cross-shaped windows (Dong et al. 2022, CSwin Transformer), and focused linear attention in them (FLatten's CSwin):
all pairs of tokens, of which those in different stripes do not count."""

import itertools
import math

import torch
import torch.nn.functional as F

from grids import differences
from rival_operators import join_heads, relu, split_heads

SETTINGS = {
    "stripe": "1",  # one number, or a list with one for each stage; 0: the whole grid
}


def branches(config):
    """[(rows, columns) of a stripe]: vertical stripes and horizontal ones, or the grid."""
    stripe, grid = int(config.stripe), tuple(config.grid[-2:])  # of clips through all frames
    if stripe == 0 or grid == (stripe, stripe):
        return [grid]
    return [(grid[0], stripe), (stripe, grid[1])]


def shapes(config, focused=False):
    own, parts, frames = {}, branches(config), math.prod(config.grid[:-2])
    C, D = config.dim // len(parts), config.dim // config.heads
    for i, (rows, columns) in enumerate(parts):
        if focused:
            own.update({f"attns.{i}.positional_encoding": (1, frames * rows * columns, C),
                        f"attns.{i}.scale": (1, 1, C), f"attns.{i}.dwc.weight": (D, 1, *config.kernel(5)),
                        f"attns.{i}.dwc.bias": (D,)})
        own.update({f"attns.{i}.get_v.weight": (C, 1, *config.kernel(3)), f"attns.{i}.get_v.bias": (C,)})
    return own


def places(grid, stripe):
    """Of every token: its stripe, and its place in there, row by row."""
    *t, y, x = torch.meshgrid(*map(torch.arange, grid), indexing="ij")
    across, frame = grid[-1] // stripe[1], (t[0] if t else 0) * (stripe[0] * stripe[1])
    return ((y // stripe[0] * across + x // stripe[1]).flatten(),
            (frame + y % stripe[0] * stripe[1] + x % stripe[1]).flatten())


def convolve(v, weight, bias, grid, together):
    """Depthwise, v [B,N,C] and weight [C,1,k,k] or [C,1,kt,k,k]: a sum over the tokens that lie at the kernel's offsets,
    without those of another stripe."""
    kernel, away = weight.shape[2:], differences(grid)
    if len(kernel) < len(grid):
        kernel, weight = (1, *kernel), weight[:, :, None]
    result = bias.expand_as(v)
    for tap in itertools.product(*map(range, kernel)):
        at = together.clone()
        for place, side, apart in zip(tap, kernel, away):
            at &= -apart == place - side // 2
        result = result + at.to(v.dtype) @ v * weight[(slice(None), 0, *tap)]
    return result


def softmax(model, p, q, k, v, together, place):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return join_heads(scores.masked_fill(~together, -math.inf).softmax(-1) @ v)


def focused(model, p, q, k, v, together, place):
    def focus(x):
        x = (relu(model, x) + 1e-6) / F.softplus(p("scale"))
        power = x ** model.config.focused_p
        return split_heads(power / power.norm(dim=-1, keepdim=True) * x.norm(dim=-1, keepdim=True), q.shape[1])

    a, b = focus(join_heads(q)), focus(join_heads(k) + p("positional_encoding")[:, place])
    weights = (a @ b.transpose(-1, -2)) * together.to(q.dtype) / (1.0 * together.sum(-1, keepdim=True))
    y = join_heads(weights @ v / (weights.sum(-1, keepdim=True) + 1e-6))
    weight, bias, heads = p("dwc.weight"), p("dwc.bias"), q.shape[1]
    return y + convolve(join_heads(v), weight.repeat(heads, *[1] * (weight.ndim - 1)), bias.repeat(heads),
                        model.config.grid, together)


def attend(attention):
    def operator(model, p, q, k, v, block):
        parts, grid, outputs = branches(model.config), model.config.grid, []
        heads = q.shape[1] // len(parts)
        for i, stripe in enumerate(parts):
            def own(name, i=i):
                return p(f"attns.{i}.{name}")

            here = slice(i * heads, (i + 1) * heads)
            stripes, place = places(grid, stripe)
            together = stripes[:, None] == stripes[None]
            y = attention(model, own, q[:, here], k[:, here], v[:, here], together, place)
            lepe = convolve(join_heads(v[:, here]), own("get_v.weight"), own("get_v.bias"), grid, together)
            outputs.append(y + lepe)
        return torch.cat(outputs, dim=-1)

    return operator


OPERATORS = {
    "cswin": (shapes, attend(softmax)),
    "cswin-focused": (lambda config: shapes(config, True), attend(focused)),
}
STAGES = dict(patch_size=4, patch_overlap=1, patch_pad=2, stage_norm=0, norm_eps=1e-5, pos_embed="none", num_classes=5,
              stage_depths="1,2", stage_ratios="2,1")
CASES = {
    # A grid of 6 x 9 in stripes of 6 x 3 and 3 x 9, then 2 x 4 in stripes of 2 x 1 and 1 x 4, then 3 x 3 in one.
    "cswin": dict(attn="cswin", stripe="3", img_size=(12, 18), dim=12, heads=2, mlp_ratio=2, num_classes=5),
    "cswin-one-wide": dict(attn="cswin", stripe="1", img_size=(4, 8), dim=20, heads=4, mlp_ratio=2, num_classes=5),
    "cswin-square": dict(attn="cswin", stripe="3", img_size=(6, 6), dim=15, heads=3, mlp_ratio=2, num_classes=5),
    "cswin-focused": dict(attn="cswin-focused", stripe="3", img_size=(12, 18), dim=12, heads=2, depth=1, mlp_ratio=2,
                          num_classes=5),
    # Grids of 5 x 6 - of 22 x 23 pixels with two around them - in stripes and 3 x 3; then 4 x 6 and 2 x 3, whole.
    "hierarchy-cswin": dict(attn="cswin", stripe="1,7", img_size=(22, 23), stage_dims="4,6", stage_heads="2,3",
                            **STAGES),
    "hierarchy-cswin-focused": dict(attn="cswin-focused,cswin", stripe="0,7", img_size=(16, 24), stage_dims="4,6",
                                    stage_heads="2,3", **STAGES),
}
