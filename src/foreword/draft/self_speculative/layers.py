"""The target without some sublayers as its own drafter (Draft & Verify, SWIFT, early
exit), and the search for them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from foreword.draft.base import Source
from foreword.draft.self_speculative.base import SPARE, SelfDrafter
from foreword.draft.self_speculative.exits import (
    check_exit,
    given_exit,
    read_first,
    spread,
    trained_exits,
)
from foreword.errors import InvalidRequest
from foreword.errors import named as name_of
from foreword.files import atomic_file
from foreword.model import Model, Read, Tokenizer
from foreword.model.architectures import head_dim, inner_size, kv_heads
from foreword.model.layers import layer_count
from foreword.model.skip import LayerSkip
from foreword.model.view import Skipping, view
from foreword.registry import OWN_METHODS
from foreword.types import Batch, Draft, DraftTree, Request, Scores, Verdict

NAME = "layers"
"""Of the method."""
Mask = frozenset[int]
"""Sublayers to skip, by number: 2 * layer is its attention, 2 * layer + 1 its MLP."""
EVERY = 64
"""Rounds between two comparisons with a rival: two drafter forwards in as many rounds
are 3% of the time.
"""
SOON = 2
"""Rounds between two comparisons of all exits, before the first choice."""
ENOUGH = 64
"""Verified draft tokens that compare masks, on the same texts, so that their noise
cancels.
"""
LEAST = 0.05
"""Forwards of the target. Least cost of one without sublayers: the embedding, the head
and the call itself stay.
"""
DEEPEST = 8
"""Tokens. Longest chain in `gain`."""


def neighbour(mask: Mask, halves: int, random: Random) -> Mask:
    """Return a mask that differs in one or two sublayers; once in eight times any mask
    of the same size.
    """
    if random.random() < 1 / 8:
        return frozenset(random.sample(range(halves), len(mask)))
    return mask ^ frozenset(random.sample(range(halves), random.choice((1, 2))))


def gain(agreement: float, cost: float) -> float:
    """Return the speed-up at the best chain length (Leviathan et al. 2023, theorem
    3.8); scoring costs one forward.

    `agreement` is the acceptance probability, `cost` a forward of the drafter as a
    share of the target's. Below 1 if drafting loses at any length, so that a search can
    rank two losing masks.
    """
    speed = 0.0
    earned = 1.0
    reached = 1.0
    for count in range(1, DEEPEST + 1):
        reached *= agreement
        earned += reached
        speed = max(speed, earned / (1 + count * cost))
    return speed


def exit_after(layers: int, of: int) -> Mask:
    """Return the mask of early exit: the first `layers`, then the head (LayerSkip,
    Elhoushi et al. 2024).
    """
    return frozenset(range(2 * layers, 2 * of))


def named(mask: Mask) -> dict[str, list[int]]:
    """Return a mask as numbers of layers, as in its file."""
    skip = skipped(mask)
    return {"attention": sorted(skip.attention), "mlp": sorted(skip.mlp)}


def save(mask: Mask, path: str | Path) -> None:
    """Write a mask to a JSON file, for `draft=`; whole or not at all."""
    with atomic_file(Path(path)) as partial:
        partial.write_text(json.dumps(named(mask)) + "\n")


def load(path: str | Path, target: Model) -> Mask:
    """Read a mask that `save` wrote.

    Raises InvalidRequest if there is none or it does not fit the target.
    """
    mask = read(path)
    if any(half not in range(len(costs(target))) for half in mask):
        raise InvalidRequest(
            f"cannot use the mask {path}: it skips layers that {target.name} does not "
            "have. Give another"
        )
    return mask


def read(path: str | Path) -> Mask:
    """Read a mask for any target. Raises InvalidRequest if there is none."""
    try:
        skip = json.loads(Path(path).read_text())
        attention = [2 * int(layer) for layer in skip["attention"]]
        mlp = [2 * int(layer) + 1 for layer in skip["mlp"]]
        return frozenset(attention + mlp)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"cannot read a mask from {path}: {name_of(error)}. Give a JSON file with "
            "the numbers of layers, "
            'such as {"attention": [3, 5], "mlp": [4]}, or leave draft=None to search '
            "on the fly"
        ) from error


def costs(target: Model) -> list[float]:
    """Return the cost of each sublayer as a share of a forward over one token: its
    share of the weights.
    """
    config = target.hf.config.get_text_config()
    heads = config.num_attention_heads + kv_heads(config)
    attention, mlp = 2 * heads * head_dim(config), 3 * inner_size(config)
    layers = layer_count(config)
    total = layers * (attention + mlp) + config.vocab_size
    return [attention / total, mlp / total] * layers


def cost_without(mask: Mask, halves: Sequence[float]) -> float:
    """Return the cost of a forward without these sublayers, in forwards of the target.

    `halves` are the costs of all sublayers.
    """
    return max(LEAST, 1.0 - sum(halves[half] for half in mask))


@dataclass(slots=True)
class _Trial:
    """Comparison of masks, the one in use first: how often each agreed with the target
    after the same texts.
    """

    masks: tuple[Mask, ...]
    verified: int = 0
    right: list[int] = field(init=False)
    outputs: dict[int, list[list[int]]] = field(default_factory=dict)
    """By sequence: tokens of each mask after each row of this round."""

    def __post_init__(self) -> None:
        self.right = [0] * len(self.masks)

    def best(self, halves: Sequence[float]) -> Mask:
        """Return the mask of the greatest gain, and the first of equals."""
        gains = [
            gain(right / self.verified, cost_without(mask, halves))
            for right, mask in zip(self.right, self.masks, strict=True)
        ]
        return self.masks[gains.index(max(gains))]


class LayersDrafter(SelfDrafter):
    """Drafter that runs the target without some sublayers; with `every` it searches for
    better masks while serving.

    Search on the fly (SWIFT, Xia et al. 2025, without a separate calibration):
    occasionally the mask in use and a rival both read the draft tokens before the
    target does, and the target's tokens then decide between them.
    """

    about = OWN_METHODS[NAME]

    def __init__(
        self,
        model: Model,
        costs: Sequence[float],
        mask: Mask,
        *,
        every: int = 0,
        exits: Sequence[Mask] = (),
        shares: bool = True,
    ) -> None:
        """Take `model`, a view of the target; `costs` from the function; `mask`, the
        sublayers to skip at first.

        A rival is compared after `every` rounds; 0 = never. Rivals are `exits`, in
        order, all of them first; any other mask if there are none.
        """
        super().__init__(model, shares=shares)
        self.mask = mask
        self.every = every
        self._exits = tuple(exits)
        self._costs = tuple(costs)
        self._random = Random(0)
        self._rounds = 0
        self._use(mask)
        others = tuple(one for one in exits if one != mask)
        self._chosen = not others
        self._trial = _Trial((mask, *others)) if others else self._next_trial()

    @classmethod
    def load(
        cls, source: Source, target: Model, tokenizer: Tokenizer | None
    ) -> LayersDrafter:
        """Load the mask file `source` (`save`), or leave early, as exit:4 says.

        None = choose among the exits that the target was trained for, or search for a
        mask while serving.
        """
        del tokenizer  # it is the target's own
        if not isinstance(source, str | Path | None):
            raise InvalidRequest(
                "cannot use this draft: the method takes no draft model. Give "
                "draft='mask.json' or draft='exit:4', or none to search"
            )
        halves = costs(target)
        layers = len(halves) // 2
        if source is not None:
            number = given_exit(source)
            if number is None:
                mask = load(source, target)
            else:
                name = f"draft={str(source)!r}"
                last = check_exit(number, layers, target.name, name)
                mask = exit_after(last, layers)
            return cls(view(target, spare=SPARE), halves, mask)
        exits = [exit_after(one, layers) for one in spread(trained_exits(target))]
        mask = exits[len(exits) // 2] if exits else first(layers)
        seen = view(target, spare=SPARE)
        return cls(seen, halves, mask, every=EVERY, exits=exits)

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        draft = super().propose(batch, nodes)
        if draft.probs is None and not draft.chain:
            draft = read_first(draft, [self._read(one) for one in batch.sequences])
        wait = self.every if self._chosen else min(self.every, SOON)
        if 0 < wait <= self._rounds and self._shares:
            self._compare(batch, draft)
        return draft

    def observe(
        self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores
    ) -> None:
        super().observe(batch, draft, verdict, scores)
        self._rounds += 1
        trial = self._trial
        for sequence, logits in zip(batch.sequences, scores.logits, strict=True):
            if sequence.id not in trial.outputs:  # nearly always
                continue
            truth = logits.argmax(-1).tolist()
            for place, tokens in enumerate(trial.outputs.pop(sequence.id)):
                trial.right[place] += sum(map(int.__eq__, tokens, truth))
                trial.verified += 0 if place else min(len(tokens), len(truth))
        trial.outputs.clear()
        if trial.verified >= ENOUGH:
            self.mask = trial.best(self._costs)
            self._use(self.mask)
            self._chosen = True
            self._trial = self._next_trial()

    def _next_trial(self) -> _Trial:
        """Return a comparison with a rival: the exit before or after, or a neighbour
        of the mask.
        """
        if len(self._exits) > 1:
            place = self._exits.index(self.mask)
            beside = self._exits[max(0, place - 1) : place + 2]
            others = [one for one in beside if one != self.mask]
            return _Trial((self.mask, self._random.choice(others)))
        rival = neighbour(self.mask, len(self._costs), self._random)
        return _Trial((self.mask, rival))

    def _read(self, sequence: Request) -> DraftTree:
        """Return the draft tokens that were read after a sequence, in this order."""
        memory = self._memories.get(sequence.id)
        return DraftTree() if memory is None else memory.tree

    def _compare(self, batch: Batch, draft: Draft) -> None:
        """Store the tokens of all masks after the last committed token and each draft
        token, before the target's forward.
        """
        reads = []
        for sequence, tree in zip(batch.sequences, draft.trees, strict=True):
            if tree.tokens:
                parents = None if draft.chain else tree.parents
                pending = sequence.pending + tree.tokens
                reads.append(
                    Read(
                        sequence.id,
                        sequence.cached,
                        pending,
                        parents,
                        keep=len(tree) + 1,
                    )
                )
        if not reads:
            return
        self._rounds = 0
        for mask in self._trial.masks:
            self._use(mask)
            outputs = (
                self.model.read(reads).argmax(-1).split([read.keep for read in reads])
            )
            for read, tokens in zip(reads, outputs, strict=True):
                self._trial.outputs.setdefault(read.id, []).append(tokens.tolist())
        self._use(self.mask)

    def _use(self, mask: Mask) -> None:
        assert isinstance(self.model.backend, Skipping)
        self.model.backend.skip(skipped(mask))


def first(layers: int) -> Mask:
    """Return the first mask of a search: the attention of every other layer between the
    first and the last two.
    """
    return frozenset(range(4, 2 * (layers - 2), 4))


def skipped(mask: Mask) -> LayerSkip:
    """Return the same sublayers by the numbers of their layers."""
    return LayerSkip(
        frozenset(half // 2 for half in mask if half % 2 == 0),
        frozenset(half // 2 for half in mask if half % 2),
    )
