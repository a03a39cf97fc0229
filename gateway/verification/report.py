"""What operators see of the hand-over: numbers on /metrics, a part of /admin/instances."""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pdgate.gateway.engine_metrics.reader import Reader
from pdgate.gateway.verification.causes import HINTS
from pdgate.gateway.verification.verifier import Tally, Verifier
from pdgate.protocols.instance import Role
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.instances import Instances
from pdgate.scheduling.status import Status


class Report(Collector):
    def __init__(self, instances: Instances, reader: Reader, verifier: Verifier) -> None:
        self._instances = instances
        self._reader = reader
        self._verifier = verifier

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        tokens = CounterMetricFamily(
            "pdgate_kv_verified_tokens",
            "Prompt tokens of decode engines, by whether their KV was handed over.",
            labels=("instance", "result"),
        )
        expired = CounterMetricFamily(
            "pdgate_kv_expired_prompts",
            "Prompts that a prefill engine kept for a reader who did not come in time.",
            labels=("instance",),
        )
        late = CounterMetricFamily(
            "pdgate_kv_late_reads",
            "Reads that ended after the lease: such answers may be wrong.",
            labels=("instance",),
        )
        wrong = GaugeMetricFamily(
            "pdgate_instance_misconfigured",
            "1 while an engine does not take over KV, or loses it, by the likeliest cause.",
            labels=("instance", "cause"),
        )
        age = GaugeMetricFamily(
            "pdgate_instance_page_age_seconds",
            "Since an engine last told its metrics.",
            labels=("instance",),
        )
        for candidate in self._instances:
            instance_id = candidate.instance.id
            since = self._reader.age_seconds(instance_id)
            if since is not None:
                age.add_metric((instance_id,), since)
            tally = self._verifier.tallies.get(instance_id)
            if tally is None:
                continue
            if candidate.instance.role.serves(Role.DECODE):
                for result, number in tally.tokens.items():
                    tokens.add_metric((instance_id, result.value), number)
            if candidate.instance.role.serves(Role.PREFILL):
                expired.add_metric((instance_id,), tally.expired)
                late.add_metric((instance_id,), tally.read_late)
            if tally.complaint is not None:
                wrong.add_metric((instance_id, tally.complaint.value), 1.0)
        yield from (tokens, expired, late, wrong, age)

    def of(self, candidate: Candidate) -> Mapping[str, Any]:
        """What it tells of its load, how old that is, and whether KV arrives there."""
        instance_id = candidate.instance.id
        tally = self._verifier.tallies.get(instance_id, Tally())
        return {
            "told_seconds_ago": self._reader.age_seconds(instance_id),
            "load": None if candidate.status is None else _load(candidate.status),
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
    }
