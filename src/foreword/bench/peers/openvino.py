"""Baseline OpenVINO GenAI: plain, with a draft model, with prompt lookup; on the same
weights and token ids.
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

from foreword.bench.peers.convert import INT4, INT8, Source, converted
from foreword.bench.peers.engines import ASSISTED, LOOKUP
from foreword.bench.peers.openvino_graph import GROUP, TYPES, graph
from foreword.bench.peers.registry import Pair
from foreword.bench.records import BenchRequest, Trial

SETTINGS: dict[str, dict[str, Any]] = {
    ASSISTED: {"num_assistant_tokens": 5},
    LOOKUP: {"num_assistant_tokens": 5, "max_ngram_size": 3},
}
"""Mode -> settings of OpenVINO's documentation and samples."""
FORMS = {
    INT8: "int8, symmetric, a scale for an output, products in f32",
    INT4: (
        f"int4, symmetric, a scale for {GROUP} inputs, embedding and LM head in int8, "
        "products in f32"
    ),
}
"""Form -> how a target's matrices are held."""
CACHE = {"enable_prefix_caching": False, "max_num_batched_tokens": 2**31 - 1}
"""Settings of the pipeline for one user, but without prefix caching: every entry reads
every prompt each time.
"""


def sampling(request: BenchRequest) -> dict[str, Any]:
    """Return the settings that sample as a request asks; none at temperature 0."""
    if request.temperature <= 0:
        return {}
    return {
        "do_sample": True,
        "temperature": request.temperature,
        "rng_seed": request.seed,
    }


class OpenVINO:
    """An OpenVINO pipeline, timed from token ids to token ids."""

    def __init__(
        self,
        name: str,
        pipeline: Any,
        eos: tuple[int, ...],
        settings: Mapping[str, Any],
    ) -> None:
        self.name = name
        self._pipeline = pipeline
        self._eos = eos
        self._settings = dict(settings)
        self._ov: Any = import_module("openvino")
        self._genai: Any = import_module("openvino_genai")

    def run(self, request: BenchRequest) -> Trial:
        """Answer one request.

        Above temperature 0 OpenVINO samples by itself, from the same seed.
        """
        config = self._genai.GenerationConfig(
            max_new_tokens=request.max_tokens,
            stop_token_ids=set(self._eos),
            **sampling(request),
            **self._settings,
        )
        started = perf_counter()
        result = self._pipeline.generate(
            self._ov.Tensor(np.array([request.prompt], dtype=np.int64)), config
        )
        seconds = perf_counter() - started
        return Trial(
            list(result.tokens[0]),
            seconds,
            len(result.perf_metrics.raw_metrics.m_batch_sizes),
        )


def entry(name: str, mode: str, pair: Pair) -> OpenVINO:
    """Return the entry of this mode, compiled.

    Raises ModelError if the models cannot be converted.
    """
    genai: Any = import_module("openvino_genai")
    target = pair.target()
    how = device(target)
    extra: dict[str, Any] = {}
    if mode == ASSISTED:
        draft = pair.draft()
        extra["draft_model"] = genai.draft_model(
            folder(draft, pair.note), "CPU", **device(draft)
        )
    if mode == LOOKUP:
        extra["prompt_lookup"] = True
    scheduler = genai.SchedulerConfig()
    for setting, value in CACHE.items():
        setattr(scheduler, setting, value)
    pipeline = genai.LLMPipeline(
        folder(target, pair.note), "CPU", scheduler_config=scheduler, **extra, **how
    )
    return OpenVINO(name, pipeline, target.eos, SETTINGS.get(mode, {}))


def folder(source: Source, note: Callable[[str], None]) -> Path:
    """Return the folder of model and tokenizer in OpenVINO's format, converting them if
    needed.
    """
    ov: Any = import_module("openvino")
    kind = f"openvino-{ov.__version__.partition('-')[0]}"
    return converted(
        kind if source.form is None else f"{kind}-{source.form}",
        source,
        partial(_write, source),
        note,
    )


def _write(source: Source, out: Path) -> None:
    ov: Any = import_module("openvino")
    tokenizers: Any = import_module("openvino_tokenizers")
    ov.save_model(
        graph(source.model, source.form),
        out / "openvino_model.xml",
        compress_to_fp16=False,
    )
    reader, writer = tokenizers.convert_tokenizer(
        source.tokenizer, with_detokenizer=True
    )
    ov.save_model(reader, out / "openvino_tokenizer.xml")
    ov.save_model(writer, out / "openvino_detokenizer.xml")
    source.model.config.save_pretrained(out)


def device(source: Source) -> dict[str, Any]:
    """Return device options: as many threads as torch has, and products in the dtype of
    the weights.

    Products with quantized weights are in float32: OpenVINO then quantizes rows by
    default, and decodes faster than in bfloat16, its own choice on processors with AMX.
    """
    ov: Any = import_module("openvino")
    kind = getattr(
        ov.Type, TYPES[source.model.dtype if source.form is None else torch.float32]
    )
    return {
        "INFERENCE_PRECISION_HINT": kind,
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
