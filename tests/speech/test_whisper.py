"""Whisper: greedy text is transformers', and drafts change no sampled token."""

import weakref
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import WhisperForCausalLM, WhisperForConditionalGeneration

import tiny_whisper
from folders import kept
from foreword import LLM, SamplingParams
from foreword.draft.base import Source
from foreword.model import Mode, Model
from foreword.model.encoder import EncoderMemory
from foreword.speech.audio import samples
from grids import grid, slow_case
from tiny_seq2seq import IN_C, in_c

RATE = 16_000
NEW = 20
GREEDY = SamplingParams(temperature=0, max_tokens=NEW)
METHODS = ["ngram", "suffix", "lm", "cascade(suffix, lm)"]
GREEDILY = (("v2", False, "lm"), ("v3", True, "none"))
SAMPLED = (("v2", "lm", True), ("v2" + IN_C, "suffix", False))
"""(name, ...) of `make test`: each vocabulary, dtype, method, timestamps once."""


@cache
def folder(name: str, seed: str = "", **sizes: int) -> Path:
    return tiny_whisper.saved(tiny_whisper.build(name, seed, **sizes), name, kept())


@cache
def target(name: str) -> Model:
    model = Model.load(folder(name), dtype="bfloat16" if IN_C in name else "float32")
    assert model.capability.backend == ("native" if IN_C in name else "pool")
    return model


@cache
def theirs(name: str) -> WhisperForConditionalGeneration:
    return tiny_whisper.build(name)


@cache
def llm(name: str, method: str, draft: str = "own") -> LLM:
    source = drafts(name, draft) if "lm" in method else None
    return LLM(
        target(name),
        tokenizer=tiny_whisper.tokenizer(name),
        method=method,
        draft=source,
        nodes=4,
    )


def drafts(name: str, kind: str) -> Source:
    """The target with another encoder; a folder as distil-whisper's; or a decoder."""
    if kind == "smaller":
        return tiny_whisper.build(name, "draft", encoder_layers=1, decoder_layers=1)
    if kind == "equal encoder":
        return folder(name)
    if kind == "decoder":
        return decoder(name)
    if kind == "decoder folder":
        place = kept()
        decoder(name).save_pretrained(place)
        tiny_whisper.tokenizer(name).save_pretrained(place)
        return place
    whole = tiny_whisper.build(name)
    with torch.no_grad():
        # So that it is another encoder, with nearly the same states.
        whole.model.encoder.layer_norm.bias += 1e-2 if IN_C in name else 1e-4
    return whole


def decoder(name: str) -> WhisperForCausalLM:
    """The decoder of the target, without an encoder."""
    whole = tiny_whisper.build(name)
    alone = WhisperForCausalLM(whole.config)
    alone.model.decoder, alone.proj_out = whole.model.decoder, whole.proj_out
    return alone.eval()


@cache
def sounds() -> list[tuple[np.ndarray, int]]:
    """Short sounds: the words, a part of them, and silence."""
    words = samples(tiny_whisper.SOUND, RATE)
    return [(words, RATE), (words[:9000], RATE), (np.zeros(4000, np.float32), RATE)]


def features(name: str, sound: np.ndarray) -> torch.Tensor:
    short = len(sound) <= tiny_whisper.SECONDS * RATE
    padding = "max_length" if short else "longest"
    options = dict(
        sampling_rate=RATE, return_tensors="pt", truncation=False, padding=padding
    )
    return tiny_whisper.extractor(name)(sound, **options)["input_features"]


def wanted(name: str, sound: np.ndarray, **options) -> list[int]:
    """What transformers writes greedily."""
    options = dict(num_beams=1, do_sample=False, max_new_tokens=NEW) | options
    return (
        theirs(name)
        .generate(input_features=features(name, sound), **options)[0]
        .tolist()
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "timestamps", "method"),
    grid(GREEDILY, tiny_whisper.NAMES, [False, True], ["none", *METHODS]),
)
def test_greedy_text_is_that_of_generate(name, timestamps, method):
    one = llm(name, method)
    assert one.target.mode is Mode.TREE
    expected = [
        wanted(name, sound, return_timestamps=timestamps) for sound, _ in sounds()
    ]
    together = one.transcribe(sounds(), GREEDY, timestamps=timestamps)
    assert [answer.tokens for answer in together] == expected
    alone = one.transcribe(sounds()[1], GREEDY, timestamps=timestamps)[0]
    assert alone.tokens == expected[1]
    if "lm" in method:
        assert sum(answer.stats.accepted for answer in together) > 20


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    "options",
    [
        dict(language="German", task="translate"),
        dict(language="en"),
        dict(task="translate"),
        dict(language="fr"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", tiny_whisper.NAMES)
def test_request_chooses_language_and_task(name, options):
    found = llm(name, "lm").transcribe(sounds()[0], GREEDY, **options)[0]
    free = llm(name, "lm").transcribe(sounds()[0], GREEDY)[0]
    assert (
        found.tokens
        == wanted(name, sounds()[0][0], **{k: v.lower() for k, v in options.items()})
        != free.tokens
    )
    chosen = {"German": "de"}.get(options.get("language"), options.get("language"))
    assert found.language == (chosen or free.language) in tiny_whisper.languages(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "method", "timestamps"),
    grid(
        SAMPLED,
        [*tiny_whisper.NAMES, "v2" + IN_C],
        METHODS,
        [False, True],
        in_c=lambda case: IN_C in case[0],
    ),
)
def test_drafts_change_no_token_of_a_sampled_text(name, method, timestamps):
    asked = SamplingParams(temperature=1.0, top_k=20, max_tokens=NEW, seed=3, n=2)
    plain = llm(name, "none").transcribe(sounds(), asked, timestamps=timestamps)
    drafted = llm(name, method).transcribe(sounds(), asked, timestamps=timestamps)
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    assert [one.segments for one in drafted] == [one.segments for one in plain]
    assert len({tuple(one.tokens) for one in plain}) > 3
    assert [one.undrafted for one in drafted] == [None] * len(drafted)
    if "lm" in method:
        assert sum(one.stats.accepted for one in drafted) > 30


@pytest.mark.parametrize("method", ["ngram", slow_case("suffix")])
def test_repeated_text_is_copied(method):
    asked = SamplingParams(temperature=0.3, max_tokens=80, seed=1)
    plain, drafted = (
        llm("v2", one).transcribe(sounds()[0], asked, language="en")
        for one in ("none", method)
    )
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    assert sum(one.stats.accepted for one in drafted) > 20


def runs(
    model: Model | WhisperForConditionalGeneration,
) -> tuple[list[weakref.ref], object]:
    """A list that grows by the states of each run of the encoder, and its hook."""
    hf, states = model.hf if isinstance(model, Model) else model, list[weakref.ref]()
    return states, hf.get_encoder().register_forward_hook(
        lambda *call: states.append(weakref.ref(call[-1][0]))
    )


@pytest.mark.sample(12)
@pytest.mark.parametrize(
    "kind", ["decoder", "decoder folder", "equal encoder", "own", "smaller"]
)
@pytest.mark.parametrize("name", ["v2", *in_c("v2")])
def test_draft_model_with_an_equal_encoder_runs_none(name, kind):
    one = llm(name, "lm", kind)
    draft = one.engine.drafter.model
    memories = [model.backend.memory(EncoderMemory) for model in (draft, one.target)]
    shares = memories[0].encoder is memories[1].encoder
    assert shares == (kind in ("decoder", "decoder folder", "equal encoder"))
    asked = SamplingParams(temperature=1.0, max_tokens=12, seed=8)
    alone = llm(name, "none")
    windows, counting = runs(alone.target)
    plain = alone.transcribe(sounds(), asked, language="en")
    counting.remove()
    ours, hook = runs(one.target)
    others, other = ([], None) if shares else runs(draft)
    answers = one.transcribe(sounds(), asked, language="en")
    hook.remove()
    if other is not None:
        other.remove()
    assert len(ours) == len(windows) >= len(sounds())
    assert len(others) == (0 if shares else len(windows))
    assert [state() for state in [*ours, *others]] == [None] * (len(ours) + len(others))
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in plain]
    if kind != "smaller":
        assert sum(answer.stats.accepted for answer in answers) > 15


def test_window_is_encoded_once_for_all_its_texts():
    states, hook = runs(target("v3"))
    asked = SamplingParams(temperature=0, max_tokens=NEW, seed=5, n=2)
    llm("v3", "none").transcribe(
        sounds()[0], asked, fallback=(0.4, 1.0), logprob_threshold=100.0
    )
    hook.remove()
    assert len(states) == 1
