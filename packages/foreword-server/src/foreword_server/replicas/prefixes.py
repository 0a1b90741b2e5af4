"""Digests of the prompt beginnings that replicas have read: a router finds the replica
that has most of a new prompt in its cache.
"""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

BLOCK = 512
"""Bytes of a request that are compared at once."""
LONGEST = 2**20
"""Bytes of a request that are compared; the rest seldom decides."""
KEPT = 2**16
"""Blocks that are kept of each replica at most: 32 MiB of text."""
TOKEN = 4
"""Bytes of a token, about."""
STARTS = (b'"messages"', b'"input"', b'"prompt"')
"""Fields that hold a prompt; what stands before them differs between clients."""
DIGEST = 8
"""Bytes of a digest. Two equal ones cost time alone."""


def blocks(body: bytes, owner: str) -> list[bytes]:
    """Return a digest of each beginning of a prompt; `owner`: the cache's key."""
    starts = [at for name in STARTS if (at := body.find(name)) >= 0]
    begin = min(starts, default=0)
    end = min(len(body), begin + LONGEST)
    last = owner.encode()
    digests = []
    for at in range(begin, end - BLOCK + 1, BLOCK):
        piece = body[at : at + BLOCK]
        last = blake2b(last + piece, digest_size=DIGEST).digest()
        digests.append(last)
    return digests


class Prefixes:
    """The blocks that one replica has read, the last used last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, None] = OrderedDict()
        self._most = KEPT

    def fit(self, tokens: int) -> None:
        """Keep no more blocks than a cache of so many tokens holds."""
        self._most = min(KEPT, TOKEN * tokens // BLOCK)

    def matches(self, digests: Sequence[bytes]) -> int:
        """Return how many blocks of a request it has read."""
        count = 0
        for digest in digests:
            if digest not in self._kept:
                break
            count += 1
        return count

    def add(self, digests: Sequence[bytes]) -> None:
        """Keep the blocks of a request; the first blocks outlast the others."""
        for digest in reversed(digests):
            self._kept[digest] = None
            self._kept.move_to_end(digest)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def clear(self) -> None:
        """Forget all: the replica has ended."""
        self._kept.clear()
