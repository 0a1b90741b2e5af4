"""Every parameter says by name what it accepts, and accepts nothing else."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from foreword import InvalidRequest, SamplingParams
from foreword.checks import whole
from foreword.types.params import _CHECKS

LISTS = ("stop", "bad_words", "stop_token_ids", "bad_word_ids", "processors")


def test_every_parameter_is_checked():
    assert list(_CHECKS) == list(SamplingParams.__dataclass_fields__)


def test_temperature_that_leaves_no_noise_is_greedy():
    for temperature in (5e-324, 1e-38, 1e-7, math.nextafter(1e-6, 0)):
        params = SamplingParams(temperature=temperature)
        assert params.greedy
        assert params == SamplingParams(temperature=0)
    assert not SamplingParams(temperature=1e-6).greedy


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", [*LISTS, "logit_bias"])
def test_none_is_nothing(name):
    params = SamplingParams(**{name: None})
    assert params == SamplingParams()
    assert params.plain
    assert not SamplingParams(allowed_token_ids=[3]).plain


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("temperature", (-0.1, 101, math.nan, math.inf, "1"), r"in \[0, 100\]"),
        ("temperature", (None, True, [1.0], 10**400), r"in \[0, 100\]"),
        ("top_k", (-1, 1.5, True, None, "5", 2**31 + 1), r"in \[0, 2\*\*31\]"),
        ("top_p", (0, -1, 1.1, math.nan, True, "1"), r"in \(0, 1\].*use temperature=0"),
        ("min_p", (-0.1, 1.1, None), r"in \[0, 1\]"),
        ("typical_p", (0, 1.1, None), r"in \(0, 1\]"),
        ("repetition_penalty", (0, -1, 101, None), r"in \(0, 100\]"),
        ("presence_penalty", (-2.1, 2.1, None), r"in \[-2, 2\]"),
        ("frequency_penalty", (-2.1, 2.1, None), r"in \[-2, 2\]"),
        ("max_tokens", (0, -1, 2.0, True, None, "8"), r"in \[1, 2\*\*31\]"),
        ("min_tokens", (-1, 2.0, False, None), r"a whole number in \[0, 2\*\*31\]"),
        ("ignore_eos", (1, None, "no"), "True or False"),
        ("language", (5, None, ("fr",)), "a string"),
        ("skip_special_tokens", (0, None, "no"), "True or False"),
        ("logprobs", (True, False, -1, 101, 1.0, "2"), r"whole number in \[0, 100\]"),
        ("seed", (True, False, -1, 2**63, 1.0, "2"), r"whole number in \[0, 2\*\*63\)"),
        ("n", (0, -1, 1.0, True, None, "2", 1025), r"a whole number in \[1, 1024\]"),
        ("method", (5, "", " ", True, ("lm",)), "None or a name"),
        ("rule", (5, "", b"match"), "None or a name"),
        ("budget", (5, ""), "None or a name"),
        ("nodes", (-1, 65, True, 1.0, "2"), r"None or a whole number in \[0, 64\]"),
        ("stop", (5, ("",), "", (5,), b"no", {"a": 1}), "non-empty strings"),
        ("bad_words", (5, ("a", ""), "", (None,), b"no"), "non-empty strings"),
        ("stop_token_ids", (5, "5", b"5", {5: 1}), "a list of token ids"),
        ("stop_token_ids", ((-1,), (True,), (1.0,), ("a",), (None,)), "number >= 0"),
        ("stop_token_ids", (torch.tensor([1.0]),), "a whole number >= 0"),
        ("bad_word_ids", (5, "5"), "a list of lists of token ids"),
        ("bad_word_ids", ((5, 6), ["ab"]), "a list of token ids"),
        ("bad_word_ids", (((),), ((1,), None), ((1,), [])), "empty word"),
        ("bad_word_ids", (((-1,),), ((False,),), ((1.5,),)), "a whole number >= 0"),
        ("allowed_token_ids", ((), []), "hold a token id. Leave it out to allow all"),
        ("allowed_token_ids", (5, "5"), "a list of token ids"),
        ("include_stop_str_in_output", (0, None, "no"), "True or False"),
        ("logit_bias", (5, "5", [(5, 1.0)]), r"ids to numbers in \[-100, 100\]"),
        ("logit_bias", ({"5": 1.0}, {-1: 1.0}, {True: 1.0}, {1.5: 1.0}), "number >= 0"),
        ("logit_bias", ({5: 101}, {5: -101}, {5: math.nan}), r"in \[-100, 100\]"),
        ("logit_bias", ({5: "1"}, {5: None}, {5: True}), r"in \[-100, 100\]"),
        ("processors", (5, "f", len, {"f": len}), "a list of callables"),
        ("processors", ((len, 5), (None,)), "callables that take tokens and logits"),
    ],
)
def test_wrong_value_of_a_parameter_is_refused_by_name(name, wrong, said):
    for value in wrong:
        with pytest.raises(InvalidRequest, match=rf"{name} must.*({said})"):
            SamplingParams(**{name: value})


def test_less_than_the_least_cannot_be_asked_for():
    with pytest.raises(InvalidRequest, match=r"min_tokens \(9\) must not exceed"):
        SamplingParams(min_tokens=9, max_tokens=8)


@pytest.mark.usefixtures("unchecked")
def test_kept_values_are_plain_and_cannot_be_changed_outside():
    bias, words = {np.int64(3): 1}, [[np.int32(5), 6], (7,)]
    params = SamplingParams(
        temperature=Fraction(1, 2),
        logit_bias=bias,
        bad_word_ids=words,
        stop="end",
        bad_words=["a", "b"],
        stop_token_ids={4},
        seed=np.int64(9),
        processors=[max],
    )
    bias.clear()
    words.clear()
    assert params == SamplingParams(
        temperature=0.5,
        logit_bias={3: 1.0},
        bad_word_ids=((5, 6), (7,)),
        stop=("end",),
        bad_words=("a", "b"),
        stop_token_ids=(4,),
        seed=9,
        processors=(max,),
    )
    words = [token for word in params.bad_word_ids for token in word]
    kept = [params.seed, *params.logit_bias, *params.stop_token_ids, *words]
    assert {type(number) for number in kept} == {int}
    assert type(params.temperature) is float


def test_the_ends_of_a_range_belong_to_it():
    SamplingParams(temperature=0, top_p=1, logprobs=0, seed=0)
    SamplingParams(presence_penalty=-2, frequency_penalty=2)
    SamplingParams(temperature=100, top_p=1e-9, typical_p=1e-9, min_p=1)
    SamplingParams(logprobs=100, seed=2**63 - 1, max_tokens=2**31)
    SamplingParams(logit_bias={0: -100, 1: 100})


def test_a_whole_number_says_its_range():
    assert whole(1)("slots", 8) == 8
    assert whole(0, 4, optional=True)("nodes", None) is None
    with pytest.raises(InvalidRequest, match=r"^slots must be a whole number >= 1"):
        whole(1)("slots", 0)
    with pytest.raises(InvalidRequest, match=r"^nodes must be None .* in \[0, 4\]"):
        whole(0, 4, optional=True)("nodes", 5)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("make", [np.array, torch.tensor, np.float32, np.float64])
def test_numbers_of_numpy_and_torch_are_numbers(make):
    params = SamplingParams(temperature=make(0.5))
    assert (params.temperature, type(params.temperature)) == (0.5, float)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("make", [np.array, torch.tensor, np.int32])
def test_whole_numbers_of_numpy_and_torch_are_whole_numbers(make):
    numbers = dict(max_tokens=make(5), seed=make(7), temperature=make(1))
    params = SamplingParams(**numbers, stop_token_ids=[make(3)])
    kept = (params.max_tokens, params.seed, *params.stop_token_ids)
    assert kept == (5, 7, 3)
    assert {type(number) for number in kept} == {int}
    assert SamplingParams(stop_token_ids=np.array([3, 4])).stop_token_ids == (3, 4)
    assert SamplingParams(stop_token_ids=torch.tensor([3, 4])).stop_token_ids == (3, 4)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_arrays_that_are_no_numbers_are_refused(make):
    for name in ("max_tokens", "temperature", "top_k", "seed", "logprobs"):
        for value in map(make, ([5], [1, 2], [[1.0]], True, 1j, [])):
            with pytest.raises(InvalidRequest, match=f"{name} must"):
                SamplingParams(**{name: value})
    for value in (make(5.0), make(5.5)):
        with pytest.raises(InvalidRequest, match="max_tokens must"):
            SamplingParams(max_tokens=value)
    names = "stop_token_ids bad_word_ids stop bad_words processors prediction".split()
    for name in names:
        with pytest.raises(InvalidRequest, match=f"{name} must"):
            SamplingParams(**{name: make(5)})


@pytest.mark.parametrize("name", ["stop", "bad_words", "prediction"])
def test_lone_surrogates_are_refused(name):
    with pytest.raises(InvalidRequest, match=f"{name} must be valid Unicode"):
        SamplingParams(**{name: "a\ud800" if name == "prediction" else ("a\ud800",)})
