"""Parts that leave out what makes calls safe, for the price of it to be seen."""

from collections.abc import Callable
from typing import ClassVar

from pdgate.forwarders.base import Answer, Leg
from pdgate.forwarders.execution import Attempt, Execution
from pdgate.forwarders.kv_lease import NOTHING_KEPT, KvRules
from pdgate.forwarders.pausing import Pausing
from pdgate.forwarders.record import Deliver, Record
from pdgate.forwarders.retry import FRESH, RetryState
from pdgate.forwarders.route import Way
from pdgate.forwarders.vllm_nixl import VllmNixl
from pdgate.gateway.config import Settings
from pdgate.gateway.config.checks import mode_for
from pdgate.gateway.config.sections import TimeoutsSection
from pdgate.gateway.deadlines import Timeouts
from pdgate.gateway.front.hot_protocol import HotProtocol
from pdgate.gateway.intake import Intake
from pdgate.gateway.metrics.call_stats import CallStats
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.protocols.call import Call, Headers
from pdgate.protocols.errors import GatewayError
from pdgate.protocols.instance import Instance
from pdgate.scheduling.endpoints import Endpoints


class Unowned(VllmNixl):
    """Nobody follows who holds the KV of a call."""

    kv: ClassVar[KvRules] = NOTHING_KEPT


def unowned(settings: Settings, heard: frozenset[str]) -> Callable[[Instance], Way]:
    """In place of `ways`."""
    way = Way(Unowned(), mode_for(settings, Unowned.name))
    return lambda instance: way


class NoCallStats(CallStats):
    """Nothing is counted."""

    def opened(self, record: Record, *, session: bool = False) -> None:
        """Not even that it is there."""

    def closed(self, record: Record, *, session: bool = False) -> None:
        """Nor how it ended."""


def no_limits(section: TimeoutsSection) -> Timeouts:
    """In place of `timeouts_of`."""
    return Timeouts()


class OneAttempt(Execution):
    """The first engines are the only ones, and no account is kept of whose fault a failure was."""

    async def serve(
        self,
        call: Call,
        record: Record,
        deliver: Deliver,
        state: RetryState = FRESH,
        pausing: Pausing | None = None,
    ) -> None:
        record.attempts = 1
        route = self.router.route(call, state)
        record.path, record.protocol, record.mode = route.path, route.protocol, route.mode
        attempt = Attempt(self, route, state, call, record, deliver)
        try:
            await attempt.send()
        except BaseException as error:
            attempt.end(error)
            raise
        attempt.end(None)

    def failed(self, instance: Instance, error: GatewayError) -> None:
        self.engines.report(instance, error)


async def any_start(answer: Answer, leg: Leg, call: Call) -> None:
    """In place of `good_start`: what an engine says first goes out, whatever it is."""


def any_events(first: bytes) -> bool:
    """The same of one whose beginning is here."""
    return True


def any_whole(first: bytes, leg: Leg, call: Call) -> None:
    """The same of an answer that is no stream, which is waited for still."""


class NeverDoubted(Endpoints):
    """How legs end says nothing of their engines."""

    def worked(self, instance_id: str) -> None:
        """As ever."""


class Unread(Intake):
    """What a client's headers say is neither checked nor passed on."""

    def _passed(self, request_headers: RequestHeaders) -> Headers:
        return ()


class Unbounded(HotProtocol):
    """A head may have as many headers, and be as large, as its client likes."""

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def _weigh(self) -> None:
        """Nothing is counted."""
