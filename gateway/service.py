"""Service: the life of one call, from its bytes to the end of its answer. Knows no framework.

front end (ASGI, ...)            service
  | path, headers, body ------->   intake: Call, or an error
  |                                execution: legs, failover
  | <------ client.deliver(answer)
  | <------ client.refuse / break_off(error)
"""

import asyncio
from collections.abc import Iterable
from typing import Protocol

from pdgate.forwarders.base import Answer
from pdgate.forwarders.execution import Execution
from pdgate.forwarders.record import Record
from pdgate.forwarders.retry import FRESH
from pdgate.gateway import errors
from pdgate.gateway.admission.gate import NO_TURN, Gate
from pdgate.gateway.admission.place import place_of
from pdgate.gateway.apis.media_names import kept_apart, may_have_parts
from pdgate.gateway.apis.passing import PassedRequest, passing
from pdgate.gateway.apis.restricted import check_fields
from pdgate.gateway.apis.stored import placed
from pdgate.gateway.control.holds import Holds
from pdgate.gateway.intake import READ_AT_ONCE_BYTES, Intake
from pdgate.gateway.lifecycle.drain import Drain
from pdgate.gateway.metrics.call_stats import CallStats
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.gateway.security.addresses import without_addresses
from pdgate.gateway.security.authenticator import Authenticator, KeyState
from pdgate.gateway.security.echoes import without_echo
from pdgate.gateway.steering import Steering
from pdgate.gateway.tenants.meter import metered
from pdgate.gateway.tenants.shares import Shares
from pdgate.gateway.tenants.tenants import Tenants, TokenHold
from pdgate.gateway.total_time import NO_LIMIT, TotalTime
from pdgate.protocols.call import Call
from pdgate.protocols.errors import EngineRejected, GatewayError
from pdgate.scheduling.endpoint import Endpoint

CLIENT_GONE = 499
"""As nginx writes it; only the log gets to see it."""


class Client(Protocol):
    """The side that asked, as a front end presents it."""

    async def deliver(self, answer: Answer, record: Record) -> None:
        """Relays the answer; sets record.committed when its first byte goes out."""

    async def refuse(self, error: GatewayError, call_id: str) -> None:
        """The whole response is an error."""

    async def break_off(self, error: GatewayError) -> None:
        """The answer has begun and cannot go on."""


class Service:
    """
    Attributes:
        steering: Reads from headers which engines a call is for; None where they are not trusted.
        authenticator: Asks for API keys; None lets all clients in.
        drain: Ends this process; no calls are taken from its beginning on.
        gate: Keeps calls waiting while engines have no room; None never does.
        total: How long a call may take in all; None for as long as it likes.
        holds: Keeps calls waiting while operators change their engines; None where they cannot.
        tenants: Holds keys to their limits of tokens; None where no keys are asked for.
        shares: Of models whose calls others serve; None where there are none.
    """

    def __init__(
        self,
        intake: Intake,
        execution: Execution,
        stats: CallStats,
        authenticator: Authenticator | None = None,
        gate: Gate | None = None,
        drain: Drain | None = None,
        fleet: Iterable[Endpoint] = (),
        total: TotalTime | None = None,
    ) -> None:
        self.intake = intake
        self.authenticator = authenticator
        self.gate = gate
        self.total = total
        self.holds: Holds | None = None
        self.tenants: Tenants | None = None
        self.shares: Shares | None = None
        self.steering: Steering | None = None
        self.drain = drain or Drain(lambda: stats.in_flight, grace_seconds=0)
        self._execution = execution
        self._fleet = fleet
        self._stats = stats

    def screen(self, headers: RequestHeaders, body_bytes: int = -1) -> KeyState | None:
        """Whose call it is, before its body is read. `body_bytes`: as its length is said, if it is.

        Raises TooLarge, Draining, Unauthorized, RateLimited, BadRequest.
        """
        if body_bytes > self.intake.max_body_bytes:
            self.intake.check_length(body_bytes)
        if self.drain.began is not None:
            raise self.drain.refusal()
        return None if self.authenticator is None else self.authenticator.screen(headers)

    async def handle(
        self,
        path: str,
        headers: RequestHeaders,
        body: bytes,
        client: Client,
        key_state: KeyState | None = None,
        asked: PassedRequest | None = None,
    ) -> None:
        """`key_state` is what `screen` said; `asked` is what passes to an engine as it came.

        Never raises for what goes wrong with the call; only CancelledError gets out."""
        call_id = self.intake.call_id(headers)
        # Nothing waits within `except` (tools/compiled_awaits.py).
        wrong: GatewayError | None = None
        hold: TokenHold | None = None
        try:
            if len(body) > READ_AT_ONCE_BYTES:
                call = await self._read_aside(path, headers, body, call_id, asked, key_state)
            elif asked is None:
                call = self.intake.call(path, headers, body, call_id)
            else:
                call = passing(self.intake, asked, headers, body, call_id, self._fleet, key_state)
            if call.api is not None:
                call = placed(call, self._fleet, key_state)
            model = call.model
            if self.shares is not None:
                call = self.shares.of(call, "" if key_state is None else key_state.name)
            place = None if self.gate is None else place_of(call, headers, key_state)
            if key_state is not None:
                if call.passed is None:
                    if key_state.key.models:
                        check_fields(call)
                    if may_have_parts(path, body):
                        call = kept_apart(call, key_state.name)
                # Nothing may fail behind it but what leaves again.
                key_state.enter(model)
                if key_state.counts_tokens and self.tenants is not None:
                    hold = await _hold(self.tenants, key_state, call)
                    call = hold.call
        # As below: a body that trips us must not look different from other bugs.
        except Exception as caught:  # noqa: BLE001
            wrong = errors.known(caught)
        if wrong is not None:
            await self._refuse(wrong, call_id, client)
            return
        record = Record(call)
        if key_state is not None:
            record.key = key_state.name
            if key_state.tells_calls:
                record.headers = key_state.calls_headers()
        try:
            try:
                self._stats.opened(record)
                if self.holds is not None:
                    await self.holds.come(record)
                with NO_LIMIT if self.total is None else self.total.limit(call.model):
                    # What has to be waited for, as engines are reserved at once when its turn has come.
                    encoding, steering = self._execution.encoding, self.steering
                    if encoding is not None and encoding.wants(call):
                        if place is not None and self.gate is not None:
                            # Else encode engines would work for calls that are refused then.
                            self.gate.would_begin(call.model, place)
                        record.attempts = 1
                        call = await encoding.encoded(call, record)
                    steered = None if steering is None else await steering.of(headers)
                    with (
                        NO_TURN
                        if place is None or self.gate is None
                        else self.gate.turn(call.model, place)
                    ) as turn:
                        if turn is not None:
                            if turn.waits:
                                await turn.come()
                                record.made_way = turn.made_way
                                call = record.call = call.begun(turn.seconds)
                            record.queued_seconds = turn.seconds
                        deliver = (
                            client.deliver if hold is None else metered(hold.meter, client.deliver)
                        )
                        state = FRESH if steered is None else steered.state()
                        pausing = None if turn is None else turn.pausing
                        await self._execution.serve(call, record, deliver, state, pausing)
                record.end("ok", 200)
            except asyncio.CancelledError:
                if self.holds is not None:
                    wrong = self.holds.ended(record)
                if wrong is None:
                    record.end("client_gone", CLIENT_GONE)
                    raise
            # Whatever it is, the client gets an answer; `known` logs what is a bug of ours.
            except Exception as caught:  # noqa: BLE001
                wrong = errors.known(caught)
            if wrong is not None:
                if self.holds is not None:
                    # Nothing of it runs any more: a call that has its error is not to be ended once more.
                    self.holds.over(record)
                await self._fail(wrong, record, client)
        finally:
            # First, as it cannot fail: a bug in call stats would keep the key's place for ever.
            if key_state is not None:
                key_state.leave()
            if self.holds is not None:
                self.holds.over(record)
            if key_state is not None:
                if hold is None:
                    if record.usage is not None:
                        key_state.note(record.usage)
                elif self.tenants is not None:
                    self.tenants.settle(hold, record)
            self._stats.closed(record)

    async def _read_aside(
        self,
        path: str,
        headers: RequestHeaders,
        body: bytes,
        call_id: str,
        asked: PassedRequest | None,
        key_state: KeyState | None,
    ) -> Call:
        """A large body, in another thread. Raises GatewayError."""
        if asked is None:
            return await asyncio.to_thread(self.intake.call, path, headers, body, call_id)
        fleet = list(self._fleet)
        return await asyncio.to_thread(
            passing, self.intake, asked, headers, body, call_id, fleet, key_state
        )

    async def refuse(self, error: GatewayError, headers: RequestHeaders, client: Client) -> None:
        """What is wrong shows before there is a body to make a call of."""
        await self._refuse(error, self.intake.call_id(headers), client)

    def count_refused(self, error: GatewayError) -> None:
        """For a front end that answers what is not yet a call itself."""
        self._stats.refused(error)

    async def _refuse(self, error: GatewayError, call_id: str, client: Client) -> None:
        self._stats.refused(error)
        await client.refuse(error, call_id)

    async def _fail(self, error: GatewayError, record: Record, client: Client) -> None:
        record.end(*errors.outcome_of(error))
        if isinstance(error, EngineRejected):
            fleet = (found.instance for found in self._fleet)
            error = await without_addresses(without_echo(error), fleet)
        if record.committed is None:
            await client.refuse(error, record.call.id)
        else:
            await client.break_off(error)


async def _hold(tenants: Tenants, key_state: KeyState, call: Call) -> TokenHold:
    """Of a call that has entered, and has not where this raises RateLimited, InsufficientQuota or BadRequest."""
    try:
        return await tenants.enter(key_state, call)
    except BaseException:
        key_state.leave()
        raise
