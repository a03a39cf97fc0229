"""A connector that copies pages between two cores of one process.

It obeys the contract of engine/connector.py: nothing blocks the core's thread, `loaded`
comes exactly once per start, and a reader of dropped pages is refused.

    kv_transfer_params to prefill   {"keep": true}
    what prefill answers            {"from": request id, "tokens": n}
    kv_transfer_params to decode    that answer
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pdgate.engine.connector import Arrival, Connector, Core, Counters, Keep, Load, Pages
from pdgate.engine.layout import Layout


@dataclass
class Meeting:
    """What both sides see: who keeps which pages, in which memory."""

    layout: Layout
    kept: dict[str, tuple[Pages, memoryview, Core]] = field(default_factory=dict)
    first_tokens: dict[str, int] = field(default_factory=dict)
    dropped: list[tuple[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class FakeConnector(Connector):
    """
    Args:
        hold: Loads wait until the test calls `go`.
        spoil: Copies the pages to the wrong places, as a broken hand-over would.
        hands_first_token: Prefill samples one token, and decode is told of it.
    """

    def __init__(
        self,
        core: Core,
        memory: memoryview,
        meeting: Meeting,
        *,
        lease_seconds: float = 30.0,
        hold: bool = False,
        spoil: bool = False,
        hands_first_token: bool = False,
    ) -> None:
        self.counters = Counters()
        self.kv_address = ("", 0)
        self.started = threading.Event()
        self.ended = threading.Event()
        self.cancelled: list[str] = []
        self.skipped: dict[str, int] = {}
        self._core = core
        self._memory = memory
        self._meeting = meeting
        self._lease_seconds = lease_seconds
        self._hold = hold
        self._spoil = spoil
        self._hands_first_token = hands_first_token
        self._held: list[Callable[[], None]] = []

    def plan(self, arrival: Arrival) -> Load | Keep | None:
        params = arrival.params or {}
        if params.get("keep"):
            return Keep(self._lease_seconds, max_tokens=1 if self._hands_first_token else None)
        if "from" not in params:
            return None
        match params.get("tokens"):
            case int(tokens):
                return Load(tokens, params["from"])
            case other:
                raise ValueError(f"tokens must be a number, not {other!r}")

    def start(self, request_id: str, load: Load, pages: Pages, skip_tokens: int) -> None:
        self.skipped[request_id] = skip_tokens

        def copy() -> None:
            token = self._meeting.first_tokens.get(load.ticket)
            if self._hands_first_token and token is not None:
                self._core.sampled(request_id, token)
            self._core.loaded(request_id, self._copy(load, pages, skip_tokens))
            self.ended.set()

        if self._hold:
            self._held.append(copy)
        else:
            threading.Thread(target=copy).start()
        self.started.set()

    def go(self) -> None:
        held, self._held = self._held, []
        for copy in held:
            copy()

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def kept(
        self,
        request_id: str,
        keep: Keep,
        pages: Pages,
        first_token: int | None,
        finish_reason: str,
    ) -> Mapping[str, Any] | None:
        with self._meeting.lock:
            self._meeting.kept[request_id] = (pages, self._memory, self._core)
            if first_token is not None:
                self._meeting.first_tokens[request_id] = first_token
        return {"from": request_id, "tokens": pages.tokens}

    def dropped(self, request_id: str, why: str) -> bool:
        with self._meeting.lock:
            self._meeting.kept.pop(request_id, None)
            self._meeting.dropped.append((request_id, why))
        return False

    def close(self) -> None:
        return

    def _copy(self, load: Load, pages: Pages, skip_tokens: int) -> str | None:
        """None, or why it failed."""
        layout = self._meeting.layout
        with self._meeting.lock:
            found = self._meeting.kept.pop(load.ticket, None)
        if found is None:
            return f"nobody keeps {load.ticket}"
        theirs, memory, owner = found
        if skip_tokens >= load.tokens:
            owner.release(load.ticket)
            return None
        pairs = list(zip(theirs.block_ids, pages.block_ids, strict=True))
        if self._spoil:
            pairs = [(theirs.block_ids[-1 - i], mine) for i, (_, mine) in enumerate(pairs)]
        for source, target in pairs[skip_tokens // layout.block_tokens :]:
            for layer in range(layout.layers):
                here, there = layout.page_offset(layer, target), layout.page_offset(layer, source)
                self._memory[here : here + layout.page_bytes] = memory[
                    there : there + layout.page_bytes
                ]
        owner.release(load.ticket)
        return None
