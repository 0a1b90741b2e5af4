"""A schema or expression is enforced as it stands, or refused before the request
starts.
"""

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

REFUSED = [
    ({"type": "string", "not": {"const": "a"}}, "'not' is not supported"),
    ({"type": "array", "uniqueItems": True}, "'uniqueItems' is not supported"),
    (
        {"type": "array", "items": {"enum": [*"abcdef"]}, "uniqueItems": True},
        "'uniqueItems' is not supported",
    ),
    (
        {
            "allOf": [
                {"type": "object", "properties": {"a": {}}},
                {
                    "type": "object",
                    "properties": {"b": {}},
                    "additionalProperties": False,
                },
            ]
        },
        "'allOf' of several",
    ),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "'allOf' of several"),
    ({"allOf": [{"$ref": "#"}, {"type": "integer"}]}, "'allOf' of several"),
    (
        {"if": {"type": "string"}, "then": {"minLength": 3}},
        "'(if|then)' is not supported",
    ),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "'dependentRequired'"),
    ({"type": "array", "contains": {}}, "'contains'"),
    (
        {"$ref": "#/$defs/s", "$defs": {"s": {"type": "string"}}, "minLength": 3},
        "'minLength' has no effect beside",
    ),
    (
        {"type": "string", "anyOf": [{"type": "string"}]},
        "'type' has no effect beside 'anyOf'",
    ),
    ({"enum": ["a", "bb"], "minLength": 2}, "'minLength' has no effect beside 'enum'"),
    ({"type": "string", "enum": ["a", 1]}, "1 is not of type 'string'"),
    ({"type": "integer", "const": True}, "True is not of type 'integer'"),
    ({"minimum": 3}, "'minimum' has no effect without a type"),
    ({"type": "number", "multipleOf": 3}, "'multipleOf'"),
    ({"type": "integer", "multipleOf": 3, "minimum": 5}, "'multipleOf'"),
    (
        {"type": "object", "required": ["b"], "properties": {"a": {}}},
        "'b' is required but not among",
    ),
    (
        {"type": "object", "properties": {"a": {}}, "propertyNames": {"pattern": "b"}},
        "'propertyNames'",
    ),
    (
        {"type": "string", "pattern": "a+", "maxLength": 2},
        "'maxLength' has no effect beside 'pattern'",
    ),
    (
        {"type": "string", "format": "date", "pattern": "^1"},
        "'format' has no effect beside 'pattern'",
    ),
    ({"type": "string", "pattern": '^a"b$'}, "quotation mark"),
    ({"$ref": "http://x.y/z"}, "must point into this schema"),
    (
        {"type": "object", "properties": {f"p{n}": {} for n in range(600)}},
        "600 properties, the limit is 512",
    ),
    (
        {"properties": {"a": {"items": {"type": "string", "not": {}}}}},
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
    check_schema(
        {
            "type": "object",
            "properties": {"not": {"type": "string"}, "if": {}},
            "required": ["not"],
        }
    )
    check_schema({"enum": [{"not": 1}]})


def test_nesting_has_a_limit():
    deep = {"type": "array"}
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    with pytest.raises(InvalidRequest, match="nested more than 64 levels"):
        check_schema(deep)


OBJECT = "object"
TRIED = [
    (
        {"type": "string", "minLength": 2, "maxLength": 3},
        ["a", "ab", "abc", "abcd", "éé", ""],
    ),
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
        {"type": "string", "format": "ipv4"},
        ["0.0.0.0", "255.10.9.199", "256.1.1.1", "01.2.3.4", "1.2.3", "1.2.3.4.5"],
    ),
    (
        {
            "type": "array",
            "items": {"enum": ["a", 1, None]},
            "uniqueItems": True,
            "minItems": 1,
            "maxItems": 2,
        },
        [[], ["a"], ["a", 1], [1, "a"], ["a", "a"], [None, 1], ["a", 1, None], ["b"]],
    ),
    (
        {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True},
        [[], [True], [False, True], [True, True]],
    ),
    (
        {
            "type": "array",
            "items": {"type": "integer"},
            "uniqueItems": True,
            "maxItems": 1,
        },
        [[], [7], [7, 7]],
    ),
    (
        {"allOf": [{"type": "string", "maxLength": 4}, {"minLength": 3}]},
        ["ab", "abc", "abcd", "abcde", 3],
    ),
    (
        {
            "allOf": [{"$ref": "#/$defs/named"}],
            "properties": {"age": {"type": "integer", "minimum": 0}},
            "required": ["age"],
            "$defs": {
                "named": {
                    "type": OBJECT,
                    "properties": {
                        "name": {"type": "string"},
                        "age": {"type": "number", "maximum": 9},
                    },
                    "required": ["name"],
                }
            },
        },
        [
            {"name": "a", "age": 3},
            {"name": "a", "age": 12},
            {"name": "a", "age": -1},
            {"name": "a", "age": 2.5},
            {"name": "a"},
            {"age": 3},
        ],
    ),
    (
        {"allOf": [{"enum": ["a", 1, "b"]}, {"type": "string"}, {"enum": ["b", "c"]}]},
        ["a", "b", "c", 1],
    ),
    ({"type": ["string", "null"]}, ["a", None, 1]),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [1, None, "a"]),
    ({"enum": [1, "a", None, True]}, [1, "a", None, True, 2, "b"]),
    ({"type": "string", "pattern": "^[a-c]+$"}, ["abc", "abd", ""]),
    (
        {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
        [[], [1], [1, 2], [1, 2, 3], ["a"]],
    ),
    (
        {
            "type": "array",
            "prefixItems": [{"type": "integer"}],
            "items": {"type": "string"},
        },
        [[1, "a"], [1, 2], ["a"]],
    ),
    (
        {
            "type": OBJECT,
            "properties": {"a": {"type": "integer"}, "b": {}},
            "required": ["a"],
        },
        [{"a": 1}, {"a": 1, "b": [2]}, {"b": 2}, {"a": "x"}, {}],
    ),
    (
        {
            "type": OBJECT,
            "additionalProperties": {"type": "integer"},
            "minProperties": 1,
        },
        [{}, {"a": 1}, {"a": "x"}],
    ),
    (
        {"type": OBJECT, "properties": {'é"': {"type": "integer"}}, "required": ['é"']},
        [{'é"': 1}, {}],
    ),
    (
        {
            "$ref": "#/$defs/list",
            "$defs": {
                "list": {
                    "type": OBJECT,
                    "properties": {
                        "v": {"type": "integer"},
                        "next": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]},
                    },
                    "required": ["v", "next"],
                }
            },
        },
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
        accepted.append(
            matcher.accept_string(json.dumps(value, ensure_ascii=False))
            and matcher.is_completed()
        )
    assert accepted == [
        jsonschema_rs.is_valid(schema, value, validate_formats=True) for value in values
    ]
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
    for text in "1.25 12 xAé] xAé- $Aé\\ aabc c ab $^ a.b+c@d.ef é 😀 éé😀 a\\".split():
        matcher = GrammarMatcher(grammar)
        found = matcher.accept_string(text) and matcher.is_completed()
        assert found == bool(re.fullmatch(pattern, text, re.ASCII)), text


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
