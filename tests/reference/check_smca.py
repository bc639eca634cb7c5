"""train_detr against the official SMCA-DETR: one forward and backward pass with the official code's weights and names.

    python3 tests/reference/check_smca.py CHECKOUT [--work FOLDER] [--seed 0] [--size 160x224]

CHECKOUT is one's own copy of gaopengcuhk/SMCA-DETR.  Its single-scale model (ResNet-50, 300 queries, dynamic scale
type3), with random weights and batch norms that are not the identity, is saved as a .pth file under `model`, made
safetensors by scripts/convert_weights.py and read by `train_detr --init`.  Two images of two sizes, dropout off; logits
and boxes of all decoder layers, the loss and the gradient of every trained tensor are compared, worst |difference| over
the root mean square of the tensor.  The official model runs in float32 and in float64: their distance is what float32
costs anyone.  The exit status is 0 if logits and boxes stay within 1e-4.  Needs PyTorch 2, torchvision, SciPy;
build/cpu/train_detr."""

import argparse
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch

import official_smca
import safetensors_io
from compare_parity import norm_error, relative_error

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
COUNTS, CLASSES, TOLERANCE = (3, 5), 91, 1e-4
VANISHING = "grad.transformer.decoder.layers.0.self_attn.in_proj_weight"  # layer 0's t is 0: only rounding is left


def randomise(model):
    """Batch norms that do something, a residual branch that keeps 16 blocks in bounds, scales that differ from 1."""
    for name, x in model.named_buffers():
        low = 0.1 if ".bn3." in name else 0.5
        if name.endswith("running_var"):
            x.uniform_(0.5, 1.5)
        elif name.endswith("running_mean") or name.endswith("bias"):
            x.normal_(0, 0.1)
        elif name.startswith("backbone") and name.endswith("weight"):
            x.uniform_(low, 3 * low)
    with torch.no_grad():
        for name, x in model.named_parameters():
            if "point3" in name:
                x.add_(0.02 * torch.randn_like(x) if x.ndim > 1 else 0.3 * torch.randn_like(x))


def inputs_of(height, width):
    sizes = np.array([(height, width * 7 // 8), (height * 4 // 5, width)], np.int64)
    images = torch.randn(2, 3, height, width)
    for image, (h, w) in zip(images, sizes):
        image[:, h:], image[:, :, w:] = 0, 0
    boxes = torch.cat([0.3 + 0.4 * torch.rand(sum(COUNTS), 2), 0.1 + 0.4 * torch.rand(sum(COUNTS), 2)], 1)
    return {"images": images.numpy(), "sizes": sizes, "counts": np.array(COUNTS, np.int64),
            "target_boxes": boxes.numpy(), "labels": torch.randint(1, CLASSES, (sum(COUNTS),)).numpy()}


def official(model, criterion, inputs, dtype):
    model, criterion = model.to(dtype), criterion.to(dtype)
    images, boxes = (torch.from_numpy(inputs[name]).to(dtype) for name in ("images", "target_boxes"))
    targets = official_smca.targets_of(inputs["sizes"], COUNTS, boxes, torch.from_numpy(inputs["labels"]))
    model.zero_grad()
    outputs = official_smca.predict(model, images, targets)
    loss = official_smca.total_loss(criterion, outputs, targets)
    loss.backward()
    layers = outputs["aux_outputs"] + [outputs]
    results = {"logits": torch.stack([x["pred_logits"] for x in layers]), "loss": loss.reshape(1),
               "boxes": torch.stack([x["pred_boxes"] for x in layers])}
    results |= {"grad." + name: x.grad for name, x in model.named_parameters() if x.requires_grad}
    return {name: x.detach().double().numpy() for name, x in results.items()}


def report(title, got, want):
    missing = set(got) ^ set(want)
    if missing:
        sys.exit(f"{title}: not on both sides: {', '.join(sorted(missing))}")
    names = [name for name in want if name.startswith("grad.") and name != VANISHING]
    worst = sorted(((relative_error(got[name], want[name]), name) for name in names), reverse=True)
    joined = [np.concatenate([x[name].ravel() for name in names]) for x in (got, want)]
    heads = {name: relative_error(got[name], want[name]) for name in ("logits", "boxes", "loss")}
    print(f"{title}: " + ", ".join(f"{name} {error:.1e}" for name, error in heads.items()))
    print(f"  {len(names)} gradients: worst {worst[0][0]:.1e} ({worst[0][1][5:]}), "
          f"median {worst[len(worst) // 2][0]:.1e}, all as one vector {norm_error(*joined):.1e} of its norm")
    return max(heads["logits"], heads["boxes"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkout")
    parser.add_argument("--work", help="folder for the files (default: a temporary one)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", default="160x224", help="height and width of the padded batch")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    work = args.work or tempfile.mkdtemp()
    pth, weights, given, out = (os.path.join(work, name) for name in
                                ("smca.pth", "smca.safetensors", "in.safetensors", "out.safetensors"))
    model, criterion = official_smca.load(args.checkout, dropout=0)
    randomise(model)
    torch.save({"model": model.state_dict()}, pth)
    inputs = inputs_of(*map(int, args.size.split("x")))
    safetensors_io.write(given, inputs, {})
    subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "convert_weights.py"), pth, weights], check=True)
    subprocess.run([os.path.join(ROOT, "build", "cpu", "train_detr"), "--num-classes", str(CLASSES), "--init", weights,
                    "--parity", given, "--out", out], check=True)
    ours, single, exact = safetensors_io.read(out)[0], official(model, criterion, inputs, torch.float32), None
    exact = official(model, criterion, inputs, torch.float64)
    worst = report("ours and official, float32", ours, single)
    report("ours and official in float64", ours, exact)
    report("official float32 and float64", single, exact)
    print(f"loss {ours['loss'][0]:.6f}, official {single['loss'][0]:.6f}, in float64 {exact['loss'][0]:.6f}")
    sys.exit(not worst <= TOLERANCE)


if __name__ == "__main__":
    main()
