"""Writes tests/fixtures/bf16.csv: how far PyTorch's autocast to bfloat16 is from float64, for every tensor of every
fixture that a program with bfloat16 activations is held to.

    python3 tests/reference/bf16_bounds.py              writes it again
    python3 tests/reference/bf16_bounds.py ripple ...   prints the lines of these fixtures
    python3 tests/reference/bf16_bounds.py --check [ripple ...]
                                                        compares with the file what it would be now, in two minutes for all
                                                        fixtures; ends with status 1 where they differ


The references run as they are, with float32 parameters: in float64, and under torch.autocast("cpu", torch.bfloat16),
which rounds the operands and the results of products and convolutions, and what is computed from rounded numbers
alone; the residual stream, the layer norms and the parameters' gradients stay float32.  A line is

    fixture, tensor, ||autocast - float64|| / ||float64||

and the gradients of a fixture are there once more as one vector, under the name "gradients".

The error of the fixture's own numbers alone may be small by luck, above all that of one number, such as the loss, or
where a ReLU that rounding switches decides between two sizes of the error.  So it is one of DRAWS: the others have every
parameter and input moved by up to a part in 256, which is one spacing of bfloat16, so that every rounding falls anew,
and are compared with float64 on the same moved numbers.  The file has the ninth decile of the draws' errors, or the
first one's where that is larger.  The largest would say nothing: in one draw in thirty a denominator nearly vanishes.
"""

import glob
import os
import sys
import zlib

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

import numpy as np
import torch

import make_detr_fixtures as detr
import make_fixtures as vit
import make_resnet_fixtures as resnet
import safetensors_io

OUT = os.path.join(vit.FIXTURES, "bf16.csv")
DRAWS = 32
# Relative: sums in another order, as on another machine, move a decile by a few parts in a hundred, and the file was
# measured when the reference was still written from definitions, which round in other places than its faster forms.
SAME = 0.4


def vit_outputs(inputs, metadata, dtype):
    return vit.compute(vit.Config.from_metadata(metadata), inputs, dtype)[1]


def vit_moved(metadata):
    return [*vit.parameter_shapes(vit.Config.from_metadata(metadata)), "images"]


def detr_outputs(inputs, metadata, dtype):
    return detr.compute(detr.Config.from_metadata(metadata), inputs, dtype)[1]


def detr_moved(metadata):
    return [*detr.parameter_shapes(detr.Config.from_metadata(metadata)), "features", "dlogits", "dboxes"]


def resnet_outputs(inputs, metadata, dtype):
    outputs = resnet.compute(inputs, metadata, dtype)
    return {name: value for name, value in outputs.items() if name in inputs}


def resnet_moved(metadata):
    names = [name for conv, (norm, _) in resnet.shapes_of(metadata).items()
             for name in (conv + ".weight", *(f"{norm}.{part}" for part in ("weight", "bias", "running_mean",
                                                                            "running_var")))]
    return [resnet.PREFIX + name for name in names] + ["a.dfeatures", "b.dfeatures"]


KINDS = [("*.safetensors", vit_outputs, vit_moved), ("smca/*.safetensors", detr_outputs, detr_moved),
         ("detection/resnet.safetensors", resnet_outputs, resnet_moved)]


def moved(inputs, names, random):
    """inputs with the tensors of these names moved."""
    return {name: (value * (1 + random.uniform(-1, 1, value.shape) / 256)).astype(np.float32) if name in names
            else value for name, value in inputs.items()}


def relative(pairs):
    """||a - b|| / ||b|| of [(a, b)] as one vector; None where b vanishes."""
    size = sum((b.astype(np.float64) ** 2).sum() for _, b in pairs)
    return (sum(((a.astype(np.float64) - b) ** 2).sum() for a, b in pairs) / size) ** 0.5 if size else None


def errors(outputs, inputs, metadata):
    """{tensor: relative error} of one draw.  A gradient that is named after a batch counts among that batch's."""
    exact = outputs(inputs, metadata, torch.float64)
    # oneDNN's bfloat16 gradient of a depthwise convolution in time and space reads memory that nobody has written.
    clips = np.ndim(inputs.get("images", 0)) == 5
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.backends.mkldnn.flags(enabled=not clips):
        rounded = outputs(inputs, metadata, torch.float32)
    result = {name: relative([(rounded[name], value)]) for name, value in exact.items()}
    for group in sorted({name.split("grad.")[0] for name in exact if "grad." in name}):
        pairs = [(rounded[name], exact[name]) for name in exact if name.startswith(group + "grad.")]
        result[group + "gradients"] = relative(pairs)
    return {name: error for name, error in result.items() if error is not None}


def figures(path, outputs, names_moved):
    """{tensor: error}"""
    inputs, metadata = safetensors_io.read(path)
    random = np.random.RandomState(zlib.crc32(os.path.basename(path).encode()) % 2**31)
    first = errors(outputs, inputs, metadata)
    drawn = [errors(outputs, moved(inputs, set(names_moved(metadata)), random), metadata) for _ in range(DRAWS - 1)]
    return {name: max(value, np.quantile([value, *(draw[name] for draw in drawn)], 0.9))
            for name, value in first.items()}


def recomputed(wanted):
    """[(fixture, {tensor: error})] of these fixtures, or of all."""
    for pattern, outputs, names_moved in KINDS:
        for path in sorted(glob.glob(os.path.join(vit.FIXTURES, pattern))):
            fixture = os.path.relpath(path, vit.FIXTURES).removesuffix(".safetensors")
            if wanted and fixture not in wanted:
                continue
            found = figures(path, outputs, names_moved)
            print(f"{fixture:26s} {len(found):3d} tensors, worst {max(found.values()):.3f}", flush=True)
            yield fixture, found


def check(wanted):
    """How many lines of the file are wrong, missing or too many; prints them."""
    with open(OUT) as file:
        lines = [line.rstrip("\n").split(",") for line in file][1:]
    stored = {(fixture, name): float(error) for fixture, name, error in lines if not wanted or fixture in wanted}
    now = {(fixture, name): error for fixture, found in recomputed(wanted) for name, error in found.items()}
    different = 0
    for key in sorted({*stored, *now}):
        old, new = stored.get(key), now.get(key)
        if old is None or new is None or abs(new - old) > SAME * old:
            different += 1
            print(f"{','.join(key)}: {old} in the file, {new and float(f'{new:.3g}')} now")
    print(f"{len(now)} lines recomputed, {different} differ")
    return different or not now


def main():
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--check"]:
        sys.exit(1 if check(sys.argv[2:]) else 0)
    lines = [f"{fixture},{name},{error:.3g}\n" for fixture, found in recomputed(sys.argv[1:])
             for name, error in found.items()]
    if sys.argv[1:]:
        print("".join(lines), end="")
        return
    with open(OUT, "w") as file:
        file.writelines(["fixture,tensor,error\n", *lines])


if __name__ == "__main__":
    main()
