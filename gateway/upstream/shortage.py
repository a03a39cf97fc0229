"""Shortage on our own host: whether a connection failed for want of it, and not at the engine.

    EMFILE, ENFILE           no file descriptor, for this process or for the host
    EADDRNOTAVAIL            no free port of ours towards that address
    ENOBUFS, ENOMEM          no memory in the kernel

A host name that cannot be looked up for want of a descriptor fails as if its server were away, and
several addresses fail together without an errno; so there a socket is asked for, which tells.

Source: connect(2), socket(2); asyncio.loop.create_connection for "Multiple exceptions".
"""

import errno
import socket
from typing import Final

RETRY_AFTER_SECONDS: Final = 2

_OURS: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM}
)


def is_ours(error: BaseException) -> bool:
    """For what connecting raised."""
    if not isinstance(error, OSError):
        return False
    if error.errno is None or isinstance(error, socket.gaierror):
        return _no_socket_left()
    return error.errno in _OURS


def _no_socket_left() -> bool:
    try:
        socket.socket().close()
    except OSError as error:
        return error.errno in _OURS
    return False
