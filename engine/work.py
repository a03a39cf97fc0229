"""The core's work, one thing at a time, on one thread.

    submit, prefill, abort, loaded, release, end_leases    change what there is to do
    step                                                   does the next piece of it
    take_outputs                                           what came out since the last call

A connector's hooks are called from here, through `hooks`.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from pdgate.engine.cache.memory import PagedKv
from pdgate.engine.cache.peer_tier import PeerTier
from pdgate.engine.cache.prefix import BlockPool, salt_of
from pdgate.engine.cache.tiers import Tier, Tiers
from pdgate.engine.connector import Keep, Load
from pdgate.engine.generation import Generation
from pdgate.engine.hooks import HookFailed, Hooks
from pdgate.engine.job import Job, JobState, StepChunk
from pdgate.engine.kv_events.journal import EventJournal
from pdgate.engine.layout import Layout
from pdgate.engine.leases import Lease, RetainedPages
from pdgate.engine.live import (
    LiveRequest,
    begin,
    pages_to_fill,
    pages_to_keep,
    span,
    strange_token,
    take_handed,
)
from pdgate.engine.model.load import LoadedModel
from pdgate.engine.model.weights import Floats
from pdgate.engine.outbox import Outbox
from pdgate.engine.pace import Faults
from pdgate.engine.request import Finish, Output, Refusal, Request
from pdgate.engine.scheduler import StepLimits, StepScheduler
from pdgate.engine.speculation import TokenState, packed, unpacked
from pdgate.engine.stats import EngineGauges, EngineStats

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """
    Attributes:
        speculate: How many tokens are guessed beside each that is due; 0 for none.
    """

    limits: StepLimits = field(default_factory=StepLimits)
    reuse_prefixes: bool = True
    on_failed_load: Literal["fail", "recompute"] = "fail"
    journal: EventJournal | None = None
    hash_seed: str = ""
    tiers: Tiers | None = None
    speculate: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """What a step did; `idle` if nothing at all.

    Attributes:
        prompts: It finished.
        decodes: Tokens that it decoded.
        read: Tokens of prompts that it computed.
    """

    prompts: int = 0
    decodes: int = 0
    read: int = 0
    idle: bool = True


class Work:
    def __init__(
        self,
        model: LoadedModel,
        layout: Layout,
        memory: PagedKv,
        options: Options,
        faults: Faults,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._layout = layout
        self._memory = memory
        self._options = options
        self._faults = faults
        self._now = now
        self._pool = BlockPool(
            layout.blocks,
            layout.block_tokens,
            options.reuse_prefixes,
            options.journal,
            options.hash_seed,
            options.tiers,
        )
        self._scheduler = StepScheduler(options.limits, self._pool)
        self._live: dict[str, LiveRequest] = {}
        self._retained = RetainedPages()
        self._outbox = Outbox()
        self.stats.accepted = [0] * options.speculate
        self.hooks = Hooks()

    @property
    def tiers(self) -> Sequence[Tier | PeerTier]:
        tiers = self._options.tiers
        if tiers is None:
            return ()
        return tiers.tiers if tiers.peers is None else [*tiers.tiers, tiers.peers]

    @property
    def gauges(self) -> EngineGauges:
        scheduler = self._scheduler
        return EngineGauges(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(scheduler.arriving),
            loading=len(scheduler.loading),
            queued_tokens=scheduler.queued_tokens,
            block_tokens=self._layout.block_tokens,
            caches_prefixes=self._options.reuse_prefixes,
            blocks_total=self._layout.blocks,
            blocks_used=self._pool.allocator.used,
            blocks_kept=self._retained.leases.blocks,
            preemptions=scheduler.preemptions,
        )

    @property
    def live(self) -> bool:
        """Whether there is a request that is not over."""
        return bool(self._live)

    def forget_prefixes(self) -> None:
        """What is cached is of no more use."""
        self._pool.forget_all()

    def use(self, model: LoadedModel, of: str) -> None:
        """Other weights, from the next step on; `of`: what tells their KV from others', in tiers."""
        self._model = model
        self.forget_prefixes()
        if self._options.tiers is not None:
            self._options.tiers.weights_are(of)

    @property
    def next_lease_end(self) -> float | None:
        return self._retained.leases.next_end

    @property
    def stats(self) -> EngineStats:
        return self._outbox.stats

    def take_outputs(self) -> list[Output]:
        return self._outbox.take()

    def fetch(self, request: Request, then: Callable[[], object]) -> bool:
        """Whether it is worth waiting for blocks of other hosts; `then` is called when they have come, on any thread."""
        # All of its logits are wanted, so that nothing of it is taken from a cache.
        if request.sampling.prompt_logprobs is not None:
            return False
        try:
            return self._pool.fetch(request.prompt, salt_of(request.body), then)
        except ValueError:
            # `submit` says why it is refused.
            return False

    def submit(self, request: Request) -> bool:
        """False if it is refused, which its asker hears as an output."""
        if self._faults.strikes():
            self._outbox.refuse(request.id, "this engine was told to fail some requests")
            return False
        try:
            known = partial(self._pool.known_tokens, request.prompt, salt_of(request.body))
            plan = self.hooks.plan(request, known)
        except ValueError as error:
            self._outbox.refuse(request.id, str(error), blame_client=True)
            return False
        except HookFailed as error:
            self._outbox.refuse(request.id, str(error))
            return False
        live = begin(request, plan, self._model)
        self._live[request.id] = live
        self._scheduler.add(live.job)
        return True

    def prefill(
        self,
        request_id: str,
        prompt: Sequence[int],
        tokens: int,
        keep: Keep,
        load: Load | None = None,
    ) -> None:
        first = None if load is None else load.tokens
        job = Job(request_id, list(prompt), len(prompt), goal=tokens, load=first, pinned=True)
        self._live[request_id] = LiveRequest(job, load=load, keep=keep)
        self._scheduler.add(job)

    def abort(self, request_id: str) -> None:
        """Ends a request in any state; one that is over but kept gives its pages up."""
        live = self._live.get(request_id)
        if live is None:
            if lease := self._retained.leases.release(request_id):
                self._drop(lease.request_id, lease.blocks, "aborted")
            return
        if live.job.state is JobState.DOOMED:
            return
        self.stats.requests_aborted += 1
        self._end_early(live, Output(request_id, finish=Finish.ABORT), "aborted")

    def abort_all(self) -> None:
        for request_id in list(self._live):
            self.abort(request_id)

    def loaded(self, request_id: str, error: str | None) -> None:
        if (settled := self._retained.settled(request_id)) is not None:
            self._scheduler.drop(settled)
            return
        live = self._live.get(request_id)
        if live is None or request_id not in self._scheduler.loading:
            log.warning("a load of %s ended that no request waits for", request_id)
            return
        job = live.job
        doomed = job.state is JobState.DOOMED
        error = error or strange_token(live, self._model)
        begun = take_handed(live) if error is None and not doomed else None
        self._scheduler.loaded(job, ok=error is None)
        if doomed:
            del self._live[request_id]
        elif error is None:
            blocks = self._layout.blocks_for(job.loaded) - self._layout.blocks_for(job.hits)
            self.stats.loaded_bytes += blocks * self._layout.block_bytes
        else:
            self._load_failed(live, error)
        if begun is not None:
            self._said(live, begun)

    def sampled(self, request_id: str, token: int) -> None:
        if (live := self._live.get(request_id)) is not None:
            live.handed = token

    def came_along(self, request_id: str, state: bytes) -> None:
        live = self._live.get(request_id)
        if live is None or live.generation is None or not self._options.speculate:
            return
        found = unpacked(state, self._model.config.hidden_size)
        # Of the token before the newest: the last of the prompt, or the one that prefill sampled.
        before = len(live.job.tokens) - (live.handed is None)
        if found is None or found.tokens != before:
            self.stats.states_refused += 1
            log.warning("what came along with the KV of %s is no state to guess from", request_id)
            return
        live.generation.state = found

    def gave_up(self, request_id: str, error: str) -> None:
        """The load failed, and its pages stay taken until `loaded`: others must not use them,
        this request included.
        """
        live = self._live.get(request_id)
        if live is None or request_id not in self._scheduler.loading:
            return
        doomed = live.job.state is JobState.DOOMED
        self._retained.strand(request_id, self._scheduler.strand(live.job))
        if doomed:
            del self._live[request_id]
        else:
            self._load_failed(live, error)

    def release(self, request_id: str) -> None:
        self._scheduler.drop(self._retained.read(request_id))

    def end_leases(self) -> None:
        for lease in self._retained.leases.take_ended(self._now()):
            self.stats.leases_ended += 1
            self._drop(lease.request_id, lease.blocks, "the lease is over")

    def step(self) -> Done:
        step = self._scheduler.step(self._retained.handing_over)
        self._drop_evicted()
        if step.out_of_pages:
            for request_id in self._retained.take_undisturbed():
                self.hooks.break_off(request_id)
        for job in step.loads:
            self._start(self._live[job.id])
        if not step.chunks:
            return Done(idle=not step.loads)
        begun = self._now()
        reads = [chunk for chunk in step.chunks if not chunk.job.decodes]
        done = Done(
            prompts=sum(1 for chunk in reads if chunk.completes),
            decodes=len(step.chunks) - len(reads),
            read=sum(chunk.count for chunk in reads),
            idle=False,
        )
        chunks = self._with_guesses(step.chunks) if self._options.speculate else step.chunks
        spans = [span(chunk) for chunk in chunks]
        kept = [chunk for chunk in chunks if self._live[chunk.job.id].keep is not None]
        computed = self._model.decoder.forward(spans, self._memory, self.hooks.watch(kept))
        for chunk, (logits, states) in zip(chunks, computed, strict=True):
            self._computed(chunk, logits, states)
        self.stats.steps += 1
        self.stats.stepping_seconds += self._now() - begun
        return done

    def tell(self) -> None:
        """What became of cached blocks, to those who listen."""
        journal, tiers = self._options.journal, self._options.tiers
        if journal is not None:
            if tiers is not None:
                for news in tiers.take_news():
                    journal.beyond(news)
            journal.flush()

    def shut_down(self, why: str, *, failed: bool) -> None:
        """Ends everything. Afterwards no hook is called and no page is touched."""
        for live in list(self._live.values()):
            request_id = live.job.id
            refusal = Refusal(why) if failed else None
            finish = None if failed else Finish.ABORT
            output = Output(request_id, finish=finish, refusal=refusal)
            try:
                self._end_early(live, output, why)
            except Exception:  # a core that has died may have left its accounts half written
                log.exception("%s is answered, but its pages may be lost", request_id)
                self._live.pop(request_id, None)
                self._outbox.end_early(live, output)
        for lease in self._retained.leases.take_all():
            self._drop(lease.request_id, lease.blocks, why)

    def _start(self, live: LiveRequest) -> None:
        assert live.load is not None
        pages, skip = pages_to_fill(live.job, live.load, self._layout)
        try:
            self.hooks.start(live.job.id, live.load, pages, skip)
        except HookFailed as error:
            self.loaded(live.job.id, str(error))

    def _load_failed(self, live: LiveRequest, error: str) -> None:
        self.stats.loads_failed += 1
        log.warning("KV of %s did not arrive: %s", live.job.id, error)
        # Who computes for a peer was only saved some work, whatever its own clients want.
        optional = live.generation is None or (live.load is not None and live.load.optional)
        if optional or self._options.on_failed_load == "recompute":
            return
        self._scheduler.abort(live.job)
        del self._live[live.job.id]
        self._outbox.fail_load(live.job.id, error, as_abort=self.hooks.failed_load_is_abort)

    def _drop_evicted(self) -> None:
        evicted, self._scheduler.evicted = self._scheduler.evicted, []
        for job, blocks in evicted:
            self._drop(job.id, blocks, "preempted: the prefill engine ran out of pages")

    def _with_guesses(self, chunks: list[StepChunk]) -> list[StepChunk]:
        """Guesses take what the step has left, and never of pages that a peer reads."""
        left = self._options.limits.max_tokens - sum(chunk.count for chunk in chunks)
        found = []
        for chunk in chunks:
            live, job = self._live[chunk.job.id], chunk.job
            if chunk.count == 1 and chunk.completes and not (live.keep or job.every_logit):
                assert live.generation is not None, "only a peer's prefill has none, and it is kept"
                most = min(self._options.speculate, left) if job.goal is None else 0
                guesses = live.generation.guesses(self._model.decoder, job.tokens, most)
                chunk = self._scheduler.guessing(chunk, guesses, left)
                left -= len(chunk.guesses)
            found.append(chunk)
        return found

    def _computed(self, chunk: StepChunk, logits: Floats, states: Floats) -> None:
        """`states` are of the tokens that the logits are of, or of the last one where there are none."""
        live, job = self._live[chunk.job.id], chunk.job
        if live.generation is not None and job.every_logit:
            live.generation.saw_prompt(chunk.start, logits)
        if not chunk.completes or live.generation is None or job.goal is not None:
            self._scheduler.advance(chunk)
            if chunk.completes:
                if live.keep is not None:
                    live.state = packed(TokenState(chunk.end, states[-1]))
                self._outbox.prompt_is_there(live)
                self._finish(live, Output(job.id, finish=Finish.LENGTH))
            return
        outputs = self._chosen(chunk, live.generation, logits)
        right = len(outputs) - 1
        self._scheduler.advance(chunk, right)
        row = states[len(states) - 1 - len(chunk.guesses) + right]
        state = TokenState(chunk.end + right, row)
        if live.keep is not None:
            live.state = packed(state)
        elif self._options.speculate:
            self._count_guesses(chunk, right, live.generation.state)
            live.generation.state = state
        self.stats.turns += 1
        for output in outputs:
            self._said(live, output)

    def _chosen(self, chunk: StepChunk, generation: Generation, logits: Floats) -> list[Output]:
        """The next token, and those behind it for which all guesses before were right."""
        outputs = []
        for row, guess in zip(
            logits[-1 - len(chunk.guesses) :], (*chunk.guesses, None), strict=True
        ):
            output = generation.next(row)
            outputs.append(output)
            if output.last:
                break
            chunk.job.tokens.append(output.tokens[0])
            if output.tokens[0] != guess:
                break
        return outputs

    def _count_guesses(self, chunk: StepChunk, right: int, state: TokenState | None) -> None:
        if not chunk.guesses:
            return
        self.stats.turns_with_guesses += 1
        self.stats.guessed += len(chunk.guesses)
        for place in range(right):
            self.stats.accepted[place] += 1
        if state is not None and state.from_peer:
            self.stats.states_used += 1
            self.stats.states_accepted += right

    def _said(self, live: LiveRequest, output: Output) -> None:
        """A token of the answer."""
        self._outbox.prompt_is_there(live)
        self.stats.generated += 1
        if output.last:
            self._finish(live, output)
        else:
            self._outbox.go_on(live, output)

    def _finish(self, live: LiveRequest, output: Output) -> None:
        job = live.job
        blocks = self._scheduler.finish(job)
        del self._live[job.id]
        params = None
        if live.keep is None:
            self._scheduler.drop(blocks)
        else:
            try:
                params = self._kept(live, live.keep, blocks, output)
            except HookFailed as error:
                # Its reader may have been told of them before it failed.
                if lease := self._retained.leases.release(job.id):
                    self._drop(job.id, lease.blocks, "it could not be offered")
                self._outbox.refuse(job.id, str(error))
                return
        self._outbox.finish(live, output, params)

    def _kept(
        self, live: LiveRequest, keep: Keep, blocks: list[int], output: Output
    ) -> Mapping[str, Any] | None:
        """The pages wait for a reader from now on. Raises HookFailed."""
        job = live.job
        self._retained.keep(Lease(job.id, blocks, self._now() + keep.lease_seconds))
        first = live.generation.first_token if live.generation else None
        pages = pages_to_keep(job, blocks, self._layout, live.state)
        return self.hooks.kept(job.id, keep, pages, first, str(output.finish))

    def _end_early(self, live: LiveRequest, output: Output, why: str) -> None:
        """The client hears of it now; pages that are being filled wait for `loaded`."""
        job = live.job
        never_started = live.load_never_started
        was_loading = job.state is JobState.LOADING
        # A reader of these pages has to be asked before they are used again. While they are
        # being filled themselves they are not read.
        filled = was_loading or job.state is JobState.DOOMED
        read = live.keep is not None and not filled
        blocks = self._scheduler.take_pages(job) if read else []
        self._scheduler.abort(job)
        self._outbox.end_early(live, output)
        if live.keep is not None and (never_started or was_loading):
            self._drop(job.id, blocks, why)
        if never_started:
            self._scheduler.loading[job.id] = job
            job.state = JobState.DOOMED
            self._start(live)
            return
        if was_loading:
            self.hooks.cancel(job.id)
            return
        self._live.pop(job.id, None)
        if live.keep is not None:
            self._drop(job.id, blocks, why)

    def _drop(self, request_id: str, blocks: list[int], why: str) -> None:
        """The connector hears of it first, so that no reader comes for pages used anew."""
        if self.hooks.dropped(request_id, why):
            self._retained.linger(request_id, blocks)
        else:
            self._scheduler.drop(blocks)
