"""Connector of an engine whose ranks are processes: each hook goes to the ranks, which have connectors of the protocol.

A request is loaded when every rank has its share, and its kept pages are free when every rank has let them go. A load that
fails at one rank is cancelled at the others, and ends when the last one does.
"""

import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pdgate.engine.connector import Arrival, Connector, Core, Keep, Load, Pages, Plan
from pdgate.engine.layout import Layout
from pdgate.engine.ranks.crew import Crew, RankLost
from pdgate.engine.ranks.seats import places
from pdgate.engine.ranks.words import COUNTED, KnownShard, RankAnswer, RankEvent
from pdgate.protocols.instance import Role
from pdgate.transfer.messenger.counters import MessengerCounters

log = logging.getLogger(__name__)

ADDED_UP = ("bytes_moved", "bytes_sent")
"""What ranks count of a share each; the rest all of them count of a request."""


@dataclass(slots=True)
class _Loading:
    """
    Attributes:
        missing: Ranks that have not ended it.
        error: Of the first one that failed.
    """

    missing: set[int]
    error: str | None = None
    gave_up: bool = False


@dataclass(slots=True)
class _Kept:
    """
    Attributes:
        holding: Ranks that have not let it go.
        anew: Ranks that have not let go of what was computed anew while others had a reader still.
        dropped: It is not wanted any more.
    """

    holding: set[int] = field(default_factory=set)
    anew: set[int] = field(default_factory=set)
    dropped: bool = False


class RanksConnector(Connector):
    def __init__(self, crew: Crew, core: Core, layout: Layout) -> None:
        self.counters = MessengerCounters()
        self.kv_address = crew.ready[0].kv_address
        self._gauges: Mapping[str, tuple[str, float]] = {}
        self._crew = crew
        self._core = core
        self._all = frozenset(range(len(crew)))
        self._holders = [
            [place.number for place in places(layout) if layer in place.layers]
            for layer in range(layout.layers)
        ]
        self._counts: dict[int, tuple[float, ...]] = {}
        self._lock = threading.Lock()
        self._loads: dict[str, _Loading] = {}
        self._keeps: dict[str, _Kept] = {}

    # Hooks, on the core's thread.

    def plan(self, arrival: Arrival) -> Plan:
        said = replace(arrival, cached_tokens=KnownShard(arrival.cached_tokens()))
        answers = self._ask("plan", [(said,)] * len(self._all))
        plans = [answer.value for answer in answers]
        if any(answer.refused or answer.broken for answer in answers):
            if any(isinstance(plan, Keep) for plan in plans):
                self._ask("dropped", [(arrival.id, "refused")] * len(self._all))
            _values(answers)
        first = plans[0]
        if isinstance(first, Keep):
            with self._lock:
                self._keeps[arrival.id] = _Kept(set(self._all))
            return replace(first, ticket=tuple(plans))
        return replace(first, ticket=tuple(plans)) if isinstance(first, Load) else first

    def start(self, request_id: str, load: Load, pages: Pages, skip_tokens: int) -> None:
        with self._lock:
            self._loads[request_id] = _Loading(set(self._all))
        words = [(request_id, own, pages, skip_tokens) for own in load.ticket]
        for number, answer in enumerate(self._ask("start", words)):
            if answer.refused or answer.broken:
                self._loaded(number, request_id, answer.refused or answer.broken)

    def cancel(self, request_id: str) -> None:
        self._crew.post("cancel", request_id)

    def layer_computed(
        self, request_id: str, layer: int, block_ids: Sequence[int], tokens: int
    ) -> None:
        to = self._holders[layer]
        self._crew.post("layer_computed", request_id, layer, tuple(block_ids), tokens, to=to)

    def kept(
        self,
        request_id: str,
        keep: Keep,
        pages: Pages,
        first_token: int | None,
        finish_reason: str,
    ) -> Mapping[str, Any] | None:
        own = keep.ticket if isinstance(keep.ticket, tuple) else (keep,) * len(self._all)
        pages = replace(pages, block_ids=tuple(pages.block_ids))
        words = [(request_id, one, pages, first_token, finish_reason) for one in own]
        with self._lock:
            # What was dropped, and computed anew, is kept for no reader: the ranks release it at once, or after
            # what of it is still read from.
            kept = self._keeps.setdefault(request_id, _Kept(set(self._all)))
            if kept.dropped:
                kept.anew = set(self._all)
        params: Mapping[str, Any] | None = _values(self._ask("kept", words))[0]
        return params

    def dropped(self, request_id: str, why: str) -> bool:
        try:
            answers = self._crew.ask("dropped", [(request_id, why)] * len(self._all))
        except RankLost:
            # No reader is left: the ranks have ended.
            with self._lock:
                self._keeps.pop(request_id, None)
            return False
        with self._lock:
            kept = self._keeps.get(request_id)
            if kept is None:
                return False
            kept.holding &= {number for number, answer in enumerate(answers) if answer.value}
            # The core lets it go with what is read from, or now.
            kept.anew.clear()
            kept.dropped = True
            if not kept.holding:
                del self._keeps[request_id]
            return bool(kept.holding)

    def break_off(self, request_id: str) -> None:
        # Ranks that have ended read nothing.
        with contextlib.suppress(RankLost):
            self._crew.post("break_off", request_id)

    def trouble(self) -> str:
        return self._crew.lost

    def server_info(self) -> Mapping[str, Any]:
        return self._crew.ready[0].server_info

    def gauges(self) -> Mapping[str, tuple[str, float]]:
        return self._gauges

    def role_is(self, role: Role) -> None:
        # An engine that has lost a rank is ending already.
        with contextlib.suppress(RankLost):
            self._crew.post("role_is", role)

    def leave(self) -> None:
        # An engine that has lost a rank is ending already.
        with contextlib.suppress(RankLost):
            self._crew.post("leave")

    def close(self) -> None:
        with contextlib.suppress(RankLost):
            self._crew.post("close")
        self._crew.close()

    # Words of the ranks, on the crew's thread.

    def heard(self, number: int, event: RankEvent) -> None:
        self._count(number, event.counts)
        match event.name:
            case "gauges":
                # The first rank speaks for all.
                self._gauges = self._gauges if number else event.words[0]
            case "tell_ranks":
                self._crew.later(lambda: self._tell(number, *event.words))
            case "loaded":
                self._loaded(number, *event.words)
            case "gave_up":
                self._gave_up(*event.words)
            case "release":
                self._released(number, *event.words)
            case "submit_prefill":
                self._crew.later(lambda: self._submit(*event.words))
            case "abort":
                self._core.abort(*event.words)
            case "sampled":
                self._core.sampled(*event.words)
            case "came_along":
                self._core.came_along(*event.words)
            case _:
                log.error("rank %d says %r, which means nothing", number, event.name)

    def lost(self, why: str) -> None:
        """All ranks have ended: nothing is written or read any more, whatever was under way."""
        with self._lock:
            loads, self._loads = self._loads, {}
            keeps, self._keeps = self._keeps, {}
        for request_id in loads:
            self._core.loaded(request_id, why)
        for request_id in keeps:
            self._core.release(request_id)

    def _loaded(self, number: int, request_id: str, error: str | None = None) -> None:
        with self._lock:
            load = self._loads.get(request_id)
            if load is None or number not in load.missing:
                return
            load.missing.discard(number)
            failed_now = error is not None and load.error is None
            load.error = load.error or error
            if not load.missing:
                del self._loads[request_id]
            missing = tuple(load.missing)
        if not missing:
            self._core.loaded(request_id, load.error)
        elif failed_now:
            # The others need not go on; they end it all the same.
            self._crew.later(lambda: self._crew.post("cancel", request_id, to=missing))

    def _gave_up(self, request_id: str, error: str) -> None:
        with self._lock:
            load = self._loads.get(request_id)
            if load is None or load.gave_up:
                return
            load.gave_up = True
            load.error = load.error or error
            missing = tuple(load.missing)
        self._core.gave_up(request_id, error)
        self._crew.later(lambda: self._crew.post("cancel", request_id, to=missing))

    def _released(self, number: int, request_id: str) -> None:
        with self._lock:
            kept = self._keeps.get(request_id)
            if kept is None:
                return
            held = kept.holding if number in kept.holding else kept.anew
            if number not in held:
                return
            held.discard(number)
            if held:
                return
            if not (kept.holding or kept.anew):
                del self._keeps[request_id]
        self._core.release(request_id)

    def _tell(self, number: int, word: Any) -> None:
        self._crew.post("told", word, to=sorted(self._all - {number}))

    def _submit(self, request_id: str, prompt: Sequence[int], tokens: int, keep: Keep) -> None:
        """The first rank was asked for a prefill; the others' readers come there."""
        with self._lock:
            self._keeps[request_id] = _Kept(set(self._all))
        self._crew.post("keep_for", request_id, keep.ticket, to=sorted(self._all)[1:])
        try:
            self._core.submit_prefill(request_id, prompt, tokens, keep)
        except ValueError as error:
            with self._lock:
                del self._keeps[request_id]
            self._crew.post("dropped", request_id, str(error))

    def _ask(self, name: str, words: Sequence[tuple[Any, ...]]) -> list[RankAnswer]:
        return self._crew.ask(name, words)

    def _count(self, number: int, counts: tuple[float, ...]) -> None:
        self._counts[number] = counts
        for name, values in zip(COUNTED, zip(*self._counts.values(), strict=True), strict=True):
            setattr(self.counters, name, sum(values) if name in ADDED_UP else max(values))


def _values(answers: Sequence[RankAnswer]) -> list[Any]:
    """Raise ValueError if a rank has refused, RuntimeError if its connector broke."""
    for answer in answers:
        if answer.refused:
            raise ValueError(answer.refused)
    for number, answer in enumerate(answers):
        if answer.broken:
            raise RuntimeError(f"rank {number}: {answer.broken}")
    return [answer.value for answer in answers]
