"""Debug views of single calls for operators: recent records, and headers that name instances.

Both are off unless asked for, because they show the fleet to all that may call.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from pdgate.forwarders.record import DECODE_ONLY, Record
from pdgate.protocols.call import Call, Headers
from pdgate.protocols.instance import Role
from pdgate.scheduling.decision_trace import DecisionTrace

KEPT_RECORDS = 1024
LOOKS = 8
"""With each record that comes: thousands of streams may run, which a look at all would cost each call."""
_READERS = (Role.PREFILL, Role.ENCODE)

DebugHeaders = Callable[[Record], Headers]


def path_headers(record: Record) -> Headers:
    """x-pd-path, the model that a shared call went to, and the instances of the last attempt; how each was
    chosen, where that is kept. And how many calls gave way to this one, if any did."""
    found = {b"x-pd-path": _way(record)}
    if record.call.shared is not None and record.call.model is not None:
        found[b"x-pd-model"] = record.call.model.encode()
    if record.made_way:
        found[b"x-pd-made-way"] = b"%d" % record.made_way
    for leg in record.legs:
        if leg.attempt == record.attempts:
            # Whatever answers is called decode.
            role = leg.role.value.encode() if leg.role in _READERS else b"decode"
            # A staged attempt may have tried several; the last one answers.
            found[b"x-pd-" + role] = leg.instance.id.encode()
    for attempt, choice in record.choices:
        if attempt == record.attempts and choice.decided_by:
            name = b"x-pd-" + choice.role.value.encode() + b"-chosen-by"
            found[name] = f"{choice.policy}: {choice.decided_by}".encode()
    return list(found.items())


def _way(record: Record) -> bytes:
    """How the answer came about; that it took several attempts says more than the last one's path.

    Not so for a decode engine that stood in: that there was a failure before is clear.
    """
    if record.pauses and record.attempts == len(record.pauses) + 1:
        return b"gave-way"
    if record.attempts > 1 and record.path != DECODE_ONLY:
        return b"retried"
    return record.path.replace("_", "-").encode()


class RecentCalls:
    """The last KEPT_RECORDS records, by the id that the client saw, and those that run before those that are over.

    Of calls that are over the bodies go: they are large, and what people wrote.
    """

    def __init__(self) -> None:
        self._records: OrderedDict[str, Record] = OrderedDict()

    def keep(self, record: Record) -> None:
        # A name that was used before counts from now on.
        self._records.pop(record.call.id, None)
        self._records[record.call.id] = record
        if len(self._records) > KEPT_RECORDS:
            self._forget_one()

    def chose(self, call: Call, choice: DecisionTrace) -> None:
        """Why an engine was chosen for the call, or none."""
        record = self._records.get(call.id)
        # Not of an earlier call by the same name.
        if record is not None and record.call.attempt_id == call.attempt_id:
            record.choices = (*record.choices, (record.attempts, choice))

    def _forget_one(self) -> None:
        """The oldest that is over, or, where LOOKS of them run, one that does.

        What runs is as new as ever: a session outlasts thousands of calls.
        """
        for _ in range(LOOKS):
            oldest = next(iter(self._records))
            if self._records[oldest].ended is not None:
                break
            self._records.move_to_end(oldest)
        self._records.popitem(last=False)

    def ended(self, record: Record) -> None:
        record.call = msgspec.structs.replace(record.call, body={}, headers=(), blocks=None)

    def newest(self) -> Iterator[Record]:
        """All of them, the newest first; for a caller that does not wait in between."""
        return reversed(self._records.values())

    def find(self, call_id: str) -> dict[str, Any] | None:
        record = self._records.get(call_id)
        if record is None:
            return None
        choices = [{"attempt": number, **choice.as_json()} for number, choice in record.choices]
        return {**record.as_json(), "choices": choices}
