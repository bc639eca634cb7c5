"""The operators of the package python/vitc by themselves, as a model of one's own has them.

    python3 tests/reference/check_operators.py [--compile softmax linear ...]

Each runs forward and backward in float32 and forward in bfloat16, which must be near float32's.  attn_dropout must drop
single weights in training, with the rate that is set, and none in evaluation, and is refused for operators without it.
A file that vitc.save writes gives the same model.  With --compile, torch.compile must take these operators as one graph
(fullgraph), and their outputs and gradients must be those without it; these need PyTorch 2 and a C++ compiler."""

import argparse
import os
import sys
import tempfile


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--compile", nargs="+", default=[], metavar="OPERATOR", help="compile these, or all")
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
import vitc

GRID, DIM, HEADS, RATE = (8, 8), 48, 4, 0.25
MORE = {"reduced": dict(reduction=2), "focused-reduced": dict(reduction=2), "convattn": dict(kv_stride=2)}
BFLOAT16, COMPILED = 0.1, 1e-4


def layer_of(name):
    torch.manual_seed(3)
    return vitc.attention(name, DIM, HEADS, GRID, **MORE.get(name, {}))


def error(got, want):
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


def run(function, layer, x):
    """The output, and the gradients of x and all parameters."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    y = function(x)
    (y * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in layer.parameters() if p.grad is not None)]


def check_types(name):
    layer, x = layer_of(name), torch.randn(2, 64, DIM)
    single = run(layer, layer, x)
    assert all(value.isfinite().all() for value in single), f"{name}: not finite"
    with torch.no_grad():
        rounded = error(layer.bfloat16()(x.bfloat16()), single[0])
    assert rounded < BFLOAT16, f"{name}: {rounded:.2g} in bfloat16"
    return rounded


def check_compile(name):
    layer, x = layer_of(name), torch.randn(2, 64, DIM)
    pairs = zip(run(torch.compile(layer, fullgraph=True), layer, x), run(layer, layer, x))
    # Without those that only rounding keeps from zero.
    worst = max(error(got, want) for got, want in pairs if want.norm() > 1e-6 * want.numel() ** 0.5)
    assert worst < COMPILED, f"{name}: compiled, {worst:.1e} away"
    return worst


def weights_of(name, rate):
    """The operator's weights [B,N,N]: the values are one-hot, and what comes out is what they are weighted with."""
    torch.manual_seed(5)
    N = 64
    layer = vitc.attention(name, N, 1, GRID, attn_dropout=rate)
    with torch.no_grad():
        for weight, values in [(layer.proj.weight, slice(None)),
                               (layer.qkv.weight if name == "softmax" else layer.kv.weight, slice(-N, None))]:
            weight[values] = torch.eye(N)
        x = torch.eye(N).expand(200, N, N)
        return layer.train()(x), layer.eval()(x)


def check_dropout(name):
    dropped, whole = weights_of(name, RATE)
    zero = dropped == 0
    assert (zero | ((dropped - whole / (1 - RATE)).abs() < 1e-6)).all(), f"{name}: neither dropped nor scaled"
    share = zero.double().mean().item()
    deviation = (RATE * (1 - RATE) / zero.numel()) ** 0.5
    assert abs(share - RATE) < 6 * deviation, f"{name}: {share:.4f} of the weights dropped, not {RATE}"
    assert abs(whole.sum(-1) - 1).max() < 1e-5, f"{name}: dropped in evaluation"
    return share


def check_refusals():
    for name, grid, settings in (("lisa", GRID, {"attn_dropout": 0.1}), ("softmax", GRID, {"attn_dropout": 0.1, "rpe": "heads"}),
                                 ("ripple", GRID, {"feature_map": "rfa"}), ("lisa", (2, *GRID), {"lisa_fft": "2d"})):
        try:
            vitc.attention(name, DIM, HEADS, grid, **settings)
        except ValueError:
            continue
        raise AssertionError(f"{name}: {settings} is not refused")


def check_files():
    """A saved model is loaded as it was; a file that is cut off or has wrong offsets is refused."""
    settings = "attn = ripple\nimg_size = 16\ndim = 24\ndepth = 1\nheads = 2\n"
    model = vitc.Vit(vitc.Config(attn="ripple", img_size=(16, 16), dim=24, depth=1, heads=2, num_classes=3))
    model.metadata = {"vit.c.config": "[model]\n" + settings, "vit.c.classes": "cat\ndog\ncow\n"}
    with tempfile.TemporaryDirectory() as folder:
        path, cut = os.path.join(folder, "a.safetensors"), os.path.join(folder, "b.safetensors")
        vitc.save(model, path)
        again = vitc.load(path)
        assert again.class_names == ["cat", "dog", "cow"]
        assert all(torch.equal(x, again.state_dict()[name]) for name, x in model.state_dict().items())
        with open(path, "rb") as file:
            data = file.read()
        offset = data.index(b'"data_offsets": [0') + len(b'"data_offsets": [')
        for damaged in (b"", data[:5], data[:100], data[:-4], b"\xff" * 8 + data[8:], data[:offset] + b"4" + data[offset + 1:]):
            with open(cut, "wb") as file:
                file.write(damaged)
            try:
                vitc.load(cut)
            except ValueError:
                continue
            raise AssertionError(f"a damaged file of {len(damaged)} bytes is loaded")


def main():
    torch.set_num_threads(1)
    rounded = {name: check_types(name) for name in vitc.OPERATORS}
    worst = max(rounded, key=rounded.get)
    print(f"{len(rounded)} operators, forward and backward; in bfloat16 at most {rounded[worst]:.1e} away ({worst})   ok")
    for name in ("softmax", "reduced"):
        print(f"attn_dropout of {name}: {check_dropout(name):.4f} of the weights at rate {RATE}   ok")
    check_refusals()
    check_files()
    print("vitc.save and vitc.load   ok")
    for name in vitc.OPERATORS if ARGUMENTS.compile == ["all"] else ARGUMENTS.compile:
        print(f"torch.compile of {name}: one graph, at most {check_compile(name):.1e} away   ok", flush=True)


if __name__ == "__main__":
    main()
