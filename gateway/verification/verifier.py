"""Verifier of engine after engine, as their pages come: one complaint per change.

    page --> window (since the last verdict) --> Verdict --> Tally, complaint, log

An engine that starts anew, or is taken out and put back, begins a new window: nothing of its
former life can be compared.
"""

import logging
from dataclasses import dataclass, field

from pdgate.forwarders import registry
from pdgate.gateway.engine_metrics.counters import EngineCounters
from pdgate.gateway.engine_metrics.page import MetricsPage
from pdgate.gateway.verification.causes import HINTS, Prefills, VerificationCause, why_recomputed
from pdgate.gateway.verification.window import Given, WindowResult, judge
from pdgate.protocols.instance import Role
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.endpoints import Endpoints

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Tally:
    """What has been found of one engine since the gateway knows it.

    Attributes:
        tokens: Result -> prompt tokens.
        last: The result of the last window in which there was something to verify.
        complaint: What is wrong with it now.
        expired, read_late: Of Counters, its own.
    """

    tokens: dict[WindowResult, float] = field(
        default_factory=lambda: dict.fromkeys(WindowResult, 0.0)
    )
    last: WindowResult | None = None
    complaint: VerificationCause | None = None
    expired: float = 0.0
    read_late: float = 0.0


@dataclass(slots=True)
class OpenWindow:
    """
    Attributes:
        url: Where the engine is; at another address it is another one.
        start, given: Both accounts when it was opened.
        latest: The last page.
        doubted: It was looked at once, and left open to be sure.
        expired: New on the last page.
    """

    url: str
    start: EngineCounters
    given: Given
    latest: MetricsPage
    doubted: bool = False
    expired: float = 0.0


class Verifier:
    """
    Attributes:
        tallies: Instance id -> what has been found; none of instances that are gone.
    """

    def __init__(self, endpoints: Endpoints) -> None:
        self.tallies: dict[str, Tally] = {}
        self._endpoints = endpoints
        self._windows: dict[str, OpenWindow] = {}

    def sees(self, endpoint: Endpoint, page: MetricsPage) -> None:
        """A new page of this engine."""
        self._forget_who_is_gone()
        instance_id, url = endpoint.instance.id, endpoint.instance.url
        given, counters = Given.to(endpoint), page.counters
        window = self._windows.get(instance_id)
        if window is not None and (window.url != url or window.given.is_after(given)):
            window = None
        new = None if window is None else counters.since(window.latest.counters)
        if window is None or new is None:
            self._windows[instance_id] = OpenWindow(url, counters, given, page)
            return
        window.latest = page
        tally = self.tallies.setdefault(instance_id, Tally())
        if endpoint.instance.role.serves(Role.PREFILL):
            self._count_leases(endpoint, tally, window, new)
        if endpoint.instance.role.serves(Role.DECODE):
            self._judge(endpoint, tally, window, given)

    def _judge(self, endpoint: Endpoint, tally: Tally, window: OpenWindow, given: Given) -> None:
        # Both grow within one life, and every page of it has been compared with the one before.
        grew = window.latest.counters.since(window.start) or EngineCounters()
        spare = registry.decode_computes(endpoint.instance.protocol) or window.latest.block_tokens
        verdict = judge(grew, window.given, given, doubted=window.doubted, spare=spare or 1)
        if verdict is None:
            window.doubted = given.handed_over > window.given.handed_over
            return
        window.start, window.given, window.doubted = window.latest.counters, given, False
        tally.tokens[WindowResult.VERIFIED] += verdict.verified
        tally.tokens[WindowResult.RECOMPUTED] += verdict.recomputed
        tally.tokens[WindowResult.UNVERIFIABLE] += verdict.unverifiable
        tally.last = verdict.result or tally.last
        instance = endpoint.instance
        if verdict.result is WindowResult.RECOMPUTED:
            prefills = self._prefills(instance.protocol)
            cause = why_recomputed(window.latest, grew, instance.protocol, prefills)
            self._complain(endpoint, tally, cause)
        elif (
            verdict.result is WindowResult.VERIFIED
            and tally.complaint is not VerificationCause.READ_LATE
        ):
            self._complain(endpoint, tally, None)

    def _count_leases(
        self, endpoint: Endpoint, tally: Tally, window: OpenWindow, new: EngineCounters
    ) -> None:
        window.expired = new.expired or 0.0
        tally.expired += window.expired
        if new.read_late:
            tally.read_late += new.read_late
            self._complain(endpoint, tally, VerificationCause.READ_LATE)
        elif tally.complaint is VerificationCause.READ_LATE and new.first_tokens:
            self._complain(endpoint, tally, None)

    def _prefills(self, protocol: str) -> Prefills:
        windows = [
            window
            for instance_id, window in self._windows.items()
            if (endpoint := self._endpoints.get(instance_id)) is not None
            and endpoint.instance.protocol == protocol
            and endpoint.instance.role.serves(Role.PREFILL)
        ]
        sizes = (window.latest.block_tokens for window in windows)
        return Prefills(
            sum(window.expired for window in windows),
            frozenset(size for size in sizes if size is not None),
        )

    def _complain(self, endpoint: Endpoint, tally: Tally, cause: VerificationCause | None) -> None:
        if tally.complaint is cause:
            return
        tally.complaint = cause
        name = endpoint.instance.id
        if cause is None:
            log.info("%s: KV is handed over as it should be", name)
        elif cause is VerificationCause.READ_LATE:
            log.warning("%s: %s", name, HINTS[cause])
        else:
            log.warning("%s computes prompts whose KV it was given: %s", name, HINTS[cause])

    def _forget_who_is_gone(self) -> None:
        for instance_id in [each for each in self._windows if self._endpoints.get(each) is None]:
            del self._windows[instance_id]
            self.tallies.pop(instance_id, None)
