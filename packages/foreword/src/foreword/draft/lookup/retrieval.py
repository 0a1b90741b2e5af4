"""REST drafter: copies what followed the last tokens in a datastore of other texts (He
et al. 2024, section 3).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from itertools import count
from pathlib import Path

from foreword.draft.base import Drafter, Source
from foreword.draft.lookup.datastore import DEPTH, Datastore
from foreword.errors import InvalidRequest, VocabularyMismatch
from foreword.model import Model, Tokenizer
from foreword.registry import OWN_METHODS
from foreword.types import Batch, Draft, DraftTree, Request

GROWTH, NOVELTY = 1.3, 40.0
"""Weight GROWTH**n of an occurrence that matches n tokens; weight NOVELTY of an unseen
continuation at temperature 0, twice that at 1. Calibrated on answers of the bundled
models to chats outside the datastore."""


class RetrievalDrafter(Drafter):
    """Drafter that grows a tree of what followed the longest corpus matches, highest
    probability first.

    Stateless: every round looks up the last tokens anew.
    """

    about = OWN_METHODS["retrieval"]

    def __init__(
        self, datastore: Datastore, *, occurrences: int = 64, min_match: int = 1
    ) -> None:
        """Use at most `occurrences` corpus positions that match `min_match` tokens or
        more.

        Raises InvalidRequest unless occurrences >= 1 and 1 <= min_match <= 16.
        """
        if occurrences < 1 or not 1 <= min_match <= DEPTH:
            raise InvalidRequest(
                f"cannot look up {occurrences} occurrences with min_match {min_match}. "
                f"Set occurrences >= 1 and 1 <= min_match <= {DEPTH}"
            )
        self._datastore = datastore
        self._occurrences = occurrences
        self._least = min_match

    @classmethod
    def load(
        cls, source: Source, target: Model, tokenizer: Tokenizer | None
    ) -> "RetrievalDrafter":
        """Open the datastore in the folder `source`.

        Raises what `Datastore` raises, InvalidRequest where `source` is not a path, and
        VocabularyMismatch where the datastore has token ids that the target lacks.
        """
        if not isinstance(source, str | Path):
            raise InvalidRequest(
                "cannot look up draft tokens: this method needs a datastore. Build one "
                "with `foreword index FILES --model MODEL --out DIR` and pass "
                "draft='DIR'"
            )
        datastore = Datastore(source, tokenizer)
        if datastore.meta.vocab > target.vocab:
            raise VocabularyMismatch(
                f"cannot use the datastore {source}: it has {datastore.meta.vocab} "
                f"token ids, and the model {target.vocab}. Build one for this model: "
                "foreword index FILES --model MODEL --out DIR"
            )
        return cls(datastore)

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        pairs = zip(batch.requests, nodes, strict=True)
        return Draft([self._tree(batch, s, most) for s, most in pairs])

    def _tree(self, batch: Batch, request: Request, most: int) -> DraftTree:
        deep = min(most, batch.reach(request))
        if deep <= 0:
            return DraftTree()
        places, agree = self._datastore.nearest(request.tokens, self._occurrences)
        places = places[agree >= self._least]
        agree = agree[agree >= self._least].tolist()
        counts = Counter(
            zip(map(tuple, self._datastore.after(places, deep)), agree, strict=True)
        )
        occurrences = [
            Occurrence(after, agree, times) for (after, agree), times in counts.items()
        ]
        novelty = NOVELTY * (1 + request.params.temperature)
        return grown(
            occurrences,
            most,
            novelty,
            ends=request.eos,
            floor=batch.floor,
            chain=not batch.trees,
        )


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A continuation after a match of `agree` tokens; it occurs `times` times."""

    after: tuple[int, ...]
    agree: int
    times: int


def grown(
    occurrences: Sequence[Occurrence],
    most: int,
    novelty: float,
    *,
    ends: frozenset[int] = frozenset(),
    floor: float = 0.0,
    chain: bool = False,
) -> DraftTree:
    """Return the `most` likeliest draft tokens above `floor`, likeliest first; none
    after a token of `ends`.

    The conditional probability of a node is the weight of its occurrences divided by
    the weight of its parent's occurrences plus `novelty`: the estimate of Witten and
    Bell (1991), with weights for counts. With `chain`, each node gets only its
    likeliest child.
    """
    tree, serial = DraftTree(), count()
    waiting: list[tuple[float, int, int, int, int, Sequence[Occurrence]]] = []

    def branch(
        group: Sequence[Occurrence], depth: int, parent: int, probability: float
    ) -> None:
        total, children = _followers(group, depth)
        for share, token, followers in children[: 1 if chain else None]:
            rank = -probability * share / (total + novelty)
            child = (rank, next(serial), token, parent, depth + 1, followers)
            heappush(waiting, child)

    branch(occurrences, 0, -1, 1.0)
    while len(tree.tokens) < most and waiting and -waiting[0][0] > floor:
        rank, _, token, parent, depth, group = heappop(waiting)
        node = tree.add(token, parent, -rank)
        if len(tree.tokens) < most and token not in ends:
            branch(group, depth, node, -rank)
    return tree


def _followers(
    occurrences: Sequence[Occurrence], depth: int
) -> tuple[float, list[tuple[float, int, list[Occurrence]]]]:
    """Return the total weight and each next (weight, token, occurrences), sorted."""
    weights, total = _weights(depth), 0.0
    shares: dict[int, float] = {}
    groups: dict[int, list[Occurrence]] = {}
    for occurrence in occurrences:
        weight = occurrence.times * weights[occurrence.agree]
        total += weight
        if depth < len(occurrence.after):
            token = occurrence.after[depth]
            shares[token] = shares.get(token, 0.0) + weight
            groups.setdefault(token, []).append(occurrence)
    children = [(share, token, groups[token]) for token, share in shares.items()]
    return total, sorted(children, key=lambda child: -child[0])


@cache
def _weights(depth: int) -> list[float]:
    """Return the weights of occurrences that matched 0, 1 … DEPTH tokens first and now
    `depth` more.
    """
    return [GROWTH ** min(agree + depth, DEPTH) for agree in range(DEPTH + 1)]
