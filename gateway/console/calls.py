"""A call as a row: where it is just now, or how it ended. Read from its record; pure.

    waiting     for room, or for an engine to be chosen
    prefill     prefill reads the prompt
    crossing    prefill has answered, and decode has said nothing yet: the KV is on its way
    answering   decode (or who serves it alone) has begun to answer
    over        it has ended; `outcome` says how

Where both legs start at once the gateway learns of prefill's end by its answer alone, and of the KV
by decode's first byte. Where one engine does it all, reading is `prefill` too.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from pdgate.forwarders.record import LegRecord, Record
from pdgate.protocols.instance import Role

RUNNING_ROWS = 200
ENDED_ROWS = 60

Phase = Literal["waiting", "prefill", "crossing", "answering", "over"]


class CallRow(msgspec.Struct, frozen=True):
    """
    Attributes:
        path: As Record.path: disaggregated, local, decode_only, prefill_only, plain; "" yet.
        prefill, decode: Ids of the last attempt's instances; "" for none. `decode` is the one that
            answers, a plain instance too.
        started, ended: Unix seconds; `ended` is None while it runs.
        first_byte_ms: From its arrival to the first byte that the client got; None before that.
        kv: Decode answered with the KV that prefill left for it.
        attempts: How often it was tried.
    """

    id: str
    model: str
    path: str
    phase: Phase
    prefill: str
    decode: str
    started: float
    ended: float | None
    first_byte_ms: float | None
    outcome: str
    status: int
    kv: bool
    attempts: int


def rows(records: Iterable[Record], now: float, unix: float) -> tuple[list[CallRow], list[CallRow]]:
    """Those that run, and those that have ended, the newest first.

    Args:
        records: Newest first.
        now: On the records' clock; `unix` is the same moment as Unix seconds.
    """
    running: list[Record] = []
    ended: list[Record] = []
    for record in records:
        (running if record.ended is None else ended).append(record)
    ended.sort(key=lambda record: record.ended or 0.0, reverse=True)
    offset = unix - now
    return (
        [_row(record, offset) for record in running[:RUNNING_ROWS]],
        [_row(record, offset) for record in ended[:ENDED_ROWS]],
    )


def _row(record: Record, offset: float) -> CallRow:
    last = [leg for leg in record.legs if leg.attempt == record.attempts]
    # A staged attempt may have tried several of a role; the last one counts.
    prefill = next((leg for leg in reversed(last) if leg.role is Role.PREFILL), None)
    answer = next(
        (leg for leg in reversed(last) if leg.role not in (Role.PREFILL, Role.ENCODE)), None
    )
    committed = record.committed
    return CallRow(
        id=record.call.id,
        model=record.call.model or "",
        path=record.path,
        phase=_phase(record, prefill, answer),
        prefill=prefill.instance.id if prefill else "",
        decode=answer.instance.id if answer else "",
        started=round(record.started + offset, 3),
        ended=None if record.ended is None else round(record.ended + offset, 3),
        first_byte_ms=None if committed is None else round((committed - record.started) * 1000, 1),
        outcome=record.outcome,
        status=record.status,
        kv=record.handed_over,
        attempts=record.attempts,
    )


def _phase(record: Record, prefill: LegRecord | None, answer: LegRecord | None) -> Phase:
    if record.ended is not None:
        return "over"
    if answer is not None and answer.first_byte is not None:
        return "answering"
    if prefill is None:
        return "waiting" if answer is None else "prefill"
    return "prefill" if prefill.ended is None else "crossing"
