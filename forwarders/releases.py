"""Releases of KV that no decode engine comes for: legs to prefill, sent behind a call that has ended.

They are sent beside calls, MOST_AT_ONCE at a time; what is beyond, and what fails, is stranded, which `KvLedger` counts.
"""

import asyncio
from typing import Final

from pdgate.forwarders.base import Leg, Upstream
from pdgate.forwarders.kv_lease import KvLedger
from pdgate.protocols.call import Call
from pdgate.protocols.errors import EngineRefused, GatewayError

LEG_SECONDS: Final = 10.0
MOST_AT_ONCE: Final = 256
"""A flood of clients that leave is a flood of these."""


class Releases:
    """
    Attributes:
        under_way: Legs that are being sent.
    """

    def __init__(self, upstream: Upstream, ledger: KvLedger) -> None:
        self._upstream = upstream
        self._ledger = ledger
        self.under_way: set[asyncio.Task[None]] = set()

    def send(self, leg: Leg, call: Call, until: float) -> None:
        """`until`: when prefill would free it by itself."""
        if len(self.under_way) >= MOST_AT_ONCE:
            self._ledger.strand(leg.to.id, until)
            return
        task = asyncio.create_task(self._sent(leg, call, until))
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)

    async def _sent(self, leg: Leg, call: Call, until: float) -> None:
        try:
            async with asyncio.timeout(LEG_SECONDS):
                await self._upstream.ask(leg, call)
        except EngineRefused:
            # The process is gone, and its memory with it.
            return
        except (GatewayError, TimeoutError):
            self._ledger.strand(leg.to.id, until)
