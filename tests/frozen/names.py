"""Everything that a user can import from `foreword`, with signatures."""

import inspect
import re
from collections.abc import Iterator

import foreword


def members(value: object) -> Iterator[tuple[str, str]]:
    """Yield the signature of a function, or of the public members of a class."""
    if not inspect.isclass(value):
        yield "", str(inspect.signature(value)) if callable(value) else repr(value)
        return
    for name in dir(value):
        if name.startswith("_") and name != "__init__":
            continue
        member = inspect.getattr_static(value, name)
        is_bound = isinstance(member, classmethod | staticmethod)
        called = member.__func__ if is_bound else member
        yield (
            name,
            str(inspect.signature(called))
            if inspect.isfunction(called)
            else type(member).__name__,
        )


def record() -> dict[str, object]:
    """Return the signature of each public name."""
    return {
        f"{name}.{member}".rstrip("."): re.sub(r" at 0x\w+", "", signature)
        for name in foreword.__all__
        for member, signature in members(getattr(foreword, name))
    }
