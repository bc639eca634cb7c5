"""Trains one small model with vit.c and with timm, with one recipe, and reports whether both learn the same.

    python scripts/bench/train_timm.py --data-dir datasets                     the next runs that are missing in docs/timm-learning.csv
    python scripts/bench/train_timm.py --report                                trains nothing, compares the existing rows

configs/cpu/timm-study.ini is the recipe for both.  For timm, the images come through timm.data.create_loader with
RandAugment, random erasing and Mixup, the model is timm's VisionTransformer, and optimizer, learning rate, drop path,
loss, clipping and the average of the weights are timm's own, combined as in its train.py; as in DeiT, images of the
model's size are cropped at random after padding.  For vit.c, train_vit (TRAIN_VIT, default build/cpu/train_vit) reads
the config.  Only this file is shared: each program draws its own initial weights, order of images and augmentations.

Models: `gap` is the config's own, without positions; `deit` has a class token and learned positions.  Every finished
run adds a line to --csv, and a run that has a line is not trained again. Interrupted runs of vit.c continue where they
stopped, those of timm after the last complete epoch. Top-1 is measured on the test images after the last epoch; no
choice depends on these images. The report calls two means the same if they differ by less than two standard errors of
their difference. Needs PyTorch, torchvision and timm.  One run has THREADS threads (OMP_NUM_THREADS, default 1).
"""

import argparse
import configparser
import csv
import datetime
import math
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CONFIG = os.path.join(ROOT, "configs", "cpu", "timm-study.ini")
MODELS = {"gap": {}, "deit": {"pool": "cls", "pos_embed": "learned"}}
COLUMNS = ("side", "model", "epochs", "images", "seed", "top1", "val_loss", "parameters", "seconds", "with", "date")
MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)  # CIFAR-100's


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="datasets", help="folder with cifar-100-binary (default datasets)")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["gap"])
    parser.add_argument("--sides", nargs="+", choices=("vit.c", "timm"), default=["vit.c", "timm"])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--train-limit", type=int, default=0, help="images to train on (default 0: all)")
    parser.add_argument("--csv", default=os.path.join(ROOT, "docs", "timm-learning.csv"))
    parser.add_argument("--work", default=os.path.join(ROOT, "build", "timm-learning"), help="folder of unfinished runs")
    parser.add_argument("--report", action="store_true", help="train nothing")
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before PyTorch is needed, so that --help and --report need none


# == Rows ==============================================================================================================


def rows_of(path):
    if not os.path.exists(path):
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def append(path, row):
    """Writes the whole file and renames it, so that a row is complete or missing."""
    everything = rows_of(path) + [row]
    with open(path + ".part", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(everything)
    os.replace(path + ".part", path)


def key(row):
    return tuple(str(row[name]) for name in ("side", "model", "epochs", "images", "seed"))


def compare(rows):
    """Lines of text, one for each pair of figures: the two means with their standard errors, and whether they agree."""
    lines = []
    for group in sorted({key(row)[1:4] for row in rows}):
        of = {side: [row for row in rows if key(row)[:4] == (side, *group)] for side in ("vit.c", "timm")}
        for column, name in (("top1", "top-1"), ("val_loss", "loss")):
            text, means, errors = [], [], []
            for side, runs in of.items():
                values = [float(row[column]) for row in runs]
                if len(values) > 1:
                    means.append(statistics.mean(values))
                    errors.append(statistics.stdev(values) / math.sqrt(len(values)))
                    text.append(f"{side} {means[-1]:.3f} +- {errors[-1]:.3f} ({len(values)} seeds)")
                else:
                    text.append(f"{side} {values[0]:.3f} (1 seed)" if values else f"{side}: none")
            verdict = "too few seeds to decide"
            if len(means) == 2:
                difference, error = means[0] - means[1], math.hypot(*errors)
                verdict = f"difference {difference:+.3f} +- {error:.3f}: " \
                          f"{'the same' if abs(difference) <= 2 * error else 'not the same'}"
            lines.append(f"{group[0]}, {group[1]} epochs of {group[2]} images, {name}: {', '.join(text)}; {verdict}")
    return lines


# == vit.c =============================================================================================================


def train_vit(s, model, epochs, limit, seed, folder):
    """Top-1 in percent, loss and parameters of train_vit; --resume continues with the same bits."""
    program = os.environ.get("TRAIN_VIT", os.path.join(ROOT, "build", "cpu", "train_vit"))
    if os.path.exists(os.path.join(folder, "state.safetensors")):
        command = [program, "--resume", folder]
    else:
        command = [program, "--config", CONFIG, "--data-dir", s.data_dir, "--epochs", str(epochs), "--seed", str(seed),
                   "--train-limit", str(limit), "--run-dir", folder]
        for name, value in MODELS[model].items():
            command += ["--" + name.replace("_", "-"), value]
    with open(folder + ".out", "a") as out:
        subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=True)
    with open(os.path.join(folder, "log.csv"), newline="") as file:
        last = [line for line in csv.DictReader(file) if line["top1"]][-1]
    with open(folder + ".out") as file:
        parameters = next(line for line in file if " parameters" in line).split(" parameters")[0].split()[-1]
    return float(last["top1"]), float(last["val_loss"]), int(parameters), "vit.c " + program_version(program)


def program_version(program):
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]


# == timm ==============================================================================================================


def recipe(model):
    config = configparser.ConfigParser()
    config.read(CONFIG)
    return {**{name: value for section in config.values() for name, value in section.items()}, **MODELS[model]}


def cifar100(path, limit):
    """Pillow images with their fine labels, from a binary file of CIFAR-100."""
    import numpy
    from PIL import Image
    records = numpy.fromfile(path, numpy.uint8).reshape(-1, 3074)[:limit or None]
    return [(Image.fromarray(record[2:].reshape(3, 32, 32).transpose(1, 2, 0)), int(record[1])) for record in records]


def timm_model(r):
    from timm.models.vision_transformer import VisionTransformer
    learned = r["pos_embed"] == "learned"
    cls = r["pool"] == "cls"
    return VisionTransformer(
        img_size=int(r["img_size"]), patch_size=int(r["patch_size"]), num_classes=100, embed_dim=int(r["dim"]),
        depth=int(r["depth"]), num_heads=int(r["heads"]), mlp_ratio=float(r["mlp_ratio"]), class_token=cls,
        global_pool="token" if cls else "avg", fc_norm=False, pos_embed="learn" if learned else "none",
        drop_path_rate=float(r["drop_path"]))


def timm_loaders(s, r, limit):
    import torch
    from timm.data import create_loader
    from torchvision import transforms

    class Images(torch.utils.data.Dataset):
        def __init__(self, name, limit):
            self.all, self.transform = cifar100(os.path.join(s.data_dir, "cifar-100-binary", name), limit), None

        def __len__(self):
            return len(self.all)

        def __getitem__(self, i):
            image, label = self.all[i]
            return self.transform(image), label

    common = dict(input_size=(3, int(r["img_size"]), int(r["img_size"])), mean=MEAN, std=STD, use_prefetcher=False,
                  num_workers=0, persistent_workers=False, device=torch.device("cpu"))
    train = create_loader(Images("train.bin", limit), batch_size=int(r["batch_size"]), is_training=True,
                          auto_augment=r["aa"], interpolation=r["train_interpolation"], color_jitter=0,
                          re_prob=float(r["reprob"]), re_mode=r["remode"], **common)
    test = create_loader(Images("test.bin", 0), batch_size=500, crop_pct=1.0, interpolation="bicubic", **common)
    crop = transforms.RandomCrop(int(r["img_size"]), padding=int(r["crop_padding"]))  # as DeiT's datasets.py
    train.dataset.transform.transforms[0] = crop
    return train, test


def allow_no_bits():
    """At its largest strength RandAugment keeps 0 bits of a pixel: black, but an error in Pillow 13."""
    from PIL import Image, ImageOps
    posterize = ImageOps.posterize
    ImageOps.posterize = lambda image, bits: posterize(image, bits) if bits else Image.new(image.mode, image.size)


def evaluate(model, loader):
    import torch
    model.eval()
    right = loss = count = 0
    with torch.inference_mode():
        for images, labels in loader:
            logits = model(images)
            loss += torch.nn.functional.cross_entropy(logits, labels, reduction="sum").item()
            right += (logits.argmax(1) == labels).sum().item()
            count += len(labels)
    return 100 * right / count, loss / count


def train_timm(s, model_name, epochs, limit, seed, folder):
    """The same for timm: the steps of its train.py."""
    import timm
    import torch
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.scheduler import create_scheduler_v2
    from timm.utils import ModelEmaV2, dispatch_clip_grad, random_seed
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    r = recipe(model_name)
    allow_no_bits()
    random_seed(seed)
    model = timm_model(r)
    train, test = timm_loaders(s, r, limit)
    mixup = Mixup(mixup_alpha=float(r["mixup"]), cutmix_alpha=float(r["cutmix"]), prob=float(r["mixup_prob"]),
                  switch_prob=float(r["mixup_switch_prob"]), mode="batch", label_smoothing=float(r["label_smoothing"]),
                  num_classes=100)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=float(r["lr"]), weight_decay=float(r["weight_decay"]))
    schedule, _ = create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=epochs, min_lr=float(r["lr_min"]), warmup_lr=float(r["lr_warmup"]),
        warmup_epochs=float(r["warmup_epochs"]), step_on_epochs=False, updates_per_epoch=len(train))
    average = ModelEmaV2(model, decay=float(r["ema_decay"]))
    loss_of = SoftTargetCrossEntropy()
    state, first = folder + ".pt", 0
    if os.path.exists(state):
        kept = torch.load(state, weights_only=False)
        for part, values in zip((model, average, optimizer), kept["parts"]):
            part.load_state_dict(values)
        first = kept["epochs"]
        random_seed(seed + 1000 * first)  # new random numbers instead of the same ones again
    for epoch in range(first, epochs):
        model.train()
        schedule.step_update(epoch * len(train))
        for step, (images, labels) in enumerate(train, 1):
            images, targets = mixup(images, labels)
            loss = loss_of(model(images), targets)
            loss.backward()
            dispatch_clip_grad(model.parameters(), float(r["clip_grad"]), mode="norm")
            optimizer.step()
            optimizer.zero_grad()
            average.update(model)
            schedule.step_update(epoch * len(train) + step)
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}", flush=True)
        torch.save({"epochs": epoch + 1, "parts": [part.state_dict() for part in (model, average, optimizer)]},
                   state + ".part")
        os.replace(state + ".part", state)
    top1, loss = evaluate(average.module, test)
    return top1, loss, sum(p.numel() for p in model.parameters()), f"timm {timm.__version__} torch {torch.__version__}"


# == Runs ==============================================================================================================


def main():
    s = ARGUMENTS
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.makedirs(s.work, exist_ok=True)
    wanted = [(side, model, s.epochs, s.train_limit or 50000, seed)
              for model in s.models for seed in s.seeds for side in s.sides]
    for side, model, epochs, images, seed in [] if s.report else wanted:
        row = {"side": side, "model": model, "epochs": epochs, "images": images, "seed": seed}
        if key(row) in map(key, rows_of(s.csv)):
            continue
        folder = os.path.join(s.work, "-".join(key(row)))
        start = time.time()
        train = train_vit if side == "vit.c" else train_timm
        top1, loss, parameters, using = train(s, model, epochs, s.train_limit, seed, folder)
        append(s.csv, {**row, "top1": f"{top1:.3f}", "val_loss": f"{loss:.6f}", "parameters": parameters,
                       "seconds": round(time.time() - start), "with": using, "date": datetime.date.today().isoformat()})
        print(f"{' '.join(key(row))}: {top1:.2f} %, loss {loss:.4f}", flush=True)
    print("\n".join(compare(rows_of(s.csv))))


if __name__ == "__main__":
    try:
        main()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"train_timm.py: {error}")
