"""Is a ConViT of ours facebookresearch/convit's?  Needs torch and timm, which carries that code (timm.models.convit).

    python tests/reference/check_convit.py build/cpu/train_vit [--img-size 224 --patch-size 16 --dim 192 --heads 6 ...]

Makes timm's ConViT with random weights, once with its class token and once without (mean pooled: our --pool gap), gives
its state dict to `train_vit --init` with a batch for --parity, and compares logits, loss and all gradients with what
timm computes in float64.  The bias of pos_proj is the same for all keys of a query: its gradient must be zero on both
sides.
"""

import argparse
import os
import shlex
import sys
import tempfile


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary", help="build/cpu/train_vit")
    for name, default in (("img-size", 224), ("patch-size", 16), ("dim", 192), ("heads", 6), ("depth", 12),
                          ("local-layers", 10), ("num-classes", 1000)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--keep", metavar="DIR", help="leave the files there")
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import numpy as np
import timm
import torch

from check_timm import TOLERANCE, compare_with
from vit_reference import cancels


def random_convit(arguments, pool, seed):
    """timm's initialisation leaves v the identity, all gates alike and biases zero: here every number counts."""
    torch.manual_seed(seed)
    model = timm.models.convit.ConVit(
        img_size=arguments.img_size, patch_size=arguments.patch_size, num_classes=arguments.num_classes,
        embed_dim=arguments.dim // arguments.heads, num_heads=arguments.heads, depth=arguments.depth,
        local_up_to_layer=arguments.local_layers, global_pool="token" if pool == "cls" else "avg")
    if pool == "gap":
        model.cls_token, model.num_prefix_tokens = None, 0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.5 if "gating" in name else 0.02)
    return model.eval()


def take_zeros(theirs, ours):
    """Gradients that cancel: timm's vanish but for rounding, ours are left out.  Returns how many do not."""
    failures = 0
    for name in [name for name in theirs if cancels(name)]:
        failures += not (np.abs(theirs.pop(name)).max() < 1e-12 and np.abs(ours.pop(name)).max() == 0)
    print(f"  gradients of pos_proj.bias: {failures} are not zero")
    return failures


def check_pool(arguments, pool, directory):
    """Returns the number of tensors that differ."""
    command = [*shlex.split(arguments.binary), "--attn", "convit", "--pool", pool, "--pos-embed", "learned",
               "--convit-local-layers", arguments.local_layers]
    for name in ("img_size", "patch_size", "dim", "depth", "heads", "num_classes"):
        command += ["--" + name.replace("_", "-"), getattr(arguments, name)]
    return compare_with(random_convit(arguments, pool, seed=17), command, f"convit-{pool}", directory,
                        arguments.img_size, arguments.num_classes, take_zeros)


def main():
    arguments = ARGUMENTS
    print(f"timm {timm.__version__}, torch {torch.__version__}")
    failures = 0
    with tempfile.TemporaryDirectory() as temporary:
        for pool in ("cls", "gap"):
            if arguments.keep:
                os.makedirs(arguments.keep, exist_ok=True)
            failures += check_pool(arguments, pool, arguments.keep or temporary)
    print(f"{failures} tensors FAILED" if failures else f"logits, loss and gradients within {TOLERANCE:g}   ok")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
