"""train_detr against the official SMCA-DETR: one forward and backward pass with the official code's weights and names.

    python3 tests/reference/check_smca.py CHECKOUT [--seed 0] [--images 160x196,128x224] [--as-drawn] [--work FOLDER]

CHECKOUT is one's own copy of gaopengcuhk/SMCA-DETR, which is run as it lies. Its single-scale model (ResNet-50, 300
queries, dynamic scale type3), with random weights and batch norms that are not the identity, is saved as a .pth file
under `model`, made safetensors by scripts/convert_weights.py and read by `train_detr --init`. A batch of padded
images, dropout off.

Logits and boxes of all decoder layers, the loss and the gradient of every trained tensor, ours in float32, must be
within 1e-4 of the official code's in float64: worst |difference| over the root mean square of the tensor. It also
prints how far the official code in float32 is from ours and from itself in float64, which is what rounding costs
anyone.

Gradients can be compared only away from the corners of the loss. They jump where a ReLU's input changes sign, and a
dozen of 18 million inputs are nearer to 0 than rounding can distinguish; they jump where two assignments of targets to
queries cost the same. So biases before ReLUs are moved, most by 2e-5, until no input that has a gradient is within
MARGIN of 0; and targets are drawn until each assignment is better than the second best, and each box off a corner of
its loss, by GAP.

With --as-drawn the biases stay. If gradients then differ by more than 1e-4, the units that explain it are sought:
inputs near 0 such that the official code's float64 run, with nothing but those units' gradient switched, gives our
gradients. Needs PyTorch 2, torchvision, SciPy; build/cpu/train_detr."""

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import warnings


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkout")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--images", default="160x196,128x224", help="height and width of each image of the batch")
    parser.add_argument("--as-drawn", action="store_true", help="leave the ReLUs that rounding decides, and name them")
    parser.add_argument("--work", help="folder for the files (default: a temporary one)")
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import numpy as np
import torch

import official_smca
import safetensors_io
from compare_parity import norm_error, relative_error

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
CLASSES, TOLERANCE, MARGIN, GAP, WORST = 91, 1e-4, 2e-5, 1e-4, 8
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


def images_of(sizes):
    """[B,3,H,W], zeros to the right of and below each image."""
    images = torch.randn(len(sizes), 3, *np.max(sizes, 0))
    for image, (h, w) in zip(images, sizes):
        image[:, h:], image[:, :, w:] = 0, 0
    return {"images": images.numpy(), "sizes": np.array(sizes, np.int64),
            "counts": 3 + 2 * np.arange(len(sizes), dtype=np.int64)}


def draw_targets(n):
    boxes = torch.cat([0.3 + 0.4 * torch.rand(n, 2), 0.1 + 0.4 * torch.rand(n, 2)], 1)
    return {"target_boxes": boxes.numpy(), "labels": torch.randint(1, CLASSES, (n,)).numpy()}


# == The official code ================================================================================================


def targets_of(inputs, dtype):
    boxes, labels = torch.from_numpy(inputs["target_boxes"]).to(dtype), torch.from_numpy(inputs["labels"])
    return official_smca.targets_of(inputs["sizes"], inputs["counts"], boxes, labels)


def predict(model, inputs, dtype):
    sizes = [{"size": torch.as_tensor(size)} for size in inputs["sizes"]]
    return official_smca.predict(model.to(dtype), torch.from_numpy(inputs["images"]).to(dtype), sizes)


def official(model, criterion, inputs, dtype):
    model.zero_grad()
    outputs = predict(model, inputs, dtype)
    loss = official_smca.total_loss(criterion.to(dtype), outputs, targets_of(inputs, dtype))
    loss.backward()
    layers = outputs["aux_outputs"] + [outputs]
    results = {"logits": torch.stack([x["pred_logits"] for x in layers]), "loss": loss.reshape(1),
               "boxes": torch.stack([x["pred_boxes"] for x in layers])}
    results |= {"grad." + name: x.grad for name, x in model.named_parameters() if x.requires_grad}
    return {name: x.detach().double().numpy() for name, x in results.items()}


class Corners:
    """Within `with`, every ReLU of the model that has a gradient is visit(self, x) of its input x.  self.call: which
    it is; self.product, self.norm: the last module with weights and the last with a bias; self.axis: the channels'."""

    def __init__(self, model, visit):
        self.model, self.visit = model, visit

    def relu(self, x, inplace=False):
        if not x.requires_grad:
            return x.clamp(min=0)
        self.call += 1
        return self.visit(self, x)

    def remember(self, name, kind):
        if kind in ("Conv2d", "Linear"):
            self.product, self.axis = name, 1 if kind == "Conv2d" else -1
        if kind in ("FrozenBatchNorm2d", "Linear"):
            self.norm = name

    def __enter__(self):
        self.call, self.plain = -1, torch.nn.functional.relu
        self.hooks = [module.register_forward_hook(lambda m, *_, name=name: self.remember(name, type(m).__name__))
                      for name, module in self.model.named_modules()]
        self.exchange(self.plain, self.relu)

    def __exit__(self, *_):
        self.exchange(self.relu, self.plain)
        for hook in self.hooks:
            hook.remove()

    def exchange(self, old, new):
        torch.nn.functional.relu = new
        for module in self.model.modules():
            if getattr(module, "activation", None) == old:
                module.activation = new


def rows_of(x, axis):
    """[channels, everything else]"""
    return x.detach().movedim(axis, 0).flatten(1)


# == Away from the corners ============================================================================================


def move_biases(model, inputs):
    """Moves biases until no ReLU's input is within MARGIN of 0 in float64; says how many by how much at most."""
    moves, units = [], [0]

    def visit(corners, x):
        bias, shift = model.get_submodule(corners.norm).bias.data, torch.zeros_like(x)
        rows = rows_of(x, corners.axis)
        units[0] += x.numel()
        for c in (rows.abs().amin(1) < MARGIN).nonzero().view(-1):
            for step in itertools.count(2):
                moved = (bias[c] + (step // 2 * (-1) ** step) * MARGIN).float().double()
                if (rows[c] + (moved - bias[c])).abs().min() >= MARGIN:
                    break
            shift.movedim(corners.axis, 0)[c] = moved - bias[c]
            moves.append(abs(moved - bias[c]).item())
            bias[c] = moved
        return (x + shift).clamp(min=0)

    with Corners(model.double(), visit):
        predict(model, inputs, torch.float64)
    print(f"{len(moves)} biases moved, half of them by {np.median(moves):.1e} or less, at most {max(moves):.1e}: of "
          f"{units[0]} ReLU inputs that have a gradient, none is within {MARGIN:.0e} of 0")


def runner_up(cost, assign):
    """What the second best assignment costs more than the best."""
    chosen = list(zip(*assign(cost)))
    best, others = sum(cost[pair] for pair in chosen), []
    for pair in chosen:
        without = np.array(cost)
        without[pair] = 1e3
        others.append(without[assign(without)].sum() - best)
    return min(others)


def box_corners(a, b):
    """How near pairs [n,4] of boxes (x0, y0, x1, y1) are to a corner of |a - b| or of the generalised IoU."""
    sides = [a - b, a - b.roll(2, 1), (a + a.roll(2, 1) - b - b.roll(2, 1)) / 2, a - a.roll(2, 1) - b + b.roll(2, 1)]
    return min(x.abs().min().item() for x in sides)


def draw_clear_targets(model, criterion, inputs):
    """Draws until in float64 no assignment is within GAP of the second best, and no box of a corner of its loss."""
    import models.matcher
    from util import box_ops
    assign, iou, nearest = models.matcher.linear_sum_assignment, box_ops.generalized_box_iou, []

    def watched_assign(cost):
        nearest.append(runner_up(np.asarray(cost), assign))
        return assign(cost)

    def watched_iou(a, b):
        nearest.append(box_corners(a, b))
        return iou(a, b)

    with torch.no_grad():
        outputs = predict(model, inputs, torch.float64)
        models.matcher.linear_sum_assignment, box_ops.generalized_box_iou = watched_assign, watched_iou
        while not nearest or min(nearest) < GAP:
            nearest.clear()
            inputs |= draw_targets(sum(inputs["counts"]))
            criterion.double()(outputs, targets_of(inputs, torch.float64))
        models.matcher.linear_sum_assignment, box_ops.generalized_box_iou = assign, iou


# == As drawn =========================================================================================================


class Switched(torch.autograd.Function):
    """ReLU whose gradient sees the units `flips`, indices into x, on the other side."""

    @staticmethod
    def forward(context, x, flips):
        side = x > 0
        side.view(-1)[flips] ^= True
        context.save_for_backward(side)
        return x.clamp(min=0)

    @staticmethod
    def backward(context, gradient):
        return gradient * context.saved_tensors[0], None


def switched(model, criterion, inputs, flips):
    """The results in float64 with the gradients of the units `flips`, {call: [index]}, switched; and all units within
    MARGIN of 0: (call, index, name of the product, channel, input)."""
    near = []

    def visit(corners, x):
        for i in (x.detach().reshape(-1).abs() < MARGIN).nonzero().view(-1).tolist():
            channel = np.unravel_index(i, x.shape)[corners.axis]
            near.append((corners.call, i, corners.product, channel, x.detach().reshape(-1)[i].item()))
        return Switched.apply(x.contiguous(), flips.get(corners.call, []))

    with Corners(model.double(), visit):
        return official(model, criterion, inputs, torch.float64), near


def channel_error(ours, exact, unit):
    """Of the gradient of the weights that feed a unit: the worst of its channel, over the root mean square; and whether
    that sticks out among the channels."""
    _, _, product, channel, _ = unit
    want = exact[f"grad.{product}.weight"]
    rows = np.abs(ours[f"grad.{product}.weight"] - want).reshape(len(want), -1).max(1) / np.sqrt(np.mean(want ** 2))
    return rows[channel], rows[channel] > max(10 * np.median(rows), TOLERANCE / 2)


def explain(model, criterion, inputs, ours):
    """From the top of the network down, units near 0 in channels that stick out are switched if that brings the
    channel's gradient nearer to ours.  Returns the results in float64."""
    flips, tried = {}, set()
    exact, near = switched(model, criterion, inputs, flips)
    while max(errors_of(ours, exact).values()) > TOLERANCE:
        suspects = [unit for unit in near if unit[:2] not in tried and abs(unit[4]) < MARGIN / 4 and
                    channel_error(ours, exact, unit)[1]]
        if not suspects:
            break
        unit = max(suspects, key=lambda x: (x[0], -abs(x[4])))
        call, i, product, channel, x = unit
        tried.add((call, i))
        trial = flips | {call: flips.get(call, []) + [i]}
        switched_exact, _ = switched(model, criterion, inputs, trial)
        before, after = channel_error(ours, exact, unit)[0], channel_error(ours, switched_exact, unit)[0]
        if after < before / 2:
            flips, exact = trial, switched_exact
            print(f"  {product}, channel {channel}: an input of {x:.1e}; the gradient of its weights was off by "
                  f"{before:.1e}, now {after:.1e}")
    return exact


# == The comparison ===================================================================================================


def errors_of(got, want):
    """{name: worst difference over the root mean square}; of the gradient that vanishes, over that of all gradients."""
    missing = set(got) ^ set(want)
    if missing:
        sys.exit(f"not on both sides: {', '.join(sorted(missing))}")
    errors = {name: relative_error(got[name], x) for name, x in want.items() if name != VANISHING}
    gradients = np.concatenate([x.ravel() for name, x in want.items() if name.startswith("grad.")])
    errors[VANISHING] = np.abs(got[VANISHING]).max() / np.sqrt(np.mean(gradients ** 2))
    return errors


def report(ours, single, exact):
    """Prints the worst tensors; returns {name: error} of ours against single and exact, and of single against exact."""
    columns = [errors_of(ours, single), errors_of(ours, exact), errors_of(single, exact)]
    order = sorted(columns[1], key=columns[1].get, reverse=True)
    shown = ["logits", "boxes", "loss"] + [name for name in order if name.startswith("grad.")][:WORST]
    print(f"{'':62s}{'ours -':>10s}{'ours -':>10s}{'official -':>12s}\n{'worst difference / root mean square':62s}"
          f"{'official':>10s}{'float64':>10s}{'float64':>12s}")
    for name in shown:
        print(f"{name:62s}{columns[0][name]:10.1e}{columns[1][name]:10.1e}{columns[2][name]:12.1e}")
    gradients = [name for name in order if name.startswith("grad.")]
    for title, summary in ("worst", max), ("median", np.median):
        of_all = [summary([column[name] for name in gradients]) for column in columns]
        print(f"{f'{title} of all {len(gradients)} gradients':62s}{of_all[0]:10.1e}{of_all[1]:10.1e}{of_all[2]:12.1e}")
    joined = [np.concatenate([x[name].ravel() for name in gradients]) for x in (ours, single, exact)]
    whole = norm_error(joined[0], joined[1]), norm_error(joined[0], joined[2]), norm_error(joined[1], joined[2])
    print(f"{'all as one vector, of its norm':62s}{whole[0]:10.1e}{whole[1]:10.1e}{whole[2]:12.1e}")
    return columns


def size(text):
    return tuple(map(int, text.split("x")))


def main():
    args = ARGUMENTS
    torch.manual_seed(args.seed)
    warnings.filterwarnings("ignore")
    work = args.work or tempfile.mkdtemp()
    pth, weights, given, out = (os.path.join(work, name) for name in
                                ("smca.pth", "smca.safetensors", "in.safetensors", "out.safetensors"))
    model, criterion = official_smca.load(args.checkout, dropout=0)
    randomise(model)
    inputs = images_of([size(text) for text in args.images.split(",")])
    if not args.as_drawn:
        move_biases(model, inputs)
    draw_clear_targets(model, criterion, inputs)
    torch.save({"model": model.float().state_dict()}, pth)
    safetensors_io.write(given, inputs, {})
    subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "convert_weights.py"), pth, weights], check=True)
    subprocess.run([os.path.join(ROOT, "build", "cpu", "train_detr"), "--num-classes", str(CLASSES), "--init", weights,
                    "--parity", given, "--out", out], check=True)
    ours = safetensors_io.read(out)[0]
    single, exact = (official(model, criterion, inputs, dtype) for dtype in (torch.float32, torch.float64))
    columns = report(ours, single, exact)
    print(f"loss {ours['loss'][0]:.6f}, official {single['loss'][0]:.6f}, in float64 {exact['loss'][0]:.6f}")
    worst = max(columns[1].values())
    if args.as_drawn and worst > TOLERANCE:
        print("the official code in float64, units switched until its gradients are ours:", flush=True)
        columns = report(ours, single, explain(model, criterion, inputs, ours))
        worst = max(columns[1].values())
    print(f"worst, against float64: {worst:.1e}, {TOLERANCE:.0e} allowed: {'ok' if worst <= TOLERANCE else 'FAILED'}")
    sys.exit(not worst <= TOLERANCE)


if __name__ == "__main__":
    main()
