"""Are models of ours those of their authors' own programs?  Needs torch, timm, einops and copies of the repositories.

    python tests/reference/check_official.py build/cpu/train_vit CHECKOUTS [--only cswin_tiny] [--keep DIR]

CHECKOUTS/OWNER/NAME or CHECKOUTS/OWNER+NAME are one's own copies of GitHub's repositories (MODELS below names them).
Makes each model with random weights at its own resolution, gives them to `train_vit --init` under the names that
scripts/convert_weights.py makes of the authors', with a batch for --parity, and compares logits, loss and all gradients
with what the authors' code computes in float64.  A model whose copy is not there is left out.
"""

import argparse
import contextlib
import os
import shlex
import sys
import tempfile
import warnings

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts"))
import convert_weights
from check_rivals import published
from check_timm import compare_with, with_every_bias

# name: repository, module, what makes the model there, its arguments, configs/imagenet, names
MODELS = {
    "cswin_tiny": ("microsoft/CSWin-Transformer", "models.cswin", "CSWin_64_12211_tiny_224", {}, "cswin-t",
                   convert_weights.cswin_name),
    "flatten_cswin_tiny": ("LeapLabTHU/FLatten-Transformer", "models.flatten_cswin", "FLatten_CSWin_64_24181_tiny_224",
                           {"attn_type": "LLSS", "la_split_size": "56-28-14-7"}, "flatten-cswin-t",
                           convert_weights.cswin_name),
}


class Renamed:
    """A model whose tensors have other names."""

    def __init__(self, model, rename):
        self.model, self.rename = model, rename

    def state_dict(self):
        return {self.rename(name): value for name, value in self.model.state_dict().items()}

    def named_parameters(self):
        return ((self.rename(name), parameter) for name, parameter in self.model.named_parameters())

    def double(self):
        self.model.double()
        return self

    def __call__(self, images):
        return self.model(images)


def checkout_of(folder, repository):
    """The repository's copy below the folder, or None."""
    places = (os.path.join(os.path.abspath(folder), repository.replace("/", between)) for between in ("/", "+"))
    return next(filter(os.path.isdir, places), None)


def check(binary, checkout, name, directory):
    """Returns the number of tensors that differ."""
    _, module, maker, options, config, rename = MODELS[name]
    torch.manual_seed(17)
    with contextlib.redirect_stdout(None):
        model = with_every_bias(getattr(published(checkout, "", module), maker)(**options))
    config = os.path.join(os.path.dirname(__file__), "../../configs/imagenet", config + ".ini")
    return compare_with(Renamed(model, rename), [*shlex.split(binary), "--config", config], name, directory, 224, 1000)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary", help="train_vit, or with its arguments, as in 'build/cpu/train_vit --threads 2'")
    parser.add_argument("checkouts", help="the folder of the copies")
    parser.add_argument("--only", default=",".join(MODELS), help="of " + ", ".join(MODELS))
    parser.add_argument("--keep", metavar="DIR", help="leave the files there")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    failures, compared = 0, 0
    with tempfile.TemporaryDirectory() as temporary:
        for name in arguments.only.split(","):
            checkout = checkout_of(arguments.checkouts, MODELS[name][0])
            if not checkout:
                print(f"{name}: no copy of {MODELS[name][0]} in {arguments.checkouts}")
                continue
            failures += check(arguments.binary, checkout, name, arguments.keep or temporary)
            compared += 1
    print(f"{compared} models, {failures} tensors differ")
    sys.exit(failures > 0 or compared == 0)


if __name__ == "__main__":
    main()
