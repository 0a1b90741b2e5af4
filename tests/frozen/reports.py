"""The JSON of `certify` and `doctor`: keys, types, verdicts, no times."""

import json
import sys
from collections.abc import Collection

from foreword import bundled
from frozen import commands

REPORTS = {
    "certify": "certify --quick --method lm --method ngram --json -",
    "doctor": "doctor DRAFT --prompts 2 --max-tokens 16 --json",
}
VERDICTS = {"certify": ("name", "status", "bound"), "doctor": ("healthy",)}
"""Keys whose values are recorded."""


def shape(value: object, exact: Collection[str]) -> object:
    """Return JSON with types in place of values, but for `exact`; lists by shape."""
    if isinstance(value, dict):
        return {
            key: inner if key in exact else shape(inner, exact)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        shapes = {json.dumps(shape(inner, exact), sort_keys=True) for inner in value}
        return [json.loads(text) for text in sorted(shapes)]
    return "text" if isinstance(value, str) else "number, or none"


def record() -> dict[str, object]:
    """Return the shape of each report."""
    paths = {"DRAFT": bundled.draft()}
    shapes: dict[str, object] = {}
    for name, command in REPORTS.items():
        sys.stderr.write(f"{name}\n")
        words = [str(paths.get(word, word)) for word in command.split()]
        output = commands.process(*words).stdout
        shapes[name] = shape(json.loads(output), VERDICTS.get(name, ()))
    return shapes
