"""One answer's way through a compiled grammar: token masks for every node of a draft
tree, and forced text.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import thread_time
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

from foreword.errors import InvalidRequest
from foreword.types import DraftTree

if TYPE_CHECKING:
    from xgrammar import GrammarMatcher

_BITS = (torch.arange(256)[:, None] >> torch.arange(8) & 1).bool()
"""Bits of each byte, lowest first."""
FEW = 32
"""Tokens that may begin a forced text: one for each prefix that is a token."""
RESERVE, EARNED = 1.0, 0.1
"""Seconds of processor time. Most that one answer's masks may take at once, and what
each round adds to it.

A mask takes less than 1 ms for most grammars. For an ambiguous grammar the time grows
with the cube of the text, and all requests wait for it.
"""


class AnswerGrammar:
    """The `TokenGrammar` of one answer.

    The end of the text is a token of its own for the grammar, one id beyond the
    vocabulary. Where it may come, the request's end-of-text tokens may.

    An error ends this answer alone: `allowed` raises it, which verification calls for
    one answer at a time.
    """

    def __init__(
        self,
        matcher: "GrammarMatcher",
        pieces: Sequence[bytes],
        ends: frozenset[int],
        prompt: int,
    ) -> None:
        """`pieces`: bytes of each token id, none for special ones. `ends`: tokens that
        may end the text.

        `prompt`: tokens of the prompt.
        """
        self._matcher = matcher
        self._pieces = pieces
        self._ends = ends
        self._end = len(pieces)
        self._bits = torch.zeros(1, self._end // 32 + 1, dtype=torch.int32)
        self._padding = _packed(
            range(self._end + 1, 32 * self._bits.shape[1]), self._bits
        )
        """Bits beyond the end of the text, which xgrammar may set."""
        self._only_end = _packed([self._end], self._bits).view(torch.uint8)
        self._read = prompt
        """Committed tokens that the matcher has read, and the prompt."""
        self._path: list[int] = []
        """Draft tokens that it has read after them."""
        self._reserve = RESERVE
        """Seconds of processor time left."""
        self._error: Exception | None = None
        """An error while drafting."""

    def allowed(
        self, tokens: list[int], paths: list[list[int]]
    ) -> Bool[Tensor, "rows vocab"]:
        """Return the tokens that may follow each path; none after a refused one, all
        after the end of the text.

        Raises InvalidRequest if the masks take too long.
        """
        if self._error is not None:
            raise self._error
        bits = torch.zeros(len(paths), self._bits.shape[1], dtype=torch.int32)
        over = []
        for row, path in enumerate(paths):
            if not self._move(tokens, path):
                continue
            if self._matcher.is_terminated():
                over.append(row)
            else:
                self._fill(bits, row)
        unpacked = _unpacked(bits)
        allowed, may_end = unpacked[:, : self._end], unpacked[:, self._end]
        for token in self._ends:
            allowed[:, token] |= may_end
        # the text ends at the node itself
        over += (may_end & ~allowed.any(1)).nonzero()[:, 0].tolist()
        allowed[over] = True
        return allowed

    def accepted(self, tokens: list[int], tree: DraftTree) -> list[int]:
        """Return a draft tree's nodes whose path the grammar accepts, parents first."""
        nodes, paths = {-1}, tree.paths
        with self._drafting():
            for node, parent in enumerate(tree.parents):
                if (
                    parent in nodes
                    and self._drafts
                    and self._move(tokens, paths[node + 1])
                ):
                    nodes.add(node)
        return sorted(nodes - {-1})

    def forced(self, tokens: list[int], path: list[int], most: int) -> list[int]:
        """Return at most `most` tokens that spell the only text that may follow a path;
        empty if there is a choice.

        A token is forced while every other token that may come next is a prefix of it.
        xgrammar's own search, `find_jump_forward_string`, never returns from a grammar
        that forces an endless text.
        """
        span: list[int] = []
        with self._drafting():
            moved = self._drafts and self._move(tokens, path)
            while (
                moved
                and self._drafts
                and len(span) < most
                and not self._matcher.is_terminated()
            ):
                choices = self._choices()
                longest = max(
                    choices, key=lambda token: len(self._pieces[token]), default=-1
                )
                if longest < 0 or not all(
                    self._pieces[longest].startswith(self._pieces[token])
                    for token in choices
                ):
                    break
                self._step(longest)
                span.append(longest)
        return span

    def finished(self, tokens: list[int]) -> bool:
        """Return whether the answer is complete and no text may follow."""
        if not self._move(tokens, []) or not self._matcher.is_completed():
            return False
        return torch.equal(self._next_bytes(), self._only_end)

    @contextmanager
    def _drafting(self) -> Iterator[None]:
        """Keep an error for `allowed`: here it would be of all answers of the batch."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - an error of a library ends this answer alone
            self._error = error

    @property
    def _drafts(self) -> bool:
        """Whether drafts have time left: the last half is for the answer itself."""
        return self._reserve > RESERVE / 2

    def _choices(self) -> list[int]:
        """Return the tokens that may come next; none if they are too many for a forced
        text, or the text may end.
        """
        next_bytes = self._next_bytes()
        if int(next_bytes.count_nonzero()) > FEW:
            return []
        choices = _unpacked(self._bits)[0].nonzero()[:, 0].tolist()
        return [] if self._end in choices else choices

    def _next_bytes(self) -> UInt8[Tensor, "1 bytes"]:
        self._fill(self._bits)
        return self._bits.view(torch.uint8)

    def _fill(self, bits: Int[Tensor, "rows words"], row: int = 0) -> None:
        """Set the bits of the tokens that may come next."""
        with self._charged():
            self._matcher.fill_next_token_bitmask(bits, row)
        bits[row] &= ~self._padding[0]

    @contextmanager
    def _charged(self) -> Iterator[None]:
        """Take processor time from the reserve; raise InvalidRequest at its end."""
        before = thread_time()
        yield
        self._reserve -= thread_time() - before
        if self._reserve < 0:
            raise InvalidRequest(
                "cannot go on with this answer: what it must follow takes too long to "
                "compute at every token. Give a grammar with fewer ways to read one "
                "text"
            )

    def _move(self, tokens: list[int], path: Sequence[int]) -> bool:
        """Move the matcher to the end of `path`, after all committed tokens; return
        False if it refuses the path.
        """
        if self._read < len(tokens):
            self._back(0)
            for token in tokens[self._read :]:
                self._accept(token)
            self._read = len(tokens)
            self._reserve = min(self._reserve + EARNED, RESERVE)
        shared = 0
        while (
            shared < min(len(path), len(self._path))
            and path[shared] == self._path[shared]
        ):
            shared += 1
        self._back(shared)
        return all(self._step(token) for token in path[shared:])

    def _back(self, length: int) -> None:
        """Take back draft tokens until `length` are left."""
        if len(self._path) > length:
            self._matcher.rollback(len(self._path) - length)
            del self._path[length:]

    def _step(self, token: int) -> bool:
        if self._matcher.is_terminated() or not self._accept(token):
            return False
        self._path.append(token)
        return True

    def _accept(self, token: int) -> bool:
        if self._pieces[token]:
            with self._charged():
                return self._matcher.accept_token(token)
        return token in self._ends and self._matcher.accept_token(self._end)


def _packed(
    ids: Iterable[int], like: Int[Tensor, "rows words"]
) -> Int[Tensor, "rows words"]:
    """Return one row of bits, with the bits of `ids` set."""
    bits = torch.zeros_like(like[:1]).view(torch.uint8)
    for token in ids:
        bits[0, token // 8] |= 1 << token % 8
    return bits.view(like.dtype)


def _unpacked(bits: Int[Tensor, "rows words"]) -> Bool[Tensor, "rows ids"]:
    """Return bit masks as booleans, the lowest bit first."""
    return _BITS[bits.view(torch.uint8).long()].flatten(1)
