"""The type checker of tests, by a name without commas, as the option needs it."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""An int is welcome where a float is asked for."""
