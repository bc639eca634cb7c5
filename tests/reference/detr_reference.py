"""SMCA-DETR above its backbone in plain PyTorch, float64: what the C implementation is compared with.

Written from the published definition, Q x N and N x N and without any trick.  Letters: B images, grid h x w, N = h w,
M model width, H heads, D = M / H, Q queries, C columns.  Parameters are a dictionary under the published names.

    x    = input_proj(C5);  pos = sine code of the cells that are no padding
    x    = norm1(x + drop(attn(x + pos, x + pos, x)));  x = norm2(x + drop(W2 drop(relu(W1 x))))        encoder
    o    = norm4(t + E), t from 0;  centre = sigmoid(point1(o of layer 0)) (W_b, H_b) / 32 + point2(o);  z = point3(o)
    t    = norm1(t + drop(self(t + E, t + E, t)));  t = norm2(t + drop(cross(t + E, x + pos, x; G)));
    t    = norm3(t + drop(W2 drop(relu(W1 t))))                                                          decoder
    logits = class_embed(norm(t));  boxes = sigmoid(bbox_embed(norm(t)) + (raw, 0, 0)), for every layer

Run as a program it checks itself: outputs do not depend on how much padding there is.
"""

import math
import sys
from dataclasses import dataclass, replace

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

import torch
import torch.nn.functional as F

from dropout_reference import Drop
from vit_reference import ripple, sticks_left


@dataclass(frozen=True)
class Config:
    attn: str = "softmax"  # softmax | linear | ripple: of the encoder
    dim: int = 12
    ffn: int = 10
    heads: int = 3
    encoder_layers: int = 2
    decoder_layers: int = 2
    queries: int = 5
    columns: int = 4
    channels: int = 6
    scale_type: int = 3
    dropout: float = 0.0
    r_max: int = 3
    tau: float = 0.001
    height: int = 150      # of the padded batch
    width: int = 220
    sizes: str = "150x170,101x220"  # own height and width of each image

    @property
    def grid(self):
        return -(-self.height // 32), -(-self.width // 32)

    @property
    def own(self):
        return [tuple(map(int, size.split("x"))) for size in self.sizes.split(",")]

    def metadata(self):
        return {key: str(value) for key, value in vars(self).items()}

    @staticmethod
    def from_metadata(strings):
        return Config(**{key: type(default)(strings[key]) for key, default in vars(Config()).items()})


def parameter_shapes(c):
    M, H, D, shapes = c.dim, c.heads, c.dim // c.heads, {}

    def linear(name, inner, outer):
        shapes[name + "weight"], shapes[name + "bias"] = (outer, inner), (outer,)

    def attention(name):
        linear(name + "in_proj_", M, 3 * M)
        linear(name + "out_proj.", M, M)

    def layer(name, norms):
        linear(name + "linear1.", M, c.ffn)
        linear(name + "linear2.", c.ffn, M)
        for i in range(norms):
            shapes[f"{name}norm{i + 1}.weight"] = shapes[f"{name}norm{i + 1}.bias"] = (M,)

    def perceptron(name, outer):
        for i in range(3):
            linear(f"{name}layers.{i}.", M, M if i < 2 else outer)

    shapes["input_proj.weight"], shapes["input_proj.bias"] = (M, c.channels, 1, 1), (M,)
    for i in range(c.encoder_layers):
        name = f"transformer.encoder.layers.{i}."
        attention(name + "self_attn.")
        layer(name, 2)
        if c.attn != "softmax":
            shapes[name + "self_attn.feature.w1"] = (H, D, D)
            shapes[name + "self_attn.feature.w2"] = (H, D, 2 * D)
            shapes[name + "self_attn.feature.b2"] = (H, D)
        if c.attn == "ripple":
            shapes[name + "self_attn.ripple.proj.weight"] = (H, D, D)
            shapes[name + "self_attn.ripple.proj.bias"] = (H, D)
            shapes[name + "self_attn.ripple.sticks"] = (H, c.r_max, D)
    shapes["query_embed.weight"] = (c.queries, M)
    shapes["transformer.decoder.norm.weight"] = shapes["transformer.decoder.norm.bias"] = (M,)
    for i in range(c.decoder_layers):
        name = f"transformer.decoder.layers.{i}."
        attention(name + "self_attn.")
        attention(name + "multihead_attn.")
        layer(name, 4)
        if i == 0:
            perceptron(name + "point1.", 2)
        linear(name + "point2.", M, 2 * H)
        if c.scale_type > 1:
            linear(name + "point3.", M, H * (c.scale_type - 1))
    linear("class_embed.", M, c.columns)
    perceptron("bbox_embed.", 4)
    return shapes


# == Model =============================================================================================================


def valid_cells(c):
    """[B,h,w]: cell (y, x) takes pixel (y H / h, x W / w) of the padded mask."""
    h, w = c.grid
    rows = torch.tensor([y * c.height // h for y in range(h)])
    columns = torch.tensor([x * c.width // w for x in range(w)])
    return torch.stack([(rows[:, None] < own[0]) & (columns[None, :] < own[1]) for own in c.own])


def sine_positions(valid, M, dtype):
    """[B,h,w,M] from cumulative sums over the mask."""
    v = valid.double()
    y, x = v.cumsum(1), v.cumsum(2)
    y = y / (y[:, -1:, :] + 1e-6) * 2 * math.pi
    x = x / (x[:, :, -1:] + 1e-6) * 2 * math.pi
    i = torch.arange(M // 2)
    f = 10000 ** (2 * (i // 2).double() / (M // 2))
    even = i % 2 == 0
    code = [torch.where(even, torch.sin(e[..., None] / f), torch.cos(e[..., None] / f)) for e in (y, x)]
    return torch.cat(code, -1).to(dtype)


class Detr:
    def __init__(self, config, params, drop=None):
        self.c, self.p = config, params
        self.drop = drop or Drop(0)
        self.kinks, self.tails = [], []

    def linear(self, name, x):
        return F.linear(x, self.p[name + "weight"].flatten(1), self.p[name + "bias"])

    def norm(self, name, x):
        return F.layer_norm(x, x.shape[-1:], self.p[name + ".weight"], self.p[name + ".bias"], 1e-5)

    def relu(self, x):
        self.kinks.append(x.detach())
        return x.relu()

    def perceptron(self, name, x):
        for i in range(2):
            x = self.relu(self.linear(f"{name}layers.{i}.", x))
        return self.linear(f"{name}layers.2.", x)

    def heads(self, x):
        return x.unflatten(-1, (self.c.heads, -1)).transpose(1, 2)

    def project(self, name, q, k, v):
        weight, bias = self.p[name + "in_proj_weight"].chunk(3), self.p[name + "in_proj_bias"].chunk(3)
        return [self.heads(F.linear(x, weight[i], bias[i])) for i, x in enumerate((q, k, v))]

    def merge(self, name, y):
        return self.linear(name + "out_proj.", y.transpose(1, 2).flatten(2))

    def softmax(self, name, q, k, v, valid, site, G=0):
        q, k, v = self.project(name, q, k, v)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + G
        p = scores.masked_fill(~valid[:, None, None, :], -math.inf).softmax(-1)
        return self.merge(name, self.drop.weights(p, valid, site) @ v)

    def features(self, name, z):
        """phi [B,H,N,D] of z [B,H,N,D], a map for each head."""
        z = z * z.shape[-1] ** -0.25
        u = torch.einsum("hed,bhnd->bhne", self.p[name + "feature.w1"], z)
        f = torch.cat([u.sin(), u.cos()], -1)
        return self.relu(torch.einsum("hfe,bhne->bhnf", self.p[name + "feature.w2"], f) +
                         self.p[name + "feature.b2"][:, None, :])

    def weighted(self, name, q, k, v, valid):
        """Linear attention, or ripple: every pair by its spatial weight."""
        q, k, v = self.project(name, q, k, v)
        keep = valid[:, None, :, None].to(q.dtype)
        scores = self.features(name, q) @ (self.features(name, k) * keep).transpose(-1, -2)
        if self.c.attn == "ripple":
            h, w = self.c.grid
            y, x = torch.arange(h * w) // w, torch.arange(h * w) % w
            distance = torch.maximum((y[:, None] - y).abs(), (x[:, None] - x).abs()).clamp(max=self.c.r_max)
            o = torch.einsum("hed,bhnd->bhne", self.p[name + "ripple.proj.weight"], v)
            o = o + self.p[name + "ripple.proj.bias"][:, None, :]
            o = torch.einsum("hrd,bhnd->bhnr", self.p[name + "ripple.sticks"], o)
            self.tails.append(sticks_left(o))
            alpha = ripple.stick_breaking(o, self.c.tau)
            scores = scores * alpha.gather(-1, distance.expand(*alpha.shape[:2], -1, -1))
        return self.merge(name, scores @ v / (scores.sum(-1, keepdim=True) + 1e-6))

    def feed_forward(self, name, x, inner, outer):
        x = self.drop.rows(self.relu(self.linear(name + "linear1.", x)), inner)
        return self.drop.rows(self.linear(name + "linear2.", x), outer)

    def encode(self, x, pos, valid):
        for i in range(self.c.encoder_layers):
            name, site = f"transformer.encoder.layers.{i}.", 4 * i
            if self.c.attn == "softmax":
                y = self.softmax(name + "self_attn.", x + pos, x + pos, x, valid, site)
            else:
                y = self.weighted(name + "self_attn.", x + pos, x + pos, x, valid)
            x = self.norm(name + "norm1", x + self.drop.rows(y, site + 1))
            x = self.norm(name + "norm2", x + self.feed_forward(name, x, site + 2, site + 3))
        return x

    def gaussian(self, centre, z):
        """G [B,H,Q,N] of centre [B,Q,H,2] and z [B,Q,H,scales]."""
        h, w = self.c.grid
        n = torch.arange(h * w)
        xx = (centre[..., 0, None] - (n % w)) ** 2
        yy = (centre[..., 1, None] - n // w) ** 2
        if self.c.scale_type == 1:
            D = xx + yy
        elif self.c.scale_type == 2:
            D = z[..., 0, None] ** 2 * (xx + yy)
        else:
            D = z[..., 0, None] ** 2 * xx + z[..., 1, None] ** 2 * yy
        if self.c.scale_type == 4:
            D = D + z[..., 2, None] ** 2 * xx * yy
        return -D.transpose(1, 2) / 8

    def decode(self, memory, pos, valid):
        c, E = self.c, self.p["query_embed.weight"]
        B, H = len(memory), c.heads
        t = torch.zeros(B, c.queries, c.dim, dtype=memory.dtype)
        scale = torch.tensor([[own[1] / 32, own[0] / 32] for own in c.own], dtype=memory.dtype)
        everyone = torch.ones(B, c.queries, dtype=torch.bool)
        outs = []
        for i in range(c.decoder_layers):
            name, site = f"transformer.decoder.layers.{i}.", 4 * c.encoder_layers + 6 * i
            o = self.norm(name + "norm4", t + E)
            if i == 0:
                raw = self.perceptron(name + "point1.", o)
                reference = raw.sigmoid() * scale[:, None]
            centre = reference[:, :, None] + self.linear(name + "point2.", o).unflatten(-1, (H, 2))
            z = self.linear(name + "point3.", o).unflatten(-1, (H, -1)) if c.scale_type > 1 else None
            y = self.softmax(name + "self_attn.", t + E, t + E, t, everyone, site)
            t = self.norm(name + "norm1", t + self.drop.rows(y, site + 1))
            y = self.softmax(name + "multihead_attn.", t + E, memory + pos, memory, valid, site + 2,
                             self.gaussian(centre, z))
            t = self.norm(name + "norm2", t + self.drop.rows(y, site + 3))
            t = self.norm(name + "norm3", t + self.feed_forward(name, t, site + 4, site + 5))
            outs.append(self.norm("transformer.decoder.norm", t))
        return torch.stack(outs), raw

    def __call__(self, features):
        """features [B,N,channels] -> logits [L,B,Q,C], boxes [L,B,Q,4]."""
        valid = valid_cells(self.c)
        pos = sine_positions(valid, self.c.dim, features.dtype).flatten(1, 2)
        valid = valid.flatten(1)
        memory = self.encode(self.linear("input_proj.", features), pos, valid)
        out, raw = self.decode(memory, pos, valid)
        u = self.perceptron("bbox_embed.", out)
        return self.linear("class_embed.", out), torch.cat([u[..., :2] + raw, u[..., 2:]], -1).sigmoid()


# == Self-check ========================================================================================================


def check_padding(attn):
    """The same image alone and in a larger batch: the same predictions, and no gradient on padding."""
    tight = Config(attn=attn, height=128, width=160, sizes="128x160")
    loose = replace(tight, height=192, width=256)
    generator = torch.Generator().manual_seed(7)
    params = {name: torch.randn(shape, generator=generator, dtype=torch.float64) * 0.3
              for name, shape in parameter_shapes(tight).items()}
    inside = torch.randn(1, 4, 5, tight.channels, generator=generator, dtype=torch.float64)
    around = torch.randn(1, 6, 8, tight.channels, generator=generator, dtype=torch.float64)
    around[:, :4, :5] = inside
    around.requires_grad_()
    one, two = Detr(tight, params)(inside.flatten(1, 2)), Detr(loose, params)(around.flatten(1, 2))
    worst = max((a - b).abs().max().item() for a, b in zip(one, two))
    (two[0].sum() + two[1].sum()).backward()
    outside = around.grad.clone()
    outside[:, :4, :5] = 0
    print(f"{attn}: padding moves predictions by {worst:.1e}, its gradient is {outside.abs().max():.1e}")
    assert worst < 1e-12 and outside.abs().max() == 0


if __name__ == "__main__":
    for operator in ("softmax", "linear", "ripple"):
        check_padding(operator)
