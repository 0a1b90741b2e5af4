"""Checks types and shapes at every call, as jaxtyping does, in one pass instead of two. Test code; knows none of ours.

jaxtyping checks the arguments, calls, and then checks the arguments once more with what came back, so that sizes named
in both must agree; it also binds the arguments to the signature first, all for fuller messages. Where a test calls
small functions a million times, that is a third of its time. One call of beartype's wrapper within one scope of names
sees the same, and a function that names no shape needs no scope. What one test calls again and again, as a layer does
its products, is checked at its first calls and now and then after them; `make test-all` checks it always.
"""

from collections.abc import Callable
from functools import partial, wraps
from types import FunctionType
from typing import Any, get_args

import jaxtyping
import jaxtyping._decorator
from jaxtyping import AbstractArray
from jaxtyping._decorator import _destring_annotation
from jaxtyping._storage import pop_shape_memo, push_shape_memo

MANY, EACH = 100, 10
"""So many calls of a function that names shapes are checked in each test, and then one of so many."""
_original = jaxtyping.jaxtyped


class Now:
    """The test that runs, as a number, and whether it checks every call."""

    test, every = 0, False


def jaxtyped(made: Any = None, *, typechecker: Callable) -> Any:
    """Stands for jaxtyping's decorator; classes, properties and the like come back here function by function."""
    if made is None:
        return partial(jaxtyped, typechecker=typechecker)
    if not isinstance(made, FunctionType) or hasattr(made, "__no_type_check__"):
        return _original(made, typechecker=typechecker)
    if made.__globals__ is globals():  # the __init__ of a class that was its own function before
        return made
    written = made.__annotations__
    hints = {name: _destring_annotation(hint, made.__globals__) for name, hint in written.items()}
    made.__annotations__ = hints
    checked = typechecker(made)
    made.__annotations__ = written
    return (_scoped if any(map(_shaped, hints.values())) else _simple)(made, checked)


def _shaped(hint: Any) -> bool:
    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or any(map(_shaped, get_args(hint)))


def _simple(made: Callable, checked: Callable) -> Callable:
    config = jaxtyping.config

    @wraps(made)
    def called(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return (made if config.jaxtyping_disable else checked)(*args, **kwargs)

    return called


def _scoped(made: Callable, checked: Callable) -> Callable:
    config, test, calls = jaxtyping.config, 0, 0

    @wraps(made)
    def called(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        nonlocal test, calls
        if test != Now.test:
            test, calls = Now.test, 0
        calls += 1
        if config.jaxtyping_disable or (calls > MANY and calls % EACH and not Now.every):
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
