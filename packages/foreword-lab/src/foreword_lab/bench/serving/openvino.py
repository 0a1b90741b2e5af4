"""OpenVINO GenAI's continuous batching as a load target, in this process: no server."""

import asyncio
from importlib import import_module
from itertools import count
from time import perf_counter
from typing import Any

import numpy as np

from foreword.errors import ForewordError
from foreword_lab.bench.peers.engines import ASSISTED
from foreword_lab.bench.peers.openvino import SETTINGS, device, folder, sampling
from foreword_lab.bench.peers.registry import Pair
from foreword_lab.bench.records import BenchRequest
from foreword_lab.bench.serving.load import Answer, longest

ALONE, DRAFTING = NAMES = ("openvino", "openvino, draft model")
"""Names of the rows."""


class OpenVinoTarget:
    """A pipeline whose steps run in a thread while any request is unfinished."""

    def __init__(self, name: str, pair: Pair, slots: int) -> None:
        """`name`: one of NAMES. `slots`: sequences of a step. May raise ModelError."""
        self._ov: Any = import_module("openvino")
        self._genai: Any = import_module("openvino_genai")
        scheduler = self._genai.SchedulerConfig()
        scheduler.max_num_seqs = slots
        scheduler.enable_prefix_caching = False
        source = pair.target()
        how, self._settings = device(source), dict[str, Any]()
        extra: dict[str, Any] = {}
        if name == DRAFTING:
            draft = pair.draft()
            extra["draft_model"] = self._genai.draft_model(
                str(folder(draft, pair.note)), "CPU", **device(draft)
            )
            self._settings = SETTINGS[ASSISTED]
        where = str(folder(source, pair.note))
        self._pipeline = self._genai.ContinuousBatchingPipeline(
            where, scheduler, "CPU", how | extra
        )
        self._eos = set(source.eos)
        self._tokenizer = source.tokenizer
        self._ids = count()
        self._steps: asyncio.Task[None] | None = None
        self._stepped = asyncio.Event()

    async def ask(self, request: BenchRequest, tenant: str) -> Answer:
        """Generate one answer; above temperature 0 it samples from the seed."""
        config = self._genai.GenerationConfig(
            max_new_tokens=request.max_tokens,
            stop_token_ids=self._eos,
            **sampling(request),
            **self._settings,
        )
        started = perf_counter()
        tokens = list[int]()
        times = list[float]()
        prompt = self._ov.Tensor(np.array([request.prompt], dtype=np.int64))
        handle = self._pipeline.add_request(next(self._ids), prompt, config)
        if self._steps is None or self._steps.done():
            self._steps = asyncio.create_task(self._run())
        ended = False
        while not ended:
            await self._stepped.wait()
            ended = handle.get_status() != self._genai.GenerationStatus.RUNNING
            while handle.can_read():
                tokens += [
                    token
                    for output in handle.read().values()
                    for token in output.generated_ids
                ]
                times.append(perf_counter())
            if self._steps.done() and not ended:
                self._steps.result()
                raise ForewordError(
                    "cannot get an answer from OpenVINO: it stopped before the end"
                )
        times = times or [perf_counter()]
        text = str(self._tokenizer.decode(tokens, skip_special_tokens=True))
        return Answer(
            started=started,
            first=times[0],
            last=times[-1],
            text=text,
            gap=longest(times),
            tokens=len(tokens),
        )

    async def _run(self) -> None:
        """Step while requests are unfinished, and wake all that wait after a step."""
        try:
            while self._pipeline.has_non_finished_requests():
                await asyncio.to_thread(self._pipeline.step)
                self._wake()
        finally:
            self._wake()

    def _wake(self) -> None:
        waiting, self._stepped = self._stepped, asyncio.Event()
        waiting.set()
