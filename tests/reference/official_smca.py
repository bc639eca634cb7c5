"""The official SMCA-DETR from one's own checkout of gaopengcuhk/SMCA-DETR, imported as it lies under a current PyTorch.

The checkout dates from PyTorch 1.6.  Nothing in it is edited; the obstacles are that torchvision's version,
read as a decimal, looks like an old one, and that the backbone's weights would be downloaded.  Needs torchvision and
SciPy.
"""

import os
import sys
import types

import torch

SETTINGS = dict(backbone="resnet50", dilation=False, masks=False, lr_backbone=1e-5, position_embedding="sine",
                enc_layers=6, dec_layers=6, dim_feedforward=2048, hidden_dim=256, nheads=8, pre_norm=False,
                num_queries=300, smooth=8,
                dynamic_scale="type3", aux_loss=True, set_cost_class=2, set_cost_bbox=5, set_cost_giou=2,
                bbox_loss_coef=5, giou_loss_coef=2, eos_coef=0.1, dataset_file="coco", device="cpu",
                frozen_weights=None)


def load(checkout, dropout=0.1):
    """(model, criterion) of the published single-scale setting, with random weights."""
    import torchvision
    if not os.path.isfile(os.path.join(checkout, "models", "attention_layer.py")):
        sys.exit(f"{checkout}: no checkout of SMCA-DETR: models/attention_layer.py is not there")
    sys.path.insert(0, os.path.abspath(checkout))
    version, torchvision.__version__ = torchvision.__version__, "0.9.0"
    try:
        import models.backbone
    finally:
        torchvision.__version__ = version
    models.backbone.is_main_process = lambda: False
    model, criterion, _ = models.build_model(types.SimpleNamespace(dropout=dropout, **SETTINGS))
    return model, criterion


def targets_of(sizes, counts, boxes, labels):
    """Of each image a dictionary: own height and width, boxes (cx, cy, w, h), labels."""
    return [{"size": torch.as_tensor(size), "boxes": box, "labels": label}
            for size, box, label in zip(sizes, boxes.split(list(counts)), labels.split(list(counts)))]


def predict(model, images, targets):
    """images [B,3,H,W], padded with zeros to the right of and below each image's own size."""
    from util.misc import NestedTensor
    padding = torch.ones(len(images), *images.shape[2:], dtype=torch.bool)
    for mask, target in zip(padding, targets):
        height, width = target["size"].tolist()
        mask[:height, :width] = False
    return model([NestedTensor(images, padding), targets])


def total_loss(criterion, outputs, targets):
    losses = criterion(outputs, targets)
    return sum(losses[name] * weight for name, weight in criterion.weight_dict.items())
