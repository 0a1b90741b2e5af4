"""Rounds of decoding: propose, score, verify, commit."""

from foreword.engine.engine import Engine

__all__ = ["Engine"]
