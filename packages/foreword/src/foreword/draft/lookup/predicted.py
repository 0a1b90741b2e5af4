"""Drafter that copies from an expected answer, such as the file that is edited, without
a model.

After OpenAI's "Predicted Outputs" (2024).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from foreword.draft.acceptance import AcceptanceEstimate
from foreword.draft.base import Drafter
from foreword.registry import OWN_METHODS
from foreword.types import Batch, Draft, DraftTree, Request, Scores, Verdict

SIZES = (8, 4, 2, 1)
"""Tokens. Lengths of the runs that are looked up, longest first."""
LONGEST = 16
"""Tokens. Longer agreement does not raise the acceptance probability further."""


class PredictedDrafter(Drafter):
    """Drafter that continues the expected answer from the position that the text
    has reached in it.

    This position follows the longest run of last tokens found in the expected answer.
    Of several matches it takes the nearest at or after the previous position, so the
    copy leaves at an edit and rejoins behind it. While no run matches, the edit is
    assumed to be as long as what it replaces. Without `SamplingParams.prediction` the
    prompt is the expected answer.
    """

    about = OWN_METHODS["predicted"]

    def __init__(self) -> None:
        self._copies: dict[int, Copy] = {}

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        pairs = zip(batch.requests, nodes, strict=True)
        return Draft([self._propose(batch, s, budget) for s, budget in pairs])

    def observe(
        self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores
    ) -> None:
        for request, tokens in zip(batch.requests, verdict.said(draft), strict=True):
            copy = self._copies.get(request.id)
            if copy is not None:
                copy.learn(tokens)

    def release(self, request: Request) -> None:
        self._copies.pop(request.id, None)

    def _propose(self, batch: Batch, request: Request, budget: int) -> DraftTree:
        """Return a chain of at most `budget` draft tokens, up to an end of text."""
        if budget <= 0:
            return DraftTree()
        copy = self._copies.get(request.id)
        if copy is None:
            copy = self._copies[request.id] = Copy.of(request)
        copy.follow(request.tokens)
        tree, probability = DraftTree(), 1.0
        for node, token in enumerate(copy.propose(budget)):
            probability *= copy.probability(node)
            if probability <= batch.floor:
                break
            tree.add(token, node - 1, probability)
            if token in request.eos:
                break
        return tree


@dataclass(slots=True)
class Copy:
    """An expected answer, and the position in it that a growing text has reached."""

    expected: tuple[int, ...]
    start: int
    """Index of the first token of the growing text that is matched."""
    read: int
    """Number of tokens of the growing text that were read."""
    place: int = 0
    """The growing text agrees with the expected answer up to this position."""
    stray: int = 0
    """Number of tokens emitted since then that disagree."""
    agreed: int = 0
    """Number of tokens that agree before the draft, at most LONGEST."""
    drafted: tuple[int, ...] = ()
    _acceptance: AcceptanceEstimate = field(default_factory=AcceptanceEstimate)
    _places: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    """Positions after each run of a length in SIZES, ascending."""

    def __post_init__(self) -> None:
        for end in range(1, len(self.expected)):
            for size in SIZES:
                if size <= end:
                    run = self.expected[end - size : end]
                    self._places.setdefault(run, []).append(end)

    @classmethod
    def of(cls, request: Request) -> "Copy":
        """Return a copy of a request's prediction or source from its start, or of its
        prompt once a run matches.
        """
        if expected := request.prediction or request.source:
            return cls(expected, start=request.prompt, read=request.prompt)
        prompt = tuple(request.tokens[: request.prompt])
        return cls(prompt, start=0, read=len(prompt) - 1, place=len(prompt))

    def follow(self, tokens: list[int]) -> None:
        """Update the position from the tokens appended since the last call."""
        for end in range(self.read, len(tokens)):
            on = (
                not self.stray
                and self.place < len(self.expected)
                and self.expected[self.place] == tokens[end]
            )
            self.place, self.stray = self.place + on, self.stray + (not on)
            self._join(tokens[max(self.start, end + 1 - SIZES[0]) : end + 1])
        self.read = max(self.read, len(tokens))
        written = tokens[max(self.start, len(tokens) - LONGEST) :]
        self.agreed = (
            0 if self.stray else agreement(self.expected[: self.place], written)
        )

    def _join(self, written: list[int]) -> None:
        """Move to the nearest position after the longest matching final run, if any."""
        for size in SIZES:
            places = (
                self._places.get(tuple(written[-size:]))
                if size <= len(written)
                else None
            )
            if places:
                self.place = places[
                    min(bisect_left(places, self.place), len(places) - 1)
                ]
                self.stray = 0
                return

    def propose(self, count: int) -> tuple[int, ...]:
        """Return at most `count` expected next tokens."""
        start = self.place + self.stray
        self.drafted = self.expected[start : start + count]
        return self.drafted

    def probability(self, node: int) -> float:
        """Return the acceptance probability of a draft token, given that those before
        it are accepted.
        """
        agreed = self.agreed + node
        return self._acceptance.probability(
            _kind(agreed), (agreed + 0.7) / (agreed + 1.3)
        )

    def learn(self, tokens: list[int]) -> None:
        """Learn from the tokens that were emitted instead of or along the draft."""
        for node, (draft_token, token) in enumerate(
            zip(self.drafted, tokens, strict=False)
        ):
            self._acceptance.learn(_kind(self.agreed + node), draft_token == token)
            if draft_token != token:
                break
        self.drafted = ()


def agreement(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the number of last tokens that two texts have in common."""
    count = 0
    for token, other in zip(reversed(left), reversed(right), strict=False):
        if token != other:
            break
        count += 1
    return count


def _kind(agreed: int) -> int:
    """Return the class of a draft token: 1, 2, 4, 8 or 16 tokens of agreement."""
    return min(agreed, LONGEST).bit_length()
