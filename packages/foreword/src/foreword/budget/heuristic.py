"""The schedule of transformers: a draft length that follows the last outcome."""

from foreword.budget.base import DraftBudget, RoundResult
from foreword.types import Request


class HeuristicBudget(DraftBudget):
    """`num_assistant_tokens_schedule="heuristic_transient"` of transformers: a count
    for each request, at least 1.

    A tree counts as fully accepted if its longest branch is.
    """

    START = 5
    """Draft tokens in the first round of a request."""
    MORE = 2
    """Draft tokens added after a fully accepted round."""
    FEWER = 1
    """Draft tokens removed after any other."""

    def __init__(self, start: int = START) -> None:
        self._start = start
        self._counts: dict[int, int] = {}

    def nodes(self, request: Request, others: int) -> int:
        return self._counts.get(request.id, self._start)

    def learn(self, request: Request, outcome: RoundResult) -> None:
        if not outcome.drafted:
            return
        count = self.nodes(request, 0)
        if outcome.accepted == outcome.drafted:
            self._counts[request.id] = count + self.MORE
        else:
            self._counts[request.id] = max(1, count - self.FEWER)

    def release(self, request: Request) -> None:
        self._counts.pop(request.id, None)
