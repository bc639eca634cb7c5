"""Convolutions, lambda layers and relational self-attention in plain PyTorch, from their definitions: see
vit_reference.py for the letters.

An operator here is a pair of functions: the shapes of all its parameters (below blocks.i.attn.) but those of the output
projection where that is a [M,M] matrix, and the map from x [B,N,M] to what the output projection takes.  `model` is the
Vit; p(name) is the block's parameter.
"""

import math

import torch
import torch.nn.functional as F

from rival_operators import depthwise, join_heads, split_heads


def qkv_shapes(config):
    return {"qkv.weight": (3 * config.dim, config.dim), "qkv.bias": (3 * config.dim,)}


def projected(p, x, heads):
    """q, k, v [B,H,N,D]"""
    return (split_heads(part, heads) for part in F.linear(x, p("qkv.weight"), p("qkv.bias")).chunk(3, dim=-1))


# == Depthwise convolution =============================================================================================


def dwconv7_shapes(config):
    return {"dwconv.weight": (config.dim, 1, 7, 7), "dwconv.bias": (config.dim,)}


def dwconv7(model, p, x):
    return depthwise(x, model.config.grid, p("dwconv.weight"), p("dwconv.bias"))


# == Multi-scale attention without strides (facebookresearch/mvit, MViTv2) ==============================================


def convattn_shapes(config):
    M, D = config.dim, config.dim // config.heads
    shapes = {**qkv_shapes(config), "pool.weight": (3 * M, 1, 3, 3)}
    for part in "qkv":
        shapes.update({f"norm_{part}.weight": (D,), f"norm_{part}.bias": (D,)})
    del shapes["norm_k.bias"]  # the same for all scores of a query
    return shapes


def convattn(model, p, x):
    heads, D = model.config.heads, model.config.dim // model.config.heads

    def pool(part, z):
        weight = p("pool.weight").chunk(3)["qkv".index(part)]
        z = split_heads(depthwise(join_heads(z), model.config.grid, weight), heads)
        bias = None if part == "k" else p(f"norm_{part}.bias")
        return F.layer_norm(z, (D,), p(f"norm_{part}.weight"), bias, 1e-6)

    q, k, v = (pool(part, z) for part, z in zip("qkv", projected(p, x, heads)))
    return join_heads((q @ k.transpose(-1, -2) / math.sqrt(D)).softmax(-1) @ v + q)


# == Lambda convolution (Bello 2021) ===================================================================================


def offsets(config):
    """t [N,N]: by (row, column) of the query less those of the key; and how many there are."""
    Hg, Wg = config.grid
    y, x = torch.meshgrid(torch.arange(Hg), torch.arange(Wg), indexing="ij")
    y, x = y.flatten(), x.flatten()
    return (y[:, None] - y[None, :] + Hg - 1) * (2 * Wg - 1) + x[:, None] - x[None, :] + Wg - 1, (2 * Hg - 1) * (2 * Wg - 1)


def lambda_shapes(config):
    M, D = config.dim, config.dim // config.heads
    shapes = {"qv.weight": (2 * M, M), "embedding.weight": (offsets(config)[1], D)}
    for part in "qv":
        shapes.update({f"norm_{part}.weight": (D,), f"norm_{part}.bias": (D,)})
    return shapes


def lambda_convolution(model, p, x):
    heads, D = model.config.heads, model.config.dim // model.config.heads
    q, v = (F.layer_norm(split_heads(z, heads), (D,), p(f"norm_{part}.weight"), p(f"norm_{part}.bias"), 1e-6)
            for part, z in zip("qv", F.linear(x, p("qv.weight")).chunk(2, dim=-1)))
    lambdas = torch.einsum("nmk,bhmv->bhnkv", p("embedding.weight")[offsets(model.config)[0]], v)
    return join_heads(torch.einsum("bhnk,bhnkv->bhnv", q, lambdas))


# ======================================================================================================================


# name -> shapes, map
MIXERS = {
    "dwconv7": (dwconv7_shapes, dwconv7),
    "convattn": (convattn_shapes, convattn),
    "lambda": (lambda_shapes, lambda_convolution),
}
