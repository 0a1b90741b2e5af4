"""Prompt lookup: copies what followed the last few tokens earlier in prompt or output,
without a model.

After Saxena 2023, "Prompt Lookup Decoding".
"""

from collections.abc import Sequence

from foreword.draft.base import Drafter, chosen, until_end
from foreword.errors import InvalidRequest
from foreword.registry import OWN_METHODS
from foreword.types import Batch, Draft, Request


class NgramDrafter(Drafter):
    """Drafter that finds the most recent earlier occurrence of the longest final
    n-gram, and copies what followed.

    On chat answers, n from 1 to 4 gives all that longer n-grams give; on long source
    code a longer n adds below 1 %. The most recent occurrence beats the first one.
    Draft tokens from n = 1 are often rejected, but cost only their scoring; the draft
    budget decides how many are scored.
    """

    about = OWN_METHODS["ngram"]

    def __init__(self, max_ngram: int = 4, min_ngram: int = 1) -> None:
        """Look for n-grams of these lengths; InvalidRequest unless 1 <= min <= max."""
        if not 1 <= min_ngram <= max_ngram:
            raise InvalidRequest(
                f"cannot look up n-grams of {min_ngram} to {max_ngram} tokens. Set 1 "
                "<= min_ngram <= max_ngram"
            )
        self._sizes = range(min_ngram, max_ngram + 1)
        self._indexes: dict[int, NgramIndex] = {}

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        pairs = zip(batch.requests, nodes, strict=True)
        return chosen([self._propose(s, budget) for s, budget in pairs])

    def release(self, request: Request) -> None:
        self._indexes.pop(request.id, None)

    def _propose(self, request: Request, budget: int) -> list[int]:
        """Return at most `budget` tokens, none after an end-of-text token."""
        if budget <= 0:
            return []
        index = self._indexes.get(request.id)
        if index is None:
            index = NgramIndex(self._sizes)
            self._indexes[request.id] = index
        tokens = request.copyable
        index.read(tokens)
        start = index.find(tokens)
        if start is None:
            return []
        return until_end(copied(tokens, start, budget), request.eos)


class NgramIndex:
    """Index from each n-gram of one growing text to the end of its latest
    occurrence that has a continuation.

    Work per new token is constant. Memory grows by at most one entry per size and
    token.
    """

    __slots__ = ("_ends", "_read", "_sizes")

    def __init__(self, sizes: range) -> None:
        self._sizes = sizes
        self._ends: dict[tuple[int, ...], int] = {}
        self._read = 0
        """N-grams that end at or before this position are indexed."""

    def read(self, tokens: list[int]) -> None:
        """Index the new tokens, except final n-grams without a continuation yet."""
        ends, sizes = self._ends, self._sizes
        for end in range(self._read + 1, len(tokens)):
            for size in sizes:
                if size > end:
                    break
                ends[tuple(tokens[end - size : end])] = end
        self._read = max(self._read, len(tokens) - 1)

    def find(self, tokens: list[int]) -> int | None:
        """Return where the longest indexed n-gram of the end goes on, or None."""
        start = None
        for size in self._sizes:
            end = self._ends.get(tuple(tokens[-size:]))
            if end is None:  # every occurrence of a longer n-gram is also one of this
                break
            start = end
        return start


def copied(tokens: list[int], start: int, count: int) -> list[int]:
    """Return `count` tokens from `start` on; a copy that reaches the end repeats
    itself, as in LZ77.

    A repetitive text is thus continued for the whole budget, however short its
    period.
    """
    draft_tokens = tokens[start : start + count]
    period = len(draft_tokens)
    if period == count:
        return draft_tokens
    return [draft_tokens[index % period] for index in range(count)]
