"""Generator of an answer's ids."""

import secrets
from base64 import urlsafe_b64encode
from hashlib import blake2b

RANDOM = 16
"""Bytes of a salt."""
SIZE = 18
"""Bytes of an id: as many as 24 characters of base64 hold."""
HEX = 12
"""Bytes of an id in hexadecimal: as many as 24 digits hold."""


class Ids:
    """Maker of ids; of one salt they are the same again, in the same order.

    A server that goes on with an answer of another gives the ids that its client has.
    """

    def __init__(self, salt: str = "") -> None:
        """Without a salt, ids are random."""
        self.salt = salt or secrets.token_hex(RANDOM)
        self._made = 0

    def new(self, prefix: str) -> str:
        """Return the next id: the prefix and 24 hexadecimal digits."""
        return f"{prefix}{self._next()[:HEX].hex()}"

    def call(self) -> str:
        """Return the next id of a tool call: "call_" and 24 url-safe characters."""
        return f"call_{urlsafe_b64encode(self._next()).decode()}"

    def _next(self) -> bytes:
        self._made += 1
        text = f"{self.salt}/{self._made}"
        return blake2b(text.encode(), digest_size=SIZE).digest()
