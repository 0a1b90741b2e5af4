"""Drafts of requests that follow a grammar: no token that it refuses, and the text that
it forces.

Knows drafts and `Request.grammar`; knows nothing about methods, rules or how a grammar
works.
"""

from collections.abc import Sequence

from foreword.types import Batch, Draft, DraftTree, Request
from foreword.types.params import NODES

SPAN = 16
"""Tokens. Longest forced text drafted at once, each a row of the forward."""


def accepted(draft: Draft, requests: Sequence[Request]) -> Draft:
    """Return the draft without the nodes that a grammar refuses.

    Only for chosen draft tokens: dropping a sampled one for its value is biased.
    Sampled ones come from distributions that have the grammar's mask already.
    """
    if draft.probs is not None or not draft.nodes:
        return draft
    nodes: list[list[int]] = []
    for request, tree in zip(requests, draft.trees, strict=True):
        if request.grammar is None:
            nodes.append(list(range(len(tree))))
        else:
            nodes.append(request.grammar.accepted(request.tokens, tree))
    return draft.pruned(nodes)


def extended(draft: Draft, batch: Batch) -> Draft:
    """Return the draft with the text that each grammar forces after the first chain of
    the draft.

    Exact under every rule, for sampled drafts too: the added tokens depend only on the
    tokens before them, and come with the distribution they were chosen from, which has
    one token.
    """
    trees = [
        _extended(request, tree, batch)
        for request, tree in zip(batch.requests, draft.trees, strict=True)
    ]
    if all(map(DraftTree.__eq__, trees, draft.trees)):
        return draft
    if draft.probs is None:
        return Draft(trees, device=draft.device)
    vocab = draft.probs.shape[-1]
    probs = draft.probs.new_zeros(len(trees), max(map(len, trees)), vocab)
    probs[:, : draft.nodes] = draft.probs
    for row, (tree, prefix) in enumerate(zip(trees, draft.trees, strict=True)):
        for node in range(len(prefix), len(tree)):
            probs[row, node] = 0.0
            probs[row, node, tree.tokens[node]] = 1.0
    return Draft(trees, probs, draft.device)


def _extended(
    request: Request,
    tree: DraftTree,
    batch: Batch,
) -> DraftTree:
    if request.grammar is None:
        return tree
    chain = tree.first_chain()
    room = min(SPAN, NODES - len(tree), batch.reach(request) - len(chain))
    if room <= 0:
        return tree
    path = [tree.tokens[node] for node in chain]
    span = request.grammar.forced(request.tokens, path, room)
    if not span:
        return tree
    weighed = len(tree.probabilities) == len(tree)
    last = chain[-1] if chain else -1
    longer = DraftTree([*tree.tokens], [*tree.parents], [*tree.probabilities])
    for token in span:
        probability = longer.probabilities[last] if weighed and last >= 0 else 1.0
        last = longer.add(token, last, probability)
    return longer if weighed else DraftTree(longer.tokens, longer.parents)
