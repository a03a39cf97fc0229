"""Control of the engines of a model: what one request does to calls, to engines, and to what is known of caches.

    a weight update
    hold     calls that come wait, in all processes
    quiet    those that run have ended, or are ended; all processes have said so
    ask      all engines at once
    flush    engines with new weights empty their KV caches; indexes of prefixes are emptied here
    release  calls go on, with engines that did all of it; the others are left out

No call ever meets two weights: an engine that failed, or from which no answer came, is left out before calls go
on, unless all engines refused, and so have what they had. One turn at a time (board.py).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from pdgate.cluster.directory import StoreAway
from pdgate.gateway.control.asking import ControlledEngine, EngineReply, ask_all, engines_of
from pdgate.gateway.control.board import ControlBoard
from pdgate.gateway.control.following import Following, read_word
from pdgate.gateway.control.state import (
    ASLEEP,
    FROZEN,
    PAUSED,
    UPDATING,
    HeldState,
)
from pdgate.gateway.control.wire import (
    ABORT,
    FROZEN_MODES,
    ControlRoute,
    Effect,
    ids_of,
    mode_of,
    tags_of,
)
from pdgate.gateway.security.engine_access import EngineAccess
from pdgate.gateway.sync.shared_store import NotShared
from pdgate.protocols.errors import BadRequest, GatewayError, NotFound, UnknownModel
from pdgate.scheduling.endpoints import Endpoints

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.05
FLUSH_SECONDS: Final = 40.0
"""For an engine that says that it is not idle yet: a moment after its last answer, or while a prefill engine keeps a
prompt that its decode engine never fetched, which most do for 30 s (protocols/dialects: LEASE_SECONDS)."""
FLUSH_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 1.0


class CallsRun(GatewayError):
    """Calls did not end in time, so nothing was changed."""

    status, code = 503, "calls_run"


@dataclass(frozen=True, slots=True)
class ControlOrder:
    """What was asked for.

    Attributes:
        query: Without what is the gateway's own.
        target: Path and query as engines get them.
        said: The body as JSON, where it is short enough to be read.
        model: None for the only one.
        engine: Id of the only engine that is asked; empty for all.
    """

    route: ControlRoute
    method: str
    query: Mapping[str, Sequence[str]]
    target: str
    body: bytes
    said: Any
    model: str | None
    engine: str = ""


@dataclass(slots=True)
class ControlResult:
    """What came of it.

    Attributes:
        flushed: What engines said of their caches, where they were asked.
    """

    model: str
    replies: Sequence[EngineReply]
    flushed: Sequence[EngineReply] = ()
    state: HeldState = field(default_factory=HeldState)

    @property
    def status(self) -> int:
        """200 where all engines did it, 207 where some did, 502 where none did."""
        good = sum(reply.ok for reply in self._all())
        if good == len(self._all()):
            return 200
        return 207 if any(reply.ok for reply in self.replies) else 502

    def as_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "model": self.model,
            "ok": self.status == 200,
            "engines": [reply.as_json() for reply in self.replies],
            "held": list(self.state.reasons([self.model])),
            "left_out": list(self.state.left_out),
        }
        if self.flushed:
            shown["flushed"] = [reply.as_json() for reply in self.flushed]
        return shown

    def _all(self) -> Sequence[EngineReply]:
        return (*self.replies, *self.flushed)


class Control:
    """
    Attributes:
        done: (effect, "all", "some" or "none") -> requests.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        access: EngineAccess,
        board: ControlBoard,
        following: Following,
        engine_seconds: float,
        quiet_seconds: float,
    ) -> None:
        """`engine_seconds`: for an engine's answer; `quiet_seconds`: for calls that run, to end."""
        self.done: Counter[tuple[str, str]] = Counter()
        self._endpoints = endpoints
        self._access = access
        self._board = board
        self._following = following
        self._engine_seconds = engine_seconds
        self._quiet_seconds = quiet_seconds

    async def carry_out(self, order: ControlOrder) -> ControlResult:
        """Raises GatewayError for what was not begun."""
        result = await self._carried_out(order)
        self.done[order.route.effect.name.lower(), _IN_WORDS[result.status]] += 1
        return result

    async def _carried_out(self, order: ControlOrder) -> ControlResult:
        if order.route.effect is Effect.ASK:
            return await self._asked(order)
        if order.engine:
            raise BadRequest("what holds calls is for all engines of a model", param="engine")
        try:
            async with self._board.turn():
                return await self._in_turn(order)
        except StoreAway as error:
            raise NotShared(
                "other processes cannot be told; what is held stays so until this is said again"
            ) from error

    async def let_in(self, instance_id: str) -> None:
        """An operator says that it has the weights of the others. Raises StoreAway, ControlBusy."""
        if instance_id not in self._following.state.left_out:
            return
        async with self._board.turn():
            await self._pin((await self._following.look()).let_in(instance_id))

    async def _asked(self, order: ControlOrder) -> ControlResult:
        work = self._work(order)
        engines = work.engines
        if order.engine:
            engines = [one for one in engines if order.engine in one.ids]
            if not engines:
                raise NotFound(f"the model has no engine {order.engine!r}", param="engine")
        replies = await self._ask(order, engines)
        return ControlResult(work.model, replies, state=self._following.state)

    async def _in_turn(self, order: ControlOrder) -> ControlResult:
        await self._following.look()
        work = self._work(order)
        match order.route.effect:
            case Effect.PAUSE:
                doing = self._pause(work)
            case Effect.SLEEP:
                doing = self._sleep(work)
            case Effect.RESUME:
                doing = self._release(work, (PAUSED, FROZEN, UPDATING))
            case Effect.WAKE:
                doing = self._release(work, _asleep(order))
            case Effect.ABORT:
                doing = self._abort(work)
            case Effect.FLUSH:
                doing = self._flush(work)
            case _:
                doing = self._update(work)
        replies, flushed = await doing
        return ControlResult(work.model, replies, flushed, self._following.state)

    # What each does; the second half are the answers to a flush.

    async def _pause(self, work: "_Work") -> "_Replies":
        mode = _mode(work.order)
        frozen = mode in FROZEN_MODES
        why = (PAUSED, FROZEN) if frozen else (PAUSED,)
        state = work.before.begin_update().hold(work.models, *why)
        return await self._stopped(work, state, mode, frozen=frozen)

    async def _sleep(self, work: "_Work") -> "_Replies":
        mode = _mode(work.order)
        state = work.before.hold(work.models, *_asleep(work.order))
        # What sleeps loses the KV of calls that run.
        mode = ABORT if mode in FROZEN_MODES else mode
        return await self._stopped(work, state, mode, frozen=False)

    async def _stopped(
        self, work: "_Work", state: HeldState, mode: str, *, frozen: bool
    ) -> "_Replies":
        """Engines stop, and calls wait until they go on; not where no engine has stopped."""
        await self._hold(work, state, mode, quiet=not frozen)
        replies = await self._ask(work.order, work.engines)
        if any(reply.ok for reply in replies):
            if not frozen:
                await self._pin(self._following.state.without_kv(work.models))
        else:
            await self._restore(work)
        return replies, ()

    async def _release(self, work: "_Work", why: Collection[str]) -> "_Replies":
        """Calls go on once all that answer go on; what does not answer is down, as probes see it."""
        replies = await self._ask(work.order, work.engines)
        if any(reply.ok for reply in replies) and not any(reply.refused for reply in replies):
            await self._pin(work.before.release(work.models, why))
        return replies, ()

    async def _abort(self, work: "_Work") -> "_Replies":
        try:
            ids = ids_of(work.order.said)
        except ValueError as error:
            raise BadRequest(str(error)) from None
        # First: a call that its engine has ended would be tried again.
        await self._pin(work.before.abort(work.models, ids))
        await self._taken()
        return await self._ask(work.order, work.engines), ()

    async def _flush(self, work: "_Work") -> "_Replies":
        replies = await self._ask(work.order, work.engines)
        if any(reply.ok for reply in replies):
            await self._pin(work.before.without_kv(work.models))
        return replies, ()

    async def _update(self, work: "_Work") -> "_Replies":
        effect, mode = work.order.route.effect, _mode(work.order)
        state, models = work.before, work.models
        held_before = state.reasons(models)
        frozen = FROZEN in held_before
        if effect is Effect.START or not held_before:
            state = state.begin_update()
        await self._hold(work, state.hold(models, UPDATING), mode, quiet=not frozen)
        replies = await self._ask(work.order, work.engines)
        good = [reply.engine for reply in replies if reply.ok]
        bad = [reply.engine for reply in replies if not reply.ok]
        if not good and all(reply.refused for reply in replies):
            # All have what they had.
            await self._restore(work)
            return replies, ()
        flushed: Sequence[EngineReply] = ()
        if effect is not Effect.START and not frozen:
            flushed = await self._flushed(work.order.route.flush, good)
            bad += [reply.engine for reply in flushed if not reply.ok]
            good = [reply.engine for reply in flushed if reply.ok]
        if bad:
            names = ", ".join(one.ids[0] for one in bad)
            log.warning("left out, as their weights may not be those of the others: %s", names)
        state = self._following.state.updated(_ids(good), _ids(bad)).without_kv(models)
        if effect is Effect.FINISH or (effect is Effect.UPDATE and UPDATING not in held_before):
            state = state.release(models, (UPDATING,))
        await self._pin(state)
        return replies, flushed

    # How.

    def _work(self, order: ControlOrder) -> "_Work":
        """Raises UnknownModel, BadRequest, NoInstance."""
        name = self._endpoints.meant(order.model)
        serving = [one for one in self._endpoints if name in one.models]
        if not serving:
            raise UnknownModel(f"the model {name!r} does not exist", param="model")
        models = frozenset(other for one in serving for other in one.models)
        return _Work(order, name, engines_of(serving), models, self._following.state)

    async def _ask(
        self, order: ControlOrder, engines: Sequence[ControlledEngine]
    ) -> list[EngineReply]:
        return await ask_all(
            self._access, engines, order.method, order.target, order.body, self._engine_seconds
        )

    async def _flushed(self, target: str, engines: Sequence[ControlledEngine]) -> list[EngineReply]:
        """Asked again, for a while, of those that are not idle yet."""
        until, pause = monotonic() + FLUSH_SECONDS, FLUSH_PAUSE_SECONDS
        found: dict[str, EngineReply] = {}
        left = list(engines)
        while left:
            replies = await ask_all(self._access, left, "POST", target, b"{}", self._engine_seconds)
            found |= {reply.engine.url: reply for reply in replies}
            left = [reply.engine for reply in replies if reply.busy]
            if monotonic() > until:
                break
            if left:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        return [found[engine.url] for engine in engines]

    async def _hold(self, work: "_Work", state: HeldState, mode: str, *, quiet: bool) -> None:
        """Calls wait, and with `quiet` none runs any more. Raises CallsRun, and then nothing is held."""
        if mode == ABORT:
            state = state.abort(work.models)
        await self._pin(state)
        try:
            if not await self._taken(work.models if quiet else ()):
                raise CallsRun(
                    f"calls of the model still ran after {self._quiet_seconds:g} s, so nothing was "
                    "changed; mode=abort ends them",
                    retry_after_seconds=5,
                )
        except BaseException:
            await self._restore(work)
            raise

    async def _restore(self, work: "_Work") -> None:
        """What waited before this waits on, and nothing else."""
        state = self._following.state
        added = set(state.reasons(work.models)) - set(work.before.reasons(work.models))
        await self._pin(state.release(work.models, added))

    async def _pin(self, state: HeldState) -> None:
        await self._board.pin(state.model_dump_json().encode())
        await self._following.take(state)

    async def _taken(self, models: Collection[str] = ()) -> bool:
        """Whether all processes have come to know the state in time, and calls of `models` run nowhere."""
        version = self._following.state.version
        until = monotonic() + self._quiet_seconds
        while True:
            others = [read_word(word) for word in await self._board.words()]
            here = self._following.holds.running(models)
            if not here and all(one.has(version, models) for one in others):
                return True
            if monotonic() > until:
                return False
            await asyncio.sleep(LOOK_SECONDS)


@dataclass(frozen=True, slots=True)
class _Work:
    """What is to be done.

    Attributes:
        model: Its name.
        models: All that its engines serve (adapters are models, too).
        before: What was held before.
    """

    order: ControlOrder
    model: str
    engines: Sequence[ControlledEngine]
    models: Collection[str]
    before: HeldState


_IN_WORDS: Final = {200: "all", 207: "some", 502: "none"}
_Replies = tuple[Sequence[EngineReply], Sequence[EngineReply]]


def _asleep(order: ControlOrder) -> Sequence[str]:
    """Why calls wait while what it names sleeps."""
    tags = tags_of(order.route, order.query, order.said)
    return [f"{ASLEEP}{tag}" for tag in tags]


def _mode(order: ControlOrder) -> str:
    try:
        return mode_of(order.route, order.query, order.said)
    except ValueError as error:
        raise BadRequest(str(error), param="mode") from None


def _ids(engines: Sequence[ControlledEngine]) -> frozenset[str]:
    return frozenset(each for engine in engines for each in engine.ids)
