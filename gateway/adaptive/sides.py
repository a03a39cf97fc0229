"""Which side each engine serves here, and how it comes from one to the other.

    side "decode"     new calls of decode; none of prefill
    turning           no new calls; those that run there go on, for PATIENCE_SECONDS at most,
                      before new ones of the other kind come
    side "prefill"    new calls of prefill

Nothing is ever ended for it. If a side has no engine left, those whose role allows it serve it all the
same (scheduling/eligible.py).
"""

from collections.abc import Callable
from typing import Final

from pdgate.protocols.instance import Role
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.policy_context import Targets
from pdgate.scheduling.pressure import NONE, pressure
from pdgate.scheduling.roles import SIDES, Engine

PATIENCE_SECONDS: Final = 30.0

QUEUED: Final = frozenset({"decode-first"})
"""Protocols whose prefill engines help themselves, so that no gateway can say who does what."""


class Sides:
    def __init__(
        self, endpoints: Endpoints, targets: Callable[[], Targets], clock: Callable[[], float]
    ) -> None:
        self._endpoints = endpoints
        self._targets = targets
        self._clock = clock
        self._of: dict[str, Role] = {}
        self._since: dict[str, float] = {}
        self._turning: dict[str, float] = {}

    def put(self, instance_id: str, side: Role) -> None:
        """Put an engine on a side, now or when it has done what it had to do on the other."""
        before = self._of.get(instance_id)
        if before is side or self._endpoints.get(instance_id) is None:
            return
        now = self._clock()
        self._of[instance_id], self._since[instance_id] = side, now
        if before is not None:
            self._turning[instance_id] = now + PATIENCE_SECONDS
        self.settle()

    def settle(self) -> None:
        """Begin the new work of engines that have done their old; those that have come back go on as before."""
        now = self._clock()
        for instance_id, side in list(self._of.items()):
            endpoint = self._endpoints.get(instance_id)
            if endpoint is None or not _moves(endpoint):
                self._forget(instance_id)
                continue
            until = self._turning.get(instance_id)
            if until is not None and (not endpoint.calls or now >= until):
                del self._turning[instance_id]
            serves = frozenset() if instance_id in self._turning else frozenset({side})
            self._endpoints.assign(instance_id, serves)

    def engines(self) -> list[Engine]:
        """Those that calls may go to."""
        targets = self._targets()
        return [
            self._seen(endpoint, targets)
            for endpoint in self._endpoints
            if endpoint.fit and (_moves(endpoint) or endpoint.instance.role in SIDES)
        ]

    def of(self, endpoint: Endpoint) -> str:
        """The side of an engine in a word, for operators."""
        instance = endpoint.instance
        if instance.id in self._turning:
            return "turning"
        return self._of.get(instance.id, instance.role).value

    def decided(self) -> dict[str, Role]:
        """Instance id -> side, of those that may change it."""
        return dict(self._of)

    def _seen(self, endpoint: Endpoint, targets: Targets) -> Engine:
        instance = endpoint.instance
        side: Role | None = instance.role
        moves = _moves(endpoint)
        if moves:
            side = self._of.get(instance.id)
        return Engine(
            instance.id,
            (instance.speaks, endpoint.models),
            side,
            moves,
            self._since.get(instance.id, 0.0),
            instance.id in self._turning,
            endpoint.calls,
            NONE if side is None else pressure(endpoint, side, targets),
        )

    def _forget(self, instance_id: str) -> None:
        del self._of[instance_id], self._since[instance_id]
        self._turning.pop(instance_id, None)
        self._endpoints.assign(instance_id, None)


def _moves(endpoint: Endpoint) -> bool:
    instance = endpoint.instance
    return instance.role is Role.BOTH and instance.protocol not in QUEUED


def group_name(group: object) -> str:
    """Name of a group of engines, for operators: the models that it serves."""
    assert isinstance(group, tuple)
    return ",".join(sorted(group[1]))
