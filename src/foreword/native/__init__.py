"""Fast ways to what stands beside them in Python: C of ours, compiled once on the user's machine, and Triton."""

from foreword.native.compiler import compiled

__all__ = ["compiled"]
