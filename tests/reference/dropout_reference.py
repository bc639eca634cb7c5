"""Dropout as kernels/linear/dropout.h defines it: which elements survive is a function of seed, step, site and image."""

import numpy as np
import torch

SEED, STEP, FIRST = 0x1234567890, 7, 3  # of the fixtures

DROPOUT = 15  # what core/rng.h calls RNG_DROPOUT


def philox(block, a, b, purpose, seed):
    """Philox4x32-10 of the counters (block, a, b, purpose): [4] arrays of uint32, here in uint64."""
    low = np.uint64(0xFFFFFFFF)
    c = [block & low, np.full_like(block, a), np.full_like(block, b),
         purpose | (block >> np.uint64(32)) << np.uint64(8)]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k0), p1 & low, (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k1),
             p0 & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def kept(elements, rate, seed, step, site, image):
    """Which elements of an image are kept: half (i / 16) % 8 of block 16 (i / 128) + i % 16."""
    i = np.asarray(elements, np.uint64)
    words = philox(i // np.uint64(128) * np.uint64(16) + i % np.uint64(16), step, site << 20 | image,
                   np.uint64(DROPOUT), seed)
    half = i // np.uint64(16) % np.uint64(8)
    word = np.choose((half // np.uint64(2)).astype(np.int64), words)
    return (word >> half % np.uint64(2) * np.uint64(16) & np.uint64(0xFFFF)) >= round(65536 * rate)


class Drop:
    """The dropouts of one step."""

    def __init__(self, rate, seed=0, step=0, first=0):
        self.rate, self.seed, self.step, self.first = rate, seed, step, first

    def rows(self, x, site):
        """x [B, ...]: an image's elements are numbered as they lie."""
        if not self.rate:
            return x
        n = np.arange(x[0].numel())
        mask = np.stack([kept(n, self.rate, self.seed, self.step, site, self.first + b) for b in range(len(x))])
        return x * torch.from_numpy(mask).reshape(x.shape) / (1 - self.rate)

    def weights(self, p, valid, site):
        """p [B,H,Q,N]: element (head Q + query) N' + j, j the key's number among those that are no padding."""
        if not self.rate:
            return p
        B, H, Q, N = p.shape
        row = np.arange(H * Q)[:, None] * (-(-N // 128) * 128)
        mask = np.zeros((B, H * Q, N), bool)
        for b in range(B):
            number = np.cumsum(valid[b].numpy()) - 1
            mask[b] = kept(row + np.maximum(number, 0), self.rate, self.seed, self.step, site, self.first + b)
        return p * torch.from_numpy(mask).reshape(p.shape) / (1 - self.rate)
