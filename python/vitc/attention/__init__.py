"""The attention operators: modules x [B,N,M] -> [B,N,M], made of the settings of a stage and the number of a block."""

from ..config import RIPPLE, Config
from . import (convattn, convit, convolution, cswin, focused, inception, lambdas, landmarks, linear, linear_variants,
               lisa, reduced, ripple, softmax, window)
from .features import MAY_BE_NEGATIVE

OPERATORS = {
    "softmax": softmax.Softmax,
    "linear": linear.Linear,
    **{name: ripple.Ripple for name in RIPPLE},
    "ripple-explicit-softmax": ripple.ExplicitSoftmax,
    "convit": convit.Convit,
    "focused": focused.Focused,
    "sparse-strided": softmax.Sparse,
    "sparse-fixed": softmax.Sparse,
    "efficient": linear_variants.Efficient,
    "hydra": linear_variants.Hydra,
    "relu-linear": linear_variants.ReluLinear,
    "castling": linear_variants.Castling,
    "nystrom": landmarks.Nystrom,
    "soft": landmarks.Soft,
    **{name: lisa.Lisa for name in ("lisa", "sa10", "sa11")},
    **{name: lisa.StructureAware for name in ("sa9", "sa9-heads")},
    "gf": lisa.GlobalFilter,
    "dwconv7": convolution.Depthwise7,
    "convattn": convattn.ConvAttn,
    "lambda": lambdas.Lambda,
    "inception": inception.Inception,
    "rsa": lambdas.Rsa,
    "conv": convolution.Conv,
    "sepconv": convolution.SepConv,
    "swin": window.Window,
    "reduced": reduced.Reduced,
    "focused-reduced": reduced.FocusedReduced,
    "cswin": cswin.CSwin,
    "cswin-focused": cswin.CSwin,
}

DROPS_WEIGHTS = ("softmax", "reduced")


def attention(name, dim, heads, grid, block=0, **settings):
    """An operator by itself, for models of one's own: x [B,N,dim] -> [B,N,dim], N the tokens of the grid (rows,
    columns), of clips (frames, rows, columns), row by row; with pool="cls" a class token before them.

    settings are train_vit's, such as r_max=3; those of other operators count for nothing.  `block` is the place in the
    model, which decides on the shift of swin's windows and on the set of pairs of sparse attention."""
    if name not in OPERATORS:
        raise ValueError(f"no attention operator '{name}' (one of {', '.join(OPERATORS)})")
    if dim % heads:
        raise ValueError(f"{heads} heads do not divide {dim} channels")
    if settings.get("attn_dropout") and (name not in DROPS_WEIGHTS or settings.get("rpe", "none") != "none"):
        raise ValueError(f"attn_dropout is for {' and '.join(DROPS_WEIGHTS)} without rpe, as in train_vit")
    if name in RIPPLE and settings.get("feature_map") in MAY_BE_NEGATIVE:
        raise ValueError(f"{name} needs features that are not negative, and those of {settings['feature_map']} may be")
    frames = grid[0] if len(grid) == 3 else 1
    if frames > 1 and settings.get("lisa_fft") == "2d":
        raise ValueError("lisa_fft 2d is for images: clips take 1d or 3d")
    config = Config(attn=name, dim=dim, heads=heads, img_size=tuple(grid[-2:]), patch_size=1, frames=frames, **settings)
    return OPERATORS[name](config, block)
