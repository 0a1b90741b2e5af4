"""Tool choice: the tools a request may or must call, as a sampling grammar."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from foreword.chats import Function
from foreword.errors import InvalidRequest
from foreword_server.output.formats import grammar
from foreword_server.output.formats.base import Format, Tag
from foreword_server.output.reasoning import ReasoningTags


def structural_tag(
    format: Format,
    functions: Sequence[Function],
    choice: object = "auto",
    *,
    parallel: bool = True,
    lazy: bool = False,
    reasoning: ReasoningTags | None = None,
    in_reasoning: bool = False,
    special: Collection[str] = (),
    answer: Tag | None = None,
) -> Tag | None:
    """Return xgrammar's structural tag for a tool choice; None if nothing needs to be
    forced.

    choice: "none", "auto", "required", {"type": "function", "function": {"name": …}},
        or {"type": "allowed_tools", …},
        as OpenAI's `tool_choice`. "auto" constrains the calls that the model begins, if
            a function is strict or one
        of them is not allowed.
    parallel: whether more than one call may follow; a named function is called once.
    lazy: whether "auto" constrains the calls that the model begins in any case: to the
        names, and to JSON.
    reasoning: tags of reasoning that may come first; `in_reasoning` if the prompt has
        opened it.
    special: the tokenizer's special tokens; a tag among them is forced as a token, not
        as text.
    answer: the form of an answer without a call; with "auto", the output is calls or
        such an answer.

    The parser of the same format reads the calls of every text that the grammar
    accepts. Raises InvalidRequest for a choice that the functions cannot serve.
    """
    mode, allowed = allowed_tools(choice, functions)
    is_free = len(allowed) == len(functions) and not any(
        function.strict for function in functions
    )
    if mode == "none":
        return None
    if mode == "auto" and is_free and answer is None:
        if not lazy:
            return None
        allowed = [replace(function, strict=False) for function in allowed]
    if mode == "auto" and answer is not None:
        forced = format.forced(allowed, parallel=parallel, special=special)
        calls: Tag = {"type": "or", "elements": [forced, answer]}
    elif mode == "auto":
        calls = format.allowed(allowed, parallel=parallel, special=special)
    else:
        name = _name(mode)
        chosen = [function for function in allowed if name in {None, function.name}]
        if not chosen:
            known = ", ".join(function.name for function in functions) or "none"
            raise InvalidRequest(
                f"cannot force a tool call: no such tool among {known}. Name one of "
                "them in tool_choice"
            )
        calls = format.forced(
            chosen, parallel=parallel and name is None, special=special
        )
    return {
        "type": "structural_tag",
        "format": _after_reasoning(calls, reasoning, in_reasoning, special),
    }


def allowed_tools(
    choice: object, functions: Sequence[Function]
) -> tuple[object, Sequence[Function]]:
    """Return a choice in which all functions are allowed, and the functions that the
    given one allows.

    Raises InvalidRequest for {"type": "allowed_tools", "allowed_tools": {"mode": …,
    "tools": […]}} that is not so, or that names an unknown function.
    """
    if not isinstance(choice, Mapping) or choice.get("type") != "allowed_tools":
        return choice, functions
    value = choice.get("allowed_tools")
    mode, tools = (
        (value.get("mode"), value.get("tools"))
        if isinstance(value, Mapping)
        else (None, None)
    )
    if mode not in ("auto", "required") or not isinstance(tools, list) or not tools:
        raise InvalidRequest(
            "cannot read tool_choice: allowed_tools needs a mode, 'auto' or "
            "'required', and a list of tools, "
            f"not {value!r}"
        )
    names = [_name(tool) for tool in tools]
    known = [function.name for function in functions]
    if unknown := [name for name in names if name not in known]:
        raise InvalidRequest(
            f"cannot allow the tool {unknown[0]!r}: 'tools' has "
            f"{', '.join(known) or 'none'}. Name some of them"
        )
    return mode, [function for function in functions if function.name in names]


def _name(choice: object) -> str | None:
    """Return the name of the function that a choice forces; None for any."""
    if choice == "required":
        return None
    function = (
        choice.get("function")
        if isinstance(choice, Mapping) and choice.get("type") == "function"
        else None
    )
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise InvalidRequest(
            "cannot read tool_choice: it is 'none', 'auto', 'required', "
            f'{{"type": "function", "function": {{"name": …}}}} or {{"type": '
            f'"allowed_tools", …}}, not {choice!r}'
        )
    return name


def _after_reasoning(
    calls: Tag, tags: ReasoningTags | None, in_reasoning: bool, special: Collection[str]
) -> Tag:
    if tags is None:
        return calls
    free: Tag = {"type": "any_text", "excludes": [tags.close]}
    if tags.close in special:
        free = {"type": "any_tokens", "exclude_tokens": list(special)}
    reasoning = grammar.tag(
        "" if in_reasoning else tags.open, free, tags.close, special
    )
    spaced = grammar.sequence(reasoning, {"type": "regex", "pattern": r"\n{0,2}"})
    before: Tag = spaced if in_reasoning else {"type": "optional", "content": spaced}
    return grammar.sequence(before, calls)
