"""Sound longer than a window: transformers' sequential algorithm by token."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from transformers import WhisperForConditionalGeneration

import tiny_whisper
from folders import kept
from foreword import LLM, InvalidRequest, SamplingParams, Transcript
from foreword.speech.audio import samples
from foreword.speech.windows import compression_ratio, split
from foreword.wanted import Abandoned, dropped_when
from grids import slow_case

RATE = 16_000
NEW = 16
GREEDY = SamplingParams(temperature=0, max_tokens=NEW)


@cache
def theirs(name: str) -> WhisperForConditionalGeneration:
    return tiny_whisper.build(name)


@cache
def llm(name: str) -> LLM:
    """Drafts by the target's own decoder."""
    folder = tiny_whisper.saved(tiny_whisper.build(name), name, kept())
    return LLM(folder, draft=folder, dtype="float32", nodes=4)


@cache
def long(times: int = 5) -> np.ndarray:
    """The words again and again, louder and softer: more than two windows, or fewer."""
    words = samples(tiny_whisper.SOUND, RATE)
    return np.concatenate([words * loud for loud in (1, 0.3, 0.8, 0.1, 0.6)[:times]])


@cache
def features(name: str, times: int = 5) -> torch.Tensor:
    options = dict(
        sampling_rate=RATE, return_tensors="pt", truncation=False, padding="longest"
    )
    return tiny_whisper.extractor(name)(long(times), **options)["input_features"]


def check(name: str, found: Transcript, times: int = 5, **options) -> None:
    """Compare a transcript with what transformers writes, segment by segment."""
    options = (
        dict(
            num_beams=1,
            max_new_tokens=NEW,
            return_timestamps=True,
            return_segments=True,
        )
        | options
    )
    features_of_sound = features(name, times)
    found_there = theirs(name).generate(input_features=features_of_sound, **options)
    wanted = found_there["segments"][0]
    assert [one.tokens for one in found.segments] == [
        one["tokens"].tolist() for one in wanted
    ]
    assert [(one.start, one.end) for one in found.segments] == [
        (float(s["start"]), float(s["end"])) for s in wanted
    ]
    assert found.tokens == [token for one in wanted for token in one["tokens"].tolist()]


@cache
def transcribed(name: str, times: int = 5, **options) -> Transcript:
    found = llm(name).transcribe((long(times), RATE), GREEDY, **options)[0]
    assert found.undrafted is None
    assert found.stats.accepted > 4 * times
    return found


@pytest.mark.parametrize("name", ["v2", slow_case("v3")])
def test_windows_follow_the_timestamps(name):
    found = transcribed(name)
    check(name, found, do_sample=False)
    assert len(found.segments) > 3
    assert len({one.start % 3 for one in found.segments}) > 2
    assert found.duration == len(long()) / RATE
    assert "<|" not in found.text
    assert "".join(one.text for one in found.segments) == found.text != ""


@pytest.mark.parametrize("condition", [False, True])
def test_window_reads_the_prompt_and_the_text_before_it(condition):
    ids = torch.tensor(tiny_whisper.tokenizer("v2").get_prompt_ids("some words"))
    free = transcribed("v2", 3, language="en")
    before = transcribed(
        "v2", 3, language="en", condition_on_prev_tokens=condition, prompt="some words"
    )
    options = dict(language="en", do_sample=False, condition_on_prev_tokens=condition)
    check("v2", before, 3, prompt_ids=ids, **options)
    assert before.tokens != free.tokens
    if condition:
        after = transcribed("v2", 3, language="en", condition_on_prev_tokens=True)
        check("v2", after, 3, **options)
        assert after.tokens not in (free.tokens, before.tokens)


def silence() -> float:
    """Return the probability of silence in the first window."""
    model = theirs("v2")
    start = torch.tensor([[tiny_whisper.EOS + 1]])
    token = model.generation_config.no_timestamps_token_id - 1
    window = features("v2", 3)[:, :, :300]
    with torch.no_grad():
        logits = model(input_features=window, decoder_input_ids=start).logits[0, -1]
    return float(logits.softmax(-1)[token])


def test_silence_is_left_out():
    first = silence()
    whole = transcribed("v2", 3, language="en")
    for threshold in (first * 0.99, first * 1.01):
        options = dict(
            language="en", logprob_threshold=0.0, no_speech_threshold=threshold
        )
        found = llm("v2").transcribe((long(3), RATE), GREEDY, **options)[0]
        check("v2", found, 3, temperature=0.0, **options)
        assert (found.segments[:1] == whole.segments[:1]) == (threshold > first)


def test_poor_text_is_written_again_at_the_next_temperature():
    asked, sound = replace(GREEDY, seed=7), (long(3), RATE)
    options = dict(language="en", fallback=(0.5, 1.5), logprob_threshold=0.0)
    found, plain, other = (
        llm("v2").transcribe(sound, one, **options)[0]
        for one in (asked, replace(asked, method="none"), replace(asked, seed=8))
    )
    greedy = transcribed("v2", 3, language="en")
    assert found.segments == plain.segments != greedy.segments
    assert found.stats.accepted > 10
    assert plain.stats.drafted == 0
    assert other.tokens != found.tokens
    fine = llm("v2").transcribe(
        sound, asked, language="en", fallback=(1.5,), logprob_threshold=-100.0
    )[0]
    assert fine.tokens == greedy.tokens


def test_text_is_split_at_pairs_of_timestamps():
    begin, word = 1000, 5
    assert split([word, word], begin, 300) == ([(0, 150, [word, word])], 300)
    text = [begin, word, begin + 9]
    assert split(text, begin, 300) == ([(0, 9, text)], 300)
    pair = [begin, word, begin + 9, begin + 10, word, begin + 20]
    assert split(pair, begin, 300) == ([(0, 9, pair[:3]), (10, 20, pair[3:])], 300)
    assert split([*pair[:4], word], begin, 300) == ([(0, 9, pair[:4])], 18)
    assert split([begin, begin], begin, 300) == ([(0, 0, [begin, begin])], 0)
    assert (
        compression_ratio([7] * 100, 51865)
        > 10
        > 2
        > compression_ratio(list(range(100)), 51865)
    )


def test_transcription_ends_when_its_client_leaves():
    asks = 0

    def left() -> bool:
        nonlocal asks
        asks += 1
        return asks > 8

    model = llm("v2")
    with dropped_when(left), pytest.raises(Abandoned, match="its client has left"):
        model.transcribe((long(3), RATE), GREEDY, language="en")
    assert asks == 9
    assert not model.session._running
    assert model.engine.idle
    # in the same process
    again = model.transcribe((long(3), RATE), GREEDY, language="en")[0]
    assert again.tokens == transcribed("v2", 3, language="en").tokens


@pytest.mark.usefixtures("unchecked")
def test_longer_sound_than_allowed_is_refused():
    model = llm("v2")
    with pytest.raises(InvalidRequest, match="it lasts 7 seconds, and the limit is 5"):
        model.transcribe((long(), RATE), GREEDY, max_seconds=5)
    for wrong in (0, float("nan"), float("inf"), "1"):
        with pytest.raises(InvalidRequest, match="must be a positive number, got"):
            model.transcribe((long(), RATE), GREEDY, max_seconds=wrong)


def test_equal_windows_draw_texts_of_their_own():
    """Windows of silence are equal: only their seeds tell them apart."""
    silence = np.zeros(45 * RATE, np.float32)
    params = SamplingParams(temperature=1.0, max_tokens=NEW, seed=7)
    found = llm("v2").transcribe((silence, RATE), params, language="en")[0]
    texts = [tuple(segment.tokens) for segment in found.segments]
    long_texts = [text for text in texts if len(text) > 4]
    assert len(long_texts) > 1
    assert len({*long_texts}) == len(long_texts)
