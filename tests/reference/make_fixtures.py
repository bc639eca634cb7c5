"""Writes tests/fixtures/<case>.safetensors: a 2-block model, a batch, and what the float64 reference makes of them.

    python3 tests/reference/make_fixtures.py           writes them again (Debian's python3-torch gives the same bytes)
    python3 tests/reference/make_fixtures.py --check   recomputes and compares with the files there

A file holds images [3,3,Hi,Wi], or clips [3,frames,3,Hi,Wi], every parameter and every buffer under its own name in
float32, labels [3] in int64, and logits, loss [1] and the parameters' grad.<name> in float64, computed from exactly those float32 values; its
metadata are the settings.  The gradient of a parameter that no output depends on is zero, not what rounding leaves of
zero.

Parameters are drawn so that each one matters, and drawn again until a float32 program can be held to 1e-5: no ReLU of
a feature map flips by rounding, no stick-breaking process ends by rounding, and this reference run in float32 stays
within a third of the tolerance, not only for these images but for eight more that differ by a rounding or two: of one
run's errors alone, a draw that no program can be held to might be accepted because its errors happen to cancel.
"""

import argparse
import os
import sys
import zlib


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names in CASES below (default: all)")
    parser.add_argument("--check", action="store_true", help="compare with the files instead of writing them")
    parser.add_argument("--out", help="directory of the fixtures (default: tests/fixtures)")
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import numpy as np
import torch

import operators
import safetensors_io
import tokenizer_reference
from compare_parity import relative_error
from linear_reference import MAY_BE_NEGATIVE
from operators import clips, sparse
from vit_reference import Config, Vit, buffer_shapes, cancels, parameter_shapes

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures")
BATCH = 3
RELU_MARGIN = 1e-5
NEARBY = 8
TOLERANCE = 1e-5  # of the tests; see tests/check.h for what it is relative to

# A grid of 5 x 7, three heads of five.
ODD = {"img_size": (10, 14), "dim": 15, "heads": 3}

# case -> settings, standard deviation of the sticks, least |1 - sum alpha - tau| over all tokens, heads and groups
CASES = {
    "softmax-cls": (Config(attn="softmax", pool="cls"), 0.5, 0),
    "softmax-gap-nope": (Config(attn="softmax", pos_embed="none"), 0.5, 0),
    "linear-cls": (Config(attn="linear", pool="cls"), 0.5, 0),
    "linear-gap": (Config(attn="linear"), 0.5, 0),
    "ripple": (Config(attn="ripple", ripple_layers=1, tau=0.001), 0.5, 2e-5),
    "ripple-rmax2-tau": (Config(attn="ripple", r_max=2, tau=0.05), 3.0, 1e-3),
    "ripple-rmax16": (Config(attn="ripple", r_max=16, tau=0.0), 0.5, 0),
    "ripple-fixed": (Config(attn="ripple-fixed"), 0.5, 0),
    "ripple-softmax-weights": (Config(attn="ripple-softmax-weights"), 0.5, 0),
    "ripple-truncated": (Config(attn="ripple-truncated", tau=0.02), 1.0, 2e-5),
    "ripple-log": (Config(attn="ripple-log", tau=0.01), 1.0, 2e-5),
    "ripple-dense": (Config(attn="ripple-dense", tau=0.0), 0.5, 0),
    "ripple-row-one-head": (Config(attn="ripple", img_size=(2, 10), heads=1, r_max=3, tau=0.0), 0.5, 0),
    "ripple-three-heads": (Config(attn="ripple", dim=24, heads=3, tau=0.0), 0.5, 0),
    "convit-cls": (Config(attn="convit", pool="cls", img_size=(10, 14), heads=5), 0, 0),
    "convit-cls-nope": (Config(attn="convit", pool="cls", pos_embed="none", img_size=(4, 14), dim=12, depth=3,
                               convit_local_layers=2), 0, 0),
    "convit-gap": (Config(attn="convit", img_size=(14, 10), heads=5, convit_local_layers=2), 0, 0),
    "softmax-rpe-shared": (Config(attn="softmax", rpe="shared", **ODD), 0, 0),
    "softmax-rpe-heads": (Config(attn="softmax", rpe="heads", **ODD), 0, 0),
    **{case: (Config(**settings), 0, 0) for case, settings in sparse.CASES.items()},
    "focused": (Config(attn="focused", **ODD), 0, 0),
    "focused-p5": (Config(attn="focused", focused_p=5, img_size=(14, 4), dim=10, heads=1), 0, 0),
    "efficient-cls": (Config(attn="efficient", pool="cls", **ODD), 0, 0),
    "hydra-cls": (Config(attn="hydra", pool="cls", **ODD), 0, 0),
    "relu-linear": (Config(attn="relu-linear", img_size=(10, 14), dim=9, heads=3), 0, 0),
    "castling": (Config(attn="castling", **ODD), 0, 0),
}
SMALL = dict(img_size=(10, 14), dim=15, heads=3, depth=1, mlp_ratio=2, num_classes=5, ripple_layers=1)
CASES.update({
    **{f"linear-{name}": (Config(**SMALL, attn="linear", feature_map=name), 0.5, 0)
       for name in ("rfa", "performer", "dpfp", "t2r", "mlp-random-w1")},
    "linear-rfa-clamp": (Config(**{**SMALL, "img_size": (6, 10), "dim": 10, "heads": 2}, attn="linear",
                                feature_map="rfa", pool="cls"), 0.5, 0),
    **{f"linear-{name}": (Config(**SMALL, attn="linear", relative=name), 0.5, 0)
       for name in ("sincspe", "convspe", "rope", "permute")},
    "linear-rope-2d-dpfp": (Config(**SMALL, attn="linear", relative="rope-2d", feature_map="dpfp", pool="cls"), 0.5, 0),
    "linear-rope-rfa": (Config(**SMALL, attn="linear", relative="rope", feature_map="rfa", pool="cls"), 0.5, 0),
    "linear-sincspe-performer": (Config(**SMALL, attn="linear", relative="sincspe", feature_map="performer",
                                        pool="cls"), 0.5, 0),
    "ripple-performer": (Config(**SMALL, attn="ripple", feature_map="performer", r_max=2), 0.5, 2e-5),
    "ripple-dpfp": (Config(**SMALL, attn="ripple", feature_map="dpfp", r_max=3), 0.5, 2e-5),
    "ripple-explicit-softmax": (Config(**SMALL, attn="ripple-explicit-softmax", tau=0.01), 1.0, 2e-5),
})
LISA = dict(**SMALL, lisa_patterns=3)
CASES.update({
    "lisa": (Config(attn="lisa", **LISA), 0.5, 0),
    "lisa-one-pattern": (Config(attn="lisa", **{**LISA, "lisa_patterns": 1}), 0.5, 0),
    "lisa-2d": (Config(attn="lisa", **LISA, lisa_fft="2d"), 0.5, 0),
    "lisa-local": (Config(attn="lisa", **LISA, lisa_kernel=5), 0.5, 0),
    "sa9": (Config(attn="sa9", **LISA), 0.5, 0),
    "sa9-heads": (Config(attn="sa9-heads", **LISA), 0.5, 0),
    "sa10": (Config(attn="sa10", **LISA), 0.5, 0),
    "sa11": (Config(attn="sa11", **{**LISA, "img_size": (6, 10)}), 0.5, 0),
    "gf": (Config(attn="gf", **LISA), 0.5, 0),
    "gf-even": (Config(attn="gf", **{**LISA, "img_size": (8, 12), "dim": 18}), 0.5, 0),
})
CASES.update({
    "nystrom": (Config(attn="nystrom", **{**SMALL, "landmarks": 3}), 0, 0),
    "soft": (Config(attn="soft", **{**SMALL, "landmarks": 4}), 0, 0),
    "castling-mask": (Config(attn="castling", castling_mask=0.03, **SMALL), 0, 0),
    "dwconv7": (Config(attn="dwconv7", **SMALL), 0, 0),
    "convattn": (Config(attn="convattn", **SMALL), 0, 0),
    "lambda": (Config(attn="lambda", **SMALL), 0, 0),
    "inception": (Config(attn="inception", **SMALL), 0, 0),
    "inception-heads": (Config(attn="inception", **{**SMALL, "dim": 12, "heads": 6}, inception_heads=2), 0, 0),
    "rsa": (Config(attn="rsa", **{**SMALL, "img_size": (6, 10)}), 0, 0),
})
ODD_STAGES = dict(img_size=(13, 18), patch_size=4, pos_embed="conv", patch_overlap=1, mlp_conv=1, num_classes=5)
CASES.update({
    "conv": (Config(attn="conv", **SMALL), 0, 0),
    "sepconv": (Config(attn="sepconv", head_kind="mlp", **SMALL), 0, 0),
    "softmax-head-tanh": (Config(attn="softmax", head_kind="tanh", pool="cls", **SMALL), 0, 0),
    "softmax-mlp-conv": (Config(attn="softmax", mlp_conv=1, pos_embed="conv", **{**SMALL, "depth": 2}), 0, 0),
    "hierarchy-lisa": (Config(attn="lisa", lisa_patterns=8, conv_stages=1, stage_dims="8,12", stage_depths="2,1",
                              stage_heads="1,2", stage_ratios="3,2", **ODD_STAGES), 0, 0),
    "hierarchy-softmax": (Config(attn="softmax", stage_dims="6,8,10", stage_depths="1,1,1", stage_heads="2,2,5",
                                 stage_ratios="3,2,1", **{**ODD_STAGES, "img_size": (21, 14)}), 0, 0),
    "hierarchy-sepconv": (Config(attn="lisa", lisa_patterns=2, conv_stages=1, conv_block="sepconv",
                                 stage_dims="8,12", stage_depths="2,1", stage_heads="1,2", stage_ratios="3,2",
                                 **ODD_STAGES), 0, 0),
    "hierarchy-ripple": (Config(attn="ripple", r_max=2, ripple_layers=2, img_size=(12, 16), patch_size=2,
                                num_classes=5, stage_dims="12,15", stage_depths="1,2", stage_heads="2,3",
                                stage_ratios="1,1"), 1.0, 2e-5),
})
CASES.update({
    "softmax-dropout-cls": (Config(attn="softmax", pool="cls", dropout=0.2, **SMALL), 0, 0),
    "convit-dropout-cls": (Config(attn="convit", pool="cls", dropout=0.3, **{**SMALL, "dim": 12, "depth": 3},
                                  convit_local_layers=2), 0, 0),
    "hierarchy-dropout": (Config(attn="softmax", conv_stages=1, dropout=0.1, stage_dims="8,12", stage_depths="2,1",
                                 stage_heads="1,2", stage_ratios="3,2", **ODD_STAGES), 0, 0),
})
CASES.update({
    "convattn-stride": (Config(attn="convattn", kv_stride=2, **SMALL), 0, 0),
    "convattn-stride-3": (Config(attn="convattn", kv_stride=3, **{**SMALL, "img_size": (16, 14)}), 0, 0),
})
HYBRID = dict(attn="softmax", stem="hybrid", stem_width=32, img_size=(22, 31), patch_size=2)
HOST_CASES = {
    "hierarchy-flatten-pvt": (Config(attn="focused", patch_size=2, patch_norm=1, stage_norm=0, num_classes=5,
                                     pool="gap-raw", pos_embed="stages", stage_dims="6,8", stage_depths="1,1",
                                     stage_heads="1,2", stage_ratios="2,1", img_size=(20, 12)), 0, 0),
    "hierarchy-pvt-dropout": (Config(attn="reduced", reduction="2,1", patch_size=2, patch_norm=1, stage_norm=0,
                                     num_classes=5, pool="cls", pos_embed="stages", stage_dims="6,8",
                                     stage_depths="1,2", stage_heads="1,2", stage_ratios="2,1", img_size=(20, 12),
                                     dropout=0.2), 0, 0),
    "softmax-distilled": (Config(attn="softmax", pool="cls", distilled=1, **SMALL), 0, 0),
    "softmax-distilled-soft": (Config(attn="softmax", pool="cls", distilled=1, distillation="soft",
                                      distillation_alpha=0.4, distillation_tau=2.0, **SMALL), 0, 0),
    "linear-distilled-hard": (Config(attn="linear", pool="cls", distilled=1, distillation="hard",
                                     distillation_alpha=0.6, **SMALL), 0.5, 0),
    "softmax-soft": (Config(attn="softmax", distillation="soft", distillation_alpha=0.7, **SMALL), 0, 0),
    "hybrid-cls": (Config(**{**SMALL, **HYBRID}, pool="cls"), 0, 0),
    "hybrid-linear": (Config(**{**SMALL, **HYBRID, "attn": "linear", "img_size": (15, 30)}), 0, 0),
}
NORMED = dict(mlp_stream="normed", norm_eps=1e-5)
COMPACT = dict(attn="softmax", stem="conv", patch_size=1, tokenizer_width=7, pool="seq", qkv_bias=0, **NORMED)
HOST_CASES.update({
    "compact": (Config(**{**SMALL, **COMPACT, "img_size": (13, 18), "depth": 2}), 0, 0),
    "compact-5-sine": (Config(**{**SMALL, **COMPACT, "img_size": (19, 22)}, tokenizer_kernel=5, tokenizer_convs=3,
                              pos_embed="sine"), 0, 0),
    "compact-7-cls": (Config(**{**SMALL, **COMPACT, "img_size": (30, 21), "pool": "cls"}, tokenizer_kernel=7,
                             tokenizer_convs=1, dropout=0.2), 0, 0),
    "compact-ripple": (Config(**{**SMALL, **COMPACT, "attn": "ripple", "img_size": (21, 26)}, r_max=2), 0.5, 2e-5),
    "compact-lisa": (Config(**{**SMALL, **COMPACT, "attn": "lisa", "img_size": (17, 26), "qkv_bias": 1},
                            lisa_patterns=3), 0.5, 0),
    "hierarchy-compact-stem": (Config(**COMPACT, img_size=(29, 14), num_classes=5, patch_overlap=1, stage_dims="8,12",
                                      stage_depths="2,1", stage_heads="1,2", stage_ratios="3,2", dropout=0.1), 0, 0),
    "softmax-normed-cls": (Config(**SMALL, **NORMED, attn="softmax", pool="cls", qkv_bias=0), 0, 0),
    "convit-cls-normed": (Config(**{**SMALL, "dim": 12, "depth": 3}, **NORMED, attn="convit", pool="cls",
                                 convit_local_layers=2), 0, 0),
    "hierarchy-normed": (Config(**ODD_STAGES, **NORMED, attn="softmax", pool="seq", stage_dims="8,12",
                                stage_depths="2,1", stage_heads="1,2", stage_ratios="3,2", dropout=0.1), 0, 0),
    "linear-seq": (Config(**SMALL, attn="linear", pool="seq", pos_embed="sine", qkv_bias=0), 0.5, 0),
})
FIRST_SEEDS = {case: 10000 * i for i, case in enumerate(CASES)}
# Draws before these suit float32, but bfloat16 only by luck.
FIRST_SEEDS["convit-cls-nope"] += 2
FIRST_SEEDS["hierarchy-pvt-cls"] = 1228223190
FIRST_SEEDS["clip-soft"] = 2146  # most draws are too ill-conditioned
CASES.update({case: (Config(**settings), 0, 0) for case, settings in operators.CASES.items()})
CASES.update(HOST_CASES)
# Heads as wide as the CPU's products of pairs of bfloat16 want them.
CASES["linear-wide"] = (Config(attn="linear", img_size=(10, 14), dim=32, heads=1, depth=1, mlp_ratio=1), 0, 0)
CASES["clip-ripple"] = (Config(attn="ripple", r_max=2, **clips.FEW), 0.5, 2e-5)
CASES["clip-ripple-explicit"] = (Config(attn="ripple-explicit-softmax", tau=0.01, r_max=2, **clips.FEW), 1.0, 2e-5)


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
        return tokenizer_reference.sines(*shape[1:]).numpy()
    if name.endswith("permutation"):
        return np.stack([random.permutation(shape[1]) for _ in range(shape[0])])
    x = deviation(case, name, stick_scale) * random.standard_normal(shape)
    if "norm" in name and name.endswith("weight"):
        return x + (2 if "landmark" in name else 1)  # landmarks apart enough that their matrix has an inverse
    if name.endswith("dwconv.weight"):
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
    model = Vit(config, params)
    logits, loss, gradients = model.loss_and_gradients(torch.from_numpy(inputs["images"].copy()).to(dtype),
                                                       torch.from_numpy(inputs["labels"].copy()),
                                                       torch.from_numpy(inputs["teacher_logits"].copy()).to(dtype)
                                                       if "teacher_logits" in inputs else None)
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
    if config.tau > 0 and any((tail - config.tau).abs().min() < tau_margin for tail in model.tails):
        return "a stick-breaking process is too near its end"
    if tau_margin >= 1e-3:
        ended = torch.cat([(tail[..., -1] < config.tau).flatten() for tail in model.tails]).double().mean()
        if not 0.2 < ended < 0.8:
            return f"tau ends {ended:.0%} of the processes"
    for alpha in model.alphas:
        if config.attn != "ripple-fixed" and (alpha.amax(-1) - alpha.amin(-1)).mean() < 0.2:
            return "the spatial weights are too near uniform"
    if len(set(inputs["labels"])) == 1:
        return "all labels are equal"
    if any(not np.abs(value).max() > 1e-6 for name, value in outputs.items() if not cancels(name, config)):
        return "a gradient vanishes"
    return None if float32_will_do(config, inputs, outputs) else "too ill-conditioned for float32"


def make(case):
    """Returns the case's tensors, the seed that drew them and the model after its run."""
    config = CASES[case][0]
    reasons = {}
    first = FIRST_SEEDS.get(case, zlib.crc32(case.encode()) % 2**31)  # whatever other cases there are
    for seed in range(first, first + 10000):
        inputs = draw(case, seed)
        model, outputs = compute(config, inputs, torch.float64)
        reason = objection(case, inputs, model, outputs)
        if reason is None:
            return {**inputs, **outputs}, seed, model
        reasons[reason] = reasons.get(reason, 0) + 1
    sys.exit(f"{case}: no draw is good enough: {reasons}")


def summary(case, seed, model, tensors):
    config = CASES[case][0]
    _, single = compute(config, tensors, torch.float32)
    worst = max(relative_error(value, tensors[name]) for name, value in single.items())
    text = f"{case:24s} seed {seed:6d}  {len(tensors):3d} tensors  float32 {worst:.1e}"
    if model.notes.kinks:
        text += f"  ReLU margin {min(pre.abs().min().item() for pre in model.notes.kinks):.1e}"
    if config.tau > 0 and model.tails:
        margin = min((tail - config.tau).abs().min().item() for tail in model.tails)
        ended = torch.cat([(tail[..., -1] < config.tau).flatten() for tail in model.tails]).double().mean().item()
        text += f"  tau margin {margin:.1e}, ended {ended:.0%}"
    return text


def check(case, path):
    """The file's outputs against the reference run on the file's inputs.  Returns the number of mistakes."""
    tensors, metadata = safetensors_io.read(path)
    config = Config.from_metadata(metadata)
    if config != CASES[case][0]:
        print(f"{case}: its settings are {metadata}, make_fixtures.py has {CASES[case][0].metadata()}")
        return 1
    _, outputs = compute(config, tensors, torch.float64)
    expected = set(outputs) | set(tensor_shapes(config)) | {"images", "labels"}
    expected |= {"teacher_logits"} if config.distillation != "none" else set()
    if set(tensors) != expected:
        print(f"{case}: tensors missing or too many: {sorted(set(tensors) ^ expected)}")
        return 1
    # Two versions of PyTorch sum in different orders; float64 leaves about 1e-13 of that.
    worst = max(relative_error(tensors[name], value) for name, value in outputs.items())
    print(f"{case:24s} worst {worst:.1e}   {'ok' if worst < 1e-10 else 'FAILED'}")
    return int(not worst < 1e-10)


def main():
    arguments = ARGUMENTS
    torch.set_num_threads(1)  # the order of sums, hence the bytes
    mistakes = 0
    for case in arguments.cases or CASES:
        path = os.path.join(arguments.out or FIXTURES, case + ".safetensors")
        if arguments.check:
            mistakes += check(case, path)
            continue
        tensors, seed, model = make(case)
        safetensors_io.write(path, tensors, CASES[case][0].metadata())
        print(f"{summary(case, seed, model, tensors)}  {os.path.getsize(path) / 1024:.0f} KiB", flush=True)
    sys.exit(mistakes > 0)


if __name__ == "__main__":
    main()
