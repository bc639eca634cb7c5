"""Writes tests/fixtures/detection/resnet.safetensors: a small ResNet of bottlenecks with frozen batch norms in float64
PyTorch, written from torchvision's description of ResNet-50, forward and every gradient.

    python3 tests/reference/make_resnet_fixtures.py           writes it if it differs by more than rounding

Tensors: the weights under torchvision's names after "backbone.0.body."; for the batches a (two images of different
size) and b: pixels [B,H,W,3] uint8, sizes [B,2], features [B,h*w,C], dfeatures, and grad.<name> (of b only layer2's).
Gradients are those of sum(features * dfeatures).  Metadata: blocks, width.

A value near zero before a ReLU could fall on the other side in float32, so numbers are drawn until none is."""

import os
import sys

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

import numpy as np
import torch
import torch.nn.functional as F

import drawn

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "detection", "resnet.safetensors")
PREFIX = "backbone.0.body."
MEAN = torch.tensor([0.485, 0.456, 0.406], dtype=torch.float64)
STD = torch.tensor([0.229, 0.224, 0.225], dtype=torch.float64)


def shapes(blocks, width):
    """{name of a convolution: (name of its norm, shape)} in torchvision's order."""
    table = {"conv1": ("bn1", (width, 3, 7, 7))}
    inputs = width
    for stage, count in enumerate(blocks):
        wide = width * 2**stage
        for block in range(count):
            at = f"layer{stage + 1}.{block}."
            table[at + "conv1"] = (at + "bn1", (wide, inputs, 1, 1))
            table[at + "conv2"] = (at + "bn2", (wide, wide, 3, 3))
            table[at + "conv3"] = (at + "bn3", (4 * wide, wide, 1, 1))
            if block == 0:
                table[at + "downsample.0"] = (at + "downsample.1", (4 * wide, inputs, 1, 1))
            inputs = 4 * wide
    return table


def draw(blocks, width, generator):
    normal = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)
    tensors = {}
    for name, (norm, shape) in shapes(blocks, width).items():
        tensors[name + ".weight"] = normal(*shape) * (2 / (shape[1] * shape[2] * shape[3]))**0.5
        tensors[norm + ".weight"] = 1 + 0.2 * normal(shape[0])
        tensors[norm + ".bias"] = 0.2 + 0.2 * normal(shape[0])
        tensors[norm + ".running_mean"] = 0.2 * normal(shape[0])
        tensors[norm + ".running_var"] = 0.5 + normal(shape[0]).abs()
    return {name: x.float().double() for name, x in tensors.items()}


def resnet(images, tensors, blocks, nearest):
    """images [B,3,H,W] -> [B,C,h,w].  nearest gathers the smallest magnitude before a ReLU above layer1."""

    def conv(x, name, norm, stride=1):
        w = tensors[name + ".weight"]
        x = F.conv2d(x, w, stride=stride, padding=w.shape[2] // 2)
        bn = [tensors[f"{norm}.{part}"][:, None, None] for part in ("weight", "bias", "running_mean", "running_var")]
        return (x - bn[2]) / torch.sqrt(bn[3] + 1e-5) * bn[0] + bn[1]

    def relu(x, trained):
        if trained:
            nearest.append(x.detach().abs().min().item())
        return torch.relu(x)

    x = F.max_pool2d(relu(conv(images, "conv1", "bn1", 2), False), 3, 2, 1)
    for stage, count in enumerate(blocks):
        for block in range(count):
            at, trained = f"layer{stage + 1}.{block}.", stage > 0
            stride = 2 if stage > 0 and block == 0 else 1
            h = relu(conv(x, at + "conv1", at + "bn1"), trained)
            h = relu(conv(h, at + "conv2", at + "bn2", stride), trained)
            h = conv(h, at + "conv3", at + "bn3")
            if block == 0:
                x = conv(x, at + "downsample.0", at + "downsample.1", stride)
            x = relu(h + x, trained)
    return x


def normalized(pixels, sizes, dtype):
    """What the network sees of pixels [B,H,W,3]: nothing beyond an image's own size."""
    images = (pixels.double() / 255 - MEAN) / STD
    for image, (h, w) in zip(images, sizes):
        image[h:], image[:, w:] = 0, 0
    return images.permute(0, 3, 1, 2).to(dtype)


def batch(sizes, generator):
    """Pixels of all images in one frame, noise beyond their own sizes, and what the network sees."""
    height, width = max(s[0] for s in sizes), max(s[1] for s in sizes)
    pixels = torch.randint(0, 256, (len(sizes), height, width, 3), generator=generator, dtype=torch.uint8)
    return pixels, normalized(pixels, sizes, torch.float64)


def trained(name):
    return name.split(".")[0] in ("layer2", "layer3", "layer4")


def shapes_of(metadata):
    return shapes(list(map(int, metadata["blocks"].split(","))), int(metadata["width"]))


def compute(inputs, metadata, dtype):
    """{a.features, a.grad.<name>, b...} of a file's tensors, as numpy arrays [B,h*w,C]."""
    tensors = {name[len(PREFIX):]: torch.from_numpy(x.copy()).to(dtype) for name, x in inputs.items()
               if name.startswith(PREFIX)}
    leaves = {name: tensors[name].requires_grad_() for name in (conv + ".weight" for conv in shapes_of(metadata))
              if trained(name)}
    blocks, out = list(map(int, metadata["blocks"].split(","))), {}
    for name in "a", "b":
        images = normalized(torch.from_numpy(inputs[name + ".pixels"].copy()), inputs[name + ".sizes"], dtype)
        features = resnet(images, tensors, blocks, []).flatten(2).transpose(1, 2)
        dfeatures = torch.from_numpy(inputs[name + ".dfeatures"].copy()).to(dtype)
        gradients = torch.autograd.grad((features * dfeatures).sum(), list(leaves.values()))
        out[name + ".features"] = features.detach().to(dtype).numpy()
        out.update({f"{name}.grad.{PREFIX}{leaf}": g.numpy() for leaf, g in zip(leaves, gradients)})
    return out


def main():
    blocks, width = (1, 2, 1, 1), 2
    generator = torch.Generator().manual_seed(1)
    while True:
        tensors = draw(blocks, width, generator)
        leaves = {n: x.requires_grad_() for n, x in tensors.items() if x.dim() == 4 and trained(n)}
        nearest, out = [], {PREFIX + n: x.detach().numpy().astype(np.float32) for n, x in tensors.items()}
        for name, sizes in {"a": [(33, 47), (29, 40)], "b": [(64, 31)]}.items():
            pixels, images = batch(sizes, generator)
            features = resnet(images, tensors, blocks, nearest).flatten(2).transpose(1, 2)
            dfeatures = torch.randn(features.shape, dtype=torch.float64, generator=generator).float().double()
            gradients = torch.autograd.grad((features * dfeatures).sum(), list(leaves.values()))
            out[f"{name}.pixels"] = pixels.numpy()
            out[f"{name}.sizes"] = np.array(sizes, dtype=np.int32)
            out[f"{name}.features"] = features.detach().numpy()
            out[f"{name}.dfeatures"] = dfeatures.numpy().astype(np.float32)
            for tensor, gradient in zip(leaves, gradients):
                if name == "a" or tensor.startswith("layer2"):
                    out[f"{name}.grad.{PREFIX}{tensor}"] = gradient.numpy().astype(np.float32)
        alive = all(np.abs(x).max() > 0 for n, x in out.items() if ".grad." in n)
        if alive and min(nearest) > 3e-5:
            break
    done = drawn.write(OUT, {}, out, {"blocks": ",".join(map(str, blocks)), "width": str(width)})
    print(f"{OUT}: {os.path.getsize(OUT)} bytes, nearest to a ReLU's corner {min(nearest):.2g}  {done}")


if __name__ == "__main__":
    main()
