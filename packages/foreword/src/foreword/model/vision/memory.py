"""Memory of an executor for the images of open sequences."""

from __future__ import annotations

from typing import Any

from foreword.model.kv.memories import SequenceMemory
from foreword.model.kv.pages import PagePool
from foreword.model.kv.reads import Reach, Read
from foreword.model.vision.rows import ImageRows


class ImageMemory(SequenceMemory):
    """The images of open sequences; subclasses put them into forwards."""

    takes = (ImageRows,)

    def __init__(self) -> None:
        self.images: dict[int, ImageRows] = {}

    def give(self, executor: Any, id: int, material: ImageRows) -> None:
        self.images[id] = material

    def close(self, pool: PagePool | None, id: int) -> None:
        self.images.pop(id, None)

    def reach(self, id: int) -> Reach | None:
        images = self.images.get(id)
        return None if images is None else images.reach

    def keys(self, read: Read) -> list[int] | None:
        images = self.images.get(read.id)
        return None if images is None else images.keys_of(read.start, read.tokens)
