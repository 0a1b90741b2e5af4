"""A schema or expression is enforced as it stands, or refused at once."""

import json
import re

import jsonschema_rs
import pytest
from xgrammar import GrammarMatcher

from foreword.errors import InvalidRequest
from foreword.structured.rewrite import rewritten
from foreword.structured.schema import check_regex, check_schema
from foreword.types import SamplingParams
from running import grammars

STRING, WHOLE = {"type": "string"}, {"type": "integer"}
NAMED = {"$ref": "#/$defs/s", "$defs": {"s": STRING}}
OBJECT = "object"


def fields(**properties):
    return {"type": OBJECT, "properties": properties}


def text(**more):
    return {"type": "string", **more}


def items(of, **more):
    return {"type": "array", "items": of, **more}


REFUSED = [
    (text(**{"not": {"const": "a"}}), "'not' is not supported"),
    ({"type": "array", "uniqueItems": True}, "'uniqueItems' is not supported"),
    (items({"enum": [*"abcdef"]}, uniqueItems=True), "'uniqueItems' is not supported"),
    (
        {"allOf": [fields(a={}), {**fields(b={}), "additionalProperties": False}]},
        "'allOf' of several",
    ),
    ({"allOf": [STRING, WHOLE]}, "'allOf' of several"),
    ({"allOf": [{"$ref": "#"}, WHOLE]}, "'allOf' of several"),
    ({"if": STRING, "then": {"minLength": 3}}, "'(if|then)' is not supported"),
    ({"type": OBJECT, "dependentRequired": {"a": ["b"]}}, "'dependentRequired'"),
    ({"type": "array", "contains": {}}, "'contains'"),
    ({**NAMED, "minLength": 3}, "'minLength' has no effect beside"),
    (text(anyOf=[STRING]), "'type' has no effect beside 'anyOf'"),
    ({"enum": ["a", "bb"], "minLength": 2}, "'minLength' has no effect beside 'enum'"),
    (text(enum=["a", 1]), "1 is not of type 'string'"),
    ({"type": "integer", "const": True}, "True is not of type 'integer'"),
    ({"minimum": 3}, "'minimum' has no effect without a type"),
    ({"type": "number", "multipleOf": 3}, "'multipleOf'"),
    ({"type": "integer", "multipleOf": 3, "minimum": 5}, "'multipleOf'"),
    ({**fields(a={}), "required": ["b"]}, "'b' is required but not among"),
    ({**fields(a={}), "propertyNames": {"pattern": "b"}}, "'propertyNames'"),
    (text(pattern="a+", maxLength=2), "'maxLength' has no effect beside 'pattern'"),
    (text(format="date", pattern="^1"), "'format' has no effect beside 'pattern'"),
    (text(pattern='^a"b$'), "quotation mark"),
    ({"$ref": "http://x.y/z"}, "must point into this schema"),
    (fields(**{f"p{n}": {} for n in range(600)}), "600 properties, the limit is 512"),
    (
        {"properties": {"a": {"items": text(**{"not": {}})}}},
        "at #/properties/a/items, 'not'",
    ),
]


@pytest.mark.parametrize(
    ("schema", "reason"), REFUSED, ids=lambda value: json.dumps(value)[:40]
)
def test_part_that_would_not_be_enforced_is_refused(schema, reason):
    with pytest.raises(
        InvalidRequest, match=f"^cannot follow this json_schema: .*{reason}"
    ):
        check_schema(rewritten(schema))


def test_names_of_properties_are_no_keywords():
    check_schema({**fields(**{"not": STRING, "if": {}}), "required": ["not"]})
    check_schema({"enum": [{"not": 1}]})


def test_nesting_has_a_limit():
    deep = {"type": "array"}
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    with pytest.raises(InvalidRequest, match="nested more than 64 levels"):
        check_schema(deep)


AGES = {**fields(age={"type": "integer", "minimum": 0}), "required": ["age"]}
PERSON = fields(name=STRING, age={"type": "number", "maximum": 9})
PERSON["required"] = ["name"]
NEXT = {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]}
LIST = {**fields(v=WHOLE, next=NEXT), "required": ["v", "next"]}
TRIED = [
    (text(minLength=2, maxLength=3), ["a", "ab", "abc", "abcd", "éé", ""]),
    (
        {"type": "integer", "minimum": -5, "maximum": 120},
        [-6, -5, 0, 7, 120, 121, 1000],
    ),
    ({"type": "number", "exclusiveMinimum": 0.5, "maximum": 3}, [0.5, 0.6, 3, 4, -1]),
    ({"type": "integer", "multipleOf": 3}, [3, 4]),
    (
        {"type": "integer", "multipleOf": 3, "minimum": -4, "exclusiveMaximum": 9},
        [-6, -3, 0, 3, 4, 6, 9],
    ),
    (
        text(format="ipv4"),
        ["0.0.0.0", "255.10.9.199", "256.1.1.1", "01.2.3.4", "1.2.3", "1.2.3.4.5"],
    ),
    (
        items({"enum": ["a", 1, None]}, uniqueItems=True, minItems=1, maxItems=2),
        [[], ["a"], ["a", 1], [1, "a"], ["a", "a"], [None, 1], ["a", 1, None], ["b"]],
    ),
    (
        items({"type": "boolean"}, uniqueItems=True),
        [[], [True], [False, True], [True, True]],
    ),
    (items(WHOLE, uniqueItems=True, maxItems=1), [[], [7], [7, 7]]),
    (
        {"allOf": [text(maxLength=4), {"minLength": 3}]},
        ["ab", "abc", "abcd", "abcde", 3],
    ),
    (
        {"allOf": [{"$ref": "#/$defs/p"}], **AGES, "$defs": {"p": PERSON}},
        [
            *({"name": "a", "age": age} for age in (3, 12, -1, 2.5)),
            {"name": "a"},
            {"age": 3},
        ],
    ),
    (
        {"allOf": [{"enum": ["a", 1, "b"]}, STRING, {"enum": ["b", "c"]}]},
        ["a", "b", "c", 1],
    ),
    ({"type": ["string", "null"]}, ["a", None, 1]),
    ({"anyOf": [WHOLE, {"type": "null"}]}, [1, None, "a"]),
    ({"enum": [1, "a", None, True]}, [1, "a", None, True, 2, "b"]),
    (text(pattern="^[a-c]+$"), ["abc", "abd", ""]),
    (items(WHOLE, minItems=1, maxItems=2), [[], [1], [1, 2], [1, 2, 3], ["a"]]),
    (items(STRING, prefixItems=[WHOLE]), [[1, "a"], [1, 2], ["a"]]),
    (
        {**fields(a=WHOLE, b={}), "required": ["a"]},
        [{"a": 1}, {"a": 1, "b": [2]}, {"b": 2}, {"a": "x"}, {}],
    ),
    (
        {"type": OBJECT, "additionalProperties": WHOLE, "minProperties": 1},
        [{}, {"a": 1}, {"a": "x"}],
    ),
    ({**fields(**{'é"': WHOLE}), "required": ['é"']}, [{'é"': 1}, {}]),
    (
        {"$ref": "#/$defs/list", "$defs": {"list": LIST}},
        [
            {"v": 1, "next": None},
            {"v": 1, "next": {"v": 2, "next": None}},
            {"v": 1},
            {"v": 1, "next": 2},
        ],
    ),
]


@pytest.mark.parametrize(
    ("schema", "values"), TRIED, ids=lambda value: json.dumps(value)[:60]
)
def test_accepted_schema_allows_exactly_what_is_valid(schema, values):
    grammar = grammars().compiled(SamplingParams(json_schema=schema))
    accepted = []
    for value in values:
        matcher = GrammarMatcher(grammar)
        taken = matcher.accept_string(json.dumps(value, ensure_ascii=False))
        accepted.append(taken and matcher.is_completed())
        valid = jsonschema_rs.is_valid(schema, value, validate_formats=True)
        assert accepted[-1] == valid, value
    assert {*accepted} == {True, False}


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a$b", "'\\$' is supported at the ends"),
        ("a|^b", "'\\^' is supported"),
        (r"\Zb", r"the escape '\\\\Z'"),
        (r"[\q]", "escape"),
    ],
)
def test_part_of_an_expression_that_would_be_ignored_is_refused(pattern, reason):
    with pytest.raises(InvalidRequest, match=f"cannot follow this regex: .*{reason}"):
        check_regex(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"^\d+\.\d{2}$",
        r"[^$^]\x41\u00e9[\]\-\\]",
        r"(?:a|b)*?c",
        r"\$\^",
        r"[\w.+-]+@\w+\.\w{2,}",
        "é+|😀",
    ],
)
def test_expression_that_is_not_refused_means_what_python_means(pattern):
    check_regex(pattern)
    grammar = grammars().compiled(SamplingParams(regex=pattern))
    for word in "1.25 12 xAé] xAé- $Aé\\ aabc c ab $^ a.b+c@d.ef é 😀 éé😀 a\\".split():
        matcher = GrammarMatcher(grammar)
        found = matcher.accept_string(word) and matcher.is_completed()
        assert found == bool(re.fullmatch(pattern, word, re.ASCII)), word


def test_a_schema_that_unfolds_without_end_stays_as_it_is():
    """Each of 40 parts refers twice to the next: 2 ** 40 parts in all."""
    parts = {f"p{n}": {"allOf": [{"$ref": f"#/$defs/p{n + 1}"}] * 2} for n in range(40)}
    parts["p40"] = {"type": "integer"}
    endless = {"allOf": [{"$ref": "#/$defs/p0"}, {}], "$defs": parts}
    deep: dict[str, object] = {"type": "array"}
    for _ in range(3000):
        deep = {"type": "array", "items": deep}
    wrong = {"type": "integer", "multipleOf": 3, "minimum": "a", "maximum": 9}
    for schema in (endless, deep, wrong, {"allOf": [{"minimum": 1}, {"minimum": "a"}]}):
        assert rewritten(schema) is schema
