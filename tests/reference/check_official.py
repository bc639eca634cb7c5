"""Are our PVT, CSwin and FLatten models those of their authors' programs?  Needs torch, timm, for CSwin einops, and a
checkout of whai362/PVT, microsoft/CSWin-Transformer or LeapLabTHU/FLatten-Transformer, whose files of models are loaded
and nothing else.

    python tests/reference/check_official.py build/cpu/train_vit CHECKOUT [MODEL...] [--keep DIR]

Makes each model with random weights in the authors' program, gives them to `train_vit --init` under the names of
scripts/convert_weights.py with a batch of 224 x 224 for --parity, and compares logits, loss and all gradients with what
that program computes in float64."""

import argparse
import contextlib
import importlib.util
import io
import os
import shlex
import sys
import tempfile
import types


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary", help="build/cpu/train_vit")
    parser.add_argument("checkout", help="a folder of the authors' repository")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names in MODELS below; without any, those of them that "
                        "TESTED has and the checkout too")
    parser.add_argument("--keep", metavar="DIR", help="leave the files there")
    return parser, parser.parse_args()


if __name__ == "__main__":
    PARSER, ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import numpy as np
import torch

import check_timm

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../scripts"))
import convert_weights

PVT, FLATTEN_PVT = "classification/pvt.py", "models/flatten_pvt.py"
FLATTEN_PVT_V2, FLATTEN_SWIN = "models/flatten_pvt_v2.py", "models/flatten_swin.py"
CSWIN, FLATTEN_CSWIN = "models/cswin.py", "models/flatten_cswin.py"
FOCUSED = {"focusing_factor": 3, "kernel_size": 5, "attn_type": "LLLL", "la_sr_ratios": "1111"}
REDUCED = {**FOCUSED, "la_sr_ratios": "8421"}
SWIN = {"window_size": 56, "focusing_factor": 3, "kernel_size": 5, "attn_type": "LLSS"}
SMALL = {"depths": [2, 2, 18, 2]}
WIDE = {"attn_type": "LLSS", "la_split_size": "56-28-14-7"}
# {name: (file in the checkout, what makes the model, its arguments, our config)}
MODELS = {
    "pvt_tiny": (PVT, "pvt_tiny", {}, "pvt-tiny"),
    "pvt_small": (PVT, "pvt_small", {}, "pvt-small"),
    "flatten_pvt_tiny": (FLATTEN_PVT, "flatten_pvt_tiny", FOCUSED, "flatten-pvt-tiny"),
    "flatten_pvt_tiny_8421": (FLATTEN_PVT, "flatten_pvt_tiny", REDUCED, "flatten-pvt-tiny-reduced"),
    "flatten_pvt_small": (FLATTEN_PVT, "flatten_pvt_small", FOCUSED, "flatten-pvt-small"),
    "flatten_pvt_v2_b0": (FLATTEN_PVT_V2, "flatten_pvt_v2_b0", FOCUSED, "flatten-pvt-v2-b0"),
    "flatten_pvt_v2_b1": (FLATTEN_PVT_V2, "flatten_pvt_v2_b1", FOCUSED, "flatten-pvt-v2-b1"),
    "flatten_pvt_v2_b2": (FLATTEN_PVT_V2, "flatten_pvt_v2_b2", FOCUSED, "flatten-pvt-v2-b2"),
    "flatten_swin_t": (FLATTEN_SWIN, "FLattenSwinTransformer", SWIN, "flatten-swin-t"),
    "flatten_swin_s": (FLATTEN_SWIN, "FLattenSwinTransformer", {**SWIN, **SMALL}, "flatten-swin-s"),
    "cswin_t": (CSWIN, "CSWin_64_12211_tiny_224", {}, "cswin-t"),
    "flatten_cswin_t": (FLATTEN_CSWIN, "FLatten_CSWin_64_24181_tiny_224", WIDE, "flatten-cswin-t"),
}
TESTED = ("pvt_tiny", "flatten_pvt_tiny", "flatten_pvt_v2_b0", "flatten_swin_t", "cswin_t", "flatten_cswin_t")


def stand_in(name, **members):
    """A module that the authors' file imports by name only, where it is not installed."""
    if name not in sys.modules and importlib.util.find_spec(name) is None:
        sys.modules[name] = types.SimpleNamespace(**members)


def official(checkout, path, maker, options):
    stand_in("einops", rearrange=None)
    spec = importlib.util.spec_from_file_location("official", os.path.join(checkout, path))
    module = sys.modules["official"] = importlib.util.module_from_spec(spec)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        spec.loader.exec_module(module)
        torch.manual_seed(17)
        return check_timm.moved(getattr(module, maker)(**options))


def check(binary, checkout, name, directory):
    """Returns the number of tensors that differ."""
    path, maker, options, config = MODELS[name]
    config = os.path.join(HERE, "../../configs/imagenet", config + ".ini")
    command = [*shlex.split(binary), "--config", config]

    def unused(theirs, ours):
        """The norm that FLatten-PVT declares and does not use: no gradient on either side."""
        names = [name for name, gradient in theirs.items() if not gradient.any()]
        for name in names:
            print(f"  {name:44s} zero, ours {'too  ok' if name in ours and not ours[name].any() else 'is not  FAILED'}")
        failures = sum(name not in ours or bool(ours[name].any()) for name in names)
        for name in names:
            del theirs[name]
            ours.pop(name, None)
        return failures

    return check_timm.compare_with(official(checkout, path, maker, options), command, name, directory, 224, 1000,
                                   unused, convert_weights.vision_transformer)


def main():
    arguments = ARGUMENTS
    here = [name for name in MODELS if os.path.isfile(os.path.join(arguments.checkout, MODELS[name][0]))]
    models = arguments.models or [name for name in TESTED if name in here]
    for name in models:
        if name not in here:
            PARSER.error(f"{name}: {f'no {MODELS[name][0]} in {arguments.checkout}' if name in MODELS else 'unknown'}")
    if not models:
        PARSER.error(f"{arguments.checkout}: no model of {', '.join(MODELS)} in it")
    print(f"torch {torch.__version__}, numpy {np.__version__}")
    failures = 0
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.keep:
            os.makedirs(arguments.keep, exist_ok=True)
        for name in models:
            failures += check(arguments.binary, arguments.checkout, name, arguments.keep or temporary)
    within = f"logits, loss and gradients within {check_timm.TOLERANCE:g}   ok"
    print(f"{failures} tensors FAILED" if failures else within)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
