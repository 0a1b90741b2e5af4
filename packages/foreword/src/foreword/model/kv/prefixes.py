"""Prefix tree of full pages with known tokens: texts that begin alike share them."""

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from torch import Tensor

PAGE = 64
"""Rows of a page: a multiple of the blocks (16, 32) in native/csrc/attention/kv.c."""


@dataclass(slots=True, eq=False)
class Prefix:
    """One full page of a text after `parent`; the root of a tenant has none."""

    parent: "Prefix | None"
    tokens: bytes
    """Key of the tokens; of a root, its tenant."""
    page: int = -1
    users: int = 0
    """Open sequences that use the page."""
    children: "dict[bytes, Prefix]" = field(default_factory=dict)
    state: tuple[Tensor, ...] | None = None
    """Recurrent state after the page; None where it is not kept."""
    hidden: dict[int, Tensor] = field(default_factory=dict)
    """Hidden states of its tokens, [PAGE, size], by layer that a drafter read."""


MOST_IMAGES = 4096
"""Sets of images with a number; beyond, pages of the oldest are not found again."""


class PrefixTree:
    """Pages of earlier texts by their tokens, compared exactly and apart for each
    tenant; the oldest are dropped first.

    A page that a sequence uses stays. Sequences let go of their last page first, so
    among unused pages a child is never younger than its parent, and the oldest unused
    page has no children.
    """

    def __init__(self) -> None:
        self.recurrent = False
        """Whether a text can go on only from a page whose recurrent state is kept."""
        self._roots: dict[bytes, Prefix] = {}
        # pages with a state, the one unused for longest first
        self._states: OrderedDict[Prefix, None] = OrderedDict()
        self._unused: OrderedDict[Prefix, None] = OrderedDict()  # oldest first
        self.queries = 0
        """Tokens of texts that were looked up."""
        self.hits = 0
        """Tokens of them that were found."""
        self._images: OrderedDict[bytes, int] = OrderedDict()  # by digest, oldest first
        self._numbers = count(1)

    def __len__(self) -> int:
        """Return the number of pages that no sequence uses."""
        return len(self._unused)

    def enter(
        self, tokens: Sequence[int], tenant: str, layers: Sequence[int] = ()
    ) -> list[Prefix]:
        """Return the root of the tenant and the longest known beginning of a text;
        `leave` them after use.

        With `layers`, stop at the first page without the hidden states after these
        layers.
        """
        root = self.root(tenant)
        path = self._find(root, tokens, layers)
        self.queries += len(tokens)
        self.hits += PAGE * len(path)
        for prefix in (root, *path):
            self._use(prefix)
        if self.recurrent and path:
            self._states.move_to_end(path[-1])
        return [root, *path]

    def leave(self, path: Sequence[Prefix]) -> None:
        """Let go of a root and the pages after it, in the order of the text."""
        self.let_go(path[1:])
        for root in path[:1]:
            root.users -= 1
            self._drop_root(root)

    def number(self, digest: bytes) -> int:
        """Return a number below 0, of no token, that stands for images in a key."""
        if digest not in self._images:
            self._images[digest] = -next(self._numbers)
            if len(self._images) > MOST_IMAGES:
                self._images.popitem(last=False)
        return self._images[digest]

    def shared(
        self, tokens: Sequence[int], tenant: str, layers: Sequence[int] = ()
    ) -> int:
        """Return the tokens at the start of a text whose pages open sequences use."""
        root = self._roots.get(tenant.encode())
        if root is None:
            return 0
        path = self._find(root, tokens, layers)
        return PAGE * sum(prefix.users > 0 for prefix in path)

    def known(self, tokens: Sequence[int], tenant: str) -> int:
        """Return the first tokens of a text whose pages are held in any form."""
        root = self._roots.get(tenant.encode())
        return 0 if root is None else PAGE * len(self._held(root, tokens))

    def _find(
        self, root: Prefix, tokens: Sequence[int], layers: Sequence[int]
    ) -> list[Prefix]:
        """Return the longest beginning that a sequence can go on from."""
        needed = set(layers)
        path: list[Prefix] = []
        for prefix in self._held(root, tokens):
            if not needed <= prefix.hidden.keys():
                break
            path.append(prefix)
        while self.recurrent and path and path[-1].state is None:
            path.pop()
        return path

    def _held(self, root: Prefix, tokens: Sequence[int]) -> list[Prefix]:
        """Return the longest known beginning in whole pages, at least a token short."""
        path = [root]
        for start in range(0, len(tokens) - PAGE, PAGE):
            key = key_of(tokens[start : start + PAGE])
            prefix = path[-1].children.get(key)
            if prefix is None:
                break
            path.append(prefix)
        return path[1:]

    def _use(self, prefix: Prefix) -> None:
        prefix.users += 1
        self._unused.pop(prefix, None)

    def let_go(self, prefixes: Sequence[Prefix]) -> None:
        """Count one user less of these pages, given in the order of the text."""
        for prefix in reversed(prefixes):
            prefix.users -= 1
            if not prefix.users:
                self._unused[prefix] = None

    def add(self, parent: Prefix, tokens: Sequence[int], page: int) -> Prefix:
        """Return the prefix of these tokens after `parent` with one more user."""
        key = key_of(tokens)
        prefix = parent.children.get(key)
        if prefix is None:
            return self.take_up(parent, key, page)
        self._use(prefix)
        return prefix

    def kept(self) -> Iterator[Prefix]:
        """Yield the pages that no sequence uses, the newest first, each after those
        before it in its text.

        Pages of images are left out: another process numbers images anew.
        """
        known = set[int]()
        for prefix in reversed(self._unused):
            parent = prefix.parent
            is_known = parent is not None and (
                parent.parent is None or id(parent) in known
            )
            if is_known and min(array("i", prefix.tokens)) >= 0:
                known.add(id(prefix))
                yield prefix

    def root(self, tenant: str) -> Prefix:
        """Return the root of a tenant."""
        key = tenant.encode()
        return self._roots.setdefault(key, Prefix(None, key))

    def take_up(self, parent: Prefix, tokens: bytes, page: int) -> Prefix:
        """Return a new prefix after `parent`, with one user."""
        prefix = parent.children[tokens] = Prefix(parent, tokens, page)
        self._use(prefix)
        return prefix

    def evict(self) -> int | None:
        """Drop the oldest unused page and return its number; None if all are in use."""
        if not self._unused:
            return None
        prefix, _ = self._unused.popitem(last=False)
        self.drop_state(prefix)
        if prefix.parent is not None:
            del prefix.parent.children[prefix.tokens]
            self._drop_root(prefix.parent)
        return prefix.page

    def _drop_root(self, prefix: Prefix) -> None:
        """Drop the root of a tenant who has no pages and no sequences."""
        if prefix.parent is not None or prefix.children or prefix.users:
            return
        if self._roots.get(prefix.tokens) is prefix:
            del self._roots[prefix.tokens]

    def keep_state(self, prefix: Prefix, state: tuple[Tensor, ...], most: int) -> None:
        """Keep the recurrent state after a page, among the `most` used last."""
        prefix.state = state
        self._states[prefix] = None
        while len(self._states) > most:
            self.drop_state(next(iter(self._states)))

    def drop_state(self, prefix: Prefix) -> None:
        """Forget the recurrent state after a page, if it is kept."""
        prefix.state = None
        self._states.pop(prefix, None)

    def clear(self) -> None:
        """Forget every text; pages in use stay with their sequences."""
        self._roots.clear()
        for prefix in [*self._states]:
            self.drop_state(prefix)


def key_of(tokens: Sequence[int]) -> bytes:
    """Return the tokens of a page as a key."""
    return array("i", tokens).tobytes()
