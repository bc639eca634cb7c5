"""Linear attention (Katharopoulos et al. 2020) with a choice of feature maps and of relative positions."""

from ..layers import Denominator, Projected, join_heads
from .features import MAPS, MAY_BE_NEGATIVE, feature_count
from .relative import KINDS


class Linear(Projected):
    """psi(q) (psi(k)^T v) / (phi(q) . sum phi(k))."""

    def __init__(self, config, block=0):
        super().__init__(config)
        H, D = config.heads, config.dim // config.heads
        self.feature = MAPS[config.feature_map](H, D)
        self.relative = KINDS[config.relative](config, H, D, feature_count(config.feature_map, D))
        self.denominator = Denominator(config.feature_map in MAY_BE_NEGATIVE)

    def mix(self, q, k, v):
        q, k = self.relative.encode(q, k)
        phi = self.feature(q, False), self.feature(k, True)  # each [B,H,N,F]
        psi = [self.relative.psi(x) for x in phi]
        if self.relative.whole:
            phi = psi
        total = phi[0] @ phi[1].sum(-2)[..., None]
        return join_heads(psi[0] @ (psi[1].transpose(-1, -2) @ v) / self.denominator(total))
