"""One process's part of the picture: what only it knows, as the others cannot see its calls."""

from collections.abc import Callable, Iterable
from time import monotonic, time
from typing import Any

import msgspec

from pdgate.cluster.jobs import SupervisedJob
from pdgate.forwarders.kv_lease import KvLedger
from pdgate.gateway.console.attention import ConsoleAttention
from pdgate.gateway.console.calls import ENDED_ROWS, RUNNING_ROWS, CallRow, rows
from pdgate.gateway.console.pulse import SLOT_SECONDS, Pulse, PulseSlot, points, together
from pdgate.gateway.debug import RecentCalls


class ConsolePart(msgspec.Struct, frozen=True):
    """
    Attributes:
        in_flight: Calls, also those that are too many for `running`.
        held: Prompts whose KV waits at a prefill engine for decode.
        stranded: Instance -> prompts whose KV it keeps for no call now; `strandings`: ever.
        running, ended: Newest first.
        failed_jobs: Background jobs that wait to be started anew, by name.
    """

    in_flight: int
    held: int
    stranded: dict[str, int]
    strandings: dict[str, int]
    running: list[CallRow]
    ended: list[CallRow]
    slots: list[PulseSlot]
    failed_jobs: list[str]


class OwnPart:
    """Makes this process's, when asked."""

    def __init__(
        self,
        recent: RecentCalls,
        ledger: KvLedger,
        pulse: Pulse,
        in_flight: Callable[[], int],
        attention: ConsoleAttention,
        jobs: Iterable[SupervisedJob] = (),
    ) -> None:
        self._attention = attention
        self._recent = recent
        self._ledger = ledger
        self._pulse = pulse
        self._in_flight = in_flight
        self._jobs = jobs

    def now(self) -> ConsolePart:
        self._attention.watched()
        running, ended = rows(self._recent.newest(), monotonic(), time())
        return ConsolePart(
            in_flight=self._in_flight(),
            held=self._ledger.held,
            stranded=dict(self._ledger.stranded()),
            strandings=dict(self._ledger.strandings),
            running=running,
            ended=ended,
            slots=self._pulse.slots(),
            failed_jobs=[job.name for job in self._jobs if job.restarts and not job.running],
        )

    def call(self, call_id: str) -> dict[str, Any] | None:
        """The record of one that ran here."""
        return self._recent.find(call_id)


def whole(parts: Iterable[ConsolePart]) -> dict[str, Any]:
    """All processes as one."""
    parts = list(parts)
    running = [row for part in parts for row in part.running]
    ended = [row for part in parts for row in part.ended]
    running.sort(key=lambda row: row.started, reverse=True)
    ended.sort(key=lambda row: row.ended or 0.0, reverse=True)
    return {
        "in_flight": sum(part.in_flight for part in parts),
        "kv": {
            "held": sum(part.held for part in parts),
            "stranded": _sum(part.stranded for part in parts),
            "strandings": _sum(part.strandings for part in parts),
        },
        "failed_jobs": sorted({name for part in parts for name in part.failed_jobs}),
        "calls": {"running": running[:RUNNING_ROWS], "ended": ended[:ENDED_ROWS]},
        "chart": {
            "slot_seconds": SLOT_SECONDS,
            "points": list(points(together(part.slots for part in parts))),
        },
    }


def _sum(several: Iterable[dict[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in several:
        for key, number in one.items():
            found[key] = found.get(key, 0) + number
    return found
