"""Adds the compiled libraries of a platform to the wheel (recipes/wheels.py)."""

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class LibraryHook(BuildHookInterface):
    """Tags the wheel for the platform that FOREWORD_PLATFORM names, with the libraries
    in the folder FOREWORD_LIBRARIES; without these variables it is for any.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the libraries and the tag."""
        platform = os.environ.get("FOREWORD_PLATFORM")
        if not platform or version == "editable":
            return
        libraries = os.environ["FOREWORD_LIBRARIES"]
        build_data["force_include"][libraries] = "foreword/native/built"
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False
