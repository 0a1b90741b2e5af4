"""Training of the target itself to predict after few layers (LayerSkip, Elhoushi et al.
2024, section 4.1): layer dropout, and a loss at early exits through its own LM head.

The loss compares with the target as it was, in place of the data's tokens, so that the
last layer stays what it was.
"""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from foreword.draft.self_speculative.exits import KEY
from foreword.errors import InvalidRequest
from foreword.model import HFModel
from foreword.model.architectures import last_norm
from foreword.model.executors.torch.hooks import listening, replaced_forwards
from foreword.model.layers import layer_count, layers_of
from foreword_train.data.packing import Block
from foreword_train.data.pairs import forward_inputs
from foreword_train.methods.lm import check_packable, load, write
from foreword_train.registry import EarlyExitOptions
from foreword_train.task import TrainContext, TrainTask, accepted


class ExitModel(nn.Module):
    """The target that is trained, and its count of training forwards, on which layer
    dropout and the exit in turn depend.
    """

    forwards: Tensor

    def __init__(self, model: HFModel, dropout: float, ramp: int) -> None:
        """`dropout`: of the last layer, after `ramp` forwards."""
        super().__init__()
        self.model = model
        self._dropout = dropout
        self._ramp = ramp
        count = torch.zeros((), dtype=torch.int64)
        self.register_buffer("forwards", count)

    def rates(self) -> list[float]:
        """Return the dropout of each layer: none of the first, growing with depth and
        time (sections 4.1 and 5).
        """
        time = min(1.0, int(self.forwards) / self._ramp)
        last = max(1, layer_count(self.model.config) - 1)
        most = self._dropout * (2**time - 1)
        depths = [layer / last for layer in range(last + 1)]
        return [most * (2**depth - 1) for depth in depths]

    def forward(
        self, read: dict[str, Any], rows: Bool[Tensor, "batch length"], exits: list[int]
    ) -> list[Float[Tensor, "rows vocab"]]:
        """Return the logits of the rows after each exit, then after the last layer."""
        layers = (*exits, layer_count(self.model.config))
        captures = listening(self.model, layers)
        with ExitStack() as during:
            if self.training:
                self._drop(during, len(rows))
            captured = during.enter_context(captures)
            self.model.get_decoder()(**read)
            states = captured()[rows.flatten()]
        *early, last = states.chunk(len(layers), -1)
        norm = last_norm(self.model)
        normed = [norm(state) for state in early]
        hidden = torch.cat([*normed, last])
        logits = _head(self.model, hidden)
        return list(logits.chunk(len(layers)))

    def _drop(self, during: ExitStack, batch: int) -> None:
        """Have each layer leave some blocks of the batch as they are."""
        layers = layers_of(self.model)
        rates = self.rates()
        for layer, rate in zip(layers, rates, strict=True):
            keep = torch.rand(batch, 1, 1) >= rate
            chosen = partial(_kept, keep)
            hook = layer.register_forward_hook(chosen, with_kwargs=True)
            during.callback(hook.remove)


class EarlyExitTask(TrainTask):
    """Task that continues the training of the target: in turn, one exit learns in each
    forward, beside the last layer (the rotation of section 4.1).
    """

    def __init__(self, context: TrainContext, options: EarlyExitOptions) -> None:
        """Raises InvalidRequest for exits the target lacks, and rates out of range."""
        check_packable(context.target)
        layers = layer_count(context.target.config)
        self.exits = _exits(options.exits, layers)
        if not 0 <= options.dropout < 1:
            raise InvalidRequest(
                f"cannot train with dropout {options.dropout}: "
                "it must be in [0, 1). Lower 'dropout'"
            )
        source = context.source
        trusted = context.trusted
        model = load(source, torch.float32, trusted=trusted)
        exits = list(self.exits)
        setattr(model.config, KEY, exits)
        module = ExitModel(model, options.dropout, options.ramp)
        super().__init__(context, module)
        # not `module.model`: devices may wrap the module
        self._model = model
        self._module = module
        self._scale = options.scale
        self._tokenizer = context.tokenizer

    def loss(self, module: nn.Module, block: Block) -> Float[Tensor, ""]:
        count = int(self._module.forwards)
        turn = self.exits[count % len(self.exits)]
        self._module.forwards += 1
        read, rows = _inputs(block)
        with torch.no_grad():
            before = self.target(**read).logits[rows]
        early, last = module(read, rows, [turn])
        lost = self.compared(before, early).sum()
        base = self.compared(before, last).sum()
        return base + self._scale * lost

    def measure(self, module: nn.Module, block: Block) -> dict[str, Float[Tensor, ""]]:
        """Return the cross-entropy of the last layer, and how far each exit predicts
        it: acceptance at temperature 1 (1 - TV) and at 0 (same argmax), of all exits
        on average, then at 0 of each.
        """
        read, rows = _inputs(block)
        exits = list(self.exits)
        *early, last = module(read, rows, exits)
        pairs = [accepted(last, one) for one in early]
        rate = torch.stack([one for one, _ in pairs])
        same = torch.stack([one for _, one in pairs])
        tokens = block.tokens.roll(-1, 1)[rows]
        logits = last.float()
        loss = F.cross_entropy(logits, tokens, reduction="sum")
        each = {
            f"agreement_{number}": row.sum()
            for number, row in zip(self.exits, same, strict=True)
        }
        return {
            "loss": loss,
            "acceptance": rate.mean(0).sum(),
            "agreement": same.mean(0).sum(),
        } | each

    def save(self, folder: Path) -> None:
        """Write the model as transformers does, in the dtype of the target's
        checkpoint; its config names the exits.
        """
        write(self._model, folder, self.target, self._tokenizer)


def _exits(value: str | None, layers: int) -> tuple[int, ...]:
    """Return the exits of an option, in order; None = all layers but the last."""
    if value is None:
        return tuple(range(1, layers))
    try:
        numbers = {int(number) for number in value.split(",")}
        exits = tuple(sorted(numbers))
    except ValueError:
        exits = ()
    if not exits or not 0 < exits[0] <= exits[-1] < layers:
        raise InvalidRequest(
            f"cannot train exits {value!r}: the target has {layers} layers. Give "
            f"numbers from 1 to {layers - 1}, such as 2,4"
        )
    return exits


def _inputs(block: Block) -> tuple[dict[str, Any], Bool[Tensor, "batch length"]]:
    """Return what a decoder reads, and the rows after which a learnt token comes."""
    read, texts = forward_inputs(block, 0)
    rows = texts.learnt.roll(-1, 1)
    rows[:, -1] = False
    return read, rows


def _kept(
    keep: Bool[Tensor, "batch 1 1"],
    _: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    output: Any,
) -> Any:
    """Return the output of a layer, or its input where it was dropped."""
    before = args[0] if args else kwargs["hidden_states"]
    keep = keep.to(before.device)
    if isinstance(output, tuple):
        return (torch.where(keep, output[0], before), *output[1:])
    return torch.where(keep, output, before)


def _head(
    model: HFModel, hidden: Float[Tensor, "rows hidden"]
) -> Float[Tensor, "rows vocab"]:
    """Return the logits of normed hidden states, scaled as the model's are."""
    states = BaseModelOutputWithPast(last_hidden_state=hidden[None])
    shape = 1, len(hidden)
    tokens = hidden.new_zeros(shape, dtype=torch.int64)
    decoder = model.get_decoder()
    with replaced_forwards({decoder: lambda *_, **__: states}):
        output = model(input_ids=tokens, use_cache=False)
    return output.logits[0]
