"""The settings of train_vit that say what a model is, under their names and with their defaults."""

import configparser
from dataclasses import dataclass, fields, replace

RIPPLE = ("ripple", "ripple-fixed", "ripple-softmax-weights", "ripple-truncated", "ripple-log", "ripple-dense",
          "ripple-explicit-softmax")


@dataclass(frozen=True)
class Config:
    """docs/reference/settings.md explains each.  What a hierarchy has for each stage is text, such as "64,128"."""

    attn: str = "softmax"
    img_size: tuple = (32, 32)  # height, width
    patch_size: int = 4
    dim: int | str = 192
    depth: int | str = 12
    heads: int | str = 6
    num_classes: int = 10
    mlp_ratio: float | str = 4
    pool: str = "gap"           # cls | gap | gap-raw | seq
    pos_embed: str = "learned"  # learned | none | conv | stages | sine
    r_max: int = 4
    tau: float = 0.001
    ripple_layers: int = 9
    feature_map: str = "mlp"
    relative: str = "none"
    convit_local_layers: int = 10
    rpe: str = "none"           # none | shared | heads
    focused_p: int = 3
    castling_mask: float = 0.0
    landmarks: int = 7          # to a side
    lisa_patterns: int = 16
    lisa_kernel: int = 0        # 0 | 3 | 5 | 7
    lisa_fft: str = "1d"        # 1d | 2d | 3d
    inception_heads: int = 0    # 0: half of them
    kv_stride: int = 1          # of convattn's k and v
    sparse_heads: str = "alternate"  # alternate | union | split
    sparse_stride: int = 0      # 0: the grid's width
    sparse_c: int = 2
    window: int | str = 7
    shift: str = "alternate"    # none | alternate
    window_time: int = 8        # of clips
    stripe: int | str = 1       # 0: the whole grid
    reduction: int | str = 1
    reduction_cells: int = 0
    conv_stages: int = 0        # the first stages that convolve
    conv_block: str = "conv"    # conv | sepconv
    head: str = "linear"        # linear | mlp | tanh
    distilled: bool = False     # a second token and head
    patch_overlap: bool = False
    patch_pad: int = 0          # of the first overlapping patches; 0: half their width
    patch_norm: bool = False    # a norm after every patch embedding
    patch_merging: bool = False  # from stage to stage, with Swin's names
    stage_norm: bool = True     # False: only at the end of the last stage
    norm_eps: float = 1e-6
    stem: str = "none"          # none | hybrid | conv
    stem_blocks: str = "0"
    stem_width: int = 64
    tokenizer_kernel: int = 3
    tokenizer_convs: int = 2
    tokenizer_width: int = 64
    mlp_stream: str = "residual"  # residual | normed
    mlp_conv: bool = False
    mlp_relu: bool = False      # before that convolution
    qkv_bias: bool = True
    dropout: float = 0.0
    attn_dropout: float = 0.0  # of the weights of softmax and reduced
    drop_path: float = 0.0
    frames: int = 1             # of a clip
    tubelet: int = 1
    time_kernel: int = 3
    conv_time_kernel: int = 5
    ring_time: int = 1
    first_block: int = 0        # of this stage, counted over all stages; no setting of its own

    @property
    def grid(self):
        """(rows, columns) of the first stage's tokens, of clips (frames, rows, columns)."""
        frames = (self.frames - 1) // 2 + 1 if self.tubelet > 1 else self.frames
        sides = tuple(self._patches_along(side) for side in self.img_size)
        return (frames, *sides) if frames > 1 else sides

    def _patches_along(self, side):
        if self.stem == "conv":
            for _ in range(self.tokenizer_convs):
                side = -(-(-(-side // max(1, self.tokenizer_kernel // 2 - 1))) // 2)
            return side
        if self.stem == "hybrid":
            for _ in range(1 + len(self.stem_blocks.split(","))):
                side = -(-side // 2)
        if self.patch_pad:
            return (side + 2 * self.patch_pad - (2 * self.patch_size - 1)) // self.patch_size + 1
        return -(-side // self.patch_size) if self.patch_overlap else side // self.patch_size

    @property
    def front(self):
        """Tokens before those of the grid."""
        return (self.pool == "cls") * (1 + self.distilled)

    @property
    def class_block(self):
        """The block before which the class token joins.  A late one has no position embedding."""
        return self.convit_local_layers if self.attn == "convit" else 0

    def kernel(self, k, whole=False, time=None):
        """(k, k), or with its size in time; whole: even if that is 1."""
        time = time or self.time_kernel
        return (time, k, k) if len(self.grid) == 3 and (time > 1 or whole) else (k, k)

    def operator(self, block):
        """What attends in a block of this stage.  Only the first ripple_layers blocks of a ripple model use ripple
        attention; the others are linear, or softmax.  Only the first convit_local_layers of convit are gated."""
        if self.attn == "convit" and block >= self.convit_local_layers:
            return "softmax"
        if self.attn not in RIPPLE or block < self.ripple_layers:
            return self.attn
        return "softmax" if self.attn == "ripple-explicit-softmax" else "linear"

    def stages(self):
        """Each stage as the settings of a model of its own, whose patches are single tokens."""
        grid, dims = self.grid, _numbers(self.dim)
        result, first = [], 0
        for i, dim in enumerate(dims):
            own = {name: _of_stage(getattr(self, name), i) for name in ("attn", "reduction", "window", "stripe", "depth",
                                                                        "heads", "mlp_ratio")}
            last = i == len(dims) - 1
            if len(dims) > 1 and last:
                own["stripe"] = 0
            if i < self.conv_stages:
                own["attn"] = self.conv_block
            frames = grid[0] if len(grid) == 3 else 1
            if not last:
                own["pool"] = "gap"  # the class token is in the last stage alone
            result.append(replace(self, **own, dim=dim, img_size=grid[-2:], frames=frames, tubelet=1, patch_size=1,
                                  patch_pad=0, stem="none", first_block=first, ripple_layers=self.ripple_layers - first,
                                  convit_local_layers=self.convit_local_layers - first,
                                  stage_norm=self.stage_norm or last))
            grid, first = (*grid[:-2], *(-(-side // 2) for side in grid[-2:])), first + own["depth"]
        return result


def _numbers(value):
    return [_number(word) for word in str(value).split(",")]


def _of_stage(value, i):
    """A list has one value for each stage, or one for all."""
    values = str(value).split(",")
    return _number(values[i if len(values) > 1 else 0])


def _number(word):
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return word


def read(kind, strings):
    """An object of the dataclass `kind` from {setting: text}; settings that it does not have are passed over."""
    values = {}
    for field in fields(kind):
        text = strings.get(field.name)
        if text is None:
            continue
        if field.name == "img_size":
            sides = [int(side) for side in text.split("x")]
            values["img_size"] = (sides[0], sides[-1])
        elif field.type is bool:
            values[field.name] = text in ("true", "1")
        elif field.type is str:
            values[field.name] = text
        else:
            values[field.name] = _number(text)
    return kind(**values)


def parse(text):
    """{setting: text} of an INI file as train_vit writes it."""
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters="=", comment_prefixes="#")
    parser.read_string(text)
    return {name: value for section in parser.sections() for name, value in parser.items(section)}
