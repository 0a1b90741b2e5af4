"""Links in the API reference: pages that docstrings name, as `docs/budgets.md`."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

PAGE = re.compile(r"docs/\s*((?:[\w-]+/\s*)*[\w-]+)\.md")


class PageLinks(Extension):
    """Turn the path of a page into a link from `docs/api/`."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of an object that was loaded."""
        if obj.docstring is not None:
            obj.docstring.value = PAGE.sub(_link, obj.docstring.value)


def _link(found: re.Match[str]) -> str:
    name = "".join(found[1].split())
    return f"[{name.rsplit('/', 1)[-1]}](../{name}.md)"
