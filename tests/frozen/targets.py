"""Tokens of small targets of every kind: backends, encoder-decoders, images, speech,
quantized files, constraints; greedily and at temperature 1.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

import folders
import gguf_files
import quantizing
import starter
import tiny_models
import tiny_seq2seq
import tiny_vision
import tiny_whisper
from foreword import LLM, Completion, SamplingParams
from foreword.model import Model, load_tokenizer
from foreword_train.gguf.source import source
from foreword_train.gguf.writer import write
from frozen import hashed

RECORDED = Path(__file__).parents[1] / "model" / "quantized" / "recorded"
NODES = 4
"""Draft tokens of a round."""
LENGTH = 20
"""Tokens of an answer."""
PROMPTS = [[5, 9, 40, 7, 5, 9, 40, 7, 5, 9], [200, 11, 12, 13, 200, 11, 12], [33]]
DECODERS = {
    "native": ("llama-gqa", "gemma3", "gpt-neox", "qwen2-moe", "lfm2", "qwen3.5"),
    "pool": ("llama-gqa", "gemma3", "gpt-neox", "qwen2-moe", "deepseek-v3"),
    "cache": ("llama-gqa", "falcon", "bloom", "qwen3.5"),
}
"""Kinds of decoders, by backend."""
FORMS = (dict(weights="int8"), dict(weights="int4"), dict(kv="int8"))
"""Storage that backend "native" offers for weights, keys and values."""
SCHEMA = {
    "type": "object",
    "properties": {
        "ok": {"type": "boolean"},
        "names": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["ok"],
}
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<a>",
        "content": {"type": "json_schema", "json_schema": SCHEMA},
        "end": "</a>",
    },
}
CONSTRAINTS = {
    "JSON schema": dict(json_schema=SCHEMA),
    "regex": dict(regex="[a-z]+( [a-z]+){3,9}\\."),
    "structural tag": dict(structural_tag=TAG),
}

Record = Callable[[], str]


def params() -> list[SamplingParams]:
    """Return what every target is asked: greedily, and at temperature 1."""
    return [
        SamplingParams(
            temperature=temperature, seed=3, max_tokens=LENGTH, ignore_eos=True
        )
        for temperature in (0.0, 1.0)
    ]


def outcome(answers: list[Completion]) -> str:
    """Return a hash of tokens, endings, and counts of draft tokens."""
    return hashed(
        [
            (one.tokens, one.finish_reason, one.stats.drafted, one.stats.accepted)
            for one in answers
        ]
    )


def complete(llm: LLM) -> str:
    """Return the outcome of all prompts, in the vocabulary of the model."""
    prompts = [[token % llm.target.vocab for token in prompt] for prompt in PROMPTS]
    return outcome(
        [answer for one in params() for answer in llm.generate(prompts, one)]
    )


def decoder(kind: str, backend: str, **form: str) -> str:
    whole = tiny_models.build(kind)
    if backend == "native":
        whole = whole.to(torch.bfloat16)
    model = Model(whole, backend=backend)
    if form:
        model.quantize(**form)
    return complete(LLM(model, tokenizer=False, method="ngram", nodes=NODES))


def encoder_decoder(name: str, backend: str) -> str:
    llm = LLM(
        Model(tiny_seq2seq.build(name), name, backend=backend),
        tokenizer=tiny_seq2seq.tokenizer(name),
        method="ngram",
        nodes=NODES,
    )
    sources = [[60 + i, 61, 62, 60 + i, 61, 62, 63] for i in range(3)]
    return outcome(
        [answer for one in params() for answer in llm.generate(sources, one)]
    )


def images(name: str, dtype: str, backend: str) -> str:
    model = Model.load(tiny_vision.folder(name), dtype=dtype, backend=backend)
    llm = LLM(model, method="ngram", nodes=NODES)
    chats = [llm.render(chat) for chat in tiny_vision.chats()]
    return outcome([answer for one in params() for answer in llm.generate(chats, one)])


def speech(name: str, dtype: str) -> str:
    folder = folders.kept()
    whole = tiny_whisper.build(name)
    tiny_whisper.saved(whole, name, folder)
    llm = LLM(folder, dtype=dtype, method="ngram", nodes=NODES)
    found = [
        llm.transcribe(tiny_whisper.SOUND, one, language="en", timestamps=True)[0]
        for one in params()
    ]
    return hashed(
        [
            (one.tokens, one.text, [(part.start, part.end) for part in one.segments])
            for one in found
        ]
    )


def recorded(name: str) -> str:
    return complete(LLM(RECORDED / name, tokenizer=False, method="ngram", nodes=NODES))


def mxfp4() -> str:
    folder = folders.kept()
    quantizing.mxfp4(folder)
    return complete(LLM(folder, tokenizer=False, method="ngram", nodes=NODES))


def gguf(kind: str) -> str:
    folder = folders.kept()
    draft = AutoModelForCausalLM.from_pretrained(starter.draft(), dtype=torch.bfloat16)
    plain = folder / "plain.gguf"
    write(source("the draft", draft, load_tokenizer(starter.draft())), plain)
    path = gguf_files.quantized(plain, folder / f"{kind}.gguf", kind)
    return complete(LLM(path, method="ngram", nodes=NODES))


def constrained(settings: dict[str, object]) -> str:
    with LLM(nodes=NODES) as llm:
        asked = [
            SamplingParams(temperature=heat, seed=2, max_tokens=40, **settings)
            for heat in (0.0, 1.0)
        ]
        return outcome(
            llm.generate(["Say yes, and name three animals.", "Give names:"], asked)
        )


def runs() -> Iterator[tuple[str, Record]]:
    """Yield the name of each target, and the function that records it."""
    for backend, kinds in DECODERS.items():
        for kind in kinds:
            yield f"{kind}, {backend}", partial(decoder, kind, backend)
    for form in FORMS:
        for kind in ("llama-gqa", "lfm2"):
            yield f"{kind}, {form}", partial(decoder, kind, "native", **form)
    for name, backend in (
        ("t5" + tiny_seq2seq.IN_C, "native"),
        ("bart", "pool"),
        ("led", "cache"),
    ):
        yield f"{name}, {backend}", partial(encoder_decoder, name, backend)
    for name, dtype, backend in (
        ("qwen2-vl", "bfloat16", "native"),
        ("qwen3-vl", "bfloat16", "native"),
        ("gemma3", "bfloat16", "native"),
        ("qwen2-vl", "float32", "pool"),
        ("llava", "float32", "pool"),
        ("qwen3-vl", "float32", "cache"),
    ):
        yield f"images, {name}, {backend}", partial(images, name, dtype, backend)
    for dtype in ("bfloat16", "float32"):
        yield f"speech, {dtype}", partial(speech, "v2", dtype)
    for name in (
        "gptq-4",
        "gptq-4-act-order",
        "awq",
        "compressed-w8a8",
        "bitsandbytes-nf4",
        "torchao-int4",
    ):
        yield name, partial(recorded, name)
    yield "mxfp4", mxfp4
    for kind in ("Q8_0", "Q4_0"):
        yield f"gguf {kind}", partial(gguf, kind)
    for name, settings in CONSTRAINTS.items():
        yield name, partial(constrained, settings)


def record() -> dict[str, object]:
    """Return the outcome of every target, or why this machine cannot run it."""
    found: dict[str, object] = {}
    for name, run in runs():
        sys.stderr.write(f"{name}\n")
        found[name] = run()
    return found
