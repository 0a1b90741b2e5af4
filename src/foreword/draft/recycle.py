"""Token Recycling: what the target last found likely after a token is guessed to follow it again, as a tree.

Knows the target's logits after every guess, kept or not; needs no model, and reads no text but the prompt, once.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence as List
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, pairwise

from foreword.draft.base import Drafter
from foreword.draft.evidence import finite
from foreword.types import Batch, Draft, Scores, Sequence, Tree, Verdict

SUCCESSORS = 8
"""Kept for each token, as in the paper."""
TENANTS = 8
"""Tenants that are remembered; the one that was not served for longest makes way."""
SPREAD = 2.0
"""Scale of the error of a remembered logit: the text before the token was another one."""
BINS = 10
"""Steps of a share, for its calibration."""
RANKS = 4
"""Ranks that are calibrated apart; the later ones together."""
TRUST = 0.7
"""Chance that a successor's share comes true, before anything is known, and the trials that this is worth."""
TRIALS = 4.0
DECAY = 0.999
"""Weight of the past, per trial."""


class Adjacency:
    """For each token its likeliest successors and their logits, as the target saw them when it last read that token.

    72 bytes a token, so 590 kB for a vocabulary of 8,192. Plain arrays: they are read one row at a time.
    """

    def __init__(self, vocab: int) -> None:
        self._tokens = array("i", [-1]) * (SUCCESSORS * vocab)
        self._logits = array("f", [0.0]) * (SUCCESSORS * vocab)
        self._writers = array("q", [-1]) * vocab

    @property
    def bytes(self) -> int:
        """Memory held."""
        return sum(len(part) * part.itemsize for part in (self._tokens, self._logits, self._writers))

    def write(self, token: int, successors: List[int], logits: List[float], writer: int) -> None:
        """Replace what follows a token, likeliest first; `writer` is the id of the sequence that saw it."""
        missing = SUCCESSORS - len(successors)
        row = slice(SUCCESSORS * token, SUCCESSORS * (token + 1))
        self._tokens[row] = array("i", [*successors, *[-1] * missing])
        self._logits[row] = array("f", [*logits, *[0.0] * missing])
        self._writers[token] = writer

    def read(self, token: int) -> tuple[list[int], list[float]]:
        """Successors of a token, likeliest first, and their logits; none where it was never seen."""
        row = slice(SUCCESSORS * token, SUCCESSORS * (token + 1))
        tokens, logits = self._tokens[row].tolist(), self._logits[row].tolist()
        if tokens[-1] >= 0:
            return tokens, logits
        known = tokens.index(-1)
        return tokens[:known], logits[:known]

    def copy(self, text: List[int], writer: int) -> None:
        """Put what follows each token of a text before what was known to; as likely as the likeliest."""
        for token, follower in pairwise(text):
            tokens, logits = self.read(token)
            if follower not in tokens:
                best = max(logits, default=0.0)
                self.write(token, [follower, *tokens][:SUCCESSORS], [best, *logits][:SUCCESSORS], writer)

    def writer(self, token: int) -> int:
        """Id of the sequence in which the token was seen last; -1 if in none."""
        return self._writers[token]


class Calibration:
    """How often a successor came true, by its share of the row, its rank, and whether its own text had written the row.

    The first trials are worth what the share says; the static tree of the paper is an average of such counts.
    """

    def __init__(self) -> None:
        self._tried = array("d", [TRIALS]) * (2 * RANKS * BINS)
        self._true = array("d", [TRIALS * TRUST * (cell % BINS + 0.5) / BINS for cell in range(2 * RANKS * BINS)])

    def chance(self, share: float, rank: int, fresh: bool) -> float:
        """The chance that this successor is what the target says."""
        cell = self._cell(share, rank, fresh)
        return self._true[cell] / self._tried[cell]

    def learn(self, share: float, rank: int, fresh: bool, came_true: bool) -> None:
        """Count one trial."""
        cell = self._cell(share, rank, fresh)
        self._tried[cell] = DECAY * self._tried[cell] + 1
        self._true[cell] = DECAY * self._true[cell] + came_true

    @staticmethod
    def _cell(share: float, rank: int, fresh: bool) -> int:
        return (RANKS * fresh + min(rank, RANKS - 1)) * BINS + min(int(BINS * share), BINS - 1)


@dataclass(frozen=True, slots=True)
class _Memory:
    """What is kept of one tenant."""

    adjacency: Adjacency
    calibration: Calibration


@dataclass(frozen=True, slots=True)
class _Outlook:
    """What may follow the tokens of one sequence, in the order of its own request."""

    memory: _Memory
    sequence: Sequence
    noise: memoryview | None
    """The target's Gumbel noise [depth, vocab]; None when greedy, or when it is not shared."""

    def ranked(self, token: int, depth: int) -> tuple[list[int], list[float]]:
        """Successors of a token `depth` after the last committed one, likeliest first, and the share of each in all.

        The target says argmax(logit / T + G), so of the successors that one is likeliest for which this is largest.
        With errors of the logits that are Gumbel themselves, chances are a softmax over their scale.
        """
        tokens, values = self.memory.adjacency.read(token)
        if self.noise is not None and tokens:
            heat, noise = self.sequence.params.temperature, self.noise
            values = [value + heat * noise[depth, token] for value, token in zip(values, tokens, strict=True)]
            order = sorted(range(len(tokens)), key=lambda at: -values[at])
            tokens, values = [tokens[at] for at in order], [values[at] for at in order]
        masses = [math.exp((value - values[0]) / SPREAD) for value in values]
        total = sum(masses)
        return tokens, [mass / total for mass in masses]

    def children(self, token: int, depth: int, reached: float) -> list[tuple[int, float]]:
        """The same, each with the chance that the target's text goes through it, never rising."""
        tokens, shares = self.ranked(token, depth)
        fresh, most, found = self._fresh(token), 1.0, []
        for rank, (successor, share) in enumerate(zip(tokens, shares, strict=True)):
            most = min(most, self.memory.calibration.chance(share, rank, fresh))
            found.append((successor, reached * most))
        return found

    def learn(self, said: List[int]) -> None:
        """What the target wrote after the last committed token."""
        for depth, (token, follower) in enumerate(pairwise([self.sequence.tokens[-1], *said])):
            fresh = self._fresh(token)
            for rank, (successor, share) in enumerate(zip(*self.ranked(token, depth), strict=True)):
                self.memory.calibration.learn(share, rank, fresh, successor == follower)

    def _fresh(self, token: int) -> bool:
        return self.memory.adjacency.writer(token) == self.sequence.id


def _outlook(batch: Batch, sequence: Sequence, draws: int, memory: _Memory) -> _Outlook:
    """For the next so many draws."""
    foreseen = None if batch.draws.wants_probs else batch.draws.foreseeing(sequence, draws)
    # Element by element a memoryview is read much sooner than a tensor.
    return _Outlook(memory, sequence, None if foreseen is None else foreseen.cpu().numpy().data)


class RecyclingDrafter(Drafter):
    """Token Recycling (Luo et al., ACL 2025, arXiv 2408.08696), with trees grown best-first from calibrated chances.

    The paper's tree has one shape; this one grows where the target is sure, and foresees the target's own noise. All
    sequences of a tenant share one memory, so guesses depend on what was served before; the text never does.
    """

    summary = "what the target found likely after each token before"

    def __init__(self) -> None:
        self._memories: dict[str, _Memory] = {}
        """By tenant, the one served last at the end."""

    def propose(self, batch: Batch, nodes: List[int]) -> Draft:
        return Draft([self._grow(batch, s, most) for s, most in zip(batch.sequences, nodes, strict=True)])

    def observe(self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        said = verdict.said(draft)
        memories = [
            self._remember(sequence.params.tenant, logits.shape[-1])
            for sequence, logits in zip(batch.sequences, scores.logits, strict=True)
        ]
        for row, (sequence, memory) in enumerate(zip(batch.sequences, memories, strict=True)):
            if sequence.rounds == 0:
                memory.adjacency.copy(sequence.tokens, sequence.id)
            _outlook(batch, sequence, len(said[row]), memory).learn(said[row])
        for row, (sequence, memory) in enumerate(zip(batch.sequences, memories, strict=True)):
            logits = scores.logits[row].float()
            best = logits.topk(min(SUCCESSORS, logits.shape[-1]))
            successors, values = best.indices.tolist(), best.values.tolist()
            read = [sequence.tokens[-1], *draft.trees[row].tokens]
            kept = (0, *(node + 1 for node in verdict.kept[row]))
            # The last to write stays: the text itself, before it the likelier guesses.
            for column in (*reversed(range(len(successors))), *kept):
                if finite(*values[column]):
                    memory.adjacency.write(read[column], successors[column], values[column], sequence.id)

    def _remember(self, tenant: str, vocab: int) -> _Memory:
        """The memory of a tenant, a new one if there is none."""
        memory = self._memories.pop(tenant, None) or _Memory(Adjacency(vocab), Calibration())
        if len(self._memories) == TENANTS:
            del self._memories[next(iter(self._memories))]
        self._memories[tenant] = memory
        return memory

    def _grow(self, batch: Batch, sequence: Sequence, most: int) -> Tree:
        """The `most` likeliest guesses, likeliest first; each brings in its best child and its next sibling."""
        tree, memory = Tree(), self._memories.get(sequence.params.tenant)
        deep = min(most, batch.reach(sequence))
        if memory is None or deep <= 0:
            return tree
        outlook = _outlook(batch, sequence, deep, memory)
        heap: list[tuple[float, int, _Family]] = []
        turn = count()

        def consider(family: _Family) -> None:
            if family.rank < len(family.children) and family.chance > batch.floor:
                heappush(heap, (-family.chance, next(turn), family))

        consider(_Family(-1, 0, outlook.children(sequence.tokens[-1], 0, 1.0)))
        while heap and len(tree.tokens) < most:
            _, _, family = heappop(heap)
            token, chance = family.children[family.rank]
            node, depth = tree.add(token, family.parent, chance), family.depth + 1
            if batch.trees:
                consider(_Family(family.parent, family.depth, family.children, family.rank + 1))
            if depth < deep and token not in sequence.eos:
                consider(_Family(node, depth, outlook.children(token, depth, chance)))
        return tree


@dataclass(frozen=True, slots=True)
class _Family:
    """The children of one guess, of which those before `rank` are in the tree."""

    parent: int
    depth: int
    children: list[tuple[int, float]]
    rank: int = 0

    @property
    def chance(self) -> float:
        return self.children[self.rank][1]
