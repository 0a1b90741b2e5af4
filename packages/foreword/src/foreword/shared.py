"""Large objects: each exists once, and is freed some time after its last use."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

Held = TypeVar("Held")


class Shared(Generic[Held]):
    """Objects by key: those in use, and of the others the ones used last.

    An object that a request still uses is found again even after others took its place,
    so that it exists once.
    """

    def __init__(
        self, room: int = 0, size: Callable[[Held], int] = lambda _: 1
    ) -> None:
        """`room`: sizes, in all, of the objects that were used last; older ones are
        freed as soon as nothing else uses them.
        """
        self._room = room
        self._size = size
        self._alive: WeakValueDictionary[Hashable, Held] = WeakValueDictionary()
        self._last: OrderedDict[Hashable, Held] = OrderedDict()
        self._held = 0

    def __len__(self) -> int:
        return len(self._alive)

    def find(self, key: Hashable) -> Held | None:
        """Return the object of a key, or None. Thread-safe."""
        return self._alive.get(key)

    def get(self, key: Hashable, make: Callable[[], Held]) -> Held:
        """Return the object of a key, which `make` makes if there is none."""
        shared = self._alive.get(key)
        if shared is None:
            shared = self._alive[key] = make()
        if key not in self._last:
            self._held += self._size(shared)
        self._last[key] = shared
        self._last.move_to_end(key)
        while self._held > self._room:
            _, oldest = self._last.popitem(last=False)
            self._held -= self._size(oldest)
        return shared
