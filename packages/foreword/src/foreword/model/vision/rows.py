"""Rows of a prompt with images, as a vision-language model gives them to its language
model.

The model's own code runs up to the language model, once a prompt: the vision tower, the
embeddings, the positions and the masks are its own. A forward over tokens then replaces
the placeholders' embeddings by the rows of images.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from foreword.errors import ModelError
from foreword.model.architectures import body
from foreword.model.kv.reads import Reach

MASKS = ("visual_pos_masks", "deepstack_visual_embeds")
"""Arguments of language models that get more of an image than its embeddings: the rows,
and a tensor a layer.
"""
IGNORED = (
    "attention_mask",
    "input_ids",
    "position_ids",
    "cache",
    "past_key_values",
    "cache_position",
    *MASKS,
)

Spans = tuple[tuple[int, int], ...]
"""(first row, row after the last) of each part."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageRows:
    """The rows of a prompt from its first placeholder to its last, and around."""

    start: int
    stop: int
    tokens: int
    """Length of the prompt."""
    keys: list[int]
    """Tokens of the prompt, for the prefix tree; a placeholder's is its image's."""
    inputs: Mapping[str, Float[Tensor, "1 rows ..."]]
    """By argument of the language model: the rows from `start` to `stop`."""
    marks: Bool[Tensor, "rows"] | None = None
    """Which rows get the states of `deep`, in models that add some in later layers."""
    deep: Sequence[Float[Tensor, "marked hidden"]] = ()
    positions: Int[Tensor, "axes tokens"] | None = None
    """Positions of the prompt's tokens in models with several a token; None where they
    count tokens.
    """
    reach: Reach = field(default_factory=dict)
    """By whether a layer has a window: first and last key of each row, where a row
    attends to later ones too.
    """

    whole: Spans = ()
    """Parts that one forward has to read, as their tokens attend to later ones."""

    def keys_of(self, start: int, tokens: list[int]) -> list[int]:
        """Return some tokens of the text, from row `start` on, as later texts are
        compared with them.
        """
        known = self.keys[start : start + len(tokens)]
        return [*known, *tokens[len(known) :]]

    def placed(self, position: int) -> list[int]:
        """Return the positions of a token of the text, one for each axis."""
        assert self.positions is not None
        if position < self.tokens:
            return self.positions[:, position].tolist()
        return [position - self.tokens + int(self.positions.max()) + 1] * len(
            self.positions
        )


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows of a packed forward that belong to one sequence."""

    images: ImageRows
    first: int
    """Row of the forward that holds row `start` of the sequence."""
    start: int
    stop: int


@contextmanager
def shown(
    model: PreTrainedModel, parts: Sequence[Placed], positions: Tensor | None
) -> Iterator[None]:
    """Put the rows of images, and these positions unless None, into the forwards of a
    model while inside.
    """

    def put(
        _: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        kwargs = dict(kwargs)
        if positions is not None:
            kwargs["position_ids"] = positions
        cuts = [(part, *_cut(part)) for part in parts]
        cuts = [(part, low, high) for part, low, high in cuts if low < high]
        for name in {name for part, *_ in cuts for name in part.images.inputs}:
            rows = kwargs[name] = kwargs[name].clone()
            for part, low, high in cuts:
                at = part.first + low - part.start
                rows[:, at : at + high - low] = part.images.inputs[name][
                    :, low - part.images.start :
                ][:, : high - low]
        if any(part.images.marks is not None for part, *_ in cuts):
            kwargs |= _deep(cuts, kwargs["inputs_embeds"])
        return args, kwargs

    hook = body(model).register_forward_pre_hook(put, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def _cut(part: Placed) -> tuple[int, int]:
    """Return the rows of the sequence, in this forward, between its placeholders."""
    return max(part.start, part.images.start), min(part.stop, part.images.stop)


def _deep(
    cuts: Sequence[tuple[Placed, int, int]], embeddings: Tensor
) -> dict[str, Any]:
    """Return the arguments that mark the rows of images, and give states to be added to
    them after the first layers.
    """
    marks = torch.zeros(
        embeddings.shape[:2], dtype=torch.bool, device=embeddings.device
    )
    deep: list[list[Tensor]] = []
    for part, low, high in cuts:
        images = part.images
        at = part.first + low - part.start
        assert images.marks is not None
        marked = images.marks[low - images.start : high - images.start]
        marks[0, at : at + high - low] = marked
        # states are only held for marked rows
        start = int(images.marks[: low - images.start].sum())
        stop = start + int(marked.sum())
        deep.append([states[start:stop] for states in images.deep])
    layers = [torch.cat(layer) for layer in zip(*deep, strict=True)]
    return dict(zip(MASKS, (marks, layers), strict=True))


class _Reached(Exception):
    """Raised where the language model begins; holds its arguments."""

    def __init__(self, inputs: dict[str, Any]) -> None:
        super().__init__("the language model was reached")
        self.inputs = inputs


@torch.inference_mode()
def image_rows(
    model: PreTrainedModel,
    tokens: Sequence[int],
    keys: list[int],
    tensors: Mapping[str, Tensor],
    placeholder: int,
) -> ImageRows:
    """Run a model on a prompt with images, up to its language model.

    `tensors` are what its processor made of the images. Raises ModelError where the
    language model is given something that cannot be cut into rows.
    """
    device, decoder = next(model.parameters()).device, body(model)
    config, count = decoder.config, len(tokens)
    implementation = config._attn_implementation

    def leave(_: object, __: object, kwargs: dict[str, Any]) -> None:
        raise _Reached(kwargs)

    hook = decoder.register_forward_pre_hook(leave, with_kwargs=True)
    # or masks that only forbid later tokens are left out
    config._attn_implementation = "eager"
    try:
        parts = {name: tensor.to(device) for name, tensor in tensors.items()}
        model(input_ids=torch.tensor([tokens], device=device), **parts, use_cache=False)
        raise ModelError(
            f"cannot read images with {type(model).__name__}: it does not call its "
            "language model"
        )
    except _Reached as reached:
        inputs = reached.inputs
    finally:
        config._attn_implementation = implementation
        hook.remove()
    held = [row for row, token in enumerate(tokens) if token == placeholder]
    start, stop = held[0], held[-1] + 1
    rows = {
        name: _rows(model, name, value, count)[:, start:stop].clone()
        for name, value in _tensors(inputs)
    }
    marks, deep = (inputs.get(name) for name in MASKS)
    reach = _reach(model, inputs.get("attention_mask"), count)
    return ImageRows(
        start,
        stop,
        count,
        keys,
        rows,
        None if marks is None else marks[0, start:stop].clone(),
        () if deep is None else [states.clone() for states in deep],
        _positions(inputs.get("position_ids"), count),
        reach,
        _whole(reach),
    )


def _tensors(inputs: Mapping[str, Any]) -> Sequence[tuple[str, Tensor]]:
    return [
        (name, value)
        for name, value in inputs.items()
        if isinstance(value, Tensor) and name not in IGNORED
    ]


def _rows(model: PreTrainedModel, name: str, value: Tensor, count: int) -> Tensor:
    if value.dim() < 2 or value.shape[:2] != (1, count):
        raise ModelError(
            f"cannot read images with {type(model).__name__}: its language model is "
            f"given {name} of shape {tuple(value.shape)} for {count} tokens. Use text "
            "alone, or another model"
        )
    return value


def _positions(
    positions: Tensor | None, count: int
) -> Int[Tensor, "axes tokens"] | None:
    """Return the positions of all axes; None where they only count tokens."""
    if positions is None or (
        positions.dim() == 2 and torch.equal(positions[0].cpu(), torch.arange(count))
    ):
        return None
    return positions.flatten(0, -2).cpu()


def _reach(model: PreTrainedModel, masks: Any, count: int) -> Reach:
    """Return the keys of each row of a prompt, read from the masks that the model made;
    empty if all are causal.

    Raises ModelError where they are not adjacent.
    """
    by_kind = masks if isinstance(masks, dict) else {"full_attention": masks}
    reach: dict[bool, Tensor] = {}
    for kind, mask in by_kind.items():
        if mask is None:
            continue
        visible = mask[0, 0] if mask.dtype == torch.bool else mask[0, 0] == 0
        if not visible.triu(1).any():
            continue
        first = visible.int().argmax(1)
        last = count - 1 - visible.flip(1).int().argmax(1)
        if not torch.equal(visible.sum(1), last - first + 1):
            raise ModelError(
                f"cannot read images with {type(model).__name__}: its attention over "
                "them has an unusual form. Use text alone, or another model"
            )
        reach[kind == "sliding_attention"] = torch.stack([first, last], 1).cpu()
    return reach


def _whole(reach: Reach) -> Spans:
    if not reach:
        return ()
    spans: list[tuple[int, int]] = []
    last = torch.stack([ends[:, 1] for ends in reach.values()]).amax(0).tolist()
    for row, end in enumerate(last):
        if end > row and (not spans or row >= spans[-1][1]):
            spans.append((row, end + 1))
    return tuple(spans)
