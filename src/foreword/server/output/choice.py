"""Tool choice: which tools a request may or must call, as a grammar for constrained sampling."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from foreword.chats import Function
from foreword.errors import InvalidRequest
from foreword.server.output.formats import grammar
from foreword.server.output.formats.base import Format, Tag
from foreword.server.output.reasoning import ReasoningTags


def structural_tag(
    format: Format,
    functions: Sequence[Function],
    choice: object = "auto",
    *,
    parallel: bool = True,
    reasoning: ReasoningTags | None = None,
    in_reasoning: bool = False,
    special: Collection[str] = (),
) -> Tag | None:
    """Return xgrammar's structural tag for a tool choice; None if nothing needs to be forced.

    choice: "none", "auto", "required", or {"type": "function", "function": {"name": …}}, as OpenAI's `tool_choice`.
        "auto" constrains the calls that the model begins, if a function is strict.
    parallel: whether more than one call may follow; a named function is called once.
    reasoning: tags of reasoning that may come first; `in_reasoning` if the prompt has opened it.
    special: the tokenizer's special tokens; a tag among them is forced as a token, not as text.

    The parser of the same format reads the calls of every text that the grammar accepts. Raises InvalidRequest for a
    choice that the functions cannot serve.
    """
    if choice == "none" or (choice == "auto" and not any(function.strict for function in functions)):
        return None
    if choice == "auto":
        calls = format.allowed(functions, parallel=parallel, special=special)
    else:
        name = _name(choice)
        chosen = [function for function in functions if name in {None, function.name}]
        if not chosen:
            known = ", ".join(function.name for function in functions) or "none"
            raise InvalidRequest(
                f"cannot force a tool call: no such tool among {known}. Name one of them in tool_choice"
            )
        calls = format.forced(chosen, parallel=parallel and name is None, special=special)
    return {"type": "structural_tag", "format": _after_reasoning(calls, reasoning, in_reasoning, special)}


def _name(choice: object) -> str | None:
    """Return the name of the function that a choice forces; None for any."""
    if choice == "required":
        return None
    function = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise InvalidRequest(
            "cannot read tool_choice: it is 'none', 'auto', 'required' or "
            f'{{"type": "function", "function": {{"name": …}}}}, not {choice!r}'
        )
    return name


def _after_reasoning(calls: Tag, tags: ReasoningTags | None, in_reasoning: bool, special: Collection[str]) -> Tag:
    if tags is None:
        return calls
    free: Tag = {"type": "any_text", "excludes": [tags.close]}
    if tags.close in special:
        free = {"type": "any_tokens", "exclude_tokens": list(special)}
    reasoning = grammar.tag("" if in_reasoning else tags.open, free, tags.close, special)
    spaced = grammar.sequence(reasoning, {"type": "regex", "pattern": r"\n{0,2}"})
    before: Tag = spaced if in_reasoning else {"type": "optional", "content": spaced}
    return grammar.sequence(before, calls)
