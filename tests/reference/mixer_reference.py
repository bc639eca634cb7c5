"""Convolutions, lambda layers and relational self-attention in plain PyTorch, from their definitions: see
vit_reference.py for the letters.

An operator here is a pair of functions: the shapes of all its parameters (below blocks.i.attn.) but those of the output
projection where that is a [M,M] matrix, and the map from x [B,N,M] to what the output projection takes.  `model` is the
Vit; p(name) is the block's parameter.
"""

import math

import torch
import torch.nn.functional as F

import grids
from grids import depthwise
from rival_operators import join_heads, split_heads


def qkv_shapes(config):
    return {"qkv.weight": (3 * config.dim, config.dim), "qkv.bias": (3 * config.dim,)}


def projected(p, x, heads):
    """q, k, v [B,H,N,D]"""
    return (split_heads(part, heads) for part in F.linear(x, p("qkv.weight"), p("qkv.bias")).chunk(3, dim=-1))


# == Depthwise convolution =============================================================================================


def dwconv7_shapes(config):
    return {"dwconv.weight": (config.dim, 1, *config.kernel(7)), "dwconv.bias": (config.dim,)}


def dwconv7(model, p, x):
    return depthwise(x, model.config.grid, p("dwconv.weight"), p("dwconv.bias"))


# == Multi-scale attention without strides (facebookresearch/mvit, MViTv2) =============================================


def convattn_shapes(config):
    M, D = config.dim, config.dim // config.heads
    shapes = {**qkv_shapes(config), "pool.weight": (3 * M, 1, *config.kernel(3))}
    for part in "qkv":
        shapes.update({f"norm_{part}.weight": (D,), f"norm_{part}.bias": (D,)})
    del shapes["norm_k.bias"]  # the same for all scores of a query
    return shapes


def convattn(model, p, x):
    heads, D = model.config.heads, model.config.dim // model.config.heads

    def pool(part, z):
        weight, stride = p("pool.weight").chunk(3)["qkv".index(part)], 1 if part == "q" else model.config.kv_stride
        z = split_heads(depthwise(join_heads(z), model.config.grid, weight, stride=stride), heads)
        bias = None if part == "k" else p(f"norm_{part}.bias")
        return F.layer_norm(z, (D,), p(f"norm_{part}.weight"), bias, 1e-6)

    q, k, v = (pool(part, z) for part, z in zip("qkv", projected(p, x, heads)))
    return join_heads((q @ k.transpose(-1, -2) / math.sqrt(D)).softmax(-1) @ v + q)


# == Lambda convolution (Bello 2021) ===================================================================================


def offsets(config):
    """t [N,N]: by (row, column) of the query less those of the key, in clips with frames; and how many there are."""
    return grids.toeplitz(config.grid)


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


# == Inception mixer (sail-sg/iFormer), keys and values not pooled =====================================================


def inception_split(config):
    """Channels of the convolution and of the maxima each, of attention; heads of attention."""
    D, low = config.dim // config.heads, config.inception_heads or config.heads // 2
    return (config.dim - low * D) // 2, low * D, low


def inception_shapes(config):
    C, L, _ = inception_split(config)
    return {"high_mixer.conv1.weight": (2 * C, C), "high_mixer.proj1.weight": (2 * C, 1, *config.kernel(3)),
            "high_mixer.proj2.weight": (2 * C, C), "high_mixer.proj2.bias": (2 * C,),
            "low_mixer.qkv.weight": (3 * L, L), "low_mixer.qkv.bias": (3 * L,),
            "conv_fuse.weight": (4 * C + L, 1, *config.kernel(3)), "proj.weight": (config.dim, 4 * C + L)}


def largest_neighbour(model, x):
    """3x3 maxima of x [B,N,C] over the grid, in clips frame by frame; the two largest must not be near each other."""
    image = F.pad(x.transpose(1, 2).unflatten(-1, model.config.grid), (1, 1, 1, 1), value=-math.inf)
    around = image.unfold(-2, 3, 1).unfold(-2, 3, 1).flatten(-2)  # [B,C,(T,)Hg,Wg,9]
    two = around.detach().topk(2).values
    model.notes.kinks.append(two[..., 0] - two[..., 1])
    return around.amax(-1).flatten(2).transpose(1, 2)


def inception(model, p, x):
    C, L, heads = inception_split(model.config)
    first, second, last = x.split((C, C, L), dim=-1)
    first = F.linear(first, p("high_mixer.conv1.weight"))
    first = F.gelu(depthwise(first, model.config.grid, p("high_mixer.proj1.weight")))
    second = largest_neighbour(model, second)
    second = F.gelu(F.linear(second, p("high_mixer.proj2.weight"), p("high_mixer.proj2.bias")))
    q, k, v = (split_heads(z, heads)
               for z in F.linear(last, p("low_mixer.qkv.weight"), p("low_mixer.qkv.bias")).chunk(3, dim=-1))
    last = join_heads((q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1) @ v)
    wide = torch.cat([first, second, last], dim=-1)
    return wide + depthwise(wide, model.config.grid, p("conv_fuse.weight"))


# == Relational self-attention (KimManjin/RSA, "VplusR" for kernel and feature), its window the whole grid =============


def rsa_shapes(config):
    M, D, (_, T) = config.dim, config.dim // config.heads, offsets(config)
    return {"qkv.weight": (3 * M, M), "H1.weight": (T, D, D), "H2.weight": (T, D), "G.weight": (T, D), "P1": (D, D),
            "I": (D, D)}


def rsa(model, p, x):
    t, _ = offsets(model.config)
    q, k, v = (F.normalize(split_heads(z, model.config.heads), dim=-1, eps=1e-6)
               for z in F.linear(x, p("qkv.weight")).chunk(3, dim=-1))
    k_h1 = torch.einsum("nmce,bhmc->bhnce", p("H1.weight")[t], k)
    v_h2 = torch.einsum("nme,bhmc->bhnce", p("H2.weight")[t], v)
    v_g = torch.einsum("nmd,bhmc->bhncd", p("G.weight")[t], v)
    kernel = torch.einsum("bhnc,bhnce->bhne", q, k_h1 + p("P1"))
    feature = torch.einsum("bhncd,bhnce->bhnde", v_g + p("I"), v_h2)
    return join_heads(torch.einsum("bhne,bhnde->bhnd", kernel, feature))


# ======================================================================================================================


# name -> shapes, map
MIXERS = {
    "dwconv7": (dwconv7_shapes, dwconv7),
    "convattn": (convattn_shapes, convattn),
    "lambda": (lambda_shapes, lambda_convolution),
    "inception": (inception_shapes, inception),
    "rsa": (rsa_shapes, rsa),
}
