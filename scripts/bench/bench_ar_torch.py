"""Measures tokens per second of PyTorch on the dense causal model that train_ar trains, written as a PyTorch user would.

    python scripts/bench/bench_ar_torch.py --tokens 1024 --dim 768 --depth 12 --heads 12 --batch 4 --modes eager,compile
    python scripts/bench/bench_ar_torch.py --sample --tokens 256 --batch 16      sampling with a cache of keys and values
    python scripts/bench/bench_ar_torch.py --check build/cpu/train_ar            compares the model with train_ar's

Bytes in, 256 logits out; pre-norm blocks with F.scaled_dot_product_attention (is_causal), two tables of positions, the
logits' weights not tied.  A training step is forward, cross entropy, backward, AdamW (fused) and
zero_grad(set_to_none), in float32 or under autocast to bfloat16; the median of --steps steps after a warm-up.  The MLP
has GPT-2's tanh form of GELU, one kernel in PyTorch; train_ar's x sigmoid(1.702 x) would be three (--gelu sigmoid).
Sampling processes one token at a time; the cache is allocated once, and attention reads its filled part. Prints one
JSON line for each mode."""

import argparse
import json
import subprocess
import sys
import tempfile


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--modes", default="eager,compile")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--ratio", type=int, default=4, help="hidden width of the MLP as a multiple of dim")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--gelu", choices=("tanh", "sigmoid"), default="tanh")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, help="default: PyTorch's own choice")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no step after SECONDS")
    parser.add_argument("--sample", action="store_true", help="draw sequences instead of training")
    parser.add_argument("--check", metavar="TRAIN_AR", help="compare with this program, measure no time")
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()  # before the imports below, so that --help needs none of them

import torch
import torch.nn.functional as F
from torch import nn

from bench_torch import median_seconds

BYTES = 256


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def split(self, x):
        B, N, M = x.shape
        return self.qkv(x).reshape(B, N, 3, self.heads, M // self.heads).permute(2, 0, 3, 1, 4)

    def forward(self, x):
        q, k, v = self.split(x)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(x.shape))

    def step(self, x, cache, i):
        q, k, v = self.split(x)
        cache[0][:, :, i:i + 1], cache[1][:, :, i:i + 1] = k, v
        y = F.scaled_dot_product_attention(q, cache[0][:, :, :i + 1], cache[1][:, :, :i + 1])
        return self.proj(y.transpose(1, 2).reshape(x.shape))


class Mlp(nn.Module):
    def __init__(self, dim, ratio, gelu):
        super().__init__()
        self.fc1, self.fc2, self.gelu = nn.Linear(dim, ratio * dim), nn.Linear(ratio * dim, dim), gelu

    def forward(self, x):
        x = self.fc1(x)
        return self.fc2(F.gelu(x, approximate="tanh") if self.gelu == "tanh" else x * torch.sigmoid(1.702 * x))


class Block(nn.Module):
    def __init__(self, dim, heads, ratio, gelu):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn, self.mlp = Attention(dim, heads), Mlp(dim, ratio, gelu)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))

    def step(self, x, cache, i):
        x = x + self.attn.step(self.norm1(x), cache, i)
        return x + self.mlp(self.norm2(x))


class Positions(nn.Module):
    """Two tables, of i div stride and of i mod stride."""

    def __init__(self, tokens, dim, stride):
        super().__init__()
        self.stride = stride
        self.row = nn.Parameter(0.01 * torch.randn((tokens + stride - 1) // stride, dim))
        self.column = nn.Parameter(0.01 * torch.randn(stride, dim))

    def forward(self, first, last):
        i = torch.arange(first, last)
        return self.row[i // self.stride] + self.column[i % self.stride]


class Model(nn.Module):
    def __init__(self, arguments):
        super().__init__()
        dim, stride = arguments.dim, min(128, arguments.tokens)
        self.token_embed, self.pos_embed = nn.Embedding(BYTES, dim), Positions(arguments.tokens, dim, stride)
        self.blocks = nn.ModuleList(Block(dim, arguments.heads, arguments.ratio, arguments.gelu)
                                    for _ in range(arguments.depth))
        self.norm, self.head = nn.LayerNorm(dim, eps=1e-6), nn.Linear(dim, BYTES, bias=False)

    def forward(self, tokens):
        x = self.token_embed(tokens) + self.pos_embed(0, tokens.shape[1])
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def step(self, tokens, caches, i):
        """The logits of tokens [B] at position i."""
        x = self.token_embed(tokens)[:, None] + self.pos_embed(i, i + 1)
        for block, cache in zip(self.blocks, caches):
            x = block.step(x, cache, i)
        return self.head(self.norm(x))[:, 0]


def adamw(model):
    decayed = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-4, fused=True)


def autocast(arguments):
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=arguments.precision == "bfloat16")


def result(arguments, mode, model):
    return {"mode": mode, "tokens": arguments.tokens, "batch": arguments.batch, "precision": arguments.precision,
            "threads": torch.get_num_threads(), "torch": torch.__version__,
            "parameters": sum(p.numel() for p in model.parameters())}


def train(arguments, mode):
    torch.manual_seed(0)
    torch.compiler.reset()
    model = Model(arguments)
    optimizer = adamw(model)
    tokens = torch.randint(0, BYTES, (arguments.batch, arguments.tokens + 1))

    def forward_loss(inputs, targets):
        with autocast(arguments):
            logits = model(inputs)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    loss_of = torch.compile(forward_loss) if mode == "compile" else forward_loss

    def step():
        loss_of(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    seconds = median_seconds(step, arguments.warmup, arguments.steps, limit=arguments.seconds)
    return {**result(arguments, mode, model),
            "train_tokens_per_s": round(arguments.batch * arguments.tokens / seconds, 1)}


def sample(arguments):
    torch.manual_seed(0)
    model = Model(arguments).eval()
    B, H, D = arguments.batch, arguments.heads, arguments.dim // arguments.heads
    kind = torch.bfloat16 if arguments.precision == "bfloat16" else torch.float32
    if kind == torch.bfloat16:
        model = model.to(kind)  # weights rounded once: faster than autocast, which rounds them for every token

    @torch.inference_mode()
    def draw(count):
        caches = [[torch.empty(B, H, arguments.tokens, D, dtype=kind) for _ in range(2)] for _ in model.blocks]
        token = torch.randint(0, BYTES, (B,))
        for i in range(count):
            logits = model.step(token, caches, i)
            token = torch.multinomial(logits.float().softmax(-1), 1)[:, 0]

    draw(min(arguments.tokens, 8))
    seconds = median_seconds(lambda: draw(arguments.tokens), 0, arguments.steps, limit=arguments.seconds)
    return {**result(arguments, "eager", model), "sample_tokens_per_s": round(B * arguments.tokens / seconds, 1)}


def check(arguments, program):
    """train_ar's logits and loss of the same parameters and tokens."""
    from safetensors.torch import load_file, save_file

    arguments.gelu, arguments.tokens, arguments.dim, arguments.depth, arguments.heads = "sigmoid", 40, 24, 2, 3
    torch.manual_seed(1)
    model = Model(arguments).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    tokens = torch.randint(0, BYTES, (3, 41))
    logits = model(tokens[:, :-1])
    caches = [[torch.empty(3, 3, 40, 8, dtype=torch.float64) for _ in range(2)] for _ in model.blocks]
    steps = torch.stack([model.step(tokens[:, i], caches, i) for i in range(40)], dim=1)
    with tempfile.TemporaryDirectory() as folder:
        parameters = {name: p.detach().float() for name, p in model.state_dict().items()}
        save_file({**parameters, "tokens": tokens}, f"{folder}/in.safetensors")
        subprocess.run([program, "--parity", f"{folder}/in.safetensors", "--out", f"{folder}/out.safetensors", "--dim",
                        "24", "--depth", "2", "--heads", "3"], check=True)
        ours = load_file(f"{folder}/out.safetensors")["logits"].double().reshape(logits.shape)
    worst = [((x - logits).abs().max() / logits.abs().max()).item() for x in (ours, steps)]
    print(f"train_ar == PyTorch, logits: {worst[0]:.1e}; one token after the other == all at once: {worst[1]:.1e}")
    return worst[0] > 1e-5 or worst[1] > 1e-10


def main():
    arguments = ARGUMENTS
    arguments.threads = arguments.threads or torch.get_num_threads()
    torch.set_num_threads(arguments.threads)
    if arguments.check:
        sys.exit(check(arguments, arguments.check))
    if arguments.sample:
        return print(json.dumps(sample(arguments)), flush=True)
    for mode in arguments.modes.split(","):
        print(json.dumps(train(arguments, mode)), flush=True)


if __name__ == "__main__":
    main()
