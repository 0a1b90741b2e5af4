"""The drafter with a head that reads the target's hidden states, which wait in buffers,
and what such a head has read of each request.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.draft.tree.drafter import ModelDrafter, capacity, catch_up
from foreword.errors import ModelError
from foreword.model import Mode, Read
from foreword.types import Batch, Request
from foreword.types.growth import GrownTree, TreeRequest


@dataclass(slots=True)
class _StateBuffer:
    """Rows of one request, for the tokens from `start` up to before `end`."""

    start: int = 0
    end: int = 0
    parts: list[Tensor] = field(default_factory=list)


class TargetStates:
    """Buffer of the hidden states passed to `Drafter.on_hidden_states`."""

    def __init__(self) -> None:
        self._buffers: dict[int, _StateBuffer] = {}

    def add(
        self, id: int, start: int, hidden: Float[Tensor, "tokens features"]
    ) -> None:
        """Append the states of the tokens from index `start` on; skip them if they
        leave a gap or overlap.
        """
        buffer = self._buffers.setdefault(id, _StateBuffer())
        if start == buffer.end:
            buffer.parts.append(hidden)
            buffer.end += len(hidden)

    def up_to_date(self, request: Request) -> bool:
        """Return whether states are present for every token but the last, which the
        target has not read yet.
        """
        buffer = self._buffers.get(request.id)
        return buffer is not None and buffer.end == len(request.tokens) - 1

    def rows(self, id: int, start: int, count: int) -> Float[Tensor, "count features"]:
        """Return the states of `count` tokens from index `start` on."""
        buffer = self._buffers[id]
        if len(buffer.parts) > 1:
            buffer.parts = [torch.cat(buffer.parts)]
        first = start - buffer.start
        return buffer.parts[0][first : first + count]

    def drop(self, id: int, start: int) -> None:
        """Drop the states of the tokens before index `start`."""
        buffer = self._buffers[id]
        buffer.parts = [self.rows(id, start, buffer.end - start)]
        buffer.start = start

    def forget(self, id: int) -> None:
        """Drop the states of a finished request; ignore unknown ids."""
        self._buffers.pop(id, None)


class HeadReader(ABC):
    """A head, the target's hidden states until it has read them, and how far it has
    read each request.
    """

    mode = Mode.TREE

    def __init__(self, context: int) -> None:
        self.context = context
        """Tokens. Longest text that it can read."""
        self.target_states = TargetStates()
        self._read: dict[int, int] = {}
        """Tokens of each request whose states the head has read."""

    @abstractmethod
    def extend(self, request: Request) -> Read:
        """Read a request up to its end, and return the Read of the end."""

    @abstractmethod
    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        """Return logits after a text or its draft tokens."""

    @abstractmethod
    def grow(self, read: Read, ask: TreeRequest) -> GrownTree | None:
        """Grow a whole tree in one call; None: it grows level by level."""

    def open(self, id: int, capacity: int) -> None:
        """Reserve room for a request of at most `capacity` tokens."""
        self._read[id] = 0

    def close(self, id: int) -> None:
        """Forget a request; ignore unknown ids."""
        self.target_states.forget(id)
        self._read.pop(id, None)


class HeadDrafter(ModelDrafter):
    """Drafter whose head reads the target's hidden states."""

    def __init__(self, reader: HeadReader, states: tuple[int, ...]) -> None:
        """`states`: the target's hidden states that the head reads."""
        super().__init__(reader)
        self._reader = reader
        self.hidden_layers = states

    def on_hidden_states(
        self, request: Request, start: int, hidden: Float[Tensor, "tokens features"]
    ) -> None:
        self._reader.target_states.add(request.id, start, hidden)

    def fit(self, batch: Batch, request: Request, nodes: int) -> int:
        # The first token of a request has no hidden state before it.
        states = self._reader.target_states
        ready = len(request.tokens) > 1 and states.up_to_date(request)
        return super().fit(batch, request, nodes) if ready else 0

    def prefill(self, request: Request) -> Read:
        return self._reader.extend(request)


HeadOutput = tuple[Float[Tensor, "kept ids"], Float[Tensor, "rows hidden"]]
"""The logits that some reads keep, in the head's ids, and its state at each token."""


class HeadExecutor(ABC):
    """Computes a head that reads a hidden state beside each token: in C, in torch, or
    by a module of transformers.
    """

    @abstractmethod
    def open(self, id: int, capacity: int) -> int:
        """Reserve room for the keys and values of a request."""

    @abstractmethod
    def close(self, id: int) -> None:
        """Free a request; ignore unknown ids."""

    @abstractmethod
    def run(self, reads: Sequence[Read], states: Sequence[Tensor]) -> HeadOutput:
        """Read tokens beside states.

        `states`: for each read, the state beside each token: the target's beside
        committed tokens, the head's own beside draft tokens.
        """

    def grow_beside(
        self, read: Read, states: Tensor, ask: TreeRequest
    ) -> GrownTree | None:
        """Read the end of a request and grow a whole tree after it; return None where
        trees grow level by level.
        """
        del read, states, ask
        return None


class StateReader(HeadReader):
    """A head that reads a hidden state of the target beside each committed token, and
    its own at the parent beside each draft token.
    """

    def __init__(self, executor: HeadExecutor, context: int) -> None:
        super().__init__(context)
        self.executor = executor
        self._states: dict[int, Tensor] = {}
        """The head's state at the last committed token, then at each draft token."""

    def open(self, id: int, capacity: int) -> None:
        super().open(id, capacity)
        self.executor.open(id, capacity)

    def close(self, id: int) -> None:
        super().close(id)
        self.executor.close(id)
        self._states.pop(id, None)

    def extend(self, request: Request) -> Read:
        name, tokens = request.id, request.tokens
        if name not in self._read:
            self.open(name, capacity(request))
        last = len(tokens) - 2
        # the last row is always read, for its logits
        start = min(self._read[name], last)
        self.target_states.drop(name, start)
        rest = tokens[start + 1 :]
        end = catch_up(name, start, rest, lambda read: self.read([read]))
        self._read[name] = last + 1
        return end

    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        states = [self._beside(read) for read in reads]
        logits, hidden = self.executor.run(reads, states)
        lengths = [len(read.tokens) for read in reads]
        parts = hidden.split(lengths)
        for read, rows in zip(reads, parts, strict=True):
            if read.parents:
                before = self._states[read.id]
                self._states[read.id] = torch.cat([before, rows])
            else:
                self._states[read.id] = rows[-1:]
        return logits

    def grow(self, read: Read, ask: TreeRequest) -> GrownTree | None:
        return self.executor.grow_beside(read, self._beside(read), ask)

    def _beside(self, read: Read) -> Float[Tensor, "tokens features"]:
        """Return the state that the head reads beside each token."""
        if not read.parents:
            return self.target_states.rows(read.id, read.past, len(read.tokens))
        states = self._states[read.id]
        parents = [parent + 1 for parent in read.parents[read.held :]]
        if max(parents) >= len(states):
            raise ModelError(
                "cannot read draft tokens before their parents: got parents "
                f"{read.parents}, {read.held} read. Order the tokens parents first"
            )
        return states[parents]
