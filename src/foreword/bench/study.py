"""Looks for the mask that is worth most by Bayesian optimisation, and keeps every trial in a file.

Knows optuna and masks; knows nothing about what a mask is worth, or why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from random import Random
from typing import TYPE_CHECKING

from foreword.bench.trials import TrialsFile, Tried
from foreword.draft.layers import Mask, exit_after, first, neighbour
from foreword.errors import InvalidRequest

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution

Values = Callable[[Mask], Iterator[float]]
"""What a mask is worth, ever more exactly; the last is what counts."""
Watch = Callable[[int, Tried | None], None]
"""Told the number of trials and the best so far after each."""
SURE = 2
"""Values of a trial before it may be given up, for being below the median of the others at the same place."""
ENOUGH = 8
"""Whole trials before any is given up."""
TOGETHER = 8
"""Masks, about, that leave out several halves which did little harm alone."""
BESIDE = 32
"""Neighbours of the best that are thrown before one must be new."""


@dataclass(slots=True)
class MaskStudy:
    """Trials of masks of `2 * layers` halves.

    Draft & Verify (Zhang et al. 2024, section 3.2) asks a Gaussian process over 2L numbers in [0, 1]. Here a
    tree-structured Parzen estimator (Bergstra et al. 2011) is asked over 2L choices, and between its answers a
    neighbour of the best mask is tried. Before, masks that tell much: early exits, every half alone, and then those
    halves together that did the least harm alone.
    """

    layers: int
    seed: int
    file: TrialsFile

    def run(self, values: Values, trials: int, watch: Watch = lambda *_: None) -> bool:
        """Try masks until there were so many; False where Ctrl-C came first. Nothing that was tried is lost."""
        search = _Search(self.layers, Random(self.seed + len(self.file.tried)), trials)
        for before in self.file.tried:
            search.learn(before)
        try:
            watch(len(self.file.tried), self.file.best)
            while len(self.file.tried) < trials:
                self.file.add(search.attempt(values, self.file.best))
                watch(len(self.file.tried), self.file.best)
        except KeyboardInterrupt:
            return False
        return True


class _Search:
    """What to try next, and what is known."""

    def __init__(self, layers: int, dice: Random, trials: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        halves = 2 * layers
        self._dice, self._names = dice, [f"{half} {layer}" for layer in range(layers) for half in ("attention", "mlp")]
        choice = optuna.distributions.CategoricalDistribution([False, True])
        self._space: dict[str, BaseDistribution] = dict.fromkeys(self._names, choice)
        self._study: Study = optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=dice.getrandbits(31), multivariate=True),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=ENOUGH, n_warmup_steps=SURE),
            direction="maximize",
        )
        self._known: dict[Mask, Tried] = {}
        self._beside = False
        """A neighbour of the best comes next."""
        exits = (exit_after(layers - gone, layers) for gone in (1, layers // 4, layers // 2))
        # Every half alone, where there are trials enough for more than that.
        self._alone = [frozenset([half]) for half in range(halves if halves <= trials // 2 else 0)]
        self._queue = deque([first(layers), *exits, *self._alone])

    def learn(self, found: Tried) -> None:
        """One of an earlier run."""
        from optuna.trial import TrialState, create_trial

        whole = found.whole
        self._known[found.mask] = found
        self._study.add_trial(
            create_trial(
                params=self._chosen(found.mask),
                distributions=self._space,
                intermediate_values=dict(enumerate(found.values)),
                value=found.value if whole else None,
                state=TrialState.COMPLETE if whole else TrialState.PRUNED,
            )
        )

    def attempt(self, values: Values, best: Tried | None) -> Tried:
        """Try one mask; what was tried before is not tried again."""
        from optuna.trial import TrialState

        mask = self._next(best)
        if mask is not None:
            self._study.enqueue_trial(self._chosen(mask))
        trial = self._study.ask(self._space)
        mask = frozenset(half for half, name in enumerate(self._names) if trial.params[name])
        found = self._known.get(mask) or Tried(mask, [], whole=False)
        if not found.values:
            for value in values(mask):
                found.values.append(value)
                trial.report(value, len(found.values) - 1)
                if trial.should_prune():
                    break
            else:
                found.whole = True
            self._known[mask] = found
        if found.whole:
            self._study.tell(trial, found.value)
        else:
            self._study.tell(trial, state=TrialState.PRUNED)
        return found

    def _next(self, best: Tried | None) -> Mask | None:
        """None leaves the choice to the estimator."""
        if not self._queue and self._alone:
            self._queue.extend(self._together())
            self._alone = []
        while self._queue:
            mask = self._queue.popleft()
            if mask not in self._known:
                return mask
        self._beside = not self._beside
        if not self._beside or best is None:
            return None
        thrown = (neighbour(best.mask, len(self._names), self._dice) for _ in range(BESIDE))
        return next((mask for mask in thrown if mask not in self._known), None)

    def _together(self) -> list[Mask]:
        """The halves that did the least harm alone: a few of them, more, almost all."""
        kindest = sorted(self._alone, key=lambda mask: -self._known[mask].value)
        halves = len(self._names)
        steps = range(2, halves - 1, max(1, (halves - 2) // TOGETHER))
        return [frozenset().union(*kindest[:count]) for count in steps]

    def _chosen(self, mask: Mask) -> dict[str, bool]:
        return {name: half in mask for half, name in enumerate(self._names)}


def installed() -> None:
    """Raise InvalidRequest where optuna is not."""
    if find_spec("optuna") is None:
        raise InvalidRequest("tuning needs optuna; install it with: pip install 'foreword[tune]'")
