"""Lets the C allocator keep the memory of a step for the next one.

glibc gives large blocks back to the kernel at once, which has to clear every page of the next step's
activations and logits again.
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD = 32 << 20  # bytes; glibc accepts no more
_KEPT = 1 << 30  # bytes


def keep_freed_memory() -> None:
    """Affects the whole process; does nothing where there is no glibc."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
