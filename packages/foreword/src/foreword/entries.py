"""`Registry`: names whose code is imported on first use.

Other packages add names through entry points, and a process adds its own by assignment:
`METHODS["echo"] = EchoDrafter`.
"""

from collections.abc import Iterator, MutableMapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from foreword.errors import (
    InvalidRequest,
    UnknownMethod,
    named,
)

Entry = TypeVar("Entry")
"""What a name stands for."""


class Registry(MutableMapping[str, Entry], Generic[Entry]):
    """Mapping from a name to a class, rule or format, imported on first use.

    Names of Foreword come first, then names that the process added, then names of other
    packages. A package cannot replace a name.
    """

    def __init__(self, kind: str, group: str, base: str, homes: dict[str, str]) -> None:
        """`kind`: the noun of error messages. `group`: the entry point group of other
        packages. `base`: "module:class" of what a name may stand for, as class or as
        instance. `homes`: name -> "module:attribute".
        """
        self.kind = kind
        self.group = group
        self._base = base
        self._homes = homes
        self._loaded: dict[str, Entry] = {}

    def __getitem__(self, name: str) -> Entry:
        if name in self._loaded:
            return self._loaded[name]
        if name in self._homes:
            self._loaded[name] = imported(self._homes[name])
            return self._loaded[name]
        return self._from_package(name, self.installed()[name])

    def __setitem__(self, name: str, entry: Entry) -> None:
        self._loaded[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        names = dict.fromkeys((*self._homes, *self._loaded))
        return iter((*names, *sorted(self.installed())))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self._homes or name in self._loaded or name in self.installed()

    @property
    def own(self) -> tuple[str, ...]:
        """The names of Foreword's own entries."""
        return tuple(self._homes)

    def installed(self) -> dict[str, EntryPoint]:
        """Return other packages' entries by name; of two with one name, the first."""
        points = reversed(tuple(entry_points(group=self.group)))
        known = {*self._homes, *self._loaded}
        return {one.name: one for one in points if one.name not in known}

    def check(self, name: object, *more: str) -> None:
        """Raise UnknownMethod, with the nearest names, unless this is a name or one of
        `more`; InvalidRequest if it is not a string or is blank.
        """
        # Names of other packages are listed only for an error: it takes milliseconds.
        if isinstance(name, str) and (name in more or name in self):
            return
        names = (*self, *more)
        choices = f"Choose one of {', '.join(names)}"
        if not isinstance(name, str) or not name.strip():
            raise InvalidRequest(
                f"cannot use {self.kind} {name!r}: it is not a name. {choices}"
            )
        near = get_close_matches(name, names, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownMethod(
            f"cannot use {self.kind} {name!r}: no such {self.kind} exists."
            f"{hint} {choices}"
        )

    def find(self, name: object) -> Entry:
        """Return what the name stands for. Raises as `check` does."""
        self.check(name)
        return self[str(name)]

    def _from_package(self, name: str, entry: EntryPoint) -> Entry:
        base = imported(self._base)
        plugin: Any = None
        try:
            plugin = entry.load()
            reason = f"{entry.value} is not a {base.__name__}"
        except Exception as error:  # noqa: BLE001 - code of another package
            reason = named(error)
        if _is(plugin, base):
            return plugin
        raise InvalidRequest(
            f"cannot use the {self.kind} {name!r} of {package(entry)}: {reason}. "
            "Update or remove that package"
        )


def package(entry: EntryPoint) -> str:
    """Return the package of an entry point, in words."""
    return f"the package {entry.dist.name}" if entry.dist else "an unknown package"


@cache
def imported(home: str) -> Any:
    """Return what "module:attribute" names."""
    module, _, attribute = home.partition(":")
    return getattr(import_module(module), attribute)


def _is(entry: object, base: type) -> bool:
    """Return whether this is an instance or a subclass of the class."""
    return isinstance(entry, base) or (
        isinstance(entry, type) and issubclass(entry, base)
    )
