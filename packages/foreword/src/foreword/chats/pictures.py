"""Pictures of a prompt that are decoded when their pixels are needed. Needs pillow."""

from collections.abc import Callable
from typing import Any

import PIL.Image

from foreword.errors import InvalidRequest


class UnreadPicture(PIL.Image.Image):
    """An RGB picture that, as any picture of PIL, loads itself at the first use of its
    pixels.

    Until then its size is that of its header, before it is turned upright.
    """

    place = ""
    """Where a request holds it, for errors."""

    def __init__(
        self, size: tuple[int, int], decode: Callable[[], PIL.Image.Image]
    ) -> None:
        super().__init__()
        self._size = size
        self._mode = "RGB"
        self._decode = decode

    def decoded(self) -> PIL.Image.Image:
        """Return the picture, and keep none of it. InvalidRequest if it is damaged."""
        try:
            return self._decode()
        except InvalidRequest as error:
            if not self.place:
                raise
            raise InvalidRequest(f"cannot render {self.place}: {error}") from error

    def load(self) -> Any:
        """Decode the picture and keep it, for code that uses its pixels."""
        if self._im is None:
            picture = self.decoded()
            self.im, self._size = picture.im, picture.size
        return super().load()
