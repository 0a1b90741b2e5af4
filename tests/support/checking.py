"""Checks types and shapes at every call, as jaxtyping does, in one pass instead of two. Test code; knows none of ours.

jaxtyping checks the arguments, calls, and then checks the arguments once more with what came back, so that sizes named
in both must agree; it also binds the arguments to the signature first, all for fuller messages. Where a test calls a
small function a hundred thousand times, that is a third of its time. One call of beartype's wrapper within one scope of
names sees the same.
"""

from collections.abc import Callable
from functools import partial, wraps
from types import FunctionType
from typing import Any

import jaxtyping
import jaxtyping._decorator
from jaxtyping._decorator import _destring_annotation
from jaxtyping._storage import pop_shape_memo, push_shape_memo

_original = jaxtyping.jaxtyped


def jaxtyped(made: Any = None, *, typechecker: Callable) -> Any:
    """Stands for jaxtyping's decorator; classes, properties and the like come back here function by function."""
    if made is None:
        return partial(jaxtyped, typechecker=typechecker)
    if not isinstance(made, FunctionType) or hasattr(made, "__no_type_check__"):
        return _original(made, typechecker=typechecker)
    if made.__globals__ is globals():  # the __init__ of a class that was its own function before
        return made
    hints, config = made.__annotations__, jaxtyping.config
    made.__annotations__ = {name: _destring_annotation(hint, made.__globals__) for name, hint in hints.items()}
    checked = typechecker(made)
    made.__annotations__ = hints

    @wraps(made)
    def called(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if config.jaxtyping_disable:
            return made(*args, **kwargs)
        push_shape_memo({})
        try:
            return checked(*args, **kwargs)
        finally:
            pop_shape_memo()

    return called


def install() -> None:
    """Before anything of ours is imported."""
    jaxtyping.jaxtyped = jaxtyping._decorator.jaxtyped = jaxtyped
