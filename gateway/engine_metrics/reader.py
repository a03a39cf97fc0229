"""Reader of every engine's /metrics, again and again, off the path of calls.

Pages come one after another, spread over the interval, so that many engines do not hold up the
event loop together. An engine that answers calls and has not shown how long its steps take is asked
sooner. What a page says of load becomes the endpoint's `status`; what it counts goes to what
compares it with what was sent (`sees`).

A status is as good as its age: an engine that has not answered for STALE_INTERVALS has none.
Only it looks at the age, so each round takes away what has become stale by then.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pdgate.gateway.engine_metrics.counters import EngineCounters
from pdgate.gateway.engine_metrics.page import MetricsPage, parse_in_turns
from pdgate.gateway.security.engine_access import OPEN, EngineAccess
from pdgate.gateway.upstream.one_shot import AskFailed
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.account import LEARN_SECONDS, Account, most_kv_tokens, told, unlearnt
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.status import Status

log = logging.getLogger(__name__)

STALE_INTERVALS = 3
MOST_AT_ONCE = 256
"""Engines that are asked, of the thousands that a directory may name."""

MOST_LOOKS = 20
"""At an engine sooner than by the interval: one that does not say how long its steps take is left alone then."""

MAX_PAGE_BYTES = 8 << 20
Sees = Callable[[Endpoint, MetricsPage], None]


class NoPage(Exception):
    """The engine did not tell; the message says why, for operators."""


@dataclass(frozen=True, slots=True)
class EngineReading:
    """The last page of one engine.

    Attributes:
        url: Where it came from; another one is another engine.
        at: When, on the reader's clock.
    """

    url: str
    at: float
    page: MetricsPage


class MetricsReader:
    """
    Attributes:
        readings: Instance id -> its last page.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        interval_seconds: float,
        timeout_seconds: float,
        sees: Sees,
        clock: Callable[[], float],
        access: EngineAccess = OPEN,
    ) -> None:
        self.readings: dict[str, EngineReading] = {}
        self._endpoints = endpoints
        self._interval_seconds = interval_seconds
        self._timeout_seconds = timeout_seconds
        self._sees = sees
        self._clock = clock
        self._access = access
        self._complaints: dict[str, str] = {}
        self._looks: dict[str, int] = {}
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)
        self._most_kv_tokens: Mapping[Role, int] = {}
        self._takers: Mapping[str, int] = {}
        """Instance id of a prefill engine -> how many take from the queue that it takes from."""

    async def run(self) -> None:
        # The first calls should find that something is known.
        await self.round()
        async with asyncio.TaskGroup() as reading:
            reading.create_task(self._learn())
            while True:
                async with asyncio.TaskGroup() as round_:
                    round_.create_task(asyncio.sleep(self._interval_seconds))
                    round_.create_task(self.round(self._interval_seconds))

    async def _learn(self) -> None:
        while True:
            async with asyncio.TaskGroup() as asking:
                asking.create_task(asyncio.sleep(LEARN_SECONDS))
                for endpoint in unlearnt(one for one in self._endpoints if self._may_look(one)):
                    name = endpoint.instance.id
                    self._looks[name] = self._looks.get(name, 0) + 1
                    asking.create_task(self._ask(endpoint))

    def _may_look(self, endpoint: Endpoint) -> bool:
        return self._looks.get(endpoint.instance.id, 0) < MOST_LOOKS

    async def round(self, seconds: float = 0.0) -> None:
        """Asks each engine once, spread over these seconds."""
        endpoints = list(self._endpoints)
        known = {c.instance.id for c in endpoints}
        self._most_kv_tokens = most_kv_tokens(endpoints)
        self._takers = takers(endpoints)
        for kept in (self.readings, self._complaints, self._looks):
            for gone in kept.keys() - known:
                del kept[gone]
        async with asyncio.TaskGroup() as asking:
            for endpoint in endpoints:
                if endpoint.status is not None and not self.is_fresh(endpoint.instance.id):
                    told(endpoint, None, Account())
                asking.create_task(self._ask(endpoint))
                await asyncio.sleep(seconds / len(endpoints))

    def age_seconds(self, instance_id: str) -> float | None:
        """Age of the last page; None if there is none."""
        reading = self.readings.get(instance_id)
        return None if reading is None else self._clock() - reading.at

    def is_fresh(self, instance_id: str) -> bool:
        age = self.age_seconds(instance_id)
        return age is not None and age <= STALE_INTERVALS * self._interval_seconds

    async def _ask(self, endpoint: Endpoint) -> None:
        instance, account = endpoint.instance, Account.of(endpoint)
        page = await self._told(instance)
        if isinstance(page, str):
            self._complain(instance.id, page)
            if not self.is_fresh(instance.id):
                told(endpoint, None, account)
            return
        # An engine at another address by now has not said this.
        if endpoint.instance.url != instance.url:
            return
        self._complain(instance.id, "")
        last = self.readings.get(instance.id)
        before = last.page if last is not None and last.url == instance.url else None
        self.readings[instance.id] = EngineReading(instance.url, self._clock(), page)
        most = self._most_kv_tokens.get(instance.role)
        told(endpoint, status_of(page, before, self._takers.get(instance.id, 0)), account, most)
        self._sees(endpoint, page)

    async def _told(self, instance: Instance) -> MetricsPage | str:
        """Its page, or why there is none."""
        try:
            async with self._slots, asyncio.timeout(self._timeout_seconds):
                return await self._page(instance)
        except TimeoutError:
            return f"no /metrics within {self._timeout_seconds:g} s"
        except (NoPage, AskFailed) as why:
            return str(why)
        # Whatever one engine's answer trips in us, the others are still to be asked.
        except Exception as error:  # noqa: BLE001
            return f"its /metrics cannot be read: {error!r}"

    async def _page(self, instance: Instance) -> MetricsPage:
        """Raises NoPage, AskFailed."""
        with self._access.visit(instance.url) as engine:
            said = await engine.get("/metrics", accept="text/plain", most_bytes=MAX_PAGE_BYTES)
        if said.status != 200:
            raise NoPage(f"GET /metrics answered {said.status}")
        return await parse_in_turns(said.body, instance.dp_rank)

    def _complain(self, instance_id: str, why: str) -> None:
        """Once per change; that an engine is down is the prober's to warn of."""
        if self._complaints.get(instance_id, "") != why:
            self._complaints[instance_id] = why
            log.info("%s: %s", instance_id, why or "its /metrics can be read")


def takers(endpoints: Iterable[Endpoint]) -> Mapping[str, int]:
    """Engine -> how many share its queue: prefill engines of one protocol and model have one, if any."""
    up = [c for c in endpoints if c.may_serve and c.instance.role.serves(Role.PREFILL)]
    kinds = Counter((c.instance.speaks, c.models) for c in up)
    return {c.instance.id: kinds[c.instance.speaks, c.models] for c in up}


def status_of(page: MetricsPage, before: MetricsPage | None, takers: int = 0) -> Status | None:
    """What a page says of load; None if it says nothing.

    `takers`: engines that take from its prefill queue, itself among them; 0 for one that does not.
    """
    step_seconds = None
    if before is not None:
        new = page.counters.since(before.counters) or EngineCounters()
        if new.steps and new.step_seconds is not None:
            step_seconds = new.step_seconds / new.steps
    kv_free = None if page.kv_used is None else 1.0 - page.kv_used
    status = Status(
        kv_free,
        page.running,
        page.waiting,
        step_seconds,
        page.transferring,
        page.kv_tokens,
        page.queued_tokens,
        None if page.queue_waiting is None or not takers else -(-page.queue_waiting // takers),
    )
    return None if status == Status() else status


class PrefillQueue:
    """Whether engines of decode-first reach their prefill queue, as they say on /metrics.

    The gateway itself does not know that queue. While it is away prompts wait for it, so calls go
    on, only later; no engine is down for that, and none is left out.
    """

    def __init__(self, reader: MetricsReader) -> None:
        self._reader = reader

    def as_json(self) -> dict[str, Any] | None:
        """Queue for /ready; None where no engine has one. Engines as many as said so last."""
        said = [
            reading.page.queue_up
            for instance_id, reading in self._reader.readings.items()
            if reading.page.queue_up is not None and self._reader.is_fresh(instance_id)
        ]
        if not said:
            return None
        state = "current" if all(said) else "degraded"
        return {"state": state, "engines": len(said), "away_from": said.count(False)}
