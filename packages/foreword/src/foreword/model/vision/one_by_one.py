"""Lets an image processor of transformers decode images one after the other."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from transformers.image_processing_utils import BaseImageProcessor

from foreword.wanted import check_wanted

PREPARE = "_prepare_image_like_inputs"
"""Method of transformers' image processors that makes arrays of all images."""


class Arrays(Sequence[Any]):
    """Images as arrays, each made when it is used and not kept; images of several texts
    are nested.
    """

    def __init__(self, images: Sequence[Any], array: Callable[[Any], Any]) -> None:
        self._images, self._array = images, array

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: Any) -> Any:
        image = self._images[index]
        return (
            Arrays(image, self._array)
            if isinstance(image, list | tuple)
            else self._array(image)
        )


def decode_one_by_one(processor: object) -> None:
    """Make an image processor decode an image only when it resizes it. Arrays and their
    values stay the same.

    Processors of torchvision resize images of one shape together, so they hold the
    arrays of all images.
    """
    if not isinstance(processor, BaseImageProcessor):
        return  # code of a checkpoint's own
    images: Any = processor
    make: Callable[..., Any] = images.process_image

    def array(image: Any, *args: Any, **kwargs: Any) -> Any:
        check_wanted()
        unread = hasattr(image, "decoded")
        return make(image.decoded() if unread else image, *args, **kwargs)

    def prepare(
        inputs: Any, *args: Any, expected_ndims: int = 3, **kwargs: Any
    ) -> Arrays:
        structure = images._prepare_images_structure(
            inputs, expected_ndims=expected_ndims
        )
        return Arrays(structure, partial(array, *args, **kwargs))

    images.process_image = array
    ours = (
        type(images).__module__.startswith("transformers.") and images.backend == "pil"
    )
    if ours and getattr(type(images), PREPARE, None) is getattr(
        BaseImageProcessor, PREPARE, None
    ):
        setattr(images, PREPARE, prepare)
