"""Measured costs of one replica: seconds of a round, and tokens that a round writes."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from foreword.errors import InvalidRequest
from foreword_lab.simulate.fields import (
    check_names,
    number,
    parsed,
    text_of,
    whole_number,
)

SLOTS = 32
"""Answers at a time, as `foreword serve` has them without options; so are the next."""
CHUNK = 512
"""Prompt tokens that a round reads."""
QUEUE = 256
"""Answers that run or wait."""
COUNTS = ("slots", "chunk", "queue")
"""Fields that are whole numbers from 1 on."""
APART = ("forward", "tokens", *COUNTS)
"""Fields with checks of their own; the others are numbers from 0 on."""
CLOSE = 0.01
"""Distance from 1 that the sum of the shares of `tokens` may have."""


@dataclass(frozen=True, kw_only=True)
class ReplicaCosts:
    """Seconds of a round by what it reads and writes, and the limits of the server.

    The seconds are of one replica as it runs beside the others of its machine. Raises
    InvalidRequest for numbers that are negative or not finite.
    """

    forward: Mapping[int, float]
    """Rows of a forward of the target -> its seconds."""
    context: float = 0.0
    """Tokens of context of each sequence in those forwards."""
    context_token: float = 0.0
    """Seconds of each token of context more than that, for each sequence."""
    prompt_token: float = 0.0
    """Seconds of each prompt token beside its row: the drafter reads it too."""
    draft: float = 0.0
    """Seconds of drafting in a round, however little is drafted."""
    draft_token: float = 0.0
    """Seconds of each draft token."""
    sequence: float = 0.0
    """Seconds of a round for each sequence that writes: verify and commit."""
    round: float = 0.0
    """Seconds of a round outside propose, score, verify and commit."""
    request: float = 0.0
    """Seconds between a client and the rounds, once a request."""
    draft_tokens: float = 0.0
    """Draft tokens of a sequence in a round, on average."""
    tokens: float | tuple[float, ...] = 1.0
    """Tokens that a sequence writes in a round: their mean, or the share of the rounds
    that write 1, 2, 3 … tokens.
    """
    slots: int = SLOTS
    chunk: int = CHUNK
    queue: int = QUEUE
    where: str = field(default="the costs", repr=False, compare=False)
    """What the numbers were read from, for errors."""

    def __post_init__(self) -> None:
        self._check_forward()
        self._check_tokens()
        for name in COUNTS:
            whole_number(name, getattr(self, name), self.where)
        for name in NAMES:
            if name not in APART:
                number(name, getattr(self, name), self.where)

    def _check_forward(self) -> None:
        if not self.forward:
            raise InvalidRequest(
                f"cannot use {self.where}: 'forward' is empty. Give the seconds of a "
                "forward by its rows"
            )
        for rows, seconds in self.forward.items():
            whole_number("a number of rows", rows, self.where)
            name = f"forward of {rows} rows"
            if not number(name, seconds, self.where):
                raise InvalidRequest(
                    f"cannot use {self.where}: {name} takes 0 seconds. Give what was "
                    "measured"
                )

    def _check_tokens(self) -> None:
        if not isinstance(self.tokens, tuple):
            number("tokens", self.tokens, self.where, low=1.0)
            return
        for share in self.tokens:
            number("a share of tokens", share, self.where, high=1.0)
        total = sum(self.tokens)
        if abs(total - 1.0) > CLOSE:
            raise InvalidRequest(
                f"cannot use {self.where}: the shares of 'tokens' add up to "
                f"{total:g}. Give shares of all rounds, which add up to 1"
            )

    @cached_property
    def _points(self) -> list[int]:
        return sorted(self.forward)

    @cached_property
    def _seconds(self) -> list[float]:
        return [self.forward[rows] for rows in self._points]

    @cached_property
    def further_row(self) -> float:
        """Seconds of each row beyond the measured numbers of rows."""
        last = self._points[-1]
        pairs = list(zip(self._points, self._seconds, strict=True))
        slopes = [
            (self._seconds[-1] - seconds) / (last - rows)
            for rows, seconds in (*pairs[:1], *pairs[-2:])
            if rows < last
        ]
        return max(slopes, default=0.0)

    @cached_property
    def _known(self) -> dict[float, float]:
        return {}

    def forward_seconds(self, rows: float) -> float:
        """Return the seconds of a forward, in a straight line between the measured
        numbers of rows.

        Beyond them it rises as between the last two, or as from the first to the last
        if that is steeper: two neighbours alone may have been measured in noise.
        """
        known = self._known.get(rows)
        if known is None:
            beyond = max(0.0, rows - self._points[-1])
            inside = np.interp(rows, self._points, self._seconds)
            known = float(inside) + beyond * self.further_row
            self._known[rows] = known
        return known

    def round_seconds(self, writing: int, reading: int, context: float) -> float:
        """Return the seconds of a round.

        `writing`: sequences that write; `reading`: prompt tokens that it reads, beside
        the last token of each prompt; `context`: tokens of all sequences that write.
        """
        drafted = writing * self.draft_tokens
        seconds = self.forward_seconds(writing + drafted + reading)
        further = context - writing * self.context
        seconds += self.context_token * further
        seconds += self.prompt_token * reading
        seconds += self.sequence * writing
        if drafted:
            seconds += self.draft + self.draft_token * drafted
        return max(seconds, 0.0) + self.round

    def mean_tokens(self, acceptance: float | None = None) -> float:
        """Return the tokens of a round; `acceptance`: the share of its draft tokens
        that a request accepts, if it has one of its own.
        """
        if acceptance is not None:
            return 1.0 + acceptance * self.draft_tokens
        if isinstance(self.tokens, tuple):
            return sum(at * share for at, share in enumerate(self.tokens, 1))
        return self.tokens

    def as_json(self) -> dict[str, Any]:
        """Return plain values, as `read` takes them."""
        values = asdict(self)
        del values["where"]
        values["forward"] = {str(rows): one for rows, one in self.forward.items()}
        if isinstance(self.tokens, tuple):
            values["tokens"] = list(self.tokens)
        return values

    def save(self, file: Path) -> None:
        """Write the costs as a file that `read` reads."""
        text = json.dumps(self.as_json(), indent=1)
        file.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> "ReplicaCosts":
        """Return a file's costs. Raises InvalidRequest for none or unknown fields."""
        where = str(file)
        values = parsed(text_of(file), where)
        check_names(values, NAMES, ("forward",), where)
        values["forward"] = _by_rows(values["forward"], where)
        if isinstance(values.get("tokens"), list):
            values["tokens"] = tuple(values["tokens"])
        return cls(**values, where=where)


NAMES = [one.name for one in fields(ReplicaCosts) if one.name != "where"]
"""Fields of a file of costs."""


def _by_rows(table: object, where: str) -> dict[int, Any]:
    """Return the table of forwards by number, or raise InvalidRequest."""
    if isinstance(table, dict) and all(map(str.isdecimal, table)):
        return {int(rows): seconds for rows, seconds in table.items()}
    raise InvalidRequest(
        f"cannot read {where}: 'forward' is not a table. Give seconds by rows: "
        '{"1": 0.02, "8": 0.03}'
    )
