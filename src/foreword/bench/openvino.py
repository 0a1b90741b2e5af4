"""OpenVINO GenAI as a contender: plain, with a draft model, with prompt lookup; on our weights and token ids.

Knows its pipelines and their settings; knows nothing of our engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from foreword.bench.converted import Source, converted
from foreword.bench.engines import ASSISTED, LOOKUP, Pair
from foreword.bench.openvino_graph import TYPES, graph
from foreword.bench.trial import Request, Trial

SETTINGS: dict[str, dict[str, Any]] = {
    ASSISTED: {"num_assistant_tokens": 5},
    LOOKUP: {"num_assistant_tokens": 5, "max_ngram_size": 3},
}
"""Of their documentation and samples, by way."""
CACHE = {"enable_prefix_caching": False, "max_num_batched_tokens": 2**31 - 1}
"""Those of their pipeline for one user, but for the first: here everybody reads every prompt, seen before or not."""


class OpenVINO:
    """One of its pipelines, timed from token ids to token ids."""

    def __init__(self, name: str, pipeline: Any, eos: tuple[int, ...], settings: Mapping[str, Any]) -> None:
        self.name = name
        self._pipeline, self._eos, self._settings = pipeline, eos, dict(settings)
        self._ov: Any = import_module("openvino")
        self._genai: Any = import_module("openvino_genai")

    def run(self, request: Request) -> Trial:
        """Answer one request. At a temperature above 0 the draw is OpenVINO's own, seeded with the same number."""
        law: dict[str, Any] = {}
        if request.temperature > 0:
            law = {"do_sample": True, "temperature": request.temperature, "rng_seed": request.seed}
        asked = self._genai.GenerationConfig(
            max_new_tokens=request.max_tokens, stop_token_ids=set(self._eos), **law, **self._settings
        )
        started = perf_counter()
        found = self._pipeline.generate(self._ov.Tensor(np.array([request.prompt], dtype=np.int64)), asked)
        seconds = perf_counter() - started
        return Trial(list(found.tokens[0]), seconds, len(found.perf_metrics.raw_metrics.m_batch_sizes))


def contender(name: str, way: str, pair: Pair) -> OpenVINO:
    """Compile what this way needs. Raises ModelError where the models cannot be converted."""
    genai: Any = import_module("openvino_genai")
    target = pair.target()
    device = _device(target)
    extra: dict[str, Any] = {}
    if way == ASSISTED:
        draft = pair.draft()
        extra["draft_model"] = genai.draft_model(folder(draft, pair.note), "CPU", **device)
    if way == LOOKUP:
        extra["prompt_lookup"] = True
    scheduler = genai.SchedulerConfig()
    for setting, value in CACHE.items():
        setattr(scheduler, setting, value)
    pipeline = genai.LLMPipeline(folder(target, pair.note), "CPU", scheduler_config=scheduler, **extra, **device)
    return OpenVINO(name, pipeline, target.eos, SETTINGS.get(way, {}))


def folder(source: Source, note: Callable[[str], None]) -> Path:
    """Where this model and its tokenizer lie in OpenVINO's format; converted unless they were before."""
    ov: Any = import_module("openvino")
    return converted(f"openvino-{ov.__version__.partition('-')[0]}", source, partial(_write, source), note)


def _write(source: Source, out: Path) -> None:
    ov: Any = import_module("openvino")
    tokenizers: Any = import_module("openvino_tokenizers")
    ov.save_model(graph(source.model), out / "openvino_model.xml", compress_to_fp16=False)
    reader, writer = tokenizers.convert_tokenizer(source.tokenizer, with_detokenizer=True)
    ov.save_model(reader, out / "openvino_tokenizer.xml")
    ov.save_model(writer, out / "openvino_detokenizer.xml")
    source.model.config.save_pretrained(out)


def _device(source: Source) -> dict[str, Any]:
    """As many threads as torch has, and products in the dtype of the weights."""
    ov: Any = import_module("openvino")
    kind = getattr(ov.Type, TYPES[source.model.dtype])
    return {"INFERENCE_PRECISION_HINT": kind, "INFERENCE_NUM_THREADS": torch.get_num_threads()}
