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
        spelled = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        why = error.strerror or error
        raise CannotListen(f"cannot listen on {spelled}: {why}; {flag} names another") from None
    at.set_inheritable(True)
    return at
