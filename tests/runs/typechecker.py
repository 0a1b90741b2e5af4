"""The type checker of tests, by a name without commas, as the option needs it."""

from collections.abc import Callable
from functools import cache
from typing import Any

from beartype import BeartypeConf, beartype

strict = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""An int is welcome where a float is asked for."""


def checked(function: Callable[..., object]) -> Callable[..., object]:
    """Build a check at its first call: most functions are called by no checked test."""
    # jaxtyping calls twice: what is returned is checked once the parameters are
    returned = function.__annotations__.get("return", Any)
    if returned is not Any:
        function.__annotations__ = {"return": returned}
    check = cache(lambda: strict(function))
    return lambda *args, **kwargs: check()(*args, **kwargs)
