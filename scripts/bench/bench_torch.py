"""Measures images per second of PyTorch on the models that vit.c trains, written as a PyTorch user would.

    python scripts/bench/bench_torch.py --models softmax,linear,ripple-weights --modes eager,compile --batch 64 --threads 2
    python scripts/bench/bench_torch.py --check        compares the models with python/vitc

A training step is forward, cross entropy with soft targets, backward, AdamW (fused) and zero_grad(set_to_none), in
float32, or with --precision bfloat16 or --device cuda under autocast to bfloat16, on CUDA with channels-last images;
the median of --steps steps after a warm-up.  Images are on the device; with --uploads training is measured again with
images that are copied from page-locked memory.  Prints one JSON line for each model and mode.

    python scripts/bench/bench_torch.py --inference --modes eager,compile,onnx --batch 1 32

With --inference nothing is trained, and the mode onnx is ONNX Runtime on the exported model (float32 only: its CPU
kernels have no bfloat16).

    python scripts/bench/bench_torch.py --device cuda --models timm,linear,ripple-weights --batch 512
    python scripts/bench/bench_torch.py --device cuda --attention      only F.scaled_dot_product_attention, bfloat16

    timm             timm's VisionTransformer, with which DeiT is usually trained
    timm:NAME        timm's model of that name, such as timm:pvt_v2_b0 (scripts/bench/bench_hosts.sh)
    softmax          DeiT: F.scaled_dot_product_attention, class token
    linear           phi(q) (phi(k)^T v) / (phi(q) . sum phi(k)), phi = relu(W2 [sin W1 x; cos W1 x] + b2)
    ripple-groups    ripple attention group by group: masked scores times v, scaled by alpha_r (the paper's naive form)
    ripple-weights   the same with the N x N weights materialised, one product
    ripple-sat       the same by summed-area tables of phi(k) v^T (the paper's Algorithm 1); autograd keeps about
                     0.3 GB for each image at the default sizes, so use a small --batch
    lisa             lightweight structure-aware attention, from the pseudo-code in the LiSA paper's Figure 7
    lisa-3d          the same with transforms over frames, rows and columns
"""

import argparse
import contextlib
import importlib.util
import json
import math
import os
import statistics
import sys
import tempfile
import time


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default="softmax,linear,ripple-groups,ripple-weights,ripple-sat")
    parser.add_argument("--modes", default="eager,compile")
    parser.add_argument("--batch", type=int, nargs="+", default=[64], help="one or several batch sizes")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, help="default: PyTorch's own choice")
    parser.add_argument("--img-size", type=int, default=32)
    parser.add_argument("--frames", type=int, default=1, help="of a clip; models softmax, linear and lisa")
    parser.add_argument("--patch-size", type=int, default=2)
    parser.add_argument("--dim", type=int, default=192)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--num-classes", type=int, default=100)
    parser.add_argument("--pool", choices=("cls", "gap"), help="default: cls for softmax, gap for the others")
    parser.add_argument("--r-max", type=int, default=4)
    parser.add_argument("--ripple-layers", type=int, default=9)
    parser.add_argument("--lisa-patterns", type=int, default=16)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), help="default: float32, on CUDA bfloat16")
    parser.add_argument("--uploads", action="store_true", help="also measure training on images that are uploaded")
    parser.add_argument("--attention", action="store_true", help="time scaled_dot_product_attention alone, on CUDA")
    parser.add_argument("--inference", action="store_true", help="no training; also allows --modes onnx")
    parser.add_argument("--check", action="store_true", help="compare with the float64 reference, measure no time")
    return parser, parser.parse_args()


if __name__ == "__main__":
    PARSER, ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import torch
import torch.nn.functional as F
from torch import nn

MODELS = ("timm", "softmax", "linear", "ripple-groups", "ripple-weights", "ripple-sat", "lisa",
          "lisa-3d")


# == Attention operators ===============================================================================================


class FeatureMap(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(D, D))
        self.w2 = nn.Parameter(nn.init.xavier_uniform_(torch.empty(D, 2 * D)))
        self.b2 = nn.Parameter(torch.zeros(D))

    def forward(self, x):
        angle = F.linear(x * x.shape[-1] ** -0.25, self.w1)
        return F.relu(F.linear(torch.cat([angle.sin(), angle.cos()], dim=-1), self.w2, self.b2))


class StickBreaking(nn.Module):
    """v [B,H,N,D] -> alpha [B,H,N,R+1]; tau is left out: below 1e-3 of the mass, and slower with it."""

    def __init__(self, H, R, D):
        super().__init__()
        self.proj = nn.Linear(D, D)
        self.sticks = nn.Parameter(nn.init.trunc_normal_(torch.empty(H, R, D), std=0.02))
        self.register_buffer("offset", torch.arange(R, 0, -1).log(), persistent=False)

    def forward(self, v):
        s = torch.sigmoid(self.proj(v) @ self.sticks.transpose(-1, -2) - self.offset)
        left = (1 - s).cumprod(-1)
        return F.pad(s, (0, 1), value=1.0) * F.pad(left, (1, 0), value=1.0)


class Lisa(nn.Module):
    """The paper's Figure 7, head by head: q, k, v [B,H,N,C] -> [B,H,N,C] by `patterns` circular convolutions of
    each, over the tokens as one sequence, grid (N,), or over the axes of the grid."""

    def __init__(self, grid, C, patterns):
        super().__init__()
        self.grid, N = grid, math.prod(grid)
        self.wa, self.wb, self.b = (nn.Parameter(nn.init.trunc_normal_(torch.empty(shape), std=0.02))
                                    for shape in ((N, C, patterns), (N, patterns), (C, patterns)))

    def forward(self, q, k, v):
        q, k = F.normalize(q, dim=-1, eps=1e-6), F.normalize(k, dim=-1, eps=1e-6)
        k_wa = torch.einsum("bhmk,mkd->bhmkd", self.transform(k, 2), self.transform(self.wa, 0))
        v_wb = torch.einsum("bhmv,md->bhmvd", self.transform(v, 2), self.transform(self.wb, 0))
        k_wa, v_wb = self.inverse(k_wa), self.inverse(v_wb) + self.b
        return torch.einsum("bhnk,bhnkd,bhnvd->bhnv", q, k_wa, v_wb)

    def transform(self, x, dim):
        last = dim + len(self.grid)
        return torch.fft.rfftn(x.unflatten(dim, self.grid), dim=tuple(range(dim, last))).flatten(dim, last - 1)

    def inverse(self, x):
        half, axes = (*self.grid[:-1], self.grid[-1] // 2 + 1), tuple(range(2, 2 + len(self.grid)))
        return torch.fft.irfftn(x.unflatten(2, half), s=self.grid, dim=axes).flatten(2, axes[-1])


class Attention(nn.Module):
    def __init__(self, kind, dim, heads, grid, r_max, patterns):
        super().__init__()
        self.kind, self.heads, self.grid, self.r_max = kind, heads, grid, r_max
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        if kind.startswith("lisa"):
            self.lisa = Lisa(grid if kind == "lisa-3d" else (math.prod(grid),), dim // heads, patterns)
            self.norm = nn.LayerNorm(dim, eps=1e-6)
        elif kind != "softmax":
            self.feature = FeatureMap(dim // heads)
        if kind.startswith("ripple"):
            self.ripple = StickBreaking(heads, r_max, dim // heads)
            y, x = torch.meshgrid(torch.arange(grid[-2]), torch.arange(grid[-1]), indexing="ij")
            y, x = y.flatten(), x.flatten()
            groups = torch.maximum((y[:, None] - y).abs(), (x[:, None] - x).abs()).clamp(max=r_max)
            masks = torch.stack([groups == r for r in range(r_max + 1)]).to(torch.get_default_dtype())
            self.register_buffer("masks", masks if kind != "ripple-sat" else None, persistent=False)  # [G,N,N]
            self.register_buffer("corners", self.box_corners(y, x) if kind == "ripple-sat" else None, persistent=False)

    def box_corners(self, y, x):
        """Flat indices into the [Hg+1,Wg+1] table: four corners of a box for each radius.  [R,4,N]"""
        Hg, Wg = self.grid[-2:]
        corners = []
        for r in range(self.r_max):
            top, bottom = (y - r).clamp(min=0), (y + r + 1).clamp(max=Hg)
            left, right = (x - r).clamp(min=0), (x + r + 1).clamp(max=Wg)
            corners.append(torch.stack([row * (Wg + 1) + column for row, column in
                                        ((bottom, right), (top, right), (bottom, left), (top, left))]))
        return torch.stack(corners)

    def ripple_groups(self, q, k, v, alpha):
        scores = q @ k.transpose(-1, -2)
        y, total = 0, 0
        for r in range(self.r_max + 1):
            group = scores * self.masks[r]
            y = y + alpha[..., r:r + 1] * (group @ v)
            total = total + alpha[..., r:r + 1] * group.sum(-1, keepdim=True)
        return y / (total + 1e-6)

    def ripple_weights(self, q, k, v, alpha):
        scores = (q @ k.transpose(-1, -2)) * torch.einsum("bhnr,rnm->bhnm", alpha, self.masks)
        return (scores @ v) / (scores.sum(-1, keepdim=True) + 1e-6)

    def ripple_sat(self, q, k, v, alpha):
        B, H, N, D = v.shape
        Hg, Wg = self.grid[-2:]
        kv = k.unsqueeze(-1) * F.pad(v, (0, 1), value=1.0).unsqueeze(-2)  # [B,H,N,F,D+1], the last column sums phi(k)
        table = kv.reshape(B, H, Hg, Wg, -1).cumsum(2).cumsum(3)
        table = F.pad(table, (0, 0, 1, 0, 1, 0)).flatten(2, 3)  # [B,H,(Hg+1)(Wg+1),F(D+1)]
        # sum_r alpha_r (box_r - box_{r-1}) = sum_r (alpha_r - alpha_{r+1}) box_r + alpha_R everything
        mixed = alpha[..., -1:] * table[:, :, -1:]
        for r in range(self.r_max):
            inside, top, left, both = (table[:, :, corner] for corner in self.corners[r])
            mixed = mixed + (alpha[..., r:r + 1] - alpha[..., r + 1:r + 2]) * (inside - top - left + both)
        y = (q.unsqueeze(-2) @ mixed.reshape(B, H, N, -1, D + 1)).squeeze(-2)
        return y[..., :D] / (y[..., D:] + 1e-6)

    def forward(self, x):
        B, N, M = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.kind == "softmax":
            y = F.scaled_dot_product_attention(q, k, v)
        elif self.kind.startswith("lisa"):
            return self.proj(self.norm(self.lisa(q, k, v).transpose(1, 2).reshape(B, N, M)))
        else:
            q, k = self.feature(q), self.feature(k)
            if self.kind == "linear":
                y = (q @ (k.transpose(-1, -2) @ v)) / (q @ k.sum(-2).unsqueeze(-1) + 1e-6)
            else:
                y = getattr(self, self.kind.replace("-", "_"))(q, k, v, self.ripple(v))
        return self.proj(y.transpose(1, 2).reshape(B, N, M))


# == Model =============================================================================================================


class Mlp(nn.Module):
    def __init__(self, dim, ratio):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, ratio * dim), nn.Linear(ratio * dim, dim)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, kind, dim, heads, grid, r_max, patterns, ratio):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(kind, dim, heads, grid, r_max, patterns)
        self.mlp = Mlp(dim, ratio)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PatchEmbed(nn.Module):
    """Images [B,3,h,w], or the frames of clips under each other [B,3,T h,w], -> tokens [B,N,M], frame by frame."""

    def __init__(self, patch, dim):
        super().__init__()
        self.proj = nn.Conv2d(3, dim, patch, patch)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class Vit(nn.Module):
    def __init__(self, kind, img_size, patch_size, dim, depth, heads, num_classes, pool, r_max, ripple_layers,
                 patterns, frames=1):
        super().__init__()
        grid = (frames, img_size // patch_size, img_size // patch_size)
        self.patch_embed = PatchEmbed(patch_size, dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim)) if pool == "cls" else None
        self.pos_embed = nn.Parameter(torch.zeros(1, math.prod(grid) + (pool == "cls"), dim))
        kinds = ["linear" if kind.startswith("ripple") and i >= ripple_layers else kind for i in range(depth)]
        self.blocks = nn.Sequential(*(Block(kind, dim, heads, grid, r_max, patterns, 4) for kind in kinds))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def forward(self, images):
        x = self.patch_embed(images)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1)
        x = self.norm(self.blocks(x + self.pos_embed))
        return self.head(x[:, 0] if self.cls_token is not None else x.mean(1))


# == Measurement =======================================================================================================


def adamw(model):
    """fused if this PyTorch has it for the device, otherwise foreach."""
    decayed, rest = [], []
    for name, parameter in model.named_parameters():
        (rest if parameter.ndim <= 1 or name in ("pos_embed", "cls_token") else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
    try:
        return torch.optim.AdamW(groups, lr=5e-4, fused=True)
    except (RuntimeError, TypeError):
        return torch.optim.AdamW(groups, lr=5e-4, foreach=True)


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def median_seconds(step, warmup, steps, device="cpu", limit=float("inf")):
    """The time of this number of steps, or of the steps that begin within `limit` seconds; of at least one."""
    for _ in range(warmup):
        step()
    times = []
    for _ in range(steps):
        wait(device)
        start = time.perf_counter()
        step()
        wait(device)
        times.append(time.perf_counter() - start)
        if sum(times) >= limit:
            break
    return statistics.median(times)


def build(arguments, kind, pool):
    if kind.startswith("timm:"):
        import timm
        sized = {} if kind.startswith("timm:pvt") else {"img_size": arguments.img_size}  # PVT takes images of any size
        return timm.create_model(kind[len("timm:"):], num_classes=arguments.num_classes, **sized)
    if kind != "timm":
        return Vit(kind, arguments.img_size, arguments.patch_size, arguments.dim, arguments.depth, arguments.heads,
                   arguments.num_classes, pool, arguments.r_max, arguments.ripple_layers, arguments.lisa_patterns,
                   arguments.frames)
    from timm.models.vision_transformer import VisionTransformer
    return VisionTransformer(img_size=arguments.img_size, patch_size=arguments.patch_size, embed_dim=arguments.dim,
                             depth=arguments.depth, num_heads=arguments.heads, num_classes=arguments.num_classes,
                             class_token=pool == "cls", global_pool="token" if pool == "cls" else "avg", fc_norm=False)


class Uploads:
    """Batches as timm's loader delivers them to a GPU: bytes in page-locked memory, copied and normalised on another
    stream while the device computes the previous step."""

    def __init__(self, arguments, layout):
        self.device, self.layout = arguments.device, layout
        self.stream = torch.cuda.Stream() if self.device == "cuda" else None
        size = (arguments.batch, 3, arguments.frames * arguments.img_size, arguments.img_size)
        self.host = [torch.randint(0, 256, size, dtype=torch.uint8) for _ in range(2)]
        if self.stream:
            self.host = [images.pin_memory() for images in self.host]
        self.mean, self.std = (torch.tensor(value, device=self.device).view(1, 3, 1, 1)
                               for value in ((123.7, 116.3, 103.5), (58.4, 57.1, 57.4)))
        self.start()

    def start(self):
        self.host.reverse()
        with torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext():
            images = self.host[0].to(self.device, non_blocking=True, memory_format=self.layout)
            self.next = images.float().sub_(self.mean).div_(self.std)

    def __call__(self):
        images = self.next
        if self.stream:
            torch.cuda.current_stream().wait_stream(self.stream)
            images.record_stream(torch.cuda.current_stream())
        self.start()
        return images


def onnx_speed(arguments, model, images):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = arguments.threads
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        torch.onnx.export(model, (images,), path, dynamo=False)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    pixels = {session.get_inputs()[0].name: images.numpy()}
    seconds = median_seconds(lambda: session.run(None, pixels), arguments.warmup, arguments.steps)
    return {"infer_images_per_s": round(arguments.batch / seconds, 2), "batch": arguments.batch, "precision": "float32",
            "threads": arguments.threads, "torch": f"{torch.__version__}, ONNX Runtime {onnxruntime.__version__}"}


def measure(arguments, kind, mode):
    torch.manual_seed(0)
    torch.compiler.reset()
    device = arguments.device
    pool = arguments.pool or ("cls" if kind in ("softmax", "timm") else "gap")
    layout = torch.channels_last if device == "cuda" else torch.contiguous_format
    model = build(arguments, kind, pool).to(device, memory_format=layout)
    images = torch.randn(arguments.batch, 3, arguments.frames * arguments.img_size, arguments.img_size,
                         device=device).to(memory_format=layout)
    targets = torch.randn(arguments.batch, arguments.num_classes, device=device).softmax(-1)
    optimizer = adamw(model)

    def autocast():
        return torch.autocast(device, dtype=torch.bfloat16, enabled=arguments.precision == "bfloat16")

    def forward_loss(images, targets):
        with autocast():
            return F.cross_entropy(model(images), targets)

    if mode == "onnx":
        return {"model": kind, "mode": mode, **onnx_speed(arguments, model.eval(), images)}
    compiled = mode == "compile"
    train_loss = torch.compile(forward_loss) if compiled else forward_loss

    def train_step(images):
        loss = train_loss(images, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    model.train()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    train = float("inf")
    if not arguments.inference:
        train = median_seconds(lambda: train_step(images), arguments.warmup, arguments.steps, device)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    uploaded = None
    if arguments.uploads:
        next_images = Uploads(arguments, layout)
        uploaded = median_seconds(lambda: train_step(next_images()), arguments.warmup, arguments.steps, device)
    model.eval()
    # Constant weights are folded and packed, as for serving; freezing requires no_grad.
    infer_model = torch.compile(model, options={"freezing": device == "cpu"}) if compiled else model
    with torch.no_grad(), autocast():
        infer = median_seconds(lambda: infer_model(images), arguments.warmup, arguments.steps, device)
    return {"model": kind, "mode": mode, "train_images_per_s": round(arguments.batch / train, 2),
            "train_images_per_s_with_uploads": uploaded and round(arguments.batch / uploaded, 2),
            "infer_images_per_s": round(arguments.batch / infer, 2), "batch": arguments.batch,
            "threads": torch.get_num_threads(), "precision": arguments.precision, "torch": torch.__version__, "pool": pool,
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu", "peak_bytes": peak,
            "optimizer": "fused" if optimizer.defaults.get("fused") else "foreach",
            "parameters": sum(p.numel() for p in model.parameters())}


def measure_attention(arguments):
    """Milliseconds of forward and backward of F.scaled_dot_product_attention, by device events."""
    for N, B, D in ((256, 512, 32), (256, 512, 64), (1024, 64, 32), (1024, 64, 64), (4096, 8, 32), (4096, 8, 64)):
        H = 192 // D
        q, k, v = (torch.randn(B, H, N, D, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        dy = torch.randn_like(q)
        y = F.scaled_dot_product_attention(q, k, v)

        def timed(work):
            times = []
            for i in range(arguments.warmup + arguments.steps):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                work()
                end.record()
                torch.cuda.synchronize()
                times.append(start.elapsed_time(end))
            return statistics.median(times[arguments.warmup:])

        with torch.no_grad():
            forward = timed(lambda: F.scaled_dot_product_attention(q, k, v))
        backward = timed(lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True))
        print(json.dumps({"tokens": N, "images": B, "heads": H, "head_dim": D, "forward_ms": round(forward, 4),
                          "backward_ms": round(backward, 4)}), flush=True)


# == Do both sides compute the same function? =======================================================================


def check():
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "reference"))
    import vit_reference as reference

    failures = 0
    torch.set_default_dtype(torch.float64)
    for kind, frames in [(kind, 1) for kind in MODELS[1:-1]] + [("softmax", 3), ("lisa", 3), ("lisa-3d", 3)]:
        torch.manual_seed(1)
        pool = "cls" if kind == "softmax" else "gap"
        model = Vit(kind, 14, 2, 24, 2, 3, 7, pool, 4, 1, 5, frames)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
        config = reference.Config(attn=kind.split("-")[0], img_size=(14, 14), dim=24, heads=3, pool=pool, r_max=4,
                                  tau=0.0, ripple_layers=1, lisa_patterns=5, frames=frames,
                                  lisa_fft="3d" if kind == "lisa-3d" else "1d")
        clips, labels = torch.randn(3, frames, 3, 14, 14), torch.tensor([0, 3, 6])
        with_names = reference.build(config, model.state_dict())
        logits, _, gradients = reference.loss_and_gradients(with_names, clips if frames > 1 else clips[:, 0], labels)
        ours = model(clips.transpose(1, 2).flatten(2, 3))
        F.cross_entropy(ours, labels).backward()
        worst = max([((ours - logits).abs().max() / logits.abs().max()).item()]
                    + [((p.grad - gradients[name]).abs().max() / gradients[name].abs().max()).item()
                       for name, p in model.named_parameters()])
        failures += not worst < 1e-10
        verdict = "ok" if worst < 1e-10 else "FAILED"
        print(f"{kind:15s} {frames} frames == reference, logits and gradients   worst {worst:.1e}   {verdict}")
    return failures


def main():
    arguments = ARGUMENTS
    arguments.threads = arguments.threads or torch.get_num_threads()
    arguments.precision = arguments.precision or ("bfloat16" if arguments.device == "cuda" else "float32")
    torch.set_num_threads(arguments.threads)
    if arguments.device == "cuda":
        torch.set_float32_matmul_precision("high")
    if arguments.attention:
        return measure_attention(arguments)
    if arguments.check:
        sys.exit(check() > 0)
    for kind in arguments.models.split(","):
        if kind not in MODELS and not kind.startswith("timm:"):
            PARSER.error(f"--models: unknown model '{kind}' (one of {', '.join(MODELS)})")
        if kind.startswith("ripple") and arguments.pool == "cls":
            PARSER.error("ripple attention lives on the grid: --pool gap")
    if "onnx" in arguments.modes.split(",") and (not arguments.inference or arguments.precision != "float32"):
        PARSER.error("--modes: onnx is measured with --inference in float32 alone")
    if "onnx" in arguments.modes.split(","):
        lacking = [name for name in ("onnx", "onnxruntime") if not importlib.util.find_spec(name)]
        if lacking:
            PARSER.error(f"--modes: onnx needs {' and '.join(lacking)}: pip install {' '.join(lacking)}, or leave it out")
    batches = arguments.batch
    for kind in arguments.models.split(","):
        for mode in arguments.modes.split(","):
            for arguments.batch in batches:
                print(json.dumps(measure(arguments, kind, mode)), flush=True)


if __name__ == "__main__":
    main()
