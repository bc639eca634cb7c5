"""Multi-scale attention (Li et al. 2022, MViTv2)."""

from torch import nn

from .. import grids
from ..layers import Mixer, attend, join_heads, linear, normal, ones, split_heads, zeros


class Norm(nn.Module):
    """A layer norm of heads, without the bias of k's, which would be the same for all scores of a query."""

    def __init__(self, D, bias):
        super().__init__()
        self.weight, self.bias = ones(D), zeros(D) if bias else None

    def forward(self, x):
        return nn.functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, 1e-6)


class ConvAttn(Mixer):
    """Softmax attention of q, k, v after a depthwise 3x3 convolution, for k and v with stride kv_stride, and a norm; and
    q once more."""

    def __init__(self, config, block=0):
        super().__init__(config)
        M, D = config.dim, config.dim // config.heads
        self.qkv, self.pool = linear(M, 3 * M, config.qkv_bias), nn.Module()
        self.pool.weight = normal(3 * M, 1, *config.kernel(3))
        bound = self.pool.weight[0].numel() ** -0.5
        nn.init.uniform_(self.pool.weight, -bound, bound)
        self.norm_q, self.norm_k, self.norm_v = Norm(D, True), Norm(D, False), Norm(D, True)

    def pooled(self, z, weight, norm, stride):
        return norm(split_heads(grids.depthwise(z, self.config.grid, weight, stride=stride), self.heads))

    def mix(self, x):
        strides, norms = (1, self.config.kv_stride, self.config.kv_stride), (self.norm_q, self.norm_k, self.norm_v)
        q, k, v = map(self.pooled, self.qkv(x).chunk(3, dim=-1), self.pool.weight.chunk(3), norms, strides)
        return join_heads(attend(q, k, v) + q)
