"""Build the site into build/site: `python -m website`. Warnings are errors."""

from __future__ import annotations

import sys

from website import commands, http_api, staging
from website.build import build


def main() -> int:
    """Stage the pages, add those that the code writes, and build the site."""
    staging.stage()
    commands.write(staging.STAGED / "api")
    http_api.write(staging.STAGED / "api" / "http.md")
    return build()


if __name__ == "__main__":
    sys.exit(main())
