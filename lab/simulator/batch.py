"""Decode batch of an engine: each step gives each of its calls a token."""

from heapq import heappop, heappush

from pdgate.lab.simulator.job import SimulatedJob, SimulatedState


class SimulatedBatch:
    """
    Attributes:
        context_tokens: Of all its calls.
        steps: Taken so far.
    """

    __slots__ = ("_count", "_ends", "_fresh", "_jobs", "context_tokens", "steps")

    def __init__(self) -> None:
        self.context_tokens = 0
        self.steps = 0
        # In the order in which they joined, and by when they end.
        self._jobs: dict[SimulatedJob, None] = {}
        self._ends: list[tuple[int, int, SimulatedJob]] = []
        self._fresh: list[SimulatedJob] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def join(self, job: SimulatedJob) -> None:
        """Join from the next step on."""
        job.state = SimulatedState.DECODING
        job.since_step = self.steps
        job.last_step = self.steps + job.answer_tokens - job.produced
        self._count += 1
        self._jobs[job] = None
        self.context_tokens += job.context_tokens
        heappush(self._ends, (job.last_step, self._count, job))
        if not job.produced:
            self._fresh.append(job)

    def leave(self, job: SimulatedJob) -> int:
        """How many tokens it has made since it joined."""
        made = self.steps - job.since_step
        job.produced += made
        self.context_tokens -= job.context_tokens
        del self._jobs[job]
        if job in self._fresh:
            self._fresh.remove(job)
        return made

    def youngest(self) -> SimulatedJob:
        return next(reversed(self._jobs))

    def advance(self, steps: int) -> list[SimulatedJob]:
        """Takes so many steps. Those that have their first token with these."""
        self.steps += steps
        self.context_tokens += len(self._jobs) * steps
        fresh, self._fresh = self._fresh, []
        return fresh

    def done(self) -> SimulatedJob | None:
        """One that has all its tokens, and is still here."""
        self._drop_gone()
        if self._ends and self._ends[0][0] <= self.steps:
            return self._ends[0][2]
        return None

    def steps_alike(self) -> int:
        """Steps until some call has a first or a last token, one at least; there must be a call."""
        if self._fresh:
            return 1
        self._drop_gone()
        return self._ends[0][0] - self.steps

    def all(self) -> list[SimulatedJob]:
        return list(self._jobs)

    def _drop_gone(self) -> None:
        """Calls that left, and maybe joined again, are not expected where they were."""
        ends = self._ends
        while ends and (ends[0][2] not in self._jobs or ends[0][2].last_step != ends[0][0]):
            heappop(ends)
