"""Worker processes that are one gateway: the parent, which serves nothing, and its workers.

    SIGTERM --> parent --SIGTERM--> each worker, which drains by itself
    SIGHUP ---> parent: reads, checks --> each worker prepares --all can--> each worker takes
    POST /admin/drain, /admin/reload --> one worker --> parent, as above

Settings are in force when every worker has taken them, and not before: until then a worker that
comes later begins with the old ones, and if one worker refuses, with the old ones for good. A worker
that was not built yet is killed when others take new settings, and begins anew with these.

The parent waits for nothing but events (line.py, signals, the clock), so neither a worker that hangs
nor one that cannot start keeps it from the others. A worker that has ended is replaced, at once if
it had served, else after pauses that grow (cluster/jobs.py); if none was ever ready, the parent
ends.
"""

import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from queue import Empty, SimpleQueue
from random import random
from socket import socket
from time import monotonic
from types import FrameType
from typing import Any, Final

from pdgate.cluster.jobs import GOOD_SECONDS, pause_seconds
from pdgate.gateway.config import ConfigError, Settings
from pdgate.gateway.lifecycle import line
from pdgate.gateway.lifecycle.line import ControlLine, Message
from pdgate.gateway.lifecycle.reload import changed_keys, refuse_fixed
from pdgate.gateway.lifecycle.signals import ENDING_SECONDS

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.5
"""Between two looks at the clock; what happens is heard at once."""
PING_SECONDS: Final = 5.0
HUNG_SECONDS: Final = 20.0
"""After which a worker that does not answer is killed: longer than a busy machine's worst."""
START_SECONDS: Final = 60.0
"""The same for one that has never been ready, as it imports, and waits for a directory."""
PREPARE_SECONDS: Final = 10.0
"""For a worker to say whether it can take other settings; then it hangs, and is killed."""
LEFT_SECONDS: Final = 5.0
"""For the kernel's own end of a worker (signals.py) before the parent's."""

Start = Callable[[Settings, list[socket], "Connection[Any, Any]"], None]
"""What a worker does, in its own process."""

Heard = tuple["One | None", Message | None]
"""A worker and its message; None for a signal, and for the end of a worker's line."""


@dataclass(eq=False, slots=True)
class One:
    """One worker.

    Attributes:
        place: Which of the workers it is, from 0.
        began: Monotonic seconds, like all times here.
        ready: Built, with the settings that were in force when it began or that it has taken.
        pinged: Since when it owes an answer.
    """

    place: int
    process: SpawnProcess
    began: float
    line: ControlLine | None = None
    ready: bool = False
    pinged: float | None = None
    heard: float = 0.0

    def kill(self) -> None:
        self.process.kill()


@dataclass(eq=False, slots=True)
class SettingsChange:
    """Other settings, on their way to be in force.

    Attributes:
        waits_for: Workers that have not said yet whether they can take them.
        asked: Workers that are to hear of the end, and by which ticket.
    """

    number: int
    wanted: Settings
    keys: list[str]
    until: float
    asked: list[tuple[One, int]]
    waits_for: set[One] = field(default_factory=set)
    prepared: set[One] = field(default_factory=set)


class Workers:
    """The parent's side."""

    def __init__(
        self,
        start: Start,
        sockets: list[socket],
        settings: Settings,
        read: Callable[[], Settings],
    ) -> None:
        """`read` reads the settings again, and raises ConfigError."""
        self._start = start
        self._sockets = sockets
        self._settings = settings
        self._read = read
        self._events: SimpleQueue[Heard] = SimpleQueue()
        self._workers: dict[int, One] = {}
        self._pauses: dict[int, float] = {}
        self._failures: dict[int, int] = {}
        self._change: SettingsChange | None = None
        self._changes = 0
        self._asked_again: list[tuple[One, int]] | None = None
        self._any_was_ready = False
        self._ends_by: float | None = None
        self._look_at = monotonic() + LOOK_SECONDS
        self._failed = False

    def run(self) -> int:
        """Blocks until all workers have ended; returns the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._signalled)
        log.info("this is the parent process of %d workers", self._settings.listen.workers)
        for place in range(self._settings.listen.workers):
            self._begin(place)
        try:
            while self._workers or self._ends_by is None:
                try:
                    self._wait()
                # A bug of ours must not end the parent, which would leave its workers without one.
                except Exception:
                    log.exception("the parent of the workers failed over what has happened")
        finally:
            # Python's end would wait for them.
            for one in self._workers.values():
                one.kill()
        return int(self._failed)

    def _wait(self) -> None:
        """For what happens next, or for the clock, which has its turn whatever happens."""
        now = monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._look(now)
            return
        with suppress(Empty):
            self._act(*self._events.get(timeout=self._look_at - now))

    # What happens.

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        # A SimpleQueue may be put into from a signal's handler.
        self._events.put((None, (number,)))

    def _act(self, one: One | None, message: Message | None) -> None:
        match message:
            case (signal.SIGHUP,) if one is None:
                self._reload()
            case (number,) if one is None:
                self._drain(again=number)
            case None if one is not None:
                self._is_gone(one)
            case (line.READY,) if one is not None:
                self._is_ready(one)
            case (line.PONG,) if one is not None:
                one.pinged = None
                one.heard = monotonic()
            case (line.PREPARED, number, why) if one is not None:
                self._has_prepared(one, number, why)
            case (line.ASK, ticket) if one is not None:
                self._reload((one, ticket))
            case (line.DRAIN,):
                self._drain()

    def _look(self, now: float) -> None:
        """At what time alone brings about."""
        for one in list(self._workers.values()):
            if not one.process.is_alive():
                # Its line may be held open by a process that it has started itself.
                self._is_gone(one)
            elif self._ends_by is not None:
                if now >= self._ends_by:
                    log.error("the worker %s does not end, and is killed", one.process.pid)
                    one.kill()
            elif self._hangs(one, now):
                log.error("the worker %s does not answer, and is killed", one.process.pid)
                one.kill()
        for place, until in list(self._pauses.items()):
            if now >= until and self._ends_by is None:
                del self._pauses[place]
                self._begin(place)
        if self._change is not None and now >= self._change.until:
            for one in self._change.waits_for:
                log.error("the worker %s does not take settings, and is killed", one.process.pid)
                one.kill()

    def _hangs(self, one: One, now: float) -> bool:
        if not one.ready:
            return now - one.began >= START_SECONDS
        if one.pinged is None:
            if now - one.heard >= PING_SECONDS and one.line is not None:
                one.pinged = now
                one.line.say(line.PING)
            return False
        return now - one.pinged >= HUNG_SECONDS

    # Workers come and go.

    def _begin(self, place: int) -> None:
        ours, theirs = get_context("spawn").Pipe()
        process = get_context("spawn").Process(
            target=self._start, args=(self._settings, self._sockets, theirs), name=f"worker {place}"
        )
        one = One(place, process, monotonic())
        try:
            process.start()
        except OSError as error:
            # As where there are no more processes, memory or file descriptors for a while.
            log.error("a worker cannot be started: %s", error)
            ours.close()
            self._pause(place)
            return
        finally:
            # Only the worker has it now, so the line ends with it.
            theirs.close()
        self._workers[place] = one
        one.line = ControlLine(ours, lambda message: self._events.put((one, message)))

    def _pause(self, place: int) -> None:
        failures = self._failures[place] = self._failures.get(place, 0) + 1
        self._pauses[place] = monotonic() + pause_seconds(failures, random())

    def _is_ready(self, one: One) -> None:
        one.ready, one.heard = True, monotonic()
        self._any_was_ready = True
        if self._change is not None:
            self._ask_to_prepare(self._change, one)
        elif self._asked_again is not None:
            self._begin_change()

    def _is_gone(self, one: One) -> None:
        if self._workers.get(one.place) is not one:
            return
        # A line that has ended is a worker that ends, or that cannot be reached.
        one.process.join(0)
        if one.process.is_alive():
            if self._ends_by is None:
                one.kill()
            else:
                one.process.join(LOOK_SECONDS)
            if one.process.is_alive():
                return
        del self._workers[one.place]
        if one.line is not None:
            one.line.close()
        code = one.process.exitcode
        if self._change is not None:
            self._change.waits_for.discard(one)
            self._change.prepared.discard(one)
            self._decide(self._change)
        if self._ends_by is not None:
            return
        if not self._any_was_ready:
            log.error("the worker %s could not start (%s), so all end", one.process.pid, code)
            self._failed = True
            self._drain()
            return
        log.error("the worker %s has ended (%s); another takes its place", one.process.pid, code)
        if one.ready and monotonic() - one.began >= GOOD_SECONDS:
            self._failures.pop(one.place, None)
        if one.ready and not self._failures.get(one.place):
            self._failures[one.place] = 1
            self._begin(one.place)
        else:
            self._pause(one.place)

    # The end.

    def _drain(self, again: int | None = None) -> None:
        if self._ends_by is not None:
            if again == signal.SIGINT:
                self._signal_all(signal.SIGINT)
            return
        drain = self._settings.drain
        seconds = max(drain.grace_seconds, drain.notice_seconds) + ENDING_SECONDS + LEFT_SECONDS
        self._ends_by = monotonic() + seconds
        self._signal_all(signal.SIGTERM)
        # While we held them, clients could still connect, and would wait in vain for the
        # last running call to end.
        for held in self._sockets:
            held.close()

    def _signal_all(self, number: signal.Signals) -> None:
        for one in self._workers.values():
            if one.process.pid is not None and one.process.is_alive():
                with suppress(ProcessLookupError):
                    os.kill(one.process.pid, number)

    # Other settings.

    def _reload(self, *asked: tuple[One, int]) -> None:
        self._asked_again = [*(self._asked_again or ()), *asked]
        if self._change is None and self._ends_by is None:
            self._begin_change()

    def _begin_change(self) -> None:
        ready = [one for one in self._workers.values() if one.ready]
        if not ready:
            # The first to be ready is asked.
            return
        asked, self._asked_again = self._asked_again or [], None
        try:
            wanted = self._read()
            keys = list(changed_keys(self._settings, wanted))
            refuse_fixed(keys)
        except ConfigError as error:
            self._refuse(str(error), asked)
            return
        # A bug of ours must not end the parent, which would leave its workers without one.
        except Exception as error:
            log.exception("the configuration could not be read")
            self._refuse(f"the parent failed over it: {error!r}", asked)
            return
        self._changes += 1
        until = monotonic() + PREPARE_SECONDS
        change = self._change = SettingsChange(self._changes, wanted, keys, until, asked)
        for one in ready:
            self._ask_to_prepare(change, one)

    def _ask_to_prepare(self, change: SettingsChange, one: One) -> None:
        assert one.line is not None
        change.waits_for.add(one)
        one.line.say(line.PREPARE, change.number, change.wanted.model_dump_json())

    def _has_prepared(self, one: One, number: int, why: str) -> None:
        change = self._change
        if change is None or change.number != number or one not in change.waits_for:
            return
        if why:
            self._change = None
            self._refuse(why, change.asked)
            return
        change.waits_for.remove(one)
        change.prepared.add(one)
        self._decide(change)

    def _decide(self, change: SettingsChange) -> None:
        if change.waits_for:
            return
        self._change = None
        if not change.prepared:
            self._refuse("no worker was left to take it", change.asked)
            return
        self._settings = change.wanted
        for one in list(self._workers.values()):
            if one in change.prepared and one.line is not None:
                one.line.say(line.COMMIT, change.number)
            elif not one.ready:
                # It was built, or is being built, with what was in force before.
                one.kill()
        self._answer(change.asked, change.keys, "")
        self._next()

    def _refuse(self, why: str, asked: list[tuple[One, int]]) -> None:
        log.error("the configuration stays as it was: %s", why)
        for one in self._workers.values():
            if one.ready and one.line is not None:
                one.line.say(line.ABANDON, why)
        self._answer(asked, [], why)
        self._next()

    def _answer(self, asked: list[tuple[One, int]], keys: list[str], why: str) -> None:
        for one, ticket in asked:
            if one.line is not None:
                one.line.say(line.ANSWER, ticket, keys, why)

    def _next(self) -> None:
        """Repeats what was asked while settings were on their way: the file may differ by now."""
        if self._asked_again is not None and self._ends_by is None:
            self._begin_change()
