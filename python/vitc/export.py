"""Writes the model of a checkpoint as ONNX, for ONNX Runtime on any machine and in a browser.

    python -m vitc.export best.safetensors model.onnx [--normalise] [--opset 18]

Input `images` [batch,3,height,width], of clips [batch,frames,3,height,width]: normalised pixels or, with --normalise,
values in [0, 1]; of a density model `tokens` [batch,n].  Output `logits`.  Settings, class names and normalisation are
in the metadata under the names that they have in the checkpoint.  What Fourier transforms compute becomes products with
matrices, because a graph has no complex numbers; that costs frequencies times tokens, not N log N."""

import argparse
import copy
import os
import sys
import warnings


def arguments():
    parser = argparse.ArgumentParser(prog="python -m vitc.export", description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", help="safetensors file of train_vit or train_ar")
    parser.add_argument("onnx", help="the file to write")
    parser.add_argument("--normalise", action="store_true", help="take pixels in [0, 1] and normalise them inside")
    parser.add_argument("--opset", type=int, default=18, help="version of ONNX's operators, 18 or later (default: 18)")
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import torch
from torch import nn

try:
    import onnx
    from onnx_ir.passes import common as passes
    from torch.export import Dim
except ImportError as missing:
    if __name__ != "__main__":
        raise
    sys.exit(f"no module {missing.name}: pip install 'torch>=2.6' onnx onnxscript")

from .attention.correlation import Fourier
from .checkpoint import load
from .density import Density


class Normalised(nn.Module):
    """(pixels - mean) / std, and then the model."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(getattr(model, name)).reshape(3, 1, 1))

    def forward(self, images):
        return self.model((images - self.mean) / self.std)


def example(model, batch):
    config = model.config
    if isinstance(model, Density):
        return torch.zeros(batch, config.n, dtype=torch.int64)
    frames = (config.frames,) if config.frames > 1 else ()
    return torch.rand(batch, *frames, 3, *config.img_size)


def as_onnx(model, normalise=False, opset=18):
    """The graph of a model in evaluation, its Fourier transforms as products."""
    model = copy.deepcopy(model).eval()
    for module in model.modules():
        if isinstance(module, Fourier):
            module.as_products()
    inputs = example(model, 2)
    with torch.no_grad():
        model(inputs)  # in which the spectra of tables become constants
    name = "tokens" if isinstance(model, Density) else "images"
    program = torch.onnx.export(Normalised(model) if normalise else model, (inputs,), dynamo=True, opset_version=opset,
                                verbose=False, input_names=[name], output_names=["logits"],
                                dynamic_shapes=({0: Dim("batch")},))
    for tidy in (passes.LiftConstantsToInitializersPass(lift_all_constants=True), passes.DeduplicateInitializersPass(),
                 passes.ClearMetadataAndDocStringPass()):
        tidy(program.model)  # blocks share the tables of a grid, and traces of this machine's files stay out
    return program.model_proto


def main():
    arguments = ARGUMENTS
    if arguments.opset < 18:
        sys.exit("--opset: 18 or later")
    if all(map(os.path.exists, (arguments.checkpoint, arguments.onnx))) and \
            os.path.samefile(arguments.checkpoint, arguments.onnx):
        sys.exit(f"{arguments.onnx}: is the checkpoint: give another name")
    warnings.simplefilter("ignore")  # about the exporter's own insides
    try:
        model = load(arguments.checkpoint)
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"{arguments.checkpoint}: {error}")
    if arguments.normalise and isinstance(model, Density):
        sys.exit("--normalise: a density model takes tokens, not pixels")
    proto = as_onnx(model, arguments.normalise, arguments.opset)
    for name, text in model.metadata.items():
        proto.metadata_props.add(key=name, value=text)
    try:
        onnx.checker.check_model(proto, full_check=True)
        onnx.save(proto, arguments.onnx)
    except OSError as error:
        sys.exit(f"{arguments.onnx}: {error.strerror}")
    except ValueError:
        sys.exit(f"{arguments.onnx}: the model has more than the 2 GiB that one ONNX file can hold")
    print(f"{arguments.onnx}: {len(proto.graph.node)} nodes, {proto.ByteSize() / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
