"""Sampled tokens against the distributions that the server states for them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeAlias

import numpy as np

from foreword_lab.certify.betting.rows import Rows
from foreword_lab.certify.betting.wealth import (
    ERROR,
    POWER,
    Ledger,
)
from foreword_lab.certify.clock import Clock
from foreword_lab.certify.remote.ask import (
    TOPICS,
    Scored,
    scored,
)
from foreword_lab.certify.remote.client import Server
from foreword_lab.certify.remote.source import Source
from foreword_lab.certify.remote.texts import (
    Drafts,
    Memory,
    known,
)
from foreword_lab.certify.report import SAMPLES, Check

SHORT, LONG = 4, 16
"""Tokens. Length of a text: later tokens are drafted in longer chains, and the first
ones are drawn after the same text again and again.
"""
BATCH = 8
"""Requests. Sent at once."""
LONG_ONES = 2
"""Texts of a batch that are long; the others share two prompts."""
LEAST, MOST = 320, 200_000
"""Tokens. Fewer find little; more hardly find more."""
COARSE = 0.3
"""Total variation. A run that finds only larger differences says nothing."""

Drafter: TypeAlias = Callable[[Mapping[str, Any], Sequence[Scored], float], Drafts]
"""(body of a request, tokens of its answer, temperature) -> a draft model's
probabilities.
"""


@dataclass(slots=True)
class Run:
    """The sampling of one server."""

    server: Server
    sources: list[Source]
    seed: int
    drafter: Drafter | None = None
    named: str = ""
    """What orders tokens, in the report."""
    memory: Memory = field(default_factory=Memory)
    samples: list[dict[str, Any]] = field(default_factory=list)
    """Requests and tokens, to be repeated by others."""
    apart: dict[str, list[float]] = field(default_factory=dict)
    """Total variations between drafter and server, by topic."""
    unlisted: int = 0
    """Tokens without log-probabilities."""

    def source(self, turn: int) -> int:
        """Return the index of a batch's source: the first one every second turn."""
        rest = len(self.sources) - 1
        return 1 + turn // 2 % rest if rest and turn % 2 else 0

    def batch(self, turn: int) -> list[dict[str, Any]]:
        """Sample a batch of texts; return their tokens as rows."""
        source = self.sources[self.source(turn)]
        topics = self._topics(turn)
        sent = []
        for number, topic in enumerate(topics):
            seed = self.seed + BATCH * turn + number
            tokens = LONG if number < LONG_ONES else SHORT
            sent.append(source.asked(topic, seed, tokens))
        answers = self.server.at_once(sent)
        rows = []
        for topic, (_, body), answer in zip(topics, sent, answers, strict=True):
            rows += self._rows(source, topic, body, scored(answer))
        return rows

    def _topics(self, turn: int) -> list[str]:
        """Return the topics of a batch: of long texts in turn; of short ones two, from
        which the drafter is farthest, where there is one.
        """
        first = LONG_ONES * turn
        long = [TOPICS[(first + at) % len(TOPICS)] for at in range(LONG_ONES)]
        short = [*TOPICS]
        if self.apart:
            short.sort(key=lambda topic: -np.mean(self.apart.get(topic, [0])))
        return long + [short[at % 2] for at in range(BATCH - LONG_ONES)]

    def _rows(
        self,
        source: Source,
        topic: str,
        body: Mapping[str, Any],
        tokens: Sequence[Scored],
    ) -> list[dict[str, Any]]:
        cut = [replace(one, top=known(one.top, source.top)) for one in tokens]
        self.unlisted += sum(not one.top for one in tokens)
        sample = {"endpoint": source.endpoint, "request": dict(body)}
        self.samples.append({**sample, "tokens": [one.token for one in cut]})
        drafts = None
        if self.drafter is not None:
            drafts = self.drafter(body, cut, source.temperature)
            self._compare(topic, cut, drafts)
        prompt = f"{source.name}: {topic}"
        return self.memory.rows(prompt, cut, source.exponent, drafts)

    def _compare(
        self,
        topic: str,
        tokens: Sequence[Scored],
        drafts: Drafts,
    ) -> None:
        for token, draft in zip(tokens, drafts, strict=True):
            if draft is None:
                continue
            moved = 0.0
            for name, logprob in token.top:
                moved += abs(float(np.exp(logprob)) - draft.get(name, 0)) / 2
            self.apart.setdefault(topic, []).append(moved)


def sampled_check(
    run: Run,
    clock: Clock,
    until: float,
) -> Check:
    """Return whether tokens have the distributions that the server states."""
    started = clock.spent
    ledger = Ledger(len(run.sources), drafted=run.drafter is not None)
    for turn in count():
        rows = run.batch(turn)
        if rows:
            ledger.take(Rows.joined(rows), run.source(turn))
        ledger.unlisted = run.unlisted
        if turn == 0 and rows:
            clock.tell(_beforehand(ledger, clock, started, until))
        clock.tell(f"sampled tokens, {ledger.tokens:,}")
        if ledger.differs or _is_over(ledger, turn, clock, until):
            break
    if not ledger.tokens:
        what = "no answer has a token with a distribution"
        return Check("sampled tokens", "cannot say", what)
    return outcome(ledger, "of the server", _evidence(run, ledger))


def outcome(
    ledger: Ledger,
    source: str,
    evidence: dict[str, Any],
) -> Check:
    """Return what the bets on sampled tokens say; `source`: of what."""
    name, count = "sampled tokens", f"{ledger.tokens:,} tokens {source}"
    if ledger.differs:
        effect = ledger.best.described(ledger.tokens)
        what = f"{count} are drawn otherwise, {effect}"
        return Check(name, "differs", what, evidence)
    bound = ledger.finds()
    if ledger.unlisted:
        count += (
            f", and {ledger.unlisted:,} without log-probabilities, which may be the "
            "drafted ones"
        )
    what = (
        f"{count}; a total variation of {bound:.3f} would have been found with "
        f"probability {POWER:g}"
    )
    if bound > COARSE:
        return Check(name, "cannot say", what, evidence)
    return Check(name, "consistent", what, evidence, bound)


def _is_over(
    ledger: Ledger,
    turn: int,
    clock: Clock,
    until: float,
) -> bool:
    if ledger.tokens + ledger.unlisted < LEAST:
        # texts that end at once may never give enough
        return turn >= LEAST // 2
    return ledger.tokens >= MOST or not clock.before(until)


def _beforehand(
    ledger: Ledger,
    clock: Clock,
    started: float,
    until: float,
) -> str:
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
        "without log-probabilities": ledger.unlisted,
        "log wealth": round(ledger.log_wealth, 2),
        "largest log wealth": round(ledger.highest, 2),
        "probability of accusing an honest server": ERROR,
        "drafter": run.named,
        "sources": [
            {
                "name": source.name,
                "tokens listed": source.top,
                "log-probabilities": "before" if source.is_raw else "after",
            }
            for source in run.sources
        ],
        "found with probability 0.9": {
            bet.name: round(bet.finds(ledger.tokens, ledger.tokens), 4)
            for bet in ledger.shared
            if not bet.learns
        },
        SAMPLES: run.samples,
    }
