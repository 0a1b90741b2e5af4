"""The certificate of a server."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from foreword_lab.certify.clock import Clock
from foreword_lab.certify.remote.ask import PATHS
from foreword_lab.certify.remote.client import (
    Broken,
    Server,
    Unreachable,
    Unsupported,
    reason,
)
from foreword_lab.certify.remote.first_words import (
    words_check,
)
from foreword_lab.certify.remote.forms import (
    call_check,
    schema_check,
)
from foreword_lab.certify.remote.greedy import (
    greedy_check,
)
from foreword_lab.certify.remote.parameters import (
    FILTERS,
    bias_check,
    filter_check,
    length_check,
    stop_check,
)
from foreword_lab.certify.remote.penalties import penalty_check
from foreword_lab.certify.remote.same_text import (
    beside_check,
    drafting_check,
    logprobs_check,
    prefix_check,
    seed_check,
    settled,
)
from foreword_lab.certify.remote.sampled import (
    Drafter,
    Run,
    sampled_check,
)
from foreword_lab.certify.remote.source import (
    Source,
    sources,
)
from foreword_lab.certify.report import (
    Certificate,
    Check,
)

SEEDS, FEW_SEEDS = 8, 3
"""Seeds of the checks that compare two texts."""
ANSWERS = "tokens of the answers so far"
"""What orders tokens without a draft model."""
SAMPLING = 0.6
"""Share of the time for sampled tokens."""
Asked = tuple[str, Callable[[], Check]]
"""(name, check)"""


def certify_server(
    url: str,
    *,
    key: str | None = None,
    model: str | None = None,
    minutes: float = 3.0,
    quick: bool = False,
    seed: int = 0,
    draft: str | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Certificate:
    """Check a server.

    draft: a draft model that runs here, by which tokens are ordered.

    Raises Unreachable before tokens were sampled, or ModelError if the draft model
    cannot be loaded.
    """
    server = Server.at(url, key, model)
    clock = Clock.of(minutes, note, quick=quick)
    named = sources(server, seed, quick=quick)
    # first: whether a difference of texts is rounding depends on it
    drafter: Drafter | None = None
    if draft is not None:
        # needs Foreword, without which other servers are certified
        from foreword_lab.certify.remote.drafting import local_draft

        drafter = local_draft(draft)
    run = Run(server, named, seed, drafter, draft or ANSWERS)
    sampled = partial(_sampled, run, clock)
    target = _outcome("sampled tokens", sampled, clock)
    others = *_texts(server, seed, clock), *_parameters(server, seed, named)
    checks = outcomes(others, clock)
    checks = settled(checks, consistent=target.status == "consistent")
    subject = {"server": server.base, "model": server.model}
    return Certificate.of(subject, [target, *checks], seed, clock)


def outcomes(named: Iterable[Asked], clock: Clock) -> list[Check]:
    """Return the outcomes of checks, up to one in which the server goes away: what was
    found before is kept.
    """
    checks = []
    for name, check in named:
        try:
            checks.append(_outcome(name, check, clock))
        except Unreachable as error:
            checks.append(Check(name, "cannot say", reason(error)))
            break
    return checks


def _outcome(
    name: str,
    check: Callable[[], Check],
    clock: Clock,
) -> Check:
    """Return the outcome of a check that may be refused."""
    clock.tell(name)
    try:
        return check()
    except Unsupported as error:
        return Check(name, "cannot say", reason(error))
    except Broken as error:
        return Check(name, "differs", reason(error))
    except (LookupError, TypeError, AttributeError) as error:
        return Check(
            name, "cannot say", f"an answer is not understood: {reason(error)}"
        )


def _texts(server: Server, first: int, clock: Clock) -> Iterator[Asked]:
    """Yield the checks that compare two texts, and the checks of forms."""
    seeds = range(first + 1, first + 1 + (FEW_SEEDS if clock.is_quick else SEEDS))
    for endpoint in PATHS:
        yield f"seeds: {endpoint}", partial(seed_check, server, endpoint, seeds)
        for heat in (0.0, 1.0):
            named = f"beside other requests: {endpoint}, temperature {heat:g}"
            yield named, partial(beside_check, server, endpoint, heat)
        yield f"prefixes: {endpoint}", partial(prefix_check, server, endpoint, first)
        yield f"drafting: {endpoint}", partial(drafting_check, server, endpoint, seeds)
        named = f"log-probabilities: {endpoint}"
        yield named, partial(logprobs_check, server, endpoint, seeds)
        yield f"stop texts: {endpoint}", partial(stop_check, server, endpoint)
        yield f"lengths: {endpoint}", partial(length_check, server, endpoint)
    yield "tool calls cut", partial(call_check, server, clock)
    yield "JSON cut", partial(schema_check, server, clock)


def _parameters(server: Server, seed: int, named: list[Source]) -> Iterator[Asked]:
    """Yield the checks of greedy tokens and of parameters."""
    by_endpoint = {source.endpoint: source for source in reversed(named)}
    for source in by_endpoint.values():
        endpoint = source.endpoint
        yield f"greedy tokens: {endpoint}", partial(greedy_check, server, source)
        for name in FILTERS:
            check = partial(filter_check, server, source, name, seed)
            yield f"{name}: {endpoint}", check
        # a chat's template has words of its own, and some servers count them
        if endpoint == "completions":
            yield "penalties: completions", partial(penalty_check, server, source)
        yield f"bias: {endpoint}", partial(bias_check, server, endpoint, seed)


def _sampled(run: Run, clock: Clock) -> Check:
    """Return the check of sampled tokens, or of first words without distributions."""
    if run.sources:
        return sampled_check(run, clock, SAMPLING)
    try:
        return words_check(run.server, "chat", clock, SAMPLING, run.seed)
    except Unsupported:
        return words_check(run.server, "completions", clock, SAMPLING, run.seed)
