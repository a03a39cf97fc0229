"""Ended call, as call stats keep it: a few numbers and its legs, until they are added up.

Making the row is all that is done for each call. What it says is read of many rows together
(aggregates.py): they are sorted by what is counted together once, and no row is looked at twice.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from pdgate.forwarders.record import LegRecord, Record
from pdgate.protocols.usage import Usage
from pdgate.scheduling.disaggregation import Decision

Kind = tuple[str, str | None, str, str, str, bool]
"""Protocol, the model as the call names it, route, path, outcome and whether it streamed: calls
that are alike."""


class Row(NamedTuple):
    """
    Attributes:
        committed: When the client got its first byte.
        token_seconds: For one token of a stream, on the average.
        expired, resumed: How often.
    """

    kind: Kind
    started: float
    committed: float | None
    ended: float | None
    queued_seconds: float | None
    token_seconds: float | None
    usage: Usage | None
    attempts: int
    legs: list[LegRecord]
    decisions: dict[int, Decision]
    handed_over: bool
    expired: int
    resumed: int


_new: Final = tuple.__new__


def row_of(record: Record) -> Row:
    """Nothing of it is large: neither the call, nor the answer's end, nor what legs were sent."""
    call, committed, ended = record.call, record.committed, record.ended
    token_seconds = None
    if call.streams and committed is not None and ended is not None and record.outcome == "ok":
        token_seconds = _token_seconds(record, ended - committed)
    route = call.path if call.api is None else call.route
    # Half of what Row() takes, which is a function in Python.
    row: Row = _new(
        Row,
        (
            (record.protocol, call.model, route, record.path, record.outcome, call.streams),
            record.started,
            committed,
            ended,
            record.queued_seconds,
            token_seconds,
            record.usage,
            record.attempts,
            record.legs,
            record.decisions,
            record.handed_over,
            record.expired,
            record.resumed,
        ),
    )
    return row


def by_kind(rows: Iterable[Row]) -> dict[Kind, list[Row]]:
    alike: dict[Kind, list[Row]] = {}
    for row in rows:
        among = alike.get(row.kind)
        if among is None:
            alike[row.kind] = [row]
        else:
            among.append(row)
    return alike


def _token_seconds(record: Record, seconds: float) -> float | None:
    """For one token, on the average, of a stream that took that long after its first byte.

    None if neither its engine says how many tokens there were nor its events were timed.
    """
    usage, gaps = record.usage, record.gaps
    if usage is not None and usage.generated is not None:
        return seconds / (usage.generated - 1) if usage.generated > 1 else None
    return gaps.seconds / gaps.count if gaps is not None and gaps.count else None
