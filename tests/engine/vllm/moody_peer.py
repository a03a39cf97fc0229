"""A hand-over whose other side does whatever a test wants, whenever it wants."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pdgate.engine.connector import Arrival, Connector, Core, Keep, Load, Pages
from pdgate.transfer.messenger.counters import MessengerCounters

LEASE_SECONDS: Final = 10.0

HOLDS: Final = ("held", "refused", "bug", "offer breaks")
LOADS: Final = ("loaded", "refused", "bug", "too short", "start breaks")


def params(wish: str, mood: str) -> dict[str, Any]:
    return {wish: True, "remote_host": "h", "remote_port": 1, "mood": mood}


class MoodyPeer(Connector):
    """
    Attributes:
        loading: Target blocks of the loads that have not ended.
        offered: Blocks that a reader may enter, by request.
        reading: Those that one is in.
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        self.counters = MessengerCounters()
        self.kv_address = ("h", 1)
        self.loading: dict[str, Sequence[int]] = {}
        self.offered: dict[str, Sequence[int]] = {}
        self.reading: dict[str, Sequence[int]] = {}
        self._mood: dict[str, str] = {}

    def plan(self, arrival: Arrival) -> Load | Keep | None:
        assert arrival.params is not None
        mood = self._mood[arrival.id] = arrival.params["mood"]
        if mood == "refused":
            raise ValueError("it makes no sense")
        if mood == "bug":
            raise KeyError("a bug")
        if arrival.params.get("do_remote_decode"):
            return Keep(LEASE_SECONDS)
        return Load(1 if mood == "too short" else len(arrival.prompt) - 1, None)

    def start(self, request_id: str, load: Load, pages: Pages, skip_tokens: int) -> None:
        if self._mood.get(request_id) == "start breaks":
            raise RuntimeError("a bug")
        if skip_tokens >= load.tokens:
            self.core.loaded(request_id)
        else:
            self.loading[request_id] = pages.block_ids

    def cancel(self, request_id: str) -> None:
        """It ends when the test says so, as a slow peer's would."""

    def layer_computed(
        self, request_id: str, layer: int, block_ids: Sequence[int], tokens: int
    ) -> None:
        if self._mood.get(request_id) == "held":
            self.offered[request_id] = block_ids

    def kept(
        self,
        request_id: str,
        keep: Keep,
        pages: Pages,
        first_token: int | None,
        finish_reason: str,
    ) -> Mapping[str, Any] | None:
        if self._mood[request_id] == "offer breaks":
            raise RuntimeError("a bug")
        self.offered[request_id] = pages.block_ids
        return None

    def dropped(self, request_id: str, why: str) -> bool:
        # Whatever is computed of it from now on is for nobody.
        self._mood.pop(request_id, None)
        self.offered.pop(request_id, None)
        if request_id not in self.reading:
            return False
        if why.startswith("preempted"):
            # The engine waits for this one.
            threading.Thread(target=self.go, args=(request_id,)).start()
        return True

    def close(self) -> None:
        """Nothing of it lives."""

    # What the test has the peer do.

    def held(self, name: str) -> None:
        """A peer has asked for this prefill."""
        self._mood[name] = "held"

    def end_load(self, request_id: str, error: str | None) -> None:
        del self.loading[request_id]
        self.core.loaded(request_id, error)

    def enter(self, request_id: str) -> None:
        self.reading[request_id] = self.offered[request_id]

    def go(self, request_id: str) -> None:
        self.offered.pop(request_id, None)
        del self.reading[request_id]
        self.core.release(request_id)

    def nobody_is_in(self, block_ids: Sequence[int]) -> None:
        for blocks in (*self.loading.values(), *self.reading.values()):
            assert not set(blocks) & set(block_ids)
