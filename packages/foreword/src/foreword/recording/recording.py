"""A recording: one answer, its settings and machine, and every round."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from foreword.errors import InvalidRequest
from foreword.files import atomic_file, check_writable, room
from foreword.recording.reading import Wrong, parsed, plain_json
from foreword.types.markup import answer_html
from foreword.types.round import Round, short

if TYPE_CHECKING:
    from foreword.api.llm import LLM
    from foreword.types import Completion
    from foreword.types.params import SamplingParams

VERSION = 1
"""Version of the format; a file of another one is refused."""
SCHEMA = Path(__file__).parent / "recording.schema.json"
"""JSON Schema (2020-12) of a recording; `$defs/Round` is that of a single round."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of a recording."""

    cpu: str
    threads: int
    """Threads of a forward."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the rounds of a recording."""

    rounds: int
    tokens: int
    """Emitted tokens."""
    drafted: int
    """Draft tokens scored."""
    accepted: int
    """Draft tokens accepted, before any cut at a stop string or limit."""
    tokens_per_pass: float
    acceptance: float
    """Accepted share of the draft tokens; 0 if there were none."""
    seconds: float
    """Duration of the rounds, prefill and others in a batch included."""
    plain_tokens_per_second: float | None
    """Estimated pace of plain decoding of this request alone, from the measured cost of
    a forward; None if the budget keeps no costs."""
    undrafted: dict[str, int]
    """Rounds in which nothing was drafted, by reason."""

    @classmethod
    def of(
        cls, rounds: Sequence[Round], plain_tokens_per_second: float | None = None
    ) -> "Totals":
        """Sum up the rounds."""
        tokens = sum(len(one.pieces) for one in rounds)
        drafted = sum(len(one.draft) for one in rounds)
        accepted = sum(len(one.accepted) for one in rounds)
        reasons = [one.undrafted.reason for one in rounds if one.undrafted]
        return cls(
            rounds=len(rounds),
            tokens=tokens,
            drafted=drafted,
            accepted=accepted,
            tokens_per_pass=short(tokens / len(rounds)) if rounds else 0.0,
            acceptance=short(accepted / drafted) if drafted else 0.0,
            seconds=short(sum(one.milliseconds for one in rounds) / 1000),
            plain_tokens_per_second=plain_tokens_per_second,
            undrafted=dict(Counter(reasons)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One answer with every round that made it. As JSON it follows `SCHEMA`.

    Examples:
        >>> params = SamplingParams(trace=True)
        >>> completion = llm.generate(prompt, params)[0]
        >>> Recording.of(llm, params, completion).write("answer.json")
    """

    version: Literal[1] = VERSION
    library: str
    """Version of the library that made it."""
    model: str
    """Name of the target."""
    method: str
    rule: str
    budget: str
    """Policy of the number of draft tokens, or nodes=N."""
    params: dict[str, Any]
    """Sampling parameters other than the default, plain; a logits processor by name."""
    seed: int
    prompt_tokens: tuple[int, ...]
    prompt: str
    """The prompt as text, special tokens included."""
    answer: str
    finish_reason: Literal["stop", "length", "abort"]
    machine: Machine
    rounds: tuple[Round, ...]
    totals: Totals

    @classmethod
    def of(
        cls, llm: "LLM", params: "SamplingParams", answer: "Completion"
    ) -> "Recording":
        """Return the recording of a completion of `llm` with these parameters.

        Raises InvalidRequest if the completion has no rounds, because `params.trace`
        was not set.
        """
        from foreword.recording.making import recorded

        return recorded(llm, params, answer)

    @classmethod
    def from_json(cls, text: str | bytes, name: str = "this recording") -> "Recording":
        """Read a recording of this version. Raises InvalidRequest with `name`."""
        try:
            values = plain_json(text)
            if isinstance(values, dict) and values.get("version", VERSION) != VERSION:
                raise Wrong(
                    f"it has version {values['version']!r}, and this library reads "
                    f"version {VERSION}"
                )
            recording = parsed(cls, values, "the recording")
            for number, round_ in enumerate(recording.rounds):
                _check(round_, f"rounds[{number}]")
        except Wrong as wrong:
            raise InvalidRequest(
                f"cannot open {name}: {wrong}. Give a file that `foreword generate "
                "--record` wrote"
            ) from wrong
        return recording

    @classmethod
    def read(cls, file: str | Path) -> "Recording":
        """Read a file of this version, or raise InvalidRequest."""
        try:
            content = Path(file).read_bytes()
        except OSError as error:
            raise InvalidRequest(
                f"cannot open {file}: {error.strerror or error}. Give a file that "
                "`foreword generate --record` wrote"
            ) from error
        return cls.from_json(content, str(file))

    def as_json(self) -> str:
        """Return the recording as one JSON object."""
        return json.dumps(
            asdict(self), ensure_ascii=False, allow_nan=False, separators=(",", ":")
        )

    def _repr_html_(self) -> str:
        """Return the answer with the origins of its tokens, as a notebook shows it."""
        pieces = [
            (piece, "accepted" if at < len(one.accepted) else "bonus")
            for one in self.rounds
            for at, piece in enumerate(one.pieces)
        ]
        totals = self.totals
        facts = (
            f"{self.method}: {totals.tokens} tokens in {totals.rounds} rounds, "
            f"{totals.acceptance:.0%} of {totals.drafted} draft tokens accepted"
        )
        return answer_html(pieces, facts)

    def write(self, file: str | Path) -> None:
        """Write a file, complete or not at all. Raises InvalidRequest if it cannot."""
        check_writable(Path(file))
        with room(Path(file)), atomic_file(Path(file)) as partial:
            partial.write_text(self.as_json() + "\n", encoding="utf-8")

    @property
    def tokens(self) -> list[int]:
        """Ids of the emitted tokens."""
        return [token for one in self.rounds for token in one.tokens]


def _check(round_: Round, where: str) -> None:
    """Raise Wrong unless the draft is a tree, and the accepted nodes a path in it."""
    for node, draft_token in enumerate(round_.draft):
        if not -1 <= draft_token.parent < node:
            raise Wrong(
                f"{where}.draft[{node}].parent must come before it, or be -1, got "
                f"{draft_token.parent}"
            )
    last = -1
    for node in round_.accepted:
        if not 0 <= node < len(round_.draft) or round_.draft[node].parent != last:
            raise Wrong(
                f"{where}.accepted must be a path of the draft tree, got "
                f"{list(round_.accepted)}"
            )
        last = node
    if len(round_.pieces) > len(round_.accepted) + 1:
        raise Wrong(
            f"{where}.pieces must be at most {len(round_.accepted) + 1}, got "
            f"{len(round_.pieces)}"
        )
    if (round_.undrafted is None) != bool(round_.draft):
        raise Wrong(f"{where}.undrafted must be given exactly if the draft is empty")
