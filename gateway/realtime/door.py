"""Door of the realtime sessions: the life of one, from its request to its end. Knows no framework.

    front end                    door
      | headers, query ------->    offer, origin, key (screen), model, the key's limits and tokens, holds, admission
      |                            a plain engine of the model, and another one if that cannot be reached
      | <----- refuse(error)       so far all that goes wrong is an HTTP response
      | <----- accept()            the engine has accepted
      | <----- frames ----->       relay, until one of its endings

The key's place (max_calls), the place at the engine and the one in the gate are held as long as the session lasts. From
the moment that its key has let it in it has a record, as a call has.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from pdgate.forwarders.base import Reserved
from pdgate.forwarders.execution import Execution
from pdgate.forwarders.record import LegRecord, Record
from pdgate.forwarders.retry import CHANCES, FRESH
from pdgate.gateway import errors
from pdgate.gateway.admission.gate import NO_TURN
from pdgate.gateway.admission.place import place_of
from pdgate.gateway.apis.passing import PassedRequest, passing
from pdgate.gateway.metrics.call_stats import CallStats
from pdgate.gateway.realtime.endings import SessionEnding, SessionOutcome
from pdgate.gateway.realtime.naming import MOST_BYTES, names_of
from pdgate.gateway.realtime.offer import SocketOffer, check_origin, check_query, offer_of
from pdgate.gateway.realtime.relay import SessionRelay, SessionSide
from pdgate.gateway.realtime.sessions import Sessions
from pdgate.gateway.realtime.summary import SessionSummary
from pdgate.gateway.security.addresses import without_addresses
from pdgate.gateway.security.authenticator import KeyState
from pdgate.gateway.security.cors import Cors
from pdgate.gateway.security.echoes import without_echo
from pdgate.gateway.service import CLIENT_GONE, Service
from pdgate.gateway.sockets.dial import Dialled, SocketDialer, SocketRequest
from pdgate.gateway.tenants.session_tokens import SessionTokens
from pdgate.protocols.apis import REALTIME, SESSION
from pdgate.protocols.call import Call, Headers
from pdgate.protocols.errors import EngineFailed, EngineRejected, GatewayError
from pdgate.protocols.instance import Instance
from pdgate.scheduling.endpoints import Endpoints

OPEN_SECONDS: Final = 10.0
"""For an engine to accept a session, connection and handshake."""


class RealtimeClient(Protocol):
    """A client that asks for a session, as a front end presents it.

    Attributes:
        headers: Names in lower case.
        query: Behind the question mark.
    """

    headers: Headers
    query: str

    async def refuse(self, error: GatewayError, call_id: str) -> None:
        """The whole response is an error."""

    async def accept(self, subprotocol: str, call_id: str) -> SessionSide:
        """The session is open. Empty: no subprotocol."""

    def weigh(self, more_bytes: int) -> None:
        """Count so much more as held for the session, or less."""

    def watch(self, lost: Callable[[], None], out_of_memory: Callable[[], None]) -> None:
        """What to call if it is gone, and if there is no memory for what is held for it."""


@dataclass(frozen=True, slots=True)
class AskedSession:
    """A session that its key may have; no engine has been asked yet.

    Attributes:
        tokens: Counts what it takes; None where there is no key.
    """

    client: RealtimeClient
    offer: SocketOffer
    record: Record
    key_state: KeyState | None
    tokens: SessionTokens | None


class RealtimeDoor:
    """
    Attributes:
        sessions: Those that are open.
    """

    def __init__(
        self,
        service: Service,
        execution: Execution,
        endpoints: Endpoints,
        dialer: SocketDialer,
        sessions: Sessions,
        stats: CallStats,
    ) -> None:
        self.sessions = sessions
        self._service = service
        self._execution = execution
        self._endpoints = endpoints
        self._dialer = dialer
        self._stats = stats

    async def serve(self, client: RealtimeClient, cors: Cors | None) -> None:
        """Serve a session. What goes wrong with it is not raised; only CancelledError gets out."""
        service = self._service
        refusal: GatewayError | None = None
        call_id = ""
        try:
            offer = offer_of(client.headers)
            call_id = service.intake.call_id(offer.headers)
            check_origin(offer.headers, cors)
            check_query(client.query)
            key_state = service.screen(offer.headers)
            request = PassedRequest(SESSION, "GET", REALTIME, client.query)
            call = passing(
                service.intake, request, offer.headers, b"", call_id, self._endpoints, key_state
            )
            record = Record(call)
            tokens = None
            if key_state is not None:
                record.key = key_state.name
                tokens = await self._entered(client, call, key_state)
        # As in service.py: what trips us must not look different from other bugs.
        except Exception as caught:  # noqa: BLE001
            refusal = errors.known(caught)
        if refusal is not None:
            await self._refuse(client, refusal, call_id)
            return
        asked = AskedSession(client, offer, record, key_state, tokens)
        outcome: SessionOutcome | None = SessionOutcome.CLIENT_GONE
        try:
            self._stats.opened(record, session=True)
            with self.sessions.begun():
                try:
                    ending = await self._hold(asked)
                    outcome = ending.outcome
                    record.end(*ending.as_call)
                except asyncio.CancelledError:
                    record.end("client_gone", CLIENT_GONE)
                    raise
                except Exception as caught:  # noqa: BLE001
                    refusal = errors.known(caught)
                if refusal is not None:
                    outcome = None
                    record.end(*errors.outcome_of(refusal))
                    if isinstance(refusal, EngineRejected):
                        fleet = (found.instance for found in self._endpoints)
                        refusal = await without_addresses(without_echo(refusal), fleet)
                    await self._refuse(client, refusal, call_id)
        finally:
            # What can trip stands last: its record is over all the same, and no place is kept.
            if key_state is not None:
                key_state.leave()
            if outcome is not None:
                self.sessions.ended[outcome.value] += 1
            try:
                if tokens is not None:
                    tokens.over()
                    record.usage = tokens.usage
            except Exception as caught:  # noqa: BLE001
                errors.known(caught)
            finally:
                self._stats.closed(record, session=True)

    async def _entered(
        self, client: RealtimeClient, call: Call, key_state: KeyState
    ) -> SessionTokens | None:
        """It counts as a call of its key, until that `leave`s. Raises GatewayError, and then it does not."""
        key_state.enter(call.model)
        if self._service.tenants is None:
            return None
        tokens = SessionTokens(self._service.tenants, key_state, client.weigh)
        try:
            await tokens.enter()
        except BaseException:
            key_state.leave()
            raise
        return tokens

    async def _refuse(self, client: RealtimeClient, error: GatewayError, call_id: str) -> None:
        self._stats.refused(error)
        await client.refuse(error, call_id)

    async def _hold(self, asked: AskedSession) -> SessionEnding:
        """Raises GatewayError as long as the session is not open."""
        service, record = self._service, asked.record
        call = record.call
        if service.holds is not None:
            # Those that are open already go on with whatever weights there are.
            await service.holds.admitted(call.model)
        place = (
            None if service.gate is None else place_of(call, asked.offer.headers, asked.key_state)
        )
        with (
            NO_TURN
            if place is None or service.gate is None
            else service.gate.turn(call.model, place) as turn
        ):
            if turn is not None:
                if turn.waits:
                    await turn.come()
                    record.made_way = turn.made_way
                    record.call = call.begun(turn.seconds)
                record.queued_seconds = turn.seconds
            leg, reserved, dialled = await self._engine(asked)
            ended_with: BaseException | None = asyncio.CancelledError()
            try:
                ending = await self._relay(asked, dialled, reserved.instance)
                if ending.outcome is SessionOutcome.CLOSED:
                    ended_with = None
                elif isinstance(ending.error, EngineFailed):
                    ended_with = ending.error
                    self._execution.failed(reserved.instance, ending.error)
                return ending
            finally:
                leg.end(ended_with)
                dialled.wire.abort()
                reserved.end()

    async def _engine(self, asked: AskedSession) -> tuple[LegRecord, Reserved, Dialled]:
        """One that has accepted the session; it is reserved. Raises GatewayError."""
        execution, record = self._execution, asked.record
        call = record.call
        state, left = FRESH, execution.router.policy.max_attempts
        while True:
            record.attempts += 1
            try:
                route = execution.router.route(call, state)
            except GatewayError:
                # Why the engines that there are failed says more.
                if state.first_cause is not None:
                    raise state.first_cause from None
                raise
            record.path, record.protocol, record.mode = route.path, route.protocol, route.mode
            reserved = route.answering
            assert reserved is not None
            engine = reserved.instance
            leg = record.leg(engine.role, engine)
            try:
                request = _request(asked, leg)
                dialled = await self._dialer.dial(engine, request, OPEN_SECONDS, asked.client.weigh)
            except BaseException as error:
                reserved.withdraw()
                leg.end(error)
                left -= 1
                if isinstance(error, EngineRejected) or not isinstance(error, GatewayError):
                    raise
                execution.failed(engine, error)
                if left <= 0:
                    raise
                failures = {**state.failures, engine.id: CHANCES}
                state = replace(state, failures=failures, first_cause=state.first_cause or error)
            else:
                reserved.worked()
                leg.first_byte = record.clock()
                return leg, reserved, dialled

    async def _relay(
        self, asked: AskedSession, dialled: Dialled, engine: Instance
    ) -> SessionEnding:
        service, sessions = self._service, self.sessions
        client, record = asked.client, asked.record
        call = record.call
        summary = record.session = SessionSummary(sessions.bytes)
        ending: SessionEnding | None = None
        timer: asyncio.TimerHandle | None = None
        try:
            record.committed = record.clock()
            side = await client.accept(asked.offer.chosen(dialled.subprotocol), call.id)
            names = names_of(asked.key_state, lambda: service.intake.aliases)
            most_bytes = service.intake.max_body_bytes
            relay = SessionRelay(
                side,
                dialled.wire,
                names,
                most_bytes if names is None else min(most_bytes, MOST_BYTES),
                summary.counted,
                client.weigh,
                engine.id,
                asked.tokens,
            )
            client.watch(relay.client_is_lost, lambda: relay.end(OUT_OF_MEMORY))
            limit = None if service.total is None else service.total.seconds_of(call.model)
            if limit is not None:
                timer = asyncio.get_running_loop().call_later(limit, relay.end, TOO_LONG)
            with sessions.running(relay):
                ending = await relay.run()
        finally:
            if timer is not None:
                timer.cancel()
            summary.ended(ending)
        return ending


def _request(asked: AskedSession, leg: LegRecord) -> SocketRequest:
    call, trace = asked.record.call, asked.record.trace
    ours = {b"x-request-id": call.attempt_id.encode()}
    if trace is not None:
        ours |= {name.encode(): said.encode() for name, said in trace.headers(leg).items()}
    headers = [one for one in call.headers if one[0] not in ours]
    return SocketRequest(call.path, [*headers, *ours.items()], asked.offer.subprotocols)


OUT_OF_MEMORY: Final = SessionEnding(
    SessionOutcome.OUT_OF_MEMORY, 1013, "the gateway has no memory for what is not read"
)
TOO_LONG: Final = SessionEnding(
    SessionOutcome.TOO_LONG, 1008, "the session took longer than a call may"
)
