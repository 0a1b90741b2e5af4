"""Lookahead decoding: refines draft tokens for several positions in parallel, and pools
the n-grams to copy them.

Needs no draft model. The window and the copies are branches of one tree.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from foreword.draft.base import Drafter, until_end
from foreword.registry import OWN_METHODS
from foreword.types import Batch, Draft, DraftTree, Request, Scores, Verdict

GRAM = 3
"""Tokens of an n-gram: the one looked up and the draft after it (the paper's N)."""
NGRAMS_PER_TOKEN = 8
"""N-grams kept per first token (G in the paper)."""
SHARE = 0.6
"""Share of the draft budget used by the window."""


class Pool:
    """The latest n-grams of one text and its window, by first token."""

    def __init__(self) -> None:
        self._grams: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, gram: Sequence[int]) -> None:
        """Add an n-gram as the latest of its first token, and limit their number."""
        rests = self._grams.setdefault(gram[0], {})
        rest = tuple(gram[1:])
        rests.pop(rest, None)
        rests[rest] = None
        if len(rests) > NGRAMS_PER_TOKEN:
            del rests[next(iter(rests))]

    def after(self, token: int) -> list[tuple[int, ...]]:
        """Return the continuations of a token, latest first."""
        return list(reversed(self._grams.get(token, {})))

    def continued(self, text: Sequence[int], count: int) -> list[int]:
        """Return at most `count` tokens after `text`, each by what followed the last
        two tokens, else the last one.
        """
        tokens = list(text[-2:])
        start = len(tokens)
        while len(tokens) < start + count:
            token = None
            if len(tokens) > 1:
                grams = self.after(tokens[-2])
                pairs = (rest[1] for rest in grams if rest[0] == tokens[-1])
                token = next(pairs, None)
            if token is None:
                token = next((rest[0] for rest in self.after(tokens[-1])), None)
            if token is None:
                break
            tokens.append(token)
        return tokens[start:]


@dataclass(slots=True)
class _Window:
    """Incomplete n-grams. Column i holds draft tokens for positions from `start` + i
    on; all columns have one length.

    The first tokens of the columns form a chain, and each column continues its own: the
    tree of the paper's mask.
    """

    start: int
    columns: list[list[int]]
    ends: list[int] = field(default_factory=list)
    """Last node of each column in the draft that is being scored."""
    count: int = 0
    """Draft tokens of that draft."""

    def shifted(self, answers: Sequence[int]) -> "_Window":
        """Return the window one position on, the target's answer in each column."""
        pairs = zip(self.columns, answers, strict=True)
        return _Window(
            self.start + 1, [[*column[1:], answer] for column, answer in pairs]
        )


@dataclass(slots=True)
class _Text:
    """State of one text."""

    pool: Pool = field(default_factory=Pool)
    read: int = 0
    """Tokens whose n-grams are in the pool."""
    window: _Window | None = None
    scored: _Window | None = None
    """The window whose draft is being scored."""

    def prefill(self, tokens: list[int]) -> None:
        """Add the n-grams of the tokens appended since the last call."""
        for end in range(max(GRAM, self.read + 1), len(tokens) + 1):
            self.pool.add(tokens[end - GRAM : end])
        self.read = len(tokens)

    def columns(self, tokens: list[int], width: int) -> _Window:
        """Return the window over the last committed token and the `width` - 1 positions
        after it.

        A position keeps its draft tokens between rounds. A new one takes the draft
        tokens of the position before it, continued from the pool, or else by random
        tokens of the text.
        """
        start, random = len(tokens) - 1, Random(len(tokens))
        columns: list[list[int]] = []
        if self.window:
            skipped = start - self.window.start
            known = self.window.columns[skipped : skipped + width]
            columns = [list(column) for column in known]
        while len(columns) < width:
            column = columns[-1][1:] if columns else tokens[-1:]
            column = [*column, *self.pool.continued(column, GRAM - 1 - len(column))]
            columns.append([*column, *random.choices(tokens, k=GRAM - 1 - len(column))])
        if columns:
            columns[0][0] = tokens[-1]
        return _Window(start, columns)


class _Branches:
    """A draft tree without equal siblings: a verifier would follow only one of them."""

    def __init__(self, most: int) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.most = most
        self._nodes: dict[tuple[int, int], int] = {}

    def add(self, tokens: Sequence[int], parent: int = -1, *, spare: int = 0) -> int:
        """Add a branch, to at most `most` - `spare` nodes; return its last node."""
        for token in tokens:
            if (parent, token) not in self._nodes:
                if len(self.tokens) >= self.most - spare:
                    break
                self._nodes[parent, token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(parent)
            parent = self._nodes[parent, token]
        return parent


class LookaheadDrafter(Drafter):
    """Drafter for lookahead decoding (Fu et al., ICML 2024, arXiv 2402.02057).

    The window iterates argmax(logits), as the paper's does, also for sampled requests:
    the noise of a token belongs to the text before it, which the window does not
    know. So n-grams of sampled text are found less often. Where the verifier takes no
    trees, one chain is copied from the pool.
    """

    about = OWN_METHODS["lookahead"]
    reads_target = True

    def __init__(self) -> None:
        self._texts: dict[int, _Text] = {}

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        return Draft(
            [
                self._grow(batch, s, most)
                for s, most in zip(batch.requests, nodes, strict=True)
            ]
        )

    def observe(
        self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores
    ) -> None:
        for request, logits, tree in zip(
            batch.requests, scores.logits, draft.trees, strict=True
        ):
            text = self._texts.get(request.id)
            if text is None:
                continue
            scored, text.scored = text.scored, None
            # another draft was scored
            if scored is None or not scored.ends or len(tree) != scored.count:
                continue
            columns = [end + 1 for end in scored.ends]
            answers = logits[columns].argmax(-1).tolist()
            for column, answer in zip(scored.columns, answers, strict=True):
                text.pool.add([*column, answer])
            text.window = scored.shifted(answers)

    def release(self, request: Request) -> None:
        self._texts.pop(request.id, None)

    def _grow(self, batch: Batch, request: Request, most: int) -> DraftTree:
        """Return copies from the pool and the window, in at most `most` nodes."""
        text = self._texts.setdefault(request.id, _Text())
        text.scored = None
        if most <= 0:
            return DraftTree()
        tokens = request.copyable
        text.prefill(tokens)
        branches = _Branches(most)
        deep, width = min(most, batch.reach(request)), 0
        # a column is GRAM - 1 nodes, the first one less; the last one ends GRAM - 3 +
        # width deep
        if batch.trees:
            width = max(0, min((int(SHARE * most) + 1) // (GRAM - 1), deep - GRAM + 3))
        window = text.columns(tokens, width)
        reserved = width * (GRAM - 1) - 1 if width else 0
        for copy in text.pool.after(tokens[-1]) if batch.trees else ():
            branches.add(until_end(copy[:deep], request.eos), spare=reserved)
        first = -1
        for number, column in enumerate(window.columns):
            first = branches.add(column[:1], first) if number else first
            window.ends.append(branches.add(column[1:], first))
        branches.add(until_end(text.pool.continued(tokens, deep), request.eos))
        window.count = len(branches.tokens)
        text.scored = window
        # without probabilities: a window is scored for its answers, however unlikely
        return DraftTree(branches.tokens, branches.parents)
