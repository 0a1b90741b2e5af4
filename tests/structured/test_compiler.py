"""What cannot be followed is refused with a reason; the rest is compiled once."""

import json
import sys

import pytest
import torch

from foreword.errors import InvalidRequest
from foreword.structured.compiler import Grammars
from foreword.types import SamplingParams
from running import grammars, target, tokenizer

IMPOSSIBLE = [
    (dict(json_schema={"enum": []}), "enum array must not be empty"),
    (
        dict(json_schema={"type": "integer", "minimum": 5, "maximum": 3}),
        "minimum greater than maximum",
    ),
    (dict(json_schema={"type": "banana"}), 'Unsupported type "banana"'),
    (dict(json_schema={"$ref": "#/$defs/x"}), "Cannot find field"),
    (dict(json_schema={"$ref": "#"}), "no text follows it"),
    (dict(json_schema={"type": "string", "pattern": "("}), "parenthesis is not closed"),
    (dict(regex="("), "The parenthesis is not closed"),
    (dict(regex=r"(?=x)y"), "Lookahead is not supported"),
    (dict(regex="a{5,2}"), "Lower bound is larger"),
    (dict(regex="a{0}"), "only the empty one"),
    (dict(regex="(" * 5000 + ")" * 5000), "limit"),
    (dict(grammar='root ::= "a" foo'), 'Rule "foo" is not defined'),
    (dict(grammar="root ::= "), "Expect element"),
    (dict(grammar='start ::= "a"'), '"root" is not found'),
    (dict(grammar="root ::= root"), "no text follows it"),
    (dict(structural_tag={"type": "nonsense"}), ""),
]


@pytest.mark.parametrize(
    ("wanted", "reason"), IMPOSSIBLE, ids=lambda value: str(value)[:50]
)
def test_form_that_cannot_be_followed_is_refused_with_its_reason(wanted, reason):
    (name,) = wanted
    with pytest.raises(InvalidRequest) as refused:
        grammars().compiled(SamplingParams(**wanted))
    message = str(refused.value)
    assert message.startswith(f"cannot follow this {name}: ")
    assert reason in message
    assert "/project/" not in message
    assert "\n" not in message


def allowed(wanted: dict, vocab: int, text: str = "", **more) -> torch.Tensor:
    made = Grammars(tokenizer(), vocab, target().eos)
    params = SamplingParams(**wanted, **more)
    compiled = made.compiled(params)
    assert compiled is not None
    return made.answer(compiled, params, 0).allowed(
        tokenizer()(text)["input_ids"] if text else [], [[]]
    )[0]


def test_padding_and_special_tokens_are_never_allowed():
    vocab = target().vocab + 40
    found = allowed(dict(regex="(.|\\n)*"), vocab)
    assert found.shape == (vocab,)
    assert not found[target().vocab :].any()
    special = set(tokenizer().all_special_ids)
    assert {token for token in special if found[token]} == target().eos
    assert found.sum() > 8000


def test_text_may_end_where_the_grammar_ends():
    (eos,) = target().eos
    stop = next(token for token in tokenizer().all_special_ids if token != eos)
    for text, ends in (("", False), ("a", True)):
        plainly = allowed(dict(regex="a+"), target().vocab, text)
        assert (bool(plainly[eos]), bool(plainly[stop])) == (ends, False)
        assert not allowed(dict(regex="a+"), target().vocab, text, ignore_eos=True)[eos]
        assert (
            bool(
                allowed(dict(regex="a+"), target().vocab, text, stop_token_ids=(stop,))[
                    stop
                ]
            )
            == ends
        )


def test_model_with_fewer_tokens_than_its_tokenizer():
    found = allowed(dict(regex="[a-z ]+"), 4000)
    assert found.shape == (4000,)
    assert found.any()


def test_large_enum_and_long_text_are_bounded():
    names = [f"value {number}" for number in range(3000)]
    assert grammars().compiled(SamplingParams(json_schema={"enum": names})) is not None
    with pytest.raises(InvalidRequest, match="the limit is 262144"):
        SamplingParams(json_schema={"enum": names * 10})


def test_grammar_is_compiled_once():
    made = Grammars(tokenizer(), target().vocab, target().eos)
    params = SamplingParams(
        json_schema={"type": "object", "properties": {"a": {"type": "integer"}}}
    )
    first = made.compiled(params)
    assert first is not None
    assert made.compiled(params) is made.submit(params).result(60) is first


def test_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(InvalidRequest, match=r"xgrammar is missing .*structured"):
        Grammars(tokenizer(), target().vocab, target().eos).compiled(
            SamplingParams(regex="a")
        )


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (dict(regex="a", grammar="b"), "cannot follow both regex and grammar"),
        (dict(json_object=True, json_schema={"type": "object"}), "both json_schema"),
        (dict(regex="a", min_tokens=2), "cannot use min_tokens with regex"),
        (dict(regex=""), "regex must be None or a text that is not empty"),
        (dict(regex=3), "regex must be None or a text"),
        (dict(json_schema="{"), "json_schema must be a JSON object"),
        (dict(json_schema="[1]"), r"json_schema must be a JSON object.*got \[1\]"),
        (dict(json_schema=3), "json_schema must be a JSON object"),
        (dict(json_schema={"a": float("nan")}), "json_schema must be a JSON object"),
        (dict(json_schema={"a": {1, 2}}), "json_schema must be a JSON object"),
        (dict(json_schema="[" * 100_000), "json_schema must be a JSON object"),
        (dict(grammar="\ud800"), "valid Unicode"),
        (dict(json_object="yes"), "json_object"),
        (dict(structural_tag=[1]), "structural_tag must be a JSON object"),
    ],
    ids=str,
)
def test_form_of_a_parameter_is_checked_at_once(unchecked, wanted, reason):
    with pytest.raises(InvalidRequest, match=reason):
        SamplingParams(**wanted)


def test_schema_is_the_same_as_dict_and_as_text():
    schema = {"type": "object", "properties": {"é": {"enum": ["ß"]}}}
    assert (
        SamplingParams(json_schema=schema).json_schema
        == SamplingParams(json_schema=json.dumps(schema)).json_schema
    )
    assert SamplingParams(json_schema={}).structured
