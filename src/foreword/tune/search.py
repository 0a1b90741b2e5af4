"""Search for the mask of the highest value by Bayesian optimisation with optuna; every
trial is kept in a file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from random import Random
from typing import TYPE_CHECKING

from foreword.draft.self_speculative.layers import Mask, exit_after, first, neighbour
from foreword.errors import InvalidRequest
from foreword.tune.journal import TrialsFile, Tried

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution

Values = Callable[[Mask], Iterator[float]]
"""Yields the value of a mask with increasing precision; the last one counts."""
Watch = Callable[[int, Tried | None], None]
"""Called after each trial with the number of trials and the best so far."""
SURE = 2
"""Values of a trial before it may be pruned for being below the median of the others at
the same index.
"""
ENOUGH = 8
"""Complete trials before any is pruned."""
TOGETHER = 8
"""Approximate number of masks that combine halves which did little harm alone."""
BESIDE = 32
"""Maximum random neighbours of the best mask drawn to find an untried one."""


@dataclass(slots=True)
class MaskStudy:
    """Trials of masks of `2 * layers` halves.

    Draft & Verify (Zhang et al. 2024, section 3.2) uses a Gaussian process over 2L
    numbers in [0, 1]. Here a tree-structured Parzen estimator (Bergstra et al. 2011)
    proposes 2L choices, alternating with a neighbour of the best mask. The first trials
    are informative masks: early exits, every half alone, then combinations of the
    halves that did the least harm alone.
    """

    layers: int
    seed: int
    file: TrialsFile

    def run(self, values: Values, trials: int, watch: Watch = lambda *_: None) -> bool:
        """Try masks until there are `trials`; return False if Ctrl-C came first.

        Finished trials are kept.
        """
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
    """State of a search: finished trials and the next masks."""

    def __init__(self, layers: int, dice: Random, trials: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        halves = 2 * layers
        self._dice = dice
        self._names = [
            f"{half} {layer}"
            for layer in range(layers)
            for half in ("attention", "mlp")
        ]
        choice = optuna.distributions.CategoricalDistribution([False, True])
        self._space: dict[str, BaseDistribution] = dict.fromkeys(self._names, choice)
        self._study: Study = optuna.create_study(
            sampler=optuna.samplers.TPESampler(
                seed=dice.getrandbits(31), multivariate=True
            ),
            pruner=optuna.pruners.MedianPruner(
                n_startup_trials=ENOUGH, n_warmup_steps=SURE
            ),
            direction="maximize",
        )
        self._tried: dict[Mask, Tried] = {}
        self._beside = False
        """Whether the last mask was a neighbour of the best."""
        exits = (
            exit_after(layers - gone, layers) for gone in (1, layers // 4, layers // 2)
        )
        # Every half alone, if that takes at most half of the trials.
        self._alone = [
            frozenset([half]) for half in range(halves if halves <= trials // 2 else 0)
        ]
        self._queue = deque([first(layers), *exits, *self._alone])

    def learn(self, tried: Tried) -> None:
        """Add a trial of an earlier run."""
        from optuna.trial import TrialState, create_trial

        whole = tried.whole
        self._tried[tried.mask] = tried
        self._study.add_trial(
            create_trial(
                params=self._chosen(tried.mask),
                distributions=self._space,
                intermediate_values=dict(enumerate(tried.values)),
                value=tried.value if whole else None,
                state=TrialState.COMPLETE if whole else TrialState.PRUNED,
            )
        )

    def attempt(self, values: Values, best: Tried | None) -> Tried:
        """Try one mask; a mask tried before is not evaluated again."""
        from optuna.trial import TrialState

        mask = self._next(best)
        if mask is not None:
            self._study.enqueue_trial(self._chosen(mask))
        trial = self._study.ask(self._space)
        mask = frozenset(
            half for half, name in enumerate(self._names) if trial.params[name]
        )
        result = self._tried.get(mask) or Tried(mask, [], whole=False)
        if not result.values:
            for value in values(mask):
                result.values.append(value)
                trial.report(value, len(result.values) - 1)
                if trial.should_prune():
                    break
            else:
                result.whole = True
            self._tried[mask] = result
        if result.whole:
            self._study.tell(trial, result.value)
        else:
            self._study.tell(trial, state=TrialState.PRUNED)
        return result

    def _next(self, best: Tried | None) -> Mask | None:
        """Return the next mask; None leaves the choice to the estimator."""
        if not self._queue and self._alone:
            self._queue.extend(self._together())
            self._alone = []
        while self._queue:
            mask = self._queue.popleft()
            if mask not in self._tried:
                return mask
        self._beside = not self._beside
        if not self._beside or best is None:
            return None
        candidates = (
            neighbour(best.mask, len(self._names), self._dice) for _ in range(BESIDE)
        )
        return next((mask for mask in candidates if mask not in self._tried), None)

    def _together(self) -> list[Mask]:
        """Return combinations of the halves that did the least harm alone, from two to
        almost all.
        """
        best_first = sorted(self._alone, key=lambda mask: -self._tried[mask].value)
        halves = len(self._names)
        steps = range(2, halves - 1, max(1, (halves - 2) // TOGETHER))
        return [frozenset().union(*best_first[:count]) for count in steps]

    def _chosen(self, mask: Mask) -> dict[str, bool]:
        return {name: half in mask for half, name in enumerate(self._names)}


def installed() -> None:
    """Raise InvalidRequest if optuna is not installed."""
    if find_spec("optuna") is None:
        raise InvalidRequest(
            "cannot tune: optuna is not installed. Run: pip install 'foreword[tune]'"
        )
