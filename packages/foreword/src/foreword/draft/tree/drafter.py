"""The drafter that grows coupled or sampled trees, by levels, from a model's logits."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from foreword.draft.base import Drafter
from foreword.draft.tree.calibration import Calibration
from foreword.draft.tree.coupled import BREADTH, DEEP, SHARPER, CoupledTree
from foreword.model import Mode, Model, Read
from foreword.registry import Method
from foreword.sampling.draw import draw
from foreword.sampling.logits import weights
from foreword.sampling.noise import gumbel
from foreword.types import Batch, Draft, DraftTree, Request, Scores, Verdict
from foreword.types.growth import GrownTree, TreeRequest
from foreword.types.request import NoiseSource

if TYPE_CHECKING:
    from foreword.draft.tree.sampled import SampledTree
    from foreword.draft.tree.shapes import AdaptiveShape

CHUNK = 512
"""Tokens. Longest forward over a long text, which bounds its memory."""
ROOM = 256
"""Cache positions reserved beyond a text for draft tokens."""


@runtime_checkable
class DraftModel(Protocol):
    """Source of logits for drafting: a draft model, or a trained head.

    One whose distributions depend on a draft token's depth, not on the draft tokens
    before it, also has `ahead(read)`: it returns the raw logits of every depth at once.
    """

    @property
    def mode(self) -> Mode: ...

    @property
    def context(self) -> int: ...

    def close(self, id: int) -> None: ...

    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]: ...

    def grow(self, read: Read, ask: TreeRequest) -> GrownTree | None:
        """Grow a whole tree in one call; None if it cannot."""
        ...


class ModelDrafter(Drafter):
    """Drafter that reads logits after the text, then after promising nodes."""

    about = Method(draws=True)
    deep: int = DEEP
    """Most levels."""
    quantizable: Model | None = None
    """The draft model, if it may be quantized to int8."""

    def __init__(self, draft_model: DraftModel) -> None:
        self.draft_model = draft_model
        self.calibration = Calibration()
        self._coupled: dict[int, CoupledTree] = {}

    def anew(self) -> "ModelDrafter":
        """Return a drafter with the same model that has learnt from no text."""
        twin = copy(self)
        twin.calibration = Calibration()
        vars(twin).pop("_shapes", None)
        return twin

    @cached_property
    def _shapes(self) -> "AdaptiveShape":
        from foreword.draft.tree.shapes import AdaptiveShape

        return AdaptiveShape()

    @cached_property
    def _sampled_tree(self) -> "type[SampledTree]":
        """The class; a rule that draws with shared noise never needs it."""
        from foreword.draft.tree.sampled import SampledTree

        return SampledTree

    @abstractmethod
    def prefill(self, request: Request) -> Read:
        """Read a request up to its end; return the Read of the end."""

    def begin(
        self, batch: Batch, budget: Sequence[int], reads: dict[int, Read]
    ) -> None:
        """Prepare the reads of the ends, by row; `budget`: draft tokens of each row."""

    def remember(self, request: Request, tree: DraftTree) -> None:
        """Record that these draft tokens were read after the text, in this order."""

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        budget = [
            self.fit(batch, s, n) for s, n in zip(batch.requests, nodes, strict=True)
        ]
        reads = {
            row: self.prefill(batch.requests[row])
            for row, count in enumerate(budget)
            if count
        }
        self.begin(batch, budget, reads)
        if (
            not batch.draws.wants_probs
            and self.draft_model.mode is Mode.TREE
            and batch.stops is None
        ):
            return self._grow(batch, budget, reads)
        return self._sample(batch, budget, reads)

    def observe(
        self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores
    ) -> None:
        """Update acceptance estimates and calibration from the verdict."""
        if batch.draws.wants_probs:
            self._shapes.learn(draft, verdict)
        if not self._coupled:
            return
        for request, emitted in zip(batch.requests, verdict.said(draft), strict=True):
            coupled = self._coupled.pop(request.id, None)
            if coupled is not None:
                coupled.learn(emitted)

    def release(self, request: Request) -> None:
        self.draft_model.close(request.id)
        self._coupled.pop(request.id, None)

    def rereads(self, request: Request) -> bool:
        """Whether `reread` can score it on this request."""
        room = self.draft_model.context - len(request.tokens)
        return room > 0 and not request.params.reads_path

    def reread(self, request: Request, noise: NoiseSource) -> list[bool]:
        """Read what others wrote since the last draft; return for each token of the
        answer among it, after the first, whether this drafter would have drafted it
        after the text before it.
        """
        read = self.prefill(request)
        count = min(len(read.tokens) - 1, len(request.tokens) - request.prompt)
        # row i is followed by the token after its own
        logits = self.logits([replace(read, keep=count + 1)])[:count]
        if not count:
            return []
        scores, keys = weights(logits, request), noise.written(request, count)
        drawn = (
            None
            if keys is None
            else gumbel(keys, scores.shape[-1], device=scores.device)
        )
        choices = draw(SHARPER * scores, drawn).tolist()
        pairs = zip(choices, request.tokens[-count:], strict=True)
        return [choice == token for choice, token in pairs]

    def reach(self, batch: Batch, request: Request) -> int:
        """Return the most useful depth of a draft, within the model's context."""
        return max(
            0,
            min(
                batch.reach(request),
                self.deep,
                self.draft_model.context - len(request.tokens),
            ),
        )

    def fit(self, batch: Batch, request: Request, nodes: int) -> int:
        """Return the most draft tokens for a request, up to `nodes`."""
        return nodes if self.reach(batch, request) else 0

    def logits(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        """Return the raw logits of what follows, in the target's vocabulary."""
        return self.draft_model.read(reads)

    def _grow(
        self, batch: Batch, budget: Sequence[int], reads: dict[int, Read]
    ) -> Draft:
        """Grow coupled trees, one forward per level for all requests together."""
        breadth = BREADTH if batch.trees else 1
        trees = {
            row: CoupledTree(
                one,
                budget[row],
                batch.floor,
                self.calibration,
                breadth,
                self.reach(batch, one),
                batch.expand,
            )
            for row, one in enumerate(batch.requests)
            if row in reads
        }
        pending = {
            row: read
            for row, read in reads.items()
            if not self._at_once(batch, trees[row], read)
        }
        while pending:
            parts = self.logits(list(pending.values())).split(
                [read.keep for read in pending.values()]
            )
            for row, logits in zip(pending, parts, strict=True):
                trees[row].extend(batch, logits)
            following = [
                (row, trees[row].next(reads[row].past + len(reads[row].tokens)))
                for row in pending
            ]
            pending = {row: read for row, read in following if read is not None}
        for row, tree in trees.items():
            self._coupled[reads[row].id] = tree
            self.remember(batch.requests[row], tree.expanded)
        rows = range(len(batch))
        return Draft([trees[row].tree if row in trees else DraftTree() for row in rows])

    def _at_once(self, batch: Batch, tree: CoupledTree, read: Read) -> bool:
        """Grow the whole tree in one call, if the model can; return whether it did."""
        if not tree.request.params.plain:
            return False
        if tree.at_once(batch, self.draft_model.grow, read):
            return True
        ahead = getattr(self.draft_model, "ahead", None)
        if ahead is not None:
            tree.predicted_block(batch, ahead(read))
        return ahead is not None

    def _sample(
        self, batch: Batch, budget: Sequence[int], reads: dict[int, Read]
    ) -> Draft:
        """Sample trees, one forward per level; chains where no trees are supported."""
        # draft tokens are stored apart from the text
        held = self.draft_model.mode is Mode.TREE
        trees = held and batch.trees and batch.draws.wants_probs
        depths = [self.reach(batch, request) for request in batch.requests]
        sizes = zip(budget, depths, strict=True)
        if trees:
            shapes = [self._shapes.shape(most, deep) for most, deep in sizes]
        else:
            shapes = [tuple(range(-1, min(most, deep) - 1)) for most, deep in sizes]
        sampled = self._sampled_tree(batch, shapes)
        ends = {row: read.past + len(read.tokens) for row, read in reads.items()}
        level: dict[int, list[int]] = {row: [-1] for row in reads}
        read: dict[int, list[int]] = {row: [] for row in reads}
        while reads:
            parts = self.logits(list(reads.values())).split(
                [one.keep for one in reads.values()]
            )
            for row, logits in zip(list(reads), parts, strict=True):
                fresh = [
                    new
                    for node, last in zip(level[row], logits, strict=True)
                    for new in sampled.draw(row, node, last)
                ]
                level[row] = [node for node in fresh if sampled.branches(row, node)]
                last_read, before = reads.pop(row), len(read[row])
                if level[row]:
                    read[row] += level[row]
                    tree = sampled.tree(row, read[row])
                    tokens, count = tree.tokens[before:], len(level[row])
                    reads[row] = (
                        Read(
                            last_read.id,
                            ends[row],
                            tokens,
                            tree.parents,
                            count,
                            held=before,
                        )
                        if held
                        else Read(last_read.id, ends[row] + before, tokens)
                    )
        for row in ends:
            self.remember(batch.requests[row], sampled.tree(row, read[row]))
        return sampled.draft()


def capacity(request: Request) -> int:
    """Return the cache positions that a request and its draft tokens can need."""
    return request.prompt + request.params.max_tokens + ROOM


def catch_up(
    id: int, past: int, tokens: list[int], read: Callable[[Read], object]
) -> Read:
    """Pass chunks of `tokens`, which stand from position `past` on, to `read` until at
    most one is left; return that one, whose logits predict the next token.
    """
    first = 0
    while len(tokens) - first > CHUNK:
        read(Read(id, past + first, tokens[first : first + CHUNK], keep=0))
        first += CHUNK
    return Read(id, past + first, tokens[first:])
