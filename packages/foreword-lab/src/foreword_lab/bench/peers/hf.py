"""Baselines of transformers: generate, assisted generation, prompt lookup and compiled
generation, with unmodified weights and code.
"""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from time import perf_counter
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor
from transformers import (
    CompileConfig,
    PreTrainedModel,
    StaticCache,
    StoppingCriteriaList,
)

from foreword.errors import InvalidRequest
from foreword.model.seq2seq import Seq2Seq
from foreword_lab.bench.peers.engines import COMPILED
from foreword_lab.bench.records import BenchRequest, Trial

GENERATE = "transformers.generate"
ASSISTED = "transformers.assisted"
LOOKUP = "transformers.lookup"
USUAL = (GENERATE, ASSISTED, LOOKUP)
"""Measured by default."""
NAMES = (*USUAL, COMPILED)

ASSISTANT: dict[str, Any] = {
    "num_assistant_tokens": 20,
    "num_assistant_tokens_schedule": "constant",
    "assistant_confidence_threshold": 0.4,
}
"""Defaults of transformers, pinned. With the bundled models no other number of tokens
(3, 5, 8) was faster beyond the noise, and drafting without the threshold was slower."""
LOOKED_UP = 10
"""Tokens that prompt lookup copies; the value in transformers' documentation."""
BACKEND = "inductor"
"""What torch.compile compiles with: its default."""
STATIC = 1024
"""Tokens. Least length of a static cache: another length is compiled anew."""


Extra: TypeAlias = Callable[[int], Mapping[str, Any]]
"""Arguments of a mode, for a text of so many tokens."""


class TransformersEntry:
    """One decoding mode of transformers, timed from token ids to token ids."""

    def __init__(
        self, name: str, target: PreTrainedModel, extra: Extra = lambda _: {}
    ) -> None:
        self.name = name
        self._generate: Callable[..., Tensor] = cast(Any, target).generate
        self._extra = extra
        rules = Seq2Seq.of(target, name)
        self._start = None if rules is None else len(rules.start)
        self._device = target.device
        self._ends: list[float] = []

    def run(self, request: BenchRequest) -> Trial:
        """Answer a request; above temperature 0 transformers samples from the seed."""
        sampling: dict[str, Any] = {"do_sample": False}
        if request.temperature > 0:
            sampling = {
                "do_sample": True,
                "temperature": request.temperature,
                "top_k": 0,
                "top_p": 1.0,
            }
        prompt = torch.tensor([request.prompt], device=self._device)
        extra = self._extra(len(request.prompt) + request.max_tokens)
        self._ends.clear()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(request.seed)
            started = perf_counter()
            written = self._generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                # a forced first token counts there
                max_new_tokens=request.max_tokens + (self._start or 1) - 1,
                stopping_criteria=StoppingCriteriaList([self._count]),
                **sampling,
                **extra,
            )
            text = written[0].tolist()  # waits for the device
            seconds = perf_counter() - started
        begin = prompt.shape[1] if self._start is None else self._start
        first = self._ends[0] - started
        return Trial(text[begin:], seconds, len(self._ends), first=first)

    def _count(self, ids: Tensor, *_: object) -> Tensor:
        """Note the time after a pass, and stop nothing. A hook of the model would be
        part of what is compiled.
        """
        if ids.is_cuda and not self._ends:
            torch.cuda.synchronize(ids.device)
        self._ends.append(perf_counter())
        return ids.new_zeros(len(ids), dtype=torch.bool)


def compiled(target: PreTrainedModel) -> Extra:
    """Return the arguments of compiled generation, on a static cache that all texts
    share; one that is longer gets another.
    """
    compiling = CompileConfig(backend=BACKEND)
    compiling._compile_all_devices = cast(Any, True)  # on a CPU too
    caches: dict[int, StaticCache] = {}

    def extra(length: int) -> Mapping[str, Any]:
        room = max(STATIC, 1 << (length - 1).bit_length())
        if room not in caches:
            caches[room] = StaticCache(target.config, room)
        caches[room].reset()
        return {"compile_config": compiling, "past_key_values": caches[room]}

    return extra


def entry(
    name: str, target: PreTrainedModel, draft: Callable[[], PreTrainedModel] | None
) -> TransformersEntry:
    """Return the baseline of this name; `draft` loads its draft model, whose generation
    settings are set to `ASSISTANT`.

    Raises InvalidRequest where it needs one and there is none.
    """
    if name == LOOKUP:
        lookup = {"prompt_lookup_num_tokens": LOOKED_UP}
        return TransformersEntry(LOOKUP, target, lambda _: lookup)
    if name == COMPILED:
        return TransformersEntry(COMPILED, target, compiled(target))
    if name == GENERATE:
        return TransformersEntry(GENERATE, target)
    if draft is None:
        raise InvalidRequest("it needs a draft model; name one")
    assistant = draft()
    if assistant.generation_config is not None:
        assistant.generation_config.update(**ASSISTANT)
    return TransformersEntry(ASSISTED, target, lambda _: {"assistant_model": assistant})


def settings() -> dict[str, Any]:
    """Return the settings that the figures depend on; with scikit-learn installed the
    threshold adapts by itself.
    """
    return {
        **ASSISTANT,
        "prompt_lookup_num_tokens": LOOKED_UP,
        "scikit_learn": find_spec("sklearn") is not None,
    }
