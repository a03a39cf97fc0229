"""The admin token, as `Authorization: Bearer <token>`: what opens the admin routes."""

import hmac
from collections.abc import Callable

from fastapi import Request

from pdgate.protocols.errors import Unauthorized


def knows(token: str) -> Callable[[Request], None]:
    """A dependency that raises Unauthorized for all other requests. `token` is not empty."""
    expected = f"Bearer {token}".encode()

    def check(request: Request) -> None:
        said = request.headers.get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(said, expected):
            raise Unauthorized("the admin token is missing or wrong")

    return check


def is_operator(token: str, admin_port: int | None) -> Callable[[Request], bool]:
    """Whether a request has the token, or came to the admin listener. An empty token opens nothing."""
    check = knows(token) if token else None

    def found(request: Request) -> bool:
        server = request.scope.get("server")
        if admin_port is not None and server is not None and server[1] == admin_port:
            return True
        if check is None:
            return False
        try:
            check(request)
        except Unauthorized:
            return False
        return True

    return found
