"""Keeps what a training frees for what it asks for next, instead of giving it back to the system every time.

A step makes tensors of tens of megabytes and lets them go. The GNU C library returns blocks that large to the system
at once, and the system clears each page when it is touched anew: a third of the time of a step on a CPU, as measured.

Knows the C library; knows nothing about what is trained.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
"""Names of glibc's settings (mallopt(3))."""
AHEAD = 256 * 2**20
"""Bytes that are asked for beyond what is needed, when more is needed."""


def keep_freed() -> bool:
    """From here on this process keeps the memory that it frees. Returns whether its C library can be told to."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return False
    return all([mallopt(_MMAP_MAX, 0), mallopt(_TRIM_THRESHOLD, -1), mallopt(_TOP_PAD, AHEAD)])
