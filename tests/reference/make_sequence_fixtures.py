"""Writes tests/fixtures/sequence/<case>.safetensors: small Sparse Transformers (python/vitc/density.py) in float64, with
which tests/layers/test_sequence_model.c and `train_ar --parity` are compared.

    python3 tests/reference/make_sequence_fixtures.py [FOLDER]        writes those that differ by more than rounding

A file holds tokens [B,H,W,C] or [B,n+1] (int64), every parameter (float32) and logits, loss and grad.<parameter>
(float64).  The metadata has the settings.  Run with --check it compares the masks with the authors' published functions
(openai/sparse_attention, attention.py) at many sizes, 3,072 tokens with stride 128 among them."""

import os
import sys
from dataclasses import dataclass

if __name__ == "__main__" and sys.argv[1:] in (["-h"], ["--help"]):
    print(__doc__)
    sys.exit()

import numpy as np
import torch
import torch.nn.functional as F

import drawn
from dropout_reference import FIRST, SEED, STEP, Drop
from vit_reference import in_order
from vitc import density

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "sequence")


@dataclass(frozen=True)
class Case(density.Config):
    batch: int = 2
    stride: int = 7
    vocabulary: int = 19
    dim: int = 20
    depth: int = 2
    qk_ratio: float = 0.5
    mlp_ratio: float = 2.0

    def metadata(self):
        own = {"softmax": (), "sparse-strided": ("scheme", "sets", "window"),
               "sparse-fixed": ("scheme", "sets", "summary", "sub_blocks")}[self.attn]
        sparse = {"scheme", "sets", "window", "summary", "sub_blocks"} - set(own)
        return {name: str(value) for name, value in vars(self).items()
                if name not in sparse | {"image", "tokens", "batch"} and value != ""}


def drop_as_program(model):
    """Dropout's sites are 0 and, for block i, 2 i + 1 and 2 i + 2."""
    c, sites = model.config, {model.drop: (0, model.config.embedding_dropout)}
    for i, block in enumerate(model.blocks):
        sites.update({block.drop1: (2 * i + 1, c.dropout), block.drop2: (2 * i + 2, c.dropout)})
    for module, (site, rate) in sites.items():
        drop = Drop(rate, SEED, STEP, FIRST)
        module.register_forward_hook(lambda module, inputs, output, drop=drop, site=site: drop.rows(inputs[0], site))


def fixture(c, seed):
    random = np.random.RandomState(seed)
    inputs = {}
    model, shapes = in_order(lambda: density.Density(c))
    for name, shape in shapes.items():
        x = (0.5 if name.startswith(("token", "pos", "start")) else 0.3) * random.standard_normal(shape)
        inputs[name] = (x + ("norm" in name and name.endswith("weight"))).astype(np.float32)
    row = c.image or (c.tokens + 1,)
    tokens = random.randint(0, c.vocabulary, (c.batch, *row)).astype(np.int64)
    model.double().load_state_dict({name: torch.from_numpy(x) for name, x in inputs.items()})
    drop_as_program(model)
    flat = torch.from_numpy(tokens).reshape(c.batch, -1)
    logits = model(flat[:, :c.n])
    targets = flat if c.image else flat[:, 1:]
    loss = F.cross_entropy(logits.reshape(-1, c.vocabulary), targets.reshape(-1))
    loss.backward()
    outputs = {"logits": logits.detach().numpy(), "loss": loss.detach().numpy().reshape(1)}
    return inputs | {"tokens": tokens} | outputs | {"grad." + name: x.grad.numpy() for name, x in model.named_parameters()}


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
            if not np.array_equal(density.sees(c, ours, 0).numpy(), published(n, theirs, l) > 0):
                raise SystemExit(f"{ours} is not the published {theirs} for {n} tokens with stride {l}")
    print("the sets are those of the published functions")


def main(folder):
    for seed, (name, c) in enumerate(CASES.items()):
        tensors = fixture(c, seed)
        done = drawn.write(os.path.join(folder, name + ".safetensors"), {}, tensors, c.metadata())
        print(f"{name}: loss {tensors['loss'][0]:.6f}  {done}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        check()
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else FIXTURES)
