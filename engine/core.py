"""The thread that steps, and the thread-safe doors to it.

    any thread      submit, abort, loaded, release ...  --inbox-->  core thread: Work
    core thread     outputs of a step, as one batch     --deliver-> the asker

The thread sleeps on a condition while there is nothing to do: no polling, no spinning. When it fails, all requests are
answered, and it stays to take back the pages that peers are still in, until `stop`.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from pdgate.engine.cache.memory import PagedKv
from pdgate.engine.cache.peer_tier import PeerTier
from pdgate.engine.cache.tiers import Tier
from pdgate.engine.connector import Connector, Keep, Load
from pdgate.engine.hooks import DIED
from pdgate.engine.layout import Layout
from pdgate.engine.model.load import LoadedModel
from pdgate.engine.pace import Faults, StepPace
from pdgate.engine.request import Finish, Output, Refusal, Request
from pdgate.engine.stats import EngineGauges, EngineStats
from pdgate.engine.work import Done, Options, Work

log = logging.getLogger(__name__)

Deliver = Callable[[Sequence[Output]], None]


class EngineCore:
    """Implements `connector.Core`.

    Args:
        memory: Holds the pages.
        deliver: Gets the outputs of each step, on the core's thread.
    """

    def __init__(
        self,
        model: LoadedModel,
        layout: Layout,
        memory: PagedKv,
        deliver: Deliver,
        options: Options | None = None,
        pace: StepPace | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.model = model
        self._deliver = deliver
        self._pace = pace or StepPace()
        self._work = Work(model, layout, memory, options or Options(), faults or Faults())
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        if options is not None and options.tiers is not None and options.journal is not None:
            # A turn of the core says what became of blocks in the tiers, also where nothing is computed.
            options.tiers.stir = partial(self._post, lambda: None)
        self._paused = False
        self._frozen = False
        self._postponed: dict[str, Callable[[], None]] = {}
        self._when_idle: list[Future[None]] = []
        self._stopping = False
        self._over = False
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="engine-core", daemon=True)

    def connect(self, connector: Connector) -> None:
        """Connect before `start`; without a connector the engine computes everything itself."""
        self._work.hooks.connector = connector

    @property
    def connector(self) -> Connector | None:
        return self._work.hooks.connector

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends everything and waits for the thread, so that nothing touches the pages."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def fail(self, error: Exception) -> None:
        """End everything as failed: what the core computes with is gone."""

        def die() -> None:
            # It may have noticed by itself.
            if not self._failed:
                raise error

        self._post(die)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._failed

    @property
    def trouble(self) -> str:
        """Why calls would fail here until a restart; empty if all is well."""
        if not self.alive:
            return "the engine core is not running"
        connector = self._work.hooks.connector
        return "" if connector is None else connector.trouble()

    @property
    def stats(self) -> EngineStats:
        return self._work.stats

    @property
    def tiers(self) -> Sequence[Tier | PeerTier]:
        return self._work.tiers

    @property
    def gauges(self) -> EngineGauges:
        return self._work.gauges

    def submit(self, request: Request, accepted: Callable[[], None] | None = None) -> None:
        """`accepted`: called on the core's thread once it is not refused any more."""
        if not self._post(partial(self._submit, request, accepted)):
            self._refuse(request.id, "the engine has stopped")

    def submit_prefill(
        self,
        request_id: str,
        prompt: Sequence[int],
        tokens: int,
        keep: Keep,
        load: Load | None = None,
    ) -> None:
        """Raises ValueError for a prompt that this engine cannot hold."""
        if not 0 < tokens <= len(prompt):
            raise ValueError(f"{tokens} tokens of a prompt of {len(prompt)} cannot be computed")
        if load is not None and not 0 < load.tokens < tokens:
            raise ValueError(f"{load.tokens} of {tokens} tokens cannot be loaded")
        if tokens > self.model.positions:
            raise ValueError(f"{tokens} tokens do not fit in {self.model.positions}")
        vocabulary = self.model.config.vocab_size
        if not all(0 <= token < vocabulary for token in prompt):
            raise ValueError(f"token ids must lie in [0, {vocabulary})")
        self._post(partial(self._prefill, request_id, prompt, tokens, keep, load))

    def abort(self, request_id: str) -> None:
        self._post(partial(self._abort, request_id))

    @property
    def paused(self) -> bool:
        """Requests wait until `resume`."""
        return self._paused

    def pause(self, *, frozen: bool) -> None:
        """Requests that come wait; with `frozen` those that run do, too."""

        def act() -> None:
            self._paused, self._frozen = True, frozen

        self._post(act)

    def resume(self) -> None:
        def act() -> None:
            self._paused = self._frozen = False
            postponed, self._postponed = self._postponed, {}
            for submit in postponed.values():
                submit()

        self._post(act)

    def abort_all(self) -> None:
        """All that run."""
        self._post(self._work.abort_all)

    def idle(self) -> "Future[None]":
        """Done when no request runs, at the end of a step."""
        done: Future[None] = _future()
        if not self._post(partial(self._when_idle.append, done)):
            done.set_result(None)
        return done

    def forget_prefixes(self) -> "Future[bool]":
        """Whether that was done: not while a request runs."""
        return self._unless_live(self._work.forget_prefixes)

    def use(self, model: LoadedModel, of: str) -> "Future[bool]":
        """Other weights; whether that was done: not while a request runs."""

        def act() -> None:
            self._work.use(model, of)
            self.model = model

        return self._unless_live(act)

    def _unless_live(self, act: Callable[[], None]) -> "Future[bool]":
        done: Future[bool] = _future()

        def decide() -> None:
            if idle := not self._work.live:
                act()
            done.set_result(idle)

        if not self._post(decide):
            done.set_result(False)
        return done

    def _abort(self, request_id: str) -> None:
        if self._postponed.pop(request_id, None) is None:
            self._work.abort(request_id)
        else:
            self._deliver([Output(request_id, finish=Finish.ABORT)])

    def loaded(self, request_id: str, error: str | None = None) -> None:
        self._post(partial(self._work.loaded, request_id, error))

    def sampled(self, request_id: str, token: int) -> None:
        self._post(partial(self._work.sampled, request_id, token))

    def came_along(self, request_id: str, state: bytes) -> None:
        self._post(partial(self._work.came_along, request_id, state))

    def gave_up(self, request_id: str, error: str) -> None:
        self._post(partial(self._work.gave_up, request_id, error))

    def release(self, request_id: str) -> None:
        self._post(partial(self._work.release, request_id))

    def _submit(
        self, request: Request, accepted: Callable[[], None] | None, *, fetched: bool = False
    ) -> None:
        """`fetched`: other hosts were asked for KV of its prompt."""
        if self._failed:
            self._refuse(request.id, DIED)
            return
        if self._paused:
            self._postponed[request.id] = partial(self._submit, request, accepted, fetched=fetched)
            return
        begin = partial(self._post, partial(self._begin, request.id))
        if not fetched and self._work.fetch(request, begin):
            self._postponed[request.id] = partial(self._submit, request, accepted, fetched=True)
            return
        if self._work.submit(request) and accepted is not None:
            accepted()

    def _begin(self, request_id: str) -> None:
        """What other hosts give of its prompt has come."""
        submit = self._postponed.pop(request_id, None)
        if submit is not None:
            submit()

    def _prefill(self, request_id: str, *asked: Any) -> None:
        if self._failed:
            self._work.hooks.dropped(request_id, DIED)
        else:
            self._work.prefill(request_id, *asked)

    def _refuse(self, request_id: str, why: str) -> None:
        self._deliver([Output(request_id, refusal=Refusal(why))])

    def _post(self, act: Callable[[], None]) -> bool:
        """False when the thread will do nothing any more."""
        with self._wake:
            if self._over:
                return False
            self._inbox.append(act)
            self._wake.notify()
            return True

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception:  # the last stop of a thread: its waiters must hear of it
            log.exception(DIED)
            self._failed = True
            self._end()
            self._settle()
            return
        with self._wake:
            self._over = True
        self._end()

    def _end(self) -> None:
        """Answer all requests, also those that came while the core stopped."""
        self._obey_at_the_end()
        self._paused, postponed, self._postponed = False, self._postponed, {}
        for submit in postponed.values():
            submit()
        why = DIED if self._failed else "the engine is shutting down"
        self._work.shut_down(why, failed=self._failed)
        self._deliver(self._work.take_outputs())
        self._tell_idle()

    def _settle(self) -> None:
        """Take back the pages of loads that end and of readers that leave, until `stop`."""
        while not self._stopping:
            self._obey_at_the_end()
            self._tell_idle()
            self._sleep(None)
        with self._wake:
            self._over = True
        self._obey_at_the_end()
        self._tell_idle()

    def _obey_at_the_end(self) -> None:
        while self._inbox:
            try:
                self._inbox.popleft()()
            except Exception:  # it costs what it was about, and no other
                log.exception("the engine core could not do what it was told at its end")

    def _tell_idle(self) -> None:
        waiting, self._when_idle = self._when_idle, []
        for each in waiting:
            each.set_result(None)

    def _turn(self) -> bool:
        """One step and what goes with it; False when it is time to stop."""
        # What comes behind one that raises stays there, to be answered at the end.
        for _ in range(len(self._inbox)):
            self._inbox.popleft()()
        self._work.end_leases()
        begun = time.monotonic()
        done = Done() if self._frozen else self._work.step()
        self._work.tell()
        if least := self._pace.least_seconds(done.prompts, done.decodes, done.read):
            self._linger(begun + least)
        if outputs := self._work.take_outputs():
            self._deliver(outputs)
        if self._when_idle and not self._work.live:
            self._tell_idle()
        if done.idle:
            self._sleep(self._work.next_lease_end)
        return not self._stopping

    def _sleep(self, until: float | None) -> None:
        """Until there is something to do, or a lease ends."""
        with self._wake:
            timeout = None if until is None else max(0.0, until - time.monotonic())
            self._wake.wait_for(lambda: self._inbox or self._stopping, timeout)

    def _linger(self, until: float) -> None:
        """The pace asks for it; only stopping cuts it short."""
        with self._wake:
            self._wake.wait_for(lambda: self._stopping, until - time.monotonic())


def _future() -> "Future[Any]":
    """One that who waits for it cannot cancel, as it is ended by another thread."""
    made: Future[Any] = Future()
    made.set_running_or_notify_cancel()
    return made
