"""Metrics of an engine at /metrics, by the names of vLLM and of the reference engine.

Sources: vLLM 0.32.0, v1/metrics/loggers.py; docs/operations/metrics.md for pdgate_engine_*.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from pdgate.lab.conformance.api import ApiUnderTest

PROMPT_TOKENS = "vllm:prompt_tokens_by_source_total"
GENERATED = "vllm:generation_tokens_total"
LEASES_ENDED = "pdgate_engine_leases_ended_total"

BUSY = ("vllm:num_requests_running", "vllm:num_requests_waiting")
HELD = (
    "pdgate_engine_blocks_kept",
    "pdgate_engine_blocks_stranded",
    "pdgate_engine_blocks_lingering",
)

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class MetricsReading:
    """One reading."""

    samples: Mapping[str, Mapping[Labels, float]]

    def has(self, *names: str) -> bool:
        return all(name in self.samples for name in names)

    def sum(self, name: str, **labels: str) -> float:
        """Over all series that have these labels; 0 of none."""
        wanted = set(labels.items())
        return sum(n for found, n in self.samples.get(name, {}).items() if wanted <= found)


@dataclass(frozen=True, slots=True)
class EngineUnderTest:
    """An engine, its API and what it counts.

    Attributes:
        flag: What `pdgate serve --instance` is given for it.
    """

    api: ApiUnderTest
    flag: str

    @property
    def url(self) -> str:
        return self.api.url

    async def page(self) -> MetricsReading:
        """Raises Refused, httpx2.HTTPError, ValueError for what is no page of metrics."""
        text = (await self.api.get("/metrics")).text
        samples: dict[str, dict[Labels, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                series = samples.setdefault(sample.name, {})
                series[frozenset(sample.labels.items())] = sample.value
        return MetricsReading(samples)

    async def answers(self) -> bool:
        """Whether the engine is there."""
        try:
            await self.api.http.get(f"{self.url}/health")
        except httpx2.TransportError:
            return False
        return True
