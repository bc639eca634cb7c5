"""Structure-aware attention and LiSA in plain PyTorch, from the paper's equations 9 to 14: every pair of tokens, every
table looked up entry by entry, and no Fourier transform; and GFNet's global filter.  Operators are pairs of functions
as in rival_operators.py.  Letters as in vit_reference.py, and E patterns, T entries of a table.

Run as a program it checks the circular sums against torch.fft, as the paper's Figure 7 writes them.
"""

import sys
from types import SimpleNamespace

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

import torch
import torch.nn.functional as F

import grids


def entries(config):
    """t [N,N] of the operator's tables, -1 where the query does not see the key, and T."""
    if config.attn != "lisa":
        return grids.toeplitz(config.grid)
    if config.lisa_kernel:
        return grids.local(config.grid, config.kernel(config.lisa_kernel, whole=True))
    if config.lisa_fft != "1d":
        return grids.torus(config.grid)
    N = grids.token_count(config.grid)
    return (torch.arange(N)[:, None] - torch.arange(N)[None, :]) % N, N


def parameter_shapes(config):
    """Below blocks.i.attn."""
    M, D, E = config.dim, config.dim // config.heads, config.lisa_patterns
    if config.attn == "gf":
        return {"filter.complex_weight": (*config.grid[:-1], config.grid[-1] // 2 + 1, M, 2)}
    _, T = entries(config)
    if config.attn in ("sa9", "sa9-heads"):
        return {"sa.rpe": (T, config.heads if config.attn == "sa9-heads" else 1)}
    shapes = {"lisa.wa": (T, E) if config.attn == "sa10" else (T, D, E), "lisa.wb": (T, E),
              "lisa.b": (D, E)}
    if config.attn == "lisa":
        shapes.update({"norm.weight": (M,), "norm.bias": (M,)})
    return shapes


def look_up(table, t):
    """table [T,...] -> [N,N,...], zero where t is -1."""
    return torch.cat([table, torch.zeros_like(table[:1])])[t]


def mix(model, p, q, k, v, block):
    config = model.config
    t, _ = entries(config)
    q, k = (x / x.norm(dim=-1, keepdim=True).clamp_min(1e-6) for x in (q, k))
    B, H, N, D = v.shape
    if config.attn in ("sa9", "sa9-heads"):
        weights = look_up(p("sa.rpe"), t).permute(2, 0, 1)  # [1 or H,N,N]
        y = (q @ k.transpose(-1, -2) * weights) @ v
    else:
        wa, wb = look_up(p("lisa.wa"), t), look_up(p("lisa.wb"), t)
        if config.attn == "sa10":
            S = torch.einsum("bhic,bhjc,ije->bhie", q, k, wa)
        else:
            S = torch.einsum("bhic,bhjc,ijce->bhie", q, k, wa)
        y = torch.einsum("bhie,ije,bhjc->bhic", S, wb, v) + torch.einsum("bhie,ce->bhic", S, p("lisa.b"))
    y = y.transpose(1, 2).reshape(B, N, H * D)
    if config.attn == "lisa":
        y = F.layer_norm(y, y.shape[-1:], p("norm.weight"), p("norm.bias"), 1e-6)
    return y


def global_filter(config, weight, x):
    """x [B,N,M] -> [B,N,M] (raoyongming/GFNet), weight [Hg,Wg//2+1,M,2] or [T,Hg,Wg//2+1,M,2]."""
    axes = tuple(range(1, 1 + len(config.grid)))
    filtered = torch.fft.rfftn(x.unflatten(1, config.grid), dim=axes, norm="ortho") * torch.view_as_complex(weight)
    return torch.fft.irfftn(filtered, s=config.grid, dim=axes, norm="ortho").reshape(x.shape)


OPERATORS = {name: (parameter_shapes, mix) for name in ("lisa", "sa9", "sa9-heads", "sa10", "sa11")}
OPERATORS["gf"] = (parameter_shapes, None)  # no queries, keys and values: vit_reference.py calls global_filter


def paper_lisa(q, k, v, wa, wb, b):
    """Figure 7 of the paper up to the layer norm, for one head: q, k, v [B,N,D], k and q normalised."""
    N = q.shape[1]
    k_wa = torch.einsum("bmk,mkd->bmkd", torch.fft.rfft(k, dim=1), torch.fft.rfft(wa, dim=0))
    v_wb = torch.einsum("bmv,md->bmvd", torch.fft.rfft(v, dim=1), torch.fft.rfft(wb, dim=0))
    k_wa, v_wb = torch.fft.irfft(k_wa, n=N, dim=1), torch.fft.irfft(v_wb, n=N, dim=1)
    return torch.einsum("bnk,bnkd,bnvd->bnv", q, k_wa, v_wb + b)


def self_check():
    from vit_reference import Config

    generator = torch.Generator().manual_seed(5)
    for side in ((5, 7), (3, 4), (1, 1)):
        config = Config(attn="lisa", img_size=(2 * side[0], 2 * side[1]), dim=4, heads=1, lisa_patterns=3)
        N = side[0] * side[1]
        q, k, v = (torch.randn(2, N, 4, generator=generator, dtype=torch.float64) for _ in range(3))
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        params = {name: torch.randn(shape, generator=generator, dtype=torch.float64)
                  for name, shape in parameter_shapes(config).items()}
        params["norm.weight"], params["norm.bias"] = torch.ones(4).double(), torch.zeros(4).double()
        ours = mix(SimpleNamespace(config=config), params.get, q[:, None], k[:, None], v[:, None], 0)
        paper = F.layer_norm(paper_lisa(q, k, v, params["lisa.wa"], params["lisa.wb"], params["lisa.b"]), (4,),
                             eps=1e-6)
        worst = (ours - paper).abs().max().item()
        assert worst < 1e-10, worst
        print(f"lisa == the paper's pseudo-code   grid {side[0]}x{side[1]}   worst {worst:.1e}   ok")


if __name__ == "__main__":
    self_check()
