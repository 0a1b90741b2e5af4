"""Building blocks of xgrammar's structural tags, as plain dicts."""

from collections.abc import Callable, Collection, Mapping, Sequence

from foreword.chats import Function
from foreword.structured.rewrite import rewritten
from foreword_server.output.formats.base import Tag

WHITESPACE = 1
"""Characters. Most white space in a row that a forced call may have between parts."""


def const(text: str) -> Tag:
    """Return the grammar of exactly this text."""
    return {"type": "const_string", "value": text}


def token(text: str, special: Collection[str]) -> Tag:
    """Return the grammar of a marker: its token if it is special, else its text."""
    return {"type": "token", "token": text} if text in special else const(text)


def sequence(*parts: Tag) -> Tag:
    """Return the grammar of one part after the other."""
    return {"type": "sequence", "elements": list(parts)}


def arguments(function: Function, **options: object) -> Tag:
    """Return the grammar of the arguments: an object that follows the schema, any
    object if `strict` is False.
    """
    schema = {"type": "object"}
    if function.strict is not False:
        schema |= rewritten(dict(function.parameters))
    return json_text(schema, **options)


def json_text(schema: Mapping[str, object], **options: object) -> Tag:
    """Return the grammar of JSON that follows a schema."""
    return {
        "type": "json_schema",
        "json_schema": schema,
        "max_whitespace_cnt": WHITESPACE,
        **options,
    }


def one_of(functions: Sequence[Function], call: Callable[[Function], Tag]) -> Tag:
    """Return the grammar of a call of one of the functions."""
    return {"type": "or", "elements": [call(function) for function in functions]}


def tag(begin: str, content: Tag, end: str, special: Collection[str] = ()) -> Tag:
    """Return the grammar of content between two markers."""

    def marker(text: str) -> str | Tag:
        return token(text, special) if text in special else text

    return {
        "type": "tag",
        "begin": marker(begin),
        "content": content,
        "end": marker(end),
    }


def separated(tag: Tag, separator: str, *, parallel: bool) -> Tag:
    """Return the grammar of one tag, or of several if `parallel`."""
    return {
        "type": "tags_with_separator",
        "tags": [tag],
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": not parallel,
    }


def triggered(
    trigger: str, tag: Tag, special: Collection[str], *, parallel: bool
) -> Tag:
    """Return the grammar of content in which the trigger begins the tag."""
    rule: Tag = {"tags": [tag], "at_least_one": False, "stop_after_first": not parallel}
    if trigger in special:
        return {"type": "token_triggered_tags", "trigger_tokens": [trigger], **rule}
    return {"type": "triggered_tags", "triggers": [trigger], **rule}
