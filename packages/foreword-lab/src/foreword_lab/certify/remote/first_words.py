"""First words with drafting against first words without, from a server that states no
log-probabilities.
"""

import math
from collections import Counter

from foreword_lab.certify.betting.wealth import (
    ERROR,
    POWER,
    enough,
)
from foreword_lab.certify.clock import Clock
from foreword_lab.certify.remote.ask import (
    TOPICS,
    Endpoint,
    prompt,
    request,
    sampling,
    text_of,
)
from foreword_lab.certify.remote.client import Server
from foreword_lab.certify.remote.same_text import (
    Sent,
    accepted,
    refuse_drafted,
    without_drafting,
)
from foreword_lab.certify.remote.sampled import (
    BATCH,
    COARSE,
)
from foreword_lab.certify.report import Check

LEAST, MOST = 160, 20_000
"""Pairs of a word with drafting and one without."""
WORD = 3
"""Tokens. A word may have several."""
PRIOR = 0.5
"""Words. Weight of each word before it was drawn (Krichevsky and Trofimov 1981)."""


class Words:
    """A bet on which word of a pair came with drafting.

    If both have one distribution, it is either one with probability 1/2, whatever the
    two words are, so the wealth is an e-process.
    """

    def __init__(self) -> None:
        self.pairs = 0
        self.log_wealth = 0.0
        self.highest = 0.0
        self._drafted = Counter[str]()
        self._plain = Counter[str]()

    def take(self, drafted: str, plain: str) -> None:
        """Bet on a pair by the words so far, then count it."""
        as_drawn = self._weight(drafted, plain)
        swapped = self._weight(plain, drafted)
        self.log_wealth += math.log(2 * as_drawn / (as_drawn + swapped))
        self.highest = max(self.highest, self.log_wealth)
        self.pairs += 1
        self._drafted[drafted] += 1
        self._plain[plain] += 1

    def _weight(self, drafted: str, plain: str) -> float:
        return (self._drafted[drafted] + PRIOR) * (self._plain[plain] + PRIOR)

    @property
    def differs(self) -> bool:
        """Whether words are drawn otherwise: wrong of at most ERROR of servers."""
        return self.highest >= math.log(1 / ERROR)

    @property
    def finds(self) -> float:
        """Total variation d of words that is found with probability POWER.

        A pair is worth at least d^2 / (1 + d^2) nats, by Pinsker's inequality for
        whether a word is likelier with drafting. Learning the frequencies costs what
        equal ones lose; twice that, as by simulation once is too little for 200 words.
        """
        learning = 2 * max(0.0, -self.log_wealth)
        nats = enough(math.log(1 / ERROR) + learning) / max(self.pairs, 1)
        return math.sqrt(nats / (1 - nats)) if nats < 0.5 else 1.0


def words_check(
    server: Server,
    endpoint: Endpoint,
    clock: Clock,
    until: float,
    seed: int,
) -> Check:
    """Return whether first words are as frequent with drafting as without; `until`:
    share of the time.

    Raises Unsupported where drafting cannot be turned off.
    """
    name = f"first words with and without drafting: {endpoint}"
    accepted(server.post(*without_drafting(_asked(endpoint, seed))))
    words = Words()
    while words.pairs < LEAST or (words.pairs < MOST and clock.before(until)):
        first = seed + 2 * words.pairs
        sent = [_asked(endpoint, first + at) for at in range(BATCH)]
        sent[1::2] = map(without_drafting, sent[1::2])
        answers = server.at_once(sent)
        refuse_drafted(answers[1::2])
        texts = map(text_of, answers)
        drawn = ["".join(text.split()[:1]) for text in texts]
        for drafted, plain in zip(drawn[::2], drawn[1::2], strict=True):
            words.take(drafted, plain)
        clock.tell(f"first words, {words.pairs:,}")
        if words.differs:
            break
    bound = words.finds
    evidence = {
        "pairs of words": words.pairs,
        "largest log wealth": round(words.highest, 2),
        "probability of accusing an honest server": ERROR,
    }
    if words.differs:
        return Check(name, "differs", "words are drawn otherwise", evidence)
    what = (
        f"{words.pairs:,} pairs; a total variation of {bound:.2f} would have been "
        f"found with probability {POWER:g}"
    )
    if bound > COARSE:
        return Check(name, "cannot say", what, evidence)
    return Check(name, "consistent", what, evidence, bound)


def _asked(endpoint: Endpoint, seed: int) -> Sent:
    parameters = sampling(seed, 1.0, WORD)
    return request(endpoint, prompt(TOPICS[0]), **parameters, top_p=1.0)
