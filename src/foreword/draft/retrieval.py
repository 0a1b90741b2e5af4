"""REST: what followed the end of the text in a datastore of other texts may follow again (He et al. 2024, section 3).

Knows the tokens of each sequence and the datastore; needs no model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from functools import cache
from heapq import heappop, heappush
from pathlib import Path

from foreword.draft.base import Drafter, Source
from foreword.draft.datastore import DEPTH, Datastore
from foreword.errors import InvalidRequest, VocabularyMismatch
from foreword.model import Model, Tokenizer
from foreword.types import Batch, Draft, Sequence, Tree

GROWTH, NOVELTY = 1.3, 40.0
"""An occurrence that agrees with the text for n tokens counts GROWTH**n; what was never seen counts NOVELTY at
temperature 0, twice that at 1. Chosen so that chances come true, on answers of the family to chats it never saw."""


class RetrievalDrafter(Drafter):
    """Grows a tree of what followed where the corpus agrees longest with the end of the text, best chance first.

    Stateless: every round looks the end of the text up afresh.
    """

    summary = "looks the end of the text up in a datastore made by `foreword index`"
    takes, needs = "a datastore", True

    def __init__(self, datastore: Datastore, *, occurrences: int = 64, min_match: int = 1) -> None:
        """Weigh up at most `occurrences` places that agree with the text for `min_match` tokens or more.

        Raises InvalidRequest unless occurrences >= 1 and 1 <= min_match <= 16.
        """
        if occurrences < 1 or not 1 <= min_match <= DEPTH:
            raise InvalidRequest(
                f"a lookup needs occurrences >= 1 and 1 <= min_match <= {DEPTH}, got {occurrences} and {min_match}"
            )
        self._datastore, self._occurrences, self._least = datastore, occurrences, min_match

    @classmethod
    def load(cls, source: Source, target: Model, tokenizer: Tokenizer | None) -> RetrievalDrafter:
        """Open the datastore in the folder `source`.

        Raises what `Datastore` raises, InvalidRequest where no folder is named, and VocabularyMismatch where the
        datastore has token ids that the target has not.
        """
        if not isinstance(source, str | Path):
            raise InvalidRequest(
                "this method needs a datastore: build one with `foreword index FILES --model MODEL --out DIR` "
                "and give draft='DIR'"
            )
        datastore = Datastore(source, tokenizer)
        if datastore.meta.vocab > target.vocab:
            raise VocabularyMismatch(
                f"the datastore {source} has {datastore.meta.vocab} token ids and the model {target.vocab}; build one "
                "for this model: foreword index FILES --model MODEL --out DIR"
            )
        return cls(datastore)

    def propose(self, batch: Batch, nodes: List[int]) -> Draft:
        return Draft([self._tree(batch, s, most) for s, most in zip(batch.sequences, nodes, strict=True)])

    def _tree(self, batch: Batch, sequence: Sequence, most: int) -> Tree:
        deep = min(most, batch.reach(sequence))
        if deep <= 0:
            return Tree()
        places, agree = self._datastore.nearest(sequence.tokens, self._occurrences)
        places, agree = places[agree >= self._least], agree[agree >= self._least].tolist()
        alike = Counter(zip(map(tuple, self._datastore.after(places, deep)), agree, strict=True))
        found = [Occurrence(after, agree, times) for (after, agree), times in alike.items()]
        novelty = NOVELTY * (1 + sequence.params.temperature)
        return grown(found, most, novelty, ends=sequence.eos, floor=batch.floor, chain=not batch.trees)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """What came next somewhere in the corpus, where it agrees with the text for `agree` tokens, and how often."""

    after: tuple[int, ...]
    agree: int
    times: int


@dataclass(order=True, slots=True)
class _Branch:
    """A guess that may be added, likeliest first; among equals the one that was found first."""

    rank: float
    """Its chance, negative."""
    found: int
    token: int = field(compare=False)
    parent: int = field(compare=False)
    depth: int = field(compare=False)
    occurrences: list[Occurrence] = field(compare=False)


def grown(
    occurrences: List[Occurrence],
    most: int,
    novelty: float,
    *,
    ends: frozenset[int] = frozenset(),
    floor: float = 0.0,
    chain: bool = False,
) -> Tree:
    """The `most` likeliest guesses above `floor`, likeliest first; nothing follows a token of `ends`.

    The chance of a guess after its parent is the weight of the occurrences that went there over that of all that came
    to the parent and of `novelty`: the estimate of Witten and Bell (1991), with weights for counts. With `chain` only
    the likeliest child of each guess is looked at.
    """
    tree, open_, found = Tree(), list[_Branch](), 0
    node, chance, depth, here = -1, 1.0, 0, list(occurrences)
    while len(tree.tokens) < most:
        if node < 0 or tree.tokens[node] not in ends:
            total, children = _followers(here, depth)
            for share, token, those in children[: 1 if chain else None]:
                found += 1
                heappush(open_, _Branch(-chance * share / (total + novelty), found, token, node, depth + 1, those))
        if not open_ or -open_[0].rank <= floor:
            break
        best = heappop(open_)
        chance, depth, here = -best.rank, best.depth, best.occurrences
        node = tree.add(best.token, best.parent, chance)
    return tree


def _followers(occurrences: List[Occurrence], depth: int) -> tuple[float, list[tuple[float, int, list[Occurrence]]]]:
    """Weight of all occurrences, and (weight, token, occurrences) of each token that comes next, heaviest first."""
    weights, total = _weights(depth), 0.0
    shares: dict[int, float] = {}
    groups: dict[int, list[Occurrence]] = {}
    for one in occurrences:
        weight = one.times * weights[one.agree]
        total += weight
        if depth < len(one.after):
            token = one.after[depth]
            shares[token] = shares.get(token, 0.0) + weight
            groups.setdefault(token, []).append(one)
    children = [(share, token, groups[token]) for token, share in shares.items()]
    return total, sorted(children, key=lambda child: -child[0])


@cache
def _weights(depth: int) -> list[float]:
    """Weight of an occurrence that agreed for 0, 1 … DEPTH tokens at first and now for `depth` more."""
    return [GROWTH ** min(agree + depth, DEPTH) for agree in range(DEPTH + 1)]
