"""Models of clips; their operators are defined where those of images are, on grids with frames."""

SMALL = dict(img_size=(10, 14), dim=15, heads=3, depth=1, mlp_ratio=2, num_classes=5, ripple_layers=1, frames=5,
             tubelet=3)  # a grid of 3 x 5 x 7
FEW = {**SMALL, "img_size": (6, 10), "frames": 3}  # of 2 x 3 x 5
LISA = dict(**SMALL, lisa_patterns=3)
STAGES = dict(img_size=(13, 18), patch_size=4, pos_embed="conv", patch_overlap=1, mlp_conv=1, num_classes=5, frames=6,
              tubelet=3, stage_dims="8,12", stage_depths="2,1", stage_heads="1,2", stage_ratios="3,2", conv_stages=1)

CASES = {
    "clip-softmax-cls": dict(attn="softmax", pool="cls", **SMALL),
    "clip-softmax-rpe": dict(attn="softmax", rpe="heads", **FEW),
    "clip-softmax-rpe-shared": dict(attn="softmax", rpe="shared", **SMALL),
    "clip-frames": dict(attn="linear", **{**SMALL, "frames": 3, "tubelet": 1}),
    "clip-lisa": dict(attn="lisa", **LISA),
    "clip-lisa-3d": dict(attn="lisa", lisa_fft="3d", **LISA),
    "clip-lisa-local": dict(attn="lisa", lisa_kernel=3, **LISA),
    "clip-sa9-heads": dict(attn="sa9-heads", **LISA),
    "clip-sa10": dict(attn="sa10", **{**LISA, **FEW}),
    "clip-sa11": dict(attn="sa11", **{**LISA, **FEW}),
    "clip-gf": dict(attn="gf", **SMALL),
    "clip-gf-even": dict(attn="gf", **{**SMALL, "img_size": (6, 8), "frames": 3}),
    "clip-lambda": dict(attn="lambda", **FEW),
    "clip-rsa": dict(attn="rsa", **FEW),
    "clip-dwconv7": dict(attn="dwconv7", **SMALL),
    "clip-focused": dict(attn="focused", **FEW),
    "clip-castling": dict(attn="castling", **FEW),
    "clip-ripple-fixed": dict(attn="ripple-fixed", r_max=3, ring_time=0, **FEW),
    "clip-sparse-strided": dict(attn="sparse-strided", sparse_heads="split", **SMALL),
    "clip-sparse-fixed": dict(attn="sparse-fixed", sparse_heads="union", **FEW),
    "clip-relu-linear": dict(attn="relu-linear", **FEW),
    "clip-nystrom": dict(attn="nystrom", landmarks=2, **FEW),
    "clip-soft": dict(attn="soft", landmarks=1, **FEW),
    # Windows of 2 x 3 x 3 that do not divide the grid of 3 x 5 x 7, shifted along all axes; of all its frames, and of
    # one.
    "clip-window": dict(attn="swin", window="3", window_time=2, **{**SMALL, "depth": 2}),
    "clip-window-whole": dict(attn="swin", window="4", **{**FEW, "depth": 2}),
    "clip-window-frames": dict(attn="swin", window="3", window_time=1, shift="none", **FEW),
    "clip-cswin": dict(attn="cswin", stripe="5", **{**SMALL, "img_size": (10, 10), "dim": 12, "heads": 2}),
    "clip-cswin-stripes": dict(attn="cswin", stripe="1", **{**FEW, "dim": 12, "heads": 2}),
    "clip-cswin-focused": dict(attn="cswin-focused", stripe="1", **{**FEW, "dim": 12, "heads": 2}),
    "clip-reduced": dict(attn="reduced", reduction="2", **{**SMALL, "dim": 12}),
    "clip-reduced-cells": dict(attn="reduced", reduction_cells=3, **{**SMALL, "dim": 12}),
    "clip-reduced-one": dict(attn="reduced", **{**FEW, "dim": 12}),
    "clip-convattn": dict(attn="convattn", **FEW),
    "clip-convattn-stride": dict(attn="convattn", kv_stride=2, **{**SMALL, "frames": 6}),
    "clip-convit": dict(attn="convit", **{**SMALL, "dim": 20, "heads": 5}),
    "clip-convit-cls": dict(attn="convit", pool="cls", **{**FEW, "dim": 12, "depth": 2}),
    "clip-inception": dict(attn="inception", **SMALL),
    "clip-linear-rope-3d": dict(attn="linear", relative="rope-3d", pool="cls", **{**SMALL, "dim": 14, "heads": 1}),
    "clip-conv": dict(attn="conv", **{**SMALL, "mlp_conv": 1, "pos_embed": "conv"}),
    "clip-sepconv": dict(attn="sepconv", **{**FEW, "conv_time_kernel": 3}),
    "clip-hierarchy-conv": dict(attn="softmax", **{**STAGES, "conv_time_kernel": 3, "time_kernel": 1}),
}
