"""Continuous batching: which tokens are computed in the next step. Pure, no I/O.

A step has a budget of tokens. Sequences that decode come first, one token each; then
prompts, cut into chunks where they do not fit. When pages run out, the youngest running
job gives its pages up and starts again later (its prefix often survives in the cache).

KV that comes from a peer needs pages but no budget: such a job waits in `loading`, out
of the way of every step, until `loaded` says that its pages are filled. Those that load, those
that wait with their KV for a turn and those that run are no more than a batch together; a place
that both a load and a prompt could take goes to that which came first.

KV that a peer will read is computed one prompt after the other, as its first reader is
served earliest so; and none begins while the running jobs and those whose pages are still
to be read fill a batch: a decode side that falls behind is not buried. Others pass.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pdgate.engine import worker_rules
from pdgate.engine.cache import prefix
from pdgate.engine.cache.allocator import OutOfBlocks
from pdgate.engine.cache.prefix import BlockPool
from pdgate.engine.job import EngineStep, Job, JobState, StepChunk
from pdgate.engine.worker_rules import RequestCounts, decode_may_run, places, prefill_may_run


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Limits of one step. Every running sequence fits in with a token: max_seqs <= max_tokens."""

    max_seqs: int = 64
    max_tokens: int = 512


class StepScheduler:
    def __init__(self, limits: StepLimits, pool: BlockPool) -> None:
        self._limits = limits
        self._pool = pool
        self.arriving: deque[Job] = deque()
        """Their KV comes from a peer, and they have no pages yet."""
        self.waiting: deque[Job] = deque()
        """Those that already hold pages come first."""
        self.loading: dict[str, Job] = {}
        self.running: list[Job] = []
        self.preemptions = 0
        self._added = 0
        self._out_of_pages = False
        self.evicted: list[tuple[Job, list[int]]] = []
        """Pinned jobs that had to go, and the pages they had: the caller's to `drop`."""

    def add(self, job: Job) -> None:
        self._added += 1
        job.number = self._added
        (self.waiting if job.load is None else self.arriving).append(job)

    @property
    def queued_tokens(self) -> int:
        """Tokens of prompts, still to be computed here. May be asked by another thread."""
        # Each is copied at once, as they change meanwhile.
        jobs = [*self.arriving.copy(), *self.waiting.copy(), *self.running.copy()]
        return sum(max(0, job.missing - (job.load or 0)) for job in jobs if not job.decodes)

    def step(self, handing_over: int = 0) -> EngineStep:
        """`handing_over`: jobs that are over, and whose pages are still to be read by a peer."""
        self._out_of_pages = False
        chunks = self._continue_running()
        loads = self._start_loads(handing_over)
        if len(chunks) == len(self.running):
            # Running jobs have their chunks; so there may be budget for others.
            self._admit(chunks, handing_over)
        return EngineStep(list(chunks.values()), loads, self._out_of_pages)

    def guessing(self, chunk: StepChunk, guesses: Sequence[int], left: int) -> StepChunk:
        """Return the chunk with as many guesses as the step has tokens `left` and pages are free; no job gives any up."""
        count = min(len(guesses), left)
        while count and not self._grow(chunk.job, chunk.end + count):
            # Those that fit into its last page.
            count = min(count - 1, len(chunk.job.blocks) * self._pool.block_tokens - chunk.end)
        return replace(chunk, guesses=tuple(guesses[:count]))

    def advance(self, chunk: StepChunk, right: int = 0) -> None:
        """The KV of the chunk is in its pages, and so many of its guesses were right."""
        self._filled(chunk.job, chunk.end + right)

    def loaded(self, job: Job, ok: bool) -> None:
        """The load of a job in `loading` is over; what landed counts only if `ok`."""
        del self.loading[job.id]
        if job.state is JobState.DOOMED:
            self._retire(job)
            return
        if ok and job.load is not None:
            # The last token is computed here in any case: its logits are needed.
            job.loaded = min(job.load, job.end - 1)
            self._filled(job, max(job.loaded, job.computed))
        job.load = None
        job.state = JobState.WAITING
        self._wait_with_pages(job)

    def strand(self, job: Job) -> list[int]:
        """The load of a job in `loading` failed, but more may land in its pages.

        They are the caller's now, to `drop` when nothing can; the job needs others.
        """
        del self.loading[job.id]
        blocks, job.blocks = job.blocks, []
        if job.state is JobState.DOOMED:
            self._retire(job)
            return blocks
        self._release(job)
        job.load = None
        job.state = JobState.WAITING
        self._wait_with_pages(job)
        return blocks

    def take_pages(self, job: Job) -> list[int]:
        """Take the pages of a job about to be aborted: the caller's now, to `drop` in the end."""
        blocks, job.blocks = job.blocks, []
        return blocks

    def finish(self, job: Job) -> list[int]:
        """Ends a job that has its KV; its pages are the caller's now, to `drop` in the end."""
        (self.running if job.state is JobState.RUNNING else self.waiting).remove(job)
        job.state = JobState.OVER
        blocks, job.blocks = job.blocks, []
        return blocks

    def abort(self, job: Job) -> None:
        """Ends a job in any state. While it loads, its pages stay taken until `loaded`."""
        match job.state:
            case JobState.LOADING | JobState.DOOMED:
                job.state = JobState.DOOMED
                return
            case JobState.RUNNING:
                self.running.remove(job)
            case JobState.WAITING:
                (self.waiting if job.load is None else self.arriving).remove(job)
            case JobState.OVER:
                return
        self._retire(job)

    def drop(self, blocks: list[int]) -> None:
        self._pool.allocator.drop(blocks)

    def _continue_running(self) -> dict[str, StepChunk]:
        """A chunk for each running job, as far as budget and pages go."""
        chunks: dict[str, StepChunk] = {}
        for job in sorted(self.running, key=lambda job: not job.decodes):
            budget = self._limits.max_tokens - sum(chunk.count for chunk in chunks.values())
            if job.state is not JobState.RUNNING or budget == 0:
                continue
            count = min(job.missing, budget)
            if self._make_room(job, job.computed + count, chunks):
                chunks[job.id] = StepChunk(job, job.computed, count)
        return chunks

    def _make_room(self, job: Job, tokens: int, chunks: dict[str, StepChunk]) -> bool:
        """Pages for so many tokens, if need be those of other jobs, in the end its own."""
        while not self._grow(job, tokens):
            victim = self._victim(job)
            chunks.pop(victim.id, None)
            self._preempt(victim)
            if victim is job:
                return False
        return True

    def _victim(self, job: Job) -> Job:
        younger = self.running[self.running.index(job) + 1 :]
        for other in reversed(younger):
            if not other.pinned:
                return other
        holders = [other for other in self.waiting if other.blocks]
        return holders[-1] if holders else job

    def _start_loads(self, handing_over: int) -> list[Job]:
        loads: list[Job] = []
        while self.arriving and self._places:
            job = self.arriving[0]
            # Prompts that came earlier get the places that they can take in this step.
            if self._places <= self._ahead_of(job, handing_over) or not self._begin(job):
                break
            self.arriving.popleft()
            job.state = JobState.LOADING
            self.loading[job.id] = job
            loads.append(job)
        return loads

    @property
    def _places(self) -> int:
        """How many more jobs may load, or run without having loaded."""
        ready = sum(1 for job in self.waiting if job.blocks)
        counts = RequestCounts(transferring=len(self.loading) + ready, running=len(self.running))
        return places(counts, self._limits.max_seqs)

    def _ahead_of(self, load: Job, handing_over: int) -> int:
        earlier = [job for job in self.waiting if not job.blocks and job.number < load.number]
        room = self._places
        return sum(1 for job in earlier if self._has_turn(job, handing_over, room))

    def _admit(self, chunks: dict[str, StepChunk], handing_over: int) -> None:
        budget = self._limits.max_tokens - sum(chunk.count for chunk in chunks.values())
        while budget and len(self.running) < self._limits.max_seqs:
            room = self._places
            turns = (job for job in self.waiting if self._has_turn(job, handing_over, room))
            job = next(turns, None)
            if job is None:
                return
            if not self._begin(job):
                if self.running or not self._take_from_waiting(job):
                    return
                continue
            self.waiting.remove(job)
            job.state = JobState.RUNNING
            self.running.append(job)
            chunk = StepChunk(job, job.computed, min(job.missing, budget))
            chunks[job.id] = chunk
            budget -= chunk.count

    def _has_turn(self, job: Job, handing_over: int, room: int) -> bool:
        batch, running = self._limits.max_seqs, len(self.running)
        if job.pinned:
            # It takes no place of a load's: two engines that are prefill and decode of each other
            # would fill theirs with loads, and neither could compute what the other waits for.
            pinned = sum(1 for other in self.running if other.pinned)
            return prefill_may_run(RequestCounts(handing_over + running - pinned, pinned), batch)
        if job.blocks:
            # It has a place already, since it began to load.
            return decode_may_run(
                worker_rules.RequestState.TRANSFERRING,
                kv_complete=True,
                counts=RequestCounts(running=running),
                batch=batch,
            )
        return room > 0

    def _begin(self, job: Job) -> bool:
        """Pages for all of a job's tokens, so that it does not run into its own preemption."""
        fresh = not job.blocks
        if fresh and not job.every_logit:
            self._borrow(job)
        if self._grow(job, job.end):
            return True
        if fresh:
            self._release(job)
        return False

    def _take_from_waiting(self, job: Job) -> bool:
        """Pages of the last other job that waits with some; without it no job might move."""
        holders = [other for other in self.waiting if other.blocks and other is not job]
        if not holders:
            return False
        self.waiting.remove(holders[-1])
        self._release(holders[-1])
        self.waiting.append(holders[-1])
        return True

    def _borrow(self, job: Job) -> None:
        """Full blocks of the prefix cache; never the last token, whose logits are needed."""
        most = (job.end - 1) // self._pool.block_tokens
        root = prefix.salted(self._pool.root, job.salt)
        prefix.extend(job.hashes, job.tokens, self._pool.block_tokens, most, root)
        job.blocks = self._pool.borrow(job.hashes[:most], job.tokens, job.salt)
        job.hits = job.computed = len(job.blocks) * self._pool.block_tokens

    def _grow(self, job: Job, tokens: int) -> bool:
        needed = -(-tokens // self._pool.block_tokens) - len(job.blocks)
        if needed <= 0:
            return True
        try:
            after = job.blocks[-1] if job.blocks else None
            job.blocks += self._pool.allocator.take(needed, after)
        except OutOfBlocks:
            self._out_of_pages = True
            return False
        return True

    def _filled(self, job: Job, tokens: int) -> None:
        """The first `tokens` tokens have their KV; blocks that became full can be shared."""
        size, hashes = self._pool.block_tokens, job.hashes
        before, after = (count // size for count in (job.computed, tokens))
        job.computed = tokens
        prefix.extend(hashes, job.tokens, size, after, prefix.salted(self._pool.root, job.salt))
        for index in range(before, after):
            follows = hashes[index - 1] if index else None
            held = job.tokens[index * size : (index + 1) * size]
            self._pool.publish(job.blocks[index], hashes[index], follows, held, job.salt)

    def _preempt(self, job: Job) -> None:
        self.preemptions += 1
        (self.running if job.state is JobState.RUNNING else self.waiting).remove(job)
        if job.pinned and job.state is JobState.RUNNING:
            # Only for want of any other. Its reader is in the middle of these pages.
            self.evicted.append((job, job.blocks))
            job.pinned, job.blocks = False, []
        self._release(job)
        job.state = JobState.WAITING
        self._wait_with_pages(job)

    def _wait_with_pages(self, job: Job) -> None:
        """Behind those that hold pages, before those that never had any."""
        self.waiting.insert(sum(1 for other in self.waiting if other.blocks), job)

    def _retire(self, job: Job) -> None:
        job.state = JobState.OVER
        self._release(job)

    def _release(self, job: Job) -> None:
        """Pages and all that was in them."""
        self._pool.allocator.drop(job.blocks)
        job.blocks = []
        job.hits = job.loaded = job.computed = 0
