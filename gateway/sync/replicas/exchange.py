"""Exchange of what replicas have in flight, ours for theirs, every 40 ms.

    what we wrote differs from what is  write it                    others know it within 100 ms
    it does not                         every RENEW_SECONDS, as the lease would end
    Redis does not answer               others count until their leases must have ended, then not;
                                        it is asked again every AWAY_SECONDS, and told all at once

No call waits for any of this. Where there is so much to read that it takes time, it is done less
often: SHARE of a core at most, so views are behind by more in very large fleets.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final

from pdgate.cluster.directory import StoreAway
from pdgate.cluster.jobs import is_cancelled
from pdgate.gateway.metrics import families
from pdgate.gateway.metrics.family import Samples
from pdgate.gateway.sync.replicas.base import LoadEntries
from pdgate.gateway.sync.replicas.far_prompts import FarPrompts
from pdgate.gateway.sync.replicas.load import FarLoad
from pdgate.gateway.sync.shared_store import StoreState
from pdgate.scheduling.endpoints import Endpoints

log = logging.getLogger(__name__)

EXCHANGE_SECONDS: Final = 0.04
LEASE_SECONDS: Final = 2.0
"""How long a replica that died still counts, at most."""
RENEW_SECONDS: Final = 0.5
AWAY_SECONDS: Final = 0.25
SHARE: Final = 1 / 10


class ReplicaExchange:
    """
    Attributes:
        load: What has been heard.
        state: Of Redis; while it is away only our own calls are known, once leases have ended.
        losses: How often Redis was lost.
    """

    def __init__(
        self,
        load: FarLoad,
        entries: LoadEntries,
        clock: Callable[[], float],
    ) -> None:
        self.load = load
        self.state = StoreState.WAITING
        self.losses = 0
        self._entries = entries
        self._clock = clock
        self._told: bytes | None = None
        self._told_at = self._heard_at = clock()

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            while not is_cancelled():
                seconds = await self.once()
                await asyncio.sleep(seconds)
        finally:
            self.load.forget()
            await self._entries.close()

    async def once(self) -> float:
        """Seconds until the next one."""
        now = self._clock()
        entry = self.load.told()
        news = entry if entry != self._told or now - self._told_at >= RENEW_SECONDS else None
        worked = self._clock() - now
        try:
            entries = await self._entries.exchange(news)
        except StoreAway as away:
            self._is_away(away)
            return AWAY_SECONDS
        if news is not None:
            self._told, self._told_at = news, now
        self._heard_at = now
        self._answers()
        began = self._clock()
        await self.load.take_in(entries)
        worked += self._clock() - began
        return max(EXCHANGE_SECONDS, worked / SHARE)

    def _is_away(self, why: StoreAway) -> None:
        # Whatever comes back may have lost our entry.
        self._told = None
        if self.state is StoreState.CURRENT:
            self.state = StoreState.DEGRADED
            self.losses += 1
            log.warning("replicas cannot tell each other their load: %s", why)
        if self._clock() - self._heard_at >= LEASE_SECONDS:
            self.load.forget()

    def _answers(self) -> None:
        if self.state is StoreState.DEGRADED:
            log.info("replicas tell each other their load again")
        self.state = StoreState.CURRENT


class ReplicaStatus:
    """Replicas as operators see them: a word on /ready, numbers on /metrics.

    Attributes:
        exchange, prompts: Run for as long as the gateway does.
    """

    def __init__(
        self, exchange: ReplicaExchange, endpoints: Endpoints, prompts: FarPrompts | None = None
    ) -> None:
        self.exchange = exchange
        self.prompts = prompts
        self._endpoints = endpoints

    def as_json(self) -> dict[str, str | int]:
        """State without a reason: /ready is for strangers, too, and reasons name addresses."""
        return {"state": self.exchange.state, "others": len(self.exchange.load.replicas)}

    def collect(self) -> Iterator[Samples]:
        load, prompts = self.exchange.load, self.prompts
        yield families.REPLICAS.sample(len(load.replicas))
        yield families.REPLICAS_DEGRADED.sample(self.exchange.state is not StoreState.CURRENT)
        yield families.REPLICAS_LOSSES.sample(self.exchange.losses)
        refused = load.refused + (0 if prompts is None else prompts.refused)
        yield families.REPLICAS_REFUSED.sample(refused)
        if prompts is not None:
            happened = (
                ("told", prompts.told),
                ("heard", prompts.heard),
                ("dropped", prompts.dropped),
            )
            yield families.REPLICA_PROMPTS.samples(happened)
        yield families.INSTANCE_REPLICA_CALLS.samples(
            (
                (one.instance.id, one.instance.role.value),
                0 if one.shared is None else one.shared.far.calls,
            )
            for one in self._endpoints
        )
