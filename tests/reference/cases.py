"""The fixtures that make_fixtures.py writes: settings, standard deviation of the sticks, least |1 - sum alpha - tau| over
all tokens, heads and groups."""

from vit_reference import Config


def of(settings):
    """Cases without sticks."""
    return {case: (Config(**chosen), 0, 0) for case, chosen in settings.items()}


# A grid of 5 x 7, three heads of five.
ODD = {"img_size": (10, 14), "dim": 15, "heads": 3}
SPARSE_CASES = {
    "sparse-strided": dict(attn="sparse-strided", **ODD),
    "sparse-strided-union": dict(attn="sparse-strided", sparse_heads="union", sparse_stride=4, **ODD),
    "sparse-fixed": dict(attn="sparse-fixed", sparse_c=3, **ODD),
    "sparse-fixed-split": dict(attn="sparse-fixed", sparse_heads="split", sparse_stride=6, **ODD),
}

CASES = {
    "softmax-cls": (Config(attn="softmax", pool="cls"), 0.5, 0),
    "softmax-gap-nope": (Config(attn="softmax", pos_embed="none"), 0.5, 0),
    "linear-cls": (Config(attn="linear", pool="cls"), 0.5, 0),
    "linear-gap": (Config(attn="linear"), 0.5, 0),
    "ripple": (Config(attn="ripple", ripple_layers=1, tau=0.001), 0.5, 2e-5),
    "ripple-rmax2-tau": (Config(attn="ripple", r_max=2, tau=0.05), 3.0, 1e-3),
    "ripple-rmax16": (Config(attn="ripple", r_max=16, tau=0.0), 0.5, 0),
    "ripple-fixed": (Config(attn="ripple-fixed"), 0.5, 0),
    "ripple-softmax-weights": (Config(attn="ripple-softmax-weights"), 0.5, 0),
    "ripple-truncated": (Config(attn="ripple-truncated", tau=0.02), 1.0, 2e-5),
    "ripple-log": (Config(attn="ripple-log", tau=0.01), 1.0, 2e-5),
    "ripple-dense": (Config(attn="ripple-dense", tau=0.0), 0.5, 0),
    "ripple-row-one-head": (Config(attn="ripple", img_size=(2, 10), heads=1, r_max=3, tau=0.0), 0.5, 0),
    "ripple-three-heads": (Config(attn="ripple", dim=24, heads=3, tau=0.0), 0.5, 0),
    "convit-cls": (Config(attn="convit", pool="cls", img_size=(10, 14), heads=5), 0, 0),
    "convit-cls-nope": (Config(attn="convit", pool="cls", pos_embed="none", img_size=(4, 14), dim=12, depth=3,
                               convit_local_layers=2), 0, 0),
    "convit-gap": (Config(attn="convit", img_size=(14, 10), heads=5, convit_local_layers=2), 0, 0),
    "softmax-rpe-shared": (Config(attn="softmax", rpe="shared", **ODD), 0, 0),
    "softmax-rpe-heads": (Config(attn="softmax", rpe="heads", **ODD), 0, 0),
    **of(SPARSE_CASES),
    "focused": (Config(attn="focused", **ODD), 0, 0),
    "focused-p5": (Config(attn="focused", focused_p=5, img_size=(14, 4), dim=10, heads=1), 0, 0),
    "efficient-cls": (Config(attn="efficient", pool="cls", **ODD), 0, 0),
    "hydra-cls": (Config(attn="hydra", pool="cls", **ODD), 0, 0),
    "relu-linear": (Config(attn="relu-linear", img_size=(10, 14), dim=9, heads=3), 0, 0),
    "castling": (Config(attn="castling", **ODD), 0, 0),
}
SMALL = dict(img_size=(10, 14), dim=15, heads=3, depth=1, mlp_ratio=2, num_classes=5, ripple_layers=1)
CASES.update({
    **{f"linear-{name}": (Config(**SMALL, attn="linear", feature_map=name), 0.5, 0)
       for name in ("rfa", "performer", "dpfp", "t2r", "mlp-random-w1")},
    "linear-rfa-clamp": (Config(**{**SMALL, "img_size": (6, 10), "dim": 10, "heads": 2}, attn="linear",
                                feature_map="rfa", pool="cls"), 0.5, 0),
    **{f"linear-{name}": (Config(**SMALL, attn="linear", relative=name), 0.5, 0)
       for name in ("sincspe", "convspe", "rope", "permute")},
    "linear-rope-2d-dpfp": (Config(**SMALL, attn="linear", relative="rope-2d", feature_map="dpfp", pool="cls"), 0.5, 0),
    "linear-rope-rfa": (Config(**SMALL, attn="linear", relative="rope", feature_map="rfa", pool="cls"), 0.5, 0),
    "linear-sincspe-performer": (Config(**SMALL, attn="linear", relative="sincspe", feature_map="performer",
                                        pool="cls"), 0.5, 0),
    "ripple-performer": (Config(**SMALL, attn="ripple", feature_map="performer", r_max=2), 0.5, 2e-5),
    "ripple-dpfp": (Config(**SMALL, attn="ripple", feature_map="dpfp", r_max=3), 0.5, 2e-5),
    "ripple-explicit-softmax": (Config(**SMALL, attn="ripple-explicit-softmax", tau=0.01), 1.0, 2e-5),
})
LISA = dict(**SMALL, lisa_patterns=3)
CASES.update({
    "lisa": (Config(attn="lisa", **LISA), 0.5, 0),
    "lisa-one-pattern": (Config(attn="lisa", **{**LISA, "lisa_patterns": 1}), 0.5, 0),
    "lisa-2d": (Config(attn="lisa", **LISA, lisa_fft="2d"), 0.5, 0),
    "lisa-local": (Config(attn="lisa", **LISA, lisa_kernel=5), 0.5, 0),
    "sa9": (Config(attn="sa9", **LISA), 0.5, 0),
    "sa9-heads": (Config(attn="sa9-heads", **LISA), 0.5, 0),
    "sa10": (Config(attn="sa10", **LISA), 0.5, 0),
    "sa11": (Config(attn="sa11", **{**LISA, "img_size": (6, 10)}), 0.5, 0),
    "gf": (Config(attn="gf", **LISA), 0.5, 0),
    "gf-even": (Config(attn="gf", **{**LISA, "img_size": (8, 12), "dim": 18}), 0.5, 0),
})
CASES.update({
    "nystrom": (Config(attn="nystrom", **{**SMALL, "landmarks": 3}), 0, 0),
    "soft": (Config(attn="soft", **{**SMALL, "landmarks": 4}), 0, 0),
    "castling-mask": (Config(attn="castling", castling_mask=0.03, **SMALL), 0, 0),
    "dwconv7": (Config(attn="dwconv7", **SMALL), 0, 0),
    "convattn": (Config(attn="convattn", **SMALL), 0, 0),
    "lambda": (Config(attn="lambda", **SMALL), 0, 0),
    "inception": (Config(attn="inception", **SMALL), 0, 0),
    "inception-heads": (Config(attn="inception", **{**SMALL, "dim": 12, "heads": 6}, inception_heads=2), 0, 0),
    "rsa": (Config(attn="rsa", **{**SMALL, "img_size": (6, 10)}), 0, 0),
})
ODD_STAGES = dict(img_size=(13, 18), patch_size=4, pos_embed="conv", patch_overlap=1, mlp_conv=1, num_classes=5)
CASES.update({
    "conv": (Config(attn="conv", **SMALL), 0, 0),
    "sepconv": (Config(attn="sepconv", head="mlp", **SMALL), 0, 0),
    "softmax-head-tanh": (Config(attn="softmax", head="tanh", pool="cls", **SMALL), 0, 0),
    "softmax-mlp-conv": (Config(attn="softmax", mlp_conv=1, pos_embed="conv", **{**SMALL, "depth": 2}), 0, 0),
    "hierarchy-lisa": (Config(attn="lisa", lisa_patterns=8, conv_stages=1, dim="8,12", depth="2,1",
                              heads="1,2", mlp_ratio="3,2", **ODD_STAGES), 0, 0),
    "hierarchy-softmax": (Config(attn="softmax", dim="6,8,10", depth="1,1,1", heads="2,2,5",
                                 mlp_ratio="3,2,1", **{**ODD_STAGES, "img_size": (21, 14)}), 0, 0),
    "hierarchy-sepconv": (Config(attn="lisa", lisa_patterns=2, conv_stages=1, conv_block="sepconv",
                                 dim="8,12", depth="2,1", heads="1,2", mlp_ratio="3,2",
                                 **ODD_STAGES), 0, 0),
    "hierarchy-ripple": (Config(attn="ripple", r_max=2, ripple_layers=2, img_size=(12, 16), patch_size=2,
                                num_classes=5, dim="12,15", depth="1,2", heads="2,3",
                                mlp_ratio="1,1"), 1.0, 2e-5),
})
CASES.update({
    "softmax-dropout-cls": (Config(attn="softmax", pool="cls", dropout=0.2, **SMALL), 0, 0),
    "convit-dropout-cls": (Config(attn="convit", pool="cls", dropout=0.3, **{**SMALL, "dim": 12, "depth": 3},
                                  convit_local_layers=2), 0, 0),
    "hierarchy-dropout": (Config(attn="softmax", conv_stages=1, dropout=0.1, dim="8,12", depth="2,1",
                                 heads="1,2", mlp_ratio="3,2", **ODD_STAGES), 0, 0),
})
CASES.update({
    "convattn-stride": (Config(attn="convattn", kv_stride=2, **SMALL), 0, 0),
    "convattn-stride-3": (Config(attn="convattn", kv_stride=3, **{**SMALL, "img_size": (16, 14)}), 0, 0),
})
HYBRID = dict(attn="softmax", stem="hybrid", stem_width=32, img_size=(22, 31), patch_size=2)
HOST_CASES = {
    "hierarchy-flatten-pvt": (Config(attn="focused", patch_size=2, patch_norm=1, stage_norm=0, num_classes=5,
                                     pool="gap-raw", pos_embed="stages", dim="6,8", depth="1,1",
                                     heads="1,2", mlp_ratio="2,1", img_size=(20, 12)), 0, 0),
    "hierarchy-pvt-dropout": (Config(attn="reduced", reduction="2,1", patch_size=2, patch_norm=1, stage_norm=0,
                                     num_classes=5, pool="cls", pos_embed="stages", dim="6,8",
                                     depth="1,2", heads="1,2", mlp_ratio="2,1", img_size=(20, 12),
                                     dropout=0.2), 0, 0),
    "softmax-distilled": (Config(attn="softmax", pool="cls", distilled=1, **SMALL), 0, 0),
    "softmax-distilled-soft": (Config(attn="softmax", pool="cls", distilled=1, distillation="soft",
                                      distillation_alpha=0.4, distillation_tau=2.0, **SMALL), 0, 0),
    "linear-distilled-hard": (Config(attn="linear", pool="cls", distilled=1, distillation="hard",
                                     distillation_alpha=0.6, **SMALL), 0.5, 0),
    "softmax-soft": (Config(attn="softmax", distillation="soft", distillation_alpha=0.7, **SMALL), 0, 0),
    "hybrid-cls": (Config(**{**SMALL, **HYBRID}, pool="cls"), 0, 0),
    "hybrid-linear": (Config(**{**SMALL, **HYBRID, "attn": "linear", "img_size": (15, 30)}), 0, 0),
}
NORMED = dict(mlp_stream="normed", norm_eps=1e-5)
COMPACT = dict(attn="softmax", stem="conv", patch_size=1, tokenizer_width=7, pool="seq", qkv_bias=0, **NORMED)
HOST_CASES.update({
    "compact": (Config(**{**SMALL, **COMPACT, "img_size": (13, 18), "depth": 2}), 0, 0),
    "compact-5-sine": (Config(**{**SMALL, **COMPACT, "img_size": (19, 22)}, tokenizer_kernel=5, tokenizer_convs=3,
                              pos_embed="sine"), 0, 0),
    "compact-7-cls": (Config(**{**SMALL, **COMPACT, "img_size": (30, 21), "pool": "cls"}, tokenizer_kernel=7,
                             tokenizer_convs=1, dropout=0.2), 0, 0),
    "compact-ripple": (Config(**{**SMALL, **COMPACT, "attn": "ripple", "img_size": (21, 26)}, r_max=2), 0.5, 2e-5),
    "compact-lisa": (Config(**{**SMALL, **COMPACT, "attn": "lisa", "img_size": (17, 26), "qkv_bias": 1},
                            lisa_patterns=3), 0.5, 0),
    "hierarchy-compact-stem": (Config(**COMPACT, img_size=(29, 14), num_classes=5, patch_overlap=1, dim="8,12",
                                      depth="2,1", heads="1,2", mlp_ratio="3,2", dropout=0.1), 0, 0),
    "softmax-normed-cls": (Config(**SMALL, **NORMED, attn="softmax", pool="cls", qkv_bias=0), 0, 0),
    "convit-cls-normed": (Config(**{**SMALL, "dim": 12, "depth": 3}, **NORMED, attn="convit", pool="cls",
                                 convit_local_layers=2), 0, 0),
    "hierarchy-normed": (Config(**ODD_STAGES, **NORMED, attn="softmax", pool="seq", dim="8,12",
                                depth="2,1", heads="1,2", mlp_ratio="3,2", dropout=0.1), 0, 0),
    "linear-seq": (Config(**SMALL, attn="linear", pool="seq", pos_embed="sine", qkv_bias=0), 0.5, 0),
})

# == Windows, stripes, fewer keys and clips ============================================================================

SWIN = dict(num_classes=5, patch_merging=1, patch_norm=1, stage_norm=0, norm_eps=1e-5, pos_embed="none",
            depth="2,2", heads="2,3", mlp_ratio="2,1")
WINDOW_CASES = {
    # Grids of 6 x 12, 3 x 6 and 2 x 3: shifted, shifted along rows, windows of 2 x 3.
    "window-alternate": dict(attn="swin", window="3", img_size=(12, 24), patch_overlap=1, num_classes=5,
                             dim="6,8,10", depth="2,2,1", heads="3,2,2",
                             mlp_ratio="1,1,1"),
    "window-padded": dict(attn="swin", window="4", img_size=(12, 14), dim=12, heads=2, mlp_ratio=2, num_classes=5),
    # Grids of 8 x 6, 4 x 3: windows of 4 x 4, then 2 x 2 that do not divide it; and focused attention in the first.
    "hierarchy-swin": dict(attn="swin", window="4,2", img_size=(16, 12), dim="4,6", **SWIN),
    "hierarchy-swin-focused": dict(attn="focused,swin", window="2", img_size=(16, 12), dim="4,6", **SWIN),
}
STRIPES = dict(patch_size=4, patch_overlap=1, patch_pad=2, stage_norm=0, norm_eps=1e-5, pos_embed="none", num_classes=5,
              depth="1,2", mlp_ratio="2,1")
CSWIN_CASES = {
    # A grid of 6 x 9 in stripes of 6 x 3 and 3 x 9, then 2 x 4 in stripes of 2 x 1 and 1 x 4, then 3 x 3 in one.
    "cswin": dict(attn="cswin", stripe="3", img_size=(12, 18), dim=12, heads=2, mlp_ratio=2, num_classes=5),
    "cswin-one-wide": dict(attn="cswin", stripe="1", img_size=(4, 8), dim=20, heads=4, mlp_ratio=2, num_classes=5),
    "cswin-square": dict(attn="cswin", stripe="3", img_size=(6, 6), dim=15, heads=3, mlp_ratio=2, num_classes=5),
    "cswin-focused": dict(attn="cswin-focused", stripe="3", img_size=(12, 18), dim=12, heads=2, depth=1, mlp_ratio=2,
                          num_classes=5),
    # Grids of 5 x 6 - of 22 x 23 pixels with two around them - in stripes and 3 x 3; then 4 x 6 and 2 x 3, whole.
    "hierarchy-cswin": dict(attn="cswin", stripe="1,7", img_size=(22, 23), dim="4,6", heads="2,3",
                            **STRIPES),
    "hierarchy-cswin-focused": dict(attn="cswin-focused,cswin", stripe="0,7", img_size=(16, 24), dim="4,6",
                                    heads="2,3", **STRIPES),
}
REDUCED = dict(attn="reduced", patch_size=2, patch_overlap=1, mlp_conv=1, num_classes=5, pos_embed="none", dim="6,8",
              depth="1,2", heads="2,2", mlp_ratio="2,1")
PVT = dict(attn="reduced", patch_size=2, patch_norm=1, stage_norm=0, num_classes=5, pool="cls", pos_embed="stages",
           dim="6,8", depth="1,2", heads="1,2", mlp_ratio="2,1")
FLATTEN = {**PVT, "pool": "gap-raw"}
REDUCED_CASES = {
    "reduced": dict(attn="reduced", reduction="2", img_size=(10, 14), dim=12, heads=3),
    "reduced-one": dict(attn="reduced", img_size=(6, 10), dim=12, heads=3, depth=1),
    "reduced-cells": dict(attn="reduced", reduction_cells=3, img_size=(10, 14), dim=12, heads=3),
    "reduced-more-cells": dict(attn="reduced", reduction_cells=4, img_size=(6, 18), dim=12, heads=2, depth=1),
    "hierarchy-reduced": dict(reduction="3,1", img_size=(13, 18), **REDUCED),
    "hierarchy-pvt-cls": dict(reduction="3,1", img_size=(20, 12), **PVT),
    "hierarchy-pvt-gap": dict(reduction="2,2", img_size=(12, 20), **{**PVT, "pool": "gap"}),
    "focused-reduced": dict(attn="focused-reduced", reduction="2", img_size=(10, 14), dim=12, heads=2, depth=1),
    "focused-reduced-one": dict(attn="focused-reduced", img_size=(6, 10), dim=12, heads=2, depth=1),
    "hierarchy-focused-reduced": dict(**{**FLATTEN, "attn": "focused-reduced,reduced"}, reduction="3,2",
                                      img_size=(20, 24)),
    "hierarchy-reduced-cells": dict(reduction_cells=2, mlp_relu=1, img_size=(13, 18), **REDUCED),
}

# A grid of 3 x 5 x 7.
CLIP = dict(img_size=(10, 14), dim=15, heads=3, depth=1, mlp_ratio=2, num_classes=5, ripple_layers=1, frames=5,
             tubelet=3)  # a grid of 3 x 5 x 7
CLIP_FEW = {**CLIP, "img_size": (6, 10), "frames": 3}  # of 2 x 3 x 5
CLIP_LISA = dict(**CLIP, lisa_patterns=3)
CLIP_STAGES = dict(img_size=(13, 18), patch_size=4, pos_embed="conv", patch_overlap=1, mlp_conv=1, num_classes=5, frames=6,
              tubelet=3, dim="8,12", depth="2,1", heads="1,2", mlp_ratio="3,2", conv_stages=1)

CLIPS_CASES = {
    "clip-softmax-cls": dict(attn="softmax", pool="cls", **CLIP),
    "clip-softmax-rpe": dict(attn="softmax", rpe="heads", **CLIP_FEW),
    "clip-softmax-rpe-shared": dict(attn="softmax", rpe="shared", **CLIP),
    "clip-frames": dict(attn="linear", **{**CLIP, "frames": 3, "tubelet": 1}),
    "clip-lisa": dict(attn="lisa", **CLIP_LISA),
    "clip-lisa-3d": dict(attn="lisa", lisa_fft="3d", **CLIP_LISA),
    "clip-lisa-local": dict(attn="lisa", lisa_kernel=3, **CLIP_LISA),
    "clip-sa9-heads": dict(attn="sa9-heads", **CLIP_LISA),
    "clip-sa10": dict(attn="sa10", **{**CLIP_LISA, **CLIP_FEW}),
    "clip-sa11": dict(attn="sa11", **{**CLIP_LISA, **CLIP_FEW}),
    "clip-gf": dict(attn="gf", **CLIP),
    "clip-gf-even": dict(attn="gf", **{**CLIP, "img_size": (6, 8), "frames": 3}),
    "clip-lambda": dict(attn="lambda", **CLIP_FEW),
    "clip-rsa": dict(attn="rsa", **CLIP_FEW),
    "clip-dwconv7": dict(attn="dwconv7", **CLIP),
    "clip-focused": dict(attn="focused", **CLIP_FEW),
    "clip-castling": dict(attn="castling", **CLIP_FEW),
    "clip-ripple-fixed": dict(attn="ripple-fixed", r_max=3, ring_time=0, **CLIP_FEW),
    "clip-sparse-strided": dict(attn="sparse-strided", sparse_heads="split", **CLIP),
    "clip-sparse-fixed": dict(attn="sparse-fixed", sparse_heads="union", **CLIP_FEW),
    "clip-relu-linear": dict(attn="relu-linear", **CLIP_FEW),
    "clip-nystrom": dict(attn="nystrom", landmarks=2, **CLIP_FEW),
    "clip-soft": dict(attn="soft", landmarks=1, **CLIP_FEW),
    # Windows of 2 x 3 x 3 that do not divide the grid of 3 x 5 x 7, shifted along all axes; of all its frames, and of
    # one.
    "clip-window": dict(attn="swin", window="3", window_time=2, **{**CLIP, "depth": 2}),
    "clip-window-whole": dict(attn="swin", window="4", **{**CLIP_FEW, "depth": 2}),
    "clip-window-frames": dict(attn="swin", window="3", window_time=1, shift="none", **CLIP_FEW),
    "clip-cswin": dict(attn="cswin", stripe="5", **{**CLIP, "img_size": (10, 10), "dim": 12, "heads": 2}),
    "clip-cswin-stripes": dict(attn="cswin", stripe="1", **{**CLIP_FEW, "dim": 12, "heads": 2}),
    "clip-cswin-focused": dict(attn="cswin-focused", stripe="1", **{**CLIP_FEW, "dim": 12, "heads": 2}),
    "clip-reduced": dict(attn="reduced", reduction="2", **{**CLIP, "dim": 12}),
    "clip-reduced-cells": dict(attn="reduced", reduction_cells=3, **{**CLIP, "dim": 12}),
    "clip-reduced-one": dict(attn="reduced", **{**CLIP_FEW, "dim": 12}),
    "clip-convattn": dict(attn="convattn", **CLIP_FEW),
    "clip-convattn-stride": dict(attn="convattn", kv_stride=2, **{**CLIP, "frames": 6}),
    "clip-convit": dict(attn="convit", **{**CLIP, "dim": 20, "heads": 5}),
    "clip-convit-cls": dict(attn="convit", pool="cls", **{**CLIP_FEW, "dim": 12, "depth": 2}),
    "clip-inception": dict(attn="inception", **CLIP),
    "clip-linear-rope-3d": dict(attn="linear", relative="rope-3d", pool="cls", **{**CLIP, "dim": 14, "heads": 1}),
    "clip-conv": dict(attn="conv", **{**CLIP, "mlp_conv": 1, "pos_embed": "conv"}),
    "clip-sepconv": dict(attn="sepconv", **{**CLIP_FEW, "conv_time_kernel": 3}),
    "clip-hierarchy-conv": dict(attn="softmax", **{**CLIP_STAGES, "conv_time_kernel": 3, "time_kernel": 1}),
}

for more in (CLIPS_CASES, CSWIN_CASES, REDUCED_CASES, SPARSE_CASES, WINDOW_CASES):
    CASES.update(of(more))
CASES.update(HOST_CASES)
# Heads as wide as the CPU's products of pairs of bfloat16 want them.
CASES["linear-wide"] = (Config(attn="linear", img_size=(10, 14), dim=32, heads=1, depth=1, mlp_ratio=1), 0, 0)
CASES["clip-ripple"] = (Config(attn="ripple", r_max=2, **CLIP_FEW), 0.5, 2e-5)
CASES["clip-ripple-explicit"] = (Config(attn="ripple-explicit-softmax", tau=0.01, r_max=2, **CLIP_FEW), 1.0, 2e-5)
