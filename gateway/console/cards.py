"""An engine in a few numbers, as a card of the console shows it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pdgate.scheduling.account import unread_tokens_there
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.neighbours import calls_of_this_gateway

More = Callable[[Candidate], Mapping[str, Any]]
"""What the engine tells of itself, as GET /admin/instances has it (gateway/verification/watch)."""


def card(candidate: Candidate, more: More, stranded: Mapping[str, int]) -> dict[str, Any]:
    """`calls` and `tokens` are this gateway's, of all its workers; `load` is the engine's word."""
    instance = candidate.instance
    told = more(candidate)
    kv = told.get("kv", {})
    return {
        "id": instance.id,
        "role": instance.role.value,
        "sides": None if candidate.sides is None else sorted(s.value for s in candidate.sides),
        "protocol": instance.protocol,
        "url": instance.url,
        "state": candidate.state,
        "models": sorted(candidate.models),
        "calls": calls_of_this_gateway(candidate),
        "answering": candidate.answering,
        "queued_tokens": unread_tokens_there(candidate),
        "load": told.get("load"),
        "told_seconds_ago": told.get("told_seconds_ago"),
        "stranded": stranded.get(instance.id, 0),
        "hint": kv.get("hint"),
        "ejections": dict(candidate.ejections),
    }


def cards(
    candidates: Iterable[Candidate], more: More, stranded: Mapping[str, int]
) -> list[dict[str, Any]]:
    return [card(candidate, more, stranded) for candidate in candidates]
