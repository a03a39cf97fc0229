"""Reader, verifier and report of one gateway process, put together.

The report is numbers on /metrics, and a part of /admin/instances.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pdgate.gateway.engine_metrics.reader import MetricsReader
from pdgate.gateway.metrics import families
from pdgate.gateway.metrics.family import Samples
from pdgate.gateway.security.engine_access import OPEN, EngineAccess
from pdgate.gateway.verification.causes import HINTS
from pdgate.gateway.verification.verifier import Tally, Verifier
from pdgate.protocols.instance import Role
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.status import Status


class VerificationReport:
    def __init__(self, endpoints: Endpoints, reader: MetricsReader, verifier: Verifier) -> None:
        self._endpoints = endpoints
        self._reader = reader
        self._verifier = verifier

    def collect(self) -> Iterator[Samples]:
        seen = [
            (one.instance, one.instance.id, found)
            for one in self._endpoints
            if (found := self._verifier.tallies.get(one.instance.id)) is not None
        ]
        yield families.KV_VERIFIED_TOKENS.samples(
            ((name, result.value), number)
            for instance, name, found in seen
            if instance.role.serves(Role.DECODE)
            for result, number in found.tokens.items()
        )
        prefills = [(name, it) for instance, name, it in seen if instance.role.serves(Role.PREFILL)]
        yield families.KV_EXPIRED_PROMPTS.samples((name, found.expired) for name, found in prefills)
        yield families.KV_LATE_READS.samples((name, found.read_late) for name, found in prefills)
        yield families.INSTANCE_MISCONFIGURED.samples(
            ((name, found.complaint.value), 1.0)
            for _, name, found in seen
            if found.complaint is not None
        )
        yield families.INSTANCE_PAGE_AGE_SECONDS.samples(
            (one.instance.id, age)
            for one in self._endpoints
            if (age := self._reader.age_seconds(one.instance.id)) is not None
        )

    def of(self, endpoint: Endpoint) -> Mapping[str, Any]:
        """What it tells of its load, how old that is, and whether KV arrives there."""
        instance_id = endpoint.instance.id
        tally = self._verifier.tallies.get(instance_id, Tally())
        return {
            "told_seconds_ago": self._reader.age_seconds(instance_id),
            "load": None if endpoint.status is None else _load(endpoint.status),
            "kv": {
                "result": tally.last and tally.last.value,
                "tokens": {result.value: number for result, number in tally.tokens.items()},
                "expired_prompts": tally.expired,
                "late_reads": tally.read_late,
                "cause": tally.complaint and tally.complaint.value,
                "hint": tally.complaint and HINTS[tally.complaint],
            },
        }


def _load(status: Status) -> dict[str, Any]:
    return {
        "kv_free": status.kv_free,
        "running": status.running,
        "waiting": status.waiting,
        "step_seconds": status.step_seconds,
        "transferring": status.transferring,
        "kv_tokens": status.kv_tokens,
        "queued_tokens": status.queued_tokens,
        "queue_share": status.queue_share,
    }


class VerificationWatch:
    """
    Attributes:
        reader: Reads pages inside its `run`.
        verifier: Is shown every page.
        report: What has been found.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        interval_seconds: float,
        timeout_seconds: float,
        clock: Callable[[], float],
        access: EngineAccess = OPEN,
    ) -> None:
        self.verifier = Verifier(endpoints)
        sees = self.verifier.sees
        self.reader = MetricsReader(
            endpoints, interval_seconds, timeout_seconds, sees, clock, access
        )
        self.report = VerificationReport(endpoints, self.reader, self.verifier)
