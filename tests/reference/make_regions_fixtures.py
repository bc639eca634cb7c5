"""Writes tests/fixtures/detection/regions.safetensors: what torchvision makes of random outputs of Mask R-CNN, from
logits to proposals and from class logits to detections, for tests/detection/test_regions.c.

    python3 tests/reference/make_regions_fixtures.py"""

import os
import sys

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

import torch
from torchvision.models.detection import _utils as det_utils
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork
from torchvision.models.detection.image_list import ImageList

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from safetensors_io import write

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "detection", "regions.safetensors")
H, W, OWN_H, OWN_W, CLASSES, REGIONS = 64, 96, 61, 90, 6, 60
STRIDES = [4, 8, 16, 32, 64]


def anchors_of(stride):
    rows, columns = -(-H // stride), -(-W // stride)
    boxes = []
    for i in range(rows):
        for j in range(columns):
            for ratio in (0.5, 1, 2):
                w, h = 4 * stride / ratio**0.5, 4 * stride * ratio**0.5  # halves of 8 strides
                boxes.append([j * stride - w, i * stride - h, j * stride + w, i * stride + h])
    return torch.tensor(boxes, dtype=torch.float64).float()


class Given(torch.nn.Module):
    """Stands in for the anchor generator and the head."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, *_):
        return self.value

    def num_anchors_per_location(self):
        return [3]


def main():
    torch.manual_seed(28)
    out, anchors, logits, deltas = {}, [], [], []
    for level, stride in enumerate(STRIDES):
        rows, columns = -(-H // stride), -(-W // stride)
        anchors.append(anchors_of(stride))
        logits.append(torch.randn(1, 3, rows, columns))
        deltas.append(torch.randn(1, 12, rows, columns) * 0.5)
        out[f"logits.{level}"] = logits[-1].permute(0, 2, 3, 1)[0].contiguous()
        out[f"deltas.{level}"] = deltas[-1].permute(0, 2, 3, 1)[0].contiguous()
    rpn = RegionProposalNetwork(Given([torch.cat(anchors)]), Given((logits, deltas)), 0.7, 0.3, 256, 0.5,
                                dict(training=50, testing=50), dict(training=70, testing=70), 0.7)
    rpn.min_size = 1e-9  # boxes whose side is 0 are dropped
    rpn.eval()
    proposals = rpn(ImageList(torch.zeros(1, 3, H, W), [(OWN_H, OWN_W)]), {"0": torch.zeros(1)})[0][0]
    out["anchors"] = torch.cat(anchors)
    out["proposals"] = proposals

    regions = torch.rand(REGIONS, 2) * torch.tensor([70.0, 40.0])
    regions = torch.cat([regions, regions + 4 + 16 * torch.rand(REGIONS, 2)], 1)
    regions[:20] = regions[:1] + torch.rand(20, 4)  # many that suppress each other
    class_logits, class_deltas = 2 * torch.randn(REGIONS, CLASSES), torch.randn(REGIONS, CLASSES * 4)
    heads = RoIHeads(None, None, None, 0.5, 0.5, 512, 0.25, None, 0.05, 0.5, 25)
    boxes, scores, labels = heads.postprocess_detections(class_logits, class_deltas, [regions], [(OWN_H, OWN_W)])
    out.update(regions=regions, class_logits=class_logits, class_deltas=class_deltas, boxes=boxes[0], scores=scores[0],
               labels=labels[0].float())
    print(len(proposals), "proposals,", len(boxes[0]), "detections")
    write(OUT, {k: v.detach().numpy() for k, v in out.items()})


if __name__ == "__main__":
    main()
