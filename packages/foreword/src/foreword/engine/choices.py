"""The choices among methods by kind of request, and what is kept of them on disk."""

from collections.abc import Collection, Sequence
from functools import partial

from foreword.budget.choice import Choice, Kind
from foreword.budget.kept import KeptStates, kind_name


class Choices:
    """One choice for each kind of request, under one rule and budget policy."""

    def __init__(
        self,
        choices: dict[Kind, Choice],
        methods: tuple[int, Collection[int]],
        labels: Sequence[str],
        states: KeptStates,
        policy: tuple[str, str],
    ) -> None:
        """`choices`: the first ones; new ones are added there. `methods`: how many, and
        the ones that look drafts up. `labels`: methods with their sources; nothing is
        kept of one without a label. `policy`: the names of the
        rule and of the budget.
        """
        self._choices = choices
        self._methods = methods
        self._labels = {number: label for number, label in enumerate(labels) if label}
        self._states = states
        self._policy = policy

    def of(self, kind: Kind) -> Choice:
        """Return the choice of a kind; it starts from the disk, or the nearest kind."""
        choice = self._choices.get(kind)
        if choice is None:
            choice = Choice(*self._methods)
            if self._choices:
                nearest = min(self._choices, key=partial(_distance, kind))
                choice.start_from(self._choices[nearest])
            name = kind_name(*self._policy, *kind)
            for number, label in self._labels.items():
                state = self._states.values(name, label)
                choice.recall(number, state)
            self._choices[kind] = choice
        return choice

    def keep(self, kind: Kind) -> None:
        """Keep what is known of a kind; a text of it has ended."""
        name, choice = kind_name(*self._policy, *kind), self._choices[kind]
        for number, label in self._labels.items():
            state = choice.state(number)
            if state:
                self._states.record(name, label, state)


def _distance(kind: Kind, other: Kind) -> tuple[bool, int]:
    """Return how unlike two kinds are; first, whether they are sampled differently."""
    (sort, bits), (other_sort, other_bits) = kind, other
    return sort != other_sort, abs(bits - other_bits)
