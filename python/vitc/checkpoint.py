"""Checkpoints of train_vit and train_ar: safetensors with the settings, class names and normalisation as metadata."""

import safetensors

from . import config, density
from .model import Vit


def load(path):
    """The model of a checkpoint with its weights, ready to predict: a Vit with class_names, mean, std and img_size, or a
    Density."""
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    if "vit.c.config" not in metadata:
        raise ValueError(f"{path}: no settings in it, so this is no checkpoint of train_vit or train_ar")
    settings = config.parse(metadata["vit.c.config"])
    if "token_embed.weight" in tensors:
        model = density.Density(density_config(settings, tensors))
    elif "patch_embed.proj.weight" in tensors or "tokenizer.conv_layers.0.0.weight" in tensors:
        classes = next(tensors[name] for name in ("head.weight", "head.fc.weight", "head.fc2.weight") if name in tensors)
        model = Vit(config.read(config.Config, settings | {"num_classes": str(len(classes))}))
        model.class_names = metadata.get("vit.c.classes", "").split("\n")
        numbers = tuple(map(float, metadata.get("vit.c.normalisation", "0 0 0 1 1 1").split()))
        model.mean, model.std = numbers[:3], numbers[3:]
    else:
        raise ValueError(f"{path}: not a classifier or a density model, which is all that this package has")
    model.load_state_dict(tensors)
    return model.eval()
