"""Who may use the admin routes: who sends "Authorization: Bearer <token>"."""

import hmac
from collections.abc import Callable

from fastapi import Request

from pdgate.protocols.errors import Unauthorized


def knows(token: str) -> Callable[[Request], None]:
    """A dependency that raises Unauthorized for everybody else. `token` is not empty."""
    expected = f"Bearer {token}".encode()

    def check(request: Request) -> None:
        said = request.headers.get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(said, expected):
            raise Unauthorized("the admin token is missing or wrong")

    return check
