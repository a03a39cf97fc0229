"""Addresses of both ends of a client's connection, as ASGI names them."""

import asyncio

Address = tuple[str, int | None]


def local_address(transport: asyncio.Transport) -> Address:
    """Host and port; or the path of a Unix socket, and None."""
    socket = transport.get_extra_info("socket")
    found = transport.get_extra_info("sockname") if socket is None else socket.getsockname()
    return _spelled(found) or ("", None)


def peer_address(transport: asyncio.Transport) -> Address | None:
    """None for a client that has left."""
    socket = transport.get_extra_info("socket")
    try:
        found = transport.get_extra_info("peername") if socket is None else socket.getpeername()
    except OSError:
        return None
    return _spelled(found)


def _spelled(found: object) -> Address | None:
    if isinstance(found, tuple) and len(found) >= 2:
        return str(found[0]), int(found[1])
    return (str(found), None) if found else None
