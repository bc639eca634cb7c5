"""The models of vit.c in PyTorch.

    model = vitc.load("best.safetensors")
    layer = vitc.attention("ripple", dim=192, heads=6, grid=(16, 16), r_max=4)
"""

from .attention import OPERATORS, attention
from .checkpoint import load, save
from .config import Config
from .density import Density
from .model import Vit

__all__ = ["OPERATORS", "Config", "Density", "Vit", "attention", "load", "save"]
