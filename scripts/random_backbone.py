"""Weights of a small ResNet that has seen nothing: drawn at random, with batch norms that have the statistics of some
pictures, so that features differ from picture to picture.  For `train_detr --backbone-weights` where no trained backbone
of that size exists.

    python3 scripts/random_backbone.py --images coco/train2017 --blocks 1,1,1,1 --width 16 --side 160 --out backbone.safetensors

Needs torch, Pillow and safetensors."""

import argparse
import glob
import os

import numpy
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


def pictures(folder, side, most):
    paths = sorted(glob.glob(os.path.join(folder, "*.jpg")))[:most]
    batch = [numpy.asarray(Image.open(path).convert("RGB").resize((side, side))) for path in paths]
    return ((torch.tensor(numpy.stack(batch)) / 255 - MEAN) / STD).permute(0, 3, 1, 2)


class Backbone:
    def __init__(self, generator):
        self.tensors, self.generator = {}, generator

    def conv(self, x, name, norm, out, kernel, stride=1):
        """The convolution of a Kaiming draw (fan out), normalised by what comes out of it."""
        shape = (out, x.shape[1], kernel, kernel)
        w = torch.randn(shape, generator=self.generator) * (2 / (out * kernel * kernel)) ** 0.5
        x = F.conv2d(x, w, stride=stride, padding=kernel // 2)
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
        self.tensors[name + ".weight"] = w
        self.tensors |= {f"{norm}.{key}": value.clone() for key, value in
                         {"weight": torch.ones(out), "bias": torch.zeros(out), "running_mean": mean,
                          "running_var": variance}.items()}
        return (x - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt()

    def __call__(self, x, blocks, width):
        x = F.max_pool2d(self.conv(x, "conv1", "bn1", width, 7, 2).relu(), 3, 2, 1)
        for stage, count in enumerate(blocks):
            wide = width * 2**stage
            for block in range(count):
                at, stride = f"layer{stage + 1}.{block}.", 2 if stage and not block else 1
                h = self.conv(x, at + "conv1", at + "bn1", wide, 1).relu()
                h = self.conv(h, at + "conv2", at + "bn2", wide, 3, stride).relu()
                h = self.conv(h, at + "conv3", at + "bn3", 4 * wide, 1)
                if not block:
                    x = self.conv(x, at + "downsample.0", at + "downsample.1", 4 * wide, 1, stride)
                x = (h + x).relu()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", required=True, metavar="FOLDER")
    parser.add_argument("--blocks", default="1,1,1,1")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--side", type=int, default=160)
    parser.add_argument("--most", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True, metavar="FILE")
    a = parser.parse_args()
    backbone = Backbone(torch.Generator().manual_seed(a.seed))
    with torch.no_grad():
        backbone(pictures(a.images, a.side, a.most), list(map(int, a.blocks.split(","))), a.width)
    save_file(backbone.tensors, a.out)
    print(f"{a.out}: {len(backbone.tensors)} tensors")


if __name__ == "__main__":
    main()
