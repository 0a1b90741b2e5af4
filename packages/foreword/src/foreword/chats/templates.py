"""Capabilities of a chat template, read from its source, and the messages in the forms
that it may ask for.
"""

import json
import re
import string
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from foreword.chats.cut_calls import CutArguments
from foreword.chats.messages import Message, Turn, system_first
from foreword.errors import InvalidRequest

ROLES = ("system", "user", "assistant")
"""Roles that every template supports, even if it does not name them."""
API_ROLES = (*ROLES, "developer", "tool")
"""Roles of OpenAI's chat API; rendering finds a place for them in every template."""
MARK = "foreword-mark"
"""Message content that marks whether a template renders a message."""
SHORT_IDS = re.compile(r"length\s*!=\s*9\b")
"""Mistral's templates refuse ids of calls unless they are 9 letters and digits."""
Options = Mapping[str, object]
"""Options of a chat template by name, such as {"enable_thinking": False}."""
OURS = {
    "chat_template",
    "conversation",
    "max_length",
    "messages",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "sanitize_control_tokens",
    "tokenize",
    "tokenizer_kwargs",
    "tools",
    "truncation",
}
"""Options that would change what rendering is, not what it shows."""


def template_of(template: object, *, tools: bool) -> str:
    """Return the source of a tokenizer's chat template: of several, the one that would
    render the chat.
    """
    if not isinstance(template, Mapping):
        return str(template)
    if tools and "tool_use" in template:
        return str(template.get("tool_use"))
    return str(template.get("default", ""))


def knows_tools(template: str | None) -> bool:
    """Return whether a chat template renders tools."""
    return template is not None and re.search(r"\btools\b", template) is not None


def check_options(options: Options | None) -> dict[str, Any]:
    """Return template options with their defaults, or raise InvalidRequest."""
    if not isinstance(options, Mapping | None) or not all(
        isinstance(name, str) for name in options or ()
    ):
        raise InvalidRequest(
            "cannot read template options: they are a mapping of names to values, not "
            f"{options!r}"
        )
    wrong = sorted(OURS & {*(options or ())})
    if wrong:
        raise InvalidRequest(
            f"cannot give the chat template the option {wrong[0]!r}: it is set by "
            "Foreword. Leave it out"
        )
    values = dict(options or {})
    return {"add_generation_prompt": not values.get("continue_final_message"), **values}


def readings(turns: Sequence[Turn], template: str) -> Iterator[list[Turn]]:
    """Yield a conversation in the forms that a template may ask for, the plainest
    first; for none is text changed.

    Roles and ids are as the template names them. Then come: all system messages joined
    at the beginning; arguments of calls as JSON text; both; messages of one call each.
    """
    turns = [_known_role(turn, template) for turn in turns]
    if SHORT_IDS.search(template):
        turns = [_short_ids(turn) for turn in turns]
    seen: list[list[Turn]] = []
    joined = system_first(turns)
    for form in (turns, joined, _texts(turns), _texts(joined), _singly(joined)):
        if form not in seen:
            seen.append(form)
            yield form


def named_roles(template: str) -> set[str]:
    """Return the roles that a template's source compares with, and the roles that every
    template supports.
    """
    named = re.findall(
        r"""role(?:['"]\]|\b)\s*(?:==|!=|in)\s*[\[(]?\s*((?:['"]\w+['"][\s,]*)+)""",
        template,
    )
    return {*ROLES, *(role for some in named for role in re.findall(r"\w+", some))}


def check_known_roles(messages: Sequence[Message], template: str) -> None:
    """Raise InvalidRequest for a role of neither OpenAI's chat API nor the template."""
    known = {*API_ROLES, *named_roles(template)}
    for number, message in enumerate(messages, 1):
        role = message.get("role")
        if not isinstance(role, str) or role not in known:
            raise InvalidRequest(
                f"cannot read message {number}: its role {role!r} is unknown. Use one "
                f"of {', '.join(sorted(known))}"
            )


def check_roles(
    turns: Sequence[Turn], template: str, render: Callable[..., object]
) -> None:
    """Check the roles against the chat template. Raises InvalidRequest for a role that
    it leaves out.

    `template` is its source, `render` is `apply_chat_template`. Warns about a role that
    it renders but does not name in a comparison.
    """
    role_names = named_roles(template)
    for role in sorted({turn["role"] for turn in turns} - role_names):
        names = ", ".join(sorted(role_names))
        probe = [{"role": "user", "content": "x"}, {"role": role, "content": MARK}]
        try:
            rendered = MARK in str(render(probe, tokenize=False))
        except Exception:  # noqa: BLE001 - the template raises again when the chat is rendered
            continue
        if not rendered:
            raise InvalidRequest(
                f"the chat template leaves out messages of the role {role!r}; it knows "
                f"{names}"
            )
        warnings.warn(
            f"the chat template does not name the role {role!r}; it knows {names}",
            stacklevel=4,
        )


def in_parts(turns: Sequence[Turn], render: Callable[..., object]) -> list[Turn]:
    """Return the turns as a template takes them: it may leave out a text that is not in
    a list of parts.

    `render` is `apply_chat_template`.
    """
    try:
        if MARK in str(render([{"role": "user", "content": MARK}], tokenize=False)):
            return [*turns]
    except Exception:  # noqa: BLE001 - a template can raise anything
        return [*turns]
    texts = ({"content": [{"type": "text", "text": turn["content"]}]} for turn in turns)
    return [
        turn if isinstance(turn["content"], list) else turn | text
        for turn, text in zip(turns, texts, strict=True)
    ]


def _known_role(turn: Turn, template: str) -> Turn:
    """Return the turn; a developer's is the system's if the template has none."""
    if turn["role"] == "developer" and "developer" not in named_roles(template):
        return {**turn, "role": "system"}
    return turn


def _texts(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns with the arguments of calls as JSON text."""

    def text(call: Mapping[str, Any]) -> dict[str, object]:
        function = call["function"]
        arguments = function["arguments"]
        if isinstance(arguments, CutArguments):
            shown = arguments.text
        else:
            shown = json.dumps(arguments, ensure_ascii=False)
        return {**call, "function": {**function, "arguments": shown}}

    written: list[Turn] = []
    for turn in turns:
        if turn.get("tool_calls"):
            turn = {**turn, "tool_calls": [text(call) for call in turn["tool_calls"]]}
        written.append(turn)
    return written


def _singly(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns with one call in each message, followed by its result."""
    results = {
        turn["tool_call_id"]: turn
        for turn in turns
        if turn["role"] == "tool" and "tool_call_id" in turn
    }
    single: list[Turn] = []
    for turn in turns:
        calls = turn.get("tool_calls") or []
        if len(calls) < 2 and not any(turn is done for done in single):
            single.append(turn)
        for call in calls if len(calls) > 1 else ():
            single.append(
                {
                    **turn,
                    "content": "" if call is not calls[0] else turn["content"],
                    "tool_calls": [call],
                }
            )
            if call.get("id") in results:
                single.append(results[call["id"]])
    return single


def _short_ids(turn: Turn) -> Turn:
    """Return the turn with call ids of 9 letters and digits, equal if they were."""
    if turn.get("tool_calls"):
        calls = [{**call, "id": _short(call.get("id"))} for call in turn["tool_calls"]]
        return {**turn, "tool_calls": calls}
    return (
        {**turn, "tool_call_id": _short(turn["tool_call_id"])}
        if "tool_call_id" in turn
        else turn
    )


def _short(id: object) -> str:
    text = str(id)
    if len(text) == 9 and text.isascii() and text.isalnum():
        return text
    letters = string.ascii_letters + string.digits
    digest = blake2b(text.encode(), digest_size=9).digest()
    return "".join(letters[byte % len(letters)] for byte in digest)
