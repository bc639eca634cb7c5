"""The package python/vitc against the programs: logits and gradients of models that it makes from their checkpoints.

    python3 tests/reference/check_package.py build/cpu/train_vit [FIXTURE ...] [--ar build/cpu/train_ar] [--onnx]
    python3 tests/reference/check_package.py build/cpu/train_vit configs/imagenet/deit.ini configs/imagenet/swin-t.ini

For every fixture (or these) train_vit writes a checkpoint that starts from its weights.  vitc.load must find them in
it, and a model of the settings that it finds is compared with --parity on the fixture.  Of each operator, host and kind
of model the worst figures are printed: the largest difference of a tensor over its root mean square, between the
program and the module in float64, and between the module in float32 and in float64; of the logits in bfloat16 the norm
of the difference over the norm; and with --onnx the largest difference of ONNX Runtime's logits.  Without dropout, which
is the program's own.  Fixtures of train_ar are compared from their weights.

A name that ends in .ini is a config file: its model, at its own size and with ten classes, is compared on two images of
noise with the package's initial weights.  In float32 the largest of some 100,000 elements is beyond 1e-5 for PyTorch
also, so the errors of these are norms of differences over norms, and gradients may have twice PyTorch's in float32."""

import argparse
import dataclasses
import glob
import math
import os
import shlex
import subprocess
import sys
import tempfile


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary", help="build/cpu/train_vit")
    parser.add_argument("fixtures", nargs="*", metavar="FIXTURE",
                        help="names such as ripple, or config files (default: all fixtures)")
    parser.add_argument("--ar", help="build/cpu/train_ar")
    parser.add_argument("--onnx", action="store_true", help="also the graph of the first fixture of each kind")
    parser.add_argument("--verbose", action="store_true", help="a line for each fixture")
    return parser.parse_intermixed_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import numpy as np
import torch
import torch.nn.functional as F

import flags
import safetensors_io
from compare_parity import norm_error, relative_error
from vit_reference import Config, buffer_shapes, cancels, default_dtype, parameter_shapes, read_ini, vitc
from vitc import config as settings
from vitc import density, layers

if __name__ == "__main__" and ARGUMENTS.onnx:
    import onnx
    import onnxruntime
    from vitc import export

TOLERANCE, ONNX_TOLERANCE = 1e-5, 1e-4
FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures")


def call(command):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{shlex.join(map(str, command))}\n{done.stderr}")


def loaded(binary, config, words, weights, folder):
    """vitc.load of what train_vit saves after an epoch with learning rate 0 from these weights; the head is drawn anew
    for the data's classes, and what is no parameter in every step.  Positions of a class token and a grid that are a
    square together --init takes for DeiT-III's: there all weights are drawn."""
    data, start = "moving-shapes" if config.frames > 1 else "shapes", os.path.join(folder, "start.safetensors")
    safetensors_io.write(start, weights)
    positions = weights["pos_embed"].shape[1] if config.front and "pos_embed" in weights else 2
    same = math.isqrt(positions) ** 2 != positions
    call([*shlex.split(binary), *words, "--data", data, "--train-limit", 8, "--test-limit", 8, "--batch-size", 4,
          "--micro-batch", 4, "--epochs", 1, "--warmup-epochs", 0, "--lr", 0, "--dropout", 0,
          "--run-dir", folder + "/run", *(["--init", start] if same else [])])
    model = vitc.load(os.path.join(folder, "run/last.safetensors"))
    other = [name for name, x in model.named_parameters()
             if same and not name.startswith("head") and not np.array_equal(x.detach().numpy(), weights[name])]
    if other:
        sys.exit(f"{start}: loaded with other values of {', '.join(other)}")
    return model


def module_outputs(model, dtype, inputs, labels):
    """{logits, grad.*} of a model made anew in this type, as it is trained but for what is drawn anew."""
    with default_dtype(dtype):
        again = type(model)(model.config)
    again.load_state_dict(model.state_dict())
    for module in again.train().modules():
        if isinstance(module, layers.Drawn):
            module.eval()
    logits = again(inputs if inputs.dtype == torch.int64 else inputs.to(dtype))
    F.cross_entropy(logits.flatten(0, -2), labels.flatten()).backward()
    gradients = {"grad." + name: torch.zeros_like(p) if p.grad is None else p.grad
                 for name, p in again.named_parameters()}
    return {"logits": logits.detach(), **gradients}


def worst(got, want, config, measure):
    """Of the logits, and of the gradients but for those that only rounding keeps from zero."""
    errors = {name: measure(got[name].reshape(value.shape), value) for name, value in want.items()
              if not cancels(name, config)}
    return errors["logits"], max(errors.values())


def exported(model, inputs):
    """The largest difference of ONNX Runtime's logits over their root mean square, of a batch of its own size."""
    model = model.float()
    with torch.no_grad():
        want = model(inputs).numpy()
    proto = export.as_onnx(model)
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return relative_error(session.run(None, {session.get_inputs()[0].name: inputs.numpy()})[0], want)


def compare(program, model, inputs, labels, graph, config=None, measure=relative_error):
    """Figures: of the program's logits and gradients, the module in float32, its logits in bfloat16 and the graph's."""
    exact, single = (module_outputs(model, dtype, inputs, labels) for dtype in (torch.float64, torch.float32))
    model.eval()  # in training random tensors are drawn anew for each type
    of_graph = exported(model, inputs) if graph else np.nan
    with torch.no_grad():
        full, rounded = (model.to(dtype)(inputs if inputs.dtype == torch.int64 else inputs.to(dtype))
                         for dtype in (torch.float32, torch.bfloat16))
    return [*worst(program, exact, config, measure), *worst(single, exact, config, measure)[1:],
            norm_error(rounded.double().numpy(), full.numpy()), of_graph]


def check_vit(binary, path, graph):
    """Figures of a fixture.  One with a teacher is compared without it, both classifiers in the loss and the logits."""
    tensors, metadata = safetensors_io.read(path)
    config = Config.from_metadata(metadata)
    words = flags.that_count(binary, {name: text for name, text in metadata.items()
                                      if name != "num_classes" and not name.startswith("distillation")})
    weights = {name: tensors[name] for name in {**parameter_shapes(config), **buffer_shapes(config)}}
    with tempfile.TemporaryDirectory() as folder:
        settings_there = loaded(binary, config, words, weights, folder).config
        model = vitc.Vit(dataclasses.replace(settings_there, num_classes=config.num_classes))
        model.load_state_dict({name: torch.from_numpy(x.copy()) for name, x in weights.items()})
        result = os.path.join(folder, "out.safetensors")
        call([*shlex.split(binary), *words, "--dropout", 0, "--num-classes", config.num_classes, "--parity", path,
              "--out", result])
        images, labels = (torch.from_numpy(tensors[name].copy()) for name in ("images", "labels"))
        return compare(safetensors_io.read(result)[0], model, images, labels, graph, config)


def check_config(binary, path, graph):
    """Figures of a config file's model."""
    written = read_ini(path)
    changed = {"num_classes": "10", **{name: "0" for name in ("drop_path", "dropout", "attn_dropout") if name in written}}
    config = settings.read(settings.Config, written | changed)
    torch.manual_seed(1)
    model = vitc.Vit(config)
    frames = (config.frames,) if config.frames > 1 else ()
    images, labels = torch.randn(2, *frames, 3, *config.img_size), torch.tensor([3, 7])
    with tempfile.TemporaryDirectory() as folder:
        given, result = (os.path.join(folder, name) for name in ("in.safetensors", "out.safetensors"))
        safetensors_io.write(given, {"images": images.numpy(), "labels": labels.numpy().astype(np.int32),
                                     **{name: x.numpy() for name, x in model.state_dict().items()}})
        call([*shlex.split(binary), "--config", path, *flags.that_count(binary, changed), "--parity", given, "--out",
              result])
        return compare(safetensors_io.read(result)[0], model, images, labels, graph, config, norm_error)


def check_ar(binary, path, graph):
    tensors, metadata = safetensors_io.read(path)
    tokens = tensors["tokens"]
    image = tokens.shape[1:] if tokens.ndim == 4 else ()
    config = settings.read(density.Config, metadata | {"tokens": str(tokens.shape[1] - 1), "dropout": "0",
                                                       "embedding_dropout": "0"})
    config = dataclasses.replace(config, image=tuple(image))
    model = vitc.Density(config)
    weights = {name: torch.from_numpy(tensors[name].copy()) for name in model.state_dict()}
    model.load_state_dict(weights)
    flat = torch.from_numpy(tokens.copy()).flatten(1)
    words = flags.that_count(binary, metadata | {"dropout": "0", "embedding_dropout": "0"})
    with tempfile.TemporaryDirectory() as folder:
        result = os.path.join(folder, "out.safetensors")
        call([*shlex.split(binary), *words, "--parity", path, "--out", result])
        return compare(safetensors_io.read(result)[0], model, flat[:, :config.n], flat if image else flat[:, 1:], graph)


def kind_of(path):
    """Operator, host and whether of clips, or the name of a config file: what the table has a line for."""
    if path.endswith(".ini"):
        return f"{read_ini(path).get('attn', 'softmax'):28s} {os.path.basename(path)}"
    config = Config.from_metadata(safetensors_io.read(path)[1])
    host = ("hierarchy" if "," in str(config.dim) else {"hybrid": "hybrid", "conv": "compact"}.get(config.stem, "vit"))
    more = {"linear": [config.feature_map, config.relative]}.get(config.attn, [])
    words = [config.attn, *(word for word in more if word not in ("mlp", "none"))]
    host = "distilled" if config.distilled else host
    return f"{' '.join(words):28s} {host}{' of clips' if config.frames > 1 else ''}"


def main():
    arguments = ARGUMENTS
    torch.set_num_threads(1)

    def some(check, binary, pattern):
        return [(path, check, binary) for path in sorted(glob.glob(os.path.join(FIXTURES, pattern)))
                if not arguments.fixtures or os.path.basename(path).removesuffix(".safetensors") in arguments.fixtures]

    paths = [(path, check_config, arguments.binary) for path in arguments.fixtures if path.endswith(".ini")]
    paths += some(check_vit, arguments.binary, "*.safetensors")
    if arguments.ar:
        paths += some(check_ar, arguments.ar, "sequence/*.safetensors")
    table = {}
    for path, check, binary in paths:
        name = os.path.splitext(os.path.basename(path))[0]
        kind = kind_of(path) if check is not check_ar else f"{'train_ar ' + name.split('-')[1]:28s} {name.split('-')[0]}"
        figures = check(binary, path, arguments.onnx and kind not in table)
        table.setdefault(kind, []).append(figures)
        if arguments.verbose:
            print(f"{name:28s} " + " ".join(f"{figure:.1e}" for figure in figures), flush=True)
    failures = 0
    print(f"{'operator':28s} {'model':24s} fixtures  logits   gradients float32 bfloat16  onnx")
    for kind, rows in sorted(table.items()):
        figures = np.max([row[:4] for row in rows], axis=0).tolist() + [rows[0][4]]
        full = kind.endswith(".ini")  # a whole model, for which PyTorch's float32 is the measure
        good = (figures[0] <= TOLERANCE and figures[1] <= max(TOLERANCE, 2 * figures[2] * full)
                and (full or figures[2] <= TOLERANCE) and figures[3] < 0.1 and not figures[4] > ONNX_TOLERANCE)
        failures += not good
        print(f"{kind:53s} {len(rows):8d}  " + "  ".join(f"{figure:.1e}" for figure in figures)
              + ("" if good else "  FAILED"))
    print(f"{sum(map(len, table.values()))} models of {len(table)} kinds"
          + (f", {failures} kinds FAILED" if failures else "   ok"))
    sys.exit(failures > 0 or not table)


if __name__ == "__main__":
    main()
