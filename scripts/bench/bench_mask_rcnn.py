"""Seconds of a training step of torchvision's Mask R-CNN with ResNet-50, for comparison with

    build/cpu/train_mask_rcnn --config configs/coco/mask-rcnn-resnet-50.ini --image-size 800x1312 --batch-size 1 --bench

    python3 scripts/bench/bench_mask_rcnn.py [--image-size 800x1312] [--steps 3] [--threads 2] [--compile]

The same work: one image with seven objects, frozen batch norms, the last three stages trained, 256 anchors and 512
regions sampled, forward, backward and AdamW. The fastest of the steps counts, after one that warms up. --compile puts
backbone and pyramid through torch.compile, since the heads change their shapes with every image."""

import argparse
import time


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image-size", default="800x1312", help="height and width, multiples of 32")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true")
    return parser.parse_args()


def main(options):
    import torch
    from torchvision.models.detection import maskrcnn_resnet50_fpn
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    h, w = map(int, options.image_size.split("x"))
    model = maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=81,
                                  min_size=min(h, w), max_size=max(h, w)).train()
    for name, weight in model.backbone.body.named_parameters():  # this and the norms as with pretrained weights
        if name.startswith(("conv1", "layer1")):
            weight.requires_grad = False
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()
            module.weight.requires_grad = module.bias.requires_grad = False
    for name, x in model.backbone.body.named_parameters():
        if name.startswith(("conv1", "layer1")):
            x.requires_grad = False
    if options.compile:
        model.backbone = torch.compile(model.backbone)
    optimizer = torch.optim.AdamW([x for x in model.parameters() if x.requires_grad], lr=1e-4, weight_decay=0.05)
    corner = torch.rand(7, 2) * torch.tensor([w * 0.5, h * 0.5])
    boxes = torch.cat([corner, corner + torch.tensor([w, h]) * (0.1 + 0.3 * torch.rand(7, 2))], 1)
    masks = torch.zeros(7, h, w, dtype=torch.uint8)
    for mask, box in zip(masks, boxes.int()):
        mask[box[1]:box[3], box[0]:box[2]] = 1
    target = [{"boxes": boxes, "labels": torch.arange(1, 8), "masks": masks}]
    images, fastest = [torch.rand(3, h, w)], float("inf")
    for step in range(options.steps + 1):
        began = time.perf_counter()
        optimizer.zero_grad()
        sum(model(images, target).values()).backward()
        optimizer.step()
        seconds = time.perf_counter() - began
        fastest = min(fastest, seconds if step else fastest)
    print(f"torchvision{', compiled' if options.compile else ''}: {fastest:.3f} s a step of {h} x {w}, "
          f"{options.threads} threads")


if __name__ == "__main__":
    main(arguments())
