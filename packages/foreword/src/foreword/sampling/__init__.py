"""Sampling: the next-token distribution, its filters, noise and draws."""

import math

from jaxtyping import Float
from torch import Tensor

Logits = Float[Tensor, "rows vocab"]

FORBIDDEN = -math.inf
"""Log-weight of a token that cannot be drawn."""
