"""Drafts that are looked up in every round where they pay, until the text leaves."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from foreword.budget.choice import Choice, Speeds, Text
from foreword.engine.member import Member
from foreword.engine.reading import Allowance
from foreword.estimators import running_mean
from foreword.types import DraftTree, Request

Load = tuple[int, float]
"""Requests that write in a round, and its expected seconds without draft tokens."""
LOOKING = 0.002
"""Share of the time that looking up drafts that do not pay may take."""


@dataclass(slots=True)
class Lookup:
    """A draft that was looked up, and how far the text has followed it."""

    tree: DraftTree
    seen: int
    """Tokens of the text that were compared, or were there before."""
    expected: float = 0.0
    """Draft tokens that were expected to be accepted."""
    children: dict[int, dict[int, int]] = field(init=False)
    node: int = -1
    accepted: int = 0

    def __post_init__(self) -> None:
        self.children = self.tree.children_by_token()

    def follow(self, tokens: Sequence[int]) -> bool:
        """Follow the text, and return whether it has left the draft."""
        for token in tokens[self.seen :]:
            child = self.children.get(self.node, {}).get(token)
            if child is None:
                return True
            self.node = child
            self.accepted += 1
        self.seen = len(tokens)
        return self.node not in self.children


class Looker:
    """Looks drafts up where they pay, else within a share of the time."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
        self.lookups = [one.number for one in members if one.looks_up]
        self._took = 0.0
        """Seconds of looking drafts up for a request."""
        self._looking = Allowance(LOOKING)
        self._drafts: dict[int, dict[int, Lookup]] = {}
        """By request and member: the draft that is compared with the text."""
        self._missed: set[int] = set()
        """Ids of the requests for which nothing was found in the last round."""
        self._speeds: dict[int, tuple[int, Speeds]] = {}
        """By request: the length of its text and the speeds of what was found then."""

    def save_up(self, took: float) -> None:
        """Grant a share of a round that took so many seconds."""
        self._looking.grant(took)

    def missed(self, request: Request) -> bool:
        """Whether nothing was found when drafts were looked up last."""
        return request.id in self._missed

    def speeds(self, request: Request, length: int) -> Speeds:
        """Return the speeds of the drafts that were found after so many tokens."""
        counted, speeds = self._speeds.get(request.id, (0, {}))
        return speeds if counted == length else {}

    def release(self, request: Request) -> None:
        """Forget a request."""
        self._speeds.pop(request.id, None)
        self._drafts.pop(request.id, None)
        self._missed.discard(request.id)

    def rests(self, choice: Choice, text: Text, plain: float) -> bool:
        """Whether nothing is looked up in the next round, of `plain` seconds."""
        if choice.guard.stops_lookups:
            return True
        if self._pays(text, plain):
            return False
        return not self._looking.covers(0.0)

    def _pays(self, text: Text, plain: float) -> bool:
        return text.gain * plain > self._took

    def look(
        self, request: Request, choice: Choice, text: Text, load: Load
    ) -> int | None:
        """Look drafts up, and return the method of the best one, if it is better than
        the method in use: its member drafts it in this round.
        """
        texts, plain = load
        drafts = self._drafts.setdefault(request.id, {})
        self._settle(request, choice, text, drafts)
        best, largest = None, 0.0
        # an answer seldom begins as something before it goes on
        if not request.produced or self.rests(choice, text, plain):
            return best
        before, pays = perf_counter(), self._pays(text, plain)
        self._missed.add(request.id)
        speeds: Speeds = {}
        self._speeds[request.id] = len(request.tokens), speeds
        for number in self.lookups:
            member = self._members[number]
            if member.failures.is_off(request):
                continue
            tree = DraftTree()
            with member.failures.contained(request):
                tree = member.look(request, texts)
            if not tree.tokens:
                continue
            self._missed.discard(request.id)
            tree, expected = _worthy(choice, text, number, tree, texts)
            gain = choice.gain(expected, len(tree), texts)
            rows = len(tree)
            spent = 1.0 + rows * choice.row * texts
            speeds[number] = (1.0 + min(expected, rows)) / spent
            if number not in drafts:
                expected = expected_tokens(choice, text, number, tree)
                drafts[number] = Lookup(tree, len(request.tokens), expected)
            if gain > largest:
                best, largest = number, gain
                member.found[request.id] = tree
        choice.looked(text, largest)
        took = perf_counter() - before
        self._took = running_mean(self._took, took)
        if not pays:
            self._looking.spend(took)
        return best

    def settle(self, request: Request, number: int) -> None:
        """Leave out a draft that has had a round of its own."""
        self._drafts.get(request.id, {}).pop(number, None)

    def _settle(
        self,
        request: Request,
        choice: Choice,
        text: Text,
        drafts: dict[int, Lookup],
    ) -> None:
        """Record the drafts that the text has left."""
        for number, draft in list(drafts.items()):
            if draft.follow(request.tokens):
                del drafts[number]
                depth = max(draft.tree.depths)
                accepted = draft.accepted
                choice.saw(text, number, depth, accepted)
                agreement = choice.agreement[number]
                agreement.calibrate(draft.expected, accepted)


def _worthy(
    choice: Choice, text: Text, number: int, tree: DraftTree, texts: int
) -> tuple[DraftTree, float]:
    """Return the part of a draft that gains most, and how many of its tokens should be
    accepted; of one that gains nothing, all of it.
    """
    share = choice.agreement[number].calibration
    speed = choice.speeds.get(choice.current, 1.0)
    price = speed * choice.row * texts
    if tree.probabilities:
        nodes = tree.best(len(tree), price / share)
        probabilities = [tree.probabilities[node] for node in nodes]
        return _pruned(tree, nodes), share * sum(probabilities)
    expected, length = 0.0, 0
    earned = largest = 0.0
    for count, each in enumerate(choice.reached(text, number), 1):
        earned += share * each
        gain = earned - price * count
        if count <= len(tree) and gain > largest:
            largest = gain
            expected, length = earned, count
    return _pruned(tree, range(length)), expected


def _pruned(tree: DraftTree, nodes: Sequence[int]) -> DraftTree:
    return tree.pruned(nodes) if nodes else tree


def expected_tokens(choice: Choice, text: Text, number: int, tree: DraftTree) -> float:
    """Return how many tokens of a looked-up draft should be accepted."""
    if tree.probabilities:
        return sum(tree.probabilities)
    return choice.expected(text, number, max(tree.depths))
