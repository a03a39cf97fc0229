"""The scheduler without a model: steps are carried out by marking chunks as computed."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pdgate.engine.cache.prefix import BlockPool
from pdgate.engine.job import EngineStep, Job, JobState
from pdgate.engine.scheduler import StepLimits, StepScheduler

BLOCK = 4
SAMPLED = 7


def job(name: str, tokens: int, load: int | None = None, goal: int | None = None) -> Job:
    """Prompts differ by name, so that they share no prefix."""
    prompt = [sum(name.encode()) * 1000 + position for position in range(tokens)]
    return Job(name, prompt, tokens, goal=goal, load=load)


def scheduler(blocks: int = 16, seqs: int = 4, tokens: int = 8) -> StepScheduler:
    return StepScheduler(StepLimits(seqs, tokens), BlockPool(blocks, BLOCK))


def compute(made: StepScheduler, step: EngineStep) -> None:
    for chunk in step.chunks:
        made.advance(chunk)
        if chunk.completes and chunk.job.goal is None:
            chunk.job.tokens.append(SAMPLED)


def seen(step: EngineStep) -> dict[str, int]:
    return {chunk.job.id: chunk.count for chunk in step.chunks}


def test_decodes_come_first_and_prompts_share_the_rest() -> None:
    made = scheduler()
    made.add(job("a", 3))
    compute(made, made.step())
    made.add(job("b", 20))

    assert seen(made.step()) == {"a": 1, "b": 7}


def test_a_long_prompt_is_cut_into_chunks() -> None:
    made = scheduler()
    made.add(job("a", 20))

    counts = []
    for _ in range(3):
        step = made.step()
        counts.append(seen(step)["a"])
        compute(made, step)

    assert counts == [8, 8, 4]


def test_what_is_left_of_prompts_is_queued_and_answers_and_loads_are_not() -> None:
    made = scheduler()
    for one in (job("answering", 2), job("long", 20), job("far", 12, load=11)):
        made.add(one)
    assert made.queued_tokens == 2 + 20 + 1

    compute(made, made.step())

    assert made.queued_tokens == 20 - 6


def test_no_more_run_than_allowed() -> None:
    made = scheduler(seqs=2)
    for name in "abc":
        made.add(job(name, 2))

    assert seen(made.step()) == {"a": 2, "b": 2}


def test_the_youngest_gives_its_pages_up_and_starts_again() -> None:
    made = scheduler(blocks=4, tokens=32)
    old, young = job("a", 8), job("b", 8)
    made.add(old)
    made.add(young)
    compute(made, made.step())

    step = made.step()

    assert seen(step) == {"a": 1}
    assert made.preemptions == 1
    assert young.state is JobState.WAITING
    assert young.computed == 0


def test_a_load_gets_pages_but_no_tokens_of_the_step() -> None:
    made = scheduler()
    far, near = job("far", 12, load=11), job("near", 4)
    made.add(far)
    made.add(near)

    step = made.step()

    assert step.loads == [far]
    assert seen(step) == {"near": 4}
    assert len(far.blocks) == 3


def test_a_loaded_job_computes_its_last_token_only() -> None:
    made = scheduler()
    far = job("far", 12, load=12)
    made.add(far)
    made.step()

    made.loaded(far, ok=True)

    assert seen(made.step()) == {"far": 1}


def test_a_failed_load_computes_everything() -> None:
    made = scheduler(tokens=32)
    far = job("far", 12, load=11)
    made.add(far)
    made.step()

    made.loaded(far, ok=False)

    assert seen(made.step()) == {"far": 12}


def test_pages_of_an_aborted_load_wait_for_its_end() -> None:
    """Bytes may still land in them."""
    made = scheduler()
    pool = made._pool.allocator
    far = job("far", 12, load=11)
    made.add(far)
    made.step()

    made.abort(far)
    assert pool.used == 3

    made.loaded(far, ok=True)
    assert pool.used == 0


def test_calls_of_different_salts_share_no_prefix() -> None:
    made = scheduler(tokens=16)
    hits = []
    for name, salt in (("first", "mine"), ("second", "yours"), ("third", ""), ("fourth", "mine")):
        one = job(name, 0)
        one.tokens, one.prompt_tokens, one.salt = list(range(10)), 10, salt
        made.add(one)
        compute(made, made.step())
        hits.append(one.hits)
        made.abort(one)

    assert hits == [0, 0, 0, 8]


def test_a_prefix_is_computed_once() -> None:
    made = scheduler(tokens=32)
    first, second = job("a", 12), job("a", 12)
    second.id = "again"
    made.add(first)
    compute(made, made.step())
    made.drop(made.finish(first))
    made.add(second)

    assert seen(made.step()) == {"again": 4}
    assert second.hits == 8


def test_the_younger_of_two_loaded_jobs_yields_its_pages() -> None:
    """They hold all pages between them, and neither could go on without more."""
    made = scheduler(blocks=4, seqs=2, tokens=32)
    first, second = job("a", 8, load=7), job("b", 8, load=7)
    for far in (first, second):
        made.add(far)
    made.step()
    made.loaded(first, ok=True)
    made.loaded(second, ok=True)

    for _ in range(4):
        compute(made, made.step())

    assert len(first.tokens) == 12
    assert second.state is JobState.WAITING


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 24),  # prompt tokens
            st.booleans(),  # loaded from a peer
            st.integers(1, 12),  # tokens to sample
            st.sampled_from([None, None, None, 0, 1, 2, 3]),  # step of its abort
            st.booleans(),  # its load succeeds
        ),
        max_size=8,
    ),
    st.integers(9, 20),
)
def test_everything_ends_and_every_page_comes_back(
    asked: list[tuple[int, bool, int, int | None, bool]], blocks: int
) -> None:
    """Whatever the mix: no deadlock, no page lost, each job computed to its end in order."""
    made = scheduler(blocks=blocks, seqs=3, tokens=6)
    pool = made._pool.allocator
    jobs = {}
    for number, (tokens, far, wanted, abort_at, ok) in enumerate(asked):
        one = job(chr(ord("a") + number), tokens, load=tokens - 1 if far else None)
        jobs[one.id] = (one, wanted, abort_at, ok)
        made.add(one)
    for round_number in range(800):
        for one, _, abort_at, _ in jobs.values():
            if abort_at == round_number:
                made.abort(one)
        for loading in list(made.loading.values()):
            made.loaded(loading, jobs[loading.id][3])
        step = made.step()
        for chunk in step.chunks:
            assert chunk.start == chunk.job.computed
            assert len(chunk.job.blocks) * BLOCK >= chunk.end
        assert sum(chunk.count for chunk in step.chunks) <= 6
        compute(made, step)
        for chunk in step.chunks:
            one, wanted, _, _ = jobs[chunk.job.id]
            if len(one.tokens) >= one.prompt_tokens + wanted:
                made.drop(made.finish(one))
        assert pool.free + pool.used == blocks
        if all(one.state is JobState.OVER for one, *_ in jobs.values()):
            break

    assert all(one.state is JobState.OVER for one, *_ in jobs.values())
    assert pool.used == 0
