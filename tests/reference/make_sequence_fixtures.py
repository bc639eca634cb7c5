"""Writes tests/fixtures/sequence/<case>.safetensors: small Sparse Transformers in plain PyTorch float64, N x N masks and
all, with which tests/layers/test_sequence_model.c and `train_ar --parity` are compared.

    python3 tests/reference/make_sequence_fixtures.py [FOLDER]

A file holds tokens [B,H,W,C] or [B,n+1] (int64), every parameter (float32) and logits, loss and grad.<parameter>
(float64).  The metadata has the settings.  Run with --check it compares the masks with the authors' published functions
(openai/sparse_attention, attention.py) at many sizes, 3,072 tokens with stride 128 among them."""

import math
import os
import sys
from dataclasses import dataclass

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

import numpy as np
import torch
import torch.nn.functional as F

import safetensors_io
from dropout_reference import FIRST, SEED, STEP, Drop

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "sequence")
SETS = {"sparse-strided": ("window", "column"), "sparse-fixed": ("block", "summary")}


@dataclass(frozen=True)
class Case:
    image: tuple = ()      # H, W, C
    tokens: int = 0        # of text
    batch: int = 2
    attn: str = "softmax"
    scheme: str = "interleaved"
    sets: str = ""
    stride: int = 7
    window: int = 0
    summary: int = 2
    sub_blocks: int = 1
    vocabulary: int = 19
    dim: int = 20
    depth: int = 2
    heads: int = 2
    qk_ratio: float = 0.5
    mlp_ratio: float = 2.0
    embedding: str = "auto"
    dropout: float = 0.0
    embedding_dropout: float = 0.0

    @property
    def n(self):
        return math.prod(self.image) if self.image else self.tokens

    def metadata(self):
        own = {"softmax": (), "sparse-strided": ("scheme", "sets", "window"),
               "sparse-fixed": ("scheme", "sets", "summary", "sub_blocks")}[self.attn]
        sparse = {"scheme", "sets", "window", "summary", "sub_blocks"} - set(own)
        return {name: str(value) for name, value in vars(self).items()
                if name not in sparse | {"image", "tokens", "batch"} and value != ""}


# == Masks, from the definitions =====================================================================================

def sees(c, kind, head):
    """[n,n] of bool: may query i, a row, see key j."""
    i, j = torch.arange(c.n)[:, None], torch.arange(c.n)[None, :]
    l, place = c.stride, torch.arange(c.n)[None, :] % c.stride
    v = head % c.sub_blocks
    summary = (place >= l - c.summary * (v + 1)) & (place < l - c.summary * v)
    sets = {"dense": j >= 0, "window": i - j < (c.window or l), "column": (i - j) % l == 0,
            "block": i // l == j // l, "summary": summary | (i == j),
            "strided": (i - j < l) | ((i - j) % l == 0), "fixed": (i // l == j // l) | summary}
    return sets[kind] & (j <= i)


def mask_of(c, block):
    """[heads,n,n]"""
    if c.attn == "softmax":
        kinds = ["dense"] * c.heads
    elif c.scheme == "merged":
        kinds = [c.attn[len("sparse-"):]] * c.heads
    elif c.scheme == "split":
        kinds = [SETS[c.attn][h >= (c.heads + 1) // 2] for h in range(c.heads)]
    else:
        names = c.sets.split(",") if c.sets else SETS[c.attn]
        kinds = [names[block % len(names)]] * c.heads
    return torch.stack([sees(c, kind, h) for h, kind in enumerate(kinds)])


# == The model =======================================================================================================

def tables_of(c):
    """[(name, entries, divisor)]"""
    if c.image and c.embedding != "attention":
        height, width, channels = c.image
        return [("row", height, width * channels), ("column", width, channels), ("channel", channels, 1)]
    return [("row", -(-c.n // c.stride), c.stride), ("column", c.stride, 1)]


def shapes_of(c):
    keys, hidden = round(c.dim * c.qk_ratio), int(c.dim * c.mlp_ratio)
    shapes = {"token_embed.weight": (c.vocabulary, c.dim)}
    shapes |= {f"pos_embed.{name}": (entries, c.dim) for name, entries, _ in tables_of(c)}
    if c.image:
        shapes["start"] = (1, 1, c.dim)
    for i in range(c.depth):
        b = f"blocks.{i}."
        for name in ("norm1", "norm2"):
            shapes |= {b + name + ".weight": (c.dim,), b + name + ".bias": (c.dim,)}
        for name, out, inputs in (("attn.qkv", 2 * keys + c.dim, c.dim), ("attn.proj", c.dim, c.dim),
                                  ("mlp.fc1", hidden, c.dim), ("mlp.fc2", c.dim, hidden)):
            shapes |= {b + name + ".weight": (out, inputs), b + name + ".bias": (out,)}
    return shapes | {"norm.weight": (c.dim,), "norm.bias": (c.dim,), "head.weight": (c.vocabulary, c.dim)}


def attention(c, p, u, prefix, mask):
    B, n, _ = u.shape
    keys = round(c.dim * c.qk_ratio)
    parts = F.linear(u, p[prefix + "qkv.weight"], p[prefix + "qkv.bias"]).split([keys, keys, c.dim], -1)
    q, k, v = (x.reshape(B, n, c.heads, -1).transpose(1, 2) for x in parts)
    scores = q @ k.transpose(-1, -2) / math.sqrt(keys / c.heads)
    mix = scores.masked_fill(~mask, -math.inf).softmax(-1) @ v
    return F.linear(mix.transpose(1, 2).reshape(B, n, c.dim), p[prefix + "proj.weight"], p[prefix + "proj.bias"])


def logits_of(c, p, tokens):
    drop, first = Drop(c.dropout, SEED, STEP, FIRST), Drop(c.embedding_dropout, SEED, STEP, FIRST)
    norm = lambda x, name, eps: F.layer_norm(x, (c.dim,), p[name + ".weight"], p[name + ".bias"], eps)
    place = torch.arange(c.n)
    e = p["token_embed.weight"][tokens[:, :c.n]]
    for name, entries, divisor in tables_of(c):
        e = e + p["pos_embed." + name][place // divisor % entries]
    if c.image:
        e = torch.cat([p["start"].expand(len(tokens), 1, c.dim), e[:, :-1]], 1)
    x = first.rows(e, 0)
    for i in range(c.depth):
        b = f"blocks.{i}."
        x = x + drop.rows(attention(c, p, norm(x, b + "norm1", 1e-5), b + "attn.", mask_of(c, i)), 2 * i + 1)
        z = F.linear(norm(x, b + "norm2", 1e-5), p[b + "mlp.fc1.weight"], p[b + "mlp.fc1.bias"])
        f = F.linear(z * torch.sigmoid(1.702 * z), p[b + "mlp.fc2.weight"], p[b + "mlp.fc2.bias"])
        x = x + drop.rows(f, 2 * i + 2)
    return norm(x, "norm", 1e-6) @ p["head.weight"].T


def fixture(c, seed):
    random = np.random.RandomState(seed)
    inputs = {}
    for name, shape in shapes_of(c).items():
        x = (0.5 if name.startswith(("token", "pos", "start")) else 0.3) * random.standard_normal(shape)
        inputs[name] = (x + ("norm" in name and name.endswith("weight"))).astype(np.float32)
    row = c.image or (c.tokens + 1,)
    tokens = random.randint(0, c.vocabulary, (c.batch, *row)).astype(np.int64)
    p = {name: torch.from_numpy(x.astype(np.float64)).requires_grad_() for name, x in inputs.items()}
    flat = torch.from_numpy(tokens).reshape(c.batch, -1)
    logits = logits_of(c, p, flat)
    targets = flat if c.image else flat[:, 1:]
    loss = F.cross_entropy(logits.reshape(-1, c.vocabulary), targets.reshape(-1))
    loss.backward()
    outputs = {"logits": logits.detach().numpy(), "loss": loss.detach().numpy().reshape(1)}
    return inputs | {"tokens": tokens} | outputs | {"grad." + name: x.grad.numpy() for name, x in p.items()}


CASES = {
    "image-dense": Case((5, 3, 3)),
    "image-strided": Case((5, 3, 3), attn="sparse-strided", sets="column,window,window", depth=3, window=8),
    "image-strided-merged": Case((4, 3, 3), attn="sparse-strided", scheme="merged", stride=9, heads=5),
    "image-attention-dropout": Case((3, 4, 1), attn="sparse-strided", scheme="split", stride=5, dropout=0.3,
                                    embedding_dropout=0.2, embedding="attention", batch=3),
    "text-dense": Case(tokens=37, qk_ratio=1.0, mlp_ratio=4.0),
    "text-fixed": Case(tokens=37, attn="sparse-fixed", depth=3, batch=1),
    "text-fixed-merged": Case(tokens=41, attn="sparse-fixed", scheme="merged", sub_blocks=3, heads=5),
    "text-fixed-split": Case(tokens=23, attn="sparse-fixed", scheme="split", heads=4, qk_ratio=0.6, stride=6, summary=3),
}


# == The authors' masks ==============================================================================================

def published(n, mode, context):
    """get_attn_mask of attention.py in openai/sparse_attention, with numpy in TensorFlow's place."""
    if mode == "all":
        return np.tril(np.ones([n, n]))
    if mode == "local":
        band = min(n - 1, context - 1)
        return np.tril(np.ones([n, n])) * np.triu(np.ones([n, n]), -band)
    assert mode == "strided"
    x = np.reshape(np.arange(n), [n, 1])
    y = np.transpose(x)
    return np.logical_and(x >= y, np.mod(x - y, context) == 0)


def check():
    for n, l in ((3072, 128), (3072, 96), (37, 7), (45, 9), (12, 4), (5, 5)):
        c = Case(tokens=n, stride=l)
        for ours, theirs in (("dense", "all"), ("window", "local"), ("column", "strided")):
            if not np.array_equal(sees(c, ours, 0).numpy(), published(n, theirs, l) > 0):
                raise SystemExit(f"{ours} is not the published {theirs} for {n} tokens with stride {l}")
    print("the sets are those of the published functions")


def main(folder):
    for seed, (name, c) in enumerate(CASES.items()):
        tensors = fixture(c, seed)
        safetensors_io.write(os.path.join(folder, name + ".safetensors"), tensors, c.metadata())
        print(f"{name}: loss {tensors['loss'][0]:.6f}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        check()
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else FIXTURES)
