"""Record of a call, from the gateway that served it.

GET /debug/calls/{id}    with --debug-routes: of the worker that happens to answer
GET /admin/calls/{id}    with an admin token and the console: of whichever worker served it
"""

from typing import Any, Final
from urllib.parse import quote

from pdgate.operations.asking import BadAsk, Gateway, GatewayAway

DEBUG: Final = "/debug/calls/"
ADMIN: Final = "/admin/calls/"

TRIES: Final = 24
"""Each worker knows its own calls, and the kernel says which of them answers. With four workers one
of a thousand calls is missed by so many tries."""

_UNKNOWN: Final = "no recent call"
"""How the gateway begins to say that it has the route and not the call (gateway/app.py)."""


def record_of(gateway: Gateway, call_id: str) -> dict[str, Any]:
    """Raises BadAsk, GatewayAway."""
    for route, tries in ((DEBUG, TRIES), (ADMIN, 1)):
        for _ in range(tries):
            found = _asked(gateway, route + quote(call_id, safe="/"))
            if found is None:
                break
            if found:
                return found
        else:
            raise BadAsk(
                f"{gateway.url} knows no call {call_id!r}: it keeps the last 1024 of each worker, by "
                "the x-request-id that their clients got"
            )
    raise BadAsk(
        f"{gateway.url} does not tell of calls: start it with --debug-routes or with "
        "--admin-token-file, and if it has an --admin-listen, ask that address"
    )


def _asked(gateway: Gateway, path: str) -> dict[str, Any] | None:
    """Empty if the call is not known there; None if the route is not. Raises BadAsk, GatewayAway."""
    told = gateway.get(path)
    if told.status == 200 and isinstance(told.body, dict):
        return told.body
    if told.status != 404:
        raise GatewayAway(f"{gateway.url}{path} answered {told.status} {told.message}".rstrip())
    return {} if told.message.startswith(_UNKNOWN) else None
