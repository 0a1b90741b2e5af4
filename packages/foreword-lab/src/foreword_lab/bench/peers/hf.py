"""Baselines of transformers: generate, assisted generation and prompt lookup, with
unmodified weights and code.
"""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from time import perf_counter
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from foreword.errors import InvalidRequest
from foreword.model.seq2seq import Seq2Seq
from foreword_lab.bench.records import BenchRequest, Trial

GENERATE = "transformers.generate"
ASSISTED = "transformers.assisted"
LOOKUP = "transformers.lookup"
NAMES = (GENERATE, ASSISTED, LOOKUP)

ASSISTANT: dict[str, Any] = {
    "num_assistant_tokens": 20,
    "num_assistant_tokens_schedule": "constant",
    "assistant_confidence_threshold": 0.4,
}
"""Defaults of transformers, pinned. With the bundled models no other number of tokens
(3, 5, 8) was faster beyond the noise, and drafting without the threshold was slower."""
LOOKED_UP = 10
"""Tokens that prompt lookup copies; the value in transformers' documentation."""


class TransformersEntry:
    """One decoding mode of transformers, timed from token ids to token ids."""

    def __init__(
        self, name: str, target: PreTrainedModel, extra: Mapping[str, Any] | None = None
    ) -> None:
        self.name = name
        self._generate: Callable[..., Tensor] = cast(Any, target).generate
        self._extra = dict(extra or {})
        rules = Seq2Seq.of(target, name)
        self._start = None if rules is None else len(rules.start)
        self._device = target.device
        self._ends: list[float] = []
        target.register_forward_hook(self._count)

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
        self._ends.clear()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(request.seed)
            started = perf_counter()
            written = self._generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                # a forced first token counts there
                max_new_tokens=request.max_tokens + (self._start or 1) - 1,
                **sampling,
                **self._extra,
            )
            seconds = perf_counter() - started
        begin = prompt.shape[1] if self._start is None else self._start
        tokens, ends = written[0, begin:].tolist(), self._ends
        return Trial(tokens, seconds, len(ends), first=ends[0] - started)

    def _count(self, *_: object) -> None:
        self._ends.append(perf_counter())


def entry(
    name: str, target: PreTrainedModel, draft: Callable[[], PreTrainedModel] | None
) -> TransformersEntry:
    """Return the baseline of this name; `draft` loads its draft model, whose generation
    settings are set to `ASSISTANT`.

    Raises InvalidRequest where it needs one and there is none.
    """
    if name == LOOKUP:
        return TransformersEntry(
            LOOKUP, target, {"prompt_lookup_num_tokens": LOOKED_UP}
        )
    if name == GENERATE:
        return TransformersEntry(GENERATE, target)
    if draft is None:
        raise InvalidRequest("it needs a draft model; name one")
    assistant = draft()
    if assistant.generation_config is not None:
        assistant.generation_config.update(**ASSISTANT)
    return TransformersEntry(ASSISTED, target, {"assistant_model": assistant})


def settings() -> dict[str, Any]:
    """Return the settings that the figures depend on; with scikit-learn installed the
    threshold adapts by itself.
    """
    return {
        **ASSISTANT,
        "prompt_lookup_num_tokens": LOOKED_UP,
        "scikit_learn": find_spec("sklearn") is not None,
    }
