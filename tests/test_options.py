"""Settings: declared once, the same for `LLM`, the command line and transformers' calls."""

import inspect
from dataclasses import fields

import pytest

import foreword
from foreword import LLM, SamplingParams
from foreword.errors import InvalidRequest, ModelError, UnknownMethod
from foreword.options import DraftingOptions, ModelOptions, SchedulingOptions, keywords

KINDS = (ModelOptions, DraftingOptions, SchedulingOptions)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_constructor_has_the_same_settings_and_defaults(kind):
    known = inspect.signature(LLM.__init__).parameters
    found = {one.name: known[one.name].default for one in fields(kind)}
    assert found == {one.name: one.default for one in fields(kind)}


def test_a_call_of_generate_and_a_request_have_the_drafting_settings():
    names = {one.name for one in fields(DraftingOptions)}
    assert names <= set(inspect.signature(foreword.generate).parameters)
    assert names <= {one.name for one in fields(SamplingParams)}


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (dict(method="lmm"), UnknownMethod, "Did you mean 'lm'"),
        (dict(method="cascade(lm, lmm)"), UnknownMethod, "'lmm'"),
        (dict(rule="machen"), UnknownMethod, "Did you mean 'match'"),
        (dict(budget="confidense"), UnknownMethod, "Did you mean 'confidence'"),
        (dict(nodes=65), InvalidRequest, r"None or a whole number in \[0, 64\]"),
        (
            dict(nodes=2, budget="confidence"),
            InvalidRequest,
            "the number of draft tokens",
        ),
    ],
    ids=str,
)
def test_wrong_drafting_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        DraftingOptions(**given)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (dict(dtype="float64"), ModelError, "'dtype' must be 'auto' or one of float32"),
        (dict(backend="fast"), InvalidRequest, "one of native, graph, pool, cache"),
        (dict(weights="int2"), InvalidRequest, "choose one of int8, int4"),
        (dict(weights="int4", backend="pool"), InvalidRequest, "only backend 'native'"),
        (dict(kv="int8", dtype="float32"), InvalidRequest, "only backend 'native'"),
        (dict(offload_folder="x", dtype="float32"), InvalidRequest, "backend 'native'"),
    ],
    ids=str,
)
def test_wrong_loading_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        ModelOptions(**given)


def test_methods_have_one_spelling_and_options_can_be_keys():
    one = DraftingOptions(method="cascade(suffix,lm)")
    same = DraftingOptions(method=" cascade( suffix, lm ) ")
    assert one == same
    assert {one: 1}[same] == 1
    assert SamplingParams(method="cascade(suffix,lm)").drafting == one
    defaults = dict(method=None, rule=None, budget=None)
    assert keywords(DraftingOptions(nodes=3)) == dict(defaults, nodes=3)
