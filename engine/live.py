"""A request that is not over, with all that belongs to it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pdgate.engine.cache.prefix import salt_of
from pdgate.engine.connector import Compute, Keep, Load, Pages, Plan
from pdgate.engine.generation import Generation
from pdgate.engine.job import Job, JobState, StepChunk
from pdgate.engine.layout import Layout
from pdgate.engine.model.llama import TokenSpan, WantedLogits
from pdgate.engine.model.load import LoadedModel
from pdgate.engine.request import Output, Request, Sampling

# What a NIXL prefill says of its own cache hits; decode repeats it to the client.
CACHED_BY_PEER: Final = "remote_prefill_cached_tokens"


@dataclass(slots=True)
class LiveRequest:
    """
    Attributes:
        generation: None for a prefill that a peer asked for: it has no client.
        cached_by_peer: Prompt tokens that the prefill engine had cached, as it said.
        handed: The first token of the answer, if prefill sampled it.
        chosen: Its connector has it computed here, though a peer was to.
        cached: Prompt tokens that were not computed for this request; None until the whole
            prompt is in the pages.
        state: Of the last token that is kept, for the peer that reads the pages.
    """

    job: Job
    generation: Generation | None = None
    load: Load | None = None
    keep: Keep | None = None
    cached_by_peer: int = 0
    handed: int | None = None
    chosen: bool = False
    cached: int | None = None
    state: bytes = b""

    @property
    def load_never_started(self) -> bool:
        return self.job.load is not None and self.job.state is JobState.WAITING


def begin(request: Request, plan: Plan, model: LoadedModel) -> LiveRequest:
    """A request as it comes in, with what its connector planned."""
    prompt = request.prompt
    keep = plan.keep if isinstance(plan, Load) else plan if isinstance(plan, Keep) else None
    if keep is not None and keep.max_tokens is not None:
        request = replace(request, sampling=_shorter(request.sampling, keep.max_tokens))
    job = Job(
        request.id,
        list(prompt),
        len(prompt),
        goal=len(prompt) if request.sampling.max_tokens == 0 else None,
        load=plan.tokens if isinstance(plan, Load) else None,
        every_logit=request.sampling.prompt_logprobs is not None,
        # What decode keeps is read when it is over, and not before.
        pinned=isinstance(plan, Keep) or (isinstance(plan, Load) and plan.optional),
        salt=salt_of(request.body),
    )
    return LiveRequest(
        job,
        Generation(request, model.tokenizer, model.positions),
        load=plan if isinstance(plan, Load) else None,
        keep=keep,
        cached_by_peer=_cached_by_peer(request.params),
        chosen=isinstance(plan, Compute),
    )


def _shorter(sampling: Sampling, most: int) -> Sampling:
    return replace(
        sampling,
        max_tokens=min(sampling.max_tokens, most),
        min_tokens=min(sampling.min_tokens, most),
    )


def _cached_by_peer(params: Mapping[str, Any] | None) -> int:
    count = (params or {}).get(CACHED_BY_PEER)
    return count if isinstance(count, int) and count > 0 else 0


def strange_token(live: LiveRequest, model: LoadedModel) -> str | None:
    """What is wrong with the token that prefill sampled, if it sampled one."""
    if live.handed is None or 0 <= live.handed < model.config.vocab_size:
        return None
    return f"prefill sampled token {live.handed}, which this model does not have"


def take_handed(live: LiveRequest) -> Output | None:
    """What prefill's first token makes of the answer; None if we have to sample it."""
    if live.generation is None or live.job.goal is not None or live.handed is None:
        return None
    output = live.generation.adopt(live.handed)
    if output is not None:
        live.job.tokens.append(live.handed)
    return output


def span(chunk: StepChunk) -> TokenSpan:
    """What the model has to compute for a chunk."""
    job = chunk.job
    tokens = job.tokens[chunk.start : chunk.end]
    if chunk.guesses:
        return TokenSpan([*tokens, *chunk.guesses], chunk.start, job.blocks, WantedLogits.ALL)
    if job.every_logit and chunk.start < job.prompt_tokens:
        wanted = WantedLogits.ALL
    elif chunk.completes and job.goal is None:
        wanted = WantedLogits.LAST
    else:
        wanted = WantedLogits.NONE
    return TokenSpan(tokens, chunk.start, job.blocks, wanted)


def pages_to_fill(job: Job, load: Load, layout: Layout) -> tuple[Pages, int]:
    """Pages of a load that starts, and how many tokens are there already.

    For a request that ended before it got pages, nothing is left to load: its peer learns
    through the same call that it may let go.
    """
    held = job.blocks[: layout.blocks_for(load.tokens)]
    skip = load.tokens if job.state is JobState.DOOMED else min(job.hits, load.tokens)
    return Pages(tuple(held), load.tokens, job.hits), skip


def pages_to_keep(job: Job, blocks: list[int], layout: Layout, state: bytes) -> Pages:
    held = blocks[: layout.blocks_for(job.computed)]
    return Pages(tuple(held), job.computed, min(job.hits, job.prompt_tokens), state)
