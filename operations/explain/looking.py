"""The record of a call, from the gateway that served it."""

from typing import Any, Final
from urllib.parse import quote

from pdgate.operations.asking import BadAsk, Gateway, GatewayAway

TRIES: Final = 24
"""Each worker knows its own calls, and the kernel says who of them answers. With four workers one
of a thousand calls is missed by so many tries."""

_UNKNOWN: Final = "no recent call"
"""How the gateway begins to say that it has the route and not the call (gateway/app.py)."""


def record_of(gateway: Gateway, call_id: str) -> dict[str, Any]:
    """Raises BadAsk, GatewayAway."""
    path = "/debug/calls/" + quote(call_id, safe="/")
    for _ in range(TRIES):
        told = gateway.get(path)
        if told.status == 200 and isinstance(told.body, dict):
            return told.body
        if told.status != 404:
            raise GatewayAway(f"{gateway.url}{path} answered {told.status} {told.message}".rstrip())
        if not told.message.startswith(_UNKNOWN):
            raise BadAsk(
                f"{gateway.url} does not tell of calls: start it with --debug-routes, and if it has "
                "an --admin-listen, ask that address"
            )
    raise BadAsk(
        f"{gateway.url} knows no call {call_id!r}: it keeps the last 1024 of each worker, by "
        "the x-request-id that their clients got"
    )
