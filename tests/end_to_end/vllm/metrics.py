"""What an engine says about itself: vLLM's Prometheus metrics, by name and labels."""

import re
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, fields

from pdgate.engine.vllm.metrics import PREFIX
from tests.end_to_end.vllm.engines import Engine

SETTLE_SECONDS = 12
"""How long an engine may take to account for what it did; much less than a KV lease (30 s)."""

POLL_SECONDS = 0.1


def metric(engine: Engine, name: str, /, **labels: str) -> float:
    """The sum of all series of `name` that carry `labels`; 0 when there is none."""
    with urllib.request.urlopen(f"{engine.url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    total = 0.0
    for line in text.splitlines():
        found = re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line)
        if found and all(f'{label}="{value}"' in found[1] for label, value in labels.items()):
            total += float(found[2])
    return total


def names_of_metrics(engine: Engine) -> set[str]:
    with urllib.request.urlopen(f"{engine.url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return set(re.findall(r"^([a-z_:]+)(?=[{ ])", text, re.MULTILINE))


def held_share(engine: Engine) -> float:
    """Share of KV blocks in use, 0..1, those that wait for a decode instance included."""
    return metric(engine, "vllm:kv_cache_usage_perc")


def running(engine: Engine) -> float:
    return metric(engine, "vllm:num_requests_running")


@dataclass(frozen=True, slots=True)
class Prompts:
    """Where the prompt tokens that an engine has taken so far came from."""

    computed: float
    transferred: float
    cached: float

    @classmethod
    def of(cls, engine: Engine) -> "Prompts":
        def source(name: str) -> float:
            return metric(engine, "vllm:prompt_tokens_by_source_total", source=name)

        transferred = source("external_kv_transfer")
        return cls(source("local_compute"), transferred, source("local_cache_hit"))

    def __sub__(self, before: "Prompts") -> "Prompts":
        return Prompts(
            self.computed - before.computed,
            self.transferred - before.transferred,
            self.cached - before.cached,
        )


@dataclass(frozen=True, slots=True)
class Counted:
    """What our own connector has counted so far, on one engine."""

    bytes: float
    transfers: float
    seconds: float
    failed: float
    expired: float

    @classmethod
    def by(cls, engine: Engine) -> "Counted":
        return cls(*(metric(engine, f"{PREFIX}{each.name}_total") for each in fields(cls)))

    def __sub__(self, before: "Counted") -> "Counted":
        return Counted(
            *(getattr(self, one.name) - getattr(before, one.name) for one in fields(self))
        )


def settles(question: Callable[[], bool], seconds: float = SETTLE_SECONDS) -> bool:
    """Whether the answer becomes yes in time."""
    deadline = time.monotonic() + seconds
    while not question():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
