"""What an executor keeps of sequences: images, encoder sources, recurrent states."""

from collections.abc import Sequence
from copy import copy
from typing import Any, ClassVar, TypeVar

from foreword.errors import ModelError
from foreword.model.kv.pages import PagePool
from foreword.model.kv.reads import Reach, Read, SourceKeys


class SequenceMemory:
    """A part of an executor that remembers something of each open sequence.

    The executor calls its memories at fixed points of a sequence; a memory overrides
    the calls that concern it. Memories of one executor add calls of its forward
    (NativeMemory, TorchMemory).
    """

    takes: ClassVar[tuple[type, ...]] = ()
    """Types of what `give` takes."""
    shares_prefixes: ClassVar[bool] = True
    """Whether keys and values depend on the text alone, so that pages are shared."""

    def __init__(self) -> None:
        self.sequences: dict[int, Any] = {}
        """What is remembered of each sequence."""

    def empty(self) -> "SequenceMemory":
        """Return a memory of this kind without sequences, for another pool."""
        fresh = copy(self)
        fresh.sequences = {}
        return fresh

    def opening(
        self, pool: PagePool, id: int, text: Sequence[int], tenant: str
    ) -> None:
        """Begin a sequence with this text, before it gets pages. It may be open."""

    def opened(self, pool: PagePool, id: int, held: Sequence[int]) -> None:
        """Note the leading tokens of an open sequence that need not be read."""

    def close(self, pool: PagePool | None, id: int) -> None:
        """Forget a sequence. Unknown ids are ignored."""
        self.sequences.pop(id, None)

    def give(self, executor: Any, id: int, material: Any) -> None:
        """Set what an open sequence reads beside its text, before its first read."""
        self.sequences[id] = material

    def check(self, read: Read) -> None:
        """Raise ModelError if a read is not possible yet."""

    def reach(self, id: int) -> Reach | None:
        """Return the attention ranges of leading rows whose mask is not causal."""
        return None

    def source(self, id: int) -> SourceKeys | None:
        """Return the keys and values of the source of a sequence."""
        return None

    def keys(self, read: Read) -> list[int] | None:
        """Return a read's tokens as later texts are compared; None = as they are."""
        return None

    def noted(self, pool: PagePool, reads: Sequence[Read]) -> None:
        """Note that these were read."""


Kind = TypeVar("Kind", bound=SequenceMemory)


class Remembers:
    """An executor with memories."""

    memories: Sequence[Any] = ()
    probed = False
    """Whether the probe checks that a row's bits do not depend on the batch; tests of
    the other executors compare every bit.
    """

    def memory(self, kind: type[Kind]) -> Kind | None:
        """Return the memory of a kind; None if this executor has none."""
        return next((one for one in self.memories if isinstance(one, kind)), None)

    def give(self, id: int, material: object) -> None:
        """Set what an open sequence reads beside its text, before its first read: its
        images, or the source of an encoder-decoder.

        Raises ModelError where no memory takes it.
        """
        for memory in self.memories:
            if isinstance(material, memory.takes):
                memory.give(self, id, material)
                return
        raise ModelError(
            f"cannot read {type(material).__name__}: this backend reads text only. "
            "Load the model with backend='pool'"
        )
