"""The whole model in plain PyTorch float64: what the C implementation is compared with.

Every attention operator is written from its definition, N x N and without any trick.  Letters: B images, N tokens,
M model width, H heads, D head width (M = H D), R sticks, grid Hg x Wg.  Parameters are a dictionary under timm's names
(huggingface/pytorch-image-models, vision_transformer.py); an operator's own stand below blocks.i.attn.

    x   = [cls;] patches (+ pos)              patches: convolution with kernel and stride P, row-major
                                              (convit's class token joins later, without a position)
    x  += attn(norm1(x)),  x += mlp(norm2(x)) mlp = fc2 gelu(fc1), exact GELU; layer norm eps 1e-6 (1e-5 of overlapping
    patches)
    pool cls: head(norm(x)[:, 0])             pool gap: head(mean over tokens of norm(x)), gap-raw: without that norm
    A hierarchy repeats all of this but the head, stage after stage; the norm at a stage's end is the next one's input.
    overlap: windows 2P - 1 wide (3 between stages), and a layer norm after them, with patch_pad pixels of padding in
    the first stage;  patch_norm: the norm alone
    clips [B,frames,3,Hi,Wi]: the first windows are `tubelet` frames long and 2 apart, or every frame is by itself; a
    depthwise k x k convolution is time_kernel x k x k, that of conv_stages conv_time_kernel x k x k
    stage_norm 0: no norm between stages;  pos stages: a position embedding at each stage's start, and the class token,
    if there is one, joins in the last
    stem hybrid: patches of a ResNet's features (stem_reference.py) instead of the image
    pos conv: x += depthwise3x3(x) at each block's entry;  mlp conv: mlp = fc2 gelu(depthwise3x3(fc1))
    dropout: after pos, attn and mlp, and after gelu; its sites are 0 and, for block i of all stages, 3 i + 1, 3, 2, and
    for stage j > 0 with positions of its own 3 blocks + j
    loss = mean over images of -log softmax(logits)[label]

Run as a program it checks itself: gradients by finite differences, and what the operators must be to each other.
"""

import math
import sys
from dataclasses import dataclass, make_dataclass, replace

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

import torch
import torch.nn.functional as F

import grids
import linear_reference as linear
import lisa_reference
import operators
import stem_reference
from dropout_reference import FIRST, SEED, STEP, Drop
from mixer_reference import MIXERS
from rival_operators import RIVALS, relu, rpe_bias, rpe_shapes

RIVALS = {**RIVALS, **lisa_reference.OPERATORS, **operators.OPERATORS}
MIXERS = {**MIXERS, **operators.MIXERS}
RIPPLE = ("ripple", "ripple-fixed", "ripple-softmax-weights", "ripple-truncated", "ripple-log", "ripple-dense",
          "ripple-explicit-softmax")
LATER = ("feature_map", "relative", "convit", "rpe", "focused", "lisa", "landmarks", "castling", "inception", "stage",
         "patch_overlap", "dropout", "kv_stride", "mlp_conv", "mlp_relu", "conv_stages", "conv_block", "head_kind", "distill",
         "patch_norm", "patch_pad", "patch_merging", "norm_eps", "stem",
         "frames", "tubelet", "time_kernel", "conv_time_kernel", "ring_time",
         *operators.SETTINGS)  # settings newer than the first fixtures


STAGE_LISTS = {"dim": "stage_dims", "depth": "stage_depths", "heads": "stage_heads", "mlp_ratio": "stage_ratios"}


OperatorSettings = make_dataclass("OperatorSettings", [(name, type(default), default)
                                                       for name, default in operators.SETTINGS.items()], frozen=True)


@dataclass(frozen=True)
class Config(OperatorSettings):
    attn: str = "softmax"       # or a list with one for each stage
    img_size: tuple = (14, 18)  # height, width
    patch_size: int = 2
    dim: int = 20
    depth: int = 2
    heads: int = 2
    num_classes: int = 7
    mlp_ratio: int = 4
    pool: str = "gap"           # cls | gap | gap-raw
    pos_embed: str = "learned"  # learned | none | conv | stages
    r_max: int = 4
    tau: float = 0.001
    ripple_layers: int = 2
    feature_map: str = "mlp"
    relative: str = "none"
    convit_local_layers: int = 1
    rpe: str = "none"                # none | shared | heads
    focused_p: int = 3
    castling_mask: float = 0.0
    landmarks: int = 7               # to a side
    lisa_patterns: int = 16
    lisa_kernel: int = 0             # 0 | 3 | 5 | 7
    lisa_fft: str = "1d"             # 1d | 2d | 3d
    inception_heads: int = 0         # 0: half of them
    stage_dims: str = ""             # "8,12": two stages; depth, heads and mlp_ratio are then these lists
    stage_depths: str = ""
    stage_heads: str = ""
    stage_ratios: str = ""
    conv_stages: int = 0             # the first stages that convolve
    conv_block: str = "conv"         # conv | sepconv
    head_kind: str = "linear"        # linear | mlp | tanh; the setting's name is head
    distilled: int = 0               # a second token and head
    distillation: str = "none"       # none | soft | hard, against teacher_logits
    distillation_alpha: float = 0.5
    distillation_tau: float = 3.0
    patch_overlap: int = 0
    patch_pad: int = 0               # of the first overlapping patches; 0: half their width
    patch_norm: int = 0              # a norm after every patch embedding
    patch_merging: int = 0           # from stage to stage, with Swin's names
    stage_norm: int = 1              # 0: only at the end of the last stage
    norm_eps: float = 1e-6
    stem: str = "none"               # none | hybrid
    stem_blocks: str = "0"
    stem_width: int = 64
    dropout: float = 0.0
    kv_stride: int = 1               # of convattn's k and v
    mlp_conv: int = 0
    mlp_relu: int = 0                # before that convolution

    frames: int = 1                  # of a clip
    tubelet: int = 1
    time_kernel: int = 3
    conv_time_kernel: int = 5
    ring_time: int = 1

    @property
    def grid(self):
        """(rows, columns), of clips (frames, rows, columns)."""
        sides = [stem_reference.side(self, n) for n in self.img_size] if self.stem == "hybrid" else self.img_size
        sides = sides[0] // self.patch_size, sides[1] // self.patch_size
        frames = (self.frames - 1) // 2 + 1 if self.tubelet > 1 else self.frames
        return (frames, *sides) if frames > 1 else sides

    def kernel(self, k, whole=False, kt=None):
        """(k, k), or with its size in time; whole: even if that is 1."""
        kt = kt or self.time_kernel
        return (kt, k, k) if len(self.grid) == 3 and (kt > 1 or whole) else (k, k)

    def metadata(self):
        """Settings that came later stand there where they are not the default.  A hierarchy's lists have the settings'
        names."""
        strings = {key: str(value) for key, value in vars(self).items()
                   if not key.startswith(LATER) or value != getattr(Config, key)
                   or (self.attn == "convit" and key == "convit_local_layers")}
        strings["img_size"] = "%dx%d" % self.img_size
        if "head_kind" in strings:
            strings["head"] = strings.pop("head_kind")
        for name, stage in STAGE_LISTS.items():
            if self.stage_dims:
                strings[name] = strings.pop(stage)
        return strings

    @staticmethod
    def from_metadata(strings):
        height, width = strings["img_size"].split("x")
        values = {"img_size": (int(height), int(width))}
        if "," in strings["dim"]:
            strings = {STAGE_LISTS.get(name, name): text for name, text in strings.items()}
        strings = {"head_kind" if name == "head" else name: text for name, text in strings.items()}
        for key, default in vars(Config()).items():
            if key != "img_size":
                values[key] = type(default)(strings.get(key, default))
        return Config(**values)


def of_stage(text, i):
    """A list has one value for each stage, or one for all."""
    values = text.split(",")
    return values[i if len(values) > 1 else 0]


def patches_along(config, side):
    """The first stage's patches along a side of the image."""
    if config.patch_pad:
        return (side + 2 * config.patch_pad - (2 * config.patch_size - 1)) // config.patch_size + 1
    return -(-side // config.patch_size)


def stages(config):
    """[(prefix of names, the stage as a model of its own on its grid)]; the first one's patches are the model's."""
    if not config.stage_dims:
        return [("", config)]
    lists = [[int(n) for n in text.split(",")] for text in (config.stage_dims, config.stage_depths, config.stage_heads,
                                                             config.stage_ratios)]
    result, first = [], 0
    Hg, Wg = (patches_along(config, side) for side in config.img_size)
    frames = config.grid[0] if len(config.grid) == 3 else 1
    for i, (dim, depth, heads, ratio) in enumerate(zip(*lists)):
        own = {name: of_stage(getattr(config, name), i) for name in ("attn", "reduction", "window", "stripe")}
        if i == len(lists[0]) - 1:
            own["stripe"] = "0"
        if i < config.conv_stages:
            own["attn"] = config.conv_block
        result.append((f"{'layers' if config.patch_merging else 'stages'}.{i}.",
                       replace(config, **own, img_size=(Hg, Wg), patch_size=1, dim=dim, depth=depth, heads=heads,
                               mlp_ratio=ratio, stage_dims="", frames=frames, tubelet=1,
                               ripple_layers=config.ripple_layers - first,
                               stage_norm=int(config.stage_norm or i == len(lists[0]) - 1))))
        Hg, Wg, first = -(-Hg // 2), -(-Wg // 2), first + depth
    return result


def block_operator(config, block):
    """Only the first ripple_layers blocks of a ripple model use ripple attention; the others are linear, or softmax.
    Only the first convit_local_layers of convit are gated; the others are softmax."""
    if config.attn == "convit" and block >= config.convit_local_layers:
        return "softmax"
    if config.attn not in RIPPLE or block < config.ripple_layers:
        return config.attn
    return "softmax" if config.attn == "ripple-explicit-softmax" else "linear"


def class_block(config):
    """The block before which the class token joins.  A late one has no position embedding."""
    return config.convit_local_layers if config.attn == "convit" else 0


# == Vicinal groups ====================================================================================================


def group_bounds(config, operator):
    """Group r holds the tokens at distance bounds[r] <= distance < bounds[r+1]; the last has no upper bound."""
    farthest = max(config.grid) - 1
    if operator == "ripple-log":
        return [0] + [1 << i for i in range(farthest.bit_length())]
    return list(range((farthest if operator == "ripple-dense" else config.r_max) + 1))


def grid_groups(grid, bounds, ring_time=1):
    """g(n,m), the group of token m seen from token n, by Chebyshev distance; frames are ring_time apart.  [N,N]"""
    apart = [d.abs() for d in grids.differences(grid)]
    if len(grid) == 3:
        apart[0] = apart[0] * ring_time
    distance = torch.stack(apart).amax(0)
    return sum((distance >= bound).long() for bound in bounds[1:]) + torch.zeros_like(distance)


# == Parameters ========================================================================================================


def block_shapes(config, i):
    M, D, hidden = config.dim, config.dim // config.heads, config.mlp_ratio * config.dim
    operator = block_operator(config, i)
    block = {}
    if config.pos_embed == "conv":
        block = {"pos_embed.weight": (M, 1, *config.kernel(3)), "pos_embed.bias": (M,)}
    in_conv_stages = {k: config.kernel(k, kt=config.conv_time_kernel) for k in (5, 7)}
    block.update({"norm1.weight": (M,), "norm1.bias": (M,), "attn.qkv.weight": (3 * M, M), "attn.qkv.bias": (3 * M,),
                  "attn.proj.weight": (M, M), "attn.proj.bias": (M,)})
    if config.attn in ("gf", "soft", "conv", "sepconv") or operator in MIXERS:
        del block["attn.qkv.weight"], block["attn.qkv.bias"]
    if config.attn == "convit":
        del block["attn.qkv.bias"]
    if operator == "convit":
        del block["attn.qkv.weight"]
        block.update({"attn.qk.weight": (2 * M, M), "attn.v.weight": (M, M),
                      "attn.pos_proj.weight": (config.heads, 5 if len(config.grid) == 3 else 3), "attn.pos_proj.bias": (config.heads,),
                      "attn.gating_param": (config.heads,)})
    elif operator == "conv":
        del block["attn.proj.weight"], block["attn.proj.bias"]
        block.update({"attn.conv1.weight": (M, M), "attn.conv1.bias": (M,),
                      "attn.conv.weight": (M, 1, *in_conv_stages[5]),
                      "attn.conv.bias": (M,), "attn.conv2.weight": (M, M), "attn.conv2.bias": (M,)})
    elif operator == "sepconv":
        del block["attn.proj.weight"], block["attn.proj.bias"]
        block.update({"attn.pwconv1.weight": (2 * M, M), "attn.dwconv.weight": (2 * M, 1, *in_conv_stages[7]),
                      "attn.pwconv2.weight": (M, 2 * M)})
    elif operator == "softmax":
        block.update({f"attn.{name}": shape for name, shape in rpe_shapes(config).items()})
    elif operator in (*RIVALS, *MIXERS):
        block.update({f"attn.{name}": shape for name, shape in {**RIVALS, **MIXERS}[operator][0](config).items()})
    elif operator != "ripple-explicit-softmax":
        block.update({"attn." + name: shape for name, shape in linear.map_shapes(config.feature_map, D).items()})
    if operator == "linear":
        relative = linear.relative_shapes(config.relative, config.heads, D)
        block.update({"attn." + name: shape for name, shape in relative.items()})
    if operator in RIPPLE and operator != "ripple-fixed":
        groups = len(group_bounds(config, operator))
        sticks = groups if operator == "ripple-softmax-weights" else groups - 1
        block.update({"attn.ripple.proj.weight": (D, D), "attn.ripple.proj.bias": (D,),
                      "attn.ripple.sticks": (config.heads, sticks, D)})
    block.update({"norm2.weight": (M,), "norm2.bias": (M,), "mlp.fc1.weight": (hidden, M), "mlp.fc1.bias": (hidden,),
                  "mlp.fc2.weight": (M, hidden), "mlp.fc2.bias": (M,)})
    if config.mlp_conv:
        block.update({"mlp.dwconv.weight": (hidden, 1, *config.kernel(3)), "mlp.dwconv.bias": (hidden,)})
    return block


def embedding_name(config, i):
    return f"{'layers' if config.patch_merging else 'stages'}.{i}.downsample." if i else "patch_embed."


def position_name(config, i):
    """The position embedding that is added to the tokens of stage i, or None."""
    if config.pos_embed == "stages":
        return f"pos_embed{i + 1}"
    return "pos_embed" if config.pos_embed == "learned" and i == 0 else None


def embedding_stride(config, i):
    return 2 if i else config.patch_size


def embedding_shapes(config, i, channels, M):
    k = 2 * embedding_stride(config, i) - 1 if config.patch_overlap else embedding_stride(config, i)
    tubelet = (config.tubelet,) if config.tubelet > 1 and i == 0 else ()
    shapes = {"proj.weight": (M, channels, *tubelet, k, k), "proj.bias": (M,)}
    if config.patch_overlap or config.patch_norm:
        shapes.update({"norm.weight": (M,), "norm.bias": (M,)})
    if i and config.patch_merging:
        shapes = {"norm.weight": (4 * channels,), "norm.bias": (4 * channels,), "reduction.weight": (M, 4 * channels)}
    return {embedding_name(config, i) + name: shape for name, shape in shapes.items()}


def last_norm(config, prefix):
    """Where the norm at the end of the last stage stands."""
    return prefix if config.stage_norm else ""


def parameter_shapes(config):
    shapes, channels = {}, 3
    if config.stem == "hybrid":
        shapes, channels = stem_reference.shapes(config), stem_reference.channels(config)
    for index, (prefix, stage) in enumerate(stages(config)):
        M, last = stage.dim, index == len(stages(config)) - 1
        shapes.update(embedding_shapes(config, index, channels, M))
        if config.pool == "cls" and last:
            shapes["cls_token"] = (1, 1, M)
            if config.distilled:
                shapes["dist_token"] = (1, 1, M)
        if position_name(config, index):
            front = (1 + config.distilled) * (config.pool == "cls" and last and class_block(config) == 0)
            N = grids.token_count(stage.grid) + front
            shapes[position_name(config, index)] = (1, N, M)
        for i in range(stage.depth):
            shapes.update({f"{prefix}blocks.{i}.{name}": shape for name, shape in block_shapes(stage, i).items()})
        if stage.stage_norm:
            end = last_norm(config, prefix) + "norm."
            shapes.update({end + "weight": (M,), end + "bias": (M,)})
        channels = M
    return {**shapes, **head_shapes(config, channels)}


def linear_head(config):
    return "head.fc." if config.patch_merging else "head."


def head_shapes(config, channels):
    C = config.num_classes
    if config.head_kind == "linear":
        names = [linear_head(config), "head_dist."][:1 + config.distilled]
        return {name + part: shape for name in names for part, shape in (("weight", (C, channels)), ("bias", (C,)))}
    hidden = 4 * channels if config.head_kind == "mlp" else channels
    norm = {"head.norm.weight": (hidden,), "head.norm.bias": (hidden,)} if config.head_kind == "mlp" else {}
    return {"head.fc1.weight": (hidden, channels), "head.fc1.bias": (hidden,), **norm,
            "head.fc2.weight": (C, hidden), "head.fc2.bias": (C,)}


def classify(config, params, x):
    """head: linear, MetaFormer's MLP with GELU, or ViT's with tanh."""
    if config.head_kind == "linear":
        return F.linear(x, params[linear_head(config) + "weight"], params[linear_head(config) + "bias"])
    x = F.linear(x, params["head.fc1.weight"], params["head.fc1.bias"])
    if config.head_kind == "tanh":
        x = torch.tanh(x)
    else:
        x = F.layer_norm(F.gelu(x), x.shape[-1:], params["head.norm.weight"], params["head.norm.bias"], 1e-5)
    return F.linear(x, params["head.fc2.weight"], params["head.fc2.bias"])


def buffer_shapes(config):
    """Tensors that are drawn instead of learned; a hierarchy's operators here have none."""
    if config.stage_dims:
        return {}
    H, D = config.heads, config.dim // config.heads
    N = grids.token_count(config.grid) + (config.pool == "cls")
    shapes = {}
    for i in range(config.depth):
        operator, block = block_operator(config, i), {}
        if operator not in ("softmax", "ripple-explicit-softmax", "convit", "conv", "sepconv", *RIVALS, *MIXERS):
            block.update(linear.map_buffers(config.feature_map, H, D))
        if operator == "linear":
            block.update(linear.relative_buffers(config.relative, H, D, N, linear.feature_count(config.feature_map, D)))
        shapes.update({f"blocks.{i}.attn.{name}": shape for name, shape in block.items()})
    return shapes


def cancels(name, config=None):
    """Is this a parameter that no output depends on?  One number for all keys of a query drops out of their softmax,
    and pool gap-raw leaves the last norm out."""
    raw = config is not None and config.pool == "gap-raw"
    return name.endswith("pos_proj.bias") or (raw and name.removeprefix("grad.") in ("norm.weight", "norm.bias"))


# == Gated positional attention ========================================================================================


def gated_positional_weights(params, prefix, grid, q, k):
    """[B,H,N,N] of facebookresearch/convit from q, k [B,H,N,D]; in clips dt and dt^2 are two features more."""
    *dt, dy, dx = (-apart.to(q.dtype) for apart in grids.differences(grid))  # from the query to the key
    features = [dx, dy, dx ** 2 + dy ** 2, *dt, *(d ** 2 for d in dt)]
    position = F.linear(torch.stack(features, dim=-1), params[prefix + "pos_proj.weight"],
                        params[prefix + "pos_proj.bias"]).permute(2, 0, 1).softmax(-1)  # [H,N,N]
    content = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
    g = params[prefix + "gating_param"].sigmoid()[:, None, None]
    a = (1 - g) * content + g * position
    return a / a.sum(-1, keepdim=True)


# == Spatial weights of ripple attention ===============================================================================


def stick_breaking(o, tau, tails=None):
    """o [...,R] -> alpha [...,R+1]: s_r = 1 / (1 + (R - r) exp(-o_r)), alpha_r = s_r prod_{r'<r} (1 - s_r'),
    alpha_R = prod (1 - s).  From the first r^ with 1 - sum_{r<=r^} alpha_r < tau on, the groups r^..R share
    1 - sum_{r<r^} alpha_r equally; r^ is a constant of the backward pass."""
    R = o.shape[-1]
    alpha, left = [], torch.ones_like(o[..., 0])
    for r in range(R):
        s = 1 / (1 + (R - r) * torch.exp(-o[..., r]))
        alpha.append(left * s)
        left = left * (1 - s)
    alpha = torch.stack(alpha + [left], dim=-1)
    tail = 1 - alpha.cumsum(-1)  # 1 - sum_{r'<=r} alpha_r'
    if tails is not None:
        tails.append(tail[..., :R].detach())
    if tau > 0:
        first = (tail[..., :R] >= tau).sum(-1, keepdim=True)  # r^; R when only the last group is below tau
        before = torch.cat([torch.ones_like(tail[..., :1]), tail[..., :R]], dim=-1)  # 1 - sum_{r'<r} alpha_r'
        share = before.gather(-1, first) / (R - first + 1)
        alpha = torch.where(torch.arange(R + 1) >= first, share, alpha)
    return alpha


def spatial_weights(params, prefix, operator, config, v, tails=None):
    """alpha [B,H,N,G] from v [B,H,N,D]."""
    G = len(group_bounds(config, operator))
    if operator == "ripple-fixed":
        weights = [2.0 ** -(r + 1) for r in range(G - 1)] + [2.0 ** -(G - 1)]
        return torch.tensor(weights, dtype=v.dtype).expand(*v.shape[:3], G)
    p = F.linear(v, params[prefix + "ripple.proj.weight"], params[prefix + "ripple.proj.bias"])
    o = torch.einsum("hrd,bhnd->bhnr", params[prefix + "ripple.sticks"], p)
    if operator == "ripple-softmax-weights":
        return o.softmax(-1)
    alpha = stick_breaking(o, config.tau, tails)
    if operator == "ripple-truncated":
        alpha = torch.cat([alpha[..., :-1], torch.zeros_like(alpha[..., -1:])], dim=-1)
    return alpha


# == Model =============================================================================================================


def explicit_softmax(scores, groups, alpha, v):
    """Softmax attention within each group of each query, the groups' results weighed by alpha [B,H,N,G].  A group in
    which a query has no tokens adds nothing."""
    y = torch.zeros_like(v)
    for r in range(alpha.shape[-1]):
        inside = groups == r
        share = scores.masked_fill(~inside, -math.inf).softmax(-1)
        y = y + alpha[..., r:r + 1] * torch.where(inside, share, torch.zeros_like(share)) @ v
    return y


class Vit:
    """params {name: tensor}, buffers included.  After a forward, `notes` tells of the feature maps, `tails` holds the
    1 - sum_{r'<=r} alpha_r' that tau is compared with, `alphas` the spatial weights [B,H,N,G]."""

    def __init__(self, config, params):
        self.config, self.params = config, params
        self.notes, self.tails, self.alphas = linear.Notes(), [], []
        self.raw = False  # the norm at the end is not used
        self.drop, self.first = Drop(config.dropout, SEED, STEP, FIRST), 0  # first: blocks in the stages before

    def attention(self, block, x):
        config, params, prefix = self.config, self.params, f"blocks.{block}.attn."
        operator = block_operator(config, block)
        if operator == "gf":
            y = lisa_reference.global_filter(config, params[prefix + "filter.complex_weight"], x)
            return F.linear(y, params[prefix + "proj.weight"], params[prefix + "proj.bias"])
        if operator in MIXERS:
            y = MIXERS[operator][1](self, lambda name: params[prefix + name], x)
            return F.linear(y, params[prefix + "proj.weight"], params[prefix + "proj.bias"])
        if operator == "conv":
            x = F.linear(x, params[prefix + "conv1.weight"], params[prefix + "conv1.bias"])
            x = self.depthwise(prefix + "conv.", x)
            return F.linear(x, params[prefix + "conv2.weight"], params[prefix + "conv2.bias"])
        if operator == "sepconv":
            x = F.gelu(F.linear(x, params[prefix + "pwconv1.weight"]))
            x = grids.depthwise(x, config.grid, params[prefix + "dwconv.weight"])
            return F.linear(x, params[prefix + "pwconv2.weight"])
        B, N, M = x.shape
        H, D = config.heads, M // config.heads
        if operator == "convit":
            qkv = F.linear(x, torch.cat([params[prefix + "qk.weight"], params[prefix + "v.weight"]]))
        elif operator == "soft":
            q, v = F.linear(x, params[prefix + "qv.weight"], params[prefix + "qv.bias"]).chunk(2, dim=-1)
            qkv = torch.cat([q, q, v], dim=-1)
        else:
            qkv = F.linear(x, params[prefix + "qkv.weight"], params.get(prefix + "qkv.bias"))
        q, k, v = qkv.reshape(B, N, 3, H, D).permute(2, 0, 3, 1, 4)  # each [B,H,N,D]
        if operator == "softmax":
            scores = q @ k.transpose(-1, -2) / math.sqrt(D)
            if config.rpe != "none":
                scores = scores + rpe_bias(config, params[prefix + "rpe.weight"])
            y = scores.softmax(-1) @ v
        elif operator == "convit":
            y = gated_positional_weights(params, prefix, config.grid, q, k) @ v
        elif operator == "linear":
            y = linear.linear_attention(config, params, prefix, q, k, v, self.notes)
        elif operator in RIVALS:
            y = RIVALS[operator][1](self, lambda name: params[prefix + name], q, k, v, block)
        else:
            alpha = spatial_weights(params, prefix, operator, config, v, self.tails)
            self.alphas.append(alpha.detach())
            groups = grid_groups(config.grid, group_bounds(config, operator), config.ring_time)
            if operator == "ripple-explicit-softmax":
                y = explicit_softmax(q @ k.transpose(-1, -2) / math.sqrt(D), groups, alpha, v)
            else:
                a = (linear.features(config.feature_map, params, prefix, q, False, self.notes)
                     @ linear.features(config.feature_map, params, prefix, k, True, self.notes).transpose(-1, -2))
                a = a * alpha.gather(-1, groups.expand(B, H, N, N))
                y = a @ v / (a.sum(-1, keepdim=True) + 1e-6)
        if operator not in RIVALS:
            y = y.transpose(1, 2).reshape(B, N, M)
        return F.linear(y, params[prefix + "proj.weight"], params[prefix + "proj.bias"])

    def norm(self, name, x, eps=None):
        eps = self.config.norm_eps if eps is None else eps
        return F.layer_norm(x, x.shape[-1:], self.params[name + ".weight"], self.params[name + ".bias"], eps)

    def depthwise(self, name, x):
        """Each channel of x [B,N,C] by itself, zeros around the grid."""
        return grids.depthwise(x, self.config.grid, self.params[name + "weight"], self.params[name + "bias"])

    def mlp(self, prefix, x, site=0):
        x = F.linear(x, self.params[prefix + "fc1.weight"], self.params[prefix + "fc1.bias"])
        if self.config.mlp_relu:
            x = relu(self, x)
        if self.config.mlp_conv:
            x = self.depthwise(prefix + "dwconv.", x)
        x = self.drop.rows(F.gelu(x), site)
        return F.linear(x, self.params[prefix + "fc2.weight"], self.params[prefix + "fc2.bias"])

    def blocks(self, x):
        """The stage that this model is: x [B,N,M] -> norm(x), or x where it has no norm at its end."""
        config, late = self.config, class_block(self.config)
        for i in range(config.depth):
            if config.pool == "cls" and i == late > 0:
                x = torch.cat([self.params["cls_token"].expand(len(x), 1, -1), x], dim=1)
            if config.pos_embed == "conv":
                x = x + self.depthwise(f"blocks.{i}.pos_embed.", x)
            site = 3 * (self.first + i)
            x = x + self.drop.rows(self.attention(i, self.norm(f"blocks.{i}.norm1", x)), site + 1)
            change = self.mlp(f"blocks.{i}.mlp.", self.norm(f"blocks.{i}.norm2", x), site + 2)
            x = x + self.drop.rows(change, site + 3)
        return self.norm("norm", x) if config.stage_norm and not self.raw else x

    def embed(self, i, x):
        """Tokens of stage i from x [B,C,H,W], of clips [B,frames,3,H,W] and then [B,C,frames,H,W]."""
        config, name = self.config, embedding_name(self.config, i)
        if i and config.patch_merging:
            cells = torch.cat([x[:, :, r::2, c::2] for c in (0, 1) for r in (0, 1)], dim=1).flatten(2).transpose(1, 2)
            return F.linear(self.norm(name + "norm", cells, 1e-5), self.params[name + "reduction.weight"])
        w, b, stride = self.params[name + "proj.weight"], self.params[name + "proj.bias"], embedding_stride(config, i)
        padding = stride - 1 if config.patch_overlap else 0
        if i == 0 and config.patch_pad:
            padding = config.patch_pad
        if x.ndim == 5:
            x, kt = x.transpose(1, 2) if i == 0 else x, w.shape[2] if w.ndim == 5 else 1
            x = F.conv3d(x, w if w.ndim == 5 else w[:, :, None], b, (2 if kt > 1 else 1, stride, stride),
                         (kt // 2, padding, padding)).flatten(2).transpose(1, 2)
        else:
            x = F.conv2d(x, w, b, stride=stride, padding=padding).flatten(2).transpose(1, 2)
        normed = config.patch_overlap or config.patch_norm
        return self.norm(name + "norm", x, 1e-5) if normed else x  # nn.LayerNorm's, as in pvt_v2

    def forward(self, images, constants=None):
        """images [B,3,Hi,Wi] or clips [B,frames,3,Hi,Wi] -> logits [B,C]; constants: the notes' of another pass."""
        config, params = self.config, self.params
        self.notes, self.tails, self.alphas = linear.Notes(constants), [], []
        x, first = images, 0
        if config.stem == "hybrid":
            x = stem_reference.features(config, params, images, self.notes)
        for i, (prefix, config_here) in enumerate(stages(config)):
            last = i == len(stages(config)) - 1
            x = self.embed(i, x)
            if config.pool == "cls" and last and class_block(config) == 0:
                front = [params[name].expand(len(x), 1, -1) for name in ("cls_token", "dist_token") if name in params]
                x = torch.cat([*front, x], dim=1)
            if position_name(config, i):
                x = x + params[position_name(config, i)]
            own = {name[len(prefix):]: value for name, value in params.items() if name.startswith(prefix)}
            end = last_norm(config, prefix) + "norm."
            if config_here.stage_norm:
                own.update({"norm." + part: params[end + part] for part in ("weight", "bias")})
            stage = Vit(config_here, own)
            stage.raw = last and config.pool == "gap-raw"
            stage.notes, stage.tails, stage.alphas = self.notes, self.tails, self.alphas
            stage.first, first = first, first + config_here.depth
            if i == 0 or config.pos_embed == "stages":
                x = self.drop.rows(x, 3 * sum(stage.depth for _, stage in stages(config)) + i if i else 0)
            tokens = stage.blocks(x)
            if config.stage_dims and not last:
                x = tokens.transpose(1, 2).unflatten(2, config_here.grid)
        x = tokens[:, 0] if config.pool == "cls" else tokens.mean(1)
        logits = classify(self.config, params, x)
        if not self.config.distilled:
            self.own_logits = [logits, logits]
            return logits
        self.own_logits = [logits, F.linear(tokens[:, 1], params["head_dist.weight"], params["head_dist.bias"])]
        return sum(self.own_logits) / 2

    def loss(self, logits, labels, teacher):
        """Mean cross entropy, no smoothing; with distillation that of the first classifier and, against the teacher,
        that of the second, as DeiT's paper has it (equations 2 and 3)."""
        config = self.config
        if config.distillation == "none":
            return F.cross_entropy(logits, labels)
        own, dist = self.own_logits
        if config.distillation == "hard":
            theirs = F.cross_entropy(dist, teacher.argmax(1))
        else:
            tau = config.distillation_tau
            q, log_p = F.log_softmax(teacher / tau, dim=1), F.log_softmax(dist / tau, dim=1)
            theirs = tau**2 * (q.exp() * (q - log_p)).sum(1).mean()
        return (1 - config.distillation_alpha) * F.cross_entropy(own, labels) + config.distillation_alpha * theirs

    def loss_and_gradients(self, images, labels, teacher=None):
        """Returns logits, loss and {name: gradient}, buffers left out."""
        learned = parameter_shapes(self.config)
        leaves = {name: value.detach().requires_grad_() for name, value in self.params.items() if name in learned}
        self.params, kept = {**self.params, **leaves}, self.params
        logits = self.forward(images)
        loss = self.loss(logits, labels, teacher)
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=self.config.pool == "gap-raw")
        gradients = [torch.zeros_like(leaf) if gradient is None else gradient
                     for leaf, gradient in zip(leaves.values(), gradients)]
        self.params = kept
        return logits.detach(), loss.detach(), dict(zip(leaves, gradients))


# == Self-check ========================================================================================================


def random_params(config, generator, scale=0.4):
    params = {name: scale * torch.randn(shape, generator=generator, dtype=torch.float64)
              for name, shape in {**parameter_shapes(config), **buffer_shapes(config)}.items()}
    for name, value in params.items():
        if name.endswith(("feature.b2", "feature.bias")):
            params[name] = value + 1  # no head is dead
        if name.endswith("permutation"):
            params[name] = torch.stack([torch.randperm(value.shape[1], generator=generator) for _ in value]).double()
    return {name: value + 1 if "norm" in name and "weight" in name else value for name, value in params.items()}


def check_finite_differences(config, seed):
    """Every parameter tensor along random directions, central differences of the loss in float64."""
    generator = torch.Generator().manual_seed(seed)
    params = random_params(config, generator)
    images = torch.randn(2, 3, *config.img_size, generator=generator, dtype=torch.float64)
    labels = torch.tensor([1, 4])
    model = Vit(config, params)
    _, _, gradients = model.loss_and_gradients(images, labels)
    constants = model.notes.constants
    worst, step = 0.0, 1e-6
    with torch.no_grad():
        for name, value in params.items():
            if name not in gradients:
                continue
            direction = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            losses = []
            for sign in (1, -1):
                model = Vit(config, {**params, name: value + sign * step * direction})
                losses.append(F.cross_entropy(model.forward(images, constants), labels))
            numeric = ((losses[0] - losses[1]) / (2 * step)).item()
            exact = (gradients[name] * direction).sum().item()
            if cancels(name, config):
                assert gradients[name].abs().max() < 1e-15, name
                continue
            assert gradients[name].abs().max() > 0, name
            worst = max(worst, abs(numeric - exact) / gradients[name].norm().item())
    assert worst < 1e-6, (config, worst)
    return worst


def self_check():
    torch.set_num_threads(1)
    small = dict(img_size=(6, 10), dim=12, heads=2, r_max=2, tau=0.0)
    cases = [Config(**{**small, "attn": "softmax", "pool": "cls"}),
             Config(**{**small, "attn": "softmax", "pos_embed": "none"}),
             Config(**{**small, "attn": "linear", "pool": "cls"}), Config(**{**small, "attn": "linear"}),
             Config(**{**small, "attn": "ripple", "tau": 0.05}), Config(**{**small, "attn": "ripple", "r_max": 9}),
             Config(**{**small, "attn": "ripple", "ripple_layers": 1}),
             Config(**{**small, "attn": "convit", "pool": "cls"}),
             Config(**{**small, "attn": "convit", "convit_local_layers": 2, "heads": 3}),
             Config(**{**small, "attn": "softmax", "rpe": "heads"}),
             Config(**{**small, "attn": "sparse-strided", "sparse_heads": "union", "sparse_stride": 4}),
             Config(**{**small, "attn": "sparse-fixed", "sparse_heads": "split", "sparse_stride": 4})]
    cases += [Config(**{**small, "attn": attn, "lisa_patterns": 3}) for attn in (*RIVALS, *MIXERS)]
    cases += [Config(**{**small, "attn": "lisa", "lisa_patterns": 2, "lisa_fft": "2d"}),
              Config(**{**small, "attn": "lisa", "lisa_patterns": 2, "lisa_kernel": 3}),
              Config(**{**small, "attn": "gf", "img_size": (8, 12)})]
    cases += [Config(**{**small, "attn": attn}) for attn in RIPPLE[1:]]
    cases += [Config(**{**small, "attn": "linear", "feature_map": name})
              for name in ("rfa", "performer", "dpfp", "t2r", "mlp-random-w1")]
    cases += [Config(**{**small, "attn": "linear", "relative": name, "pool": "cls"})
              for name in ("sincspe", "convspe", "rope", "rope-2d", "permute")]
    cases += [Config(**{**small, "attn": "linear", "relative": "rope", "feature_map": "rfa"})]
    two = {**small, "img_size": (13, 18), "patch_size": 4, "stage_dims": "4,6", "stage_depths": "2,1",
           "stage_heads": "2,3", "stage_ratios": "2,3", "lisa_patterns": 2}
    cases += [Config(**{**small, "attn": "conv", "mlp_conv": 1, "pos_embed": "conv"}),
              Config(**{**two, "attn": "lisa", "patch_overlap": 1, "mlp_conv": 1, "pos_embed": "conv"}),
              Config(**{**two, "attn": "softmax", "conv_stages": 1, "img_size": (16, 24)}),
              Config(**{**small, "attn": "sepconv", "head_kind": "mlp"}),
              Config(**{**two, "attn": "softmax", "conv_stages": 1, "conv_block": "sepconv", "img_size": (16, 24)}),
              Config(**{**small, "attn": "softmax", "pool": "cls", "head_kind": "tanh"}),
              Config(**{**two, "attn": "focused,swin", "window": "2", "img_size": (16, 24), "patch_merging": 1,
                        "patch_norm": 1, "stage_norm": 0, "norm_eps": 1e-5, "pos_embed": "none"})]
    for seed, config in enumerate(cases):
        worst = check_finite_differences(config, seed)
        print(f"gradients == central differences   {config.attn:23s} {config.pool} {config.pos_embed:8s} "
              f"R {config.r_max} tau {config.tau:<5g} {config.feature_map:13s} {config.relative:8s} "
              f"worst {worst:.1e}   ok")

    generator = torch.Generator().manual_seed(99)
    o = 3 * torch.randn(2, 2, 15, 4, generator=generator, dtype=torch.float64)
    for tau in (0.0, 0.001, 0.05, 0.5):
        assert (stick_breaking(o, tau).sum(-1) - 1).abs().max() < 1e-14
    assert (stick_breaking(torch.zeros(4, dtype=torch.float64), 0.0) - 0.2).abs().max() < 1e-16
    print("alpha sums to one, zero logits give 1/(R+1)   ok")

    config = Config(**{**small, "attn": "ripple"})
    params = random_params(config, generator)
    images = torch.randn(2, 3, *config.img_size, generator=generator, dtype=torch.float64)
    for name in params:
        if name.endswith("sticks"):
            params[name] = torch.zeros_like(params[name])
    ripple, plain = (Vit(Config(**{**small, "attn": attn}), params) for attn in ("ripple", "linear"))
    # Weights 1/G divide num and den alike, so that only the 1e-6 in the denominator tells the two apart.
    difference = (ripple.forward(images) - plain.forward(images)).abs().max().item()
    assert difference < 1e-5, difference
    print(f"equal weights == linear attention   worst {difference:.1e}   ok")

    for attn in RIPPLE:
        config = Config(**{**small, "attn": attn, "tau": 0.02})
        model = Vit(config, random_params(config, generator, 0.8))
        model.forward(images)
        for alpha in model.alphas:
            total = alpha.sum(-1)
            assert (total < 1).any() if attn == "ripple-truncated" else (total - 1).abs().max() < 1e-14, attn
            assert (alpha >= 0).all()
    print("alpha of every variant sums to one, ripple-truncated to less   ok")

    phi = torch.randn(6, generator=generator, dtype=torch.float64)
    for relative in ("rope", "permute"):
        same = phi.expand(1, 2, 15, 6)  # every token has these features
        if relative == "rope":
            psi = torch.einsum("nfg,bhng->bhnf", linear.rotations("rope", Config(), 15, 6, torch.float64), same)
        else:
            psi = linear.permuted(same, torch.stack([torch.randperm(6, generator=generator) for _ in range(2)]))
        products = psi @ psi.transpose(-1, -2)
        assert (products[..., 1:, 1:] - products[..., :-1, :-1]).abs().max() < 1e-12
        assert (products[..., 0, :] - products[..., 0, :1]).abs().max() > 1e-3
    print("rope and permute: products depend on n - m alone   ok")

    assert group_bounds(Config(), "ripple-log") == [0, 1, 2, 4, 8] and len(group_bounds(Config(), "ripple-dense")) == 9
    assert grid_groups((1, 5), [0, 1, 2, 4])[0].tolist() == [0, 1, 2, 2, 3]
    print("vicinal groups   ok")


if __name__ == "__main__":
    self_check()
