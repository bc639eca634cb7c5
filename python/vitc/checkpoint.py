"""Checkpoints of train_vit and train_ar: safetensors with the settings, class names and normalisation as metadata."""

import dataclasses

from . import config, density, files
from .model import Vit


def density_config(settings, tensors):
    """The sizes of images follow from the tables of their positions or, where these are of embedding attention, from the
    setting image_side."""
    image, shapes = (), {name.removeprefix("pos_embed."): len(x) for name, x in tensors.items() if "pos_embed." in name}
    tokens, side, starts = int(settings["tokens"]), int(settings["image_side"]), "start" in tensors
    if "channel" in shapes:
        image = tuple(shapes[name] for name in ("row", "column", "channel"))
    elif starts and settings["kind"] != "audio" and side:
        image = (side, side, 1 if settings["grey"] == "true" else 3)
    stride = int(settings["stride"]) or (image[1] * image[2] if image else min(128, tokens))
    if starts and not image and (shapes["row"], shapes["column"]) != (-(-tokens // stride), stride):
        raise ValueError("its images' size is not in it: train with image_side")
    settings = settings | {"stride": str(stride)}
    return dataclasses.replace(config.read(density.Config, settings), image=image, starts=starts)


def load(path):
    """The model of a checkpoint with its weights, ready to predict: a Vit with class_names, mean, std and img_size, or a
    Density."""
    tensors, metadata = files.read(path)
    if "vit.c.config" not in metadata:
        raise ValueError("no settings in it, so this is no checkpoint of train_vit or train_ar")
    settings = config.parse(metadata["vit.c.config"])
    heads = [name for name in ("head.weight", "head.fc.weight", "head.fc2.weight") if name in tensors]
    if "token_embed.weight" in tensors:
        model = density.Density(density_config(settings, tensors))
    elif heads:
        model = Vit(config.read(config.Config, settings | {"num_classes": str(len(tensors[heads[0]]))}))
        names = metadata.get("vit.c.classes", "")
        model.class_names = names.removesuffix("\n").split("\n") if names else []
        numbers = tuple(map(float, metadata.get("vit.c.normalisation", "0 0 0 1 1 1").split()))
        model.mean, model.std = numbers[:3], numbers[3:]
    else:
        raise ValueError("not a classifier or a density model, which is all that this package has")
    model.metadata = {name: text for name, text in metadata.items() if name.startswith("vit.c.")}
    model.load_state_dict(tensors)
    return model.eval()


def save(model, path):
    """A file that load() reads and whose weights train_vit and train_ar take with --init.  The model is one that load()
    has returned, whatever its weights have become."""
    files.write(path, {name: x if x.is_floating_point() else x.float() for name, x in model.state_dict().items()},
                model.metadata)
