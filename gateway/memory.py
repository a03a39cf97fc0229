"""Memory settings of a serving process.

Bodies of a hundred kilobytes come and go with every call. By default glibc gives their pages back
to the kernel at once and asks for them again with the next call, so each page is cleared and
mapped anew: as many page faults as pages. And Python's garbage collector looks, again and
again, through all that was imported, which stays anyway.
"""

import ctypes
import gc
import logging
from typing import Final

log = logging.getLogger(__name__)

# malloc.h of glibc.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

KEPT_BYTES: Final = 64 << 20
"""Of freed memory at the heap's end, that stay with the process."""

LARGEST_BYTES: Final = 2 << 20
"""A larger piece is mapped for itself, and given back when it is freed. Bodies of 8 MB, mixed with smaller ones in the
heap, left holes in it: 540 MB were resident where 450 are."""


def keep() -> None:
    """Keep freed memory; once, when everything has been imported and built."""
    _keep_freed_pages()
    # Garbage would be frozen, too.
    gc.collect()
    gc.freeze()


def _keep_freed_pages() -> None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        log.info("this C library has no mallopt: large bodies cost a little more")
        return
    # Each thread would have a heap of its own, which keeps as much: those that read large bodies kept 80 MB and more.
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_THRESHOLD, LARGEST_BYTES)
    mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
