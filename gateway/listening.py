"""Sockets at which a gateway listens, before anything else of it is there."""

import socket


class CannotListen(Exception):
    """The address cannot be had; the message says whose it is, and what to do.

    Not the configuration's fault: the process that had the port may be about to leave, so a
    supervisor that starts the gateway again does well.
    """


def bound(host: str, port: int, flag: str) -> socket.socket:
    """Workers inherit it. `flag` says where to name another address. Raises CannotListen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    at = socket.socket(family)
    try:
        at.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        at.bind((host, port))
    except OSError as error:
        at.close()
        raise _cannot(host, port, error, flag) from None
    at.set_inheritable(True)
    return at


def shared_port(host: str, port: int, flag: str) -> socket.socket:
    """Keep a port for servers of several processes that bind it by themselves; it accepts no connection.

    Raises CannotListen, also where another program listens there that would share it.
    """
    found = bound(host, port, flag)
    host_, port_ = found.getsockname()[:2]
    found.close()
    at = socket.socket(found.family)
    try:
        at.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        at.bind((host_, port_))
    except OSError as error:
        at.close()
        raise _cannot(host, port_, error, flag) from None
    return at


def _cannot(host: str, port: int, error: OSError, flag: str) -> CannotListen:
    spelled = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return CannotListen(
        f"cannot listen on {spelled}: {error.strerror or error}; {flag} names another"
    )
