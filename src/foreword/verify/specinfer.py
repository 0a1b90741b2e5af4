"""Multi-step speculative sampling: judge a tree from the root on, sibling by sibling, drawn independently.

Knows trees and the laws their siblings were drawn from; a chain is a tree with one branch.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from foreword.types import Draft, Noise, Verdict
from foreword.verify.without_replacement import descend, residual


def specinfer(weights: Float[Tensor, "batch column vocab"], draft: Draft, noise: Noise) -> Verdict:
    """Judge a tree of siblings that may be equal (Miao et al., ASPLOS 2024, arXiv 2305.09781, Alg. 2).

    `weights` are log-weights (floating point; -inf = forbidden), column 0 after the last committed token and column
    i + 1 after node i. As `without_replacement`, but every sibling was drawn from the same law, whatever came before
    it: equal siblings must all be in the draft, for each refusal counts. `noise.accept` and `noise.bonus` must be
    independent of each other and of the noise that drew the tokens.
    """
    return descend(weights, draft, noise, lambda law, _tried, _token: law, residual)
