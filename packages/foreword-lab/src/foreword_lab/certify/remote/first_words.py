"""First words with and without drafting, where a server states no log-probabilities."""

from collections import Counter
from collections.abc import Sequence

from foreword_lab.bench.stats import (
    LEVEL,
    Fit,
    confirmed,
    homogeneity,
)
from foreword_lab.certify.remote.ask import (
    TOPICS,
    Endpoint,
    prompt,
    request,
    text_of,
)
from foreword_lab.certify.remote.client import Server
from foreword_lab.certify.remote.same_text import (
    Sent,
    accepted,
    without_drafting,
)
from foreword_lab.certify.remote.sampled import BATCH
from foreword_lab.certify.remote.source import sampling
from foreword_lab.certify.report import Check

WORDS = 160
"""Requests. Samples of a first word with drafting, and as many without."""
SECOND = 2**20
"""Distance of the seeds of samples that are drawn again."""


def words_check(
    server: Server, endpoint: Endpoint, temperature: float, seed: int
) -> Check:
    """Return whether first words are as frequent with drafting as without.

    Raises Unsupported where drafting cannot be turned off.
    """
    name = f"first words with and without drafting: {endpoint}, {temperature:g}"

    def compare(turn: int) -> Fit:
        rows = []
        for is_plain in (False, True):
            first = seed + turn * SECOND + is_plain * WORDS
            sent = _asked(endpoint, first, temperature, is_plain=is_plain)
            rows.append(Counter(_first_words(server, sent)))
        cells = [*(rows[0] | rows[1])]
        return homogeneity(*([row[cell] for cell in cells] for row in rows))

    accepted(server.post(*_asked(endpoint, seed, temperature, is_plain=True)[0]))
    first, again = confirmed(compare)
    evidence = {
        "samples": 2 * WORDS,
        "p-value": first.p_value,
        "p-value of new samples": again and again.p_value,
    }
    if again is not None and again.p_value < LEVEL:
        return Check(name, "differs", "words are drawn otherwise", evidence)
    if first.cells < 2:
        return Check(name, "cannot say", "there is one likely word only", evidence)
    what = f"{2 * WORDS} words; a total variation of {first.detects:.2f} would show"
    return Check(name, "consistent", what, evidence, first.detects)


def _asked(
    endpoint: Endpoint, first: int, temperature: float, *, is_plain: bool
) -> list[Sent]:
    """Return WORDS requests for a first word, with seeds of their own."""
    sent = []
    for seed in range(first, first + WORDS):
        # a word may have several tokens
        parameters = sampling(seed, temperature, 3)
        query = request(endpoint, prompt(TOPICS[0]), **parameters)
        sent.append(without_drafting(query) if is_plain else query)
    return sent


def _first_words(
    server: Server,
    sent: Sequence[Sent],
) -> list[str]:
    """Return the first word of each answer, cut off if it is long."""
    words = []
    for start in range(0, len(sent), BATCH):
        answers = server.at_once(sent[start : start + BATCH])
        words += [text_of(one).split()[:1] for one in answers]
    return ["".join(word) for word in words]
