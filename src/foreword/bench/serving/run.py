"""Load measurement of servers: every server at every concurrency, interleaved, and HTTP beside no HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from collections.abc import Sequence as List
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from transformers import PreTrainedTokenizerBase

from foreword import bundled
from foreword.async_llm import AsyncLLM
from foreword.bench.exclusions import Exclusions
from foreword.bench.lineup import Weights, weights
from foreword.bench.machine import machine, versions
from foreword.bench.peers import registry
from foreword.bench.peers.convert import source as convertible
from foreword.bench.prompts import load
from foreword.bench.race import REST
from foreword.bench.records import Request
from foreword.bench.run import Options, check, rendered, spread
from foreword.bench.serving import servers
from foreword.bench.serving.load import Ask, Load, send
from foreword.bench.serving.report import IN_PROCESS, Results, ServingReport, rows
from foreword.bench.serving.servers import LLAMACPP, OURS, PLAIN, TRANSFORMERS, Served, command, free_port, running
from foreword.bench.serving.targets import HttpTarget, InProcess
from foreword.errors import InvalidRequest
from foreword.llm import LLM
from foreword.model.loading.config import read_config

WARM = "warm"
"""Tenant of the warm-up."""
MOST = 256
"""Requests at a time that our server admits by default."""


def serving(
    options: Options, concurrencies: List[int], progress: Callable[[str], None] = lambda _: None
) -> ServingReport:
    """Send the same requests to every server at every concurrency, in turn; the order rotates.

    Each turn and concurrency is a tenant of its own, so that no server of ours drafts with answers it gave before.
    Raises InvalidRequest or ModelError before any measuring. A server that cannot start is excluded.
    """
    _check(options, concurrencies)
    source = weights(options.target, options.draft, options.dtype, options.inflate, trusted=options.trust_remote_code)
    tokenizer = source.tokenizer(source.target)
    context = read_config(source.target, trust_remote_code=source.trusted).max_position_embeddings
    prompts = spread(load(options.prompts), options.limit)
    requests = {
        heat: [
            Request(one.id, rendered(one, tokenizer, context, options), heat, options.seed + place, options.tokens)
            for place, one in enumerate(prompts)
        ]
        for heat in options.temperatures
    }
    out, results = Exclusions(progress, needed=PLAIN), Results()
    keys = [
        WARM,
        *(_tenant(turn, heat, many) for turn in range(options.times) for heat in requests for many in concurrencies),
    ]
    with _files(source, max(concurrencies), tokenizer, progress) as files, ExitStack() as stack:
        asks = _start(files, _names(options), tokenizer, keys, out, stack, progress)
        asyncio.run(_measure(asks, files, requests, concurrencies, options.times, results, progress))
    settings = asdict(options) | {"max_tokens": options.tokens, "repeats": options.times}
    settings |= {"requests": len(prompts), "concurrencies": list(concurrencies)}
    used = versions() | registry.versions(options.peers)
    return ServingReport(machine(), used, source.name, settings, rows(results), out.reasons)


def _check(options: Options, concurrencies: List[int]) -> None:
    check(options)
    if not concurrencies or not all(1 <= many <= MOST for many in concurrencies):
        raise InvalidRequest(
            f"cannot measure concurrencies of {list(concurrencies)}: each must be from 1 to {MOST}. Give 1,4,16,32"
        )


def _names(options: Options) -> list[str]:
    """Return the servers: ours twice, transformers', and the peers that were named."""
    every = registry.ALL in options.peers
    return [OURS, PLAIN, TRANSFORMERS, *([LLAMACPP] if every or LLAMACPP in options.peers else [])]


def _tenant(turn: int, heat: float, many: int) -> str:
    return f"turn-{turn}-{heat:g}-{many}"


@contextmanager
def _files(
    source: Weights, slots: int, tokenizer: PreTrainedTokenizerBase, note: Callable[[str], None]
) -> Iterator[Served]:
    """Yield the files of the servers; an enlarged target is written to a folder for as long as it is needed."""
    from foreword.bench.peers import llamacpp

    def gguf() -> Path:
        return llamacpp.file(convertible(source.name, source.load(), tokenizer), note)

    dtype = str(source.dtype).removeprefix("torch.")
    draft = None if source.draft is None else str(source.draft)
    own = source.target == bundled.target() and source.shape is None and source.draft == bundled.draft()
    files = Served(None if own else str(source.target), None if own else draft, str(source.target), dtype, slots, gguf)
    files = replace(files, trusted=source.trusted)
    if source.shape is None:
        yield files
        return
    with TemporaryDirectory(prefix="foreword-serve-") as folder:
        note(f"writing {source.name} into {folder}, removed after the run")
        source.load().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        yield replace(files, target=folder, folder=folder)


def _start(
    files: Served,
    names: List[str],
    tokenizer: PreTrainedTokenizerBase,
    keys: List[str],
    out: Exclusions,
    stack: ExitStack,
    progress: Callable[[str], None],
) -> dict[str, Ask]:
    """Start the servers one after another; return name -> what asks it."""
    asks: dict[str, Ask] = {}
    for name in names:
        with out.unless(name):
            port = free_port()
            line = command(name, files, port)
            progress(f"starting {name}")
            environment = {"FOREWORD_API_KEYS": ",".join(keys)} if name in (OURS, PLAIN) else {}
            stack.enter_context(running(line, port, environment | {"HF_HUB_OFFLINE": "1"}))
            text_only = name == TRANSFORMERS
            target = HttpTarget(
                (servers.HOST, port), files.folder if text_only else None, tokenizer if text_only else None
            )
            asks[name] = target.ask
    return asks


async def _measure(
    asks: dict[str, Ask],
    files: Served,
    requests: dict[float, list[Request]],
    concurrencies: List[int],
    turns: int,
    results: Results,
    progress: Callable[[str], None],
) -> None:
    llm = LLM(files.target, draft=files.draft, dtype=files.dtype, slots=files.slots, trust_remote_code=files.trusted)
    async with AsyncLLM(llm) as engine:
        asks = asks | {IN_PROCESS: InProcess(engine).ask}
        first = next(iter(requests.values()))[0]
        for ask in asks.values():
            await send(ask, [replace(first, seed=first.seed + MOST)], 1, WARM)
        names = list(asks)
        for turn in range(turns):
            for heat, several in requests.items():
                for many in concurrencies:
                    for name in [*names[turn % len(names) :], *names[: turn % len(names)]]:
                        if name == IN_PROCESS and many != 1:
                            continue
                        await asyncio.sleep(REST)
                        load_: Load = await send(asks[name], several, many, _tenant(turn, heat, many))
                        results.setdefault((heat, name, many), []).append(load_)
                    progress(f"turn {turn + 1} of {turns}: temperature {heat:g}, concurrency {many}")
