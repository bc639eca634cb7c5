"""Writes tests/fixtures/smca/<case>.safetensors: a small SMCA-DETR above its backbone, a batch of two sizes, and what
the float64 reference makes of them.

    python3 tests/reference/make_detr_fixtures.py           writes those that differ by more than rounding
    python3 tests/reference/make_detr_fixtures.py --check   draws and computes them again and compares with the files

A file holds features [B,N,channels], dlogits and dboxes (the loss is their product with the outputs) and every
parameter in float32, logits, boxes, the parameters' grad.<name> and grad.features in float64; its metadata are the
settings.  With dropout the masks are those of seed SEED, step STEP, first image FIRST.  Draws are repeated until a
float32 program can be held to 1e-5: no ReLU flips by rounding, no stick-breaking process ends by rounding, and this
reference run in float32 stays within a quarter of the tolerance, or within a third where features take the place of a
softmax in the encoder.  seeds.csv has the seed of each fixture; a new fixture's is searched for.
"""

import os
import sys

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

import numpy as np
import torch

import drawn
import safetensors_io
from compare_parity import relative_error
from detr_reference import Config, Detr, parameter_shapes
from dropout_reference import FIRST, SEED, STEP, Drop

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "smca")
TOLERANCE, RELU_MARGIN, TAU_MARGIN = 1e-5, 1e-5, 2e-5

CASES = {
    "softmax": Config(),
    "softmax-dropout": Config(dropout=0.1),
    "type1": Config(scale_type=1, dim=8, heads=2, queries=3, decoder_layers=1, encoder_layers=1, sizes="40x220,150x33"),
    "type2": Config(scale_type=2, dim=8, heads=2, queries=3, encoder_layers=1),
    "type4": Config(scale_type=4, dim=8, heads=2, queries=3, encoder_layers=1, sizes="150x220,97x129"),
    "linear-dropout": Config(attn="linear", dropout=0.1, decoder_layers=1),
    "ripple": Config(attn="ripple", decoder_layers=1),
    "ripple-rmax6": Config(attn="ripple", r_max=6, encoder_layers=1, decoder_layers=1, tau=0.0),
}


def deviation(name):
    last = name.split(".")[-1]
    if last == "w1":
        return 1.0
    if last in ("w2", "sticks"):
        return 0.5
    if last == "in_proj_weight":
        return 0.3
    if name == "query_embed.weight":
        return 1.0
    return 0.2 if "bias" in last else 0.25


def draw(config, seed):
    random = np.random.RandomState(seed)
    tensors = {}
    for name, shape in parameter_shapes(config).items():
        x = deviation(name) * random.standard_normal(shape)
        if ("norm" in name and name.endswith("weight")) or name.endswith("point3.bias"):
            x = 1 + 0.3 * x
        tensors[name] = (0.3 + x if name.endswith("b2") else x).astype(np.float32)
    h, w = config.grid
    B, L, Q = len(config.own), config.decoder_layers, config.queries
    tensors["features"] = random.standard_normal((B, h * w, config.channels)).astype(np.float32)
    tensors["dlogits"] = random.standard_normal((L, B, Q, config.columns)).astype(np.float32)
    tensors["dboxes"] = random.standard_normal((L, B, Q, 4)).astype(np.float32)
    return tensors


def compute(config, inputs, dtype):
    tensors = {name: torch.from_numpy(inputs[name].copy()).to(dtype).requires_grad_()
               for name in [*parameter_shapes(config), "features"]}
    model = Detr(config, tensors, Drop(config.dropout, SEED, STEP, FIRST))
    logits, boxes = model(tensors["features"])
    loss = (logits * torch.from_numpy(inputs["dlogits"].copy())).sum() + \
           (boxes * torch.from_numpy(inputs["dboxes"].copy())).sum()
    loss.backward()
    outputs = {"logits": logits.detach().to(dtype).numpy(), "boxes": boxes.detach().to(dtype).numpy()}
    for name, tensor in tensors.items():
        gradient = tensor.grad.numpy()
        if cancels(config, name):
            gradient = np.zeros_like(gradient)
        outputs["grad." + name] = gradient
    return model, outputs


def cancels(config, name):
    """Before layer 0 t is 0, so that without dropout neither its attention's weights nor v's input matter."""
    return name == "transformer.decoder.layers.0.self_attn.in_proj_weight" and not config.dropout


def objection(config, inputs, model, outputs):
    if any(pre.abs().min() < RELU_MARGIN for pre in model.kinks):
        return "a ReLU is too near zero"
    if config.tau and any((tail - config.tau).abs().min() < TAU_MARGIN for tail in model.tails):
        return "a stick-breaking process is too near its end"
    if any(not np.abs(value).max() > 1e-6 for name, value in outputs.items() if not cancels(config, name[5:])):
        return "a gradient vanishes"
    _, single = compute(config, inputs, torch.float32)
    worst = max((relative_error(single[name], value), name) for name, value in outputs.items())
    part = 4 if config.attn == "softmax" else 3
    return None if worst[0] < TOLERANCE / part else f"too ill-conditioned for float32: {worst[1]}"


def make(case):
    config, kept, reasons = CASES[case], drawn.seed_of("smca/" + case), {}
    for seed in range(3000) if kept is None else [kept]:
        inputs = draw(config, seed)
        model, outputs = compute(config, inputs, torch.float64)
        reason = objection(config, inputs, model, outputs) if kept is None else None
        if reason is None:
            return inputs, outputs, seed
        reasons[reason] = reasons.get(reason, 0) + 1
    sys.exit(f"{case}: no draw is good enough: {reasons}")


def check(case, path):
    tensors, metadata = safetensors_io.read(path)
    inputs, outputs, _ = make(case)
    wrong = drawn.differing(path, {**inputs, **outputs}, inputs)
    if metadata != CASES[case].metadata():
        wrong.append("settings")
    worst = max(relative_error(tensors.get(name, np.nan), value) for name, value in outputs.items())
    print(f"{case:24s} worst {worst:.1e}   {'FAILED: ' + ', '.join(wrong[:4]) if wrong else 'ok'}")
    return int(bool(wrong))


def main():
    torch.set_num_threads(1)
    mistakes = 0
    for case in [name for name in sys.argv[1:] if name in CASES] or CASES:
        path = os.path.join(FIXTURES, case + ".safetensors")
        if "--check" in sys.argv:
            mistakes += check(case, path)
            continue
        inputs, outputs, seed = make(case)
        drawn.keep("smca/" + case, seed)
        done = drawn.write(path, inputs, outputs, CASES[case].metadata())
        print(f"{case:24s} seed {seed:6d}  {len(inputs) + len(outputs):3d} tensors  "
              f"{os.path.getsize(path) / 1024:.0f} KiB  {done}", flush=True)
    sys.exit(mistakes > 0)


if __name__ == "__main__":
    main()
