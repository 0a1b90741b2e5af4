"""Tools: the functions that a model may call."""

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from foreword.chats.prompts import check_texts, is_list
from foreword.errors import InvalidRequest

NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
"""Names of functions: OpenAI's, and dots."""

Tool = Mapping[str, object]
"""{"type": "function", "function": {"name": …, "description": …, "parameters": …}}, as
OpenAI's chat API has it.
"""


@dataclass(frozen=True, slots=True)
class Function:
    """A function that a model may call.

    parameters: JSON schema of its arguments, an object. strict: True if every call must
        follow it, None if only a
        forced one must, False if none must.
    tool: the tool as it was given, for the chat template; `strict` is not for the
        model.
    """

    name: str
    parameters: Mapping[str, object]
    description: str = ""
    strict: bool | None = None
    tool: Mapping[str, object] = field(default_factory=dict, repr=False)


def functions_of(tools: object) -> tuple[Function, ...]:
    """Return the functions of a list of tools, each as OpenAI's chat API has them; none
    for None.

    Raises InvalidRequest for a tool that is not a function, a name that is used twice,
    or a schema that does not describe an object.
    """
    if tools is None:
        return ()
    if not is_list(tools):
        raise InvalidRequest(
            "cannot read tools: they are a list of functions, not "
            f"{reprlib.repr(tools)}"
        )
    functions: dict[str, Function] = {}
    for number, tool in enumerate(tools, 1):
        function = _function(number, tool)
        if function.name in functions:
            raise InvalidRequest(
                f"cannot read tool {number}: the name {function.name!r} is taken. "
                "Rename one of them"
            )
        functions[function.name] = function
    return tuple(functions.values())


def _function(number: int, tool: object) -> Function:
    about = None
    if isinstance(tool, Mapping) and tool.get("type") == "function":
        about = tool.get("function")
    if not isinstance(tool, Mapping) or not isinstance(about, Mapping):
        form = '{"type": "function", "function": {"name": …, "parameters": {…}}}'
        raise InvalidRequest(
            f"cannot read tool {number}: a tool is {form}, not {reprlib.repr(tool)}"
        )
    check_texts("a tool", tool)
    name, parameters = about.get("name"), about.get("parameters")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidRequest(
            f"cannot read tool {number}: name is 1 to 64 letters, digits, '_', '.' or "
            f"'-', not {reprlib.repr(name)}"
        )
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    if (
        not isinstance(parameters, Mapping)
        or parameters.get("type", "object") != "object"
    ):
        raise InvalidRequest(
            f"cannot read tool {name!r}: parameters must be the JSON schema of an "
            f"object, not {reprlib.repr(parameters)}"
        )
    description, strict = about.get("description"), about.get("strict")
    if not isinstance(strict, bool | None):
        raise InvalidRequest(
            f"cannot read tool {name!r}: strict must be true or false, not "
            f"{reprlib.repr(strict)}"
        )
    text = description if isinstance(description, str) else ""
    function = {key: value for key, value in about.items() if key != "strict"}
    shown = {**tool, "function": function}
    return Function(name, parameters, text, strict, shown)
