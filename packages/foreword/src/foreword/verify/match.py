"""Sample and match: draw the target's token after every node and accept the draft
tokens that equal it.

The rule is exact for every drafter, on chains and trees.
"""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from foreword.types import Draft, DraftTree, Noise, Verdict
from foreword.verify.base import Rule


def match(
    weights: Float[Tensor, "batch column vocab"], draft: Draft, noise: Noise
) -> Verdict:
    """Follow the target's draws through the draft; the first draw without a matching
    node is the bonus.

    `weights` are log-weights (floating point; -inf = forbidden), column 0 after the
    last committed token and column i + 1 after node i. The target's token after a node
    is argmax(weights + noise.gumbel), a sample of the target's distribution
    (Gumbel-max) that does not depend on the draft: the text equals plain decoding with
    the same noise. A drafter that reads the same noise agrees more often (Daliri,
    Musco, Suresh, arXiv 2408.07978). `noise.gumbel` None decodes greedily. Of siblings
    with the same token the first is followed. The path is as wide as the draft.
    """
    scores = weights if noise.gumbel is None else weights + noise.gumbel
    drawn = scores.argmax(dim=-1).tolist()
    results = [follow(own, tree) for own, tree in zip(drawn, draft.trees, strict=True)]
    return Verdict(
        [path for path, _ in results], [added for _, added in results], draft.nodes
    )


def follow(drawn: Sequence[int], tree: DraftTree) -> tuple[list[int], int]:
    """Return the accepted nodes and the token after them, given the target's drawn
    token of each column.
    """
    nodes: dict[tuple[int, int], int] = {}
    for node, draft_token in enumerate(zip(tree.parents, tree.tokens, strict=True)):
        nodes.setdefault(draft_token, node)
    path: list[int] = []
    here = -1
    while (here := nodes.get((here, drawn[here + 1]), -1)) >= 0:
        path.append(here)
    return path, drawn[path[-1] + 1 if path else 0]


RULE = Rule(
    name="match",
    verify=match,
    follow=follow,
    shares_noise=True,
    lists="distinct",
    keeps="same-text",
)
