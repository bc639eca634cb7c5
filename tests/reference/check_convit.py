"""Is a ConViT of ours facebookresearch/convit's?  Needs torch and timm, which carries that code (timm.models.convit).

    python tests/reference/check_convit.py build/cpu/train_vit [--img-size 224 --patch-size 16 --dim 192 --heads 6 ...]

Makes timm's ConViT with random weights, once with its class token and once without (mean pooled: our --pool gap), gives
its state dict to `train_vit --init` with a batch for --parity, and compares logits, loss and all gradients with what timm
computes in float64.  The bias of pos_proj is the same for all keys of a query: its gradient must be zero on both sides.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile

import numpy as np
import timm
import torch

import safetensors_io
from check_timm import TOLERANCE, norm_error
from compare_parity import compare
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


def check_pool(arguments, pool, directory):
    """Returns the number of tensors that differ."""
    path = {part: os.path.join(directory, f"convit-{pool}-{part}.safetensors") for part in ("init", "in", "out")}
    model = random_convit(arguments, pool, seed=17)
    safetensors_io.write(path["init"], {name: value.numpy() for name, value in model.state_dict().items()})
    random = np.random.RandomState(18)
    images = random.standard_normal((2, 3, arguments.img_size, arguments.img_size)).astype(np.float32)
    labels = random.randint(0, arguments.num_classes, 2).astype(np.int64)
    safetensors_io.write(path["in"], {"images": images, "labels": labels})

    command = [*shlex.split(arguments.binary), "--attn", "convit", "--pool", pool, "--pos-embed", "learned",
               "--convit-local-layers", arguments.local_layers, "--init", path["init"], "--parity", path["in"], "--out",
               path["out"]]
    for name in ("img_size", "patch_size", "dim", "depth", "heads", "num_classes"):
        command += ["--" + name.replace("_", "-"), getattr(arguments, name)]
    command = [str(word) for word in command]
    print(" ".join(command), flush=True)
    subprocess.run(command, check=True)

    model = model.double()
    logits = model(torch.from_numpy(images).double())
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels))
    loss.backward()
    outputs = {"logits": logits.detach().numpy(), "loss": loss.detach().reshape(1).numpy()}
    gradients = {f"grad.{name}": parameter.grad.numpy() for name, parameter in model.named_parameters()}
    got, _ = safetensors_io.read(path["out"])
    got_gradients = {name: value for name, value in got.items() if name.startswith("grad.")}
    got_outputs = {name: value for name, value in got.items() if name not in got_gradients}
    failures = 0
    for name in [name for name in gradients if cancels(name)]:
        theirs, ours = np.abs(gradients.pop(name)).max(), np.abs(got_gradients.pop(name)).max()
        failures += not (theirs < 1e-12 and ours == 0)
    print(f"  gradients of pos_proj.bias: {failures} are not zero")
    return (failures + compare(got_outputs, outputs, TOLERANCE)
            + compare(got_gradients, gradients, TOLERANCE, measure=norm_error))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary", help="build/cpu/train_vit")
    for name, default in (("img-size", 224), ("patch-size", 16), ("dim", 192), ("heads", 6), ("depth", 12),
                          ("local-layers", 10), ("num-classes", 1000)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--keep", metavar="DIR", help="leave the files there")
    arguments = parser.parse_args()
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
