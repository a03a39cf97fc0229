"""End of the step that vLLM's worker is in: what the prefix cache names may be computed in that very step.

    scheduler   request A gets blocks, and they are in the prefix cache at once
                request B gets the same blocks, as a hit; they may be lent to a peer
    worker      obeys the orders of the step -> computes A -> over: now the blocks hold what B was promised

A request that only computes behind a hit need not know, as the step does both in order. A peer that reads B's blocks must.

Source: vLLM 0.32.0, v1/core/kv_cache_manager.py, allocate_slots() (which caches what is going to be computed);
v1/worker/kv_connector_model_runner_mixin.py, _get_kv_connector_output().
"""

import threading
from collections.abc import Callable

from pdgate.transfer.device.base import DeviceEvent


class StepEnd(DeviceEvent):
    """End of one step, and behind it what the device has been asked for in it."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._computed: DeviceEvent | None = None

    def happens(self, computed: DeviceEvent | None) -> None:
        """The step is over when the device has come to `computed`; None: it has."""
        self._computed = computed
        self._over.set()

    def query(self) -> bool:
        return self._over.is_set() and (self._computed is None or self._computed.query())

    def synchronize(self) -> None:
        self._over.wait()
        if self._computed is not None:
            self._computed.synchronize()


class Steps:
    """Steps of a worker, one after the other, on its main thread."""

    def __init__(self, moment: Callable[[], DeviceEvent | None] = lambda: None) -> None:
        """`moment`: as ConnectorSettings have it."""
        self._moment = moment
        self._end: StepEnd | None = None

    def end(self) -> StepEnd:
        """End of this step."""
        if self._end is None:
            self._end = StepEnd()
        return self._end

    def over(self) -> None:
        """All of this step has been asked of the device."""
        end, self._end = self._end, None
        if end is not None:
            end.happens(self._moment())
