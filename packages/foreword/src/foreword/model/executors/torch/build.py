"""Builds the pool backend of a model."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import Cache, DynamicCache, EncoderDecoderCache, PreTrainedModel

from foreword.errors import ModelError
from foreword.model.architectures import body, has_vision, is_seq2seq
from foreword.model.encoder import EncoderMemory
from foreword.model.executors.registry import Order
from foreword.model.executors.torch.attention import NAME
from foreword.model.executors.torch.backend import PoolBackend
from foreword.model.executors.torch.memories import TorchMemory
from foreword.model.executors.torch.packed_linear import swap_in
from foreword.model.executors.torch.packing import Packing
from foreword.model.executors.torch.plan import Plan
from foreword.model.kv.pages import PageTable
from foreword.model.kv.reads import Span
from foreword.model.layers import cache_argument, layers_of, rank_count
from foreword.model.vision.memory import ImageMemory
from foreword.model.vision.rows import Placed, shown

LENGTH = "past_key_values_length"
"""The parameter that tells a position embedding where a forward's rows begin."""
POSITIONS = "position_ids"
MODEL_POSITIONS = "decoder_position_ids"


class Positions:
    """The parts of an encoder-decoder that need the positions of decoder rows."""

    def __init__(self, model: PreTrainedModel) -> None:
        modules: list[Any] = list(model.get_decoder().modules())
        signatures = [inspect.signature(module.forward) for module in modules]
        self._embeddings = [
            (module, signature)
            for module, signature in zip(modules, signatures, strict=True)
            if LENGTH in signature.parameters
        ]
        self._taken = MODEL_POSITIONS in inspect.signature(model.forward).parameters

    @contextmanager
    def given(self, positions: Int[Tensor, "rows"]) -> Iterator[dict[str, Any]]:
        """Give these positions to embeddings; yield the options of the forward."""
        with ExitStack() as hooks:
            for module, signature in self._embeddings:
                embedding = _Embedding(signature, positions)
                if POSITIONS in signature.parameters:
                    hook = module.register_forward_pre_hook(
                        embedding.replace, with_kwargs=True
                    )
                else:
                    hook = module.register_forward_hook(
                        embedding.look_up, with_kwargs=True
                    )
                hooks.callback(hook.remove)
            yield {MODEL_POSITIONS: positions[None]} if self._taken else {}


class _Embedding:
    """The hooks of one position embedding in one forward."""

    def __init__(
        self, signature: inspect.Signature, positions: Int[Tensor, "rows"]
    ) -> None:
        self._signature, self._positions = signature, positions

    def replace(
        self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Replace the positions that it is given, in their shape."""
        bound = self._signature.bind_partial(*args, **kwargs)
        theirs = bound.arguments.get(POSITIONS)
        bound.arguments[POSITIONS] = (
            self._positions if theirs is None else self._positions.view_as(theirs)
        )
        return bound.args, bound.kwargs

    def look_up(
        self,
        module: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Float[Tensor, "1 rows size"],
    ) -> Float[Tensor, "1 rows size"]:
        """Look up the positions in a table that is long enough for the text.

        Padding tokens have no position, and keep their row.
        """
        bound = self._signature.bind_partial(*args, **kwargs)
        tokens = bound.arguments["input_ids"]
        padding = getattr(module, "padding_idx", None)
        text = tokens.new_full((1, int(self._positions.max()) + 1), int(padding == 0))
        bound.arguments |= {"input_ids": text, LENGTH: 0}
        rows = module.forward(*bound.args, **bound.kwargs)[:, self._positions]
        return (
            rows
            if padding is None
            else torch.where((tokens == padding)[..., None], output, rows)
        )


class TorchSources(EncoderMemory, TorchMemory):
    """The sources of open sequences, and what every forward is given in their place."""

    def __init__(self, model: PreTrainedModel, attention: str) -> None:
        """`attention`: that of the model itself, under which the encoder runs."""
        super().__init__(model)
        self._own = attention
        self._positions = Positions(model)
        self._cross: tuple[Tensor, ...] = ()
        """One key per layer, a placeholder for the keys of all sources."""
        self._options: dict[str, Any] = {}
        """An encoder's output, and a cache that stores nothing and holds `_cross`."""

    def _keys_and_values(self, states: Any) -> Sequence[Any]:
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        # any token
        first = torch.zeros(1, 1, dtype=torch.long, device=self._model.device)
        self._model(
            encoder_outputs=states,
            decoder_input_ids=first,
            use_cache=True,
            **{cache_argument(self._model): cache},
        )
        made: list[Any] = list(cache.cross_attention_cache.layers)
        if not self._options:
            self._stand_in(states, made)
        return made

    def _write(
        self, executor: Packing, table: PageTable, length: int, layers: Sequence[Any]
    ) -> None:
        rows = torch.tensor(table.rows(0, length), device=self._model.device)
        for number, layer in enumerate(layers):
            executor.pool.write(
                number,
                layer.keys[0].transpose(0, 1),
                layer.values[0].transpose(0, 1),
                rows,
            )

    def _stand_in(self, states: Any, made: Sequence[Any]) -> None:
        """Keep what every forward gets for the encoder's output and a cache."""
        cross = DynamicCache()
        pairs = [
            cross.update(one.keys[:, :, :1].clone(), one.values[:, :, :1].clone(), i)
            for i, one in enumerate(made)
        ]
        self._cross = tuple(key for key, _ in pairs)
        self._options = {
            "encoder_outputs": type(states)(
                **{**states, "last_hidden_state": states[0][:, :1].clone()}
            ),
            cache_argument(self._model): EncoderDecoderCache(_NoCache(), cross),
        }

    def run(
        self,
        model: PreTrainedModel,
        packed: Int[Tensor, "2 rows"],
        logit_rows: list[int],
        plan: Plan,
    ) -> Float[Tensor, "kept vocab"]:
        plan = replace(plan, cross=self._cross)
        with self._positions.given(packed[1]) as options:
            # without it, Whisper drops the stand-in cache
            options |= self._options | {"use_cache": True}
            output = model(decoder_input_ids=packed[:1], plan=plan, **options)
        return output.logits[0, logit_rows]

    @contextmanager
    def own_attention(self) -> Iterator[None]:
        """Give the model its own attention while inside."""
        self._model.set_attn_implementation(self._own)
        try:
            yield
        finally:
            self._model.set_attn_implementation(NAME)


class _NoCache(Cache):
    """A cache that returns its keys and values: attention itself stores them."""

    def __init__(self) -> None:
        super().__init__(layers=[])

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[Tensor, Tensor]:
        return key_states, value_states


def refused(model: PreTrainedModel) -> str | None:
    """Return why the pool cannot run this model; None if it may."""
    if is_seq2seq(model.config) and not model._can_set_attn_implementation():
        return (
            "its attention cannot be replaced: it is not called through transformers' "
            "AttentionInterface"
        )
    return stateful(model)


def build(model: PreTrainedModel, order: Order) -> PoolBackend:
    """Return the pool backend of a model, and give the model its attention."""
    order.swaps.extend(swap_in(model))
    memories: list[TorchMemory] = []
    if has_vision(model.config):
        memories.append(TorchImages())
    if is_seq2seq(model.config):
        memories.append(TorchSources(model, order.attention))
        model.set_attn_implementation(NAME)
    else:
        body(model).set_attn_implementation(NAME)  # vision parts keep their own
    if rank_count(model) is not None:
        from foreword.model.parallel.backend import ParallelBackend  # seldom needed

        return ParallelBackend(model, order.mode)
    return PoolBackend(model, order.mode, memories)


def stateful(model: PreTrainedModel) -> str | None:
    """Return why the pool cannot run this model (a recurrent state), or None."""
    try:
        parts = [part for layer in layers_of(model) for part in layer.modules()]
    except (ModelError, AttributeError, NotImplementedError):
        parts = list(model.modules())
    kinds = (
        type(part).__name__
        for part in parts
        if isinstance(part, nn.Conv1d) or _is_recurrent(type(part).__name__)
    )
    kind = next(kinds, None)
    if kind is not None:
        return (
            f"its layers keep a recurrent state ({kind}), and the pool holds only keys "
            "and values"
        )
    index = next(
        (type(part).__name__ for part in parts if "Indexer" in type(part).__name__),
        None,
    )
    if index is not None:
        return f"its attention selects keys by an index ({index})"
    router = next((type(part).__name__ for part in parts if _drops_tokens(part)), None)
    return (
        None
        if router is None
        else f"its experts drop tokens beyond a number of them in a forward ({router})"
    )


def _drops_tokens(part: nn.Module) -> bool:
    return (
        hasattr(part, "expert_capacity")
        and getattr(part, "moe_eval_capacity_token_fraction", 0) < 1
    )


RECURRENT = (
    "Mamba",
    "DeltaNet",
    "Recurrent",
    "ShortConv",
    "LinearAttention",
    "Lightning",
)
"""Parts of the class names of layers that keep a recurrent state."""


def _is_recurrent(name: str) -> bool:
    return any(word in name for word in RECURRENT)


class TorchImages(ImageMemory, TorchMemory):
    """Images, put in place of the embeddings of their placeholders."""

    def during(
        self, model: PreTrainedModel, spans: Sequence[Span], rows: int
    ) -> AbstractContextManager[None]:
        """Put the images of these sequences into a forward of so many rows."""
        images = {
            span.start: self.sequences[span.read.id]
            for span in spans
            if span.read.id in self.sequences
        }
        if not images:
            return nullcontext()
        parts = [
            Placed(images[span.start], span.start, span.read.start, span.length)
            for span in spans
            if span.start in images
        ]
        grids = [one.positions for one in images.values() if one.positions is not None]
        if not grids:
            return shown(model, parts, None)
        axes = len(grids[0])
        placed: list[list[int]] = []
        for span in spans:
            for depth in span.read.depths:
                index = span.read.past + depth
                if span.start in images:
                    placed.append(images[span.start].placed(index))
                else:
                    placed.append([index] * axes)
        placed += placed[-1:] * (rows - len(placed))
        positions = torch.tensor(placed, device=model.device).T[:, None]
        return shown(model, parts, positions)
