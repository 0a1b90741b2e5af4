"""The target without some halves of its layers is its own drafter (Draft & Verify, SWIFT, early exit).

Knows which halves to leave out and how to search for them; how they are left out is the view's business.
"""

from __future__ import annotations

import json
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from foreword.draft.base import Source
from foreword.draft.own import SPARE, SelfDrafter
from foreword.errors import InvalidRequest, named
from foreword.model import Model, Read, Tokenizer
from foreword.model.names import head_dim, inner_size, kv_heads
from foreword.model.view import Skip, Skipping, view
from foreword.types import Batch, Draft, Scores, Verdict

Mask = frozenset[int]
"""Halves to leave out, by number: 2 * layer is its attention, 2 * layer + 1 its MLP."""
EVERY = 64
"""Rounds between two looks at a rival on the fly: two forwards of the drafter in as many rounds are 3% of the time."""
ENOUGH = 64
"""Judged guesses that compare two masks; they see the same texts, so that chance cancels."""
DEEPEST = 8
"""Longest chain that `gain` looks at."""


def neighbour(mask: Mask, halves: int, dice: Random) -> Mask:
    """A mask that differs in one or two halves; once in eight times any mask of the same size."""
    if dice.random() < 1 / 8:
        return frozenset(dice.sample(range(halves), len(mask)))
    return mask ^ frozenset(dice.sample(range(halves), dice.choice((1, 2))))


def gain(agreement: float, cost: float) -> float:
    """Speed-up of the best chain length (Leviathan et al. 2023, theorem 3.8); a check costs one forward.

    `agreement` is the chance that a guess is right, `cost` a forward of the drafter as a share of the target's.
    Below 1 where guessing loses at any length: a search must see which of two losers is nearer to winning.
    """
    speed, earned, reached = 0.0, 1.0, 1.0
    for count in range(1, DEEPEST + 1):
        reached *= agreement
        earned += reached
        speed = max(speed, earned / (1 + count * cost))
    return speed


def exit_after(layers: int, of: int) -> Mask:
    """Early exit: the first `layers` of a model are read, then its head (LayerSkip, Elhoushi et al. 2024)."""
    return frozenset(range(2 * layers, 2 * of))


def save(mask: Mask, path: str | Path) -> None:
    """Write a mask to a JSON file, for `draft=`."""
    skip = skipped(mask)
    Path(path).write_text(json.dumps({"attention": sorted(skip.attention), "mlp": sorted(skip.mlp)}) + "\n")


def load(path: str | Path) -> Mask:
    """Read a mask that `save` wrote. Raises InvalidRequest where there is none."""
    try:
        said = json.loads(Path(path).read_text())
        return frozenset([2 * int(n) for n in said["attention"]] + [2 * int(n) + 1 for n in said["mlp"]])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"{path} holds no mask ({named(error)}); give a JSON file with the numbers of layers, "
            'such as {"attention": [3, 5], "mlp": [4]}, or leave draft=None to search on the fly'
        ) from error


def costs(target: Model) -> list[float]:
    """What each half of each layer costs, as a share of a forward over one token: its weights among all."""
    config = target.hf.config.get_text_config()
    heads = config.num_attention_heads + kv_heads(config)
    attention, mlp = 2 * heads * head_dim(config), 3 * inner_size(config)
    total = config.num_hidden_layers * (attention + mlp) + config.vocab_size
    return [attention / total, mlp / total] * config.num_hidden_layers


@dataclass(slots=True)
class _Trial:
    """A rival of the mask in use, and how often each said what the target said after the same texts."""

    rival: Mask
    judged: int = 0
    right: list[int] = field(default_factory=lambda: [0, 0])
    asked: dict[int, list[list[int]]] = field(default_factory=dict)
    """By sequence: what the mask in use and the rival say after each column of this round."""


class LayersDrafter(SelfDrafter):
    """Guesses with the target, halves of its layers left out; with `every` it looks for better ones while it works.

    On the fly (SWIFT, Xia et al. 2025, but without a separate calibration): now and then the mask in use and a rival
    both read the guesses of the round before the target does, and what the target then says judges both.
    """

    summary = "the target itself without some of its layers"
    takes = "a file of skipped layers"

    def __init__(self, model: Model, costs: List[float], mask: Mask, *, every: int = 0, shares: bool = True) -> None:
        """`model`: a view of the target; `costs`: see the function; `mask`: the halves to leave out at first.

        A rival is looked at after `every` rounds; 0 looks for none.
        """
        super().__init__(model, shares=shares)
        self.mask, self.every = mask, every
        self._costs, self._dice, self._rounds = tuple(costs), Random(0), 0
        self._use(mask)
        self._trial = _Trial(neighbour(mask, len(costs), self._dice))

    @classmethod
    def load(cls, source: Source, target: Model, tokenizer: Tokenizer | None) -> LayersDrafter:
        """`source` is the file of a mask (`save`), or None: then one is searched for while text is written."""
        del tokenizer  # it is the target's own
        if not isinstance(source, str | Path | None):
            raise InvalidRequest(
                "this method needs no draft model: give draft='mask.json', or nothing to search for one"
            )
        halves = costs(target)
        mask = first(len(halves) // 2) if source is None else load(source)
        if any(half not in range(len(halves)) for half in mask):
            raise InvalidRequest(f"{source} skips layers that {target.name} does not have")
        return cls(view(target, spare=SPARE), halves, mask, every=EVERY if source is None else 0)

    def propose(self, batch: Batch, nodes: List[int]) -> Draft:
        draft = super().propose(batch, nodes)
        if 0 < self.every <= self._rounds and self._shares:
            self._ask(batch, draft)
        return draft

    def observe(self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        super().observe(batch, draft, verdict, scores)
        self._rounds += 1
        trial = self._trial
        for sequence, logits in zip(batch.sequences, scores.logits, strict=True):
            if sequence.id not in trial.asked:  # nearly always
                continue
            truth = logits.argmax(-1).tolist()
            for place, said in enumerate(trial.asked.pop(sequence.id)):
                trial.right[place] += sum(map(int.__eq__, said, truth))
                trial.judged += min(len(said), len(truth)) if place else 0
        trial.asked.clear()
        if trial.judged >= ENOUGH:
            ours, theirs = (
                gain(right / trial.judged, self._cost(mask))
                for right, mask in zip(trial.right, (self.mask, trial.rival), strict=True)
            )
            if theirs > ours:
                self.mask = trial.rival
                self._use(self.mask)
            self._trial = _Trial(neighbour(self.mask, len(self._costs), self._dice))

    def _ask(self, batch: Batch, draft: Draft) -> None:
        """What both masks say after the last committed token and after each guess; the target's forward comes later."""
        reads = []
        for sequence, tree in zip(batch.sequences, draft.trees, strict=True):
            if tree.tokens:
                parents, pending = None if draft.chain else tree.parents, sequence.pending + tree.tokens
                reads.append(Read(sequence.id, sequence.cached, pending, parents, keep=len(tree) + 1))
        if not reads:
            return
        self._rounds = 0
        for mask in (self.mask, self._trial.rival):
            self._use(mask)
            said = self.model.read(reads).argmax(-1).split([read.keep for read in reads])
            for read, tokens in zip(reads, said, strict=True):
                self._trial.asked.setdefault(read.id, []).append(tokens.tolist())
        self._use(self.mask)

    def _cost(self, mask: Mask) -> float:
        return max(0.05, 1.0 - sum(self._costs[half] for half in mask))

    def _use(self, mask: Mask) -> None:
        assert isinstance(self.model.driver, Skipping)
        self.model.driver.skip(skipped(mask))


def first(layers: int) -> Mask:
    """Where a search starts: without the attention of every other layer between the first and the last two."""
    return frozenset(range(4, 2 * (layers - 2), 4))


def skipped(mask: Mask) -> Skip:
    """The same halves, by the numbers of their layers."""
    return Skip(
        frozenset(half // 2 for half in mask if half % 2 == 0), frozenset(half // 2 for half in mask if half % 2)
    )
