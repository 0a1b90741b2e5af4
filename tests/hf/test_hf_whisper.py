"""The drop-in on Whisper: transformers' text, drafted, or a reason."""

import warnings
from functools import cache

import pytest
import torch
from transformers import WhisperForCausalLM, WhisperForConditionalGeneration, pipeline

import foreword
import tiny_whisper
from foreword.speech.audio import samples
from generating import OURS

RATE = 16_000
OPTIONS = dict(num_beams=1, do_sample=False, max_new_tokens=16)
pytestmark = pytest.mark.usefixtures("four")


@cache
def model() -> WhisperForConditionalGeneration:
    return tiny_whisper.build("v2")


@cache
def assistant(kind: str) -> torch.nn.Module:
    """The target again, with an encoder of its own, or its decoder alone."""
    whole = tiny_whisper.build("v2")
    if kind == "whole":
        return whole
    alone = WhisperForCausalLM(whole.config)
    alone.model.decoder, alone.proj_out = whole.model.decoder, whole.proj_out
    return alone.eval()


@cache
def sound(rows: int = 1, windows: int = 1) -> torch.Tensor:
    words = samples(tiny_whisper.SOUND, RATE)
    long = (
        torch.from_numpy(words)
        .repeat(4 * windows)[: windows * tiny_whisper.SECONDS * RATE]
        .numpy()
    )
    found = tiny_whisper.extractor("v2")(
        [long, long[::-1].copy()],
        sampling_rate=RATE,
        return_tensors="pt",
        truncation=False,
        padding="longest",
    )
    return found["input_features"][:rows]


def accepted(ran: list) -> int:
    return sum(row.stats.accepted for row in ran)


@pytest.mark.sample(6)
@pytest.mark.parametrize("timestamps", [False, True], ids=["text", "timestamps"])
@pytest.mark.parametrize("kind", ["whole", "decoder", "none"])
def test_callable_gives_the_text_of_generate(kind, timestamps, rounds):
    options = OPTIONS | dict(return_timestamps=timestamps, language="en")
    expected = model().generate(input_features=sound(2), **options)
    drafter = {} if kind == "none" else dict(drafter=assistant(kind))
    found = model().generate(
        input_features=sound(2), **OURS, nodes=4, **drafter, **options
    )
    assert torch.equal(found, expected)
    assert len(rounds) >= 2
    assert kind == "none" or accepted(rounds) > 12


@pytest.mark.slow
def test_long_sound_is_transcribed_window_by_window(rounds):
    options = OPTIONS | dict(
        return_timestamps=True, language="en", condition_on_prev_tokens=True
    )
    thresholds = dict(
        temperature=0.0, logprob_threshold=-100.0, compression_ratio_threshold=9.0
    )
    del options["do_sample"]
    expected = model().generate(input_features=sound(1, 3), **options, **thresholds)
    drafter = assistant("decoder")
    found = model().generate(
        input_features=sound(1, 3),
        **OURS,
        drafter=drafter,
        nodes=4,
        **options,
        **thresholds,
    )
    assert torch.equal(found, expected)
    assert len(rounds) >= 3
    assert accepted(rounds) > 12


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["whole", "decoder"])
def test_assisted_calls_are_served_once_enabled(kind, rounds):
    one, options = model(), OPTIONS | dict(language="en")
    options["assistant_model"] = assistant(kind)
    expected = one.generate(input_features=sound(), **options)
    encoded: list = []
    hooks = [
        part.get_encoder().register_forward_hook(lambda *call: encoded.append(call))
        for part in (one, *([assistant(kind)] if kind == "whole" else []))
    ]
    with foreword.enable(), warnings.catch_warnings():
        warnings.simplefilter("error")
        # the probe reads a sound of its own
        one.generate(input_features=sound(), **options)
        encoded.clear()
        rounds.clear()
        found = one.generate(input_features=sound(), **options)
    for hook in hooks:
        hook.remove()
    assert torch.equal(found, expected)
    assert accepted(rounds) > 0
    assert len(encoded) == len(rounds)  # once a window, for both


@pytest.mark.slow
def test_pipeline_gives_the_same_text(rounds):
    one = pipeline(
        "automatic-speech-recognition",
        model(),
        tokenizer=tiny_whisper.tokenizer("v2"),
        feature_extractor=tiny_whisper.extractor("v2"),
    )
    words = dict(raw=samples(tiny_whisper.SOUND, RATE), sampling_rate=RATE)
    options = dict(
        language="en",
        max_new_tokens=16,
        num_beams=1,
        assistant_model=assistant("whole"),
    )
    expected = one(dict(words), generate_kwargs=dict(options))
    with foreword.enable():
        found = one(dict(words), generate_kwargs=dict(options))
    assert found == expected
    assert accepted(rounds) > 0


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        (dict(num_beams=2), "beam search"),
        (dict(return_token_timestamps=True), "output_attentions"),
    ],
    ids=["beams", "words"],
)
def test_what_cannot_be_served_is_refused_by_name(option, reason):
    options = OPTIONS | dict(language="en") | option
    if "return_token_timestamps" in option:
        model().generation_config.alignment_heads = [[0, 0]]
    with pytest.raises(foreword.InvalidRequest, match=reason):
        model().generate(input_features=sound(), **OURS, **options)
