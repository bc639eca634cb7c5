#!/usr/bin/env python3
"""Prints tables of the papers with, for each row, the paper's result, the reproduced one, and the difference.

    python3 scripts/tables.py runs/paper                     every table, with the runs in that folder
    python3 scripts/tables.py --table ripple-2 runs/a runs/b one table
    python3 scripts/tables.py --table lisa-4 runs/block.csv  with the measurements of scripts/bench/bench_block.sh
    python3 scripts/tables.py --rows ripple-2                the runs for scripts/reproduce.sh: name, the run whose
                                                            weights it starts from or -, program, arguments
    python3 scripts/tables.py --hours                        hours and memory that training takes, estimated (hours.py)

The name of a run's folder assigns it to a row: `cifar100-ripple`, or `cifar100-ripple-seed3`; several seeds become a
mean and its standard error.  Accuracy is that of the last epoch in log.csv, or the best of the log for papers with the
best epoch; an unfinished run is marked with its epoch. Bits per byte are those of the best weights on the test split,
from test.txt, which scripts/reproduce.sh writes; of a run without one, the least of the validation split in log.csv.
ImageNet ReaL's top-1 is from a test.txt that the user writes: `train_vit --init RUN/best.safetensors --eval
--real-labels real.json >RUN/test.txt`. Parameters and multiply-adds come from `train_vit --describe`, speeds and memory
from bench.json in the run's folder, which scripts/reproduce.sh --bench writes; seconds an image are those of a
detector's last evaluation.  The papers' results are in docs/paper_tables.csv, where the metrics `note` and `source` are
text: a remark on a row, and the source of its numbers if that is not a table named here.  A row without a run shows
only those. Needs only Python.
"""

import argparse
import csv
import json
import math
import os
import re
import shlex
import sys

import hours

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The last word, as a launcher may come first: TRAIN_VIT="mpirun -np 8 build/cuda/train_vit".
PROGRAMS = {name: shlex.split(os.environ.get(name.upper()) or os.path.join(ROOT, "build", "cpu", name))[-1]
            for name in ("train_vit", "train_detr", "train_mask_rcnn", "train_semantic_fpn", "train_ar")}


class Row:
    """One row: the paper's name for it, and the run here: a program, a config, additional settings, the run from whose
    weights it starts, and the number of views of a sample whose multiply-adds the paper sums."""

    def __init__(self, paper, config, *arguments, run=None, after=None, program="train_vit", views=1):
        self.paper, self.config, self.arguments, self.after = paper, config, list(arguments), after
        self.program, self.views = program, views
        self.run = run or config.replace("/", "-")


def imagenet(*names):
    return [Row(paper, "imagenet/" + config) for paper, config in names]


def cifar(*names):
    return [Row(paper, "cifar100/" + config) for paper, config in names]


def compact(classes):
    """Rows of configs/compact by the paper's names of the models."""
    return [Row(paper, f"compact/{config}-cifar{classes}") for paper, config in (
        ("CCT-2/3x2", "cct-2-3x2"), ("CCT-4/3x2", "cct-4-3x2"), ("CCT-6/3x1", "cct-6-3x1"), ("CCT-6/3x2", "cct-6-3x2"),
        ("CCT-7/3x1", "cct-7-3x1"), ("CCT-7/3x2", "cct-7-3x2"), ("CVT-7/4", "cvt-7-4"), ("ViT-Lite-7/4", "vit-lite-7-4"))]


def lisanet_i(*names):
    """(the paper's row, the suffix of configs/imagenet/lisanet-i-)"""
    return [Row(paper, "imagenet/lisanet-i" + (name and "-" + name)) for paper, name in names]


def video(*names):
    return [Row(paper, "video/" + config) for paper, config in names]


def coco(*names):
    return [Row(paper, "coco/" + config, program="train_detr") for paper, config in names]


def dense(program, prefix, size, *names):
    """Rows whose multiply-adds are those of an image of that size; each starts from the classifier of that name."""
    return [Row(paper, f"{prefix}-{config}", "--image-size", size, run=f"{prefix}-{config}".replace("/", "-"),
                after="imagenet-" + config if config in CLASSIFIERS else None, program=program)
            for paper, config in names]


def density(*names):
    return [Row(paper, "ar/" + config, program="train_ar") for paper, config in names]


def block(operator, side):
    """One block on side x side tokens, where convattn has 14 x 14 keys."""
    stride = ["--kv-stride", str(side // 14)] if operator == "convattn" and side > 14 else []
    return Row(f"{operator} {side}x{side}", "imagenet/block", "--attn", operator, "--img-size", str(side), *stride,
               run=f"block-{operator}-{side}")


def study(name, *arguments, config="study"):
    return Row(name, "cpu/" + config, *arguments, run=f"{config}-{name}")


# The classifiers of the dense models' backbones that have their own row.
CLASSIFIERS = {"lisanet-s", "hylisanet-s", "pvt-small", "swin-t", "cswin-t"}

# name: (title, the paper's table in docs/paper_tables.csv or None, rows)
TABLES = {
    "ripple-1": ("Ripple attention, Table 1: ImageNet-1k", "ripple,1 imagenet1k", imagenet(
        ("deit", "deit"), ("convit", "convit"), ("deit-la", "deit-la"), ("deit-la+sincspe", "deit-la-sincspe"),
        ("deit-la+convspe", "deit-la-convspe"), ("deit-la+rope", "deit-la-rope"), ("permuteformer", "permuteformer"),
        ("ripple", "ripple"))),
    "ripple-2": ("Ripple attention, Table 2: CIFAR-100", "ripple,2 cifar100", cifar(
        ("deit-la", "deit-la"), ("deit", "deit"), ("convit", "convit"), ("ripple", "ripple"))),
    "ripple-2-no-ape": ("Ripple attention, Table 2: CIFAR-100 without position embedding",
                        "ripple,2 cifar100 no-ape", cifar(
                            ("deit-la", "deit-la-no-ape"), ("deit", "deit-no-ape"), ("convit", "convit-no-ape"),
                            ("ripple", "ripple-no-ape"))),
    "ripple-3": ("Ripple attention, Table 3: COCO, 50 epochs", "ripple,3 coco 50ep", coco(
        ("smca", "smca"), ("smca-la", "smca-la"), ("smca-ripple", "smca-ripple"))),
    "ripple-3-108": ("Ripple attention, Table 3: COCO, 108 epochs", "ripple,3 coco 108ep", coco(
        ("smca", "smca-108"), ("smca-la", "smca-la-108"), ("smca-ripple", "smca-ripple-108"))),
    "ripple-4": ("Ripple attention, Table 4: the rippling process, CIFAR-100", "ripple,4 cifar100 rippling", cifar(
        ("ripple rmax=2", "ripple-rmax-2"), ("ripple rmax=4", "ripple"), ("ripple rmax=8", "ripple-rmax-8"),
        ("ripple rmax=16", "ripple-rmax-16"), ("ripple-fixed", "ripple-fixed"), ("ripple-log", "ripple-log"),
        ("ripple-truncated", "ripple-truncated"), ("ripple-softmax-weights", "ripple-softmax-weights"),
        ("deit-la", "deit-la"))),
    "ripple-6": ("Ripple attention, Table 6: feature maps, ImageNet-1k",
                 "ripple,6 imagenet1k feature maps (deit-la)", imagenet(
                     ("rfa", "deit-la-rfa"), ("performer", "deit-la-performer"), ("dpfp", "deit-la-dpfp"),
                     ("t2r", "deit-la-t2r"), ("ours", "deit-la"), ("ours random-w1", "deit-la-random-w1"),
                     ("ours no-fc", "deit-la-no-fc"))),
    "ripple-7": ("Ripple attention, Table 7: number of ripple layers, ImageNet-1k",
                 "ripple,7 imagenet1k ripple layers", imagenet(
                     ("0", "deit-la"), ("3", "ripple-layers-3"), ("6", "ripple-layers-6"), ("9", "ripple"),
                     ("12", "ripple-layers-12"))),
    "ripple-8": ("Ripple attention, Table 8: equal speed, CIFAR-100", "ripple,8 cifar100 equal speed", cifar(
        ("deit-la 4-layer", "deit-la-4-layers"), ("deit-la", "deit-la"), ("ripple 4-layer", "ripple-4-layers"),
        ("ripple", "ripple"))),
    "lisa-3a": ("LiSA, Table 3(a): operators, ImageNet-1k", "lisa,3a operators imagenet1k 150ep", lisanet_i(
        ("softmax", "softmax"), ("softmax+rpe", "softmax-rpe"), ("softmax+rpe wider", "softmax-rpe-wide"),
        ("dwconv7", "dwconv7"), ("gf", "gf"), ("gf wider", "gf-wide"), ("lambda", "lambda"), ("convattn", "convattn"),
        ("convattn wider", "convattn-wide"), ("inception wider", "inception"), ("rsa", "rsa"), ("lisa", ""))),
    "lisa-3b": ("LiSA, Table 3(b): its components, ImageNet-1k", "lisa,3b components imagenet1k", lisanet_i(
        ("softmax+h rpes", "softmax-rpe-heads"), ("sa9", "sa9"), ("sa9-heads", "sa9-heads"), ("sa10", "sa10"),
        ("sa11", "sa11"))),
    "lisa-3c": ("LiSA, Table 3(c): structural patterns, ImageNet-1k", "lisa,3c patterns", lisanet_i(
        ("D=1", "patterns-1"), ("D=4", "patterns-4"), ("D=8", "patterns-8"), ("D=16", ""))),
    "lisa-3d": ("LiSA, Table 3(d): local and global kernels, ImageNet-1k", "lisa,3d kernel size", lisanet_i(
        ("local3", "kernel-3"), ("local5", "kernel-5"), ("local7", "kernel-7"), ("global", ""))),
    "lisa-4": ("LiSA, Tables 4 (its caption: RTX A5000) and 12 (RTX A6000): one block, batch 32, measured by "
               "scripts/bench/bench_block.sh", "lisa,4/12 block b32 M192", [
                   block(operator, side) for operator in ("softmax", "convattn", "lisa")
                   for side in (7, 14, 28, 56, 84)]),
    "lisa-5": ("LiSA, Table 5: hierarchical models, ImageNet-1k", "lisa,5 imagenet1k 300ep", imagenet(
        ("LiSANet-S", "lisanet-s"), ("HyLiSANet-S", "hylisanet-s"), ("LiSANet-B", "lisanet-b"),
        ("HyLiSANet-B", "hylisanet-b"), ("LiSANet-S, linear classifier", "lisanet-s-linear"),
        ("HyLiSANet-S, linear classifier", "hylisanet-s-linear"), ("LiSANet-B, linear classifier", "lisanet-b-linear"),
        ("HyLiSANet-B, linear classifier", "hylisanet-b-linear"))),
    "lisa-6": ("LiSA, Table 6: pre-trained on ImageNet-21K, fine-tuned on ImageNet-1k", "lisa,6 imagenet21k pretrained", [
        Row("HyLiSANet-S, pre-training", "imagenet/hylisanet-s-21k"),
        Row("HyLiSANet-B, pre-training", "imagenet/hylisanet-b-21k"),
        Row("HyLiSANet-S", "imagenet/hylisanet-s-finetune", after="imagenet-hylisanet-s-21k"),
        Row("HyLiSANet-B", "imagenet/hylisanet-b-finetune", after="imagenet-hylisanet-b-21k")]),
    "lisa-7": ("LiSA, Table 7: batch 32 on an RTX 6000, ImageNet-1k", "lisa,7 throughput RTX6000 b32", imagenet(
        ("LiSANet-B", "lisanet-b"), ("HyLiSANet-B", "hylisanet-b"))),
    "lisa-13": ("LiSA, Table 13: a higher resolution, ImageNet-1k", "lisa,13 resolution LiSANet-I", lisanet_i(
        ("224", "")) + [Row("384", "imagenet/lisanet-i-384", after="imagenet-lisanet-i")]),
    "lisa-8": ("LiSA, Table 8: 16 x 1 x 4 views of clips, Kinetics-400", "lisa,8 kinetics400", [
        Row("HyLiSANet-S", "video/hylisanet-s", after="imagenet-hylisanet-s", views=4),
        Row("HyLiSANet-B", "video/hylisanet-b", after="imagenet-hylisanet-b", views=4)]),
    "lisa-9": ("LiSA, Table 9: Mask R-CNN on COCO, 1x; an image of 800 x 1280", "lisa,9 coco mask-rcnn 1x", dense(
        "train_mask_rcnn", "coco/mask-rcnn", "800x1280",
        ("ResNet-50", "resnet-50"), ("PVT-S", "pvt-small"), ("Swin-T", "swin-t"), ("CSwin-T", "cswin-t"),
        ("LiSANet-S", "lisanet-s"), ("HyLiSANet-S", "hylisanet-s"))),
    "lisa-10": ("LiSA, Table 10: Semantic FPN on ADE20K; an image of 512 x 2048", "lisa,10 ade20k semantic fpn", dense(
        "train_semantic_fpn", "ade20k/semantic-fpn", "512x2048",
        ("ResNet-50", "resnet-50"), ("PVT-S", "pvt-small"), ("Swin-T", "swin-t"), ("CSwin-T", "cswin-t"),
        ("LiSANet-S", "lisanet-s"), ("HyLiSANet-S", "hylisanet-s"))),
    "lisa-14": ("LiSA, Table 14: operators on clips, Something-Something V2", "lisa,14 something-something-v2", video(
        ("softmax", "lisanet-i-softmax"), ("softmax+rpe", "lisanet-i-softmax-rpe"),
        ("dwconv377", "lisanet-i-dwconv7"), ("gf", "lisanet-i-gf"), ("lambda", "lisanet-i-lambda"),
        ("rsa", "lisanet-i-rsa"), ("lisa", "lisanet-i"))),
    "hosts": ("Transformers with attention or patches of their own, ImageNet-1k", "hosts,imagenet1k", imagenet(
        ("deit_tiny", "deit-tiny-timm"), ("deit_small", "deit-small"), ("deit_base", "deit-base"),
        ("pvt_medium", "pvt-medium"), ("pvt_large", "pvt-large"), ("swin_b", "swin-b"), ("cswin_b", "cswin-b"),
        ("pvt_tiny", "pvt-tiny"), ("pvt_small", "pvt-small"),
        ("pvt_v2_b0", "pvt-v2-b0"), ("pvt_v2_b1", "pvt-v2-b1"), ("pvt_v2_b2", "pvt-v2-b2"),
        ("pvt_v2_b2_li", "pvt-v2-b2-li"), ("swin_t", "swin-t"), ("swin_s", "swin-s"),
        ("cswin_t", "cswin-t"), ("cswin_s", "cswin-s"),
        ("vit_tiny_r_s16_p8", "vit-tiny-r-s16"), ("vit_small_r26_s32", "vit-small-r26-s32"),
        ("vit_base_r50_s16", "vit-base-r50-s16"))),
    "flatten": ("FLatten Transformer: focused attention in its hosts, ImageNet-1k", "flatten,imagenet1k", imagenet(
        ("deit_tiny", "deit-tiny-timm"), ("flatten_deit_tiny", "flatten-deit-tiny"),
        ("pvt_tiny", "pvt-tiny"), ("flatten_pvt_tiny", "flatten-pvt-tiny"),
        ("pvt_small", "pvt-small"), ("flatten_pvt_small", "flatten-pvt-small"),
        ("pvt_v2_b0", "pvt-v2-b0"), ("flatten_pvt_v2_b0", "flatten-pvt-v2-b0"),
        ("pvt_v2_b1", "pvt-v2-b1"), ("flatten_pvt_v2_b1", "flatten-pvt-v2-b1"),
        ("pvt_v2_b2", "pvt-v2-b2"), ("flatten_pvt_v2_b2", "flatten-pvt-v2-b2"),
        ("swin_t", "swin-t"), ("flatten_swin_t", "flatten-swin-t"), ("swin_s", "swin-s"),
        ("flatten_swin_s", "flatten-swin-s"),
        ("cswin_t", "cswin-t"), ("flatten_cswin_t", "flatten-cswin-t"),
        ("cswin_s", "cswin-s"), ("flatten_cswin_s", "flatten-cswin-s"))),
    "compact-10": ("Compact Transformers: CIFAR-10, 200 epochs", "compact,cifar10", compact(10)),
    "compact-100": ("Compact Transformers: CIFAR-100, 200 epochs", "compact,cifar100", compact(100)),
    "sparse-1": ("Sparse Transformer, Table 1: density", "sparse-transformer,1 density", density(
        ("cifar10 strided 59M", "cifar10"), ("enwik8 fixed 95M", "enwik8"), ("imagenet64 strided 152M", "imagenet64"),
        ("music strided 152M", "music"))),
    "sparse-2": ("Sparse Transformer, Table 2: patterns", "sparse-transformer,2 patterns", density(
        ("enwik8 dense", "enwik8-dense"), ("enwik8 fixed", "enwik8"), ("enwik8 strided", "enwik8-strided"),
        ("cifar10 dense", "cifar10-dense"), ("cifar10 fixed", "cifar10-fixed"), ("cifar10 strided", "cifar10"))),
    "vit-1": ("Vision transformer, Table 1: sizes; vit.c's with the classifier of pre-training", "vit,1 models", imagenet(
        ("ViT-Base", "vit-b"), ("ViT-Large", "vit-l"), ("ViT-Huge", "vit-h"))),
    "vit-2": ("Vision transformer, Table 2: fine-tuned", "vit,2 fine-tuned", [
        Row("ViT-L/16 I21k: pre-training", "imagenet/vit-l-21k")] + [
        Row("ViT-L/16 I21k: " + data, "finetune/vit-l16-" + config, after="imagenet-vit-l-21k")
        for data, config in (("ImageNet", "imagenet"), ("CIFAR-10", "cifar10"), ("CIFAR-100", "cifar100"),
                             ("Oxford Pets", "pets"), ("Oxford Flowers", "flowers"))]),
    "density": ("Sparse Transformers at a small size: CIFAR-100's images", None, density(
        ("dense", "cifar100-dense"), ("fixed", "cifar100-fixed"), ("strided", "cifar100"))),
    "study": ("The claims at a small size: CIFAR-100, no position embedding (configs/cpu/study.ini)", None, [
        study("softmax", "--attn", "softmax"),
        study("linear", "--attn", "linear"),
        study("convit", "--attn", "convit", "--convit-local-layers", "5"),
        study("ripple", "--attn", "ripple"),
        study("ripple-rmax-2", "--attn", "ripple", "--r-max", "2"),
        study("ripple-fixed", "--attn", "ripple-fixed"),
        study("ripple-softmax-weights", "--attn", "ripple-softmax-weights"),
        study("ripple-truncated", "--attn", "ripple-truncated"),
        study("ripple-log", "--attn", "ripple-log"),
        study("ripple-all-layers", "--attn", "ripple", "--ripple-layers", "6"),
    ]),
    "hosts-study": ("Windows, the whole grid and focused attention in a small Swin (configs/cpu/hosts-study.ini)", None, [
        study("windows", config="hosts-study"),
        study("global", "--window", "16", config="hosts-study"),
        study("focused", "--attn", "focused", config="hosts-study"),
    ]),
}

# Configs that are measured and not trained.
MEASURED = {"imagenet/block"}

# Tables whose multiply-adds contain no transforms: LiSA's 4 and 12 count only a block's linear layers and norms, and
# this also reproduces the counts of its hierarchies (docs/notebook/against-papers.md); those of its Tables 3, 13 and 14
# contain transforms.
NO_TRANSFORMS = {"lisa-4", "lisa-5", "lisa-6", "lisa-7", "lisa-8"}

# The columns of a row: the paper's metric, the heading, the key in results, decimals.
SHOWN = [("FLOPs", "10^6 multiply-adds", "mmacs", 1), ("params_M", "params, M", "params", 2),
         ("gmacs", "GMACs", "gmacs", 2), ("top1", "top-1, %", "top1", 2), ("top5", "top-5, %", "top5", 2),
         ("best1", "best top-1, %", "best1", 2), ("real", "ReaL, %", "real", 2),
         ("AP", "AP", "ap", 1), ("APS", "AP small", "ap_small", 1), ("APM", "AP medium", "ap_medium", 1),
         ("APL", "AP large", "ap_large", 1), ("infer_s", "seconds an image", "infer_s", 3),
         *(("AP" + metric, "AP" + metric, key, 1) for metric, key in (
             ("b", "ap"), ("b50", "ap50"), ("b75", "ap75"), ("m", "mask_ap"), ("m50", "mask_ap50"),
             ("m75", "mask_ap75"))), ("mIoU", "mIoU, %", "miou", 1),
         ("speed", "images/s", "speed", 0), ("mem_GB", "memory, GB", "mem_GB", 1),
         ("mem_MB", "memory, MB", "mem_MB", 1), ("infer_ms", "inference, ms", "infer_ms", 1),
         ("train_ms", "training, ms", "train_ms", 1), ("bits_per_dim", "bits per byte", "bits", 2),
         ("time_per_iter", "seconds a step", "seconds", 2)]


def paper_numbers(table):
    """{row: {metric: value}} of one table; any img_s metric is the speed; `note` and `source` are text."""
    numbers = {}
    if not table:
        return numbers
    with open(os.path.join(ROOT, "docs", "paper_tables.csv"), newline="") as file:
        for source, name, row, metric, value in csv.reader(file):
            if f"{source},{name}" == table:
                metric = "speed" if metric.startswith("img_s") else "gmacs" if metric.lower() == "gflops" else metric
                text = metric in ("note", "source")
                scale = 1e6 if metric == "FLOPs" else 1
                numbers.setdefault(row, {})[metric] = value if text else float(value) / scale
    return numbers


def describe(row, cache={}):
    """params (of train_detr those that are trained, of the others all) and macs, with and without transforms, from
    --describe, or {} if the config or the program is missing, or if the program refuses."""
    path = os.path.join(ROOT, "configs", row.config + ".ini")
    key = (path, tuple(row.arguments))
    if key not in cache:
        cache[key] = {}
        found = hours.describe(row, PROGRAMS[row.program], path)
        if found:
            trained = "trainable_params" if row.program == "train_detr" else "params"
            params, macs = found.get(trained, found["params"]), found["macs"] * row.views
            bare = found.get("macs_without_transforms", found["macs"]) * row.views
            cache[key] = {"params": params / 1e6, "gmacs": macs / 1e9, "gmacs bare": bare / 1e9}
            if row.config in MEASURED:
                cache[key] = {"mmacs": macs / 1e6, "mmacs bare": bare / 1e6}
    return cache[key]


def read_run(folder):
    """Results by the keys of SHOWN from one run's folder, as far as it has them, and of a training 'epoch', 'epochs' and
    'seed'."""
    run = {}
    if os.path.exists(os.path.join(folder, "log.csv")):
        read_training(run, folder)
    bench = os.path.join(folder, "bench.json")
    if os.path.exists(bench):
        with open(bench) as file:
            speeds = json.load(file)
        if "infer_images_per_s" in speeds:
            run["speed"] = speeds["infer_images_per_s"]
        else:
            run["seconds"] = speeds["train_batch_seconds"]
        if "infer_bytes" in speeds and "params" in speeds:
            run["mem_GB"] = (speeds["infer_bytes"] + 4 * speeds["params"]) / 1e9
    return run


def read_training(run, folder):
    line = None
    with open(os.path.join(folder, "log.csv"), newline="") as file:
        for line in csv.DictReader(file):
            if line.get("top1"):
                run.update(top1=float(line["top1"]), top5=float(line["top5"]), epoch=int(line["epoch"]))
                run["best1"] = max(run["top1"], run.get("best1", 0))
            if line.get("ap"):
                parts = {key: float(line[key]) for key in line if re.match(r"(mask_)?ap", key) and line[key]}
                run.update({key: 100 * part for key, part in parts.items() if part >= 0}, epoch=int(line["epoch"]))
                run.update({"infer_s": float(line["infer_s"])} if line.get("infer_s") else {})
            if line.get("miou"):
                run.update(miou=100 * float(line["miou"]), epoch=int(line["epoch"]))
            if line.get("bits"):
                run.update(bits=min(float(line["bits"]), run.get("bits", math.inf)), epoch=int(line["epoch"]))
    test = os.path.join(folder, "test.txt")
    if os.path.exists(test):
        with open(test) as file:
            run.update({key: float(value) for key, value in re.findall(r"^(bits|real): ([0-9.]+)\b", file.read(), re.M)})
    with open(os.path.join(folder, "config.ini")) as file:
        settings = dict(re.findall(r"^(epochs|eval_every|seed) *= *(\d+)", file.read(), re.M))
        run["epochs"] = int(settings["epochs"]) if "epochs" in settings else None
        run["seed"] = settings.get("seed")
    if settings.get("eval_every") == "0" and line:
        run["epoch"] = int(line["epoch"])


def read_block(path):
    """{name of the row: [run]} of the file that scripts/bench/bench_block.sh writes; memory is that of inference."""
    with open(path, newline="") as file:
        return {f"block-{line['operator']}-{line['grid']}": [{
            "infer_ms": float(line["infer_ms"]), "train_ms": float(line["train_ms"]),
            "mem_MB": int(line["infer_bytes"]) / 1e6}] for line in csv.DictReader(file) if line["by"] == "vit.c"}


def find_runs(given_names):
    """{name without -seedN: [run]} of the folders and of the folders in them, and of bench_block.sh's files; of several
    runs with one seed, only the first."""
    runs = {}
    for given in given_names:
        if given.endswith(".csv"):
            runs.update(read_block(given))
            continue
        inside = [os.path.join(given, name) for name in sorted(os.listdir(given))]
        for folder in [given] + inside:
            run = read_run(folder)
            name = re.sub(r"-seed\d+$", "", os.path.basename(os.path.normpath(folder)))
            seeds = [other["seed"] for other in trained(runs.get(name, []))]
            if run and not (run.get("seed") and run["seed"] in seeds):
                runs.setdefault(name, []).append(run)
    return runs


def trained(found):
    """Those of the runs that are more than measured speeds."""
    return [run for run in found if "epochs" in run]


def mean_and_error(values):
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))


def ours(row, runs, key, bare):
    """(value or None, its standard error or None) of this project's result for the row; bare: multiply-adds without
    transforms."""
    if key in ("params", "gmacs", "mmacs"):
        return describe(row).get(key + " bare" if bare and key != "params" else key), None
    values = [run[key] for run in runs.get(row.run, []) if key in run]
    return mean_and_error(values) if values else (None, None)


def status(row, runs):
    found = trained(runs.get(row.run, []))
    if not found:
        return "" if row.config in MEASURED else "not run"
    going = [run for run in found if run.get("epoch") != run.get("epochs")]
    if going:
        return f"at epoch {going[0].get('epoch', 0)} of {going[0].get('epochs')}"
    return f"{len(found)} seeds" if len(found) > 1 else "one seed"


def cell(paper, value, error, decimals):
    """paper / measured (difference)"""
    left = f"{paper:.{decimals}f}" if paper is not None else "–"
    right = f"{value:.{decimals}f}" if value is not None else "–"
    if error is not None:
        right += f" ± {error:.{decimals}f}"
    if paper is None or value is None:
        return left, right, ""
    return left, right, f"{value - paper:+.{decimals}f}"


def print_table(name, runs):
    title, table, rows = TABLES[name]
    paper = paper_numbers(table)
    lost = sorted(set(paper) - {row.paper for row in rows})
    bare = name in NO_TRANSFORMS
    shown = [column for column in SHOWN
             if any(column[0] in numbers for numbers in paper.values())
             or column[0] != "best1" and any(ours(row, runs, column[2], bare)[0] is not None for row in rows)]
    print(f"## {title}  (`--table {name}`)\n")
    print("| model | " + " | ".join(f"{heading}: paper | measured | diff." if paper else heading
                                    for _, heading, _, _ in shown) + " | runs |")
    print("|---|" + "--:|" * (len(shown) * (3 if paper else 1)) + "---|")
    for row in [*rows, *lost]:
        known = row.paper if isinstance(row, Row) else row
        cells, numbers = [], paper.get(known, {})
        for metric, _, key, decimals in shown:
            found = ours(row, runs, key, bare) if isinstance(row, Row) else (None, None)
            left, right, difference = cell(numbers.get(metric), *found, decimals)
            cells += [left, right, difference] if paper else [right]
        notes = [status(row, runs) if isinstance(row, Row) else "no config here"]
        cells.append("; ".join(filter(None, [*notes, numbers.get("note")])))
        print(f"| {known} | " + " | ".join(cells) + " |")
    sources = {}
    for row, numbers in paper.items():
        sources.setdefault(numbers.get("source"), []).append(row)
    print("".join(f"\n{source}: {', '.join(names)}\n" for source, names in sources.items() if source))


def main():
    sys.stdout.reconfigure(encoding="utf-8")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="folders of runs, folders that hold them, or block.csv")
    parser.add_argument("--table", choices=TABLES, help="print only this table")
    parser.add_argument("--hours", action="store_true", help="print estimated hours and memory of training instead")
    parser.add_argument("--rows", choices=TABLES, help="print the runs of a table and their arguments")
    arguments = parser.parse_args()
    if arguments.rows and any(row.config in MEASURED for row in TABLES[arguments.rows][2]):
        sys.exit(f"{arguments.rows}: nothing to train here, sh scripts/bench/bench_block.sh measures it")
    if arguments.rows:
        for row in TABLES[arguments.rows][2]:
            print(row.run, row.after or "-", row.program, "--config", f"configs/{row.config}.ini", *row.arguments)
        return
    if arguments.hours:
        if not any(map(os.path.exists, PROGRAMS.values())):
            sys.exit(f"no {PROGRAMS['train_vit']}, whose --describe counts operations: make first, or set TRAIN_VIT")
        hours.print_tables({name: TABLES[name] for name in ([arguments.table] if arguments.table else TABLES)}, PROGRAMS)
        return
    there = [name for name in arguments.runs if os.path.isdir(name) or name.endswith(".csv") and os.path.isfile(name)]
    for name in arguments.runs:
        if name not in there:
            print(f"{name}: no such folder, so no runs from there", file=sys.stderr)
    runs = find_runs(there)
    for name in [arguments.table] if arguments.table else TABLES:
        print_table(name, runs)


if __name__ == "__main__":
    main()
