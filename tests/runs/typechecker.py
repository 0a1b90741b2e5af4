"""The type checker of tests, by a name without commas, as the option needs it."""

from collections.abc import Callable
from functools import cache, wraps

from beartype import BeartypeConf, beartype

strict = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""An int is welcome where a float is asked for."""


def checked(function: Callable[..., object]) -> Callable[..., object]:
    """Check a function's calls; to build the check takes time, so its first call does."""
    check = cache(lambda: strict(function))
    return wraps(function)(lambda *args, **kwargs: check()(*args, **kwargs))
