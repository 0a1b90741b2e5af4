"""The base of drafters that have others as members."""

from collections.abc import Sequence
from itertools import chain
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.draft.base import Drafter
from foreword.errors import InvalidRequest
from foreword.types import Batch, Draft, Request, Scores, Verdict


class JointDrafter(Drafter):
    """Base of drafters with several members. Every member learns from every round."""

    fewest: ClassVar[int] = 2
    """Members that make sense."""
    names: tuple[str, ...] = ()
    """Names of the members' methods."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        """Take the members. Raises InvalidRequest for fewer than `fewest`."""
        if len(drafters) < self.fewest:
            raise InvalidRequest(
                f"cannot join {len(drafters)} drafter(s): an ensemble needs at least "
                "two. Name more"
            )
        self.members = tuple(drafters)
        layers = chain.from_iterable(drafter.hidden_layers for drafter in self.members)
        self.hidden_layers = tuple(sorted(set(layers)))
        self.reads_target = any(drafter.reads_target for drafter in self.members)

    def observe(
        self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores
    ) -> None:
        for drafter in self.members:
            drafter.observe(batch, draft, verdict, scores)

    def on_hidden_states(
        self, request: Request, start: int, hidden: Float[Tensor, "tokens features"]
    ) -> None:
        states = dict(
            zip(
                self.hidden_layers,
                hidden.chunk(len(self.hidden_layers), -1),
                strict=True,
            )
        )
        for drafter in self.members:
            if drafter.hidden_layers:
                drafter.on_hidden_states(
                    request,
                    start,
                    torch.cat([states[layer] for layer in drafter.hidden_layers], -1),
                )

    def rest(self, took: float) -> None:
        for drafter in self.members:
            drafter.rest(took)

    def release(self, request: Request) -> None:
        for drafter in self.members:
            drafter.release(request)

    def _first_nonempty(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        """Return the first nonempty draft of a member: rules that compare distributions
        allow no mixing.
        """
        draft = self.members[0].propose(batch, nodes)
        for drafter in self.members[1:]:
            if draft.nodes:
                break
            draft = drafter.propose(batch, nodes)
        return draft
