"""Detector of silent engines: twice a second it looks at all legs, and ends those that wait in vain.

    every half second: which engines have given no leg a byte for ASK_AFTER_SECONDS?
        ask each of them, one question at a time      question.py
        judge what is known                           scheduling/health/liveness.py
        condemned: no more calls, and its legs end as those of an engine that is too slow do, so that
        others are asked before the first byte, and after it the stream goes on elsewhere or ends

An engine whose core does nothing, and that is well by its own word, comes back when something moves
there, or on trial after STUCK_SECONDS: a core without calls has nothing to show.

While this process itself does not run, it hears nothing of engines: such time is no silence. Nor is the time in which
an engine was told to stand still with the calls that it has.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from pdgate.gateway.liveness.question import question, reads_a_token
from pdgate.gateway.liveness.silence import RunningLeg, Silence
from pdgate.gateway.security.engine_access import OPEN, EngineAccess
from pdgate.protocols.instance import Instance
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.health.liveness import Evidence, LivenessVerdict, bound_seconds, verdict

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 0.5
ASK_AFTER_SECONDS: Final = 1.0
ASK_EVERY_SECONDS: Final = 1.0
STUCK_SECONDS: Final = 30.0

LATE_SECONDS: Final = 0.1
"""A sweep that comes so late says that this process did not run, or had no core to run on."""

WHY: Final = {
    LivenessVerdict.GONE: "the engine has ended",
    LivenessVerdict.FROZEN: "the engine does not answer any more",
    LivenessVerdict.STUCK: "the engine has stopped working",
}


class Detector:
    """Detector of dead connections to all engines of a process, inside its `run`.

    Attributes:
        seconds: Of silence, after which an engine that does nothing else either is given up; 0 for
            never. Counts from the next sweep on.
        on_gone: Called with the id of an engine whose process has ended.
    """

    def __init__(
        self,
        legs: Callable[[], Iterable[RunningLeg]],
        endpoints: Endpoints,
        seconds: float,
        on_gone: Callable[[str], None],
        access: EngineAccess = OPEN,
        stopped: Callable[[Endpoint], bool] = lambda _: False,
    ) -> None:
        """`stopped`: whether an engine was told to stand still."""
        self.seconds = seconds
        self._stopped = stopped
        self.on_gone = on_gone
        self._legs = legs
        self._endpoints = endpoints
        self._access = access
        self._silences: dict[str, Silence] = {}
        self._stuck: dict[str, float] = {}
        self._worked: dict[str, tuple[int, float]] = {}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        # What was asked in an earlier run is not answered any more.
        self._silences.clear()
        async with asyncio.TaskGroup() as asking:
            while True:
                due = loop.time() + SWEEP_SECONDS
                await asyncio.sleep(SWEEP_SECONDS)
                now = loop.time()
                for silence in self.sweep(now, max(0.0, now - due - LATE_SECONDS)):
                    asking.create_task(self._ask(silence, loop))

    def sweep(self, now: float, unheard: float = 0.0) -> list[Silence]:
        """Judges each engine that is silent, and returns those that are to be asked.

        `unheard`: seconds since the last one in which this process did not run.
        """
        self._free_stuck(now)
        self._note_work(now)
        at: defaultdict[str, list[RunningLeg]] = defaultdict(list)
        behind: defaultdict[str, list[RunningLeg]] = defaultdict(list)
        engines: dict[str, Instance] = {}
        for leg in self._legs() if self.seconds else ():
            engine, reader = leg.at, leg.behind
            engines[engine.id] = engine
            at[engine.id].append(leg)
            if reader and reader != engine.id and not leg.has_begun:
                behind[reader].append(leg)
        for other in (behind.keys() | self._stuck.keys()) - engines.keys():
            endpoint = self._endpoints.get(other)
            if endpoint is not None:
                engines[other] = endpoint.instance
        for ended in self._silences.keys() - engines.keys():
            del self._silences[ended]
        return [
            silence
            for engine in engines.values()
            if (silence := self._look(engine, at[engine.id], behind[engine.id], now, unheard))
        ]

    def _note_work(self, now: float) -> None:
        """Whether legs ended well lately: a call that has waited in vain goes nowhere else by choice."""
        before, self._worked = self._worked, {}
        for endpoint in self._endpoints:
            # A prefill engine that only decode engines ask has no legs of ours, but has read prompts. What is only
            # presumed to be read, or is taken back, leaves its account, too, and is no sign of work.
            done = endpoint.ended_well + endpoint.shown_reads
            seen, at = before.get(endpoint.instance.id, (0, float("-inf")))
            if done != seen:
                at = now
            self._worked[endpoint.instance.id] = done, at
            endpoint.worked_lately = now - at <= self.seconds

    def _look(
        self,
        engine: Instance,
        legs: Sequence[RunningLeg],
        behind: Sequence[RunningLeg],
        now: float,
        unheard: float,
    ) -> Silence | None:
        """The engine's silence, if the engine is to be asked."""
        silence = self._silences.get(engine.id)
        if silence is None or silence.engine.url != engine.url:
            silence = self._silences[engine.id] = Silence(engine)
        endpoint = self._endpoints.get(engine.id)
        silence.look(legs, behind, endpoint, now, unheard)
        if endpoint is not None and self._stopped(endpoint):
            silence.lives(now)
            return None
        if now - silence.since >= ASK_AFTER_SECONDS:
            evidence = silence.evidence(endpoint, self._endpoints, now)
            found = verdict(evidence, self.seconds)
            if found is not LivenessVerdict.ALIVE:
                self._condemn(silence, found, evidence, now)
        elif engine.id not in self._stuck:
            return None
        if silence.asking or now - silence.asked < ASK_EVERY_SECONDS:
            return None
        silence.asking, silence.asked = True, now
        return silence

    async def _ask(self, silence: Silence, loop: asyncio.AbstractEventLoop) -> None:
        engine = silence.engine
        word = await question(self._access, engine)
        silence.heard(word, loop.time())
        endpoint = self._endpoints.get(engine.id)
        if endpoint is None or not endpoint.models or not silence.says_it_is_idle:
            return
        silence.reading = loop.time()
        read = await reads_a_token(self._access, engine, min(endpoint.models))
        silence.has_read(read, loop.time())

    def _condemn(
        self, silence: Silence, found: LivenessVerdict, seen: Evidence, now: float
    ) -> None:
        engine = silence.engine
        # Those that came just now are judged at the next sweep, if they are as silent then.
        waiting = [leg for leg in silence.legs if now - leg.silent_since(now) >= ASK_AFTER_SECONDS]
        # One that was sent long before may have its prompt's KV, and say nothing as it is not streamed.
        earliest = silence.since - bound_seconds(self.seconds, seen.expected)
        waiting += [
            leg for leg in silence.behind if leg.streams or leg.silent_since(now) >= earliest
        ]
        if not waiting:
            return
        log.warning(
            "%s is given up (%s): silent for %.1f s, port refused for %.1f s, /health unanswered for "
            "%.1f s, counters unmoved for %.1f s; expected a prompt in %.2f s, a step in %.2f s; "
            "legs ended: %d",
            engine.id, found.value, seen.silent, seen.refusing, seen.mute, seen.still,
            seen.expected, seen.step, len(waiting),
        )  # fmt: skip
        self._keep_calls_from(engine.id, found, now)
        endpoint = self._endpoints.get(engine.id)
        if endpoint is not None:
            endpoint.given_up[found.value] += len(waiting)
        for leg in waiting:
            leg.given_up(engine.id, WHY[found], waited=found is not LivenessVerdict.GONE)

    def _keep_calls_from(self, instance_id: str, found: LivenessVerdict, now: float) -> None:
        match found:
            case LivenessVerdict.GONE:
                self._endpoints.mark_down(instance_id, "refused")
                self.on_gone(instance_id)
            case LivenessVerdict.FROZEN:
                self._endpoints.mark_silent(instance_id)
            case LivenessVerdict.STUCK:
                self._endpoints.mark_stuck(instance_id)
                self._stuck[instance_id] = now
        self._endpoints.on_out(instance_id)

    def _free_stuck(self, now: float) -> None:
        for instance_id, since in list(self._stuck.items()):
            silence = self._silences.get(instance_id)
            moved = silence is None or silence.sign > since
            if moved or now - since >= STUCK_SECONDS:
                del self._stuck[instance_id]
                self._endpoints.free(instance_id)
