"""Which side each engine serves here, and how it comes from one to the other.

    side "decode"     new calls of decode; none of prefill
    turning           no new calls; those that run there go on, for PATIENCE_SECONDS at most,
                      before new ones of the other kind come
    side "prefill"    new calls of prefill

Nothing is ever ended for it. If a side has nobody left, whoever's role allows it serves it all the
same (scheduling/lineup.py).
"""

from collections.abc import Callable
from typing import Final

from pdgate.protocols.instance import Role
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.instances import Instances
from pdgate.scheduling.policy_context import Targets
from pdgate.scheduling.pressure import NONE, pressure
from pdgate.scheduling.roles import SIDES, Engine

PATIENCE_SECONDS: Final = 30.0

QUEUED: Final = frozenset({"decode-first"})
"""Protocols whose prefill engines help themselves, so that no gateway can say who does what."""


class Sides:
    def __init__(
        self, instances: Instances, targets: Callable[[], Targets], clock: Callable[[], float]
    ) -> None:
        self._instances = instances
        self._targets = targets
        self._clock = clock
        self._of: dict[str, Role] = {}
        self._since: dict[str, float] = {}
        self._turning: dict[str, float] = {}

    def put(self, instance_id: str, side: Role) -> None:
        """From now on, or from when it has done what it had to do on the other side."""
        before = self._of.get(instance_id)
        if before is side or self._instances.get(instance_id) is None:
            return
        now = self._clock()
        self._of[instance_id], self._since[instance_id] = side, now
        if before is not None:
            self._turning[instance_id] = now + PATIENCE_SECONDS
        self.settle()

    def settle(self) -> None:
        """Who has done its old work begins with the new; who has come back goes on as before."""
        now = self._clock()
        for instance_id, side in list(self._of.items()):
            candidate = self._instances.get(instance_id)
            if candidate is None or not _moves(candidate):
                self._forget(instance_id)
                continue
            until = self._turning.get(instance_id)
            if until is not None and (not candidate.calls or now >= until):
                del self._turning[instance_id]
            serves = frozenset() if instance_id in self._turning else frozenset({side})
            self._instances.assign(instance_id, serves)

    def engines(self) -> list[Engine]:
        """Those that calls may go to."""
        targets = self._targets()
        return [
            self._seen(candidate, targets)
            for candidate in self._instances
            if candidate.fit and (_moves(candidate) or candidate.instance.role in SIDES)
        ]

    def of(self, candidate: Candidate) -> str:
        """In a word, for operators."""
        instance = candidate.instance
        if instance.id in self._turning:
            return "turning"
        return self._of.get(instance.id, instance.role).value

    def decided(self) -> dict[str, Role]:
        """Instance id -> side, of those that may change it."""
        return dict(self._of)

    def _seen(self, candidate: Candidate, targets: Targets) -> Engine:
        instance = candidate.instance
        side: Role | None = instance.role
        moves = _moves(candidate)
        if moves:
            side = self._of.get(instance.id)
        return Engine(
            instance.id,
            (instance.speaks, candidate.models),
            side,
            moves,
            self._since.get(instance.id, 0.0),
            instance.id in self._turning,
            candidate.calls,
            NONE if side is None else pressure(candidate, side, targets),
        )

    def _forget(self, instance_id: str) -> None:
        del self._of[instance_id], self._since[instance_id]
        self._turning.pop(instance_id, None)
        self._instances.assign(instance_id, None)


def _moves(candidate: Candidate) -> bool:
    instance = candidate.instance
    return instance.role is Role.BOTH and instance.protocol not in QUEUED


def group_name(group: object) -> str:
    """Of a group of engines, for operators: the models that it serves."""
    assert isinstance(group, tuple)
    return ",".join(sorted(group[1]))
