"""Focused and kernel attention in plain PyTorch, from their definitions: see vit_reference.py for the letters.

An operator here is a pair of functions: the shapes of its own parameters (below blocks.i.attn.), and the map from q, k,
v [B,H,N,D] to what the output projection takes [B,N,M].  `model` is the Vit, whose `notes.kinks` collect what enters a
ReLU; p(name) is the block's parameter.
"""

import math

import torch
import torch.nn.functional as F

import grids
from grids import depthwise


def join_heads(x):
    """[B,H,N,D] -> [B,N,M]"""
    return x.transpose(1, 2).flatten(2)


def split_heads(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def relu(model, x):
    model.notes.kinks.append(x.detach())
    return x.relu()


# == Relative position bias of softmax attention =======================================================================


def rpe_shapes(config):
    tables = {"none": 0, "shared": 1, "heads": config.heads}[config.rpe]
    sides = tuple(2 * side - 1 for side in config.grid)
    return {"rpe.weight": (tables, *sides)} if tables else {}


def rpe_bias(config, table):
    """[1 or H,N,N]: by (row, column) of the key less those of the query, in clips with frames; zero for the class
    token."""
    bias = table.flatten(1)[:, grids.toeplitz(config.grid)[0].T]
    return F.pad(bias, (1, 0, 1, 0)) if config.pool == "cls" else bias


# == Focused linear attention (LeapLabTHU/FLatten-Transformer) =========================================================


def focused_shapes(config):
    N, M, D = grids.token_count(config.grid), config.dim, config.dim // config.heads
    return {"positional_encoding": (1, N, M), "scale": (1, 1, M), "dwc.weight": (D, 1, *config.kernel(5)),
            "dwc.bias": (D,)}


def focused(model, p, q, k, v, block):
    def focus(x):
        x = (relu(model, x) + 1e-6) / F.softplus(p("scale"))
        power = x ** model.config.focused_p
        return power / power.norm(dim=-1, keepdim=True) * x.norm(dim=-1, keepdim=True)

    heads, N = q.shape[1], q.shape[2]
    a, b = split_heads(focus(join_heads(q)), heads), split_heads(focus(join_heads(k) + p("positional_encoding")), heads)
    z = 1 / (a @ b.mean(-2, keepdim=True).transpose(-1, -2) + 1e-6)
    y = a @ (b.transpose(-1, -2) @ v / N) * z
    local = depthwise(v.flatten(0, 1), model.config.grid, p("dwc.weight"), p("dwc.bias"))
    return join_heads(y + local.unflatten(0, v.shape[:2]))


# == Efficient attention (Shen et al. 2021), hydra attention (Bolya et al. 2022) =======================================


def efficient(model, p, q, k, v, block):
    return join_heads(q.softmax(-1) @ (k.softmax(-2).transpose(-1, -2) @ v))


def unit(x):
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6)


def hydra(model, p, q, k, v, block):
    q, k, v = join_heads(q), join_heads(k), join_heads(v)
    return unit(q) * (unit(k) * v).sum(-2, keepdim=True)


# == Multi-scale ReLU linear attention (Cai et al. 2023, EfficientViT) =================================================


def relu_linear_shapes(config):
    M, D = config.dim, config.dim // config.heads
    return {"aggreg.0.0.weight": (3 * M, 1, *config.kernel(5)), "aggreg.0.1.weight": (3 * M, D, 1, 1),
            "proj.weight": (M, 2 * M)}


def relu_linear(model, p, q, k, v, block):
    heads = q.shape[1]
    qkv = torch.cat([join_heads(x) for x in (q, k, v)], dim=-1)
    wide = depthwise(qkv, model.config.grid, p("aggreg.0.0.weight"))
    wide = F.conv1d(wide.transpose(1, 2), p("aggreg.0.1.weight").squeeze(-1), groups=3 * heads).transpose(1, 2)
    outputs = []
    for scale in (qkv, wide):
        a, b, c = (split_heads(x, heads) for x in scale.chunk(3, dim=-1))
        weights = relu(model, a) @ relu(model, b).transpose(-1, -2)
        outputs.append(join_heads(weights @ c / (weights.sum(-1, keepdim=True) + 1e-6)))
    return torch.cat(outputs, dim=-1)


# == Linear angular attention (You et al. 2023, Castling-ViT) ==========================================================


def castling(model, p, q, k, v, block):
    """In training, which is all there is here."""
    similarity = 0.5 + unit(q) @ unit(k).transpose(-1, -2) / math.pi
    y = similarity @ v / similarity.sum(-1, keepdim=True)
    smallest = model.config.castling_mask
    if smallest > 0:
        weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
        model.notes.kinks.append((weights / smallest).log().detach())
        y = y + weights.masked_fill(weights <= smallest, 0) @ v
    return join_heads(y) + depthwise(join_heads(v), model.config.grid, p("dconv.weight"))


# == Through landmarks: Nystromformer (Xiong et al. 2021), SOFT (Lu et al. 2021) =======================================


def pseudo_inverse(a, power):
    """Six steps of the cubic scheme from a^T / m^power, m each matrix's largest column sum.  a [...,L,L]."""
    identity = torch.eye(a.shape[-1]).to(a.dtype)
    z = a.transpose(-1, -2) / a.sum(-2).amax(-1)[..., None, None] ** power
    for _ in range(6):
        w = a @ z
        z = z @ (13 * identity - w @ (15 * identity - w @ (7 * identity - w))) / 4
    return z


def cell_means(x, grid, sides):
    """The mean of every cell of a grid [sides] over x [B,H,N,D]: [B,H,L,D]; of a clip, the cells of every frame."""
    rows, columns = ([(i * size // side, (i + 1) * size // side) for i in range(side)]
                     for size, side in zip(grid[-2:], sides))
    x = x.unflatten(2, (-1, *grid[-2:]))
    return torch.stack([x[:, :, t, top:bottom, left:right].mean((2, 3)) for t in range(x.shape[2])
                        for top, bottom in rows for left, right in columns], 2)


def nystrom(model, p, q, k, v, block):
    grid, scale = model.config.grid, math.sqrt(q.shape[-1])
    sides = [min(model.config.landmarks, side) for side in grid[-2:]]
    a, b = cell_means(q, grid, sides), cell_means(k, grid, sides)
    to_landmarks = (q @ b.transpose(-1, -2) / scale).softmax(-1)
    between = (a @ b.transpose(-1, -2) / scale).softmax(-1)
    from_tokens = (a @ k.transpose(-1, -2) / scale).softmax(-1)
    y = to_landmarks @ pseudo_inverse(between, 1) @ (from_tokens @ v)
    return join_heads(y) + depthwise(join_heads(v), grid, p("conv.weight"))


def soft_stride(config):
    sides = config.grid[-2:]
    return min(-(-max(sides) // config.landmarks), *sides)


def soft_shapes(config):
    M, D, r = config.dim, config.dim // config.heads, soft_stride(config)
    return {"qv.weight": (2 * M, M), "qv.bias": (2 * M,), "landmark.weight": (D, D, r, r), "landmark.norm.weight": (D,),
            "landmark.norm.bias": (D,), "conv.weight": (M, 1, *config.kernel(3))}


def gaussian(x, z):
    return torch.exp(-((x[..., :, None, :] - z[..., None, :, :]) ** 2).sum(-1) / 2)


def soft(model, p, q, k, v, block):
    """k is q."""
    grid, D = model.config.grid, q.shape[-1]
    q = q * D ** -0.25
    frames = q.flatten(0, 1).unflatten(1, (-1, *grid[-2:])).permute(1, 0, 4, 2, 3)
    a = torch.cat([F.conv2d(frame, p("landmark.weight"), stride=soft_stride(model.config)).flatten(2).transpose(1, 2)
                   for frame in frames], 1)
    weight, bias = p("landmark.norm.weight"), p("landmark.norm.bias")
    a = F.gelu(F.layer_norm(a.to(weight.dtype), (D,), weight, bias, 1e-5)).unflatten(0, q.shape[:2])
    near = gaussian(q, a)
    y = near @ pseudo_inverse(gaussian(a, a), 2) @ (near.transpose(-1, -2) @ v)
    return join_heads(y) + depthwise(join_heads(v), grid, p("conv.weight"))


# ======================================================================================================================


def nothing(config):
    return {}


# name -> shapes, map
RIVALS = {
    "focused": (focused_shapes, focused),
    "efficient": (nothing, efficient),
    "hydra": (nothing, hydra),
    "relu-linear": (relu_linear_shapes, relu_linear),
    "nystrom": (lambda config: {"conv.weight": (config.dim, 1, *config.kernel(3))}, nystrom),
    "soft": (soft_shapes, soft),
    "castling": (lambda config: {"dconv.weight": (config.dim, 1, *config.kernel(3))}, castling),
}
