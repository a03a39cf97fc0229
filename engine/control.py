"""Control of an engine: pause, other weights, sleep; of all its data-parallel ranks at once.

    pause     abort: requests that run end; wait: they go on to their end first; keep: they stand still
    update    once none runs: other weights, and an empty prefix cache
    sleep     as a pause, with the prefix cache lost; no memory is given back, as there is no GPU

What a trainer would send as tensors is a number here: the seed of the built-in model's weights.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Final

from pdgate.engine.api.service import EngineService
from pdgate.engine.cache.tiers import weights_of
from pdgate.engine.model.load import with_weights

KEEP: Final = frozenset({"keep", "retract", "in_place"})
MODES: Final = KEEP | {"abort", "wait"}
MEMORY: Final = ("weights", "kv_cache")
IDLE_SECONDS: Final = 30.0
"""For requests that run, to end, before weights are changed: a request has its answer a moment before it is over."""


NAMED_KV: Final = frozenset({"store-mediated", "offload-p2p", "lmcache"})
"""Protocols in which KV is found by a name that is made of the prompt and the model, and outlives its pages."""


def why_fixed_weights(protocol: str) -> str:
    """Empty where they can change."""
    if protocol not in NAMED_KV:
        return ""
    return f"with {protocol} KV of other weights would be found by the same names"


class ControlRefused(Exception):
    """A request that changed nothing; the message says why."""


class EngineControl:
    """
    Attributes:
        asleep: The parts of its memory that sleep.
    """

    def __init__(self, services: Sequence[EngineService], why_fixed: str = "") -> None:
        """`why_fixed`: why its weights cannot change; empty if they can."""
        self.why_fixed = why_fixed
        self.asleep: frozenset[str] = frozenset()
        self._services = services

    @property
    def paused(self) -> bool:
        return any(service.core.paused for service in self._services)

    async def pause(self, mode: str) -> None:
        """Raises ControlRefused for what is no mode."""
        if mode not in MODES:
            raise ControlRefused(f"mode must be one of {', '.join(sorted(MODES))}")
        for service in self._services:
            service.core.pause(frozen=mode in KEEP)
            if mode == "abort":
                service.core.abort_all()
        if mode not in KEEP:
            await self._idle(None)

    async def resume(self) -> None:
        for service in self._services:
            service.core.resume()

    def abort(self) -> None:
        for service in self._services:
            service.core.abort_all()

    async def flush(self) -> bool:
        """Whether that was done: not while requests run."""
        return await self._all(lambda service: service.core.forget_prefixes())

    async def update(self, path: str) -> None:
        """Raises ControlRefused."""
        if self.why_fixed:
            raise ControlRefused(self.why_fixed)
        model = self._services[0].model
        try:
            changed = await asyncio.to_thread(with_weights, model, path)
            # By what is in the files: a folder may get others under its name.
            of = await asyncio.to_thread(weights_of, path)
        except (OSError, ValueError, KeyError) as error:
            raise ControlRefused(f"these weights cannot be loaded: {error}") from None
        try:
            await self._idle(IDLE_SECONDS)
        except TimeoutError:
            raise ControlRefused("requests still run") from None
        if not await self._all(lambda service: service.core.use(changed, of)):
            raise ControlRefused("requests run again")

    async def sleep(self, tags: Collection[str], mode: str) -> None:
        """Raises ControlRefused for what is no mode."""
        await self.pause(mode)
        await self.flush()
        self.asleep |= frozenset(tags or MEMORY) & frozenset(MEMORY)

    async def wake(self, tags: Collection[str]) -> None:
        self.asleep -= frozenset(tags or MEMORY)
        if not self.asleep:
            await self.resume()

    async def _idle(self, seconds: float | None) -> None:
        """Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            for service in self._services:
                await asyncio.wrap_future(service.core.idle())

    async def _all(self, act: "Callable[[EngineService], Future[bool]]") -> bool:
        # Each has begun before one is waited for.
        begun = [asyncio.wrap_future(act(each)) for each in self._services]
        return all([await each for each in begun])
