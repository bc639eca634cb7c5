"""train_vit's attention operators against the code that their authors published.

    python3 tests/reference/check_rivals.py build/cpu/train_vit CHECKOUTS [--only hydra,gf] [--verbose]

CHECKOUTS/OWNER/NAME are one's own copies of GitHub's repositories (OFFICIAL below names them); an operator whose copy
is not there is left out.  The host is a model of ours of two blocks, the package python/vitc.  Its
attention is replaced with the published module, imported as it lies, whose parameters are functions of ours, so that
its gradients are those of our parameters.  All of that runs in float64 and is compared with
    reference   the host with its own attention: the same mathematics, or not; and
    train_vit   --parity with the same parameters, images and labels: the C program, in float32.
Figures are the norm of the difference over the norm, the worst of the tensors.  Where an operator of ours differs from
the published one on purpose, the comment on top of its file in layers/attention says in what, and the adapter here puts
exactly that aside.  The exit status is 0 if all are within the tolerances.  Needs a current PyTorch, timm and einops.
"""

import argparse
import contextlib
import functools
import importlib.abc
import importlib.machinery
import math
import os
import subprocess
import sys
import tempfile
import types
import warnings
from unittest import mock


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary", help="build/cpu/train_vit")
    parser.add_argument("checkouts", help="folder with OWNER/NAME for every repository")
    parser.add_argument("--only", help="operators, with commas between them (default: all)")
    parser.add_argument("--verbose", action="store_true", help="every tensor")
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import timm.layers
import torch
import torch._inductor.config
import torch.nn.functional as F
from torch.func import functional_call

import flags
import safetensors_io
import vit_reference
from compare_parity import norm_error
from vit_reference import Config
from vitc.attention import features, landmarks, relative
from vitc.attention.softmax import sparse_sets
from vitc.grids import depthwise
from vitc.layers import join_heads, split_heads

REFERENCE_TOLERANCE, PROGRAM_TOLERANCE = 1e-10, 1e-4
ABSENT = {"SOFT._C", "axial_positional_embedding", "blocksparse", "cv2", "distutils", "fvcore", "iopath",
          "local_attention", "numpy.lib.arraypad", "onnx", "onnxsim", "psutil", "simplejson", "tensorflow",
          "timm.models.layers.helpers", "transformers", "triton",
          "fast_transformers.aggregate.aggregate_cpu", "fast_transformers.causal_product.causal_product_cpu",
          "fast_transformers.clustering.hamming.cluster_cpu", "fast_transformers.hashing.hash_cpu",
          "fast_transformers.local_product.local_product_cpu", "fast_transformers.sparse_product.sparse_product_cpu",
          "fast_transformers.sparse_product.clustered_sparse_product_cpu"}  # imported, and not needed here


class Standins(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An empty module for what is absent."""

    def find_spec(self, name, path, target=None):
        known = any(name == absent or name.startswith(absent + ".") for absent in ABSENT)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec):
        return mock.MagicMock(__name__=spec.name, __path__=[])

    def exec_module(self, module):
        pass


@functools.cache
def published(checkout, folder, name):
    """The module `name` from checkout/folder.  It and what it imports from there are forgotten afterwards."""
    standins = Standins()
    with mock.patch.object(sys, "path", [os.path.join(checkout, folder), *sys.path]), \
            mock.patch.object(sys, "meta_path", [*sys.meta_path, standins]), contextlib.redirect_stdout(None):
        module = importlib.import_module(name)
    for loaded, value in list(sys.modules.items()):
        if isinstance(value, mock.MagicMock) or str(getattr(value, "__file__", None)).startswith(checkout):
            del sys.modules[loaded]
    return module


@contextlib.contextmanager
def on_cpu_in_float64():
    """Casts to float32 and moves to the GPU in the published code do nothing."""
    with mock.patch.object(torch.Tensor, "float", torch.Tensor.double), \
            mock.patch.object(torch, "float32", torch.float64), \
            mock.patch.object(torch.Tensor, "cuda", lambda x: x):
        yield


def image(x, grid):
    """[B,N,C] -> [B,C,Hg,Wg]"""
    return x.transpose(1, 2).unflatten(-1, grid)


def tokens(x):
    """[B,C,Hg,Wg] -> [B,N,C]"""
    return x.flatten(2).transpose(1, 2)


def output(p, mixed):
    return F.linear(mixed, p("proj.weight"), p("proj.bias"))


def queries_keys_values(p, config, x):
    """each [B,H,N,D]"""
    parts = F.linear(x, p("qkv.weight"), p("qkv.bias")).chunk(3, dim=-1)
    return (split_heads(part, config.heads) for part in parts)


def same_names(p, *names):
    return {name: p(name) for name in names}


# == One adapter an operator: (checkout, config, p, x [B,N,M], block) -> what attention adds, [B,N,M] ==================


def focused(checkout, config, p, x, block):
    attention = published(checkout, "", "models.flatten_pvt").FocusedLinearAttention
    with contextlib.redirect_stdout(None):
        module = attention(config.dim, x.shape[1], config.heads, qkv_bias=True, focusing_factor=config.focused_p)
    (q, kv), (qb, kvb) = (p(f"qkv.{part}").split([config.dim, 2 * config.dim]) for part in ("weight", "bias"))
    theirs = {"q.weight": q, "q.bias": qb, "kv.weight": kv, "kv.bias": kvb}
    theirs |= same_names(p, "proj.weight", "proj.bias", "dwc.weight", "dwc.bias", "scale", "positional_encoding")
    return functional_call(module, theirs, (x, *config.grid))


def focused_reduced(checkout, config, p, x, block):
    """A square grid that the squares divide: their encoding has N / r^2 rows."""
    attention = published(checkout, "", "models.flatten_pvt").FocusedLinearAttention
    with contextlib.redirect_stdout(None):
        module = attention(config.dim, x.shape[1], config.heads, qkv_bias=True, focusing_factor=config.focused_p,
                           sr_ratio=int(config.reduction))
    theirs = same_names(p, *(name for name, _ in module.named_parameters()))
    return functional_call(module, theirs, (x, *config.grid))


def relu_linear(checkout, config, p, x, block):
    """Theirs has q, k and v of a head next to each other.  The epsilon is ours."""
    M, D = config.dim, config.dim // config.heads
    ops = published(checkout, "", "efficientvit.models.nn.ops")
    module = ops.LiteMLA(M, M, heads=config.heads, dim=D, use_bias=True, norm=None, eps=1e-6)
    order = torch.arange(3 * M).reshape(3, config.heads, D).transpose(0, 1).flatten()
    none = torch.zeros(3 * M)
    theirs = {"qkv.conv.weight": p("qkv.weight")[order, :, None, None], "qkv.conv.bias": p("qkv.bias")[order],
              "aggreg.0.0.weight": p("aggreg.0.0.weight")[order], "aggreg.0.0.bias": none,
              "aggreg.0.1.weight": p("aggreg.0.1.weight")[order], "aggreg.0.1.bias": none,
              "proj.conv.weight": p("proj.weight")[:, :, None, None], "proj.conv.bias": p("proj.bias")}
    return tokens(functional_call(module, theirs, (image(x, config.grid),)))


def nystrom(checkout, config, p, x, block):
    """On a grid of few rows, whose cells are runs of tokens.  The convolution is ours."""
    L = config.grid[0] * config.landmarks
    settings = {"head_dim": config.dim // config.heads, "num_head": config.heads, "num_landmarks": L,
                "seq_len": x.shape[1], "inv_coeff_init_option": "exact", "inv_init_coeff_option": "exact"}
    module = published(checkout, "LRA/code", "attention_nystrom").NystromAttention(settings)
    q, k, v = queries_keys_values(p, config, x)
    mixed = module(q, k, v, torch.ones(x.shape[:2]))
    return output(p, join_heads(mixed) + depthwise(join_heads(v), config.grid, p("conv.weight")))


def soft(checkout, config, p, x, block):
    """The pseudo-inverse and the convolution are ours."""
    code = published(checkout, "", "models.softmax_free_transformer")
    code.newton_inverse_kernel = lambda a, steps: landmarks.pseudo_inverse(a, 2)
    module = code.SoftmaxFreeAttentionKernel(config.dim, config.heads, landmarks.soft_stride(config), 0,
                                             kernel_method="torch")
    q, v = (split_heads(z, config.heads) for z in F.linear(x, p("qv.weight"), p("qv.bias")).chunk(2, dim=-1))
    theirs = {"Qlandmark_op.weight": p("landmark.weight"), "Qnorm_act.0.weight": p("landmark.norm.weight"),
              "Qnorm_act.0.bias": p("landmark.norm.bias")}
    with on_cpu_in_float64():
        mixed = functional_call(module, theirs, (q, v, *config.grid))
    return output(p, join_heads(mixed) + depthwise(join_heads(v), config.grid, p("conv.weight")))


def hydra(checkout, config, p, x, block):
    """The paper prints its code; this is a copy of it."""
    module = published(checkout, "", "hydra").HydraAttention(config.dim)
    theirs = {"out.weight": p("proj.weight"), "out.bias": p("proj.bias"), **same_names(p, "qkv.weight", "qkv.bias")}
    return functional_call(module, theirs, (x,))


def efficient(checkout, config, p, x, block):
    """Theirs adds its input."""
    module = published(checkout, "", "efficient_attention").EfficientAttention(config.dim, config.dim, config.heads,
                                                                               config.dim)
    theirs = {}
    for kind in ("weight", "bias"):
        parts = zip(("queries", "keys", "values", "reprojection"), [*p("qkv." + kind).chunk(3), p("proj." + kind)])
        theirs |= {f"{part}.{kind}": value[..., None, None] if kind == "weight" else value for part, value in parts}
    return tokens(functional_call(module, theirs, (image(x, config.grid),))) - x


def gf(checkout, config, p, x, block):
    module = published(checkout, "", "gfnet").GlobalFilter(config.dim, config.grid[0], config.grid[1] // 2 + 1)
    with on_cpu_in_float64():
        mixed = functional_call(module, {"complex_weight": p("filter.complex_weight")}, (x, config.grid))
    return output(p, mixed)


def inception(checkout, config, p, x, block):
    """A square grid.  Keys and values are not pooled."""
    code = published(checkout, "models", "inception_transformer")
    low = config.inception_heads or config.heads // 2
    module = code.Mixer(config.dim, config.heads, qkv_bias=True, attention_head=low, pool_size=1)
    theirs = same_names(p, "high_mixer.proj1.weight", "high_mixer.proj2.bias", "low_mixer.qkv.weight",
                        "low_mixer.qkv.bias", "conv_fuse.weight", "proj.bias")
    for name in ("high_mixer.conv1.weight", "high_mixer.proj2.weight", "proj.weight"):
        theirs[name] = p(name)[..., None, None]
    y = functional_call(module, theirs, (image(x, config.grid).permute(0, 2, 3, 1),))
    return y.flatten(1, 2)


def convattn(checkout, config, p, x, block):
    """Head by head, because the published heads share their filters.  They have a bias after k's norm, which softmax cancels."""
    M, D = config.dim, config.dim // config.heads
    attention = published(checkout, "", "mvit.models.attention").MultiScaleAttention
    module = attention(M, D, config.grid, 1, qkv_bias=True, kernel_q=(3, 3), kernel_kv=(3, 3), stride_q=(1, 1),
                       stride_kv=(1, 1), has_cls_embed=False,
                       norm_layer=lambda width: torch.nn.LayerNorm(width, eps=1e-6))
    mixed = []
    for h in range(config.heads):
        rows = torch.cat([torch.arange(D) + h * D + part * M for part in range(3)])
        theirs = {"qkv.weight": p("qkv.weight")[rows], "qkv.bias": p("qkv.bias")[rows], "norm_k.bias": torch.zeros(D),
                  "proj.weight": torch.eye(D), "proj.bias": torch.zeros(D)}
        for part, weight in zip("qkv", p("pool.weight")[rows].chunk(3)):
            theirs |= {f"pool_{part}.weight": weight, f"norm_{part}.weight": p(f"norm_{part}.weight")}
        theirs |= same_names(p, "norm_q.bias", "norm_v.bias")
        mixed.append(functional_call(module, theirs, (x, config.grid))[0])
    return output(p, torch.cat(mixed, dim=-1))


def turned(table, config):
    """The table of vit.c [T,...] is by query less key, the published one by key less query: [2Hg-1,2Wg-1,...]."""
    Hg, Wg = config.grid
    return table.unflatten(0, (2 * Hg - 1, 2 * Wg - 1)).flip(0, 1)


def lambda_convolution(checkout, config, p, x, block):
    """A square grid; a published layer for each head, because its heads share v; no content lambda, and the norms of vit.c."""
    D = config.dim // config.heads
    code = published(checkout, "", "lambda_networks.lambda_networks")
    q_rows, v_rows = p("qv.weight").chunk(2)
    content, einsum = "b u k m, b u v m -> b k v", code.einsum
    code.einsum = lambda equation, *z: einsum(equation, *z) * (equation != content)

    class Norm(torch.nn.Module):
        def __init__(self, part):
            super().__init__()
            self.part = part

        def forward(self, z):
            return F.layer_norm(z.movedim(1, -1), (D,), p(f"norm_{self.part}.weight"), p(f"norm_{self.part}.bias"),
                                1e-6).movedim(-1, 1)

    module = code.LambdaLayer(config.dim, dim_k=D, n=config.grid[0], heads=1, dim_out=D)
    module.norm_q, module.norm_v = Norm("q"), Norm("v")
    mixed = []
    for h in range(config.heads):
        rows = slice(h * D, (h + 1) * D)
        theirs = {"to_q.weight": q_rows[rows, :, None, None], "to_v.weight": v_rows[rows, :, None, None],
                  "rel_pos_emb": turned(p("embedding.weight"), config)[..., None]}
        mixed.append(tokens(functional_call(module, theirs, (image(x, config.grid),))))
    return output(p, torch.cat(mixed, dim=-1))


def rsa(checkout, config, p, x, block):
    """A published layer for each head, because its heads share k and v.  The window is the grid."""
    M, D = config.dim, config.dim // config.heads
    code = published(checkout, "", "ops.rsa")
    with contextlib.redirect_stdout(None):
        module = code.RSA(M, D, 1, D, kernel_size=(1, *(2 * side - 1 for side in config.grid)), kernel_type="VplusR",
                          feat_type="VplusR")

    def filters(name):
        """[T,...] -> [..., 1, 2Hg-1, 2Wg-1] with the leading axes one."""
        return turned(p(name), config).movedim((0, 1), (-2, -1)).flatten(0, -3)[:, None, None]

    mixed = []
    for h in range(config.heads):
        rows = torch.cat([torch.arange(D) + h * D + part * M for part in range(3)])
        theirs = {name: filters(name) for name in ("H1.weight", "H2.weight", "G.weight")}
        theirs |= {"projection.weight": p("qkv.weight")[rows, :, None, None, None], "P1": p("P1")[None]}
        theirs["I"] = p("I")[None]
        mixed.append(tokens(functional_call(module, theirs, (image(x, config.grid)[:, :, None],)).squeeze(2)))
    return output(p, torch.cat(mixed, dim=-1))


def normalised(checkout, phi_q, phi_k, v):
    """Linear attention as its authors (idiap/fast-transformers) have it, of features: [B,H,N,D]."""
    beside = os.path.join(os.path.dirname(os.path.dirname(checkout)), "idiap/fast-transformers")
    done = types.SimpleNamespace(new_feature_map=lambda device: None, forward_queries=lambda z: z,
                                 forward_keys=lambda z: z)
    code = published(beside, "", "fast_transformers.attention.linear_attention")
    module = code.LinearAttention(0, lambda width: done)
    everything = types.SimpleNamespace(all_ones=True, float_matrix=torch.ones(v.shape[0], v.shape[2]))
    q, k, v = (z.transpose(1, 2) for z in (phi_q, phi_k, v))
    return module(q, k, v, everything, everything, everything).transpose(1, 2)


def dpfp(checkout, config, p, x, block):
    """Theirs leaves the scale of q and k as it is."""
    code = published(checkout, "efficient-attention", "efficient_attention.kernelized_attention")
    q, k, v = queries_keys_values(p, config, x)
    phi = [code.dpfp_projection(z * z.shape[-1] ** -0.25, nu=1) for z in (q, k)]
    return output(p, join_heads(normalised(checkout, *phi, v)))


def rfa(checkout, config, p, x, block):
    """Their denominator is 1e-2 where it would be less, ours at least that far from zero."""
    code = published(checkout, "efficient-attention", "efficient_attention.kernelized_attention")
    q, k, v = queries_keys_values(p, config, x)
    phi = [code.fourier_projection(z, p("feature.weight")) for z in (q, k)]
    return output(p, join_heads(code.linear_attention(*phi, v)))


def performer(checkout, config, p, x, block):
    """Head by head: the published heads share the random features."""
    code = published(checkout, "", "performer_pytorch.performer_pytorch")
    q, k, v = queries_keys_values(p, config, x)
    phi = [torch.cat([code.softmax_kernel(z[:, h:h + 1], projection_matrix=w, is_query=is_query)
                      for h, w in enumerate(p("feature.weight"))], dim=1) for z, is_query in ((q, True), (k, False))]
    return output(p, join_heads(normalised(checkout, *phi, v)))


def own_features(p, config, q, k):
    """phi(q) and phi(k) of our map."""
    module = features.MAPS[config.feature_map](config.heads, q.shape[-1]).eval()
    ours = same_names(lambda name: p("feature." + name), *module.state_dict())
    return [functional_call(module, ours, (z, keys)) for z, keys in ((q, False), (k, True))]


def spe(checkout, config, p, x, block):
    """Their codes and gate, on our feature map and linear attention.  Random numbers are ours."""
    H, D, N = config.heads, config.dim // config.heads, x.shape[1]
    code = published(checkout, "src/pytorch", "spe.spe")
    noise, K = p("relative.noise"), relative.SINES  # sine: [H,D,2K,R], cosines first
    if config.relative == "sincspe":
        coder = code.SineSPE(H, D, num_realizations=D, num_sines=K)
        theirs = same_names(lambda name: p("relative." + name), "freqs", "offsets", "gains")
        white = torch.stack([noise[:, :, :K], noise[:, :, K:]], dim=3).flatten(2, 3)[None]
    else:
        taps = relative.TAPS
        coder = code.ConvSPE(1, H, D, D, taps)
        theirs = {"conv_q.weight": p("relative.conv_k").flatten(0, 1)[:, None],  # their names are crossed
                  "conv_k.weight": p("relative.conv_q").flatten(0, 1)[:, None]}
        white = F.pad(noise.permute(3, 0, 1, 2).flatten(1, 2), (taps, 2 * taps + 1))
    gate = code.SPEFilter(gated=True, code_shape=coder.code_shape)
    q, k, v = queries_keys_values(p, config, x)
    with mock.patch.object(torch, "randn", lambda *shape, **where: white.reshape(shape)):
        bars = functional_call(coder, theirs, ((1, N),))
    with mock.patch.object(torch, "randn", lambda *shape, **where: p("relative.common").reshape(shape[0])):
        q, k = functional_call(gate, {"gate": p("relative.gate")}, (q.transpose(1, 2), k.transpose(1, 2), bars))
    a, b = own_features(p, config, q.transpose(1, 2), k.transpose(1, 2))
    return output(p, join_heads(a @ (b.transpose(-1, -2) @ v) / (a @ b.sum(-2)[..., None] + 1e-6)))


def permute(checkout, config, p, x, block):
    """Their permutations of every token, on our features."""
    code = published(checkout, "long_range_arena", "models.performer_prenorm")
    q, k, v = queries_keys_values(p, config, x)
    phi = own_features(p, config, q, k)
    table = code.BertSelfAttention.expand_permutation(None, x.shape[1], p("relative.permutation").long())[None]
    a, b = (z.gather(-1, table.expand_as(z)) for z in phi)
    return output(p, join_heads(a @ (b.transpose(-1, -2) @ v) / (a @ b.sum(-2)[..., None] + 1e-6)))


def sparse(checkout, config, p, x, block):
    """The published patterns look back only; those of vit.c, as far as they look back, must be these.  A published window counts
    the token itself: l of it are |n - m| < l."""
    code = published(checkout, "", "attention")
    code.BlocksparseTransformer = lambda layout, **how: (layout, how["mask_callback"])
    N = x.shape[1]
    stride = config.sparse_stride or config.grid[1]

    def back(mode, span, count=1):
        """[N,N] of the pairs (query, key) with blocks of one token."""
        layout, callback = code.get_blocksparse_obj(N, 1, mode, 1, span, 1, count)
        layout = torch.from_numpy(layout.copy())
        for n, m in layout.nonzero().tolist():
            layout[n, m] = bool(callback((1, 1), 0, n, m, 0)[0, 0])
        return layout

    if config.attn == "sparse-fixed":
        past = back("fixed", stride, config.sparse_c)
    else:
        order = torch.arange(N).reshape(N // stride, stride).T.flatten()  # strided_transpose: columns one after another
        past = back("local", stride + 1)
        past[order[:, None], order[None, :]] |= back("strided", stride)
    first, second = sparse_sets(config)
    if not torch.equal(past, (first | second).tril()):
        sys.exit(f"{config.attn}: these are not the published pairs of tokens")
    seen = past | past.T if config.attn == "sparse-strided" else first | second
    q, k, v = queries_keys_values(p, config, x)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return output(p, join_heads(scores.masked_fill(~seen, -math.inf).softmax(-1) @ v))


# == The comparison ====================================================================================================


# name: repository, adapter, settings, tolerance of the reference where it is not REFERENCE_TOLERANCE
SMALL = dict(dim=24, heads=3, r_max=2)
OFFICIAL = {
    "focused": ("LeapLabTHU/FLatten-Transformer", focused, dict(attn="focused")),
    "focused-reduced": ("LeapLabTHU/FLatten-Transformer", focused_reduced,
                        dict(attn="focused-reduced", reduction="2")),
    "relu-linear": ("mit-han-lab/efficientvit", relu_linear, dict(attn="relu-linear")),
    "nystrom": ("mlpen/Nystromformer", nystrom, dict(attn="nystrom", landmarks=3)),
    "soft": ("fudan-zvg/SOFT", soft, dict(attn="soft", landmarks=3)),
    "hydra": ("robflynnyh/hydra-linear-attention", hydra, dict(attn="hydra")),
    "efficient": ("cmsflash/efficient-attention", efficient, dict(attn="efficient")),
    "gf": ("raoyongming/GFNet", gf, dict(attn="gf")),
    "dpfp": ("HKUNLP/efficient-attention", dpfp, dict(attn="linear", feature_map="dpfp")),
    "rfa": ("HKUNLP/efficient-attention", rfa, dict(attn="linear", feature_map="rfa")),
    "performer": ("lucidrains/performer-pytorch", performer, dict(attn="linear", feature_map="performer")),
    "sincspe": ("aliutkus/spe", spe, dict(attn="linear", relative="sincspe")),
    "convspe": ("aliutkus/spe", spe, dict(attn="linear", relative="convspe")),
    "permute": ("cpcp1998/PermuteFormer", permute, dict(attn="linear", relative="permute")),
    "sparse-strided": ("openai/sparse_attention", sparse, dict(attn="sparse-strided", sparse_heads="union")),
    "sparse-fixed": ("openai/sparse_attention", sparse, dict(attn="sparse-fixed", sparse_heads="union")),
    "lambda": ("lucidrains/lambda-networks", lambda_convolution, dict(attn="lambda")),
    "rsa": ("KimManjin/RSA", rsa, dict(attn="rsa"), 1e-5),
    "convattn": ("facebookresearch/mvit", convattn, dict(attn="convattn")),
    "inception": ("sail-sg/iFormer", inception, dict(attn="inception", inception_heads=1)),
}
GRIDS = {"nystrom": ((2, 6), (3, 9)), "sparse-fixed": ((6, 6), (5, 8)), "lambda": ((6, 6), (5, 5)),
         "inception": ((6, 6), (5, 5)), "focused-reduced": ((6, 6), (4, 8))}
WITH_CLASS_TOKEN = ("hydra", "dpfp", "rfa", "performer", "sincspe", "convspe", "permute")


def replace_attention(model, adapter, checkout):
    """The published module attends in each block, with the parameters of ours."""
    for i, block in enumerate(model.blocks):
        ours = {**dict(block.attn.named_parameters()), **dict(block.attn.named_buffers())}
        block.attn.forward = lambda x, i=i, ours=ours: adapter(checkout, model.config, ours.__getitem__, x, i)


def random_params(config, generator):
    """Small enough that no denominator of rfa comes near zero, large enough that all of it counts."""
    params = vit_reference.random_params(config, generator, 0.3)
    for name, value in params.items():
        if name.endswith("attn.feature.weight") and config.feature_map in ("rfa", "performer"):
            params[name] = value / 0.3
        if config.feature_map == "rfa" and ".attn.qkv." in name:
            params[name] = value / 4
    return {name: value.float().double() for name, value in params.items()}


def run_program(binary, config, params, images, labels):
    with tempfile.TemporaryDirectory() as folder:
        source, result = (os.path.join(folder, name) for name in ("in.safetensors", "out.safetensors"))
        tensors = {name: value.float().numpy() for name, value in params.items()}
        safetensors_io.write(source, {**tensors, "images": images.float().numpy(), "labels": labels.numpy()})
        command = [binary, "--parity", source, "--out", result, *flags.that_count(binary, config.metadata())]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)}\n{done.stderr}")
        return {name: torch.from_numpy(value.copy()) for name, value in safetensors_io.read(result)[0].items()}


def distance(got, want, verbose):
    """The worst norm error of the logits, and of the gradients."""
    errors = {name: norm_error(got[name].numpy(), want[name].numpy()) for name in want
              if want[name].norm() > 1e-12}
    if verbose:
        for name, error in errors.items():
            print(f"    {name:44s} {error:.1e}")
    return errors["logits"], max(error for name, error in errors.items() if name.startswith("grad."))


def check(binary, name, checkout, config, tolerance, verbose):
    """Returns whether anything differs."""
    adapter = OFFICIAL[name][1]
    generator = torch.Generator().manual_seed(sum(name.encode()) + config.grid[0])
    params = random_params(config, generator)
    images = torch.randn(3, 3, *config.img_size, generator=generator).float().double()
    labels = torch.tensor([1, 4, 0])
    results = []
    for published_too in (False, True):
        model = vit_reference.build(config, params)
        if published_too:
            replace_attention(model, adapter, checkout)
        logits, _, gradients = vit_reference.loss_and_gradients(model, images, labels)
        results.append({"logits": logits, **{"grad." + key: value for key, value in gradients.items()}})
    ours, theirs = results
    program = run_program(binary, config, params, images, labels)
    errors = [*distance(ours, theirs, verbose), *distance(program, theirs, verbose)]
    good = max(errors[:2]) < tolerance and max(errors[2:]) < PROGRAM_TOLERANCE
    print(f"{name:18s} {config.grid[0]}x{config.grid[1]} {config.pool}   reference {errors[0]:.1e} {errors[1]:.1e}   "
          f"train_vit {errors[2]:.1e} {errors[3]:.1e}   {'ok' if good else 'FAILED'}", flush=True)
    return not good


def main():
    arguments = ARGUMENTS
    warnings.simplefilter("ignore")  # about old Python and PyTorch in their code
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    failures, checked = 0, 0
    print(f"torch {torch.__version__}; logits, worst gradient:")
    for name in arguments.only.split(",") if arguments.only else OFFICIAL:
        repository, _, settings, *tolerance = OFFICIAL[name]
        checkout = os.path.abspath(os.path.join(arguments.checkouts, repository))
        if not os.path.isdir(checkout):
            print(f"{name:18s} left out: {checkout} is not there")
            continue
        for grid in GRIDS.get(name, ((6, 6), (5, 7))):
            for pool in ("gap", "cls") if name in WITH_CLASS_TOKEN else ("gap",):
                config = Config(**SMALL, **settings, img_size=(2 * grid[0], 2 * grid[1]), pool=pool)
                failures += check(arguments.binary, name, checkout, config, *(tolerance or [REFERENCE_TOLERANCE]),
                                  arguments.verbose)
                checked += 1
    print(f"{checked} comparisons, {failures} FAILED" if failures else f"{checked} comparisons   ok")
    sys.exit(failures > 0 or not checked)


if __name__ == "__main__":
    main()
