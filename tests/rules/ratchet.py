"""Limits of a file and of a round, the numbers of what exceeds them still, and the sizes
of the whole: these may only fall.

    python tests/rules/ratchet.py    write the numbers of today where they are lower

A file that is moved takes its entry along by hand.
"""

import json
import sys
from pathlib import Path

import measured
import whole
from sources import (
    FILES,
    code,
    dense_comprehensions,
    function_lines,
    functions,
    lines,
    pronouns,
    where,
    wide_assignments,
    width,
)

FILE = Path(__file__).with_name("ratchet.json")
LIMITS = {
    "lines": 400,
    "width": 42.0,
    "assignments": 0,
    "comprehensions": 0,
    "pronouns": 0,
}
"""Lines of a file, mean characters of a code line, statements, names: at most."""
MARGIN = 1.05
"""How much more a measured path may run: what a budget decides depends on time."""
FEW = 30
"""Lines of code. The mean width of a smaller file says little."""
FUNCTION = 50
"""Lines of a function, without its docstring."""

Numbers = dict[str, dict[str, float]]


def exceeding(path: Path) -> dict[str, float]:
    """Return what of a file is above the limits: by kind, or by name of a function."""
    found: dict[str, float] = {
        "lines": len(lines(path)),
        "width": round(width(path), 1) if len(code(path)) >= FEW else 0.0,
        "assignments": len(wide_assignments(path)),
        "comprehensions": len(dense_comprehensions(path)),
        "pronouns": len(pronouns(path)),
    }
    above = {name: number for name, number in found.items() if number > LIMITS[name]}
    for function in functions(path):
        if function_lines(function) > FUNCTION:
            above[f"{function.name}()"] = function_lines(function)
    return above


def files() -> Numbers:
    """Return the files that exceed a limit."""
    found = {where(path): exceeding(path) for path in FILES}
    return {name: numbers for name, numbers in found.items() if numbers}


def numbers() -> dict[str, Numbers]:
    """Return all numbers of today."""
    runs = measured.measure()
    sizes = whole.sizes() | runs["whole"]
    return {"files": files(), "paths": runs["paths"], "whole": sizes}


def recorded() -> dict[str, Numbers]:
    """Return the numbers that stand in the file."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def worse(now: Numbers, before: Numbers) -> list[str]:
    """Return a line for every number that is larger than it was."""
    return [
        f"{name}: {kind} is {number:g}, and may be {before.get(name, {}).get(kind, 0):g}"
        for name, numbers in sorted(now.items())
        for kind, number in numbers.items()
        if number > before.get(name, {}).get(kind, 0)
    ]


def longer(now: Numbers, before: Numbers) -> list[str]:
    """Return a line for every path that runs more code than it did, beyond MARGIN."""
    allowed = {
        name: {kind: number * MARGIN for kind, number in numbers.items()}
        for name, numbers in before.items()
    }
    return worse(now, allowed)


def lower(now: Numbers, before: Numbers) -> Numbers:
    """Return the numbers of now; the earlier one where it is lower."""
    found = {
        name: {
            kind: min(number, before[name][kind])
            for kind, number in numbers.items()
            if kind in before.get(name, {})
        }
        for name, numbers in sorted(now.items())
    }
    return {name: numbers for name, numbers in found.items() if numbers}


def main() -> int:
    before = recorded()
    now = numbers()
    refused = [line for part in now for line in worse(now[part], before[part])]
    kept = {part: lower(now[part], before[part]) for part in now}
    FILE.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write("".join(f"{line}\n" for line in refused))
    total = [line for path in FILES for line in code(path)]
    mean = sum(map(len, total)) / len(total)
    sys.stdout.write(
        f"{len(FILES)} files, {len(total)} lines of code, mean width {mean:.1f}\n"
    )
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
