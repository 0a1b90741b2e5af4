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
from foreword.errors import InvalidRequest
from foreword.errors import named as name_of
from foreword.files import atomic_file
from foreword.model import Model, Read, Tokenizer
from foreword.model.architectures import head_dim, inner_size, kv_heads
from foreword.model.layers import layer_count
from foreword.model.skip import LayerSkip
from foreword.model.view import Skipping, view
from foreword.registry import OWN_METHODS
from foreword.types import Batch, Draft, Scores, Verdict

NAME = "layers"
"""Of the method."""
Mask = frozenset[int]
"""Sublayers to skip, by number: 2 * layer is its attention, 2 * layer + 1 its MLP."""
EVERY = 64
"""Rounds between two comparisons with a rival: two drafter forwards in as many rounds
are 3% of the time.
"""
ENOUGH = 64
"""Verified draft tokens that compare two masks, on the same texts, so that their noise
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
    """Comparison of the mask in use with a rival: how often each agreed with the target
    after the same texts.
    """

    rival: Mask
    verified: int = 0
    right: list[int] = field(default_factory=lambda: [0, 0])
    outputs: dict[int, list[list[int]]] = field(default_factory=dict)
    """By sequence: tokens of the mask in use and of the rival after each row of this
    round.
    """


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
        shares: bool = True,
    ) -> None:
        """Take `model`, a view of the target; `costs` from the function; `mask`, the
        sublayers to skip at first.

        A rival is compared after `every` rounds; 0 = never.
        """
        super().__init__(model, shares=shares)
        self.mask, self.every = mask, every
        self._costs = tuple(costs)
        self._random = Random(0)
        self._rounds = 0
        self._use(mask)
        self._trial = _Trial(neighbour(mask, len(costs), self._random))

    @classmethod
    def load(
        cls, source: Source, target: Model, tokenizer: Tokenizer | None
    ) -> LayersDrafter:
        """Load the mask file `source` (`save`); None = search for one while serving."""
        del tokenizer  # it is the target's own
        if not isinstance(source, str | Path | None):
            raise InvalidRequest(
                "cannot use this draft: the method takes no draft model. Give "
                "draft='mask.json', or none to search"
            )
        halves = costs(target)
        mask = first(len(halves) // 2) if source is None else load(source, target)
        return cls(
            view(target, spare=SPARE),
            halves,
            mask,
            every=EVERY if source is None else 0,
        )

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        draft = super().propose(batch, nodes)
        if 0 < self.every <= self._rounds and self._shares:
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
                trial.verified += min(len(tokens), len(truth)) if place else 0
        trial.outputs.clear()
        if trial.verified >= ENOUGH:
            ours, theirs = (
                gain(right / trial.verified, cost_without(mask, self._costs))
                for right, mask in zip(
                    trial.right, (self.mask, trial.rival), strict=True
                )
            )
            if theirs > ours:
                self.mask = trial.rival
                self._use(self.mask)
            self._trial = _Trial(neighbour(self.mask, len(self._costs), self._random))

    def _compare(self, batch: Batch, draft: Draft) -> None:
        """Store both masks' tokens after the last committed token and each draft token,
        before the target's forward.
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
        for mask in (self.mask, self._trial.rival):
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
