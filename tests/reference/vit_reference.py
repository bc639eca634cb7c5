"""The package python/vitc as the reference in float64 that the C implementation is compared with: models of given
tensors, with the program's dropout, and what they leave behind.

The fixtures' numbers were first computed from definitions, N x N, every table looked up entry by entry and no Fourier
transform; that the package, which has faster forms, still gives them to rounding is what `make_fixtures.py --check` says.

Run as a program it checks itself: gradients by finite differences, and what the operators must be to each other.
"""

import contextlib
import functools
import os
import sys
from dataclasses import dataclass, replace
from unittest import mock

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
import vitc
from dropout_reference import FIRST, SEED, STEP, Drop
from vitc import config as settings
from vitc import layers
from vitc.attention import inception, linear_variants, relative, ripple

# Settings that every fixture has; others are in its metadata where they are not the default.
ALWAYS = ("attn", "img_size", "patch_size", "dim", "depth", "heads", "num_classes", "mlp_ratio", "pool", "pos_embed",
          "r_max", "tau", "ripple_layers")


@dataclass(frozen=True)
class Config(vitc.Config):
    """With the fixtures' defaults, and the settings of their loss."""

    img_size: tuple = (14, 18)
    patch_size: int = 2
    dim: int | str = 20
    depth: int | str = 2
    heads: int | str = 2
    num_classes: int = 7
    ripple_layers: int = 2
    convit_local_layers: int = 1
    distillation: str = "none"  # none | soft | hard, against teacher_logits
    distillation_alpha: float = 0.5
    distillation_tau: float = 3.0

    def metadata(self):
        strings = {name: str(int(value) if isinstance(value, bool) else value) for name, value in vars(self).items()
                   if name in ALWAYS or (value != getattr(Config, name) and str(value) != str(getattr(Config, name)))
                   or (self.attn == "convit" and name == "convit_local_layers")}
        strings["img_size"] = "%dx%d" % self.img_size
        return strings

    @staticmethod
    def from_metadata(strings):
        return settings.read(Config, strings)


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)


def in_order(make):
    """The module that make() returns, and its parameters {name: shape} in the order in which they were made, in which
    the fixtures' are drawn."""
    made, register = [], nn.Module.register_parameter

    def registered(module, name, parameter):
        made.append(parameter)
        register(module, name, parameter)

    with mock.patch.object(nn.Module, "register_parameter", registered):
        model = make()
    place = {id(parameter): i for i, parameter in enumerate(made)}
    named = sorted(model.named_parameters(), key=lambda pair: place[id(pair[1])])
    return model, {name: tuple(parameter.shape) for name, parameter in named}


@functools.cache
def shapes(config):
    """Of the parameters, and of the tensors that are not learned, but drawn, or sines."""
    model, learned = in_order(lambda: vitc.Vit(config))
    return learned, {name: tuple(x.shape) for name, x in model.state_dict().items() if name not in learned}


def parameter_shapes(config):
    return shapes(config)[0]


def buffer_shapes(config):
    return shapes(config)[1]


def read_ini(path):
    """{setting: text} of a config file, with those of the file that it includes."""
    with open(path) as file:
        found = settings.parse("[file]\n" + file.read())
    included = found.pop("include", None)
    return (read_ini(os.path.join(os.path.dirname(path), included)) if included else {}) | found


def cancels(name, config=None):
    """Is this a parameter that no output depends on?  One number for all keys of a query drops out of their softmax,
    and of all tokens out of sequence pooling's; pool gap-raw leaves the last norm out."""
    raw = config is not None and config.pool == "gap-raw"
    return name.endswith(("pos_proj.bias", "attention_pool.bias")) or (raw and name.removeprefix("grad.") in ("norm.weight", "norm.bias"))


def sticks_left(o):
    """1 - sum_{r'<=r} alpha_r' of the logits o [...,R]: what tau is compared with."""
    return (1 - ripple.stick_breaking(o.detach(), 0).cumsum(-1))[..., :-1]


class Notes:
    """What forward passes of a model leave behind: `kinks`, what entered a ReLU or decides between two sides in another
    way; `denominators`, sums over keys before their rule; `tails`, sticks_left; `alphas`, the spatial weights [B,H,N,G];
    `constants`, which with `replay` are those of an earlier pass: a function whose derivatives are those of the backward
    pass."""

    def __init__(self, model, replay=None):
        self.kinks, self.denominators, self.tails, self.alphas, self.constants = [], [], [], [], []
        self.replay = list(replay or [])
        kinds = {nn.ReLU: self.relu, layers.Denominator: self.denominator, ripple.StickBreaking: self.sticks,
                 ripple.SpatialWeights: self.weights, layers.Constant: self.constant,
                 linear_variants.LogRatio: self.ratio}
        for module in model.modules():
            if type(module) in kinds:
                module.register_forward_hook(kinds[type(module)])
            if isinstance(module, inception.High):
                module.largest.register_forward_hook(self.largest)

    def relu(self, module, inputs, output):
        self.kinks.append(inputs[0].detach())

    def ratio(self, module, inputs, output):
        self.kinks.append(output.detach())

    def largest(self, module, inputs, output):
        around = F.pad(inputs[0].detach(), (1, 1, 1, 1), value=-torch.inf).unfold(-2, 3, 1).unfold(-2, 3, 1).flatten(-2)
        two = around.topk(2).values
        self.kinks.append(two[..., 0] - two[..., 1])

    def denominator(self, module, inputs, output):
        self.denominators.append(inputs[0].detach())

    def sticks(self, module, inputs, output):
        self.tails.append(sticks_left(inputs[0]))

    def weights(self, module, inputs, output):
        self.alphas.append(output.detach())

    def constant(self, module, inputs, output):
        self.constants.append(self.replay.pop(0) if self.replay else output)
        return self.constants[-1]


def drop_as_program(model):
    """Dropout's sites are 0 and, for block i of all stages, 3 i + 1, 3, 2, and for stage j > 0 with positions of its own
    3 blocks + j."""
    drop, sites = Drop(model.config.dropout, SEED, STEP, FIRST), {}
    blocks = [block for holder in model.holders() for block in holder.blocks]
    for i, block in enumerate(blocks):
        sites.update({block.drop1: 3 * i + 1, block.mlp.drop: 3 * i + 2, block.drop2: 3 * i + 3})
    for i, module in enumerate(model.pos_drops):
        if isinstance(module, nn.Dropout):
            sites[module] = 3 * len(blocks) + i if i else 0
    for module, site in sites.items():
        module.register_forward_hook(lambda module, inputs, output, site=site: drop.rows(inputs[0], site))


def build(config, params, replay=None):
    """params {name: tensor}, buffers included.  The model as it is trained, with `notes`; it draws nothing anew."""
    with default_dtype(next(iter(params.values())).dtype):
        model = vitc.Vit(config)
    model.load_state_dict({name: params[name] for name in {**parameter_shapes(config), **buffer_shapes(config)}})
    for module in model.train().modules():
        if isinstance(module, layers.Drawn):
            module.eval()
    model.notes = Notes(model, replay)
    if config.dropout:
        drop_as_program(model)
    return model


def loss_of(config, own_logits, labels, teacher=None):
    """Mean cross entropy, no smoothing; with distillation that of the first classifier and, against the teacher, that of
    the second, as DeiT's paper has it (equations 2 and 3)."""
    own, dist = own_logits[0], own_logits[-1]
    if config.distillation == "none":
        return F.cross_entropy(sum(own_logits) / len(own_logits), labels)
    if config.distillation == "hard":
        theirs = F.cross_entropy(dist, teacher.argmax(1))
    else:
        tau = config.distillation_tau
        q, log_p = F.log_softmax(teacher / tau, dim=1), F.log_softmax(dist / tau, dim=1)
        theirs = tau**2 * (q.exp() * (q - log_p)).sum(1).mean()
    return (1 - config.distillation_alpha) * F.cross_entropy(own, labels) + config.distillation_alpha * theirs


def loss_and_gradients(model, images, labels, teacher=None):
    """Returns logits, loss and {name: gradient}."""
    own = model.heads(images)
    loss = loss_of(model.config, own, labels, teacher)
    learned = dict(model.named_parameters())
    gradients = torch.autograd.grad(loss, list(learned.values()), allow_unused=model.config.pool == "gap-raw")
    gradients = [torch.zeros_like(leaf) if gradient is None else gradient
                 for leaf, gradient in zip(learned.values(), gradients)]
    return (sum(own) / len(own)).detach(), loss.detach(), dict(zip(learned, gradients))


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
    model = build(config, params)
    _, _, gradients = loss_and_gradients(model, images, labels)
    constants = model.notes.constants
    worst, step = 0.0, 1e-6
    with torch.no_grad():
        for name, value in params.items():
            if name not in gradients:
                continue
            direction = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            losses = []
            for sign in (1, -1):
                moved = build(config, {**params, name: value + sign * step * direction}, constants)
                losses.append(F.cross_entropy(moved(images), labels))
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
    plain = set(vitc.OPERATORS) - {*settings.RIPPLE, "convit", "gf", "softmax", "linear", "conv", "sepconv",
                                   "focused-reduced"}
    own = [dict(attn="softmax", pool="cls"), dict(attn="softmax", pos_embed="none"), dict(attn="linear", pool="cls"),
           dict(attn="linear"), dict(attn="ripple", tau=0.05), dict(attn="ripple", r_max=9),
           dict(attn="ripple", ripple_layers=1), dict(attn="convit", pool="cls"),
           dict(attn="convit", convit_local_layers=2, heads=3), dict(attn="softmax", rpe="heads"),
           dict(attn="sparse-strided", sparse_heads="union", sparse_stride=4),
           dict(attn="sparse-fixed", sparse_heads="split", sparse_stride=4),
           *(dict(attn=attn, lisa_patterns=3) for attn in sorted(plain)),
           dict(attn="lisa", lisa_patterns=2, lisa_fft="2d"), dict(attn="lisa", lisa_patterns=2, lisa_kernel=3),
           dict(attn="gf", img_size=(8, 12)), *(dict(attn=attn) for attn in settings.RIPPLE[1:]),
           *(dict(attn="linear", feature_map=name) for name in ("rfa", "performer", "dpfp", "t2r", "mlp-random-w1")),
           *(dict(attn="linear", relative=name, pool="cls")
             for name in ("sincspe", "convspe", "rope", "rope-2d", "permute")),
           dict(attn="linear", relative="rope", feature_map="rfa")]
    two = dict(img_size=(13, 18), patch_size=4, dim="4,6", depth="2,1", heads="2,3", mlp_ratio="2,3", lisa_patterns=2)
    own += [dict(attn="conv", mlp_conv=True, pos_embed="conv"),
            dict(two, attn="lisa", patch_overlap=True, mlp_conv=True, pos_embed="conv"),
            dict(two, attn="softmax", conv_stages=1, img_size=(16, 24)), dict(attn="sepconv", head="mlp"),
            dict(two, attn="softmax", conv_stages=1, conv_block="sepconv", img_size=(16, 24)),
            dict(attn="softmax", pool="cls", head="tanh"),
            dict(attn="softmax", stem="conv", patch_size=1, tokenizer_width=5, pool="seq", pos_embed="sine",
                 mlp_stream="normed", qkv_bias=False, img_size=(13, 18)),
            dict(two, attn="focused,swin", window=2, img_size=(16, 24), patch_merging=True, patch_norm=True,
                 stage_norm=False, norm_eps=1e-5, pos_embed="none")]
    for seed, chosen in enumerate(own):
        config = Config(**{**small, **chosen})
        worst = check_finite_differences(config, seed)
        print(f"gradients == central differences   {config.attn:23s} {config.pool} {config.pos_embed:8s} "
              f"R {config.r_max} tau {config.tau:<5g} {config.feature_map:13s} {config.relative:8s} "
              f"worst {worst:.1e}   ok")

    generator = torch.Generator().manual_seed(99)
    o = 3 * torch.randn(2, 2, 15, 4, generator=generator, dtype=torch.float64)
    for tau in (0.0, 0.001, 0.05, 0.5):
        assert (ripple.stick_breaking(o, tau).sum(-1) - 1).abs().max() < 1e-14
    assert (ripple.stick_breaking(torch.zeros(4, dtype=torch.float64), 0.0) - 0.2).abs().max() < 1e-16
    print("alpha sums to one, zero logits give 1/(R+1)   ok")

    config = Config(**{**small, "attn": "ripple"})
    params = random_params(config, generator)
    images = torch.randn(2, 3, *config.img_size, generator=generator, dtype=torch.float64)
    for name in params:
        if name.endswith("sticks"):
            params[name] = torch.zeros_like(params[name])
    # Weights 1/G divide num and den alike, so that only the 1e-6 in the denominator distinguishes the two.
    difference = (build(config, params)(images) - build(replace(config, attn="linear"), params)(images)).abs().max().item()
    assert difference < 1e-5, difference
    print(f"equal weights == linear attention   worst {difference:.1e}   ok")

    for attn in settings.RIPPLE:
        config = Config(**{**small, "attn": attn, "tau": 0.02})
        model = build(config, random_params(config, generator, 0.8))
        model(images)
        for alpha in model.notes.alphas:
            total = alpha.sum(-1)
            assert (total < 1).any() if attn == "ripple-truncated" else (total - 1).abs().max() < 1e-14, attn
            assert (alpha >= 0).all()
    print("alpha of every variant sums to one, ripple-truncated to less   ok")

    phi = torch.randn(6, generator=generator, dtype=torch.float64)
    for name in ("rope", "permute"):
        with default_dtype(torch.float64):
            encoding = relative.KINDS[name](Config(attn="linear", relative=name, img_size=(6, 10)), 2, 6, 6)
        psi = encoding.psi(phi.expand(1, 2, 15, 6))  # every token has these features
        products = psi @ psi.transpose(-1, -2)
        assert (products[..., 1:, 1:] - products[..., :-1, :-1]).abs().max() < 1e-12
        assert (products[..., 0, :] - products[..., 0, :1]).abs().max() > 1e-3
    print("rope and permute: products depend on n - m alone   ok")

    grid = dict(patch_size=1, img_size=(7, 9))
    assert ripple.group_bounds(Config(attn="ripple-log", **grid)) == [0, 1, 2, 4, 8]
    assert len(ripple.group_bounds(Config(attn="ripple-dense", **grid))) == 9
    assert ripple.grid_groups((1, 5), [0, 1, 2, 4])[0].tolist() == [0, 1, 2, 2, 3]
    print("vicinal groups   ok")


if __name__ == "__main__":
    self_check()
