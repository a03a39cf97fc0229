"""An engine in a few numbers, as a card of the console shows it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pdgate.scheduling.account import unread_tokens_there
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.neighbours import calls_of_this_gateway

More = Callable[[Endpoint], Mapping[str, Any]]
"""What the engine tells of itself, as GET /admin/instances has it (gateway/verification/watch)."""


def card(endpoint: Endpoint, more: More, stranded: Mapping[str, int]) -> dict[str, Any]:
    """`calls` and `tokens` are this gateway's, of all its workers; `load` is the engine's word."""
    instance = endpoint.instance
    told = more(endpoint)
    kv = told.get("kv", {})
    return {
        "id": instance.id,
        "role": instance.role.value,
        "sides": None if endpoint.sides is None else sorted(s.value for s in endpoint.sides),
        "protocol": instance.protocol,
        "url": instance.url,
        "state": endpoint.state,
        "models": sorted(endpoint.models),
        "calls": calls_of_this_gateway(endpoint),
        "answering": endpoint.answering,
        "queued_tokens": unread_tokens_there(endpoint),
        "load": told.get("load"),
        "told_seconds_ago": told.get("told_seconds_ago"),
        "stranded": stranded.get(instance.id, 0),
        "hint": kv.get("hint"),
        "ejections": dict(endpoint.ejections),
    }


def cards(
    endpoints: Iterable[Endpoint], more: More, stranded: Mapping[str, int]
) -> list[dict[str, Any]]:
    return [card(endpoint, more, stranded) for endpoint in endpoints]
