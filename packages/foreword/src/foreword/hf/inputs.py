"""What a call of transformers' `generate` gives a model to read: whether it can be
served, and the rows made of it.

Padding is removed, since our sequences have none. An encoder-decoder reads a source
with its encoder; the text of its rows is what its decoder reads.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from foreword.hf.refusal import Refusal
from foreword.model.layers import CACHES

Ids = Int[Tensor, "batch length"]
Setting = Callable[[str], Any]
"""Lookup of a generation option by its name; None if it is not set."""

VISION = ("mm_encoder_outputs", "mm_token_type_ids")
"""Inputs that transformers adds for vision-language models, even for text alone."""
_SERVED = {"input_ids", "attention_mask", "position_ids", "use_cache", "logits_to_keep"}
_DECODER = {"decoder_input_ids", "decoder_attention_mask"}
_FEATURES = "input_features"
_ONLY = "only token ids and attention_mask are read"


def refused_input(
    inputs: Mapping[str, Any],
    setting: Setting,
    *,
    seq2seq: bool,
    sound: bool,
    pictures: Iterable[str] = (),
) -> Refusal | None:
    """Return why these inputs of a model, an encoder-decoder (of sound) or not, cannot
    be served; None if they can.

    `pictures`: inputs that hold images which can be read.
    """
    if sound:  # its encoder reads no mask
        named = _names(
            inputs,
            {_FEATURES, "attention_mask", "use_cache"} | _DECODER,
            "only input_features are read",
        )
        return named or _sound(inputs) or _decoder(inputs)
    named = _names(
        inputs,
        _SERVED - {"position_ids"} | _DECODER if seq2seq else _SERVED.union(pictures),
    )
    return named or (
        _source(inputs) or _decoder(inputs) if seq2seq else _prompts(inputs, setting)
    )


def copied_source(source: Tensor, rows: int) -> Tensor:
    """Return the sources of a call, one for each row of its batch:
    `num_return_sequences` rows have the same.
    """
    return source.repeat_interleave(max(rows // max(len(source), 1), 1), dim=0)


def unpadded(
    prompts: Ids,
    source: Int[Tensor, "batch source"] | None,
    mask: Shaped[Tensor, "batch _"] | None,
) -> list[tuple[list[int], tuple[int, ...]]]:
    """Return the tokens and the source of each row, the latter empty without an
    encoder.

    `mask` is that of the source where there is one, else that of the prompts.
    """
    padded = prompts if source is None else source
    rows = [
        row if mask is None else row[mask[place].bool()]
        for place, row in enumerate(padded)
    ]
    read = [row.tolist() for row in rows]
    if source is None:
        return [(tokens, ()) for tokens in read]
    return [
        (tokens, tuple(own)) for tokens, own in zip(prompts.tolist(), read, strict=True)
    ]


def inferred(prompts: Ids, setting: Setting) -> Shaped[Tensor, "batch length"]:
    """Return transformers' default mask: all but padding that has its own token."""
    pad, end = setting("pad_token_id"), setting("eos_token_id")
    ends = end if isinstance(end, list | tuple) else [] if end is None else [int(end)]
    return torch.ones_like(prompts) if pad is None or pad in ends else prompts.ne(pad)


def _names(
    inputs: Mapping[str, Any], served: set[str], only: str = _ONLY
) -> Refusal | None:
    for name, value in inputs.items():
        if value is None or name in served:
            continue
        if name in CACHES:
            # transformers adds an empty cache of its own to every call; ignoring it
            # changes nothing.
            filled = any(
                getattr(layer, "is_initialized", False)
                for layer in getattr(value, "layers", ())
            )
            if filled or getattr(value, "_is_user_defined", False):
                reason = "a cache passed by the caller is neither read nor filled"
                return Refusal(name, reason, assisted_differs=filled)
        elif name not in VISION or _has_image(value):
            return Refusal(name, only)
    return None


def _has_image(value: Any) -> bool:
    """Return whether a vision input holds an image or a video."""
    if isinstance(value, Mapping):
        return any(part is not None for part in value.values())
    return not isinstance(value, Tensor) or bool(value.any())


def _prompts(inputs: Mapping[str, Any], setting: Setting) -> Refusal | None:
    prompts, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if prompts is None:
        return None
    if refusal := _ids("input_ids", prompts):
        return refusal
    mask = inferred(prompts, setting) if mask is None else mask
    if refusal := _mask("attention_mask", mask, prompts):
        return refusal
    attended = mask.bool()
    if not bool(attended[:, -1].all()):
        fix = "Set tokenizer.padding_side = 'left'"
        return Refusal("attention_mask", "the prompts are padded on the right", fix)
    positions = inputs.get("position_ids")
    if positions is not None and not _is_consecutive(positions, attended):
        return Refusal(
            "position_ids", "only consecutive positions from 0 are supported"
        )
    return None


def _source(inputs: Mapping[str, Any]) -> Refusal | None:
    source, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if source is None:
        return None
    refusal = _ids("input_ids", source) or (
        _mask("attention_mask", mask, source) if mask is not None else None
    )
    # transformers infers no mask here: the encoder reads padding too
    if refusal or mask is None:
        return refusal
    attended = mask.bool()
    if not bool(attended[:, 0].all()) or bool(
        (attended[:, 1:] & ~attended[:, :-1]).any()
    ):
        # Most encoders number their positions from the first column on, padding
        # included.
        fix = "Set tokenizer.padding_side = 'right'"
        return Refusal(
            "attention_mask", "the sources are padded elsewhere than on the right", fix
        )
    return None


def _sound(inputs: Mapping[str, Any]) -> Refusal | None:
    sound = inputs.get(_FEATURES)
    if sound is None or (
        isinstance(sound, Tensor) and sound.dim() == 3 and sound.is_floating_point()
    ):
        return None
    return Refusal(
        _FEATURES, "only floating point tensors of shape [batch, bins, frames] are read"
    )


def _decoder(inputs: Mapping[str, Any]) -> Refusal | None:
    begun, mask = inputs.get("decoder_input_ids"), inputs.get("decoder_attention_mask")
    refusal = None if begun is None else _ids("decoder_input_ids", begun)
    if refusal or mask is None:
        return refusal
    if not isinstance(mask, Tensor) or not bool(mask.all()):
        return Refusal(
            "decoder_attention_mask", "only decoder_input_ids without padding are read"
        )
    return None


def _ids(name: str, ids: Any) -> Refusal | None:
    if (
        isinstance(ids, Tensor)
        and ids.dim() == 2
        and ids.numel()
        and not ids.is_floating_point()
    ):
        return None
    return Refusal(name, "only integer tensors of shape [batch, length] are read")


def _mask(name: str, mask: Any, ids: Tensor) -> Refusal | None:
    if isinstance(mask, Tensor) and mask.shape == ids.shape:
        return None
    return Refusal(name, "its shape differs from input_ids")


def _is_consecutive(positions: Tensor, attended: Tensor) -> bool:
    if (
        not isinstance(positions, Tensor)
        or positions.shape[-1] != attended.shape[1]
        or positions.dim() not in (2, 3)
    ):
        return False
    if positions.shape[-2] not in (1, len(attended)):
        return False
    return bool(((positions == attended.long().cumsum(-1) - 1) | ~attended).all())
