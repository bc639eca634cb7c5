"""Are compact transformers those of Hassani et al. 2021?  Needs torch.

    python3 tests/reference/check_compact.py build/cpu/train_vit [--seed 1] [--tolerance 1e-5]

Makes the models of the paper, and others with kernels of 5 and 7, sines or no positions, in PyTorch and float64 with
random weights under the authors' names, gives them names by scripts/convert_weights.py, and compares logits, loss and
every gradient with those of `train_vit --parity`: gradients by their norm, and the worst single entry of all compared with
that of PyTorch's own float32.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="build/cpu/train_vit")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tolerance", type=float, default=1e-5, help="of the root mean square of a tensor")
    parser.add_argument("--only", help="this model alone")
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import numpy as np
import torch

import safetensors_io
from compact_reference import CompactTransformer
from compare_parity import compare, norm_error, relative_error

sys.path.insert(0, os.path.join(HERE, "..", "..", "scripts"))
import convert_weights

# name: (config of configs/compact or None, the model's arguments)
MODELS = {
    "cct-2-3x2": ("cct-2-3x2", {}),
    "cct-6-3x1": ("cct-6-3x1", dict(convolutions=1, dim=256, depth=6, heads=4, ratio=2)),
    "cct-7-3x2": ("cct-7-3x2", dict(dim=256, depth=7, heads=4, ratio=2)),
    "cvt-7-4": ("cvt-7-4", dict(patch=4, dim=256, depth=7, heads=4, ratio=2)),
    "vit-lite-7-4": ("vit-lite-7-4", dict(patch=4, dim=256, depth=7, heads=4, ratio=2, pool="cls")),
    "kernel-5": (None, dict(kernel=5, convolutions=3, width=24, dim=48, depth=3, heads=3, ratio=2, size=40)),
    "kernel-7": (None, dict(kernel=7, convolutions=2, width=40, dim=36, depth=2, heads=2, ratio=1.5, size=61,
                            positions="sine")),
    "no-positions": (None, dict(dim=48, depth=2, heads=3, size=33, positions="none")),
}


def flags_of(config, options):
    if config:
        return ["--config", os.path.join(HERE, "..", "..", "configs", "compact", f"{config}-cifar10.ini")]
    model = CompactTransformer(**options)
    flags = {"attn": "softmax", "img_size": options["size"], "stem": "conv", "patch_size": 1,
             "tokenizer_kernel": options.get("kernel", 3), "tokenizer_convs": options.get("convolutions", 2),
             "tokenizer_width": options.get("width", 64), "dim": options["dim"], "depth": options["depth"],
             "heads": options["heads"], "mlp_ratio": options.get("ratio", 1), "mlp_stream": "normed",
             "qkv_bias": "false", "norm_eps": 1e-5, "pool": "seq", "pos_embed": options.get("positions", "learned"),
             "num_classes": model.classifier.fc.out_features}
    return [part for name, value in flags.items() for part in ("--" + name.replace("_", "-"), str(value))]


def random_model(options, seed):
    """Every parameter counts, and every softmax has a choice."""
    torch.manual_seed(seed)
    model = CompactTransformer(**options)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.1 if "attention_pool" in name else 0.02)
    return model


def results(model, images, labels):
    model.zero_grad()
    logits = model(torch.from_numpy(images))
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels))
    loss.backward()
    gradients = {key: p.grad.numpy().copy() for key, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach().numpy(), "loss": loss.detach().reshape(1).numpy(),
            **{f"grad.{key}": value for key, value in convert_weights.vision_transformer(gradients).items()}}


def check(name, directory):
    """Returns the number of tensors that differ."""
    config, options = MODELS[name]
    model, side = random_model(options, ARGUMENTS.seed), options.get("size", 32)
    path = {part: os.path.join(directory, f"{name}-{part}.safetensors") for part in ("init", "in", "out")}
    weights = {key: value.numpy() for key, value in model.state_dict().items()}
    safetensors_io.write(path["init"], convert_weights.vision_transformer(weights))
    random = np.random.RandomState(ARGUMENTS.seed)
    images = random.standard_normal((3, 3, side, side)).astype(np.float32)
    labels = random.randint(0, 10, 3).astype(np.int64)
    safetensors_io.write(path["in"], {"images": images, "labels": labels})
    command = [*shlex.split(ARGUMENTS.binary), *flags_of(config, options), "--init", path["init"], "--parity",
               path["in"], "--out", path["out"]]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    single, want = results(model, images, labels), results(model.double(), images.astype(np.float64), labels)
    got, _ = safetensors_io.read(path["out"])
    print(name)
    outputs = {"logits", "loss"}
    failures = compare(*({key: x[key] for key in outputs} for x in (got, want)), ARGUMENTS.tolerance)
    vanishing = "grad.attention_pool.bias" # the softmax does not see it
    gradients = [key for key in want if key not in outputs and key != vanishing]
    failures += compare(*({key: x[key] for key in gradients} for x in (got, want)), ARGUMENTS.tolerance, norm_error)
    if vanishing in got and np.abs(got[vanishing]).max() > 0:
        print(f"  {vanishing}: {got[vanishing]} in place of 0  FAILED")
        failures += 1
    worst = [max(relative_error(x[key].reshape(want[key].shape), want[key]) for key in gradients) for x in (got, single)]
    print(f"  worst entry {worst[0]:.1e} of the rms, of PyTorch's float32 {worst[1]:.1e}")
    return failures


def main():
    with tempfile.TemporaryDirectory() as directory:
        failures = sum(check(name, directory) for name in ([ARGUMENTS.only] if ARGUMENTS.only else MODELS))
    print(f"{failures} tensors FAILED" if failures else f"logits, loss and gradients within {ARGUMENTS.tolerance:g}   ok")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
