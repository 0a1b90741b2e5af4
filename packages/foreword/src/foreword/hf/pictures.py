"""Images of a call of transformers' `generate`: the inputs that hold them, and the rows
that are made of them.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from foreword.chats.prompts import ImagePrompt
from foreword.errors import InvalidRequest, ModelError
from foreword.hf.borrowed import borrowed_model
from foreword.hf.refusal import Refusal
from foreword.model.architectures import has_vision
from foreword.model.vision.memory import ImageMemory
from foreword.model.vision.processor import Vision
from foreword.model.vision.rows import ImageRows

PIXELS = "pixel_values"
PICTURES = {
    PIXELS,
    "pixel_attention_mask",
    "image_sizes",
    "image_grid_thw",
    "image_position_ids",
    "batch_num_images",
    "spatial_shapes",
    "mm_token_type_ids",
    "token_type_ids",
}
"""Inputs that processors make of images."""


def picture_inputs(
    model: PreTrainedModel, inputs: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return what a call gives a model of its images; empty for text alone, or for a
    model that reads only that.
    """
    if not isinstance(inputs.get(PIXELS), Tensor) or not has_vision(model.config):
        return {}
    return {
        name: value
        for name, value in inputs.items()
        if name in PICTURES and isinstance(value, Tensor)
    }


def refused_pictures(
    model: PreTrainedModel, inputs: Mapping[str, Any], rows: int
) -> Refusal | None:
    """Return why the images of a call cannot be read; None if they can.

    Images of several prompts are one tensor.
    """
    prompts, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if rows != 1:
        return Refusal(
            PIXELS,
            f"images are read for one row, and there are {rows}",
            "Give the prompts one by one",
        )
    if not isinstance(prompts, Tensor) or not bool(
        (prompts == model.config.image_token_id).any()
    ):
        return Refusal(PIXELS, "input_ids hold no token in whose place an image stands")
    if isinstance(mask, Tensor) and not bool(mask.all()):
        return Refusal(
            "attention_mask", "a prompt with images is padded", "Leave the padding out"
        )
    if inputs.get("position_ids") is not None:
        return Refusal("position_ids", "positions after an image are the model's own")
    return None


def as_given(prepared: dict[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return prepared arguments, with the caller's positions and encoded images, or
    none, in place of transformers'.
    """
    return prepared | {
        name: arguments.get(name) for name in ("position_ids", "mm_encoder_outputs")
    }


def image_rows_of(
    model: PreTrainedModel, prompts: Tensor, tensors: Mapping[str, Tensor]
) -> ImageRows:
    """Run the vision tower over the images of the only prompt. Raises InvalidRequest
    where they cannot be read.

    Scores after the images are compared with the model's own once for each model, as
    for `LLM`.
    """
    with borrowed_model(model) as (target, record):
        backend = target.capability.backend
        if target.backend.memory(ImageMemory) is None:
            raise Refusal(PIXELS, f"backend '{backend}' reads text only").error
        sight = Vision(None, target, checked=record.sees)
        try:
            rows = sight.rows(
                ImagePrompt(
                    prompts[0].tolist(), tensors, model.config.image_token_id, b""
                )
            )
        except ModelError as error:
            raise InvalidRequest(str(error)) from error
        record.sees = True
        return rows
