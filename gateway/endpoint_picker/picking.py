"""Picker: one request of the data plane, to the engines that it is for. What `gateway/service.py` is to calls that we send.

    screen     the head: draining, API keys
    pick       intake, keys, admission, a route of the scheduler's; nothing is sent

The engines are reserved until the call is over (outcome.py). Which may be chosen, the data plane may narrow down.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from pdgate.forwarders.base import Reserved
from pdgate.forwarders.encoding import is_long
from pdgate.forwarders.execution import Execution
from pdgate.forwarders.record import PREFILL_ONLY, Record
from pdgate.forwarders.retry import FRESH, RetryState
from pdgate.forwarders.unseen import comes_whole
from pdgate.gateway import errors
from pdgate.gateway.admission.gate import Gate
from pdgate.gateway.admission.place import NAME as PRIORITY
from pdgate.gateway.admission.place import place_of
from pdgate.gateway.apis.passing import PassedRequest, asked, passing
from pdgate.gateway.apis.restricted import check_fields
from pdgate.gateway.apis.stored import placed
from pdgate.gateway.endpoint_picker.outcome import (
    CLIENT_GONE,
    EndpointChoice,
    PickedCall,
    Reservations,
)
from pdgate.gateway.engine_addresses import EngineAddresses
from pdgate.gateway.intake import READ_AT_ONCE_BYTES, TAKEN, Intake
from pdgate.gateway.lifecycle.drain import Drain
from pdgate.gateway.metrics.call_stats import CallStats
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.gateway.security.authenticator import Authenticator, KeyState
from pdgate.gateway.steering import DESTINATION, ENCODERS, PREFILLER, narrowed
from pdgate.protocols import media
from pdgate.protocols.apis import PASSED
from pdgate.protocols.call import Call, Headers, encode
from pdgate.protocols.errors import (
    EngineRefused,
    GatewayError,
    NoInstance,
    NotFound,
    Overloaded,
)
from pdgate.protocols.instance import Instance, Role
from pdgate.protocols.priority import LEAST_URGENT, MOST_URGENT, ORDINARY
from pdgate.scheduling.context_length import long_enough, may_be_too_long
from pdgate.scheduling.endpoints import RETRY_AFTER_SECONDS, Endpoints

OBJECTIVE: Final = b"x-gateway-inference-objective"
RANK: Final = "x-data-parallel-rank"
MOST_ENCODERS: Final = 16
"""That one call's media are spread over."""
_OURS: Final = (PREFILLER, ENCODERS, DESTINATION, RANK)
"""Headers that name whom an engine dials, so a client may not say them."""


@dataclass(frozen=True, slots=True)
class AskedHead:
    """Head of a request as the data plane has it.

    Attributes:
        subset: Addresses to choose from; None for all.
    """

    method: str
    path: str
    headers: RequestHeaders
    subset: Sequence[str] | None = None

    @staticmethod
    def of(headers: Headers, subset: Sequence[str] | None) -> "AskedHead":
        """Head made of headers with Envoy's pseudo-headers."""
        pseudo = {name: value.decode("latin-1") for name, value in headers if name[:1] == b":"}
        real = [header for header in headers if header[0][:1] != b":"]
        return AskedHead(
            pseudo.get(b":method", "GET"), pseudo.get(b":path", "/"), RequestHeaders(real), subset
        )


@dataclass(frozen=True, slots=True)
class EngineCredentials:
    """What becomes of the header Authorization: engines' own key in its place, or nothing."""

    own: str
    passes: bool


class EndpointPicker:
    """
    Attributes:
        fallbacks: How many more engines are named, for a data plane that tries them.
        priority_of: Name of an InferenceObjective -> its priority; None for one that is not known.
    """

    def __init__(
        self,
        intake: Callable[[], Intake],
        execution: Execution,
        fleet: Endpoints,
        stats: CallStats,
        drain: Drain,
        addresses: EngineAddresses,
        credentials: EngineCredentials,
        authenticator: Authenticator | None = None,
        gate: Gate | None = None,
        fallbacks: int = 1,
    ) -> None:
        self.fallbacks = fallbacks
        self.priority_of: Callable[[str], int | None] = lambda _: None
        self._intake = intake
        self._execution = execution
        self._fleet = fleet
        self._stats = stats
        self._drain = drain
        self._addresses = addresses
        self._credentials = credentials
        self._authenticator = authenticator
        self._gate = gate

    @property
    def max_body_bytes(self) -> int:
        return self._intake().max_body_bytes

    def call_id(self, head: AskedHead) -> str:
        return self._intake().call_id(head.headers)

    def screen(self, head: AskedHead) -> KeyState | None:
        """Screen a request before its body has come. Raise Draining, Unauthorized, RateLimited, BadRequest."""
        if self._drain.began is not None:
            raise self._drain.refusal()
        authenticator = self._authenticator
        return None if authenticator is None else authenticator.screen(head.headers)

    def refused(self, error: GatewayError) -> None:
        """Count a request that never became a call."""
        self._stats.refused(error)

    async def pick(self, head: AskedHead, body: bytes, key_state: KeyState | None) -> PickedCall:
        """Raises the GatewayError that the client is to see, which is counted."""
        wrong: GatewayError | None = None
        try:
            call = await self._call(head, body, key_state)
            headers, sheddable = self._with_priority(head.headers)
            place = None if self._gate is None else place_of(call, headers, key_state)
            if key_state is not None:
                if key_state.key.models and call.passed is None:
                    check_fields(call)
                key_state.enter(call.model)
        except Exception as caught:  # noqa: BLE001
            wrong = errors.known(caught)
        if wrong is not None:
            self._stats.refused(wrong)
            raise wrong
        record, block = Record(call), ExitStack()
        record.attempts = 1
        if key_state is not None:
            record.key = key_state.name
            block.callback(key_state.leave)
        self._stats.opened(record)
        block.callback(self._stats.closed, record)
        try:
            # Before its turn, as engines are reserved at once then.
            allowed = None if head.subset is None else await self._allowed(head.subset)
            if place is not None and self._gate is not None:
                # Asked before: in a full line it would take the place of one that waits.
                if sheddable and not self._gate.would_begin(call.model, place):
                    raise Overloaded(
                        "engines are busy, and this call's objective is one that gives way",
                        retry_after_seconds=RETRY_AFTER_SECONDS,
                    )
                turn = block.enter_context(self._gate.turn(call.model, place))
                if turn.waits:
                    await turn.come()
                    call = record.call = call.begun(turn.seconds)
                record.queued_seconds = turn.seconds
            return await self._routed(allowed, call, record, block)
        except asyncio.CancelledError:
            record.end("client_gone", CLIENT_GONE)
            block.close()
            raise
        except Exception as caught:  # noqa: BLE001
            wrong = errors.known(caught)
        record.end(wrong.code or "internal_error", wrong.status)
        block.close()
        raise wrong

    async def _call(self, head: AskedHead, body: bytes, key_state: KeyState | None) -> Call:
        """Raises GatewayError."""
        intake, call_id = self._intake(), self.call_id(head)
        target, _, query = head.path.partition("?")
        if head.method == "POST" and target in TAKEN:
            if len(body) > READ_AT_ONCE_BYTES:
                call = await asyncio.to_thread(intake.call, target, head.headers, body, call_id)
            else:
                call = intake.call(target, head.headers, body, call_id)
            return call if call.api is None else placed(call, self._fleet, key_state)
        found = asked(head.method, target, target, query, everything=True)
        if found is None:
            if head.method not in ("GET", "HEAD", "OPTIONS"):
                raise NotFound(f"{head.method} {target} is no route for engines")
            found = PassedRequest(PASSED, head.method, target, query)
        read = partial(
            passing, intake, found, head.headers, body, call_id, list(self._fleet), key_state
        )
        call = await asyncio.to_thread(read) if len(body) > READ_AT_ONCE_BYTES else read()
        if call.model is None and not call.at:
            # It names none, so that of any engine will do.
            call = msgspec.structs.replace(call, model=min(self._fleet.models(), default=None))
        return call

    def _with_priority(self, headers: RequestHeaders) -> tuple[RequestHeaders, bool]:
        """With the objective's priority in place of what the client says of it; and whether it gives way."""
        name = headers.named.get(OBJECTIVE)
        priority = None if name is None else self.priority_of(name.decode("latin-1"))
        if priority is None:
            return headers, False
        level = min(LEAST_URGENT, max(MOST_URGENT, ORDINARY - priority))
        others = [one for one in headers.all if one[0] != PRIORITY.encode()]
        return RequestHeaders([*others, (PRIORITY.encode(), b"%d" % level)]), priority < 0

    async def _routed(
        self, allowed: Collection[str] | None, call: Call, record: Record, block: ExitStack
    ) -> PickedCall:
        """`allowed`: engines, by their ids; None for all."""
        state = FRESH if allowed is None else narrowed(self._fleet, allowed)
        router = self._execution.router
        with ExitStack() as undone:
            route = router.route(call, state)
            record.path, record.protocol, record.mode = route.path, route.protocol, route.mode
            if route.decision is not None:
                record.decisions[1] = route.decision
            prefill, answering = route.prefill, route.answering
            if prefill is not None:
                undone.callback(prefill.withdraw)
            if answering is None and route.leg is None:
                answering = router.decode_for(route, call, state)
            if answering is None:
                # One that reads the prompt and needs no other for its only token.
                prefill, answering = None, prefill
            else:
                undone.callback(answering.withdraw)
            assert answering is not None
            encoders = await self._encoders(call, state, undone)
            reserved = Reservations(route.role, answering, prefill, encoders)
            choice = await self._choice(call, reserved, state)
            picked = PickedCall(
                call,
                record,
                choice,
                reserved,
                self._execution.engines,
                self._execution.failed,
                block,
            )
            undone.pop_all()
        if comes_whole(call) and route.path != PREFILL_ONLY:
            one = answering if prefill is None else prefill
            read = one.presume_read if prefill is None else one.presume_end
            self._execution.unseen.expect(one.reading_seconds, read)
        if record.trace is not None:
            picked.choice.headers.update(record.trace.headers(picked.leg))
        return picked

    async def _allowed(self, addresses: Sequence[str]) -> set[str]:
        """Engines that are there, by their ids. Raises NoInstance where none is."""
        named = await self._addresses.named(self._fleet, addresses)
        allowed = {one for ids in named.values() for one in ids}
        if not allowed:
            raise NoInstance(
                "no engine of the subset that the gateway asks for is known",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        return allowed

    async def _encoders(self, call: Call, state: RetryState, undone: ExitStack) -> list[Reserved]:
        """For its media, one each; none where an engine of another role is to encode them."""
        encoding = self._execution.encoding
        if encoding is None or not encoding.wants(call):
            return []
        if is_long(call):
            items = await asyncio.to_thread(media.items_of, call)
        else:
            items = media.items_of(call)
        of_each = msgspec.structs.replace(call, body={}, blocks=(), prompt_tokens=0, streams=False)
        found: list[Reserved] = []
        for _ in range(min(len(items), MOST_ENCODERS)):
            try:
                one = self._execution.engines.reserve(
                    Role.ENCODE, of_each, avoid=state.failures, alone=True, reads=False
                )
            except NoInstance:
                break
            undone.callback(one.withdraw)
            found.append(one)
        return found

    async def _choice(
        self, call: Call, reserved: Reservations, state: RetryState
    ) -> EndpointChoice:
        """What is said of them. Raises EngineRefused for an engine without an address."""
        answering = reserved.answering
        assert answering is not None
        engine, at = answering.instance, self._addresses.of
        destinations = {await at(engine): engine}
        for other in self._others(call, reserved, state):
            with suppress(EngineRefused):
                destinations.setdefault(await at(other), other)
        headers = {DESTINATION: ",".join(destinations)}
        if reserved.prefill is not None:
            headers[PREFILLER] = await at(reserved.prefill.instance)
        if encoders := [await at(one.instance) for one in reserved.encoders]:
            headers[ENCODERS] = ",".join(dict.fromkeys(encoders))
        if engine.dp_rank is not None:
            headers[RANK] = str(engine.dp_rank)
        removed = [name for name in _OURS if name not in headers]
        credentials = self._credentials
        if credentials.own:
            headers["authorization"] = credentials.own
        if not credentials.passes:
            removed += ["x-api-key"] if credentials.own else ["authorization", "x-api-key"]
        return EndpointChoice(destinations, headers, tuple(removed), self._body(call))

    def _others(self, call: Call, reserved: Reservations, state: RetryState) -> Sequence[Instance]:
        """Who else could answer, those with the fewest calls first."""
        answering = reserved.answering
        assert answering is not None
        engine = answering.instance
        if not self.fallbacks or call.at or engine.dp_rank is not None:
            # The header that names a rank goes to any engine that is asked.
            return ()
        peer = reserved.prefill
        eligible = self._fleet.eligible(call.model)
        able = [
            one
            for one in eligible.up[reserved.role]
            if one.fit
            and one.instance.id not in state.failures
            and one.instance.speaks == engine.speaks
            and one.instance.dp_rank is None
            and (peer is None or one.instance.id != peer.instance.id)
        ]
        if able and eligible.uneven and may_be_too_long(call, eligible.shortest):
            reads_only = reserved.role is Role.PREFILL
            able = [*long_enough(call, able, eligible.model, reads_only=reads_only)]
        able.sort(key=lambda one: (one.calls, one.instance.id))
        others = [one.instance for one in able if one.instance.id != engine.id]
        return others[: self.fallbacks]

    def _body(self, call: Call) -> bytes | None:
        """With the name by which engines know the model; None where the client's says it."""
        aliases = self._intake().aliases
        if not aliases or call.model not in aliases.values():
            return None
        if call.passed is not None:
            return call.passed.body or None
        return encode(call.body)
