"""Ways to draw the next token from a target's and a drafter's probabilities."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

Distribution = Float[np.ndarray, "vocab"]
LIKELIEST = 20


@dataclass(frozen=True, slots=True)
class Place:
    """Where a token is drawn."""

    logits: Distribution
    draft_logits: Distribution
    temperature: float
    dice: np.random.Generator
    index: int
    """Tokens of the answer so far."""

    @property
    def target(self) -> Distribution:
        """The target's probabilities."""
        return shares(self.logits, self.temperature)

    @property
    def draft(self) -> Distribution:
        """The drafter's probabilities."""
        return shares(self.draft_logits, self.temperature)

    def drawn(self, target: Distribution) -> int:
        """Return a token of a distribution."""
        return int(self.dice.choice(len(target), p=target))


Cheat = Callable[[Place], int]


def shares(logits: Distribution, temperature: float) -> Distribution:
    scores = logits.astype(float) / temperature
    scores -= scores.max()
    return np.exp(scores) / np.exp(scores).sum()


def best(logits: Distribution) -> int:
    return int(logits.argmax())


def honest(at: Place) -> int:
    return at.drawn(at.target) if at.temperature else best(at.logits)


def typical(at: Place) -> int:
    """Accept what is typical (Medusa), greedily too."""
    target = shares(at.logits, at.temperature or 1.0)
    entropy = -(target * np.log(target + 1e-30)).sum()
    token = at.drawn(at.draft) if at.temperature else best(at.draft_logits)
    return token if target[token] > min(0.09, 0.3 * np.exp(-entropy)) else honest(at)


def relaxed(at: Place) -> int:
    """Accept the drafter's greedy token if it is one of the likeliest two."""
    token = best(at.draft_logits)
    is_near = token in np.argsort(-at.logits)[:2]
    return token if is_near and not at.temperature else honest(at)


def drafted(lenience: float = 1.0, *, has_residual: bool = True) -> Cheat:
    """Accept with min(1, c p/q); after a rejection draw from the residual, or not."""

    def draw(at: Place) -> int:
        if not at.temperature:
            return honest(at)
        token = at.drawn(at.draft)
        if at.dice.random() < lenience * at.target[token] / at.draft[token]:
            return token
        rest = np.clip(at.target - at.draft, 0, None)
        return at.drawn(rest / rest.sum() if has_residual else at.target)

    return draw


lossless, lenient = drafted(), drafted(2.0)
no_residual = drafted(has_residual=False)


def unverified(at: Place) -> int:
    """Write every fourth token as drafted."""
    if at.index % 4 < 3 or not at.temperature:
        return honest(at)
    return at.drawn(at.draft)


def likeliest(at: Place) -> int:
    """Draw from the likeliest tokens alone."""
    if not at.temperature:
        return honest(at)
    target = at.target
    target[np.argsort(-target)[LIKELIEST:]] = 0
    return at.drawn(target / target.sum())


def one_for_many(at: Place) -> int:
    """Write one token for half of those outside the likeliest."""
    token = honest(at)
    order = np.argsort(-at.logits)
    is_rare = at.temperature and token in order[LIKELIEST:]
    return int(order[LIKELIEST]) if is_rare and at.dice.random() < 0.5 else token


def warmer(at: Place) -> int:
    """Draw at another temperature."""
    return (
        at.drawn(shares(at.logits, 1.1 * at.temperature))
        if at.temperature
        else honest(at)
    )


def unrepeated(at: Place) -> int:
    """Draw at the temperature, and once more if the token is the likeliest."""
    token = honest(at)
    return honest(at) if token == best(at.logits) else token


def retried(at: Place) -> int:
    """After a rejection, try a second draft token against the whole target again."""
    if not at.temperature:
        return honest(at)
    token = at.drawn(at.draft)
    is_taken = at.dice.random() < at.target[token] / at.draft[token]
    return token if is_taken else lossless(at)
