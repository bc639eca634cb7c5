"""Images per second of training CCT-2/3x2 on images of 32 x 32: PyTorch, in each of its modes, and vit.c, alternately.

    python3 scripts/bench/bench_compact.py [--threads 2] [--rounds 3] [--modes eager,channels_last,compile] [--bfloat16]

The same work on both sides: forward, loss with smoothed labels, backward and AdamW for a batch of 128 images in memory;
drop path is on, dropout of attention's weights is off. PyTorch uses its fused attention. The fastest step of all rounds
counts for each mode. --bfloat16 runs PyTorch under autocast to bfloat16, and vit.c's variant with activations of
bfloat16."""

import argparse
import json
import os
import subprocess
import time

CONFIG = "configs/compact/cct-2-3x2-cifar100.ini"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4, help="that each of PyTorch's ways runs in a round")
    parser.add_argument("--modes", default="eager,channels_last,compile", help="PyTorch's ways")
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--vit", help="the program, else build/cpu/train_vit or build/cpu-bf16/train_vit")
    parser.add_argument("--data-dir", default="datasets")
    return parser.parse_args()


def model_of(torch):
    """The model: a tokenizer of two convolutions, two blocks whose second norm replaces the stream, and a head on a
    weighted mean of the tokens."""
    nn, functional = torch.nn, torch.nn.functional
    width, heads, tokens, drop = 128, 2, 64, 0.1

    class Block(nn.Module):
        def __init__(self, rate):
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.proj, self.up, self.down = (nn.Linear(width, width) for _ in range(3))
            self.rate = rate

        def path(self, x):
            if self.rate == 0:
                return x
            return x * (torch.rand(x.shape[0], 1, 1) >= self.rate).to(x.dtype) / (1 - self.rate)

        def forward(self, x):
            b = x.shape[0]
            q, k, v = self.qkv(self.norms[0](x)).view(b, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, tokens, width)
            x = self.norms[1](x + self.path(self.proj(mixed)))
            return x + self.path(self.down(functional.gelu(self.up(x))))

    class Compact(nn.Module):
        def __init__(self):
            super().__init__()
            layers = []
            for channels, out in ((3, 64), (64, width)):
                layers += [nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
            self.tokenizer = nn.Sequential(*layers)
            self.positions = nn.Parameter(0.2 * torch.randn(1, tokens, width))
            self.blocks = nn.Sequential(Block(0), Block(drop))
            self.norm, self.score, self.head = nn.LayerNorm(width), nn.Linear(width, 1), nn.Linear(width, 100)

        def forward(self, images):
            x = self.tokenizer(images).flatten(2).transpose(1, 2) + self.positions
            x = self.norm(self.blocks(x))
            return self.head((torch.softmax(self.score(x), 1).transpose(1, 2) @ x).squeeze(1))

    return Compact()


class Way:
    """One of PyTorch's modes of training the model; seconds: the time of its fastest step."""

    def __init__(self, torch, name, options):
        self.torch, self.name, self.bfloat16, self.seconds = torch, name, options.bfloat16, float("inf")
        torch.manual_seed(0)
        layout = torch.contiguous_format if name == "eager" else torch.channels_last
        model = model_of(torch).train().to(memory_format=layout)
        self.parameters = sum(x.numel() for x in model.parameters())
        self.images = torch.randn(options.batch, 3, 32, 32).to(memory_format=layout)
        self.labels = torch.randint(0, 100, (options.batch,))
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.03, fused=True)
        self.model = torch.compile(model) if name == "compile" else model
        self.loss = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
        self.step()

    def step(self):
        self.optimizer.zero_grad()
        with self.torch.autocast("cpu", dtype=self.torch.bfloat16, enabled=self.bfloat16):
            loss = self.loss(self.model(self.images), self.labels)
        loss.backward()
        self.optimizer.step()

    def run(self, least):
        end = time.perf_counter() + least
        while time.perf_counter() < end:
            began = time.perf_counter()
            self.step()
            self.seconds = min(self.seconds, time.perf_counter() - began)


def vit_seconds(options):
    program = options.vit or f"build/cpu{'-bf16' if options.bfloat16 else ''}/train_vit"
    flags = ["--config", CONFIG, "--data-dir", options.data_dir, "--attn-dropout", "0", "--batch-size", str(options.batch),
             "--bench"]
    done = subprocess.run([program, *flags], env={**os.environ, "OMP_NUM_THREADS": str(options.threads)},
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True)
    said = json.loads(done.stdout.splitlines()[-1])
    return said["train_batch_seconds"], said["params"]


def main(options):
    import torch
    torch.set_num_threads(options.threads)
    ways = [Way(torch, name, options) for name in options.modes.split(",")]
    fastest = float("inf")
    for _ in range(options.rounds):
        seconds, parameters = vit_seconds(options)
        fastest = min(fastest, seconds)
        for way in ways:
            way.run(options.seconds)
    kind = "bfloat16" if options.bfloat16 else "float32"
    print(f"{options.threads} threads, {kind}, torch {torch.__version__}, {options.batch} images a step")
    print(f"vit.c, {parameters} parameters: {1e3 * fastest:.1f} ms a step, {options.batch / fastest:.0f} images/s")
    for way in ways:
        print(f"torch {way.name}, {way.parameters} parameters: {1e3 * way.seconds:.1f} ms a step, "
              f"{options.batch / way.seconds:.0f} images/s: vit.c is {way.seconds / fastest:.2f} times as fast")


if __name__ == "__main__":
    main(arguments())
