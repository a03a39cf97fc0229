"""Sleep mode of engines: one that says that it is well may take no calls for now.

vLLM answers /health with 200 while it sleeps or is paused, and calls wait there (0.32) or get 503 (0.33) until it is
awake. GET /is_sleeping says so of both. vLLM has that route in its development mode only, as it has /sleep and
/pause, and logs each question for a route that it has not. So an engine is asked again only if it has it:

    true or false in the JSON          it has; asked at each look
    4xx, or 200 with something else    it has not, so it is awake; not asked again in its life
    5xx, or no answer in time          as it was before

An engine's life is over where a look finds it other than well, or calls find it out of use: what answers there next may
be another process.

The answer comes from vLLM's core, between two steps, and not from its HTTP server as that of /health does: a long step
must not make the engine silent.

Source: vLLM 0.32.0 and 0.33.0, entrypoints/serve/dev/sleep/api_router.py, entrypoints/launchers/api_server/routers.py
(VLLM_SERVER_DEV_MODE), v1/engine/core.py (EngineCore.is_sleeping: the scheduler is paused, or memory is given back),
entrypoints/rl/online/api_router.py (pause).
"""

import asyncio
from typing import Final

import msgspec

from pdgate.gateway.upstream.one_shot import AskFailed, Gone, OneShotClient, Short
from pdgate.protocols.fields import UNREADABLE

MOST_BYTES: Final = 64 << 10


class _SleepAnswer(msgspec.Struct):
    is_sleeping: bool


class SleepModes:
    """What engines said of their sleep, by instance id."""

    def __init__(self) -> None:
        self._without: set[str] = set()
        self._asleep: set[str] = set()

    def forget(self, instance_id: str) -> None:
        """Whatever answers there from now on is asked anew."""
        self._without.discard(instance_id)
        self._asleep.discard(instance_id)

    async def asleep(self, engine: OneShotClient, instance_id: str, seconds: float) -> bool:
        """Return whether it takes no calls for now; raise AskFailed if it is gone, or this host is short."""
        if instance_id in self._without:
            return False
        try:
            async with asyncio.timeout(seconds):
                said = await engine.get("/is_sleeping", most_bytes=MOST_BYTES)
        except (Gone, Short):
            raise
        except (TimeoutError, AskFailed):
            return instance_id in self._asleep
        if said.status >= 500:
            return instance_id in self._asleep
        asleep = _read(said.body) if said.status == 200 else None
        self.forget(instance_id)
        if asleep is None:
            self._without.add(instance_id)
        elif asleep:
            self._asleep.add(instance_id)
        return bool(asleep)


def _read(body: bytes) -> bool | None:
    """None of an engine that answers to every path."""
    try:
        return msgspec.json.decode(body, type=_SleepAnswer).is_sleeping
    except UNREADABLE:
        return None
