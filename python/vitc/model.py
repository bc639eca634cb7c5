"""Vision transformers as train_vit trains them, under timm's parameter names.

Letters: B images, N tokens, M model width, H heads, D head width (M = H D), grid Hg x Wg.

    x   = [cls;] patches (+ pos)              patches: convolution with kernel and stride P, row-major
                                              (convit's class token joins later, without a position)
    x  += attn(norm1(x)),  x += mlp(norm2(x)) mlp = fc2 gelu(fc1), exact GELU; layer norm eps 1e-6 (1e-5 of patches)
    pool cls: head(norm(x)[:, 0])             pool gap: head(mean over tokens of norm(x)), gap-raw: without that norm
    A hierarchy repeats all of this but the head, stage after stage; the norm at a stage's end is the next one's input.
    overlap: windows 2P - 1 wide (3 between stages), and a layer norm after them, with patch_pad pixels of padding in
    the first stage;  patch_norm: the norm alone
    clips [B,frames,3,Hi,Wi]: the first windows are `tubelet` frames long and 2 apart, or every frame is by itself; a
    depthwise k x k convolution is time_kernel x k x k, that of conv_stages conv_time_kernel x k x k
    stage_norm 0: no norm between stages;  pos stages: a position embedding at each stage's start, and the class token,
    if there is one, joins in the last
    mlp_stream normed: x = norm2(x), x += mlp(x);  qkv_bias 0: attention's qkv has no bias
    pos conv: x += depthwise3x3(x) at each block's entry;  mlp conv: mlp = fc2 gelu(depthwise3x3(fc1))
    dropout: after pos, attn and mlp, and after gelu
"""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn

from . import grids, tokenizer
from .attention import OPERATORS
from .layers import Depthwise, DropPath, Mlp, linear, normal
from .stem import backbone


class Block(nn.Module):
    def __init__(self, config, i, drop_path):
        super().__init__()
        M = config.dim
        self.pos_embed = Depthwise(M, config.grid, config.kernel(3)) if config.pos_embed == "conv" else None
        self.norm1, self.attn = nn.LayerNorm(M, config.norm_eps), OPERATORS[config.operator(i)](config, i)
        self.norm2, self.mlp = nn.LayerNorm(M, config.norm_eps), Mlp(config)
        self.drop1, self.drop2 = nn.Dropout(config.dropout), nn.Dropout(config.dropout)
        self.path, self.normed = DropPath(drop_path), config.mlp_stream == "normed"

    def forward(self, x):
        if self.pos_embed is not None:
            x = x + self.pos_embed(x)
        x = x + self.path(self.drop1(self.attn(self.norm1(x))))
        h = self.norm2(x)
        return (h if self.normed else x) + self.path(self.drop2(self.mlp(h)))


class Patches(nn.Module):
    """[B,C,H,W] or [B,C,frames,H,W] -> tokens [B,N,M]"""

    def __init__(self, config, dim, channels, stride, first):
        super().__init__()
        self.backbone = None
        if first and config.stem == "hybrid":
            self.backbone = backbone(config)
            channels = self.backbone.channels
        k, self.stride = 2 * stride - 1 if config.patch_overlap else stride, stride
        self.padding = stride - 1 if config.patch_overlap else 0
        if first and config.patch_pad:
            self.padding = config.patch_pad
        tubelet = (config.tubelet,) if config.tubelet > 1 and first else ()
        self.proj = (nn.Conv3d if tubelet else nn.Conv2d)(channels, dim, (*tubelet, k, k))
        self.norm = nn.LayerNorm(dim, 1e-5) if config.patch_overlap or config.patch_norm else None

    def forward(self, x):
        if self.backbone is not None:
            x = self.backbone(x)
        w, b, stride, padding = self.proj.weight, self.proj.bias, self.stride, self.padding
        if x.ndim == 5:
            w, kt = (w, w.shape[2]) if w.ndim == 5 else (w[:, :, None], 1)
            x = F.conv3d(x, w, b, (2 if kt > 1 else 1, stride, stride), (kt // 2, padding, padding))
        else:
            x = F.conv2d(x, w, b, stride=stride, padding=padding)
        x = x.flatten(2).transpose(1, 2)
        return x if self.norm is None else self.norm(x)


class Merging(nn.Module):
    """Swin's: the tokens of a 2x2 cell side by side, a layer norm and a linear layer without bias."""

    def __init__(self, channels, dim):
        super().__init__()
        self.norm, self.reduction = nn.LayerNorm(4 * channels, 1e-5), linear(4 * channels, dim, bias=False)

    def forward(self, x):
        cells = torch.cat([x[..., r::2, c::2] for c in (0, 1) for r in (0, 1)], dim=1)
        return self.reduction(self.norm(cells.flatten(2).transpose(1, 2)))


class Head(nn.Module):
    """A hidden layer: MetaFormer's with GELU and a norm, or ViT's with tanh."""

    def __init__(self, config, M):
        super().__init__()
        self.tanh = config.head == "tanh"
        hidden = M if self.tanh else 4 * M
        self.fc1 = linear(M, hidden)
        self.norm = nn.Identity() if self.tanh else nn.LayerNorm(hidden, 1e-5)
        self.fc2 = linear(hidden, config.num_classes)

    def forward(self, x):
        x = self.fc1(x)
        return self.fc2(torch.tanh(x) if self.tanh else self.norm(F.gelu(x)))


def classifier(config, M):
    if config.head != "linear":
        return Head(config, M)
    layer = linear(M, config.num_classes)
    return nn.Sequential(OrderedDict(fc=layer)) if config.patch_merging else layer


class Stage(nn.Module):
    """One stage of a hierarchy; forward is Vit's."""


class Vit(nn.Module):
    """images [B,3,Hi,Wi], or clips [B,frames,3,Hi,Wi], with normalised pixels -> logits [B,classes]"""

    def __init__(self, config):
        super().__init__()
        self.config, self.configs, self.img_size = config, config.stages(), config.img_size
        stages, flat, self.pos_drops = [], len(self.configs) == 1, nn.ModuleList()
        depth, first, channels = sum(stage.depth for stage in self.configs), 0, 3
        for i, stage in enumerate(self.configs):
            last, holder = i == len(self.configs) - 1, self if flat else Stage()
            self.add_embedding(i, stage, holder, channels)
            if config.pool == "cls" and last:
                self.cls_token = normal(1, 1, stage.dim)
                self.dist_token = normal(1, 1, stage.dim) if config.distilled else None
            self.add_position(i, stage, last)
            holder.blocks = nn.ModuleList(Block(stage, j, config.drop_path * (first + j) / max(depth - 1, 1))
                                          for j in range(stage.depth))
            if stage.stage_norm:
                (holder if config.stage_norm else self).norm = nn.LayerNorm(stage.dim, config.norm_eps)
            stages.append(holder)
            channels, first = stage.dim, first + stage.depth
        if not flat:
            setattr(self, "layers" if config.patch_merging else "stages", nn.ModuleList(stages))
        if config.pool == "seq":
            self.attention_pool = tokenizer.SequencePool(channels)
        self.head = classifier(config, channels)
        self.head_dist = linear(channels, config.num_classes) if config.distilled else None

    def add_embedding(self, i, stage, holder, channels):
        config = self.config
        if i == 0 and config.stem == "conv":
            self.tokenizer = tokenizer.Tokenizer(config, stage.dim)
        elif i == 0:
            self.patch_embed = Patches(config, stage.dim, 3, config.patch_size, True)
        else:
            holder.downsample = (Merging(channels, stage.dim) if config.patch_merging else
                                 Patches(config, stage.dim, channels, 2, False))

    def add_position(self, i, stage, last):
        """Sines are a buffer."""
        name, kind = self.position_name(i), self.config.pos_embed
        if name:
            front = stage.front if last and stage.class_block == 0 else 0
            shape = (1, grids.token_count(stage.grid) + front, stage.dim)
            if kind == "sine":
                self.register_buffer(name, tokenizer.sines(*shape[1:]).to(torch.get_default_dtype()))
            else:
                self.register_parameter(name, normal(*shape))
        dropped = i == 0 or kind == "stages"
        self.pos_drops.append(nn.Dropout(self.config.dropout) if dropped else nn.Identity())

    def position_name(self, i):
        if self.config.pos_embed == "stages":
            return f"pos_embed{i + 1}"
        return "pos_embed" if self.config.pos_embed in ("learned", "sine") and i == 0 else None

    def holders(self):
        """What has the blocks of each stage."""
        config = self.config
        return [self] if len(self.configs) == 1 else self.layers if config.patch_merging else self.stages

    def embed(self, i, x):
        """Tokens [B,N,M] of stage i from images, clips or the map [B,C,(frames,)Hg,Wg] of the stage before."""
        if i:
            return self.holders()[i].downsample(x)
        if self.config.stem == "conv":
            return self.tokenizer(x).flatten(2).transpose(1, 2)
        return self.patch_embed(x.transpose(1, 2) if x.ndim == 5 else x)

    def with_front(self, x):
        """Class tokens before x."""
        front = [self.cls_token] if self.dist_token is None else [self.cls_token, self.dist_token]
        return torch.cat([*(token.expand(x.shape[0], -1, -1) for token in front), x], dim=1)

    def stage(self, i, x):
        """The blocks of stage i and, where there is one, the norm at its end."""
        config, holder, last = self.configs[i], self.holders()[i], i == len(self.configs) - 1
        for j, block in enumerate(holder.blocks):
            if config.pool == "cls" and j == config.class_block > 0:
                x = self.with_front(x)
            x = block(x)
        if not config.stage_norm or (last and config.pool == "gap-raw"):
            return x
        return (holder if self.config.stage_norm else self).norm(x)

    def forward_features(self, images):
        """All tokens of the last stage, [B,N,M]"""
        x = images
        for i, config in enumerate(self.configs):
            last = i == len(self.configs) - 1
            x = self.embed(i, x)
            if config.pool == "cls" and last and config.class_block == 0:
                x = self.with_front(x)
            if self.position_name(i):
                x = x + getattr(self, self.position_name(i))
            x = self.stage(i, self.pos_drops[i](x))
            if not last:
                x = x.transpose(1, 2).unflatten(2, config.grid)
        return x

    def heads(self, images):
        """What each classifier says: one, or with distillation two of which forward() is the mean."""
        x = self.forward_features(images)
        if self.config.distilled:
            return [self.head(x[:, 0]), self.head_dist(x[:, 1])]
        if self.config.pool == "cls":
            return [self.head(x[:, 0])]
        return [self.head(self.attention_pool(x) if self.config.pool == "seq" else x.mean(1))]

    def forward(self, images):
        logits = self.heads(images)
        return logits[0] if len(logits) == 1 else sum(logits) / len(logits)
