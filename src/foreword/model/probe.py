"""Finds out, on the real model, the best exact way to drive it; flags and configurations are never trusted alone.

A few short forwards: tree and chain scores through our own ways against the model's own, then its cache, then plain.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from foreword.errors import InvalidRequest, ModelError, named
from foreword.model import experts, graph, native, recurrent
from foreword.model.attention import NAME
from foreword.model.cached import CachedDriver
from foreword.model.driver import Driver, Mode
from foreword.model.linear import Swap, swap_in, swap_out
from foreword.model.plan import Read
from foreword.model.pooled import PooledDriver

PARENTS = [-1, 0, 1, -1, 3, 3]
"""The tree that is tried: two branches from the root, the second one forks again."""
BRANCH = [3, 5]
"""The branch that is accepted, to try the move of its keys; two more tokens are read after it."""


NATIVE, PLAIN = "native", "plain"
WAYS = {NATIVE: Mode.TREE, graph.GRAPH: Mode.TREE, "pool": Mode.TREE, "pool (chains)": Mode.CHAIN, "cache": Mode.CACHE}
"""The ways to drive a model and what each can score, best first; PLAIN is what is left when all of them fail."""
FAST = {NATIVE: recurrent.refused, graph.GRAPH: graph.refused}
"""Ways for some models on some machines: what says why not for this one."""


@dataclass(frozen=True, slots=True)
class Capability:
    """How a model will be driven, and why not better."""

    mode: Mode
    way: str
    """Which of WAYS, or PLAIN."""
    error: float
    """Largest deviation from the model's own scores in this way, in units of their standard deviation.

    Where there are experts it is that of a middling row.
    """
    refused: tuple[tuple[str, str], ...] = ()
    """Better ways, and why they are not taken."""

    @property
    def reason(self) -> str:
        """One sentence for a person."""
        best = f"its scores deviate from the model's own by {self.error:.1e} of their spread"
        return "; ".join([best, *(f"not {way}: {why}" for way, why in self.refused)])


def known_way(way: str | None) -> str | None:
    """The name of a way, or None for the best. Raises InvalidRequest where there is no such way."""
    names = list(dict.fromkeys(name.partition(" ")[0] for name in (*WAYS, PLAIN)))
    if way is not None and way not in names:
        raise InvalidRequest(f"there is no way {way!r} to drive a model; choose one of {', '.join(names)}")
    return way


def choose(
    model: PreTrainedModel, swaps: list[Swap], *, owned: bool = False, only: str | None = None
) -> tuple[Driver, Capability]:
    """The best driver for a model. Layers that are replaced inside the model are added to `swaps`.

    One that is `owned` may lose its weights to the driver, so that they are never held twice. Where `only` names a way,
    no other is tried; raises ModelError where that cannot be taken.
    """
    own = model.config._attn_implementation or "eager"
    tokens, references = _tokens(model), {mode: _reference(model, mode) for mode in (Mode.TREE, Mode.CHAIN)}
    tolerance = 1e-3 if next(model.parameters()).dtype in (torch.float32, torch.float64) else 0.3
    why_not: list[tuple[str, str]] = []
    driver: Driver | None = None
    for way, mode in WAYS.items():
        if only not in (None, way.partition(" ")[0]):
            continue
        if unsuited := FAST.get(way, lambda _: None)(model):
            why_not.append((way, unsuited))
            continue
        if isinstance(driver, native.NativeDriver) and owned:
            driver.restore()
        try:
            driver = recurrent.drive(model, owned=owned) if way == NATIVE else _make(model, way, mode, swaps, own)
            found = _score(driver, tokens, mode)
            why = _missing_window(model, driver) if isinstance(driver, PooledDriver) else None
        except Exception as error:
            if owned and way == NATIVE and driver is None:
                raise  # half of the weights are gone, so nothing else can be tried
            why_not.append((way, named(error)))
            continue
        reference = references[Mode.TREE if mode is Mode.TREE else Mode.CHAIN]
        rows = (found.float() - reference).abs().amax(-1) / reference.std()
        # A row that trusts two experts alike asks now one, now the other: some may stray, but not like other text.
        deviation = float(max(rows.median(), rows.max() / 10) if experts.consulted(model) else rows.max())
        # States carry on what was rounded: in bfloat16 such models stray that much further, driven by us or not.
        if why is None and deviation <= (2 if isinstance(driver, recurrent.RecurrentDriver) else 1) * tolerance:
            return driver, Capability(mode, way, deviation, tuple(why_not))
        why_not.append((way, why or f"scores deviate by {deviation:.1e} of their spread"))
    if only not in (None, PLAIN):
        raise ModelError(f"this model cannot be driven the way {only}: {'; '.join(why for _, why in why_not)}")
    return _make(model, PLAIN, Mode.PLAIN, swaps, own), Capability(Mode.PLAIN, PLAIN, 0.0, tuple(why_not))


def drive(model: PreTrainedModel, known: Capability, swaps: list[Swap]) -> Driver:
    """The driver of a model whose capability was found before."""
    return _make(model, known.way, known.mode, swaps, model.config._attn_implementation or "eager")


def _make(model: PreTrainedModel, way: str, mode: Mode, swaps: list[Swap], own: str) -> Driver:
    """A driver of one way; leaves the model as that way needs it."""
    if way == NATIVE:
        return recurrent.drive(model)
    if way in ("cache", PLAIN):
        swap_out(swaps)  # some models compute with a layer's weight themselves
        swaps.clear()
        model.set_attn_implementation(own)
        return CachedDriver(model, mode)
    swaps.extend(swap_in(model))
    model.set_attn_implementation(NAME)
    return graph.GraphDriver(model) if way == graph.GRAPH else PooledDriver(model, mode)


def _tokens(model: PreTrainedModel) -> list[int]:
    vocab = model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocab // 8, vocab, (9 + len(PARENTS) + 2,), generator=generator).tolist()


def _split(tokens: list[int]) -> tuple[list[int], list[int], list[int]]:
    return tokens[:9], tokens[9 : 9 + len(PARENTS)], tokens[9 + len(PARENTS) :]


@torch.inference_mode()
def _reference(model: PreTrainedModel, mode: Mode) -> Float[Tensor, "scored vocab"]:
    """The model's own scores, by whole forwards without a cache: of every guess, then of two tokens after a branch."""
    trunk, guesses, after = _split(_tokens(model))

    def scores(text: list[int], last: int) -> Tensor:
        ids = torch.tensor([text], device=next(model.parameters()).device)
        return model(input_ids=ids, use_cache=False).logits[0, -last:].float()

    if mode is not Mode.TREE:
        return torch.cat([scores(trunk + guesses, len(guesses) + 1), scores(trunk + guesses[:2] + after, 2)])
    paths: list[list[int]] = []
    for node, parent in enumerate(PARENTS):
        paths.append(([] if parent < 0 else paths[parent]) + [guesses[node]])
    rows = [scores(trunk, 1)] + [scores(trunk + path, 1) for path in paths]
    return torch.cat([*rows, scores(trunk + [guesses[node] for node in BRANCH] + after, 2)])


def _score(driver: Driver, tokens: list[int], mode: Mode) -> Float[Tensor, "scored vocab"]:
    """The same scores by the driver: prompt in two chunks, guesses in one forward, rollback, two tokens more."""
    trunk, guesses, after = _split(tokens)
    driver.open(0, 64)
    try:
        driver.read([Read(0, 0, trunk[:4], keep=0)])
        parents = PARENTS if mode is Mode.TREE else None
        first = driver.read([Read(0, 4, trunk[4:] + guesses, parents, keep=len(guesses) + 1)])
        kept = BRANCH if mode is Mode.TREE else [0, 1]
        driver.move(0, [len(trunk) + node for node in kept], len(trunk))
        return torch.cat([first, driver.read([Read(0, len(trunk) + 2, after, keep=2)])])
    finally:
        driver.close(0)


def _missing_window(model: PreTrainedModel, driver: PooledDriver) -> str | None:
    """A layer that should slide but did not ask for its window; too short a text would not show it in the scores."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    sliding = [i for i, kind in enumerate(kinds) if kind in ("sliding_attention", "chunked_attention")] if kinds else []
    if not kinds and getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        sliding = list(driver.asked)
    silent = [layer for layer in sliding if driver.asked.get(layer) is None]
    return f"layers {silent} should see a window of the text but did not ask for it" if silent else None
