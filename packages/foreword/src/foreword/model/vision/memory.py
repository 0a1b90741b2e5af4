"""Memory of an executor for the images of open sequences."""

from foreword.model.kv.memories import SequenceMemory
from foreword.model.kv.reads import Reach, Read
from foreword.model.vision.rows import ImageRows


class ImageMemory(SequenceMemory):
    """The images of open sequences; subclasses put them into forwards."""

    takes = (ImageRows,)

    def images(self, id: int) -> ImageRows | None:
        """Return the images of a sequence; None if it has none."""
        return self.sequences.get(id)

    def reach(self, id: int) -> Reach | None:
        images = self.images(id)
        return None if images is None else images.reach

    def keys(self, read: Read) -> list[int] | None:
        images = self.images(read.id)
        return None if images is None else images.keys_of(read.start, read.tokens)
