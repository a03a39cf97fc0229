"""Simulated fleet: the instances, and engines that say how busy they are, die and come back."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from pdgate.lab.simulator.agenda import Agenda
from pdgate.lab.simulator.engine import SimulatedEngine
from pdgate.lab.simulator.hardware import Hardware
from pdgate.lab.simulator.usage import SimulatedUsage
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.account import LEARN_SECONDS, Account, told, unlearnt
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.status import Status

MODEL: Final = "simulated"
PROTOCOL: Final = "vllm-nixl"

STATUS_SECONDS: Final = 5.0
"""How often engines are asked, as a gateway does by default."""

PROBE_SECONDS: Final = 1.0
"""Until a gateway finds that an engine is gone, or back, without a call."""

SLICE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Outage:
    """
    Attributes:
        instance_id: "p0", "d3", "b1".
        begins, ends: Seconds of the simulation; an end of None is never.
    """

    instance_id: str
    begins: float
    ends: float | None = None


def roles_of(prefills: int, decodes: int, both: int, encoders: int = 0) -> dict[str, Role]:
    """Instance id -> role: p0 and so on read, d0 answer, b0 do either, e0 encode."""
    several = (
        ("p", prefills, Role.PREFILL),
        ("d", decodes, Role.DECODE),
        ("b", both, Role.BOTH),
        ("e", encoders, Role.ENCODE),
    )
    return {f"{letter}{n}": role for letter, count, role in several for n in range(count)}


class SimulatedFleet:
    """
    Attributes:
        engines: Instance id -> engine.
    """

    def __init__(
        self,
        roles: Mapping[str, Role],
        hardware: Mapping[str, Hardware],
        agenda: Agenda,
        random: Random,
    ) -> None:
        """`hardware`: of each."""
        self._agenda = agenda
        self.engines = {
            name: SimulatedEngine(name, hardware[name], agenda, SimulatedUsage(SLICE_SECONDS))
            for name in roles
        }
        self.endpoints = Endpoints(
            (_record(name, role) for name, role in roles.items()),
            clock=agenda.clock,
            draw=random.random,
        )
        for name in roles:
            self.endpoints.mark_up(name, (MODEL,))

    def plan(self, outages: Sequence[Outage]) -> None:
        """Raises ValueError for an engine that there is not."""
        for outage in outages:
            engine = self.engines.get(outage.instance_id)
            if engine is None:
                raise ValueError(f"there is no engine {outage.instance_id}")
            self._agenda.at(outage.begins, partial(self._die, engine))
            if outage.ends is not None:
                self._agenda.at(outage.ends, partial(self._rise, engine))

    def say_until(self, over: float) -> None:
        """Engines say how busy they are, every STATUS_SECONDS, and sooner while that is to be learnt."""
        self._agenda.at(self._agenda.now + LEARN_SECONDS, partial(self._teach_until, over))
        self._say_again_until(over)

    def _say_again_until(self, over: float) -> None:
        self._say(self.endpoints)
        if self._agenda.now < over:
            self._agenda.at(self._agenda.now + STATUS_SECONDS, partial(self._say_again_until, over))

    def _teach_until(self, over: float) -> None:
        self._say(unlearnt(self.endpoints))
        if self._agenda.now < over:
            self._agenda.at(self._agenda.now + LEARN_SECONDS, partial(self._teach_until, over))

    def _say(self, endpoints: Iterable[Endpoint]) -> None:
        for endpoint in endpoints:
            engine = self.engines[endpoint.instance.id]
            status = _status(engine) if engine.alive else None
            told(endpoint, status, Account.of(endpoint))

    def _die(self, engine: SimulatedEngine) -> None:
        if engine.alive:
            engine.die()
            self._agenda.at(self._agenda.now + PROBE_SECONDS, partial(self._probe, engine))

    def _rise(self, engine: SimulatedEngine) -> None:
        if not engine.alive:
            engine.rise()
            self._agenda.at(self._agenda.now + PROBE_SECONDS, partial(self._probe, engine))

    def _probe(self, engine: SimulatedEngine) -> None:
        if engine.alive:
            self.endpoints.mark_up(engine.name, (MODEL,))
        else:
            self.endpoints.mark_down(engine.name, "refused")


def _record(name: str, role: Role) -> Instance:
    return Instance(name, f"http://{name}:8000", role, PROTOCOL, model=MODEL)


def _status(engine: SimulatedEngine) -> Status:
    kv = engine.kv
    return Status(
        kv_free=kv.room / kv.capacity_tokens,
        running=engine.running,
        waiting=engine.waiting,
        step_seconds=engine.step_seconds,
        transferring=engine.loading,
        kv_tokens=kv.capacity_tokens,
        queued_tokens=engine.unread_tokens,
    )
