"""Pages that a peer's reader is in the middle of are not taken by preemption."""

from pdgate.engine.cache.prefix import BlockPool
from pdgate.engine.job import EngineStep, Job, JobState
from pdgate.engine.scheduler import StepLimits, StepScheduler

BLOCK = 4


def job(name: str, tokens: int, *, pinned: bool = False) -> Job:
    prompt = [sum(name.encode()) * 1000 + position for position in range(tokens)]
    return Job(name, prompt, tokens, pinned=pinned)


def scheduler(blocks: int) -> StepScheduler:
    return StepScheduler(StepLimits(max_seqs=4, max_tokens=32), BlockPool(blocks, BLOCK))


def compute(made: StepScheduler, step: EngineStep) -> None:
    for chunk in step.chunks:
        made.advance(chunk)
        if chunk.completes:
            chunk.job.tokens.append(7)


def test_a_pinned_job_is_passed_over_even_if_it_is_the_youngest() -> None:
    made = scheduler(blocks=4)
    old, middle, young = job("a", 4), job("b", 4), job("c", 4, pinned=True)
    for one in (old, middle, young):
        made.add(one)
    compute(made, made.step())

    made.step()

    assert [one.state for one in (old, middle, young)] == [
        JobState.RUNNING,
        JobState.WAITING,
        JobState.RUNNING,
    ]
    assert made.evicted == []


def test_where_only_a_pinned_job_is_left_its_pages_are_handed_over_not_freed() -> None:
    """The core asks its reader before it uses them again."""
    made = scheduler(blocks=1)
    only = job("a", 4, pinned=True)
    made.add(only)
    compute(made, made.step())
    (block,) = only.blocks

    assert made.step().chunks == []

    assert made.evicted == [(only, [block])]
    assert only.state is JobState.WAITING
    assert not only.pinned
    made.drop([block])
