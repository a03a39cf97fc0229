"""Simulated engine: continuous batching with chunked prefill, and a prefix cache.

A step gives each call that decodes a token, and computes prompt tokens, first come, first served,
as far as its budget goes. Without prompts, steps differ only by contexts that grow; so they are
taken together until the first call ends, or until something comes, which is seen when the step
that runs then is over:

    run of steps   |--|---|---|----|      steps get longer as contexts grow
                            ^ a call comes: the run ends here
                                          with the step that it came in

When memory runs out, the youngest call gives its own up, as with vLLM (v1 scheduler), and is
computed again when a call has come or ended; it may find its prompt in the cache.
"""

from collections import deque
from typing import Final

from pdgate.lab.simulator.agenda import Agenda
from pdgate.lab.simulator.batch import SimulatedBatch
from pdgate.lab.simulator.hardware import Hardware
from pdgate.lab.simulator.job import SimulatedJob, SimulatedState
from pdgate.lab.simulator.kv_cache import CallShare, KvCache
from pdgate.lab.simulator.run import Run
from pdgate.lab.simulator.usage import SimulatedUsage


class SimulatedEngine:
    """
    Attributes:
        alive: Dead ones take no jobs.
        usage: When it was at work.
        step_seconds: How long a step of the latest run took, on average; None before the first.
        preemptions: How often a call lost its memory.
    """

    def __init__(
        self, name: str, hardware: Hardware, agenda: Agenda, usage: SimulatedUsage
    ) -> None:
        self.name = name
        self.hardware = hardware
        self.usage = usage
        self.step_seconds: float | None = None
        self.preemptions = 0
        self._agenda = agenda
        self.rise()

    def rise(self) -> None:
        """A new process, which knows nothing."""
        self.alive = True
        self.kv = KvCache(self.hardware.kv_tokens)
        self._arriving: deque[SimulatedJob] = deque()
        self._loading: dict[SimulatedJob, None] = {}
        self._loaded: dict[SimulatedJob, None] = {}
        self._waiting: deque[SimulatedJob] = deque()
        self._reading: dict[SimulatedJob, None] = {}
        self._batch = SimulatedBatch()
        self._kept: dict[SimulatedJob, None] = {}
        self._run: Run | None = None
        self._chunks: list[tuple[SimulatedJob, int]] = []
        self._aborted: list[SimulatedJob] = []
        self._watched: dict[SimulatedJob, None] = {}
        self._ending = False

    @property
    def running(self) -> int:
        """Calls in its batch."""
        return len(self._batch) + len(self._reading)

    @property
    def waiting(self) -> int:
        """Calls that wait for room, or for their KV."""
        return len(self._waiting) + len(self._arriving) + self.loading

    @property
    def loading(self) -> int:
        """Calls whose KV is on its way, or has come in the step that runs."""
        return len(self._loading) + len(self._loaded)

    @property
    def unread_tokens(self) -> int:
        """Prompt tokens that it has still to compute, if it finds none."""
        queued = sum(job.context_tokens for job in self._waiting)
        return queued + sum(job.missing for job in self._reading)

    def fits(self, tokens: int) -> bool:
        """Whether a call of so many tokens, prompt and answer, can ever run here."""
        return tokens <= self.hardware.kv_tokens

    # What is asked of it.

    def read(self, job: SimulatedJob) -> None:
        """Compute its prompt, and its answer."""
        job.state = SimulatedState.WAITING
        self._waiting.append(job)
        self._look()

    def take_over(self, job: SimulatedJob) -> None:
        """Make its answer with KV that a peer has; `JobListener.load` is called when there is room."""
        job.state = SimulatedState.ARRIVING
        self._arriving.append(job)
        self._look()

    def loaded(self, job: SimulatedJob) -> None:
        """Its KV has come; nothing if it is not wanted any more."""
        if job.state is SimulatedState.LOADING:
            del self._loading[job]
            self._loaded[job] = None
            self._look()

    def withdraw(self, job: SimulatedJob) -> None:
        """Its KV will not come."""
        if job.state is SimulatedState.ARRIVING:
            self._arriving.remove(job)
        elif job.state is SimulatedState.LOADING:
            (self._loading if job in self._loading else self._loaded).pop(job)
        else:
            return
        self._release(job)
        self._look()

    def made(self, job: SimulatedJob) -> int:
        """Tokens of its answer so far, those of the steps that run included as far as they are over."""
        if job.state is not SimulatedState.DECODING:
            return job.produced
        steps = 0 if self._run is None else self._run.done(self._agenda.now)
        return job.produced + self._batch.steps + steps - job.since_step

    def abort(self, job: SimulatedJob) -> int:
        """Abort a job. Return the tokens of its answer that it has made.

        One that a step is about leaves with the end of that step, and tells nothing of it.
        """
        made = self.made(job)
        if job.state is SimulatedState.DECODING:
            if self._run is not None:
                job.heard = NOBODY
                self._aborted.append(job)
                self._look()
                return made
            self._release(job, self._batch.leave(job))
        elif job.state is SimulatedState.READING:
            del self._reading[job]
            self._release(job)
        elif job.state is SimulatedState.WAITING:
            self._waiting.remove(job)
            self._release(job)
        else:
            self.let_go(job)
            self.withdraw(job)
        self._look()
        return made

    def watch(self, job: SimulatedJob) -> None:
        """Tell `JobListener.stepped` of it from the next step on."""
        self._watched[job] = None

    def let_go(self, job: SimulatedJob) -> None:
        """What it kept has been fetched, or will not be."""
        if job.state is SimulatedState.KEPT:
            del self._kept[job]
            self._release(job)
            self._look()

    def die(self) -> None:
        """All its jobs break, and its cache is lost."""
        queued = (*self._arriving, *self._waiting, *self._loading, *self._loaded, *self._kept)
        broken = [*queued, *self._reading, *self._batch.all()]
        self.rise()
        self.alive = False
        for job in broken:
            job.state, job.share = SimulatedState.OVER, None
        for job in broken:
            job.heard.broke(job)

    # Steps.

    def _look(self) -> None:
        """Something changed: the next step is to see it, at the end of the one that runs."""
        if self._ending or not self.alive:
            return
        if self._run is None:
            self._begin()
        elif self._run.steps > 1 and self._run.cut(self._agenda.now):
            self._plan(self._run)

    def _begin(self) -> None:
        """The next run of steps, if there is anything to do."""
        self._admit()
        while len(self._batch) > self.kv.room:
            self._preempt()
        self._chunks = self._next_chunks()
        calls, hardware = len(self._batch), self.hardware
        if self._chunks:
            steps = 1
        elif calls:
            steps = min(self._batch.steps_alike(), self.kv.room // calls)
        else:
            return
        read = sum(count for _, count in self._chunks)
        pairs = sum(count * (job.computed + count / 2) for job, count in self._chunks)
        base = hardware.step_seconds(calls, self._batch.context_tokens, read, pairs)
        growth = calls * hardware.context_token_seconds
        self._run = Run(self._agenda.now, steps, base, growth)
        self._plan(self._run)

    def _plan(self, run: Run) -> None:
        steps = run.steps
        self._agenda.at(run.ends, lambda: self._end(run, steps))

    def _end(self, run: Run, steps: int) -> None:
        if run is not self._run or steps != run.steps:
            # It was cut short, or its engine died.
            return
        now = self._agenda.now
        self.usage.worked(run.began, now)
        self.step_seconds = (now - run.began) / steps
        self._run, self._ending = None, True
        self.kv.grow(len(self._batch) * steps)
        fresh = self._batch.advance(steps)
        for job in self._watched:
            if job.state is SimulatedState.DECODING:
                job.heard.stepped(job, steps)
        for job in fresh:
            job.heard.first_token(job)
        for job in self._aborted:
            if job.state is SimulatedState.DECODING:
                self._release(job, self._batch.leave(job))
        self._aborted.clear()
        for job, count in self._chunks:
            if job.state is SimulatedState.READING:
                self._has_read(job, count)
        while job_done := self._batch.done():
            self._release(job_done, self._batch.leave(job_done))
            job_done.heard.ended(job_done)
        self._ending = False
        self._begin()

    def _admit(self) -> None:
        """Room for calls that come first; for those that lost theirs before others."""
        for job in self._loaded:
            job.computed = job.prompt_tokens
            self.kv.fill(_share(job), job.prompt_tokens)
            self._batch.join(job)
        self._loaded.clear()
        budget = self.hardware.step_tokens - len(self._batch)
        budget -= sum(job.missing for job in self._reading)
        while self._waiting and budget > 0 and self._has_place():
            job = self._waiting[0]
            if not self._take(job):
                return
            self._waiting.popleft()
            job.state = SimulatedState.READING
            job.computed = _share(job).found
            self._reading[job] = None
            budget -= job.missing
        while self._arriving and self._has_place():
            job = self._arriving[0]
            if not self._take(job):
                return
            self._arriving.popleft()
            job.state = SimulatedState.LOADING
            self._loading[job] = None
            job.heard.load(job, job.prompt_tokens - _share(job).found)

    def _has_place(self) -> bool:
        return self.running + self.loading < self.hardware.calls

    def _take(self, job: SimulatedJob) -> bool:
        job.share = self.kv.take(job.blocks, job.context_tokens)
        if job.share is None:
            return False
        if job.found is None:
            job.found = job.share.found
        return True

    def _next_chunks(self) -> list[tuple[SimulatedJob, int]]:
        chunks: list[tuple[SimulatedJob, int]] = []
        budget = self.hardware.step_tokens - len(self._batch)
        for job in self._reading:
            if budget <= 0:
                break
            count = min(budget, job.missing)
            chunks.append((job, count))
            budget -= count
        return chunks

    def _has_read(self, job: SimulatedJob, count: int) -> None:
        job.computed += count
        self.kv.fill(_share(job), job.computed)
        if job.missing:
            return
        del self._reading[job]
        job.produced += 1
        if job.produced < job.answer_tokens:
            self._batch.join(job)
        if job.produced == 1:
            job.heard.first_token(job)
        if job.produced == job.answer_tokens:
            if job.keeps:
                job.state = SimulatedState.KEPT
                self._kept[job] = None
            else:
                self._release(job)
            job.heard.ended(job)

    def _preempt(self) -> None:
        job = self._batch.youngest()
        self._release(job, self._batch.leave(job))
        job.state = SimulatedState.WAITING
        self._waiting.appendleft(job)
        self.preemptions += 1

    def _release(self, job: SimulatedJob, answered_tokens: int = 0) -> None:
        job.state = SimulatedState.OVER
        self._watched.pop(job, None)
        if job.share is not None:
            self.kv.release(job.share, answered_tokens)
            job.share = None


class _Nobody:
    """Listener to a job that is not wanted any more."""

    def load(self, job: SimulatedJob, missing_tokens: int) -> None: ...

    def first_token(self, job: SimulatedJob) -> None: ...

    def stepped(self, job: SimulatedJob, steps: int) -> None: ...

    def ended(self, job: SimulatedJob) -> None: ...

    def broke(self, job: SimulatedJob) -> None: ...


NOBODY: Final = _Nobody()


def _share(job: SimulatedJob) -> CallShare:
    """Of a job that has room."""
    if job.share is None:
        raise RuntimeError("a job has no memory where it must have some")
    return job.share
