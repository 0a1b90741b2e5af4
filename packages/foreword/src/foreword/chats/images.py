"""Images of a chat: from a part of a message, in any form that clients send, to a
picture in memory.
"""

import base64
import binascii
import io
import re
import reprlib
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from foreword.errors import InvalidRequest, words
from foreword.wanted import check_wanted

KINDS = ("image", "image_url", "input_image")
"""Types of message parts that hold an image: of transformers and Anthropic, of OpenAI's
chats, of its responses.
"""
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
MOST_PIXELS = 64 * 2**20
"""Pixels of one image. A small file can hold an image that does not fit in memory."""
MOST_PROMPT_PIXELS = 2 * MOST_PIXELS
"""Pixels of all images of one prompt: 64 screenshots of 1920 × 1080, or 11 photos of 12
million pixels.
"""
LONGEST_SIDE = 2**15
"""Pixels. Longest side of an image."""
LONGEST_RATIO = 100
"""Longest side over shortest: scaling the shortest to a size scales the other by it."""
MOST_BYTES = 64 * 2**20
"""Bytes of an encoded image."""
MOST_IMAGES = 64
"""Images of one prompt."""
BASE64 = re.compile(r"[A-Za-z0-9+/_-]{64,}={0,2}")
"""Text that is base64, not a path."""


def is_image(part: object) -> bool:
    """Return whether a part of a message's content is an image."""
    return isinstance(part, Mapping) and part.get("type") in KINDS


def image_reader(*, files: bool = True) -> Callable[[object], Any]:
    """Return `image_of` for the images of one prompt.

    There may be `MOST_IMAGES`, with `MOST_PROMPT_PIXELS` in all; no pixel is decoded to
    find that out.
    """
    count = pixels = 0

    def image(part: object) -> Any:
        nonlocal count, pixels
        check_wanted()
        if count == MOST_IMAGES:
            raise InvalidRequest(
                f"cannot read more than {MOST_IMAGES} images in one prompt. Give fewer"
            )
        picture = image_of(part, files=files)
        count, pixels = count + 1, pixels + picture.width * picture.height
        if pixels > MOST_PROMPT_PIXELS:
            raise InvalidRequest(
                f"cannot read the images of this prompt: the first {count} have "
                f"{pixels} pixels, and the limit for all is {MOST_PROMPT_PIXELS}. Give "
                "fewer, or make them smaller"
            )
        return picture

    return image


def image_of(part: object, *, files: bool = True) -> Any:
    """Return the image of a part as an RGB picture of PIL, turned upright, that is
    decoded when it is used.

    `part` is a message part of one of `KINDS`, or the image itself: a path, a picture
    of PIL, bytes, base64 text or a data: URL. Without `files`, as for requests from
    elsewhere, paths are refused. Raises InvalidRequest for anything that is not an
    image, or is too large; a damaged image raises it when it is decoded.
    """
    source: Any = _source(part) if isinstance(part, Mapping) else part
    if hasattr(source, "convert") and hasattr(source, "size"):
        return _unread(source.size, partial(_upright, source))
    content = _content(source, files=files)
    return _unread(_opened(content).size, partial(_decoded, content))


def _source(part: Mapping[str, Any]) -> object:
    """Return the image of a message part as it is given: a path, a picture, bytes, or
    text in base64.
    """
    inner = part.get("source")  # Anthropic's
    if isinstance(inner, Mapping):
        kind = inner.get("type")
        if kind == "base64" and isinstance(inner.get("data"), str):
            return f"data:{inner.get('media_type', 'image')};base64,{inner['data']}"
        if kind == "url":
            return inner.get("url")
        raise InvalidRequest(
            f"cannot read an image: a source of type {kind!r} is not served. Give "
            "base64 data"
        )
    url = part.get("image_url")  # OpenAI's
    if url is not None:
        return url.get("url") if isinstance(url, Mapping) else url
    values = (part.get(name) for name in ("image", "url", "path", "base64"))
    image = next((value for value in values if value is not None), None)
    if image is None:
        raise InvalidRequest(
            'cannot read an image: its part holds none. Give {"type": "image", '
            '"image": a path, a picture or data}'
        )
    return image


def _content(source: object, *, files: bool) -> bytes:
    """Return the encoded bytes of an image."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, str) and re.match(r"https?:", source, re.IGNORECASE):
        raise InvalidRequest(
            f"cannot read the image {reprlib.repr(source)}: nothing is loaded from the "
            "network. Give the image as a data: URL"
        )
    if isinstance(source, str) and source[:5].lower() == "data:":
        head, comma, data = source.partition(",")
        if not comma or not head.endswith(";base64"):
            raise InvalidRequest(
                "cannot read an image: its data: URL is not in base64. Give "
                "data:image/png;base64,…"
            )
        return _bytes(data)
    if isinstance(source, str) and (not files or BASE64.fullmatch(source)):
        return _bytes(source)
    if not files or not isinstance(source, str | Path):
        raise InvalidRequest(
            f"cannot read an image: it is given as {reprlib.repr(source)}. Give a "
            "path, a picture of PIL, bytes or a data: URL"
        )
    path = Path(source).expanduser()
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InvalidRequest(_too_large(path.stat().st_size))
        return path.read_bytes()
    except (OSError, ValueError) as error:
        why = (
            "no such file exists"
            if isinstance(error, FileNotFoundError)
            else words(error)
        )
        raise InvalidRequest(
            f"cannot read the image {str(path)!r}: {why}. Give the path of an image"
        ) from error


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(
            "".join(text.split()).replace("-", "+").replace("_", "/"), validate=True
        )
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(
            f"cannot read an image: its data is not base64: {words(error)}. Give a "
            "data: URL, data:image/png;base64,…"
        ) from error


def _unread(size: tuple[int, int], decode: Callable[[], Any]) -> Any:
    """Return a picture of this size, if that is allowed, which `decode` loads later."""
    _check_size(size)
    _pictures()
    from foreword.chats.pictures import UnreadPicture

    return UnreadPicture(size, decode)


def _opened(content: bytes) -> Any:
    """Return the picture that these bytes encode; only its header is read."""
    pictures = _pictures()
    if len(content) > MOST_BYTES:
        raise InvalidRequest(_too_large(len(content)))
    try:
        with warnings.catch_warnings():
            # of sizes, which are checked here, and of odd metadata
            warnings.simplefilter("ignore")
            return pictures.open(io.BytesIO(content), formats=FORMATS)
    except pictures.DecompressionBombError as error:
        raise InvalidRequest(
            f"cannot read an image: {words(error)}. Give a smaller one"
        ) from error
    except pictures.UnidentifiedImageError as error:
        raise InvalidRequest(
            f"cannot read an image: its {len(content)} bytes are no image. Give one of "
            f"{', '.join(FORMATS)}"
        ) from error
    except Exception as error:
        raise _damaged(error) from error


def _decoded(content: bytes) -> Any:
    """Return the picture of these bytes, in RGB and turned as its metadata say."""
    picture = _opened(content)
    from PIL import ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            picture.load()
        # a copy would double the memory
        ImageOps.exif_transpose(picture, in_place=True)
        return picture if picture.mode == "RGB" else picture.convert("RGB")
    except Exception as error:
        raise _damaged(error) from error


def _upright(picture: Any) -> Any:
    """Return a copy of a picture in RGB, turned as its metadata say."""
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(picture).convert("RGB")
    except Exception as error:
        raise _damaged(error) from error


def _check_size(size: tuple[int, int]) -> None:
    """Raise InvalidRequest for an image whose pixels, or sides, are too many."""
    short, long = sorted(size)
    shown = f"cannot read an image: it has {size[0]} × {size[1]} pixels"
    if short * long > MOST_PIXELS:
        raise InvalidRequest(
            f"{shown}, and the limit is {MOST_PIXELS}. Make it smaller"
        )
    if long > LONGEST_SIDE:
        raise InvalidRequest(
            f"{shown}, and the limit of a side is {LONGEST_SIDE}. Make it smaller"
        )
    if long > LONGEST_RATIO * short:
        raise InvalidRequest(
            f"{shown}, and one side may be {LONGEST_RATIO} times as long as the other. "
            "Cut it into pieces"
        )


def _damaged(error: Exception) -> InvalidRequest:
    return InvalidRequest(
        f"cannot read an image: it is damaged: {words(error)}. Give the whole file"
    )


def _too_large(size: int) -> str:
    return (
        f"cannot read an image: it has {size} bytes, and the limit is {MOST_BYTES}. "
        "Make it smaller"
    )


def _pictures() -> Any:
    try:
        import PIL.Image
    except ModuleNotFoundError as error:
        raise InvalidRequest(
            "cannot read images: pillow is not installed. pip install "
            "'foreword[vision]'"
        ) from error
    return PIL.Image
