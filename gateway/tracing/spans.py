"""Spans of a call that is over. Pure; times are those of the record.

    pd.request                                    the whole call
      pd.select, pd.encode                        for each of its media: E chosen, E asked
      pd.queue                                    until there was room for it
      pd.select, pd.prefill                       for each attempt: P chosen, P asked
      pd.select, pd.decode                        D chosen, D asked
      pd.kv_wait                                  from P's end to D's first byte

An engine that traces hangs its own spans under pd.prefill or pd.decode, whose ids it was sent.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pdgate.forwarders.record import LegRecord, Record
from pdgate.gateway.tracing import context, conventions
from pdgate.gateway.tracing.sampling import EndedCall
from pdgate.protocols.instance import Role

_NAMES: Final = {Role.PREFILL: "pd.prefill", Role.ENCODE: "pd.encode"}


@dataclass(frozen=True, slots=True)
class Span:
    """
    Attributes:
        id, parent: Hexadecimal; no parent is "".
        started, ended: Seconds, as in the record.
        error: What it failed with; empty if it went well.
        asks: Another process does the work of it.
    """

    name: str
    id: str
    parent: str
    started: float
    ended: float
    attributes: Mapping[str, Any]
    error: str = ""
    asks: bool = False


def spans_of(call: EndedCall) -> Iterator[Span]:
    """The call itself first."""
    record, root = call.record, call.trace.span
    ended = record.ended if record.ended is not None else record.started
    error = "" if record.outcome in ("ok", "client_gone") else record.outcome
    attributes = {**call.asked, **_outcome(call), **_answer(call)}
    yield Span("pd.request", root, call.trace.parent, record.started, ended, attributes, error)
    encoding = [leg for leg in record.legs if leg.attempt == 1 and leg.role is Role.ENCODE]
    yield from _attempt(record, 1, encoding, root, record.started)
    began = record.joined_line
    if record.queued_seconds is not None:
        began += record.queued_seconds
        yield _part("pd.queue", root, record.joined_line, began)
    for number in range(1, record.attempts + 1):
        legs = [leg for leg in record.legs if leg.attempt == number and leg not in encoding]
        yield from _attempt(record, number, legs, root, began)
        began = max([began, *(leg.ended for leg in legs if leg.ended is not None)])


def _attempt(
    record: Record, number: int, legs: list[LegRecord], root: str, began: float
) -> Iterator[Span]:
    """`began`: when the one before had failed, or there was room."""
    read: LegRecord | None = None
    for leg in legs:
        prefills = leg.role is Role.PREFILL
        common = {"pdgate.attempt": number, "pdgate.role": leg.role.value}
        # Legs that begin together were chosen together.
        if leg.started >= began:
            why = _decision(record, number) if leg is legs[0] else {}
            chosen = {**common, "pdgate.instance": leg.instance.id, **why}
            yield _part("pd.select", root, began, leg.started, chosen)
        ended = leg.ended if leg.ended is not None else leg.started
        failed = leg.outcome not in ("ok", "cancelled", "running")
        yield Span(
            _NAMES.get(leg.role, "pd.decode"),
            leg.span,
            root,
            leg.started,
            ended,
            {**common, **conventions.engine(leg.instance), "pdgate.outcome": leg.outcome}
            | _first_byte(leg),
            leg.outcome if failed else "",
            asks=True,
        )
        if prefills and leg.outcome == "ok":
            read = leg
        elif read is not None and read.ended is not None and leg.first_byte is not None:
            between = {**common, "pdgate.prefill": read.instance.id}
            waited = max(read.ended, leg.first_byte)
            yield _part("pd.kv_wait", root, read.ended, waited, between)
        began = max(began, ended)


def _part(
    name: str, root: str, started: float, ended: float, more: Mapping[str, Any] | None = None
) -> Span:
    return Span(name, context.new_span(), root, started, ended, more or {})


def _first_byte(leg: LegRecord) -> dict[str, Any]:
    if leg.first_byte is None:
        return {}
    return {conventions.TIME_TO_FIRST_CHUNK: leg.first_byte - leg.started}


def _decision(record: Record, number: int) -> dict[str, Any]:
    decision = record.decisions.get(number)
    if decision is None:
        return {}
    return {"pdgate.decision": decision.taken.value, "pdgate.reason": decision.reason}


def _outcome(call: EndedCall) -> dict[str, Any]:
    record = call.record
    found: dict[str, Any] = {
        conventions.STATUS: record.status,
        "pdgate.protocol": record.protocol,
        "pdgate.mode": record.mode,
        "pdgate.path": record.path,
        "pdgate.outcome": record.outcome,
        "pdgate.attempts": record.attempts,
        "pdgate.handed_over": record.handed_over,
    }
    if record.key:
        found["pdgate.key"] = record.key
    if record.pauses:
        found["pdgate.gave_way"] = len(record.pauses)
    if record.made_way:
        found["pdgate.made_way"] = record.made_way
    if record.resumed:
        found["pdgate.resumed"] = record.resumed
    return found


def _answer(call: EndedCall) -> dict[str, Any]:
    record, said = call.record, call.said
    found: dict[str, Any] = {}
    if said.id:
        found[conventions.RESPONSE_ID] = said.id
    if said.model:
        found[conventions.RESPONSE_MODEL] = said.model
    if said.finish_reasons:
        found[conventions.FINISH_REASONS] = said.finish_reasons
    if record.committed is not None and record.call.streams:
        found[conventions.TIME_TO_FIRST_CHUNK] = record.committed - record.started
    if (usage := record.usage) is not None:
        counts = {
            conventions.INPUT_TOKENS: usage.prompt,
            conventions.OUTPUT_TOKENS: usage.generated,
            conventions.CACHED_TOKENS: usage.cached,
        }
        found |= {name: count for name, count in counts.items() if count is not None}
    return found
