"""Sampled tokens against the laws that the server states for them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np

from foreword_lab.certify.clock import Clock
from foreword_lab.certify.law.rows import Rows
from foreword_lab.certify.law.wealth import ERROR, POWER, Ledger
from foreword_lab.certify.remote.ask import (
    TOPICS,
    Endpoint,
    Scored,
    prompt,
    request,
    scored,
    with_logprobs,
)
from foreword_lab.certify.remote.client import Broken, Server, Unsupported
from foreword_lab.certify.remote.texts import Memory, Text
from foreword_lab.certify.report import SAMPLES, Check

SHORT, LONG = 4, 16
"""Tokens. Length of a text: later tokens are drafted in longer chains, and the first
ones are drawn after the same text again and again.
"""
BATCH = 8
"""Requests. Sent at once."""
LONG_ONES = 2
"""Texts of a batch that are long; the others share two prompts."""
TOPS = (50, 20, 5)
"""Tokens. Likeliest ones to ask for: the first number that the server accepts."""
LEAST, MOST = 320, 200_000
"""Tokens. Fewer find little; more hardly find more."""
COARSE = 0.3
"""Total variation. A run that finds only larger differences says nothing."""
COOL = 0.7
"""Temperature at which it shows whether log-probabilities are those before it."""
ALIKE = 0.05
"""Nats. Log-probabilities that differ less do not depend on the temperature."""
Drafts = Callable[
    [Mapping[str, Any], Sequence[Scored], float], tuple[dict[str, float] | None, ...]
]
"""(body of a request, tokens of its answer, temperature) -> for each token, a drafter's
probabilities of the tokens listed there; None where it has none.
"""
KINDS: tuple[tuple[Endpoint, float], ...] = (
    ("chat", 1.0),
    ("completions", 1.0),
    ("chat", 0.7),
    ("chat", 1.3),
)
"""(endpoint, temperature) of the sources; every second batch is of the first one."""
NEUTRAL: tuple[Mapping[str, object], ...] = (
    {"top_k": -1, "min_p": 0, "repetition_penalty": 1.0},
    {"top_k": -1, "min_p": 0},
    {"top_k": 0, "min_p": 0},
    {},
)
"""Ways to turn off filters that a server may have by default; the first one that it
accepts is used.
"""


@dataclass(frozen=True, slots=True)
class Source:
    """How one endpoint is sampled from at one temperature."""

    endpoint: Endpoint
    temperature: float
    top: int
    """Tokens listed at each place."""
    neutral: Mapping[str, object]
    is_raw: bool
    """Whether log-probabilities are those before the temperature."""

    @property
    def name(self) -> str:
        """Name in the report."""
        return f"{self.endpoint}, temperature {self.temperature:g}"

    @property
    def exponent(self) -> float:
        """Power of the stated probabilities that is to be sampled."""
        return 1 / self.temperature if self.is_raw else 1.0

    def asked(self, topic: str, seed: int, tokens: int) -> tuple[str, dict[str, Any]]:
        """Return the request for a text."""
        return request(
            self.endpoint,
            prompt(topic),
            **sampling(seed, self.temperature, tokens),
            **self.neutral,
            **with_logprobs(self.endpoint, self.top),
        )


def sampling(seed: int, temperature: float, tokens: int) -> dict[str, object]:
    """Return the parameters of a sampled text."""
    return {
        "seed": seed,
        "temperature": temperature,
        "top_p": 1.0,
        "max_tokens": tokens,
    }


def sources(server: Server, seed: int, *, quick: bool) -> list[Source]:
    """Return the sources that the server has; none without log-probabilities."""
    probed = {
        endpoint: _probed(server, endpoint, seed)
        for endpoint in ("chat", "completions")
    }
    every = [
        replace(source, temperature=temperature)
        for endpoint, temperature in KINDS
        if (source := probed[endpoint]) is not None
    ]
    return every[:1] if quick else every


def _probed(server: Server, endpoint: Endpoint, seed: int) -> Source | None:
    for neutral in NEUTRAL:
        for top in TOPS:
            source = Source(endpoint, 1.0, top, dict(neutral), is_raw=False)
            try:
                warm = _first(server, source, seed)
                cool = _first(server, replace(source, temperature=COOL), seed)
                # of a greedy token, that is listed anyway, none is added to the list
                greedy = _first(server, replace(source, temperature=0.0), seed)
            except Unsupported:
                continue
            except Broken:
                return None
            if not (warm and cool and greedy):
                return None
            length = min(top, len(greedy))
            return replace(source, top=length, is_raw=_are_raw(warm, cool))
    return None


def _first(server: Server, source: Source, seed: int) -> dict[str, float]:
    """Return the likeliest first tokens and their log-probabilities."""
    tokens = scored(server.post(*source.asked(TOPICS[0], seed, 1)))
    return dict(tokens[0].top) if tokens else {}


def _are_raw(warm: Mapping[str, float], cool: Mapping[str, float]) -> bool:
    """Return whether the temperature changes no log-probability, but by rounding: their
    differences from each other are nearer to equal than to those divided by it.
    """
    shared = [token for token in warm if token in cool]
    first, second = (np.array([one[token] for token in shared]) for one in (warm, cool))
    if len(shared) < 2 or not np.ptp(first):
        return bool(np.all(np.abs(first - second) < ALIKE))
    slope = np.polyfit(first, second, 1)[0]
    return bool(slope < (1 + 1 / COOL) / 2)


@dataclass(slots=True)
class Run:
    """The sampling of one server."""

    server: Server
    sources: list[Source]
    seed: int
    drafts: Drafts | None = None
    drafter: str = "tokens of the answers so far"
    samples: list[dict[str, Any]] = field(default_factory=list)
    """Requests and tokens, to be repeated by others."""
    apart: dict[str, list[float]] = field(default_factory=dict)
    """Total variations between drafter and server, by topic."""

    def batches(self) -> Iterator[tuple[int, list[Text]]]:
        """Yield texts and the index of their source, without end."""
        for turn in count():
            others = len(self.sources) - 1
            index = 1 + turn // 2 % others if others and turn % 2 else 0
            yield index, self._batch(self.sources[index], turn)

    def _batch(self, source: Source, turn: int) -> list[Text]:
        topics = self._topics(turn)
        asked = []
        for number in range(BATCH):
            is_long = number < LONG_ONES
            topic = topics[number] if is_long else topics[number % 2 - 2]
            tokens = LONG if is_long else SHORT
            seed = self.seed + BATCH * turn + number
            asked.append((topic, source.asked(topic, seed, tokens)))
        answers = self.server.at_once([one for _, one in asked])
        return [
            self._text(source, topic, sent[1], scored(answer))
            for (topic, sent), answer in zip(asked, answers, strict=True)
        ]

    def _topics(self, turn: int) -> list[str]:
        """Return the topics of long texts in turn, and the two of short ones: those
        that the drafter is farthest from, where there is one.
        """
        long = [
            TOPICS[(LONG_ONES * turn + at) % len(TOPICS)] for at in range(LONG_ONES)
        ]
        if not self.apart:
            return [*long, *TOPICS[:2]]
        far = sorted(TOPICS, key=lambda topic: -np.mean(self.apart.get(topic, [0])))
        return [*long, *far[:2]]

    def _text(
        self,
        source: Source,
        topic: str,
        body: Mapping[str, Any],
        tokens: Sequence[Scored],
    ) -> Text:
        cut = tuple(replace(one, top=one.top[: source.top]) for one in tokens)
        sample = {"endpoint": source.endpoint, "request": dict(body)}
        self.samples.append({**sample, "tokens": [one.token for one in cut]})
        drafts = None
        if self.drafts is not None:
            drafts = self.drafts(body, cut, source.temperature)
            self._compare(topic, cut, drafts)
        return Text(f"{source.name}: {topic}", cut, source.exponent, drafts)

    def _compare(
        self,
        topic: str,
        tokens: Sequence[Scored],
        drafts: Sequence[dict[str, float] | None],
    ) -> None:
        for token, draft in zip(tokens, drafts, strict=True):
            if draft is not None:
                law = {name: float(np.exp(one)) for name, one in token.top}
                moved = sum(abs(law[name] - draft.get(name, 0)) for name in law) / 2
                self.apart.setdefault(topic, []).append(moved)


def sampled_check(run: Run, clock: Clock, until: float) -> Check:
    """Return whether tokens have the laws that the server states."""
    name = "sampled tokens"
    started = clock.spent
    ledger = Ledger(len(run.sources), drafted=run.drafts is not None)
    memory = Memory()
    for batch, (index, texts) in enumerate(run.batches()):
        rows = memory.rows(texts)
        if rows:
            ledger.take(Rows.joined(rows), index)
        if batch == 0 and ledger.tokens:
            clock.tell(_beforehand(ledger, clock, started, until))
        clock.tell(f"sampled tokens, {ledger.tokens:,}")
        if ledger.differs or _is_over(ledger, batch, clock, until):
            break
    evidence = _evidence(run, ledger)
    if not ledger.tokens:
        return Check(name, "cannot say", "no answer has a token with a stated law")
    if ledger.differs:
        what = f"{ledger.tokens:,} tokens have another law, {ledger.effect}"
        return Check(name, "differs", what, evidence)
    bound = ledger.finds()
    what = (
        f"{ledger.tokens:,} tokens; a total variation of {bound:.3f} would have been "
        f"found with probability {POWER:g}"
    )
    if bound > COARSE:
        return Check(name, "cannot say", what, evidence)
    return Check(name, "consistent", what, evidence, bound)


def _is_over(ledger: Ledger, batch: int, clock: Clock, until: float) -> bool:
    if ledger.tokens < LEAST:
        # texts that end at once may never give enough
        return batch >= LEAST // 2
    return ledger.tokens >= MOST or not clock.before(until)


def _beforehand(ledger: Ledger, clock: Clock, started: float, until: float) -> str:
    """Return how small a difference the run will find."""
    left = 0.0 if clock.is_quick else max(0.0, until * clock.seconds - clock.spent)
    speed = ledger.tokens / max(clock.spent - started, 1e-3)
    tokens = int(min(MOST, max(LEAST, left * speed)))
    bound = ledger.finds(tokens)
    return (
        f"power, about {tokens:,} tokens: a total variation of {bound:.3f} is found "
        f"with probability {POWER:g}"
    )


def _evidence(run: Run, ledger: Ledger) -> dict[str, Any]:
    return {
        "tokens": ledger.tokens,
        "log wealth": round(ledger.log_wealth, 2),
        "largest log wealth": round(ledger.highest, 2),
        "probability of accusing an honest server": ERROR,
        "drafter": run.drafter,
        "sources": [
            {
                "name": source.name,
                "tokens listed": source.top,
                "log-probabilities": "before" if source.is_raw else "after",
            }
            for source in run.sources
        ],
        "found with probability 0.9": {
            bet.difference.name: round(bet.finds(ledger.tokens, ledger.tokens), 4)
            for bet in ledger.shared
            if not bet.difference.learns
        },
        SAMPLES: run.samples,
    }
