"""Lookahead decoding: guesses for several places ahead are bettered side by side, and what comes of it is kept to copy.

Knows the target's answers to its own guesses; needs no model. Window and copies are branches of one tree.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field
from random import Random

from foreword.draft.base import Drafter
from foreword.sampling import choose
from foreword.types import Batch, Draft, Scores, Sequence, Tree, Verdict

GRAM = 3
"""Tokens of an n-gram: one that is looked up and those that are guessed (N of the paper)."""
GUESSES = 8
"""N-grams kept for each first token (G of the paper)."""
SHARE = 0.6
"""Share of the nodes that the window gets."""


class Pool:
    """The latest n-grams of one text and of the window, by their first token."""

    def __init__(self) -> None:
        self._grams: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, gram: List[int]) -> None:
        """Keep an n-gram as the latest of its first token; the oldest makes way."""
        rests = self._grams.setdefault(gram[0], {})
        rest = tuple(gram[1:])
        rests.pop(rest, None)
        rests[rest] = None
        if len(rests) > GUESSES:
            del rests[next(iter(rests))]

    def after(self, token: int) -> list[tuple[int, ...]]:
        """What followed a token, the latest first."""
        return list(reversed(self._grams.get(token, {})))

    def continued(self, text: List[int], count: int) -> list[int]:
        """At most `count` tokens after a text: what followed its last two tokens, or else the last one."""
        said = list(text[-2:])
        known = len(said)
        while len(said) < known + count:
            pairs = (rest[1] for rest in self.after(said[-2]) if rest[0] == said[-1]) if len(said) > 1 else iter(())
            found = next(pairs, None)
            if found is None:
                found = next((rest[0] for rest in self.after(said[-1])), None)
            if found is None:
                break
            said.append(found)
        return said[known:]


@dataclass(slots=True)
class _Window:
    """N-grams in the making. Column i holds guesses for the places `start` + i and after; all are of one length.

    The first tokens of the columns are a chain, and every column goes on from its own: the tree of the paper's mask.
    """

    start: int
    columns: list[list[int]] = field(default_factory=list)

    def shifted(self, answers: List[int]) -> _Window:
        """Each column one place on, with the target's answer at its end."""
        pairs = zip(self.columns, answers, strict=True)
        return _Window(self.start + 1, [[*column[1:], answer] for column, answer in pairs])


@dataclass(slots=True)
class _Planted:
    """A window that is being scored."""

    window: _Window
    ends: list[int]
    """The last node of each column."""
    count: int
    """Guesses of the whole draft."""


@dataclass(slots=True)
class _Text:
    """What is kept of one sequence."""

    pool: Pool = field(default_factory=Pool)
    read: int = 0
    """Tokens whose n-grams are in the pool."""
    window: _Window | None = None
    planted: _Planted | None = None

    def catch_up(self, tokens: list[int]) -> None:
        """Take note of what was written since the last call."""
        for end in range(max(GRAM, self.read + 1), len(tokens) + 1):
            self.pool.add(tokens[end - GRAM : end])
        self.read = len(tokens)

    def columns(self, tokens: list[int], width: int) -> _Window:
        """The window over the last committed token and the `width` - 1 places after it.

        A place keeps its guesses, however far the text has come. At a new one they are those of the place before it,
        continued from the pool, and where that knows nothing tokens of the text, by chance.
        """
        start, dice = len(tokens) - 1, Random(len(tokens))
        gone = start - self.window.start if self.window else 0
        columns = [list(column) for column in self.window.columns[gone : gone + width]] if self.window else []
        while len(columns) < width:
            column = columns[-1][1:] if columns else tokens[-1:]
            column = [*column, *self.pool.continued(column, GRAM - 1 - len(column))]
            columns.append([*column, *dice.choices(tokens, k=GRAM - 1 - len(column))])
        if columns:
            columns[0][0] = tokens[-1]
        return _Window(start, columns)


class _Branches:
    """A tree of guesses in which siblings differ: of two that hold the same token only one would be followed."""

    def __init__(self, most: int) -> None:
        self.tree = Tree()
        self.most = most
        self._nodes: dict[tuple[int, int], int] = {}

    def add(self, tokens: List[int], parent: int = -1, *, spare: int = 0) -> int:
        """Add a branch as far as there is room but for `spare` nodes. Returns its last node."""
        for token in tokens:
            if (parent, token) not in self._nodes:
                if len(self.tree.tokens) >= self.most - spare:
                    break
                self._nodes[parent, token] = self.tree.add(token, parent, 0.0)
            parent = self._nodes[parent, token]
        return parent

    def unweighted(self) -> Tree:
        """The tree without chances: a guess of the window is there for the answer to it, however small its chance."""
        return Tree(self.tree.tokens, self.tree.parents)


class LookaheadDrafter(Drafter):
    """Lookahead decoding (Fu et al., ICML 2024, arXiv 2402.02057), for sampled text too.

    The paper's window iterates argmax(logits), which finds n-grams of greedy text alone. Where the target's noise is
    known the answer at a place is argmax(logits / T + G) with the noise of that place: the sampled text itself is the
    fixed point. Where trees are not judged, one chain is copied from the pool.
    """

    summary = "guesses for later places, bettered in every round until they hold"

    def __init__(self) -> None:
        self._texts: dict[int, _Text] = {}

    def propose(self, batch: Batch, nodes: List[int]) -> Draft:
        return Draft([self._grow(batch, s, most) for s, most in zip(batch.sequences, nodes, strict=True)])

    def observe(self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        for sequence, logits, tree in zip(batch.sequences, scores.logits, draft.trees, strict=True):
            text = self._texts.get(sequence.id)
            if text is None:
                continue
            seen, text.planted = text.planted, None
            if seen is None or not seen.ends or len(tree) != seen.count:  # other guesses were scored than ours
                continue
            columns = [end + 1 for end in seen.ends]
            # The draw after column i is the one of a place GRAM - 1 + i after the last committed token.
            first, last = GRAM - 2, GRAM - 2 + len(seen.ends)
            noise = None if batch.draws.wants_probs else batch.draws.foreseeing(sequence, last)
            answers = choose(logits[columns], sequence.params, noise, list(range(first, last)))
            for column, answer in zip(seen.window.columns, answers, strict=True):
                text.pool.add([*column, answer])
            text.window = seen.window.shifted(answers)

    def release(self, sequence: Sequence) -> None:
        self._texts.pop(sequence.id, None)

    def _grow(self, batch: Batch, sequence: Sequence, most: int) -> Tree:
        """Copies from the pool and the window, in at most `most` nodes."""
        text = self._texts.setdefault(sequence.id, _Text())
        text.planted = None
        if most <= 0:
            return Tree()
        text.catch_up(sequence.tokens)
        branches = _Branches(most)
        deep, width = min(most, batch.reach(sequence)), 0
        if batch.trees:  # a column is GRAM - 1 nodes, the first one less; the last one ends GRAM - 3 + width deep
            width = max(0, min((int(SHARE * most) + 1) // (GRAM - 1), deep - GRAM + 3))
        window = text.columns(sequence.tokens, width)
        kept = width * (GRAM - 1) - 1 if width else 0
        for copy in text.pool.after(sequence.tokens[-1]) if batch.trees else ():
            branches.add(self._until_end(copy[:deep], sequence), spare=kept)
        first, ends = -1, []
        for place, column in enumerate(window.columns):
            first = branches.add(column[:1], first) if place else first
            ends.append(branches.add(column[1:], first))
        branches.add(self._until_end(text.pool.continued(sequence.tokens, deep), sequence))
        text.planted = _Planted(window, ends, len(branches.tree.tokens))
        return branches.unweighted()

    @staticmethod
    def _until_end(guess: List[int], sequence: Sequence) -> list[int]:
        """The guess up to an end-of-text token."""
        ends = [place for place, token in enumerate(guess, 1) if token in sequence.eos]
        return list(guess[: ends[0]] if ends else guess)
