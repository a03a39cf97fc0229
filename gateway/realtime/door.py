"""Door of the realtime sessions: the life of one, from its request to its end. Knows no framework.

    front end                    door
      | headers, query ------->    offer, origin, key (screen), model, the key's limits, holds, admission, the key's tokens
      |                            a plain engine of the model, and another one if that cannot be reached
      | <----- refuse(error)       so far all that goes wrong is an HTTP response
      | <----- accept()            the engine has accepted
      | <----- frames ----->       relay, until one of its endings

The key's place (max_calls), the place at the engine and the one in the gate are held as long as the session lasts.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from pdgate.forwarders.execution import Execution
from pdgate.forwarders.retry import CHANCES, FRESH
from pdgate.forwarders.route import Route
from pdgate.gateway import errors
from pdgate.gateway.admission.gate import NO_TURN
from pdgate.gateway.admission.place import place_of
from pdgate.gateway.apis.passing import PassedRequest, passing
from pdgate.gateway.realtime.endings import SessionEnding, SessionOutcome
from pdgate.gateway.realtime.naming import MOST_BYTES, names_of
from pdgate.gateway.realtime.offer import SocketOffer, check_origin, check_query, offer_of
from pdgate.gateway.realtime.relay import SessionRelay, SessionSide
from pdgate.gateway.realtime.sessions import Sessions
from pdgate.gateway.security.authenticator import KeyState
from pdgate.gateway.security.cors import Cors
from pdgate.gateway.service import Service
from pdgate.gateway.sockets.dial import Dialled, SocketDialer, SocketRequest
from pdgate.gateway.tenants.session_tokens import SessionTokens
from pdgate.protocols.apis import REALTIME, SESSION
from pdgate.protocols.call import Call, Headers
from pdgate.protocols.errors import EngineFailed, EngineRejected, GatewayError
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
        """So much more is held for it, or less."""

    def watch(self, lost: Callable[[], None], out_of_memory: Callable[[], None]) -> None:
        """What to call if it is gone, and if there is no memory for what is held for it."""


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
    ) -> None:
        self.sessions = sessions
        self._service = service
        self._execution = execution
        self._endpoints = endpoints
        self._dialer = dialer

    async def serve(self, client: RealtimeClient, cors: Cors | None) -> None:
        """Never raises for what goes wrong with the session; only CancelledError gets out."""
        service = self._service
        refusal: GatewayError | None = None
        call_id = ""
        try:
            offer = offer_of(client.headers)
            call_id = service.intake.call_id(offer.headers)
            check_origin(offer.headers, cors)
            check_query(client.query)
            key_state = service.screen(offer.headers)
            asked = PassedRequest(SESSION, "GET", REALTIME, client.query)
            call = passing(
                service.intake, asked, offer.headers, b"", call_id, self._endpoints, key_state
            )
            if key_state is not None:
                key_state.enter(call.model)
        # As in service.py: what trips us must not look different from other bugs.
        except Exception as caught:  # noqa: BLE001
            refusal = errors.known(caught)
        if refusal is not None:
            await self._refuse(client, refusal, call_id)
            return
        outcome = SessionOutcome.CLIENT_GONE
        try:
            with self.sessions.begun():
                try:
                    outcome = await self._hold(client, offer, call, key_state)
                except Exception as caught:  # noqa: BLE001
                    refusal = errors.known(caught)
                if refusal is not None:
                    await self._refuse(client, refusal, call_id)
        finally:
            if key_state is not None:
                key_state.leave()
            if refusal is None:
                self.sessions.ended[outcome.value] += 1

    async def _refuse(self, client: RealtimeClient, error: GatewayError, call_id: str) -> None:
        self._service.count_refused(error)
        await client.refuse(error, call_id)

    async def _hold(
        self,
        client: RealtimeClient,
        offer: SocketOffer,
        call: Call,
        key_state: KeyState | None,
    ) -> SessionOutcome:
        """Raises GatewayError as long as the session is not open."""
        service = self._service
        if service.holds is not None:
            # Those that are open already go on with whatever weights there are.
            await service.holds.admitted(call.model)
        place = None if service.gate is None else place_of(call, offer.headers, key_state)
        with (
            NO_TURN
            if place is None or service.gate is None
            else service.gate.turn(call.model, place) as turn
        ):
            if turn is not None and turn.waits:
                await turn.come()
            tokens = None
            if key_state is not None and service.tenants is not None:
                tokens = SessionTokens(service.tenants, key_state, client.weigh)
                await tokens.enter()
            try:
                route, dialled = await self._engine(client, offer, call)
                reserved = route.answering
                assert reserved is not None
                try:
                    return await self._relay(client, offer, call, key_state, dialled, route, tokens)
                finally:
                    dialled.wire.abort()
                    reserved.end()
            finally:
                if tokens is not None:
                    tokens.over()

    async def _engine(
        self, client: RealtimeClient, offer: SocketOffer, call: Call
    ) -> tuple[Route, Dialled]:
        """One that has accepted the session; it is reserved. Raises GatewayError."""
        execution = self._execution
        request = SocketRequest(
            call.path,
            [*call.headers, (b"x-request-id", call.attempt_id.encode())],
            offer.subprotocols,
        )
        state, left = FRESH, execution.router.policy.max_attempts
        while True:
            try:
                route = execution.router.route(call, state)
            except GatewayError:
                # Why the engines that there are failed says more.
                if state.first_cause is not None:
                    raise state.first_cause from None
                raise
            reserved = route.answering
            assert reserved is not None
            engine = reserved.instance
            try:
                dialled = await self._dialer.dial(engine, request, OPEN_SECONDS, client.weigh)
            except BaseException as error:
                reserved.withdraw()
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
                return route, dialled

    async def _relay(
        self,
        client: RealtimeClient,
        offer: SocketOffer,
        call: Call,
        key_state: KeyState | None,
        dialled: Dialled,
        route: Route,
        tokens: SessionTokens | None,
    ) -> SessionOutcome:
        service, sessions = self._service, self.sessions
        assert route.answering is not None
        engine = route.answering.instance
        side = await client.accept(offer.chosen(dialled.subprotocol), call.id)
        names = names_of(key_state, lambda: service.intake.aliases)
        most_bytes = service.intake.max_body_bytes
        relay = SessionRelay(
            side,
            dialled.wire,
            names,
            most_bytes if names is None else min(most_bytes, MOST_BYTES),
            sessions.counted,
            client.weigh,
            engine.id,
            tokens,
        )
        client.watch(relay.client_is_lost, lambda: relay.end(OUT_OF_MEMORY))
        limit = None if service.total is None else service.total.seconds_of(call.model)
        timer: asyncio.TimerHandle | None = None
        if limit is not None:
            timer = asyncio.get_running_loop().call_later(limit, relay.end, TOO_LONG)
        try:
            with sessions.running(relay):
                ending = await relay.run()
        finally:
            if timer is not None:
                timer.cancel()
        if isinstance(ending.error, EngineFailed):
            self._execution.failed(engine, ending.error)
        return ending.outcome


OUT_OF_MEMORY: Final = SessionEnding(
    SessionOutcome.OUT_OF_MEMORY, 1013, "the gateway has no memory for what is not read"
)
TOO_LONG: Final = SessionEnding(
    SessionOutcome.TOO_LONG, 1008, "the session took longer than a call may"
)
