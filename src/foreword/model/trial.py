"""Trials of a way to drive one model: the algorithm in float32, every bit of a score, and the model's own scores.

Knows drivers and a model's own forward; knows nothing about which ways there are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from foreword.errors import named
from foreword.model import experts
from foreword.model.cached import CachedDriver
from foreword.model.driver import Driver, Mode
from foreword.model.excerpt import excerpt
from foreword.model.plan import Read
from foreword.model.pooled import PooledDriver

Make = Callable[[PreTrainedModel, str, Mode], Driver]
"""Drives a model in one way."""
PARENTS = [-1, 0, 1, -1, 3, 3]
"""The tree that is tried: two branches from the root, the second one forks again."""
BRANCH = [3, 5]
"""The branch that is accepted, to try the move of its keys; two more tokens are read after it."""
EXACT, ROUNDED = 1e-3, 0.3
"""Deviations from the model's own scores that are rounding: in float32, and in what has fewer bits."""


class Trial:
    """What a way to drive one model is judged by."""

    def __init__(self, model: PreTrainedModel, make: Make) -> None:
        self._model, self._make = model, make
        self._rounded = model.dtype not in (torch.float32, torch.float64)
        self.tolerance = ROUNDED if self._rounded else EXACT
        self._references = {mode: _reference(model, mode) for mode in (Mode.TREE, Mode.CHAIN)}
        self._experts = experts.consulted(model)
        self._precise: Trial | None = None

    def wrong(self, way: str, mode: Mode) -> str | None:
        """Why this way computes something else than the model, where rounding could hide it; None if it does not."""
        if not self._rounded:
            return None
        if self._precise is None:
            twin = excerpt(self._model)
            self._precise = self if twin is None else Trial(twin, self._make)
        if self._precise is self:
            return None
        try:
            deviation = self._precise.deviation(self._make(self._precise._model, way, mode), mode)
        except Exception as error:  # noqa: BLE001 - as whatever fails in a way that is tried
            return named(error)
        return None if deviation <= EXACT else f"in float32 scores deviate by {deviation:.1e} of their spread"

    def deviation(self, driver: Driver, mode: Mode) -> float:
        """Of this driver's scores from the model's own, in units of their standard deviation."""
        found = _score(driver, _tokens(self._model), mode)
        reference = self._references[Mode.TREE if mode is Mode.TREE else Mode.CHAIN]
        rows = (found.float() - reference).abs().amax(-1) / reference.std()
        # A row that trusts two experts alike asks now one, now the other: some may stray, but not like other text.
        return float(max(rows.median(), rows.max() / 10) if self._experts else rows.max())

    def unsteady(self, driver: Driver, mode: Mode) -> str | None:
        """Why a text may depend on what is read beside it; None if not one bit of a score does."""
        if isinstance(driver, PooledDriver) and (why := _missing_window(self._model, driver)):
            return why
        if not isinstance(driver, CachedDriver) and type(driver) is not PooledDriver:
            return None  # tests compare every bit of these
        return (
            None if _steady(driver, _tokens(self._model), mode) else "the bits of a score depend on the rows beside it"
        )


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


def _steady(driver: Driver, tokens: list[int], mode: Mode) -> bool:
    """Whether scores are equal bit for bit, token by token alone, and with wrong guesses in company and in chunks."""
    trunk, right = tokens[:9], tokens[9:]
    for name in (0, 1, 2):
        driver.open(name, 64)
    try:
        alone = [driver.read([Read(0, 0, trunk, keep=1)])]
        alone += [driver.read([Read(0, 9 + place, [token], keep=1)]) for place, token in enumerate(right)]
        driver.read([Read(1, 0, trunk[:4], keep=0), Read(2, 0, right, keep=1)])
        past, place = 4, 0
        for good in (1, 3, 2):
            if mode is Mode.PLAIN:
                good = 0
            pending = trunk[4:] if place == 0 else right[place - 1 : place]
            wrong = [] if mode is Mode.PLAIN else [token ^ 1 for token in right[place + good : place + good + 2]]
            reads = [
                Read(2, len(right) + place, right[: 1 + good], keep=1),
                Read(1, past, pending + right[place : place + good] + wrong, keep=1 + good + len(wrong)),
            ]
            found = driver.read(reads)[1 : 2 + good]
            if not torch.equal(found, torch.cat(alone[place : place + 1 + good])):
                return False
            past, place = past + len(pending) + good, place + good + 1
        return mode is Mode.PLAIN or _unmoved(driver, tokens)
    finally:
        for name in (0, 1, 2):
            driver.close(name)


def _unmoved(driver: Driver, tokens: list[int]) -> bool:
    """Whether rows keep their bits in another place of another forward: many at once, which costs little."""
    text = (tokens * 3)[:48]
    for name in (0, 1):
        driver.close(name)
        driver.open(name, 64)
    whole = driver.read([Read(0, 0, text, keep=len(text))])
    first = driver.read([Read(2, 0, tokens[:5], keep=1), Read(1, 0, text[:17], keep=17)])[1:]
    rest = driver.read([Read(2, 5, tokens[:2], keep=1), Read(1, 17, text[17:], keep=len(text) - 17)])[1:]
    return torch.equal(whole, torch.cat([first, rest]))


def _missing_window(model: PreTrainedModel, driver: PooledDriver) -> str | None:
    """A layer that should slide but did not ask for its window; too short a text would not show it in the scores."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    sliding = [i for i, kind in enumerate(kinds) if kind in ("sliding_attention", "chunked_attention")] if kinds else []
    if not kinds and getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        sliding = list(driver.asked)
    silent = [layer for layer in sliding if driver.asked.get(layer) is None]
    return f"layers {silent} should see a window of the text but did not ask for it" if silent else None
