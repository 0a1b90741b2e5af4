"""Frames that a replica sends to its router, or a server to a balancer: the bytes of an
answer, and the tokens they hold (docs/scaling/contract.md).

From them the router knows what a client has. It tells the replica that goes on with the
answer, which sends the rest.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any, Literal

from pydantic import TypeAdapter

from foreword.recording.reading import parsed
from foreword.types.round import Round
from foreword_server.body import items
from foreword_server.errors import ApiError

MEDIA_TYPE = "application/x-foreword-frames"
SENT = "x-foreword-sent"
"""Header of a router's request: bytes before the client's body that say what the client
has (`Sent`); 0 for a new request.
"""
Kind = Literal["start", "round", "more", "end", "whole", "log"]
"""start: the head of a stream; round: tokens of one choice; more: a ping or progress;
end: its last events; whole: an answer that is not streamed; log: counts for the log.
"""


@dataclass(frozen=True, slots=True)
class Frame:
    """Bytes for a client, and what they are."""

    kind: Kind
    content: bytes = b""
    about: dict[str, Any] = field(default_factory=dict)
    """start: the state of the answer; round: its choice, tokens and trace; end: the
    status of an error; log: the counts."""

    @property
    def encoded(self) -> bytes:
        """The frame as bytes: a line of JSON, then the content."""
        head = [self.kind, len(self.content), self.about]
        return json.dumps(head).encode() + b"\n" + self.content


class FrameReader:
    """Reader of frames from bytes that arrive in any pieces."""

    def __init__(self) -> None:
        self._held = bytearray()

    def push(self, piece: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete."""
        self._held += piece
        while (line := self._held.find(b"\n")) >= 0:
            kind, size, about = json.loads(self._held[:line])
            end = line + 1 + size
            if len(self._held) < end:
                return
            content = bytes(self._held[line + 1 : end])
            del self._held[:end]
            yield Frame(kind, content, about)


@dataclass(slots=True)
class State:
    """What an answer has beside its text that another replica cannot compute."""

    salt: str
    """Salt of the answer's ids."""
    seed: int
    created: int
    """Seconds since 1970."""
    resumes: bool
    """Whether another replica would go on with the same text."""


@dataclass(slots=True)
class Sent:
    """What a client has of an answer."""

    state: State | None = None
    """None: nothing yet."""
    rounds: list[tuple[int, list[int], Any]] = field(default_factory=list)
    """(choice, tokens, traced round or None), in the order sent."""

    @property
    def frames(self) -> int:
        """Frames of the start and of rounds that it has."""
        return 0 if self.state is None else 1 + len(self.rounds)

    @property
    def encoded(self) -> bytes:
        """Bytes for another replica; none for a new request."""
        if self.state is None:
            return b""
        return json.dumps([asdict(self.state), self.rounds]).encode()

    @property
    def committed(self) -> list[tuple[int, list[int], Round | None]]:
        """The rounds, as the engine that goes on takes them."""
        return [
            (choice, tokens, _trace(trace)) for choice, tokens, trace in self.rounds
        ]

    def check(self, choices: int, vocabulary: int) -> None:
        """Raise ApiError for a choice or a token that an answer does not have."""
        for choice, tokens, _ in self.rounds:
            has_tokens = tokens and 0 <= min(tokens) <= max(tokens) < vocabulary
            if not has_tokens or not 0 <= choice < choices:
                raise unreadable("it is of another request or model")

    def add(self, frame: Frame) -> None:
        """Count a frame that the client has."""
        if frame.kind == "start":
            self.state = State(**frame.about)
        elif frame.kind == "round":
            about = frame.about
            round_ = about["choice"], about["tokens"], about.get("trace")
            self.rounds.append(round_)


NOTHING = Sent()
"""State of a new request: its client has nothing."""
FORM = TypeAdapter(tuple[State, list[tuple[int, list[int], Any]]])
"""Form of `Sent.encoded`."""


def sent_of(size: str, body: bytes, limit: float = inf) -> tuple[Sent, bytes]:
    """Return what a client has, and its own body. `size`: value of the header `SENT`;
    `limit`: values that may be read.

    Raises ApiError for other bytes than `Sent.encoded` makes.
    """
    try:
        end = int(size)
        if end == 0:
            return Sent(), body
        if items(body[:end]) > limit:
            raise unreadable(f"it has more than {limit} values")
        sent = Sent(*FORM.validate_json(body[:end]))
        for _, _, trace in sent.rounds:
            _trace(trace)
    except ValueError:
        raise unreadable("it is not what frames of version 1 said") from None
    return sent, body[end:]


def _trace(value: Any) -> Round | None:
    """Return a traced round. Raises ValueError for other values."""
    return value and parsed(Round, value, "this round")


def unreadable(reason: str) -> ApiError:
    """Return the error about a state that no answer has."""
    return ApiError(
        400,
        f"cannot go on with this answer: {reason}. Send the state and rounds of its "
        "frames, as they came",
    )
