"""Load measurement of servers: every server and concurrency, interleaved."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, cycle, islice, product
from tempfile import TemporaryDirectory
from typing import Any

from transformers import PreTrainedTokenizerBase

from foreword import bundled
from foreword.api.async_llm import AsyncLLM
from foreword.api.llm import LLM
from foreword.errors import InvalidRequest
from foreword.model.loading.config import read_config
from foreword.native.machine import machine, versions
from foreword.prompts import load
from foreword_lab.bench.exclusions import Exclusions
from foreword_lab.bench.lineup import Weights, convertible_draft, weights
from foreword_lab.bench.peers import registry
from foreword_lab.bench.race import REST, rotated
from foreword_lab.bench.records import BenchRequest
from foreword_lab.bench.run import Options, check, rendered, spread
from foreword_lab.bench.serving import llamacpp, openvino, servers
from foreword_lab.bench.serving.load import Ask, send
from foreword_lab.bench.serving.report import IN_PROCESS, Results, ServingReport, rows
from foreword_lab.bench.serving.servers import (
    OURS,
    PLAIN,
    TRANSFORMERS,
    Served,
    command,
    free_port,
    running,
)
from foreword_lab.bench.serving.targets import HttpTarget, InProcess

WARM = "warm"
"""Tenant of the warm-up."""
MOST = 256
"""Requests at a time that our server admits by default."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is sent: each temperature's requests, `turns` times per concurrency."""

    requests: dict[float, list[BenchRequest]]
    concurrencies: tuple[int, ...]
    turns: int

    @property
    def tenants(self) -> list[str]:
        """Every tenant: of the warm-up, and of each turn, temperature, concurrency."""
        loads = product(range(self.turns), self.requests, self.concurrencies)
        return [WARM, *(_tenant(*one) for one in loads)]


def serving(
    options: Options,
    concurrencies: Sequence[int],
    count: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> ServingReport:
    """Send the same requests to every server at every concurrency, in turn; the order
    rotates.

    `count`: number of requests at each concurrency, cycling through the prompts with
    new seeds; None = one a prompt. Each turn and concurrency is a tenant of its own, so
    that no server of ours drafts with answers it gave before. Raises InvalidRequest or
    ModelError before any measuring. A server that cannot start is excluded.
    """
    _check(options, concurrencies)
    source = weights(
        options.target,
        options.draft,
        options.dtype,
        options.inflate,
        trusted=options.trust_remote_code,
        device=options.device,
    )
    source = replace(source, form=options.weights)
    tokenizer = source.tokenizer(source.target)
    plan = Plan(
        _requests(options, source, tokenizer, count),
        tuple(concurrencies),
        options.times,
    )
    names = _names(options)
    out, results = Exclusions(progress, needed=PLAIN), Results()
    with (
        _files(source, max(concurrencies), tokenizer, progress) as files,
        ExitStack() as stack,
    ):
        starter = _Starter(files, tokenizer, ",".join(plan.tenants), progress)
        asks: dict[str, Ask] = {}
        for name in names:
            with out.unless(name):
                asks[name] = starter.start(name, stack)
        asyncio.run(_measure(asks, _in_process(files), plan, results, progress))
    return ServingReport(
        machine(source.device),
        _versions(names),
        source.name,
        _settings(options, plan) | {"held": source.held(names)},
        rows(results),
        out.reasons,
    )


def _in_process(files: Served) -> LLM:
    """Return the engine that is measured without HTTP."""
    return LLM(
        files.target,
        draft=files.draft,
        dtype=files.dtype,
        device=files.device,
        weights=files.weights,
        slots=files.slots,
        trust_remote_code=files.trusted,
    )


def _settings(options: Options, plan: Plan) -> dict[str, Any]:
    """Return the settings needed to repeat the run."""
    return asdict(options) | {
        "max_tokens": options.tokens,
        "repeats": options.times,
        "requests": len(plan.requests[options.temperatures[0]]),
        "concurrencies": list(plan.concurrencies),
    }


def _requests(
    options: Options,
    source: Weights,
    tokenizer: PreTrainedTokenizerBase,
    count: int | None,
) -> dict[float, list[BenchRequest]]:
    context = read_config(
        source.target, trust_remote_code=source.trusted
    ).max_position_embeddings
    prompts = spread(load(options.prompts), options.limit)
    texts = [(one.id, rendered(one, tokenizer, context, options)) for one in prompts]
    chosen = list(islice(cycle(texts), count or len(texts)))
    return {
        heat: [
            BenchRequest(*one, heat, options.seed + place, options.tokens)
            for place, one in enumerate(chosen)
        ]
        for heat in options.temperatures
    }


def _check(options: Options, concurrencies: Sequence[int]) -> None:
    check(options)
    if not concurrencies or not all(1 <= many <= MOST for many in concurrencies):
        raise InvalidRequest(
            f"cannot measure concurrencies of {list(concurrencies)}: each must be from "
            f"1 to {MOST}. Give 1,4,16,32"
        )


def _names(options: Options) -> list[str]:
    """Return the servers: ours twice, transformers', and the peers that were named."""
    rows = {openvino.ALONE: openvino.NAMES, llamacpp.ALONE: llamacpp.NAMES}
    peers = [
        rows[name]
        for name in registry.ENGINES
        if name in options.peers or registry.ALL in options.peers
    ]
    return [OURS, PLAIN, TRANSFORMERS, *chain.from_iterable(peers)]


def _versions(names: Sequence[str]) -> dict[str, str]:
    theirs = {llamacpp.PROGRAM: llamacpp.version()} if llamacpp.ALONE in names else {}
    return (
        versions()
        | registry.versions([name for name in names if name == openvino.ALONE])
        | theirs
    )


def _tenant(turn: int, heat: float, many: int) -> str:
    return f"turn-{turn}-{heat:g}-{many}"


@contextmanager
def _files(
    source: Weights,
    slots: int,
    tokenizer: PreTrainedTokenizerBase,
    note: Callable[[str], None],
) -> Iterator[Served]:
    """Yield the files of the servers; an enlarged target is written to a folder for as
    long as it is needed.
    """

    target = partial(source.convertible, tokenizer)
    pair = registry.Pair(target, partial(convertible_draft, source), note)
    dtype = str(source.dtype).removeprefix("torch.")
    draft = None if source.draft is None else str(source.draft)
    is_bundled = (
        bundled.is_target(source.target)
        and source.shape is None
        and source.draft == bundled.draft()
    )
    files = Served(
        None if is_bundled else str(source.target),
        None if is_bundled else draft,
        str(source.target),
        dtype,
        slots,
        pair,
        source.trusted,
        source.form,
        source.device,
    )
    if source.shape is None:
        yield files
        return
    with TemporaryDirectory(prefix="foreword-serve-") as folder:
        note(f"writing {source.name} into {folder}, removed after the run")
        source.load().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        yield replace(files, target=folder, folder=folder)


@dataclass(frozen=True, slots=True)
class _Starter:
    """What all servers are started with."""

    files: Served
    tokenizer: PreTrainedTokenizerBase
    keys: str
    """API keys of our servers, separated by commas."""
    progress: Callable[[str], None]

    def start(self, name: str, stack: ExitStack) -> Ask:
        """Start a server, which ends with the stack; return what asks it."""
        if name in openvino.NAMES:
            registry.check([openvino.ALONE])
            self.progress(f"loading {name}")
            return openvino.OpenVinoTarget(name, self.files.pair, self.files.slots).ask
        port = free_port()
        line = command(name, self.files, port)
        self.progress(f"starting {name}")
        variables = {"FOREWORD_API_KEYS": self.keys} if name in (OURS, PLAIN) else {}
        stack.enter_context(running(line, port, variables | {"HF_HUB_OFFLINE": "1"}))
        address = (servers.HOST, port)
        if name == TRANSFORMERS:
            return HttpTarget(address, self.files.folder, self.tokenizer).ask
        return HttpTarget(address).ask


async def _measure(
    asks: dict[str, Ask],
    llm: LLM,
    plan: Plan,
    results: Results,
    progress: Callable[[str], None],
) -> None:
    async with AsyncLLM(llm) as engine:
        asks = asks | {IN_PROCESS: InProcess(engine).ask}
        first = next(iter(plan.requests.values()))[0]
        for ask in asks.values():  # with a seed of no other request
            await send(
                ask,
                [
                    replace(
                        first, seed=first.seed + sum(map(len, plan.requests.values()))
                    )
                ],
                1,
                WARM,
            )
        names = list(asks)
        for turn, (heat, requests), many in product(
            range(plan.turns), plan.requests.items(), plan.concurrencies
        ):
            for name in rotated(names, turn):
                if name == IN_PROCESS and many != 1:
                    continue
                await asyncio.sleep(REST)
                measured = await send(
                    asks[name], requests, many, _tenant(turn, heat, many)
                )
                results.setdefault((heat, name, many), []).append(measured)
            progress(
                f"turn {turn + 1} of {plan.turns}: temperature {heat:g}, concurrency "
                f"{many}"
            )
