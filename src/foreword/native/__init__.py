"""Code of ours in C, compiled once on the user's machine: each a fast way to what stands beside it in Python."""

from foreword.native.compiler import compiled

__all__ = ["compiled"]
