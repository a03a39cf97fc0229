"""Steering: engines that a router before this one has chosen for a call, in headers or as a subset of the fleet.

    x-gateway-destination-endpoint: 10.0.0.3:8000,10.0.0.4:8000    who answers; the next where the first fails
    x-prefiller-host-port: 10.0.0.2:8000                           who reads the prompt; missing: who answers

An endpoint picker chooses so (kubernetes-sigs/gateway-api-inference-extension 84436a9, docs/proposals/004-endpoint-picker-protocol;
llm-d/llm-d-inference-scheduler 520af47, pkg/common/routing/common.go). To the router every other engine has failed for good.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pdgate.forwarders.retry import CHANCES, RetryState
from pdgate.gateway.engine_addresses import EngineAddresses
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.protocols.errors import BadRequest, NoInstance
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.endpoints import RETRY_AFTER_SECONDS, Endpoints

DESTINATION: Final = "x-gateway-destination-endpoint"
PREFILLER: Final = "x-prefiller-host-port"
ENCODERS: Final = "x-encoder-hosts-ports"

LONGEST_LIST: Final = 4096
"""Characters: a hundred addresses."""


def narrowed(
    fleet: Iterable[Endpoint],
    allowed: Collection[str],
    later: Collection[str] = (),
    *,
    without_prefill: bool = False,
) -> RetryState:
    """State in which only `allowed` can be chosen, and of these `later` if no other can."""
    others = {one.instance.id for one in fleet}.difference(allowed)
    failures = {**dict.fromkeys(others, CHANCES), **dict.fromkeys(later, 1)}
    return RetryState(failures, frozenset(others), (), None, without_prefill, False, {})


class Steering:
    """What calls' own headers say, for a gateway that trusts them."""

    def __init__(self, fleet: Endpoints, addresses: EngineAddresses) -> None:
        self._fleet = fleet
        self._addresses = addresses

    async def of(self, headers: RequestHeaders) -> "SteeredCall | None":
        """What they say of a call; None for nothing. Raise BadRequest; NoInstance for engines that are not known here."""
        destinations = _addresses_in(headers, DESTINATION)
        if not destinations:
            return None
        prefillers = _addresses_in(headers, PREFILLER)
        at = await self._addresses.named(self._fleet, {*destinations, *prefillers})
        answering = [at[text] for text in destinations if text in at]
        reading = [one for text in prefillers for one in at.get(text, ())]
        for name, said, known in (
            (DESTINATION, destinations, answering),
            (PREFILLER, prefillers, reading),
        ):
            if said and not known:
                raise NoInstance(
                    f"no engine of this gateway is where {name} says",
                    retry_after_seconds=RETRY_AFTER_SECONDS,
                )
        return SteeredCall(self._fleet, answering, reading)


@dataclass(frozen=True, slots=True)
class SteeredCall:
    """Engines that are allowed for a call, by their ids.

    Attributes:
        answering: By address, the first one first.
        reading: Of prompts; empty for who answers.
    """

    fleet: Endpoints
    answering: Sequence[Sequence[str]]
    reading: Sequence[str]

    def state(self) -> RetryState:
        """Retry state of the first attempt, with the fleet as it is now: a call may have waited since."""
        up, answering, reading = self.fleet.by_id, self.answering, self.reading
        first = next(
            (ids for ids in answering if any(one in up and up[one].may_serve for one in ids)),
            answering[0],
        )
        later = {one for ids in answering for one in ids}.difference(first)
        return narrowed(
            self.fleet,
            {*first, *later, *reading},
            later.difference(reading),
            without_prefill=not reading,
        )


def _addresses_in(headers: RequestHeaders, name: str) -> list[str]:
    """In their order. Raises BadRequest."""
    said = headers.named.get(name.encode(), b"").decode("latin-1")
    if len(said) > LONGEST_LIST:
        raise BadRequest(f"{name} is longer than {LONGEST_LIST} characters", param=name)
    return [part.strip() for part in said.split(",") if part.strip()]
