"""Engines that answer from a script, behind the real scheduler and execution.

    engines = Scripted(p0=prefilled(), d0=[b"a", NEVER])
    crossing = Crossing(engines, P0, D0)
    told = await crossing.ask(chat())        # told.body, told.record
    engines.visits == ["p0", "d0"]

What an engine does with a leg:

    {...}              answers with this JSON
    [b"a", b"b"]       answers with these chunks; errors and events may stand between them
    EngineFailed(...)  fails before there is a status
    NEVER              says nothing; as one of the chunks: falls silent there
    After(event, s)    waits for the event, then follows s
    Turns(s, t)        follows s the first time, t the second, and so on
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from math import inf
from time import monotonic
from typing import Final, TypeAlias

from pdgate.forwarders import registry
from pdgate.forwarders.base import Answer, Leg, Mode, Sink
from pdgate.forwarders.choices import OnPrefillFailure
from pdgate.forwarders.execution import Execution
from pdgate.forwarders.kv_lease import KvLedger
from pdgate.forwarders.lives import Lives
from pdgate.forwarders.record import Record
from pdgate.forwarders.retry import RetryPolicy
from pdgate.forwarders.route import Way
from pdgate.protocols.call import CHAT, Call, Headers, Json, encode, parse_object, value
from pdgate.protocols.errors import GatewayError
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.disaggregation import SplitRule
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.policies.round_robin import RoundRobin
from pdgate.scheduling.scheduler import Scheduler
from tests.support import waiting
from tests.support.sinks import Collected

PATIENCE_SECONDS = waiting.PATIENCE_SECONDS
"""After which a test that hangs fails; all of them take milliseconds."""

P0 = Instance("p0", "http://10.0.0.1:8100", Role.PREFILL, "vllm-nixl")
P1 = Instance("p1", "http://10.0.0.2:8100", Role.PREFILL, "vllm-nixl")
D0 = Instance("d0", "http://10.0.1.1:8200", Role.DECODE, "vllm-nixl")
D1 = Instance("d1", "http://10.0.1.2:8200", Role.DECODE, "vllm-nixl")


def call_of(body: bytes, path: str = CHAT) -> Call:
    """The call that intake makes of a client's body."""
    fields = parse_object(body)
    return Call(
        "call-1",
        "call-1-first",
        path,
        fields,
        model=value(fields, "model"),
        streams=value(fields, "stream") is True,
        prompt_tokens=10,
    )


def chat(**fields: object) -> Call:
    messages = [{"role": "user", "content": "hi"}]
    return call_of(encode({"model": "m", "messages": messages, "stream": True, **fields}))


JOINING: Final[dict[str, Json]] = {
    "/distserve/engine_info": {"tp_size": 1, "block_size": 16},
    "/distserve/p2p_initialize": {"engine_endpoint_info": {}, "kvtransfer_endpoint_info": []},
    "/distserve/p2p_connect": {"status": 1},
    "/distserve/free_cache": {"status": "SUCCESS"},
}
"""What every engine answers to words beside calls; no script is asked."""


class Never(Enum):
    NEVER = "never"


NEVER: Final = Never.NEVER
Step = bytes | GatewayError | asyncio.Event | Never
Script: TypeAlias = "Json | GatewayError | Never | After | Turns | Sequence[Step]"


@dataclass(frozen=True, slots=True)
class After:
    event: asyncio.Event
    script: Script


class Turns:
    def __init__(self, *scripts: Script) -> None:
        self.left = list(scripts)


class Scripted:
    """The Upstream contract.

    Attributes:
        sent: Every leg with the attempt id that it travelled under.
        left_early: Ids of engines whose answer was left before its end.
    """

    def __init__(self, **scripts: Script) -> None:
        self.scripts = scripts
        self.sent: list[tuple[Leg, str]] = []
        self.left_early: list[str] = []
        self.open_answers = 0
        self._waiting: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    @property
    def visits(self) -> list[str]:
        return [leg.to.id for leg, _ in self.sent]

    @property
    def attempt_ids(self) -> list[str]:
        return [attempt_id for _, attempt_id in self.sent]

    def waits(self, engine: str) -> asyncio.Event:
        """Set as soon as this engine keeps somebody waiting."""
        return self._waiting[engine]

    async def ask(self, leg: Leg, call: Call) -> Json:
        async with self.open(leg, call) as answer:
            collected = Collected()
            answer.start(collected)
            return parse_object(await collected.body())

    @asynccontextmanager
    async def open(
        self,
        leg: Leg,
        call: Call,
        *,
        loads: bool = False,
        within: float | None = None,
        behind: str = "",
    ) -> AsyncIterator[Answer]:
        self.sent.append((leg, call.attempt_id))
        joining = JOINING.get(leg.path)
        steps = await self._head(leg) if joining is None else [encode(joining)]
        answer = ScriptedAnswer(leg, self._waiting[leg.to.id])
        self.open_answers += 1
        telling = asyncio.create_task(answer.tell(steps))
        try:
            yield answer
        finally:
            self.open_answers -= 1
            if not answer.over:
                self.left_early.append(leg.to.id)
            telling.cancel()

    async def _head(self, leg: Leg) -> Sequence[Step]:
        """Follows the script up to the status line."""
        script = self.scripts[leg.to.id]
        try:
            while True:
                match script:
                    case Turns():
                        script = script.left.pop(0)
                    case After(event, after):
                        await _pause(event, self._waiting[leg.to.id])
                        script = after
                    case Never.NEVER:
                        await _pause(asyncio.Event(), self._waiting[leg.to.id])
                    case GatewayError():
                        script.at = leg.to.id
                        raise script
                    case Mapping():
                        return [encode(script)]
                    case _:
                        assert not isinstance(script, str)
                        return script
        except asyncio.CancelledError:
            self.left_early.append(leg.to.id)
            raise


class ScriptedAnswer:
    """The Answer contract."""

    status = 200
    headers: Headers = ((b"content-type", b"text/event-stream"),)

    def __init__(self, leg: Leg, waiting: asyncio.Event) -> None:
        self.over = False
        self._leg = leg
        self._waiting = waiting
        self._held = b""
        self._error: GatewayError | None = None
        self._sink: Sink | None = None
        self._changed = asyncio.Event()
        self._reading = asyncio.Event()
        self._reading.set()

    async def tell(self, steps: Sequence[Step]) -> None:
        last = b""
        for position, step in enumerate(steps, start=1):
            await self._reading.wait()
            match step:
                case bytes() if position == len(steps) and self._sink is not None:
                    last = step
                case bytes():
                    self._take(step)
                case asyncio.Event():
                    await _pause(step, self._waiting)
                case Never.NEVER:
                    await _pause(asyncio.Event(), self._waiting)
                case GatewayError():
                    step.at = self._leg.to.id
                    self._error = step
                    break
            # Each chunk arrives by itself, as from a network.
            await asyncio.sleep(0)
        self.over = True
        self._changed.set()
        if self._sink is not None:
            self._sink.ended(self._error, last)

    async def ready(self, beyond: int = 0) -> bytes:
        while len(self._held) <= beyond and not self.over:
            self._changed.clear()
            await self._changed.wait()
        if len(self._held) <= beyond and self._error is not None:
            raise self._error
        return self._held

    def start(self, sink: Sink) -> None:
        self._sink = sink
        if self._held:
            sink.data(self._held)
        if self.over:
            sink.ended(self._error)

    def pause(self) -> None:
        self._reading.clear()

    def resume(self) -> None:
        self._reading.set()

    def _take(self, chunk: bytes) -> None:
        if self._sink is None:
            self._held += chunk
            self._changed.set()
        else:
            self._sink.data(chunk)


async def _pause(event: asyncio.Event, waiting: asyncio.Event) -> None:
    waiting.set()
    await event.wait()


class Told:
    """What a client got of one call; takes the answer as its sink.

    Attributes:
        error: What it was refused with, or what its answer ended with.
        hears: Set with the first byte.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        self.chunks: list[bytes] = []
        self.error: GatewayError | None = None
        self.hears = asyncio.Event()
        self._ended: asyncio.Future[GatewayError | None] = asyncio.Future()

    @property
    def body(self) -> bytes:
        assert self.error is None, self.error
        return b"".join(self.chunks)

    async def take(self, answer: Answer, record: Record) -> None:
        # An answer may go on with one that broke off.
        self._ended = asyncio.Future()
        answer.start(self)
        error = await self._ended
        if error is not None:
            raise error

    def data(self, chunk: bytes, framed: bytes = b"") -> None:
        if not self.chunks:
            self.record.committed = self.record.clock()
            self.hears.set()
        self.chunks.append(chunk)

    def ended(self, error: GatewayError | None, last: bytes = b"") -> None:
        if last:
            self.data(last)
        # A second call raises InvalidStateError.
        self._ended.set_result(error)


class Crossing:
    """The gateway without its HTTP: the real scheduler and execution over a script.

    Attributes:
        called: What a client has got so far, call by call.
        execution: Serves the calls.
    """

    def __init__(
        self,
        engines: Scripted,
        *records: Instance,
        mode: Mode = Mode.BATCH,
        clock: Callable[[], float] = monotonic,
        max_attempts: int = 3,
        max_resumes: int = 0,
        early_first_token: bool = False,
        rule: SplitRule | None = None,
        on_prefill_failure: OnPrefillFailure = OnPrefillFailure.RETRY_THEN_RECOMPUTE,
        retry_seconds: float = inf,
        lease_seconds: float | None = None,
    ) -> None:
        self.engines = engines
        self.endpoints = fleet(*records)
        self.scheduler = scheduler(self.endpoints, rule)
        self.called: list[Told] = []
        self._clock = clock
        self._mode = mode
        self._lease_seconds = lease_seconds
        self.ledger = KvLedger(clock)
        self.lives = Lives()
        self.execution = Execution(
            self.scheduler,
            self._way_of,
            engines,
            policy=RetryPolicy(max_attempts, on_prefill_failure, retry_seconds),
            ledger=self.ledger,
            lives=self.lives,
            max_resumes=max_resumes,
            early_first_token=early_first_token,
        )

    async def ask(self, call: Call, key: str = "") -> Told:
        """Serves a call, of an API key of that name; afterwards nothing may be left of it, however it ended."""
        told = Told(Record(call, self._clock))
        told.record.key = key
        self.called.append(told)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self.execution.serve(call, told.record, told.take)
        except GatewayError as error:
            told.error = error
        finally:
            assert self.reserved == {}
            assert self.engines.open_answers == 0
            assert self.ledger.held == 0
        return told

    @property
    def reserved(self) -> dict[str, int]:
        """Instance id -> calls that it is counted busy with."""
        return {c.instance.id: c.calls for c in self.endpoints if c.calls or c.tokens}

    def _way_of(self, instance: Instance) -> Way:
        generation = instance.generation
        forwarder = registry.load(instance.protocol, self._mode, generation)
        return Way(forwarder, self._mode, self._lease_seconds)


def fleet(*records: Instance, model: str = "m") -> Endpoints:
    """All of them up and serving one model."""
    endpoints = Endpoints(records)
    for record in records:
        endpoints.mark_up(record.id, [model])
    return endpoints


def scheduler(endpoints: Endpoints, rule: SplitRule | None = None) -> Scheduler:
    return Scheduler(endpoints, RoundRobin(), RoundRobin(), RoundRobin(), rule)
