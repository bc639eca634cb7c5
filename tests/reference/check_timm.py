"""Is a DeiT of ours timm's DeiT?  Needs torch and timm (huggingface/pytorch-image-models; written against 1.0).

    python tests/reference/check_timm.py build/cpu/train_vit [--keep DIR]
    python tests/reference/check_timm.py --checkpoint FILE
    python tests/reference/check_timm.py --operators

The first form makes deit_tiny_patch16_224 with random weights (and the same without class token, mean pooled: our
--pool gap), for configs/imagenet/deit-tiny-timm.ini, deit_tiny_distilled_patch16_224, pvt_v2_b0 and pvt_v2_b2_li (on
smaller images), swin_tiny_patch4_window7_224, vit_tiny_r_s16_p8_224, vit_small_r26_s32_224 and vit_base_r50_s16_224 (on
smaller images), saves its state dict as safetensors, gives it to `train_vit --init` with a batch for --parity, and
compares logits, loss and all gradients with what timm computes in float64.  The second loads a softmax checkpoint of
ours into timm's model, every name and every shape.  The third compares the operators of python/vitc that timm
or torchvision has too with theirs.
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

from functools import partial

import numpy as np
import timm
import torch
import torch.nn.functional as F
from timm.models import swin_transformer as swin
from timm.models.pvt_v2 import Attention as PvtAttention

import safetensors_io
from compare_parity import compare, norm_error
from vit_reference import Config, build, parameter_shapes, random_params

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


# == Operators =========================================================================================================


def mmdetection(block, grid, window, shift):
    """The attention of timm's block, but padded before it is rolled."""
    def attend(x):
        x = F.pad(x, (0, 0, 0, -grid[1] % window[1], 0, -grid[0] % window[0]))
        size = x.shape[1:3]
        x = torch.roll(x, (-shift[0], -shift[1]), (1, 2))
        seen = swin.SwinTransformerBlock.get_attn_mask(block, x)
        x = block.attn(swin.window_partition(x, window).flatten(1, 2), mask=seen)
        x = swin.window_reverse(x.unflatten(1, window), window, *size)
        return torch.roll(x, shift, (1, 2))[:, :grid[0], :grid[1]]

    return attend


def check_torchvision():
    """Windows of clips against torchvision's ShiftedWindowAttention3d: output and gradients."""
    from torchvision.models.video.swin_transformer import ShiftedWindowAttention3d

    failures = 0
    for grid, window, number in (((4, 6, 6), (2, 3), 0), ((4, 6, 6), (2, 3), 1), ((5, 7, 4), (3, 4), 1),
                                 ((3, 8, 9), (3, 4), 1), ((6, 5, 3), (4, 3), 1)):
        config = Config(attn="swin", window=str(window[1]), window_time=window[0], img_size=grid[1:], frames=grid[0],
                        patch_size=1, dim=24, heads=3, depth=number + 1)
        generator = torch.Generator().manual_seed(sum(grid))
        params = random_params(config, generator)
        block = build(config, params).blocks[number]
        x, direction = torch.randn(2, 2, *grid, 24, generator=generator, dtype=torch.float64)
        prefix, sides = f"blocks.{number}.attn.", [window[0], window[1], window[1]]
        theirs = ShiftedWindowAttention3d(24, sides, [side // 2 * number for side in sides], 3).double()
        theirs.load_state_dict({name.removeprefix(prefix): value for name, value in params.items()
                                if name.startswith(prefix)}, strict=False)
        leaves = {name: block.attn.get_parameter(name) for name, _ in theirs.named_parameters()}

        def ours(tokens):
            return block.attn(tokens.flatten(1, 3)).unflatten(1, grid)

        x.requires_grad_()
        results = []
        for attend, parameters in ((ours, leaves.values()), (theirs, theirs.parameters())):
            y = attend(x)
            results.append([y.detach(), *torch.autograd.grad((y * direction).sum(), [x, *parameters])])
        errors = [((a - b).norm() / b.norm()).item() for a, b in zip(*results)]
        failures += not max(errors) < 1e-12
        print(f"window {'x'.join(map(str, grid))} w {'x'.join(map(str, sides))} block {number}   output {errors[0]:.1e}"
              f"   worst gradient {max(errors[1:]):.1e}   {'ok' if max(errors) < 1e-12 else 'FAILED'}")
    return failures


def check_window():
    """Output and gradients of a block with drawn weights; where the grid is no multiple of the window, timm's
    WindowAttention in mmdetection's order; and windows of clips."""
    failures = 0
    for grid, side, number in (((8, 8), 4, 0), ((8, 8), 4, 1), ((14, 21), 7, 1), ((4, 12), 4, 1), ((3, 10), 5, 1),
                               ((2, 3), 7, 1), ((6, 7), 4, 0), ((6, 7), 4, 1), ((9, 5), 7, 1)):
        config = Config(attn="swin", window=str(side), img_size=grid, patch_size=1, dim=24, heads=3, depth=number + 1)
        generator = torch.Generator().manual_seed(grid[0])
        params = random_params(config, generator)
        block = build(config, params).blocks[number]
        x, direction = torch.randn(2, 2, *grid, 24, generator=generator, dtype=torch.float64)
        prefix = f"blocks.{number}."
        theirs = swin.SwinTransformerBlock(24, grid, 3, window_size=side, shift_size=side // 2 * number,
                                      norm_layer=partial(torch.nn.LayerNorm, eps=1e-6)).double()
        theirs.load_state_dict({name.removeprefix(prefix): value for name, value in params.items()
                                if name.startswith(prefix)})
        if any(n % part for n, part in zip(grid, theirs.window_size)):
            theirs._attn = mmdetection(theirs, grid, theirs.window_size, theirs.shift_size)
        leaves = {name: block.get_parameter(name) for name, _ in theirs.named_parameters()}

        def ours(tokens):
            return block(tokens.flatten(1, 2)).unflatten(1, grid)

        x.requires_grad_()
        results = []
        for run, parameters in ((ours, leaves.values()), (theirs, theirs.parameters())):
            y = run(x)
            results.append([y.detach(), *torch.autograd.grad((y * direction).sum(), [x, *parameters])])
        errors = [((a - b).norm() / b.norm()).item() for a, b in zip(*results)]
        good = max(errors) < 1e-12
        failures += not good
        print(f"window {grid[0]}x{grid[1]} w {side} shift {theirs.shift_size}   output {errors[0]:.1e}   "
              f"worst gradient {max(errors[1:]):.1e}   {'ok' if good else 'FAILED'}")
    return failures


def official(config, params, prefix, x, linear):
    """timm's Attention of pvt_v2."""
    layer = PvtAttention(config.dim, config.heads, sr_ratio=int(config.reduction), linear_attn=linear).double()
    layer.load_state_dict({name[len(prefix):]: value for name, value in params.items() if name.startswith(prefix)})
    with torch.no_grad():
        return layer(x, config.grid)


def check_reduced():
    """Both forms against timm's pvt_v2, on odd grids."""
    failures = 0
    for form, linear in (({"reduction": "2"}, False), ({"reduction": "1"}, False), ({"reduction_cells": 7}, True)):
        config = Config(attn="reduced", img_size=(18, 20), dim=12, heads=3, depth=1, **form)
        torch.manual_seed(3)
        params = {name: torch.randn(shape, dtype=torch.float64) / 3 for name, shape in parameter_shapes(config).items()}
        x = torch.randn(2, config.grid[0] * config.grid[1], config.dim, dtype=torch.float64)
        ours, theirs = build(config, params).blocks[0].attn(x), official(config, params, "blocks.0.attn.", x, linear)
        away = ((ours - theirs).abs().max() / theirs.square().mean().sqrt()).item()
        print(f"reduced {form}: {away:.1e}")
        failures += away > 1e-12
    return failures


# ======================================================================================================================


def main():
    arguments = ARGUMENTS
    if not arguments.binary and not arguments.checkpoint and not arguments.operators:
        PARSER.error("give the program, a --checkpoint or --operators")
    failures = 0
    if arguments.checkpoint:
        check_checkpoint(arguments.checkpoint)
    if arguments.operators:
        failures += check_window() + check_torchvision() + check_reduced()
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
