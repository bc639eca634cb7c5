"""Is a DeiT of ours timm's DeiT?  Needs torch and timm (huggingface/pytorch-image-models; written against 1.0).

    python tests/reference/check_timm.py build/cpu/train_vit [--keep DIR]
    python tests/reference/check_timm.py --checkpoint FILE
    python tests/reference/check_timm.py --operators

The first form makes deit_tiny_patch16_224 with random weights (and the same without class token, mean pooled: our
--pool gap), for configs/imagenet/deit-tiny-timm.ini, deit_tiny_distilled_patch16_224, pvt_v2_b0 and pvt_v2_b2_li (on
smaller images), swin_tiny_patch4_window7_224, vit_tiny_r_s16_p8_224, vit_small_r26_s32_224 and vit_base_r50_s16_224 (on
smaller images), saves its state dict as safetensors, gives it to `train_vit --init` with a batch for --parity, and
compares logits, loss and all gradients with what timm computes in float64.  The second loads a softmax checkpoint of
ours into timm's model, every name and every shape.  The third compares the operators in tests/reference/operators that
timm has too, as the fixtures' reference computes them, with timm's modules.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary", nargs="?", help="build/cpu/train_vit")
    parser.add_argument("--checkpoint", help="a safetensors file of a softmax model of ours")
    parser.add_argument("--operators", action="store_true", help="compare our reference's operators with timm's")
    parser.add_argument("--keep", metavar="DIR", help="leave the files there")
    return parser, parser.parse_args()


if __name__ == "__main__":
    PARSER, ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import numpy as np
import timm
import torch

import operators
import safetensors_io
from compare_parity import compare, norm_error

TOLERANCE = 1e-4  # of the root mean square, after twelve blocks in float32
HYBRIDS = {"vit_tiny_r_s16_p8_224": "vit-tiny-r-s16", "vit_small_r26_s32_224": "vit-small-r26-s32",
           "vit_base_r50_s16_224": "vit-base-r50-s16"}


def timm_options(pool):
    """timm's arguments for our --pool: with gap the norm comes before the mean, hence fc_norm=False."""
    if pool == "cls":
        return {}
    return {"global_pool": "avg", "fc_norm": False, "class_token": False}


def moved(model):
    """First values leave every bias at zero: here all of them count."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return model.eval()


def random_model(name, seed, **options):
    torch.manual_seed(seed)
    return moved(timm.create_model(name, pretrained=False, **options))


def compare_with(model, command, name, directory, side, classes, take=None, renamed=lambda tensors: tensors):
    """Runs `command` on the weights of PyTorch's `model` and two random images.  Returns the number of tensors that
    differ from its own; renamed({name: array}) gives weights and gradients our names, and take(theirs, ours) may first
    take gradients out, and count differences of its own."""
    path = {part: os.path.join(directory, f"{name}-{part}.safetensors") for part in ("init", "in", "out")}
    safetensors_io.write(path["init"], renamed({name: value.numpy() for name, value in model.state_dict().items()}))
    random = np.random.RandomState(18)
    images = random.standard_normal((2, 3, side, side)).astype(np.float32)
    labels = random.randint(0, classes, 2).astype(np.int64)
    safetensors_io.write(path["in"], {"images": images, "labels": labels})

    command = [*map(str, command), "--init", path["init"], "--parity", path["in"], "--out", path["out"]]
    print(" ".join(command), flush=True)
    subprocess.run(command, check=True)

    model = model.double()
    logits = model(torch.from_numpy(images).double())
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels))
    loss.backward()
    outputs = {"logits": logits.detach().numpy(), "loss": loss.detach().reshape(1).numpy()}
    gradients = {name: (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).numpy()
                 for name, parameter in model.named_parameters()}
    gradients = {f"grad.{name}": gradient for name, gradient in renamed(gradients).items()}
    got, _ = safetensors_io.read(path["out"])
    got_gradients = {name: value for name, value in got.items() if name.startswith("grad.")}
    got_outputs = {name: value for name, value in got.items() if name not in got_gradients}
    failures = take(gradients, got_gradients) if take else 0
    return (failures + compare(got_outputs, outputs, TOLERANCE)
            + compare(got_gradients, gradients, TOLERANCE, measure=norm_error))


def check_pool(binary, pool, directory):
    """Returns the number of tensors that differ."""
    config = os.path.join(os.path.dirname(__file__), "../../configs/imagenet/deit-tiny-timm.ini")
    command = [*shlex.split(binary), "--config", config, "--pool", pool]
    model = random_model("deit_tiny_patch16_224", 17, **timm_options(pool))
    return compare_with(model, command, f"deit-{pool}", directory, 224, 1000)


def check_distilled(binary, directory):
    """Returns the number of tensors that differ: in evaluation timm's logits are the mean of both classifiers', too."""
    config = os.path.join(os.path.dirname(__file__), "../../configs/imagenet/deit-tiny-distilled.ini")
    model = random_model("deit_tiny_distilled_patch16_224", 17)
    return compare_with(model, [*shlex.split(binary), "--config", config], "deit-distilled", directory, 224, 1000)


def away_from_kinks(model):
    """Half of the units that enter a ReLU on and half off, so that no rounding switches one."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("mlp.fc1.bias"):
                parameter[0::2], parameter[1::2] = 4, -4
    return model


def check_pvt(binary, name, directory):
    """Returns the number of tensors that differ."""
    model = random_model(name, 17)
    if name.endswith("_li"):
        away_from_kinks(model)
    config = os.path.join(os.path.dirname(__file__), "../../configs/imagenet", name.replace("_", "-") + ".ini")
    command = [*shlex.split(binary), "--config", config, "--img-size", 64]
    return compare_with(model, command, name, directory, 64, 1000)


def check_swin(binary, directory):
    """Returns the number of tensors that differ."""
    model = random_model("swin_tiny_patch4_window7_224", 17)
    config = os.path.join(os.path.dirname(__file__), "../../configs/imagenet/swin-t.ini")
    return compare_with(model, [*shlex.split(binary), "--config", config], "swin_t", directory, 224, 1000)


def check_hybrid(binary, name, config, directory):
    """Returns the number of tensors that differ."""
    config = os.path.join(os.path.dirname(__file__), "../../configs/imagenet", config + ".ini")
    command = [*shlex.split(binary), "--config", config, "--img-size", 64]
    return compare_with(random_model(name, 17, img_size=64, num_classes=1000), command, name, directory, 64, 1000)


def check_checkpoint(path):
    """Loads a checkpoint of ours into timm with strict=True; the sizes are read off the tensors."""
    tensors, _ = safetensors_io.read(path)
    dim, _, patch, _ = tensors["patch_embed.proj.weight"].shape
    depth = len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})
    pool = "cls" if "cls_token" in tensors else "gap"
    options = timm_options(pool)
    tokens = 0
    if "pos_embed" in tensors:
        tokens = tensors["pos_embed"].shape[1] - (pool == "cls")
        if round(tokens ** 0.5) ** 2 != tokens:
            sys.exit(f"{path}: pos_embed has {tokens} patches: this check builds square images only")
    else:
        options["pos_embed"] = "none"
    side = patch * (round(tokens ** 0.5) or 14)
    model = timm.models.VisionTransformer(
        img_size=side, patch_size=patch, embed_dim=dim, depth=depth, num_heads=1,  # no shape depends on the heads
        mlp_ratio=tensors["blocks.0.mlp.fc1.weight"].shape[0] / dim, num_classes=tensors["head.weight"].shape[0],
        **options)
    model.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in tensors.items()}, strict=True)
    logits = model.eval()(torch.zeros(1, 3, side, side))
    assert logits.isfinite().all()
    print(f"{path}: timm takes all {len(tensors)} tensors (dim {dim}, depth {depth}, patch {patch}, pool {pool})   ok")


def main():
    arguments = ARGUMENTS
    if not arguments.binary and not arguments.checkpoint and not arguments.operators:
        PARSER.error("give the program, a --checkpoint or --operators")
    failures = 0
    if arguments.checkpoint:
        check_checkpoint(arguments.checkpoint)
    if arguments.operators:
        failures += sum(module.check_timm() for module in operators.MODULES if hasattr(module, "check_timm"))
    if arguments.binary:
        print(f"timm {timm.__version__}, torch {torch.__version__}")
        with tempfile.TemporaryDirectory() as temporary:
            for pool in ("cls", "gap"):
                if arguments.keep:
                    os.makedirs(arguments.keep, exist_ok=True)
                failures += check_pool(arguments.binary, pool, arguments.keep or temporary)
            failures += check_distilled(arguments.binary, arguments.keep or temporary)
            for name in ("pvt_v2_b0", "pvt_v2_b2_li"):
                failures += check_pvt(arguments.binary, name, arguments.keep or temporary)
            failures += check_swin(arguments.binary, arguments.keep or temporary)
            for name, config in HYBRIDS.items():
                failures += check_hybrid(arguments.binary, name, config, arguments.keep or temporary)
        print(f"{failures} tensors FAILED" if failures else f"logits, loss and gradients within {TOLERANCE:g}   ok")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
