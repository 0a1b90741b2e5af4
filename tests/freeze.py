"""Compare the tokens and the public names of Foreword before and after a change that
must not change them.

    make freeze     before the change, on the same machine
    make frozen     after it; names every difference, and exits with 1 where there is one

What is recorded stands in the modules of `frozen`: tokens by method and rule, tokens by
kind of target, and public names. `python tests/freeze.py check methods names` compares some of them.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import folders

FILE = Path(__file__).parents[1] / ".frozen.json"
PARTS = ("names", "methods", "targets")
"""Modules of `frozen`; each has a function `record`."""
LONGEST = 300
"""Characters of a value that a difference shows."""


def recorded(wanted: list[str]) -> dict[str, object]:
    """Return the records of the parts; of all parts if none is named."""
    with tempfile.TemporaryDirectory() as folder:
        folders.common.append(Path(folder))
        names = wanted or PARTS
        return {name: import_module(f"frozen.{name}").record() for name in names}


def excerpt(value: object) -> str:
    """Return a value as text that fits on a few lines."""
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def differences(old: object, new: object, path: str = "") -> Iterator[str]:
    """Yield a line for everything that is not equal."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from differences(
                old.get(key, "absent"), new.get(key, "absent"), f"{path}/{key}"
            )
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, pair in enumerate(zip(old, new, strict=True)):
            yield from differences(*pair, f"{path}/{index}")
    elif old != new:
        yield f"{path[1:]}: {excerpt(old)} -> {excerpt(new)}"


def write(wanted: list[str]) -> int:
    """Record the parts and keep the others as they were."""
    before = json.loads(FILE.read_text(encoding="utf-8")) if wanted else {}
    FILE.write_text(
        json.dumps(before | recorded(wanted), indent=1) + "\n", encoding="utf-8"
    )
    return 0


def check(wanted: list[str]) -> int:
    """Print what differs from the records."""
    if not FILE.exists():
        sys.stderr.write(
            f"cannot compare: there is no {FILE.name}. Run `make freeze` before the "
            "change\n"
        )
        return 2
    before = json.loads(FILE.read_text(encoding="utf-8"))
    now = recorded(wanted)
    changed = list(differences({name: before.get(name, "absent") for name in now}, now))
    sys.stdout.write("\n".join(changed or ["nothing changed"]) + "\n")
    return 1 if changed else 0


def main(action: str = "check", *wanted: str) -> int:
    return {"write": write, "check": check}[action](list(wanted))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
