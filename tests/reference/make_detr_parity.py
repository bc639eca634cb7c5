"""Writes tests/fixtures/detr/parity-<attn>.safetensors: a whole small detector with a batch of two sizes, and the
float64 reference's loss and gradients for `train_detr --parity`.

    python3 tests/reference/make_detr_parity.py [FOLDER]

A file holds images [B,3,H,W] (float16, padded with zeros), sizes [B,2], counts [B], target_boxes [T,4], labels [T],
every parameter and frozen tensor; expected are logits and boxes of all layers, loss, and grad.<parameter>.  The
metadata has the settings as flags.  Draws are repeated until no ReLU flips by rounding and this reference run in
float32 stays within an eighth of the tolerance, 1e-4; seeds.csv has the seeds.  A file that differs by rounding alone
stays."""

import itertools
import os
import sys

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

import numpy as np
import torch

import drawn
from compare_parity import relative_error
from detr_reference import Config, Detr, parameter_shapes
from make_detr_fixtures import deviation
from make_resnet_fixtures import PREFIX, draw as draw_backbone, resnet, shapes
from make_set_loss_fixtures import set_loss

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "detr")
BLOCKS, WIDTH, CLASSES, MARGIN, TOLERANCE = (1, 1, 1, 1), 2, 5, 3e-6, 1e-4
VANISHING = "grad.transformer.decoder.layers.0.self_attn.in_proj_weight"  # layer 0's t is 0: only rounding is left
COUNTS = (3, 0, 2)


def settings(c):
    return ["--attn", c.attn, "--backbone-blocks", ",".join(map(str, BLOCKS)), "--backbone-width", WIDTH, "--dim",
            c.dim, "--ffn", c.ffn, "--heads", c.heads, "--encoder-layers", c.encoder_layers, "--decoder-layers",
            c.decoder_layers, "--queries", c.queries, "--num-classes", CLASSES, "--r-max", c.r_max, "--tau", c.tau,
            "--dynamic-scale", f"type{c.scale_type}"]


def inputs_of(c, seed):
    generator, random = torch.Generator().manual_seed(seed), np.random.RandomState(seed)
    tensors = {PREFIX + name: x.float().numpy() for name, x in draw_backbone(BLOCKS, WIDTH, generator).items()}
    for name, shape in parameter_shapes(c).items():
        x = deviation(name) * random.standard_normal(shape)
        if ("norm" in name and name.endswith("weight")) or name.endswith("point3.bias"):
            x = 1 + 0.3 * x
        tensors[name] = (0.3 + x if name.endswith("b2") else x).astype(np.float32)
    images = random.standard_normal((len(c.own), 3, c.height, c.width)).astype(np.float16)
    for image, (h, w) in zip(images, c.own):
        image[:, h:], image[:, :, w:] = 0, 0
    box = random.uniform(0.1, 0.5, (sum(COUNTS), 4))
    box[:, :2] = random.uniform(0.3, 0.7, box[:, :2].shape)
    return tensors | {"images": images, "sizes": np.array(c.own, dtype=np.int64),
                      "counts": np.array(COUNTS, dtype=np.int64), "target_boxes": box.astype(np.float32),
                      "labels": random.randint(0, CLASSES, len(box)).astype(np.int64)}


def compute(c, inputs, dtype=np.float64):
    names = [PREFIX + name + ".weight" for name in shapes(BLOCKS, WIDTH) if name.startswith("layer")
             and not name.startswith("layer1")] + list(parameter_shapes(c))
    tensors = {name: torch.from_numpy(x.astype(dtype) if x.dtype.kind == "f" else x).requires_grad_(name in names)
               for name, x in inputs.items()}
    nearest = []
    body = {name[len(PREFIX):]: x for name, x in tensors.items() if name.startswith(PREFIX)}
    features = resnet(tensors["images"], body, BLOCKS, nearest).flatten(2).transpose(1, 2)
    model = Detr(c, tensors)
    logits, boxes = model(features)
    first = np.concatenate([[0], np.cumsum(COUNTS)])
    total, *_ = set_loss(logits, boxes, tensors["target_boxes"], inputs["labels"], first, float(max(sum(COUNTS), 1)))
    total.backward()
    nearest += [x.abs().min().item() for x in model.kinks]
    outputs = {"logits": logits, "boxes": boxes, "loss": total[None],
               **{"grad." + name: tensors[name].grad for name in names}}
    return min(nearest), {name: x.detach().numpy() for name, x in outputs.items()}


def sound(c, inputs, margin, outputs):
    if margin < MARGIN:
        return False
    _, single = compute(c, inputs, np.float32)
    return max(relative_error(single[name], x) for name, x in outputs.items() if name != VANISHING) < TOLERANCE / 8


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else FIXTURES
    for attn in ("softmax", "linear", "ripple"):
        c = Config(attn=attn, dim=12, ffn=10, heads=3, encoder_layers=1, decoder_layers=2, queries=6,
                   columns=CLASSES + 1, channels=32 * WIDTH, r_max=2, height=70, width=66, sizes="70x40,37x66,50x50")
        fixture = f"detr/parity-{attn}"
        kept = drawn.seed_of(fixture)
        for seed in itertools.count() if kept is None else [kept]:
            inputs = inputs_of(c, seed)
            margin, outputs = compute(c, inputs)
            if kept is not None or sound(c, inputs, margin, outputs):
                break
        outputs = {name: x.astype(np.float32) for name, x in outputs.items()}
        flags = " ".join(str(word) for word in settings(c))
        path = os.path.join(folder, f"parity-{attn}.safetensors")
        drawn.keep(fixture, seed)
        done = drawn.write(path, inputs, outputs, {"flags": flags, "vanishing": VANISHING}, [VANISHING])
        print(f"{attn}: seed {seed}, loss {outputs['loss'][0]:.6f}, {os.path.getsize(path)} bytes  {done}")


if __name__ == "__main__":
    main()
