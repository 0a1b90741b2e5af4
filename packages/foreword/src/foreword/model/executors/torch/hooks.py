"""Captures a Hugging Face model's hidden states with hooks, not changing its code."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    BaseModelOutputWithPastAndCrossAttentions,
)

from foreword.errors import ModelError
from foreword.model.kv.reads import Read
from foreword.model.layers import layers_of
from foreword.native.openmp import all_threads


@contextmanager
def listening(
    model: PreTrainedModel, layers: Sequence[int]
) -> Iterator[Callable[[], Float[Tensor, "rows features"]]]:
    """Capture the hidden states of forwards while inside; the callable returns them,
    oldest row first.

    Layers are numbered as in transformers: 0 = the embeddings, i = the input of layer
    i, the number of layers = the input of the LM head, after the final norm. Rows of a
    batch follow each other, sequence by sequence.
    """
    states: dict[int, list[Tensor]] = {layer: [] for layer in layers}
    modules = layers_of(model)
    with ExitStack() as hooks:
        for layer in states:
            if layer < len(modules):
                capture = partial(_before, states[layer])
                hook = modules[layer].register_forward_pre_hook(
                    capture, with_kwargs=True
                )
            else:
                hook = model.get_decoder().register_forward_hook(
                    partial(_after, states[layer])
                )
            hooks.callback(hook.remove)
        yield lambda: torch.cat([torch.cat(states[layer]) for layer in layers], -1)


def apply_lm_head(
    model: PreTrainedModel, hidden: Float[Tensor, "rows hidden"]
) -> Float[Tensor, "rows vocab"]:
    """Return the logits of the LM head for hidden states. Raises ModelError where the
    model has no head.

    Some encoder-decoders scale the states or add a bias, so their own forward runs,
    with these as the decoder's output.
    """
    head, hidden = model.get_output_embeddings(), hidden.to(model.dtype)
    if head is None:
        raise ModelError(
            f"cannot apply the LM head of {type(model).__name__}: it has none"
        )
    if not getattr(model.config, "is_encoder_decoder", False):
        return head(hidden)
    states = BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden[None])
    tokens = torch.zeros(1, len(hidden), dtype=torch.long, device=hidden.device)
    with replaced_forwards({model.get_decoder(): lambda **_: states}):
        return model(
            encoder_outputs=states, decoder_input_ids=tokens, use_cache=False
        ).logits[0]


def own_logits(
    model: PreTrainedModel, hidden: Float[Tensor, "rows hidden"]
) -> Float[Tensor, "rows vocab"]:
    """Return the scores of a decoder-only model for hidden states after the final norm.

    Its own forward runs, with these as the decoder's output: some models scale or cap
    their scores.
    """
    states = BaseModelOutputWithPast(last_hidden_state=hidden[None])
    tokens = torch.zeros(1, len(hidden), dtype=torch.long, device=hidden.device)
    with replaced_forwards({model.base_model: lambda *_, **__: states}):
        return model(input_ids=tokens, use_cache=False).logits[0]


@torch.no_grad()
def lm_head_weight(
    model: PreTrainedModel,
) -> Float[Tensor, "vocab hidden"] | None:
    """Return the matrix of the LM head, float32, without a bias; None where the model
    has no head.

    Some encoder-decoders scale the states before the head. The factor is in the matrix,
    read off their own scores.
    """
    head = model.get_output_embeddings()
    if head is None:
        return None
    weight = head.weight.float()
    if not getattr(model.config, "is_encoder_decoder", False):
        return weight
    rows = torch.tensor(
        [[1.0], [0.0]], dtype=torch.float32, device=weight.device
    ).expand(2, weight.shape[1])
    unscaled, (scores, bias) = weight.sum(1), apply_lm_head(model, rows).float()
    return weight * ((scores - bias) @ unscaled / unscaled.square().sum())


@contextmanager
def replaced_forwards(
    forwards: Mapping[nn.Module, Callable[..., Any]],
) -> Iterator[None]:
    """Call these in place of the forwards of modules while inside."""
    # the owner may have patched it
    before = {module: vars(module).get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            vars(module)["forward"] = forward
        yield
    finally:
        for module, forward in before.items():
            vars(module)["forward"] = forward
            if forward is None:
                del vars(module)["forward"]


def resumed(
    model: PreTrainedModel, layers: int, states: Float[Tensor, "rows hidden"]
) -> AbstractContextManager[None]:
    """Give these hidden states to the layer after the first `layers`, which do not run
    while inside; a forward may have further rows.
    """

    def given(hidden_states: Tensor, *_: object, **__: object) -> Tensor:
        rest = hidden_states[0, len(states) :]
        return torch.cat([states, rest])[None]

    *before, last = layers_of(model)[:layers]
    return replaced_forwards(dict.fromkeys(before, passed) | {last: given})


class CapturesHiddenStates:
    """A mixin: `read_hidden` and `lm_head` for a backend with `model` and `read`."""

    model: PreTrainedModel

    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        raise NotImplementedError

    def read_hidden(
        self, reads: Sequence[Read], layers: Sequence[int]
    ) -> tuple[Float[Tensor, "kept vocab"], Float[Tensor, "rows features"]]:
        """Run `read`; return each token's hidden states too, joined over `layers`."""
        logits, states = zip(
            *[self._read_states(part, layers) for part in self._forwards(reads)],
            strict=True,
        )
        return torch.cat(logits), torch.cat(states)

    @torch.inference_mode()
    def lm_head(
        self, hidden: Float[Tensor, "rows hidden"]
    ) -> Float[Tensor, "rows vocab"]:
        """Return the logits of the LM head for hidden states after the final norm."""
        with all_threads():
            return apply_lm_head(self.model, hidden)

    def _forwards(self, reads: Sequence[Read]) -> Sequence[Sequence[Read]]:
        """Group the reads that share a forward."""
        return [[read] for read in reads]

    def _own_rows(
        self, rows: Float[Tensor, "captured features"], count: int
    ) -> Float[Tensor, "rows features"]:
        """Return the rows of the requested tokens, which are the last ones."""
        return rows[-count:]

    def _read_states(
        self, reads: Sequence[Read], layers: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        with listening(self.model, layers) as captured:
            logits = self.read(reads)
        return logits, self._own_rows(
            captured(), sum(len(read.tokens) for read in reads)
        )


def passed(hidden_states: Tensor, *_: object, **__: object) -> Tensor:
    """Return a module's input: the forward of one that does not run."""
    return hidden_states


def _before(
    states: list[Tensor], _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    states.append((args[0] if args else kwargs["hidden_states"]).flatten(0, 1))


def _after(
    states: list[Tensor], _: nn.Module, __: tuple[Any, ...], output: Any
) -> None:
    states.append(output[0].flatten(0, 1))
