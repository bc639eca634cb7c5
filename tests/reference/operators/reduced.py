"""Attention to fewer keys (Wang et al. 2021 and 2022, PVT and PVTv2), and focused linear attention to them (Han et al.
2023, FLatten's PVT)."""

import math

import torch.nn.functional as F

from grids import depthwise
from rival_operators import join_heads, relu, split_heads

SETTINGS = {
    "reduction": "1",  # one number, or a list with one for each stage
    "reduction_cells": 0,
}


def reduces(config):
    return config.reduction_cells > 0 or config.reduction != "1"


def shapes(config):
    M, r = config.dim, 1 if config.reduction_cells else int(config.reduction)
    own = {"q.weight": (M, M), "q.bias": (M,), "kv.weight": (2 * M, M), "kv.bias": (2 * M,)}
    if reduces(config):
        own.update({"sr.weight": (M, M, r, r), "sr.bias": (M,), "norm.weight": (M,), "norm.bias": (M,)})
    return own


def keys(config, p, x):
    if not reduces(config):
        return x
    rows, columns = config.grid[-2:]  # a frame of a clip is an image
    image = x.transpose(1, 2).reshape(len(x), x.shape[-1], -1, rows, columns).transpose(1, 2).flatten(0, 1)
    if config.reduction_cells:
        image = F.adaptive_avg_pool2d(image, config.reduction_cells)
    z = F.conv2d(image, p("sr.weight"), p("sr.bias"), stride=p("sr.weight").shape[-1]).flatten(2).transpose(1, 2)
    z = z.reshape(len(x), -1, x.shape[-1])
    z = F.layer_norm(z, z.shape[-1:], p("norm.weight"), p("norm.bias"), 1e-5)
    return F.gelu(z) if config.reduction_cells else z


def projections(config, p, x):
    """q [B,N,M], k and v [B,L,M]."""
    kv = F.linear(keys(config, p, x), p("kv.weight"), p("kv.bias"))
    return F.linear(x, p("q.weight"), p("q.bias")), *kv.chunk(2, dim=-1)


def reduced(model, p, x):
    q, k, v = (split_heads(part, model.config.heads) for part in projections(model.config, p, x))
    return join_heads((q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1) @ v)


def focused_shapes(config):
    (rows, columns), M, D, r = config.grid, config.dim, config.dim // config.heads, int(config.reduction)
    return {**shapes(config), "positional_encoding": (1, (rows // r) * (columns // r), M), "scale": (1, 1, M),
            "dwc.weight": (D, 1, 5, 5), "dwc.bias": (D,)}


def focused(model, p, x):
    """All weights of queries by keys, and a convolution of v that is brought to all tokens."""
    heads = model.config.heads
    q, k, v = projections(model.config, p, x)

    def focus(x):
        x = (relu(model, x) + 1e-6) / F.softplus(p("scale"))
        power = x ** model.config.focused_p
        return split_heads(power / power.norm(dim=-1, keepdim=True) * x.norm(dim=-1, keepdim=True), heads)

    weights = focus(q) @ focus(k + p("positional_encoding")).transpose(-1, -2) / k.shape[1]
    y = join_heads(weights @ split_heads(v, heads) / (weights.sum(-1, keepdim=True) + 1e-6))
    v = F.interpolate(v.transpose(1, 2), size=x.shape[1], mode="linear").transpose(1, 2)
    return y + depthwise(v, model.config.grid, p("dwc.weight").repeat(heads, 1, 1, 1), p("dwc.bias").repeat(heads))


STAGES = dict(attn="reduced", patch_size=2, patch_overlap=1, mlp_conv=1, num_classes=5, pos_embed="none", stage_dims="6,8",
              stage_depths="1,2", stage_heads="2,2", stage_ratios="2,1")
PVT = dict(attn="reduced", patch_size=2, patch_norm=1, stage_norm=0, num_classes=5, pool="cls", pos_embed="stages",
           stage_dims="6,8", stage_depths="1,2", stage_heads="1,2", stage_ratios="2,1")
FLATTEN = {**PVT, "pool": "gap-raw"}
MIXERS = {"reduced": (shapes, reduced), "focused-reduced": (focused_shapes, focused)}
CASES = {
    "reduced": dict(attn="reduced", reduction="2", img_size=(10, 14), dim=12, heads=3),
    "reduced-one": dict(attn="reduced", img_size=(6, 10), dim=12, heads=3, depth=1),
    "reduced-cells": dict(attn="reduced", reduction_cells=3, img_size=(10, 14), dim=12, heads=3),
    "reduced-more-cells": dict(attn="reduced", reduction_cells=4, img_size=(6, 18), dim=12, heads=2, depth=1),
    "hierarchy-reduced": dict(reduction="3,1", img_size=(13, 18), **STAGES),
    "hierarchy-pvt-cls": dict(reduction="3,1", img_size=(20, 12), **PVT),
    "hierarchy-pvt-gap": dict(reduction="2,2", img_size=(12, 20), **{**PVT, "pool": "gap"}),
    "focused-reduced": dict(attn="focused-reduced", reduction="2", img_size=(10, 14), dim=12, heads=2, depth=1),
    "focused-reduced-one": dict(attn="focused-reduced", img_size=(6, 10), dim=12, heads=2, depth=1),
    "hierarchy-focused-reduced": dict(**{**FLATTEN, "attn": "focused-reduced,reduced"}, reduction="3,2",
                                      img_size=(20, 24)),
    "hierarchy-reduced-cells": dict(reduction_cells=2, mlp_relu=1, img_size=(13, 18), **STAGES),
}


def official(config, params, prefix, x, linear):
    """timm's Attention of pvt_v2."""
    import torch
    from timm.models.pvt_v2 import Attention
    layer = Attention(config.dim, config.heads, sr_ratio=int(config.reduction), linear_attn=linear).double()
    layer.load_state_dict({name[len(prefix):]: value for name, value in params.items() if name.startswith(prefix)})
    with torch.no_grad():
        return layer(x, config.grid)


def check_timm():
    """Both forms of this file against timm's pvt_v2, on odd grids."""
    import torch
    from vit_reference import Config, Vit, parameter_shapes
    failures = 0
    for form, linear in (({"reduction": "2"}, False), ({"reduction": "1"}, False), ({"reduction_cells": 7}, True)):
        config = Config(attn="reduced", img_size=(18, 20), dim=12, heads=3, depth=1, **form)
        torch.manual_seed(3)
        params = {name: torch.randn(shape, dtype=torch.float64) / 3 for name, shape in parameter_shapes(config).items()}
        x = torch.randn(2, config.grid[0] * config.grid[1], config.dim, dtype=torch.float64)
        ours, theirs = Vit(config, params).attention(0, x), official(config, params, "blocks.0.attn.", x, linear)
        away = ((ours - theirs).abs().max() / theirs.square().mean().sqrt()).item()
        print(f"reduced {form}: {away:.1e}")
        failures += away > 1e-12
    return failures
