"""Two small models for tests, those that shipped first: 16M parameters and a draft of
1.5M. Licence and attribution: packages/foreword-models.
"""

from pathlib import Path

_HERE = Path(__file__).parent


def target() -> Path:
    return _HERE / "target"


def draft() -> Path:
    return _HERE / "draft"
