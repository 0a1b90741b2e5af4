"""Multi-step speculative sampling: verify a tree, siblings sampled independently."""

from jaxtyping import Float
from torch import Tensor

from foreword.types import Draft, Noise, Verdict
from foreword.verify.base import Rule
from foreword.verify.rejection import given_text
from foreword.verify.without_replacement import descend, residual


def specinfer(
    weights: Float[Tensor, "batch column vocab"], draft: Draft, noise: Noise
) -> Verdict:
    """Verify a tree whose siblings may be equal (Miao et al., ASPLOS 2024, arXiv
    2305.09781, Alg. 2).

    `weights` are log-weights (floating point; -inf = forbidden), column 0 after the
    last committed token and column i + 1 after node i. As `without_replacement`, but
    every sibling was sampled from the same distribution. Equal siblings must all be in
    the draft, because each rejection counts. `noise.accept` and `noise.bonus` must be
    independent of each other and of the drafter's noise.
    """
    return descend(
        weights,
        draft,
        noise,
        lambda distribution, _tried, _token: distribution,
        residual,
    )


RULE = Rule(
    name="specinfer", verify=specinfer, given_text=given_text, lists="independent"
)
