"""Settings of a server, and the checks that need no model."""

import hashlib
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from foreword.errors import InvalidRequest

MEBIBYTE = 2**20
MOST_UPLOADS = 50
"""Files of the largest size that one key may keep, or smaller ones of as many bytes."""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
"""Host headers accepted on loopback: a web page under another name is refused."""

HOST = re.compile(r"[\w.-]{1,253}|\[?[0-9a-fA-F:.]*:[0-9a-fA-F:.%\w]*\]?")
"""A host name, or an IPv4 or IPv6 address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one server allows. Raises InvalidRequest for a contradiction."""

    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    """Model name that clients use. None: the folder's or hub's name."""
    keys: frozenset[bytes] = frozenset()
    """SHA-256 digests of the API keys; empty = none needed, on loopback only."""
    queue: int = 256
    """Answers. Most that run or wait at a time; more get status 429."""
    body: int = 16 * MEBIBYTE
    """Bytes. Largest request body."""
    files: str | Path | None = None
    """Folder or URL of uploaded files and batches; None: the server keeps none."""
    prefix_folder: Path | None = None
    """Folder where the keys and values of prompts outlive the server."""
    adapters: Path | None = None
    """Folder below which clients may load adapters; None: they load none."""
    file: int = 200 * MEBIBYTE
    """Bytes. Largest upload of such a file."""
    stored: int | None = None
    """Bytes. Most that the files of one key take; None: 50 of the largest."""
    batches: int = 100
    """Batches of one key that have not ended."""
    sound: float = 1800.0
    """Seconds. Longest sound that is transcribed."""
    context: int | None = None
    """Tokens. Most of a prompt and its answer; None: the model's context."""
    concurrent: int | None = None
    """Answers. Most that one key runs or queues at a time."""
    rate: float | None = None
    """Requests a minute of one key; the first minute's worth may come at once."""
    tool_format: str | None = None
    """How the model writes tool calls (docs/formats/tool-calls.md); None: its own."""
    reasoning: str | None = None
    """Tags around reasoning. None: the tags of its chat template."""
    any_model: bool = False
    """Whether a request may name any model, and the one that is served answers."""
    sanitize: bool = False
    """Whether control tokens that users or tools write in a chat are plain text."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may send requests (CORS)."""
    hosts: tuple[str, ...] = ()
    """Host names accepted beside loopback names; a server elsewhere accepts all."""
    leave: float = 0.0
    """Seconds. On SIGTERM, `/ready` says no for so long before requests are refused."""
    drain: float = 30.0
    """Seconds. Then running answers get this long to finish."""
    public_metrics: bool = False
    """Whether /metrics needs no API key where there are some."""
    resume: bool = False
    """Whether it goes on with answers of other servers, for a balancer before it."""
    routed: bool = False
    """Whether a router stands before this server, which alone can reach it."""
    log_json: bool = False
    log_prompts: bool = False

    def __post_init__(self) -> None:
        for option, hosts in (("host", (self.host,)), ("allowed-host", self.hosts)):
            for host in hosts:
                if not HOST.fullmatch(host):
                    raise InvalidRequest(
                        f"cannot use '--{option}' {host!r}: it is not a host name or "
                        "an address. "
                        "Write one as example.org, 127.0.0.1 or [::1], without a port"
                    )
        if not self.keys and not is_loopback(self.host):
            raise InvalidRequest(
                f"cannot bind to {self.host} without an API key: every machine that "
                "reaches it could send requests. "
                "Give '--api-key-file' or FOREWORD_API_KEYS, or bind to 127.0.0.1"
            )

    @property
    def room(self) -> int:
        """Bytes. Most that the files of one key take."""
        return MOST_UPLOADS * self.file if self.stored is None else self.stored


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def hashed(keys: Iterable[str]) -> frozenset[bytes]:
    """Return the digests of API keys, so that the server holds none in the clear.

    Raises InvalidRequest for a key that no header can carry.
    """
    cleaned = [key.strip() for key in keys]
    for number, key in enumerate(cleaned, 1):
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise InvalidRequest(
                f"cannot use API key {number}: it is empty, or not visible ASCII. "
                "Write another one"
            )
    return frozenset(map(digest, cleaned))


def digest(key: str) -> bytes:
    """Return the SHA-256 digest of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
