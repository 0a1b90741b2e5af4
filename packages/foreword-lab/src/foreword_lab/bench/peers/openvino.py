"""Baseline OpenVINO GenAI: plain, with a draft model, with prompt lookup; on the same
weights and token ids.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from foreword.errors import ModelError
from foreword.model.quantized.gguf_file import GgufFile
from foreword_lab.bench.peers.convert import FILE, FORMS, converted, note_vocabulary
from foreword_lab.bench.peers.engines import ASSISTED, LOOKUP
from foreword_lab.bench.peers.registry import Pair
from foreword_lab.bench.records import BenchRequest, Trial
from foreword_train.gguf import writer
from foreword_train.gguf.source import Source

SETTINGS: dict[str, dict[str, Any]] = {
    ASSISTED: {"num_assistant_tokens": 5},
    LOOKUP: {"num_assistant_tokens": 5, "max_ngram_size": 3},
}
"""Mode -> settings of OpenVINO's documentation and samples."""
ARCHITECTURES = ("llama", "qwen2", "qwen3")
KINDS = ("F16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
"""Architectures and types of matrices that OpenVINO's reader of GGUF files knows."""
TYPES = {torch.bfloat16: "bf16", torch.float32: "f32", torch.float16: "f16"}
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
        """Answer a request; above temperature 0 OpenVINO samples from the seed."""
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
        metrics = result.perf_metrics
        return Trial(
            list(result.tokens[0]),
            seconds,
            len(metrics.raw_metrics.m_batch_sizes),
            first=metrics.get_ttft().mean / 1000,
        )


def entry(name: str, mode: str, pair: Pair) -> OpenVINO:
    """Return this mode's entry, compiled, or raise ModelError."""
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
    tokenizer = pipeline.get_tokenizer()

    def tokenize(text: str) -> list[int]:
        ids = tokenizer.encode(text, add_special_tokens=False).input_ids
        return ids.data[0].tolist()

    size = len(tokenizer.get_vocab())
    note_vocabulary("OpenVINO", target, size, tokenize, pair.note)
    return OpenVINO(name, pipeline, target.eos, SETTINGS.get(mode, {}))


def folder(source: Source, note: Callable[[str], None]) -> Path:
    """Return the folder of model and tokenizer in OpenVINO's format, which it writes
    from a GGUF file if needed.

    Raises ModelError for a file that it does not read.
    """
    ov: Any = import_module("openvino")
    genai: Any = import_module("openvino_genai")
    if source.file is not None:
        check_readable(source.file)
    form = "file" if source.file else FORMS[source.form] if source.form else "F16"

    def write(out: Path) -> None:
        path = out / FILE
        if source.file is None:
            writer.write(source, path, form)
        else:
            path.symlink_to(source.file.resolve())
        # the folder of the file gets the model
        genai.LLMPipeline(path, "CPU", enable_save_ov_model=True)
        path.unlink()

    kind = f"openvino-{ov.__version__.partition('-')[0]}-{form}"
    return converted(kind, source, write, note)


def check_readable(path: Path) -> None:
    """Raise ModelError for a GGUF file that OpenVINO does not read."""
    file = GgufFile.open(path, path)
    matrices = [one for one in file.tensors.values() if len(one.shape) > 1]
    others = {one.kind for one in matrices}.difference(KINDS)
    if file.architecture not in ARCHITECTURES or others:
        what = ", ".join(sorted(others)) if others else file.architecture
        raise ModelError(
            f"cannot load {path} into OpenVINO: its reader of GGUF files knows "
            f"{', '.join(ARCHITECTURES)} in {', '.join(KINDS)}, not {what}. Name a "
            "folder of safetensors, or other engines"
        )


def device(source: Source) -> dict[str, Any]:
    """Return device options: as many threads as torch has, and products in the dtype of
    the weights.

    Products with quantized weights are in float32: OpenVINO then quantizes rows by
    default, and decodes faster than in bfloat16, its own choice on processors with AMX.
    """
    ov: Any = import_module("openvino")
    kind = getattr(
        ov.Type, TYPES[torch.float32 if source.few_bits else source.model.dtype]
    )
    return {
        "INFERENCE_PRECISION_HINT": kind,
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
