"""Converts PyTorch's weights for train_vit and train_detr: reads a .pth file and writes safetensors in float32, with
the names of these programs.

    python3 scripts/convert_weights.py resnet50.pth backbone.safetensors
    python3 scripts/convert_weights.py smca.pth smca.safetensors
    python3 scripts/convert_weights.py --backbone detr.pth backbone.safetensors
    python3 scripts/convert_weights.py deit_tiny_patch16_224.pth deit.safetensors
    python3 scripts/convert_weights.py pvt_tiny.pth pvt.safetensors
    python3 scripts/convert_weights.py cswin_tiny_224.pth cswin.safetensors
    python3 scripts/convert_weights.py cct_7_3x1_32.pth cct.safetensors

Reads torchvision's ResNet-50 (names without a prefix; fc.* and num_batches_tracked are left out) and the official
checkpoints of DETR and SMCA-DETR (500 tensors under the key `model`).  --backbone keeps only the backbone, of any of
them.  Every tensor is checked by name and shape before anything is written; but the tensors of a vision transformer
(DeiT's and timm's, recognised by patch_embed.proj.weight) are copied unchecked, because train_vit's settings determine
their shapes. Those of the official Swin, CSwin, PVT and PVTv2, of the FLatten Transformer in them, and of Compact
Transformers get timm's names, PVT's and CSwin's stages those of train_vit: Swin's mergings belong to the stage after
them, its masks and indices are left out, and q and kv of focused attention become qkv.

A .pth file is a pickle, which can execute arbitrary code.  It is read here without PyTorch, and the only objects that
it can create are tensors, containers and the checkpoint's settings, which are ignored.  Since PyTorch 1.6 the file is a
zip archive with the pickle and a member for every storage; before, the pickle and the storages follow each other.
Needs numpy."""

import argparse
import collections
import os
import pickle
import re
import sys
import zipfile


def arguments():
    parser = argparse.ArgumentParser(description="PyTorch's weights for train_vit and train_detr, as safetensors.")
    parser.add_argument("--backbone", action="store_true", help="the backbone alone, of a detector's checkpoint")
    parser.add_argument("pth", help="torchvision's ResNet-50, a checkpoint of DETR or SMCA-DETR, or a vision "
                                    "transformer of DeiT, timm, Swin, CSwin, PVT, PVTv2, the FLatten "
                                    "Transformer or Compact Transformers")
    parser.add_argument("out", help="the safetensors file to write")
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

try:
    import numpy as np
except ImportError:
    sys.exit("convert_weights.py: needs numpy: apt-get install python3-numpy, or pip install numpy")

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "reference"))
import safetensors_io

PREFIX = "backbone.0.body."
BLOCKS = (3, 4, 6, 3)
NORM = ("weight", "bias", "running_mean", "running_var")
IGNORED = ("num_batches_tracked",)


def fail(text):
    sys.exit(f"convert_weights.py: {text}")


# == Reading ===========================================================================================================


STORAGES = {"DoubleStorage": "<f8", "FloatStorage": "<f4", "HalfStorage": "<f2", "BFloat16Storage": "<u2",
            "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "i1", "ByteStorage": "u1",
            "BoolStorage": "?"}
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C

Storage = collections.namedtuple("Storage", "dtype key count")


class Tensor:
    """The location of a tensor; its numbers may come later in the file."""

    def __init__(self, storage, offset, shape, strides, *rest):
        self.storage, self.offset, self.shape, self.strides = storage, offset, tuple(shape), tuple(strides)

    def numbers(self, storages):
        data = np.frombuffer(storages[self.storage.key], STORAGES[self.storage.dtype])
        if 0 in self.shape:
            return np.zeros(self.shape, np.float32)
        last = self.offset + sum((n - 1) * step for n, step in zip(self.shape, self.strides))
        if min((self.offset, *self.shape, *self.strides)) < 0 or last >= len(data):
            raise ValueError("a tensor reaches beyond its storage")
        view = np.lib.stride_tricks.as_strided(data[self.offset:], self.shape,
                                               [step * data.itemsize for step in self.strides])
        if self.storage.dtype == "BFloat16Storage":
            return (np.ascontiguousarray(view).astype(np.uint32) << 16).view(np.float32)
        return np.ascontiguousarray(view, np.float32)


class Settings:
    """A checkpoint's argparse.Namespace."""

    def __setstate__(self, state):
        pass


class Unpickler(pickle.Unpickler):

    def __init__(self, file):
        super().__init__(file)
        self.storages = {} # by key

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("argparse", "Namespace"):
            return Settings
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return Tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda tensor, *rest: tensor
        if module == "torch" and name in STORAGES:
            return name
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no file of weights needs")

    def persistent_load(self, saved):
        if saved[0] != "storage" or (len(saved) > 5 and saved[5] is not None):
            raise pickle.UnpicklingError("it holds more than tensors")
        return self.storages.setdefault(saved[2], Storage(saved[1], saved[2], saved[4]))


def read_zip(file):
    """The object, and {key: bytes} of the storages it names."""
    archive = zipfile.ZipFile(file)
    pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise ValueError("an archive without data.pkl")
    top = pickles[0][:-len("data.pkl")]
    content = Unpickler(archive.open(pickles[0])).load()
    members = {name[len(top + "data/"):]: name for name in archive.namelist() if name.startswith(top + "data/")}
    return content, {key: archive.read(name) for key, name in members.items()}


def read_legacy(file):
    if file.peek(2)[:2] == b"PK":
        raise ValueError("an archive without its end")
    if Unpickler(file).load() != LEGACY_MAGIC:
        raise ValueError("neither of its two formats")
    for _ in range(2): # protocol, and facts about the machine
        Unpickler(file).load()
    unpickler, storages = Unpickler(file), {}
    content = unpickler.load()
    for key in Unpickler(file).load():
        size = int.from_bytes(file.read(8), "little") * np.dtype(STORAGES[unpickler.storages[key].dtype]).itemsize
        storages[key] = file.read(size)
        if len(storages[key]) < size:
            raise ValueError("the file ends within its numbers")
    return content, storages


def tensors_in(content):
    for key in ("model", "state_dict_ema", "state_dict"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    return {name: x for name, x in content.items() if isinstance(x, Tensor)} if isinstance(content, dict) else {}


def read(path):
    """{name: float32 array} of all tensors."""
    if not os.path.isfile(path):
        fail(f"{path}: no such file")
    try:
        with open(path, "rb") as file:
            is_zip = zipfile.is_zipfile(file)
            file.seek(0)
            content, storages = read_zip(file) if is_zip else read_legacy(file)
        tensors = {name: x.numbers(storages) for name, x in tensors_in(content).items() if not name.endswith(IGNORED)}
    except Exception as error: # a damaged pickle can raise anything
        reason = str(error) or type(error).__name__
        fail(f"{path}: not a file of weights as PyTorch saves them: {reason.splitlines()[0]}")
    if not tensors:
        fail(f"{path}: holds no tensors by name: expected a state_dict, or one under the key 'model', "
             "'state_dict_ema' or 'state_dict'")
    return tensors


# == What is expected ==================================================================================================


def conv_shapes(shapes, name, norm, shape):
    shapes[name + ".weight"] = shape
    for part in NORM:
        shapes[f"{norm}.{part}"] = (shape[0],)


def backbone_shapes():
    shapes, inputs = {}, 64
    conv_shapes(shapes, PREFIX + "conv1", PREFIX + "bn1", (64, 3, 7, 7))
    for stage, count in enumerate(BLOCKS):
        width = 64 << stage
        for block in range(count):
            at = f"{PREFIX}layer{stage + 1}.{block}."
            conv_shapes(shapes, at + "conv1", at + "bn1", (width, inputs, 1, 1))
            conv_shapes(shapes, at + "conv2", at + "bn2", (width, width, 3, 3))
            conv_shapes(shapes, at + "conv3", at + "bn3", (4 * width, width, 1, 1))
            if block == 0:
                conv_shapes(shapes, at + "downsample.0", at + "downsample.1", (4 * width, inputs, 1, 1))
            inputs = 4 * width
    return shapes


def linear_shapes(shapes, name, outputs, inputs):
    shapes[name + ".weight"], shapes[name + ".bias"] = (outputs, inputs), (outputs,)


def attention_shapes(shapes, name, width):
    shapes[name + ".in_proj_weight"], shapes[name + ".in_proj_bias"] = (3 * width, width), (3 * width,)
    linear_shapes(shapes, name + ".out_proj", width, width)


def detector_shapes(tensors):
    """The shapes of SMCA-DETR with a single scale; sizes that a setting determines are those of the file."""

    def size(name, otherwise):
        return tensors[name].shape[0] if name in tensors and tensors[name].ndim else otherwise

    width, layers, shapes = size("input_proj.weight", 256), 6, backbone_shapes()
    hidden, classes = size("transformer.encoder.layers.0.linear1.weight", 2048), size("class_embed.weight", 92)
    shapes["input_proj.weight"], shapes["input_proj.bias"] = (width, 2048, 1, 1), (width,)
    shapes["query_embed.weight"] = (size("query_embed.weight", 300), width)
    linear_shapes(shapes, "class_embed", classes, width)
    for i, outputs in enumerate((width, width, 4)):
        linear_shapes(shapes, f"bbox_embed.layers.{i}", outputs, width)
    scale = size("transformer.decoder.layers.0.point3.weight", 0)
    for layer in range(layers):
        encoder, decoder = f"transformer.encoder.layers.{layer}.", f"transformer.decoder.layers.{layer}."
        for at, norms in ((encoder, 2), (decoder, 4)):
            attention_shapes(shapes, at + "self_attn", width)
            linear_shapes(shapes, at + "linear1", hidden, width)
            linear_shapes(shapes, at + "linear2", width, hidden)
            for norm in range(norms):
                shapes[f"{at}norm{norm + 1}.weight"] = shapes[f"{at}norm{norm + 1}.bias"] = (width,)
        attention_shapes(shapes, decoder + "multihead_attn", width)
        if layer == 0:
            for i, outputs in enumerate((width, width, 2)):
                linear_shapes(shapes, f"{decoder}point1.layers.{i}", outputs, width)
        linear_shapes(shapes, decoder + "point2", 16, width)
        if scale:
            linear_shapes(shapes, decoder + "point3", scale, width)
    shapes["transformer.decoder.norm.weight"] = shapes["transformer.decoder.norm.bias"] = (width,)
    return shapes


# == Conversion ========================================================================================================


def some(names):
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def check(path, tensors, shapes, detector):
    missing = [name for name in shapes if name not in tensors]
    if missing and detector and all(".point" in n or ".norm4" in n for n in missing):
        fail(f"{path}: DETR without spatial modulation, no tensor {missing[0]}: --backbone takes its backbone alone")
    if missing:
        fail(f"{path}: no tensor {some(missing)}: expected {'SMCA-DETR with a ' if detector else 'a '}ResNet-50")
    for name, shape in shapes.items():
        if tensors[name].shape != tuple(shape):
            fail(f"{path}: {name} has shape {list(tensors[name].shape)}, expected {list(shape)}")
    left = [name for name in tensors if name not in shapes]
    if left:
        fail(f"{path}: tensor {some(left)} has no place in train_detr's model")


def swin_name(name):
    name = re.sub(r"^layers\.(\d+)\.downsample", lambda found: f"layers.{int(found[1]) + 1}.downsample", name)
    return re.sub(r"^head\.(?!fc)", "head.fc.", name)


def pvt_name(name):
    name = re.sub(r"^patch_embed(\d+)", lambda found: f"stages.{int(found[1]) - 1}.downsample", name)
    name = re.sub(r"^block(\d+)\.", lambda found: f"stages.{int(found[1]) - 1}.blocks.", name)
    name = re.sub(r"^norm(\d+)", lambda found: f"stages.{int(found[1]) - 1}.norm", name)
    return name.replace("stages.0.downsample", "patch_embed").replace("dwconv.dwconv", "dwconv")


def cswin_name(name):
    name = re.sub(r"^stage1_conv_embed\.([02])", lambda found: "patch_embed." + ("proj" if found[1] == "0" else "norm"),
                  name)
    name = re.sub(r"^stage(\d+)\.(\d+)\.", lambda found: f"stages.{int(found[1]) - 1}.blocks.{found[2]}.", name)
    name = re.sub(r"^merge(\d+)\.(conv|norm)",
                  lambda found: f"stages.{found[1]}.downsample." + ("proj" if found[2] == "conv" else "norm"), name)
    return re.sub(r"(blocks\.\d+\.)(qkv|attns|proj)\.", r"\1attn.\2.", name)


COMPACT_NAMES = {"pre_norm": "norm1", "self_attn": "attn", "linear1": "mlp.fc1", "norm1": "norm2", "linear2": "mlp.fc2"}


def compact_name(name, tokenizer):
    """tokenizer: its convolutions are followed by max pools and are not patches."""
    if not tokenizer:
        name = name.replace("tokenizer.conv_layers.0.0", "patch_embed.proj")
    name = re.sub(r"^classifier\.(blocks\.\d+\.)([^.]+)", lambda found: found[1] + COMPACT_NAMES[found[2]], name)
    name = name.replace("classifier.positional_emb", "pos_embed").replace("classifier.class_emb", "cls_token")
    return name.replace("classifier.fc", "head").replace("classifier.", "")


def focused_qkv(tensors):
    """Joins q and kv in blocks with focused attention's convolution of v, unless it has reduced keys
    (focused-reduced) in any block: that operator has both in every stage."""
    if any(name.endswith("attn.sr.weight") and name.replace("sr.", "dwc.") in tensors for name in tensors):
        return tensors
    joined = {}
    for name, x in tensors.items():
        at = name.rpartition("attn.")[0] + "attn."
        if name.startswith((at + "q.", at + "kv.")) and at + "dwc.weight" in tensors:
            part = name.rpartition(".")[2]
            joined[f"{at}qkv.{part}"] = np.concatenate([tensors[f"{at}q.{part}"], tensors[f"{at}kv.{part}"]])
        else:
            joined[name] = x
    return joined


def vision_transformer(tensors):
    """The tensors of one with train_vit's names, or None if they are of another model."""
    tensors = {name: x for name, x in tensors.items() if not name.endswith(("relative_position_index", "attn_mask"))}
    if "layers.0.downsample.reduction.weight" in tensors:
        return {swin_name(name): x for name, x in tensors.items()}
    if "stage1_conv_embed.0.weight" in tensors:
        return {cswin_name(name): x for name, x in tensors.items()}
    if "classifier.blocks.0.pre_norm.weight" in tensors:
        tokenizer = "tokenizer.conv_layers.0.0.bias" not in tensors
        return {compact_name(name, tokenizer): x for name, x in tensors.items()}
    if "patch_embed1.proj.weight" in tensors:
        return focused_qkv({pvt_name(name): x for name, x in tensors.items()})
    return tensors if "patch_embed.proj.weight" in tensors else None


def convert(path, backbone_alone):
    tensors = read(path)
    renamed = vision_transformer(tensors)
    if renamed:
        return renamed
    detector = any(name.startswith(PREFIX) for name in tensors)
    if not detector:
        tensors = {PREFIX + name: x for name, x in tensors.items() if not name.startswith("fc.")}
    elif backbone_alone:
        tensors = {name: x for name, x in tensors.items() if name.startswith(PREFIX)}
    detector = detector and not backbone_alone
    check(path, tensors, detector_shapes(tensors) if detector else backbone_shapes(), detector)
    return tensors


def main():
    args = ARGUMENTS
    if os.path.exists(args.out) and os.path.exists(args.pth) and os.path.samefile(args.pth, args.out):
        fail(f"{args.out}: is the input: give another name")
    tensors = convert(args.pth, args.backbone)
    try:
        safetensors_io.write(args.out, tensors, {"converted_from": os.path.basename(args.pth)})
    except OSError as error:
        fail(f"{args.out}: {error.strerror}")
    print(f"{args.out}: {len(tensors)} tensors, {sum(x.size for x in tensors.values()):,} numbers")


if __name__ == "__main__":
    main()
