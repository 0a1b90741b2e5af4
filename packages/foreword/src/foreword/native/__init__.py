"""C implementations, compiled once on the user's machine, of what Python also
implements; and Triton.
"""

from foreword.native.compiler import compiled

__all__ = ["compiled"]
