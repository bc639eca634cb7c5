"""Feature maps and relative positions of linear attention in plain PyTorch, each from its definition: whole matrices of
rotations and permutations, codes for every token, nothing fused.

Letters as in vit_reference.py; F features of a map, E random ones.  A tensor that is drawn instead of learned is a
buffer: it has a name like a parameter and no gradient.
"""

import itertools
import math

import torch
import torch.nn.functional as F

SINES, TAPS = 12, 200
MAY_BE_NEGATIVE = ("rfa",)


def feature_count(feature_map, D):
    return 2 * D if feature_map in ("rfa", "dpfp") else D


def map_shapes(feature_map, D):
    if feature_map == "mlp":
        return {"feature.w1": (D, D), "feature.w2": (D, 2 * D), "feature.b2": (D,)}
    if feature_map == "mlp-random-w1":
        return {"feature.w2": (D, 2 * D), "feature.b2": (D,)}
    if feature_map in ("t2r", "mlp-no-fc"):
        return {"feature.weight": (D, D), "feature.bias": (D,)}
    return {}


def map_buffers(feature_map, H, D):
    if feature_map in ("rfa", "performer"):
        return {"feature.weight": (H, D, D)}
    return {"feature.w1": (D, D)} if feature_map == "mlp-random-w1" else {}


def relative_shapes(relative, H, D):
    if relative == "sincspe":
        shapes = {f"relative.{name}": (H, D, SINES) for name in ("freqs", "offsets", "gains")}
        return {**shapes, "relative.gate": (H, D)}
    if relative == "convspe":
        return {"relative.conv_q": (H, D, TAPS), "relative.conv_k": (H, D, TAPS), "relative.gate": (H, D)}
    return {}


def relative_buffers(relative, H, D, N, features):
    if relative == "permute":
        return {"relative.permutation": (H, features)}
    if relative in ("sincspe", "convspe"):
        rows = 2 * SINES if relative == "sincspe" else N + TAPS - 1
        return {"relative.noise": (H, D, rows, D), "relative.common": (H, D, D)}
    return {}


class Notes:
    """What a forward pass leaves behind: `kinks`, what entered the ReLUs of feature maps; `denominators`, sums over
    keys before their rule; `constants`, the maxima that count as constants of the backward pass.  With `replay` the
    constants are those of an earlier pass: a function whose derivatives are those of the backward pass."""

    def __init__(self, replay=None):
        self.kinks, self.denominators, self.constants = [], [], []
        self.replay = list(replay or [])

    def constant(self, value):
        self.constants.append(self.replay.pop(0) if self.replay else value.detach())
        return self.constants[-1]


# == Feature maps ======================================================================================================


def features(feature_map, params, prefix, z, keys, notes):
    """phi(z) [B,H,N,F] of z [B,H,N,D]; keys: z are keys."""
    D = z.shape[-1]
    x = z * D ** -0.25

    def relu(pre):
        notes.kinks.append(pre.detach())
        return pre.relu()

    if feature_map in ("mlp", "mlp-random-w1"):
        angle = F.linear(x, params[prefix + "feature.w1"])
        return relu(F.linear(torch.cat([angle.sin(), angle.cos()], dim=-1), params[prefix + "feature.w2"],
                             params[prefix + "feature.b2"]))
    if feature_map in ("t2r", "mlp-no-fc"):
        return relu(F.linear(x, params[prefix + "feature.weight"], params[prefix + "feature.bias"]))
    if feature_map == "dpfp":
        u = relu(torch.cat([x, -x], dim=-1))
        return u * u.roll(1, dims=-1)
    w = params[prefix + "feature.weight"]  # [H,E,D]
    u, square = torch.einsum("hed,bhnd->bhne", w, x), x.square().sum(-1, keepdim=True) / 2
    if feature_map == "rfa":
        height = torch.exp(square - notes.constant(square.amax(2, keepdim=True)))
        return height * torch.cat([u.sin(), u.cos()], dim=-1) / math.sqrt(w.shape[1])
    assert feature_map == "performer"
    most = notes.constant(u.amax((2, 3), keepdim=True) if keys else u.amax(3, keepdim=True))
    return (torch.exp(u - square - most) + 1e-4) / math.sqrt(w.shape[1])


def denominator(feature_map, total):
    if feature_map not in MAY_BE_NEGATIVE:
        return total + 1e-6
    sign = torch.where(total < 0, -1.0, 1.0).to(total.dtype)
    return sign * total.abs().clamp(min=1e-2)


# == Relative positions ================================================================================================


def rotations(relative, config, N, features, dtype):
    """[N,F,F]: what each token's features are multiplied with."""
    matrices = torch.eye(features, dtype=dtype).repeat(N, 1, 1)
    grid = list(itertools.product(*map(range, config.grid)))
    first = N - len(grid)  # a class token has no place on the grid
    for n in range(N):
        turns = []  # (pair, angle)
        if relative == "rope":
            turns = [(p, n * 10000 ** (-2 * p / features)) for p in range(features // 2)]
        elif n >= first:
            axes = len(config.grid)
            count = features // (2 * axes)
            for axis in range(axes):
                place = grid[n - first][axis]
                turns += [(axis * count + p, place * 10000 ** (-2 * axes * p / features)) for p in range(count)]
        for p, angle in turns:
            matrices[n, 2 * p:2 * p + 2, 2 * p:2 * p + 2] = torch.tensor(
                [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=dtype)
    return matrices


def permuted(phi, permutation):
    """y_(n,f) = phi_(n, pi^n(f)), head by head."""
    rows = []
    for h in range(phi.shape[1]):
        order, power = [], list(range(phi.shape[-1]))
        for _ in range(phi.shape[2]):
            order.append(power)
            power = [int(permutation[h, f]) for f in power]
        rows.append(torch.stack([phi[:, h, n, index] for n, index in enumerate(order)], dim=1))
    return torch.stack(rows, dim=1)


def codes(relative, params, prefix, N):
    """Qbar, Kbar [H,N,D,R], R = D realisations."""
    def of(name):
        return params[prefix + "relative." + name]

    gate, noise, common = of("gate"), of("noise"), of("common")
    D = gate.shape[1]
    if relative == "sincspe":
        frequency = torch.sigmoid(of("freqs")) / 2
        turns = 2 * math.pi * torch.arange(N, dtype=gate.dtype)[:, None, None, None] * frequency  # [N,H,D,K]
        z = noise * F.softplus(of("gains")).repeat(1, 1, 2)[..., None] / math.sqrt(2 * SINES)
        raw = [torch.einsum("nhdk,hdkr->hndr", torch.cat([angle.cos(), angle.sin()], dim=-1), z)
               for angle in (turns + of("offsets"), turns)]
    else:
        H = gate.shape[0]
        signal = noise.permute(3, 0, 1, 2).reshape(D, H * D, N + TAPS - 1)  # [R,H D,time]
        raw = [F.conv1d(signal, of(name).reshape(H * D, 1, TAPS), groups=H * D)
               .reshape(D, H, D, N).permute(1, 3, 2, 0) for name in ("conv_q", "conv_k")]
    g = torch.sigmoid(gate)[:, None, :, None]
    scale = (D * D) ** 0.25  # (realisations times columns)^(1/4)
    return [(torch.sqrt(1 - g) * c + torch.sqrt(g) * common[:, None]) / scale for c in raw]


def linear_attention(config, params, prefix, q, k, v, notes):
    """y [B,H,N,D] of q, k, v [B,H,N,D]."""
    N = q.shape[2]
    if config.relative in ("sincspe", "convspe"):
        q, k = (torch.einsum("bhnd,hndr->bhnr", x, code)
                for x, code in zip((q, k), codes(config.relative, params, prefix, N)))
    phi = [features(config.feature_map, params, prefix, z, keys, notes) for keys, z in enumerate((q, k))]
    psi = phi
    if config.relative in ("rope", "rope-2d", "rope-3d"):
        turn = rotations(config.relative, config, N, phi[0].shape[-1], q.dtype)
        psi = [torch.einsum("nfg,bhng->bhnf", turn, x) for x in phi]
    elif config.relative == "permute":
        psi = phi = [permuted(x, params[prefix + "relative.permutation"]) for x in phi]
    weights = psi[0] @ psi[1].transpose(-1, -2)
    total = (phi[0] @ phi[1].transpose(-1, -2)).sum(-1, keepdim=True)
    notes.denominators.append(total.detach())
    return weights @ v / denominator(config.feature_map, total)
