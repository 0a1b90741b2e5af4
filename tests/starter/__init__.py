"""Two small models for tests: the family that shipped first, a Llama of 16M parameters
and its draft of 1.5M.

So tests stay quick while the family that ships grows. Licence and attribution are those
of packages/foreword-models.
"""

from pathlib import Path

_HERE = Path(__file__).parent


def target() -> Path:
    return _HERE / "target"


def draft() -> Path:
    return _HERE / "draft"
