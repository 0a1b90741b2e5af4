"""One speculator that is several, and chooses among them in every round."""

from foreword.engine.arms.arms import Arms

__all__ = ["Arms"]
