"""Journey of one call, as forwarders/execution.py has it for a hand-off.

    media encoded, if there are engines for that, and then, when its turn has come,
    prefill reserved -> split? -> (decode reserved) -> prefill reads -> KV moves -> decode answers
                           `-> decode reserved, which reads and answers

With `staged`, decode is chosen when prefill has answered. What breaks before the first token is
tried again elsewhere, MOST_ATTEMPTS times in all; afterwards the answer is lost. So is what prefill
had to keep for too long, as decode had no room for it: else engines that do either could wait for
each other's memory for ever.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from pdgate.lab.simulator.agenda import Agenda
from pdgate.lab.simulator.encoders import SimulatedEncoders
from pdgate.lab.simulator.engine import SimulatedEngine
from pdgate.lab.simulator.job import SimulatedJob, SimulatedState
from pdgate.lab.simulator.links import SimulatedLinks
from pdgate.lab.simulator.outcome import SimulatedOutcome
from pdgate.lab.simulator.trace import TraceCall
from pdgate.protocols.call import CHAT, Call
from pdgate.protocols.errors import EngineFailed, EngineRefused, NoInstance
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.admission.giving_way import RunningCall
from pdgate.scheduling.disaggregation import Taken
from pdgate.scheduling.reservation import Reservation
from pdgate.scheduling.scheduler import Scheduler
from pdgate.scheduling.watch import StreamWatch

MOST_ATTEMPTS: Final = 3

LEASE_SECONDS: Final = 480.0
"""For which prefill keeps KV, as vLLM does by default."""


@dataclass(frozen=True, slots=True)
class Roads:
    """What all journeys have in common.

    Attributes:
        engines: Instance id -> what is there.
        staged: Whether decode is chosen after prefill.
    """

    agenda: Agenda
    scheduler: Scheduler
    engines: Mapping[str, SimulatedEngine]
    links: SimulatedLinks
    encoders: SimulatedEncoders
    staged: bool = False


class Journey:
    """`Heard` by both of its jobs."""

    def __init__(self, number: int, ask: TraceCall, roads: Roads, over: Callable[[], None]) -> None:
        """`over`: called when nothing more will happen."""
        name = str(number)
        self.outcome = SimulatedOutcome(ask)
        self.call = Call(
            id=name,
            attempt_id=name,
            path=CHAT,
            body={},
            streams=True,
            prompt_tokens=ask.prompt_tokens,
            blocks=ask.blocks,
        )
        self._ask = ask
        self._roads = roads
        self._over = over
        self._ready: Callable[[], None] = self._choose
        self._avoid: set[str] = set()
        self._asked_at = 0.0
        self._encoding: list[Reservation] = []
        self._prefill: Reservation | None = None
        self._decode: Reservation | None = None
        self._reader: SimulatedJob | None = None
        self._answerer: SimulatedJob | None = None
        self._watch: StreamWatch | None = None
        self._pieces = 0
        self._said = 0

    def come(self, ready: Callable[[], None]) -> None:
        """Come; `ready`: to wait for its turn, when its media are encoded."""
        self._ready = ready
        if self._ask.media and self._roads.encoders.apart:
            self._attempt()
        else:
            ready()

    def begin(self) -> None:
        """Begin, as the call is let in."""
        self.outcome.began = now = self._roads.agenda.now
        encoded = self.outcome.encoded
        since = self._ask.at if encoded is None else encoded
        if now > since:
            self.call = self.call.begun(now - since)
        if encoded is None:
            self._attempt()
        else:
            self._choose()

    # Of one that gives way (giving_way.py). If an engine breaks it later, it says again what it has said since.

    @property
    def urgency(self) -> int:
        return self._ask.urgency

    def running(self, urgency: int) -> RunningCall | None:
        reader, answerer = self._prefill, self._decode
        if self._ask.media or (reader is None and answerer is None):
            return None
        said = self._said + self._made()
        if said >= self._ask.answer_tokens:
            return None
        reading = reader if reader is not None and reader.unread_tokens else None
        if self.outcome.local and answerer is not None and answerer.unread_tokens:
            reading = answerer
        return RunningCall(
            urgency,
            self.outcome.gave_way,
            "" if reading is None else reading.instance.id,
            0 if reading is None else reading.unread_tokens,
            self._roads.agenda.now - self._asked_at,
            "" if answerer is None else answerer.instance.id,
            self._ask.prompt_tokens + said,
        )

    def pause(self) -> None:
        self.outcome.gave_way += 1
        reader, answerer, engines = self._reader, self._answerer, self._roads.engines
        if answerer is not None and self._decode is not None:
            self._said += engines[self._decode.instance.id].abort(answerer)
        if reader is not None and self._prefill is not None:
            engines[self._prefill.instance.id].abort(reader)
        for reserved in (self._prefill, self._decode):
            if reserved is not None:
                reserved.drop_unread()
        self._forget(Reservation.withdraw)

    def go_on(self) -> None:
        tokens = self._ask.prompt_tokens + self._said
        self.call = msgspec.structs.replace(self.call, prompt_tokens=tokens)
        self._attempt()

    def _made(self) -> int:
        """Tokens that the job that runs has made."""
        job, decode = self._answerer, self._decode
        if job is None or decode is None:
            return 0
        return self._roads.engines[decode.instance.id].made(job)

    # An attempt.

    def _attempt(self) -> None:
        self.outcome.attempts += 1
        self.outcome.local = False
        if self._ask.media and self._roads.encoders.apart:
            self._encode()
        else:
            self._choose()

    def _encode(self) -> None:
        """Each item at an engine for that, all at a time."""
        reserve = self._roads.scheduler.reserve
        item = msgspec.structs.replace(self.call, blocks=(), prompt_tokens=0)
        try:
            for _ in range(self._ask.media):
                self._encoding.append(
                    reserve(Role.ENCODE, item, avoid=self._avoid, alone=True, reads=False)
                )
        except NoInstance:
            self._fail("no engine")
            return
        for reserved in self._encoding:
            done = partial(self._encoded, reserved)
            self._roads.encoders.encode(reserved.instance.id, 1, done)

    def _encoded(self, reserved: Reservation) -> None:
        if reserved not in self._encoding:
            # Of an attempt that is over.
            return
        if not self._roads.engines[reserved.instance.id].alive:
            error = EngineFailed("the connection broke", at=reserved.instance.id)
            self._broken(error, reserved.instance)
            return
        reserved.end()
        self._encoding.remove(reserved)
        if not self._encoding:
            self.outcome.encoded = self._roads.agenda.now
            if self.outcome.began is None:
                self._ready()
            else:
                self._choose()

    def _choose(self) -> None:
        scheduler = self._roads.scheduler
        try:
            prefill = self._prefill = self._reserve(Role.PREFILL)
            decision = scheduler.decide(self.call, prefill)
            if decision.taken is Taken.LOCAL:
                prefill.withdraw()
                self._prefill, self.outcome.prefill = None, ""
                at = prefill.instance
                if at.role is Role.BOTH and decision.may_stay_at(at.id):
                    self._decode = self._reserve(Role.DECODE, reads=True, among=(at.id,))
                else:
                    self._decode = self._reserve(Role.DECODE, at, reads=True, among=decision.among)
                self._answer_alone(self._decode)
                return
            if not self._roads.staged:
                self._decode = self._reserve(Role.DECODE, prefill.instance)
        except NoInstance:
            self._fail("no engine")
            return
        self._reader = SimulatedJob(self, self.call.prompt_tokens, 1, self._ask.blocks, keeps=True)
        self._read(prefill.instance, self._reader)

    def _answer_alone(self, decode: Reservation) -> None:
        self.outcome.local = True
        self._answerer = SimulatedJob(self, self.call.prompt_tokens, self._left, self._ask.blocks)
        self._read(decode.instance, self._answerer)

    def _read(self, at: Instance, job: SimulatedJob) -> None:
        """With its media, if no engine has encoded those."""
        send = partial(self._send, at, job, SimulatedEngine.read)
        if self._ask.media and not self._roads.encoders.apart:
            self._roads.encoders.encode(at.id, self._ask.media, send)
        else:
            send()

    def _reserve(
        self,
        role: Role,
        peer: Instance | None = None,
        reads: bool | None = None,
        among: Collection[str] = (),
    ) -> Reservation:
        reserve = self._roads.scheduler.reserve
        reserved = reserve(role, self.call, avoid=self._avoid, peer=peer, reads=reads, among=among)
        if role is Role.PREFILL:
            self.outcome.prefill = reserved.instance.id
        else:
            self.outcome.decode = reserved.instance.id
        return reserved

    def _send(
        self, to: Instance, job: SimulatedJob, how: Callable[[SimulatedEngine, SimulatedJob], None]
    ) -> None:
        engine = self._roads.engines[to.id]
        self._asked_at = self._roads.agenda.now
        if not engine.alive:
            self._broken(EngineRefused("nothing listens there", at=to.id), to)
        elif not engine.fits(job.prompt_tokens + job.answer_tokens):
            self._fail("longer than an engine's memory")
        else:
            how(engine, job)

    # What engines tell.

    def load(self, job: SimulatedJob, missing_tokens: int) -> None:
        prefill, decode = self._both()
        self._roads.links.move(prefill.id, decode.id, missing_tokens, partial(self._moved, job))

    def first_token(self, job: SimulatedJob) -> None:
        now = self._roads.agenda.now
        if job is self._reader:
            self._has_read(job, now)
            return
        if self._decode is None:
            raise RuntimeError("a call without a decode engine has a first token of one")
        if self.outcome.first is None:
            self.outcome.first = now
        if self.outcome.local:
            self._found(job)
            watch = self._decode.has_read(now - self._asked_at)
        else:
            watch = self._decode.has_loaded(now - self._asked_at)
        self._watch = watch
        if watch is not None:
            watch.pieces(1, now)
            self._pieces = 1
            self._roads.engines[self._decode.instance.id].watch(job)

    def stepped(self, job: SimulatedJob, steps: int) -> None:
        if self._watch is not None and job is self._answerer:
            self._watch.pieces(steps, self._roads.agenda.now)
            self._pieces += steps

    def ended(self, job: SimulatedJob) -> None:
        if job is self._reader:
            self._hand_over()
            return
        roads = self._roads
        self.outcome.ended, self.outcome.why = roads.agenda.now, ""
        if self._watch is not None and self._pieces < job.answer_tokens:
            self._watch.pieces(job.answer_tokens - self._pieces, roads.agenda.now)
        if self._decode is not None:
            roads.scheduler.report(self._decode.instance, None)
        self._forget(Reservation.end)
        self._over()

    def broke(self, job: SimulatedJob) -> None:
        reserved = self._prefill if job is self._reader else self._decode
        if job is self._reader and self._decode is not None and self._answerer is not None:
            # What decode was to fetch is gone.
            self._roads.engines[self._decode.instance.id].withdraw(self._answerer)
        if reserved is not None:
            to = reserved.instance
            self._broken(EngineFailed("the connection broke", at=to.id), to)

    # How it goes on.

    def _has_read(self, job: SimulatedJob, now: float) -> None:
        if self.outcome.prefilled is None:
            self.outcome.prefilled = now
        self._found(job)
        if self._prefill is not None:
            self._prefill.has_read(now - self._asked_at)
            self._roads.scheduler.report(self._prefill.instance, None)

    def _found(self, job: SimulatedJob) -> None:
        # Of the prompt alone, not of what a call that gave way has said.
        if not self.outcome.gave_way:
            self.outcome.found_tokens = job.found or 0

    @property
    def _left(self) -> int:
        """Tokens of the answer that are still to be made."""
        return self._ask.answer_tokens - self._said

    def _hand_over(self) -> None:
        if self._prefill is None:
            return
        self._prefill.end()
        if self._decode is None:
            try:
                self._decode = self._reserve(Role.DECODE, self._prefill.instance)
            except NoInstance:
                self._let_go()
                self._fail("no engine")
                return
        job = self._answerer = SimulatedJob(
            self, self.call.prompt_tokens, self._left, self._ask.blocks
        )
        self._send(self._decode.instance, job, SimulatedEngine.take_over)
        if job.state is SimulatedState.ARRIVING:
            agenda = self._roads.agenda
            agenda.at(agenda.now + LEASE_SECONDS, partial(self._expire, job))

    def _expire(self, job: SimulatedJob) -> None:
        if (
            job is self._answerer
            and job.state is SimulatedState.ARRIVING
            and self._decode is not None
        ):
            self._roads.engines[self._decode.instance.id].withdraw(job)
            self._let_go()
            self._again("expired")

    def _moved(self, job: SimulatedJob) -> None:
        # If an engine has died meanwhile, this is an attempt that is over already.
        if job is self._answerer and self._decode is not None:
            self._let_go()
            self._roads.engines[self._decode.instance.id].loaded(job)

    def _let_go(self) -> None:
        if self._reader is not None and self._prefill is not None:
            self._roads.engines[self._prefill.instance.id].let_go(self._reader)
            self._reader = None

    def _both(self) -> tuple[Instance, Instance]:
        if self._prefill is None or self._decode is None:
            raise RuntimeError("KV moves between two engines")
        return self._prefill.instance, self._decode.instance

    def _broken(self, error: EngineRefused | EngineFailed, at: Instance) -> None:
        self._let_go()
        self._roads.scheduler.report(at, error)
        if self.outcome.first is not None and not self.outcome.gave_way:
            self._fail("broke off")
        else:
            self._avoid.add(at.id)
            self._again("failed")

    def _again(self, why: str) -> None:
        """`why`: it is lost if it has been tried often enough."""
        if self.outcome.attempts - self.outcome.gave_way >= MOST_ATTEMPTS:
            self._fail(why)
        else:
            self._forget(Reservation.withdraw)
            self._attempt()

    def _fail(self, why: str) -> None:
        self.outcome.why = why
        self._forget(Reservation.withdraw)
        self._over()

    def _forget(self, end: Callable[[Reservation], None]) -> None:
        """The attempt is over."""
        for reserved in (*self._encoding, self._prefill, self._decode):
            if reserved is not None:
                end(reserved)
        self._encoding = []
        self._prefill = self._decode = self._watch = None
        self._reader = self._answerer = None
