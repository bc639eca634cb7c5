"""train_mask_rcnn against torchvision's MaskRCNN: one forward and backward pass with weights of the same names.

    python3 tests/reference/check_mask_rcnn.py [--seed 0] [--images 96x128] [--small] [--as-drawn] [--fixture FILE]

The model is torchvision's, in float64: ResNet-50 with frozen batch norms and 81 classes, or with --small a ResNet of
width 4, a pyramid of 8 and 5 classes. What the specification decides otherwise than torchvision is put in: aligned
RoIAlign with as many samples as there are cells, L1 instead of smooth L1, anchors that are not rounded, the assignment
and the mask targets of mmdetection, and a mean over each image's own sample. So that no tie and no random draw decides,
proposals are given and samples are larger than the candidates.

Losses, the maps of the pyramid, class logits and the gradient of every trained tensor, ours in float32, must be within
1e-4 of torchvision's: worst |difference| over the root mean square of the tensor. Gradients jump where the input of a
ReLU changes sign, so biases are first moved until no such input is near 0: at full width and --images 96x128 145 times,
by 3e-4 at most, and then all our tensors are within 5.1e-5 (torchvision's float32: two biases above 1e-4, at 1.2e-4).

With --as-drawn no bias is moved, and ours may also be three times as far off as torchvision's own float32. Columns are
ours, torchvision's float32, and its float32 with every ReLU on the side that float64 takes, all against float64. With
--as-drawn --images 128x160 they have 27, 53 and 2 of 96 tensors above 1e-4, and at worst 4.3e-3, 4.5e-3 and 2.7e-4: in
torchvision's float32 4 of 16.9 million ReLUs are on the other side. Which units those are is chance and differs between
programs, so one tensor there (conv5_mask.weight: 5.7e-4, and 2.7e-5 in torchvision's float32) fails even so.

--fixture writes inputs and results
to a file for tests/programs/test_mask_rcnn_cli.sh and compares nothing. Needs PyTorch 2 and torchvision;
build/cpu/train_mask_rcnn."""

import argparse
import itertools
import os
import subprocess
import sys
import tempfile


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--images", help="height and width of each image of the batch, as 128x160,96x152")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--as-drawn", action="store_true", help="leave the inputs of ReLUs near 0 where they are")
    parser.add_argument("--fixture")
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import numpy as np
import torch
import torchvision
from torchvision.models import resnet
from torchvision.models.detection import faster_rcnn, image_list, mask_rcnn, roi_heads
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.ops import FrozenBatchNorm2d, box_iou, poolers, roi_align
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

import safetensors_io
from compare_parity import norm_error, relative_error

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
TOLERANCE, STRIDES, PROPOSALS, MARGIN = 1e-4, (4, 8, 16, 32, 64), 60, 1e-7
LARGE = dict(blocks=(3, 4, 6, 3), width=64, channels=256, box=1024, mask=256, classes=81, near=1e-4, images="96x128")
SMALL = dict(blocks=(1, 1, 1, 1), width=4, channels=8, box=16, mask=8, classes=5, near=2e-5, images="128x160,96x152")


def flags(s):
    return ["--backbone-blocks", ",".join(map(str, s["blocks"])), "--backbone-width", s["width"], "--fpn-width",
            s["channels"], "--box-width", s["box"], "--mask-width", s["mask"], "--num-classes", s["classes"] - 1,
            "--anchor-sample", 65536, "--region-sample", 512]


# == The model ========================================================================================================


class ResNet(resnet.ResNet):
    """torchvision's, of any width."""

    def __init__(self, blocks, width):
        torch.nn.Module.__init__(self)
        self._norm_layer, self.inplanes, self.dilation, self.groups, self.base_width = FrozenBatchNorm2d, width, 1, 1, 64
        self.conv1 = torch.nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1, self.relu = FrozenBatchNorm2d(width), torch.nn.ReLU()
        self.maxpool = torch.nn.MaxPool2d(3, 2, 1)
        for i, count in enumerate(blocks):
            setattr(self, f"layer{i + 1}", self._make_layer(resnet.Bottleneck, width << i, count, 1 + (i > 0)))


def build(s):
    body = ResNet(s["blocks"], s["width"])
    backbone = BackboneWithFPN(body, {f"layer{i}": str(i - 1) for i in range(1, 5)},
                               [4 * s["width"] << i for i in range(4)], s["channels"], LastLevelMaxPool())
    model = mask_rcnn.MaskRCNN(
        backbone, box_head=faster_rcnn.TwoMLPHead(49 * s["channels"], s["box"]),
        box_predictor=faster_rcnn.FastRCNNPredictor(s["box"], s["classes"]),
        mask_head=mask_rcnn.MaskRCNNHeads(s["channels"], (s["mask"],) * 4, 1),
        mask_predictor=mask_rcnn.MaskRCNNPredictor(s["mask"], s["mask"], s["classes"]))
    for name, x in model.named_parameters():
        if name.startswith(("backbone.body.conv1", "backbone.body.layer1")):
            x.requires_grad = False
    return model


def draw_weights(model):
    """Every tensor so large that it matters: batch norms that are no identity, biases that are not 0."""
    with torch.no_grad():
        for name, x in list(model.named_buffers()) + list(model.named_parameters()):
            if name.endswith("running_var"):
                x.uniform_(0.5, 1.5)
            elif ".bn" in name or ".downsample.1" in name:
                x.normal_(0, 0.1)
                if name.endswith(".weight"):
                    x.add_(0.3 if ".bn3." in name else 1)
            elif name.endswith(".bias"):
                x.normal_(0, 0.1)
            else:
                fan = x.shape[0] if "conv5_mask" in name else x[0].numel() * (2 if "fpn" in name else 1)
                x.normal_(0, (2 / fan) ** 0.5)


# == A batch ==========================================================================================================


def draw_box(anchors, w, h, random):
    """A box with one best anchor: sides that differ much from all anchors' would have many, since it lies within them."""
    while True:
        base, ratio = random.choice([32, 64]), random.choice([0.5, 1, 2])
        side = base * np.array([ratio ** -0.5, ratio ** 0.5]) + random.uniform(-1.5, 1.5, 2)
        if side[0] >= w or side[1] >= h:
            continue
        corner = random.uniform(0, np.array([w, h]) - side)
        box = np.concatenate([corner, corner + side])
        iou = box_iou(torch.from_numpy(box)[None], anchors)[0].sort(descending=True).values
        if iou[0] - iou[1] > 1e-4 and not (((iou - 0.3).abs() < 1e-5) | ((iou - 0.7).abs() < 1e-5)).any():
            return box


def draw_batch(sizes, classes, random):
    H, W = (int(np.ceil(x / 32)) * 32 for x in np.max(sizes, 0))
    images = random.standard_normal((len(sizes), 3, H, W)).astype(np.float16).astype(np.float32)
    batch = {"images": images, "sizes": np.array(sizes, np.int64)}
    counts, boxes, labels, runs, run_counts, proposals = [], [], [], [], [], []
    anchors = anchors_of(H, W)
    for b, (h, w) in enumerate(sizes):
        images[b, :, h:], images[b, :, :, w:] = 0, 0
        counts.append(3 + b)
        for _ in range(counts[-1]):
            box = draw_box(anchors, w, h, random)
            boxes.append(np.concatenate([(box[:2] + box[2:]) / 2, box[2:] - box[:2]]) / [w, h, w, h])
            labels.append(random.randint(1, classes))
            y, x = np.mgrid[:h, :w] + 0.5
            centre, half = (box[:2] + box[2:]) / 2, (box[2:] - box[:2]) / 2
            bitmap = ((x - centre[0]) / half[0]) ** 2 + ((y - centre[1]) / half[1]) ** 2 <= random.uniform(0.6, 1)
            flat = bitmap.T.ravel().astype(np.int8)
            edges = np.concatenate([[0], np.flatnonzero(np.diff(np.concatenate([[0], flat]))), [len(flat)]])
            runs.append(np.diff(edges).astype(np.int64))
            run_counts.append(len(runs[-1]))
            moved = box + random.normal(0, 5, (PROPOSALS // 6, 4))
            proposals.append(moved)
        proposals.append(random.uniform(0, [w, h, w, h], (PROPOSALS - counts[-1] * (PROPOSALS // 6), 4)))
    proposals = np.split(np.concatenate(proposals), len(sizes))
    for p, (h, w) in zip(proposals, sizes):
        p[:] = np.concatenate([np.minimum(p[:, :2], p[:, 2:]), np.maximum(p[:, :2], p[:, 2:])], 1)
        p[:] = np.clip(p, 0, [w, h, w, h])
        p[:, 2:] = np.maximum(p[:, 2:], p[:, :2] + 3)
    return batch | {"counts": np.array(counts, np.int64), "target_boxes": np.array(boxes, np.float32),
                    "labels": np.array(labels, np.int64), "mask_runs": np.concatenate(runs),
                    "mask_counts": np.array(run_counts, np.int64),
                    "proposals": np.concatenate(proposals).astype(np.float32),
                    "proposal_counts": np.array([len(p) for p in proposals], np.int64)}


def objects_of(batch, b, dtype):
    """The target of one image as torchvision takes it, and its proposals."""
    h, w = batch["sizes"][b]
    first = batch["counts"][:b].sum()
    mine = slice(first, first + batch["counts"][b])
    box = batch["target_boxes"][mine]
    corners = np.concatenate([box[:, :2] - box[:, 2:] / 2, box[:, :2] + box[:, 2:] / 2], 1)
    corners = corners * np.array([w, h, w, h], np.float32)
    starts = np.concatenate([[0], np.cumsum(batch["mask_counts"])])
    masks = [np.repeat(np.arange(starts[i + 1] - starts[i]) % 2, batch["mask_runs"][starts[i]:starts[i + 1]])
             .reshape(w, h).T for i in range(mine.start, mine.stop)]
    begin = batch["proposal_counts"][:b].sum()
    proposals = batch["proposals"][begin:begin + batch["proposal_counts"][b]]
    return {"boxes": torch.from_numpy(corners).to(dtype), "labels": torch.from_numpy(batch["labels"][mine]),
            "masks": torch.from_numpy(np.array(masks))}, torch.from_numpy(proposals).to(dtype)


# == What the specification decides ===================================================================================


def anchors_of(H, W):
    every = []
    for s in STRIDES:
        rows, columns = -(-H // s), -(-W // s)
        y, x, r = np.meshgrid(np.arange(rows) * s, np.arange(columns) * s, np.array([0.5, 1, 2]), indexing="ij")
        w, h = 8 * s / np.sqrt(r) / 2, 8 * s * np.sqrt(r) / 2
        every.append(np.stack([x - w, y - h, x + w, y + h], -1).reshape(-1, 4))
    return torch.from_numpy(np.concatenate(every))


def valid_anchors(H, W, h, w):
    every = []
    for s in STRIDES:
        rows, columns = -(-H // s), -(-W // s)
        own = [-(-(-(-side // 32) * 32) // s) for side in (h, w)]
        valid = (np.arange(rows)[:, None] < own[0]) & (np.arange(columns)[None, :] < own[1])
        every.append(np.repeat(valid.ravel(), 3))
    return torch.from_numpy(np.concatenate(every))


def assign(iou, negative, positive, least):
    """Section 3: -1 negative, -2 ignored, else the truth."""
    to = torch.full((iou.shape[1],), -2)
    best, index = iou.max(0)
    to[best < negative] = -1
    to[best >= positive] = index[best >= positive]
    for i, row in enumerate(iou):
        if row.max() >= least:
            to[row == row.max()] = i
    return to


class Tie(Exception):
    """A cell of a mask is exactly one half, and rounding decides about it."""


def mask_targets(masks, boxes, index, side):
    rois = torch.cat([index[:, None], boxes], 1).double()
    value = roi_align(masks[:, None].double(), rois, (side, side), 1.0, aligned=True)[:, 0]
    if ((value - 0.5).abs() < MARGIN).any():
        raise Tie
    return (value >= 0.5).to(boxes)


def replaced(model, batch, b, dtype):
    """Anchors, boxes and proposals are given in `dtype`; what is decided by them is decided in float64."""
    H, W = batch["images"].shape[2:]
    h, w = batch["sizes"][b]
    target, proposals = objects_of(batch, b, dtype)
    exact = objects_of(batch, b, torch.float64)[0]["boxes"]

    def anchor_targets(anchors, targets):
        valid = valid_anchors(H, W, h, w)
        iou = box_iou(exact, anchors_of(H, W))
        iou[:, ~valid] = -1
        to = assign(iou, 0.3, 0.7, 0.3)
        to[~valid] = -2
        labels = torch.where(to >= 0, 1.0, torch.where(to == -1, 0.0, -1.0))
        return [labels.to(dtype)], [targets[0]["boxes"][to.clamp(min=0)]]

    def region_targets(candidates, boxes, labels):
        count = len(candidates[0]) - len(boxes[0])  # the true boxes come last
        to = assign(box_iou(exact, candidates[0][:count].double()), 0.5, 0.5, 0.5)
        to = torch.cat([to, torch.arange(len(boxes[0]))])
        return [to.clamp(min=0)], [torch.where(to >= 0, labels[0][to.clamp(min=0)], 0)]

    model.rpn.anchor_generator.forward = lambda images, features: [anchors_of(H, W).to(dtype)]
    model.rpn.filter_proposals = lambda *_: ([proposals], None)
    model.rpn.assign_targets_to_anchors = anchor_targets
    model.roi_heads.assign_targets_to_proposals = region_targets
    for sampler in (model.rpn.fg_bg_sampler, model.roi_heads.fg_bg_sampler):
        sampler.batch_size_per_image, sampler.positive_fraction = 10 ** 6, 0.5
    return target, (int(h), int(w))


def put_in():
    poolers.roi_align = lambda x, rois, output_size, spatial_scale, sampling_ratio: roi_align(
        x, rois, output_size, spatial_scale, aligned=True)
    torch.nn.functional.smooth_l1_loss = lambda a, b, beta, reduction: torch.nn.functional.l1_loss(
        a, b, reduction=reduction)
    roi_heads.project_masks_on_boxes = mask_targets


def step(model, batch, dtype=torch.float64):
    """Losses, maps, class logits and gradients; each image by itself, so that means are over its own sample."""
    model.to(dtype).train()
    model.zero_grad()
    images, B = torch.from_numpy(batch["images"]).to(dtype), len(batch["sizes"])
    results, maps, logits = {}, [], []
    hook = model.roi_heads.box_predictor.register_forward_hook(lambda m, x, y: logits.append(y[0]))
    for b in range(B):
        target, size = replaced(model, batch, b, dtype)
        features = model.backbone(images[b:b + 1])
        proposals, losses = model.rpn(image_list.ImageList(images[b:b + 1], [size]), features, [target])
        losses |= model.roi_heads(features, proposals, [size], [target])[1]
        sum(losses.values()).div(B).backward()
        maps.append([x.permute(0, 2, 3, 1) for x in features.values()])
        for name, x in losses.items():
            results[name] = results.get(name, 0) + x.detach() / B
        count = batch["counts"][b]
        logits[b] = torch.cat([logits[b][-count:], logits[b][:-count]])  # ours has the true boxes first
    hook.remove()
    results["loss"] = sum(results.values())
    results |= {f"p{i + 2}": torch.cat(level) for i, level in enumerate(zip(*maps))}
    results["class_logits"] = torch.cat(logits)
    results |= {"grad." + name: x.grad for name, x in model.named_parameters() if x.requires_grad}
    return {name: x.detach().reshape(x.shape or (1,)).double().numpy() for name, x in results.items()}


def move_biases(model, batch, near):
    """Gradients jump where a ReLU's input changes sign, so biases are moved until none that has a gradient is so near
    to 0 that rounding could decide; several times, since levels and images share their weights."""
    last, plain, moves, before = [None], torch.nn.functional.relu, [], -1

    def visit(x, inplace=False):
        if not x.requires_grad:
            return x.clamp(min=0)
        bias, rows, shift = last[0].bias.data, x.detach().movedim(1, 0).flatten(1), torch.zeros_like(x)
        for c in (rows.abs().amin(1) < near).nonzero().view(-1):
            for step in itertools.count(2):
                moved = (bias[c] + (step // 2 * (-1) ** step) * near).float().double()
                if (rows[c] + (moved - bias[c])).abs().min() >= near:
                    break
            shift.movedim(1, 0)[c] = moved - bias[c]
            moves.append(abs(moved - bias[c]).item())
            bias[c] = moved
        return (x + shift).clamp(min=0)

    kinds = (FrozenBatchNorm2d, torch.nn.Conv2d, torch.nn.ConvTranspose2d, torch.nn.Linear)
    hooks = [m.register_forward_hook(lambda m, *_: last.__setitem__(0, m)) for m in model.modules()
             if isinstance(m, kinds) and m.bias is not None]
    torch.nn.functional.relu = visit
    while len(moves) > before:
        before = len(moves)
        step(model, batch)
    torch.nn.functional.relu = plain
    for hook in hooks:
        hook.remove()
    print(f"biases moved {len(moves)} times, by at most {max(moves):.1e}")


class Sides:
    """Within `with`, notes on which side of 0 the inputs of all ReLUs are, or with `given` takes those sides instead
    and counts how many inputs are on the other."""

    def __init__(self, given=None):
        self.given, self.noted, self.differing, self.units = given, [], 0, 0

    def __enter__(self):
        self.plain, torch.nn.functional.relu = torch.nn.functional.relu, self.relu
        return self

    def __exit__(self, *_):
        torch.nn.functional.relu = self.plain

    def relu(self, x, inplace=False):
        side = x.detach() > 0
        if self.given is not None:
            given = self.given[len(self.noted)]
            self.differing += (side != given).sum().item()
            side = given
        self.units += side.numel()
        self.noted.append(side)
        return torch.where(side, x, 0)


def draw_step(model, sizes, classes, random):
    while True:
        batch = draw_batch(sizes, classes, random)
        try:
            step(model, batch)
            return batch
        except Tie:
            pass


def run_ours(path, out, settings):
    command = [os.path.join(ROOT, "build", "cpu", "train_mask_rcnn"), *map(str, flags(settings)), "--parity", path,
               "--out", out]
    subprocess.run(command, check=True)
    return safetensors_io.read(out)[0]


def report(ours, single, sided, exact, as_drawn):
    """Prints a line a tensor; returns whether all are within their bound."""
    title = ("ours", "float32", "sides")
    print(f"{'':52s}{'worst difference / rms':>27s}   {'norm of difference / norm':>27s}")
    print(f"{'against torchvision in float64':52s}" + "   ".join("".join(f"{x:>9s}" for x in title) for _ in range(2)))
    failures, above, worst = 0, [0, 0, 0], [(0, "")] * 3
    for name, x in exact.items():
        runs = [run[name].reshape(x.shape) if name in run else np.full(x.shape, np.nan)
                for run in (ours, single, sided)]
        largest, norms = ([measure(run, x) for run in runs] for measure in (relative_error, norm_error))
        allowed = max(TOLERANCE, 3 * largest[1]) if as_drawn else TOLERANCE
        failed = not largest[0] <= allowed
        failures += failed
        above = [count + (not error <= TOLERANCE) for count, error in zip(above, largest)]
        worst = [max(pair, (error, name)) for pair, error in zip(worst, largest)]
        print(f"{name:52s}" + "   ".join("".join(f"{error:9.1e}" for error in errors) for errors in (largest, norms))
              + "  FAILED" * failed)
    for kind, count, (error, name) in zip(title, above, worst):
        print(f"{kind:8s} {count} of {len(exact)} tensors above {TOLERANCE:.0e}, the worst {error:.1e} ({name})")
    return not failures


def main(seed, images, small, as_drawn, fixture):
    settings = SMALL if small else LARGE
    sizes = [tuple(map(int, size.split("x"))) for size in (images or settings["images"]).split(",")]
    torch.manual_seed(seed)
    put_in()
    model = build(settings)
    draw_weights(model)
    batch = draw_step(model, sizes, settings["classes"], np.random.RandomState(seed))
    if not as_drawn:
        move_biases(model, batch, settings["near"])
    weights = {name: x.detach().float().numpy() for name, x in model.state_dict().items()}
    with Sides() as sides:
        want = step(model, batch)
    with tempfile.TemporaryDirectory() as folder:
        path = fixture or os.path.join(folder, "in.safetensors")
        extra = {"flags": " ".join(map(str, flags(settings)))}
        tensors = weights | batch
        if fixture:
            tensors["images"] = batch["images"].astype(np.float16)
            tensors |= {name: x.astype(np.float32) for name, x in want.items() if "loss" in name or "grad" in name}
        safetensors_io.write(path, tensors, extra)
        if fixture:
            return 0
        ours = run_ours(path, os.path.join(folder, "out.safetensors"), settings)
    single = step(model, batch, torch.float32)
    with Sides(sides.noted) as taken:
        sided = step(model, batch, torch.float32)
    fine = report(ours, single, sided, want, as_drawn)
    print(f"{taken.differing} of {taken.units} inputs of ReLUs have another sign in torchvision's float32")
    return not fine


if __name__ == "__main__":
    sys.exit(main(ARGUMENTS.seed, ARGUMENTS.images, ARGUMENTS.small, ARGUMENTS.as_drawn, ARGUMENTS.fixture))
