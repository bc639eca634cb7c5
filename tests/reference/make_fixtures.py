"""Writes tests/fixtures/<case>.safetensors: a 2-block model, a batch, and what the float64 reference makes of them.

    python3 tests/reference/make_fixtures.py           writes those that differ by more than rounding
    python3 tests/reference/make_fixtures.py --check   draws and computes them again and compares with the files there

A file holds images [3,3,Hi,Wi], or clips [3,frames,3,Hi,Wi], every parameter and every buffer under its own name in
float32, labels [3] in int64, and logits, loss [1] and the parameters' grad.<name> in float64, computed from exactly those float32 values; its
metadata are the settings.  The gradient of a parameter that no output depends on is zero, not what rounding leaves of
zero.

Parameters are drawn so that each one matters, and drawn again until a float32 program can be held to 1e-5: no ReLU of
a feature map flips by rounding, no stick-breaking process ends by rounding, and this reference run in float32 stays
within a third of the tolerance, not only for these images but for eight more that differ by a rounding or two: of one
run's errors alone, a draw that no program can be held to might be accepted because its errors happen to cancel.
seeds.csv has the seed of each fixture; a new fixture's is searched for.
"""

import argparse
import os
import sys
import zlib


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names in cases.py (default: all)")
    parser.add_argument("--check", action="store_true", help="compare with the files instead of writing them")
    parser.add_argument("--out", help="directory of the fixtures (default: tests/fixtures)")
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import numpy as np
import torch

import drawn
import safetensors_io
from cases import CASES
from compare_parity import relative_error
from vit_reference import Config, buffer_shapes, build, cancels, loss_and_gradients, parameter_shapes
from vitc import tokenizer
from vitc.attention.features import MAY_BE_NEGATIVE

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures")
BATCH = 3
RELU_MARGIN = 1e-5
NEARBY = 8
TOLERANCE = 1e-5  # of the tests; see tests/check.h for what it is relative to
UNSCALED = ("dwconv7", "softmax-mlp-conv")  # drawn when the convolution's weights were not yet made larger


def deviation(case, name, stick_scale):
    """Chosen so that every part of the model has a say and no layer amplifies rounding."""
    last = name.split(".attn.")[-1]
    if case.endswith("-clamp") and last == "qkv.weight":
        return 0.3  # some tokens' features are next to nothing
    scales = {"pos_embed": 1.0, "cls_token": 1.0, "patch_embed.proj.weight": 0.7, "head.weight": 0.3,
              "feature.w1": 1.0, "feature.w2": 0.4, "proj.weight": 0.4, "ripple.proj.weight": 0.3,
              "ripple.proj.bias": 0.3, "ripple.sticks": stick_scale, "feature.weight": 1.0, "relative.noise": 1.0,
              "relative.common": 1.0, "relative.freqs": 1.0, "relative.offsets": 1.0, "relative.gains": 1.0,
              "relative.gate": 1.0, "relative.conv_q": 0.06, "relative.conv_k": 0.06, "pos_proj.weight": 0.15,
              "gating_param": 1.0, "rpe.weight": 0.7, "scale": 0.5}
    return 0.1 if ".mlp." in name and name.endswith("weight") else scales.get(last, 0.2)


def draw_parameter(case, name, shape, random, stick_scale):
    if name == "pos_embed" and CASES[case][0].pos_embed == "sine":
        return tokenizer.sines(*shape[1:]).numpy()
    if name.endswith("permutation"):
        return np.stack([random.permutation(shape[1]) for _ in range(shape[0])])
    x = deviation(case, name, stick_scale) * random.standard_normal(shape)
    if "norm" in name and name.endswith("weight"):
        return x + (2 if "landmark" in name else 1)  # landmarks apart enough that their matrix has an inverse
    if name.endswith("dwconv.weight") and case not in UNSCALED:
        return 3 * x
    if name.endswith("freqs"):
        return x - 3
    if "focused" in CASES[case][0].attn and name.endswith(("qkv.bias", "attn.q.bias", "attn.kv.bias")):
        return 0.5 + x  # a token whose features are next to nothing in one head magnifies rounding
    return 0.3 + x if name.endswith(("feature.b2", "feature.bias")) else x  # a good half of the features is alive


def tensor_shapes(config):
    return {**parameter_shapes(config), **buffer_shapes(config)}


def draw(case, seed):
    config, stick_scale, _ = CASES[case]
    random = np.random.RandomState(seed)  # numpy promises this generator's numbers for good
    tensors = {name: draw_parameter(case, name, shape, random, stick_scale).astype(np.float32)
               for name, shape in tensor_shapes(config).items()}
    frames = (config.frames,) if config.frames > 1 else ()
    tensors["images"] = random.standard_normal((BATCH, *frames, 3, *config.img_size)).astype(np.float32)
    tensors["labels"] = random.randint(0, config.num_classes, BATCH).astype(np.int64)
    if config.distillation != "none":
        tensors["teacher_logits"] = 2 * random.standard_normal((BATCH, config.num_classes)).astype(np.float32)
    return tensors


def compute(config, inputs, dtype):
    """Returns the model after its run and {logits, loss, grad.*} as numpy arrays."""
    params = {name: torch.from_numpy(inputs[name].copy()).to(dtype) for name in tensor_shapes(config)}
    model = build(config, params)
    teacher = torch.from_numpy(inputs["teacher_logits"].copy()).to(dtype) if "teacher_logits" in inputs else None
    logits, loss, gradients = loss_and_gradients(model, torch.from_numpy(inputs["images"].copy()).to(dtype),
                                                 torch.from_numpy(inputs["labels"].copy()), teacher)
    outputs = {"logits": logits.to(dtype).numpy(), "loss": loss.reshape(1).to(dtype).numpy()}
    outputs.update({f"grad.{name}": gradient.numpy() * (not cancels(name, config))
                    for name, gradient in gradients.items()})
    return model, outputs


def float32_will_do(config, inputs, outputs):
    """For these images and for others so near that only the rounding errors are drawn again."""
    random = np.random.RandomState(0)
    for i in range(1 + NEARBY):
        if i > 0:
            step = 2.0**-23 * random.standard_normal(inputs["images"].shape)
            inputs = {**inputs, "images": (inputs["images"] * (1 + step)).astype(np.float32)}
            _, outputs = compute(config, inputs, torch.float64)
        _, single = compute(config, inputs, torch.float32)
        if not all(relative_error(single[name], value) < TOLERANCE / 3 for name, value in outputs.items()):
            return False
    return True


def objection(case, inputs, model, outputs):
    """What is wrong with this draw, or None."""
    config, _, tau_margin = CASES[case]
    if any(pre.abs().min() < RELU_MARGIN for pre in model.notes.kinks):
        return "a ReLU is too near zero"
    if config.feature_map in MAY_BE_NEGATIVE:
        sums = torch.cat([total.abs().flatten() for total in model.notes.denominators])
        clamped = (sums < 1e-2).double().mean()
        if ((sums > 0.99e-2) & (sums < 3e-2)).any():
            return "a denominator is too near the clamp"
        if not (0.03 < clamped < 0.5 if case.endswith("-clamp") else clamped == 0):
            return f"{clamped:.0%} of the denominators are clamped"
    if config.tau > 0 and any((tail - config.tau).abs().min() < tau_margin for tail in model.notes.tails):
        return "a stick-breaking process is too near its end"
    if tau_margin >= 1e-3:
        ended = torch.cat([(tail[..., -1] < config.tau).flatten() for tail in model.notes.tails]).double().mean()
        if not 0.2 < ended < 0.8:
            return f"tau ends {ended:.0%} of the processes"
    for alpha in model.notes.alphas:
        if config.attn != "ripple-fixed" and (alpha.amax(-1) - alpha.amin(-1)).mean() < 0.2:
            return "the spatial weights are too near uniform"
    if len(set(inputs["labels"])) == 1:
        return "all labels are equal"
    if any(not np.abs(value).max() > 1e-6 for name, value in outputs.items() if not cancels(name, config)):
        return "a gradient vanishes"
    return None if float32_will_do(config, inputs, outputs) else "too ill-conditioned for float32"


def make(case):
    """Returns the case's inputs and outputs, the seed that drew them and the model after its run."""
    config, kept = CASES[case][0], drawn.seed_of(case)
    reasons = {}
    first = zlib.crc32(case.encode()) % 2**31  # whatever other cases there are
    for seed in range(first, first + 10000) if kept is None else [kept]:
        inputs = draw(case, seed)
        model, outputs = compute(config, inputs, torch.float64)
        reason = objection(case, inputs, model, outputs) if kept is None else None
        if reason is None:
            return inputs, outputs, seed, model
        reasons[reason] = reasons.get(reason, 0) + 1
    sys.exit(f"{case}: no draw is good enough: {reasons}")


def summary(case, seed, model, tensors):
    config = CASES[case][0]
    _, single = compute(config, tensors, torch.float32)
    worst = max(relative_error(value, tensors[name]) for name, value in single.items())
    text = f"{case:24s} seed {seed:6d}  {len(tensors):3d} tensors  float32 {worst:.1e}"
    if model.notes.kinks:
        text += f"  ReLU margin {min(pre.abs().min().item() for pre in model.notes.kinks):.1e}"
    if config.tau > 0 and model.notes.tails:
        margin = min((tail - config.tau).abs().min().item() for tail in model.notes.tails)
        ended = torch.cat([(tail[..., -1] < config.tau).flatten() for tail in model.notes.tails]).double().mean().item()
        text += f"  tau margin {margin:.1e}, ended {ended:.0%}"
    return text


def check(case, path):
    """The file against what its seed draws and the reference makes of that.  Returns the number of mistakes."""
    tensors, metadata = safetensors_io.read(path)
    if metadata != CASES[case][0].metadata():
        print(f"{case}: its settings are {metadata}, cases.py has {CASES[case][0].metadata()}")
        return 1
    inputs, outputs, *_ = make(case)
    wrong = drawn.differing(path, {**inputs, **outputs}, inputs)
    worst = max(relative_error(tensors.get(name, np.nan), value) for name, value in outputs.items())
    print(f"{case:24s} worst {worst:.1e}   {'FAILED: ' + ', '.join(wrong[:4]) if wrong else 'ok'}")
    return int(bool(wrong))


def main():
    arguments = ARGUMENTS
    torch.set_num_threads(1)  # the order of sums, hence the bytes
    mistakes = 0
    for case in arguments.cases or CASES:
        path = os.path.join(arguments.out or FIXTURES, case + ".safetensors")
        if arguments.check:
            mistakes += check(case, path)
            continue
        inputs, outputs, seed, model = make(case)
        drawn.keep(case, seed)
        done = drawn.write(path, inputs, outputs, CASES[case][0].metadata())
        print(f"{summary(case, seed, model, {**inputs, **outputs})}  {os.path.getsize(path) / 1024:.0f} KiB  {done}",
              flush=True)
    sys.exit(mistakes > 0)


if __name__ == "__main__":
    main()
