"""Provides texts for clients without the folders of this machine."""

from __future__ import annotations

import re
import sys
from pathlib import Path, PurePath

import foreword
from foreword.files import cache

REST = r"[^\s'\"`,;)\]]*"
"""What follows a folder in a path, up to a mark that ends it in a sentence."""


class PrivatePaths:
    """The folders that answers must not name: a client has no use for them, and should
    not learn them.
    """

    def __init__(self, model: str) -> None:
        """`model`: name of the target, which may be its folder."""
        near = [
            Path.home(),
            Path.cwd(),
            cache(),
            Path(sys.prefix),
            Path(foreword.__file__).parent,
        ]
        if PurePath(model).is_absolute():
            near += [PurePath(model).parent]  # drafts lie beside it
        folders = {str(folder) for folder in near} - {"/", "."}
        if len(PurePath(model).parts) > 2 or PurePath(model).is_absolute():
            folders.add(model)
        longest_first = sorted(folders, key=len, reverse=True)
        self._paths = re.compile(
            rf"(?:{'|'.join(map(re.escape, longest_first))})(?![\w.-]){REST}"
        )

    def hidden(self, text: str) -> str:
        """Return a text with the name of a file or folder in place of its path."""
        return self._paths.sub(lambda found: _name(found[0]), text)


def _name(path: str) -> str:
    end = path[len(path.rstrip(".:")) :]
    return PurePath(path.rstrip(".:")).name + end
