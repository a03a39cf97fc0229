"""Addresses of both ends of a client's connection, as ASGI names them."""

import asyncio
import socket
import sys
from typing import Final

Address = tuple[str, int | None]

_TCP_INFO: Final = getattr(socket, "TCP_INFO", None)
_ESTABLISHED: Final = 1
"""First byte of a Linux's tcp_info. Source: include/uapi/linux/tcp.h; enum in include/net/tcp_states.h."""


def local_address(transport: asyncio.Transport) -> Address:
    """Host and port; or the path of a Unix socket, and None."""
    end = transport.get_extra_info("socket")
    found = transport.get_extra_info("sockname") if end is None else end.getsockname()
    return _spelled(found) or ("", None)


def peer_address(transport: asyncio.Transport) -> Address | None:
    """None for a client that has left."""
    end = transport.get_extra_info("socket")
    try:
        found = transport.get_extra_info("peername") if end is None else end.getpeername()
    except OSError:
        return None
    return _spelled(found)


def peer_has_left(transport: asyncio.Transport) -> bool:
    """Whether the client has closed or reset the connection; what it sent before may be unread still.

    False where that cannot be told: of a Unix socket, and where there is no Linux.
    """
    end = transport.get_extra_info("socket")
    if end is None or _TCP_INFO is None or sys.platform != "linux":
        return False
    try:
        state: int = end.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)[0]
    except OSError:
        return False
    return state != _ESTABLISHED


def _spelled(found: object) -> Address | None:
    if isinstance(found, tuple) and len(found) >= 2:
        return str(found[0]), int(found[1])
    return (str(found), None) if found else None
