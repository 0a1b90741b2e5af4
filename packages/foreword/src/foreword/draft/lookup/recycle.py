"""Token Recycling drafter: builds trees from the likeliest successors that the target
last computed for each token.

It records the target's logits after every draft token, accepted or not, and needs no
draft model.
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count, pairwise

from foreword.draft.base import Drafter
from foreword.estimators import finite
from foreword.registry import OWN_METHODS
from foreword.types import (
    Batch,
    Draft,
    DraftTree,
    NoiseSource,
    Request,
    Scores,
    Verdict,
)

SUCCESSORS = 8
"""Successors kept per token, as in the paper."""
TENANTS = 8
"""Tenants with a table; the least recently served one is dropped."""
SPREAD = 2.0
"""Logits. Error scale of a recorded one, as the context has changed."""
BINS = 10
"""Bins of a share in the calibration."""
RANKS = 4
"""Ranks calibrated separately; later ranks share the last one."""
PRIOR = 0.7
"""Prior ratio of acceptance probability to share."""
TRIALS = 4.0
"""Weight of the prior, in trials."""
DECAY = 0.999
"""Forgetting factor per trial."""


class Adjacency:
    """Table of each token's likeliest successors and their logits, as of the target's
    last forward over that token.

    72 bytes per token, 590 kB for a vocabulary of 8,192. Plain arrays, since rows are
    read one at a time.
    """

    def __init__(self, vocab: int) -> None:
        self._tokens = array("i", [-1]) * (SUCCESSORS * vocab)
        self._logits = array("f", [0.0]) * (SUCCESSORS * vocab)
        self._writers = array("q", [-1]) * vocab

    def write(
        self,
        token: int,
        successors: Sequence[int],
        logits: Sequence[float],
        writer: int,
    ) -> None:
        """Replace a token's successors, likeliest first; `writer` is the id of the
        request that computed them.
        """
        missing = SUCCESSORS - len(successors)
        row = slice(SUCCESSORS * token, SUCCESSORS * (token + 1))
        self._tokens[row] = array("i", [*successors, *[-1] * missing])
        self._logits[row] = array("f", [*logits, *[0.0] * missing])
        self._writers[token] = writer

    def read(self, token: int) -> tuple[list[int], list[float]]:
        """Return a token's successors, likeliest first, and their logits; empty if the
        token was never read.
        """
        row = slice(SUCCESSORS * token, SUCCESSORS * (token + 1))
        tokens, logits = self._tokens[row].tolist(), self._logits[row].tolist()
        if tokens[-1] >= 0:
            return tokens, logits
        filled = tokens.index(-1)
        return tokens[:filled], logits[:filled]

    def copy(self, text: Sequence[int], writer: int) -> None:
        """Put each token's follower in `text` first among its successors, with the
        logit of the likeliest.
        """
        for token, follower in pairwise(text):
            tokens, logits = self.read(token)
            if follower not in tokens:
                best = max(logits, default=0.0)
                self.write(
                    token,
                    [follower, *tokens][:SUCCESSORS],
                    [best, *logits][:SUCCESSORS],
                    writer,
                )

    def writer(self, token: int) -> int:
        """Return the id of the request that last wrote the token's row, or -1."""
        return self._writers[token]


class Calibration:
    """Acceptance rate of a successor, by its share of the row, its rank, and whether
    its own text wrote the row.

    The prior is PRIOR times the share. The static tree of the paper is an average of
    such counts.
    """

    def __init__(self) -> None:
        self._trials = array("d", [TRIALS]) * (2 * RANKS * BINS)
        cells = range(2 * RANKS * BINS)
        accepted = [TRIALS * PRIOR * (cell % BINS + 0.5) / BINS for cell in cells]
        self._accepted = array("d", accepted)

    def probability(self, share: float, rank: int, fresh: bool) -> float:
        """Return the probability that the target emits this successor."""
        cell = self._cell(share, rank, fresh)
        return self._accepted[cell] / self._trials[cell]

    def learn(self, share: float, rank: int, fresh: bool, accepted: bool) -> None:
        """Count one trial."""
        cell = self._cell(share, rank, fresh)
        self._trials[cell] = DECAY * self._trials[cell] + 1
        self._accepted[cell] = DECAY * self._accepted[cell] + accepted

    @staticmethod
    def _cell(share: float, rank: int, fresh: bool) -> int:
        return (RANKS * fresh + min(rank, RANKS - 1)) * BINS + min(
            int(BINS * share), BINS - 1
        )


@dataclass(frozen=True, slots=True)
class _Memory:
    """State of one tenant."""

    adjacency: Adjacency
    calibration: Calibration


@dataclass(frozen=True, slots=True)
class _Successors:
    """Ranking of successors under one request's temperature and noise."""

    memory: _Memory
    request: Request
    draws: NoiseSource

    def ranked(self, path: list[int]) -> tuple[list[int], list[float]]:
        """Return the successors of the last token of a path of draft tokens, likeliest
        first, and their shares.

        The target emits argmax(logit / T + G), so the successor with the largest value
        is likeliest. With Gumbel errors of the logits, the probabilities are a softmax
        over the error scale.
        """
        tokens, values = self.memory.adjacency.read(self._last(path))
        noise = None
        if not self.draws.wants_probs and tokens:
            noise = self.draws.noise_of(self.request, path, tokens)
        if noise is not None:
            temperature = self.request.params.temperature
            values = [
                value + temperature * number
                for value, number in zip(values, noise, strict=True)
            ]
            order = sorted(range(len(tokens)), key=lambda at: -values[at])
            tokens, values = [tokens[at] for at in order], [values[at] for at in order]
        masses = [math.exp((value - values[0]) / SPREAD) for value in values]
        total = sum(masses)
        return tokens, [mass / total for mass in masses]

    def children(self, path: list[int], reached: float) -> list[tuple[int, float]]:
        """Return (successor, path probability), non-increasing; `reached` is the
        probability of the path.
        """
        tokens, shares = self.ranked(path)
        fresh = self._fresh(self._last(path))
        most = 1.0
        children = []
        for rank, (successor, share) in enumerate(zip(tokens, shares, strict=True)):
            most = min(most, self.memory.calibration.probability(share, rank, fresh))
            children.append((successor, reached * most))
        return children

    def learn(self, emitted: list[int]) -> None:
        """Calibrate on the tokens that the target emitted after the committed text."""
        for depth, follower in enumerate(emitted):
            path = emitted[:depth]
            fresh = self._fresh(self._last(path))
            for rank, (successor, share) in enumerate(
                zip(*self.ranked(path), strict=True)
            ):
                self.memory.calibration.learn(share, rank, fresh, successor == follower)

    def _last(self, path: list[int]) -> int:
        return path[-1] if path else self.request.tokens[-1]

    def _fresh(self, token: int) -> bool:
        return self.memory.adjacency.writer(token) == self.request.id


class RecyclingDrafter(Drafter):
    """Drafter for Token Recycling (Luo et al., ACL 2025, arXiv 2408.08696), with
    calibrated best-first trees.

    The paper's tree is static; this one grows where the target is confident, and uses
    the target's own noise. The requests of a tenant share one table, so drafts depend
    on earlier requests; the emitted text never does.
    """

    about = OWN_METHODS["recycle"]
    reads_target = True

    def __init__(self) -> None:
        self._memories: dict[str, _Memory] = {}
        """By tenant, the most recently served last."""

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        pairs = zip(batch.requests, nodes, strict=True)
        return Draft([self._grow(batch, s, most) for s, most in pairs])

    def observe(
        self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores
    ) -> None:
        emitted = verdict.said(draft)
        memories = [
            (request, self._memory(request.params.tenant, logits.shape[-1]))
            for request, logits in zip(batch.requests, scores.logits, strict=True)
        ]
        for row, (request, memory) in enumerate(memories):
            if request.rounds == 0:
                memory.adjacency.copy(request.copyable, request.id)
            _Successors(memory, request, batch.draws).learn(emitted[row])
        for row, (request, memory) in enumerate(memories):
            logits = scores.logits[row].float()
            best = logits.topk(min(SUCCESSORS, logits.shape[-1]))
            successors, values = best.indices.tolist(), best.values.tolist()
            read = [request.tokens[-1], *draft.trees[row].tokens]
            accepted = (0, *(node + 1 for node in verdict.kept[row]))
            # The last write wins: accepted tokens over rejected ones, then likelier
            # over less likely ones.
            for column in (*reversed(range(len(successors))), *accepted):
                if finite(*values[column]):
                    memory.adjacency.write(
                        read[column], successors[column], values[column], request.id
                    )

    def _memory(self, tenant: str, vocab: int) -> _Memory:
        """Return the state of a tenant, created on first use."""
        memory = self._memories.pop(tenant, None) or _Memory(
            Adjacency(vocab), Calibration()
        )
        if len(self._memories) == TENANTS:
            del self._memories[next(iter(self._memories))]
        self._memories[tenant] = memory
        return memory

    def _grow(self, batch: Batch, request: Request, most: int) -> DraftTree:
        """Return the `most` likeliest draft tokens; each adds its best child and its
        next sibling as candidates.
        """
        tree, memory = DraftTree(), self._memories.get(request.params.tenant)
        deep = min(most, batch.reach(request))
        if memory is None or deep <= 0:
            return tree
        ranking = _Successors(memory, request, batch.draws)
        heap: list[tuple[float, int, _Siblings]] = []
        serial = count()

        def push(siblings: _Siblings) -> None:
            if (
                siblings.rank < len(siblings.children)
                and siblings.probability > batch.floor
            ):
                heappush(heap, (-siblings.probability, next(serial), siblings))

        push(_Siblings(-1, [], ranking.children([], 1.0)))
        while heap and len(tree.tokens) < most:
            _, _, siblings = heappop(heap)
            token, probability = siblings.children[siblings.rank]
            node = tree.add(token, siblings.parent, probability)
            path = [*siblings.path, token]
            if batch.trees:
                push(replace(siblings, rank=siblings.rank + 1))
            if len(path) < deep and token not in request.eos:
                push(_Siblings(node, path, ranking.children(path, probability)))
        return tree


@dataclass(frozen=True, slots=True)
class _Siblings:
    """The children of one node; the first `rank` of them are in the tree."""

    parent: int
    path: list[int]
    """Draft tokens up to the parent."""
    children: list[tuple[int, float]]
    rank: int = 0

    @property
    def probability(self) -> float:
        return self.children[self.rank][1]
