"""When a worker begins to prefill, to load and to decode: pure, on the scheduler alone.

prefill   one prompt at a time; running + being handed over <= batch
decode    runs what has its KV; running + loading + loaded <= batch; a load is in no step's way
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from pdgate.engine.cache.prefix import BlockPool
from pdgate.engine.job import EngineStep, Job, JobState
from pdgate.engine.scheduler import StepLimits, StepScheduler

BLOCK = 4
BATCH = 3


def scheduler(blocks: int = 64, tokens: int = 64) -> StepScheduler:
    return StepScheduler(StepLimits(BATCH, tokens), BlockPool(blocks, BLOCK))


def job(name: str, tokens: int = 6, *, hands_over: bool = False, load: int | None = None) -> Job:
    prompt = [sum(name.encode()) * 1000 + position for position in range(tokens)]
    goal = tokens if hands_over else None
    return Job(name, prompt, tokens, goal, load=load, pinned=hands_over)


def names(step: EngineStep) -> list[str]:
    return [chunk.job.id for chunk in step.chunks]


def compute(made: StepScheduler, step: EngineStep) -> None:
    for chunk in step.chunks:
        made.advance(chunk)
        if chunk.completes and chunk.job.goal is None:
            chunk.job.tokens.append(7)


def test_prompts_that_are_handed_over_are_computed_one_after_the_other() -> None:
    """Two at once would both be late."""
    made = scheduler(tokens=4)
    first, second = job("a", hands_over=True), job("b", hands_over=True)
    made.add(first)
    made.add(second)

    order = []
    for _ in range(4):
        step = made.step()
        order += names(step)
        compute(made, step)
        if step.chunks[0].completes:
            made.drop(made.finish(step.chunks[0].job))

    assert order == ["a", "a", "b", "b"]


def test_no_prompt_begins_while_a_batch_of_them_waits_for_readers() -> None:
    made = scheduler()
    made.add(one := job("a", hands_over=True))

    assert names(made.step(handing_over=BATCH)) == []
    assert one.state is JobState.WAITING
    assert names(made.step(handing_over=BATCH - 1)) == ["a"]


def test_running_answers_count_as_part_of_that_batch() -> None:
    made = scheduler()
    made.add(job("near"))
    compute(made, made.step())
    made.add(job("far", hands_over=True))

    assert names(made.step(handing_over=BATCH - 1)) == ["near"]
    assert names(made.step(handing_over=BATCH - 2)) == ["near", "far"]


def test_who_hands_nothing_over_does_not_wait_behind_those_who_do() -> None:
    made = scheduler()
    for one in (job("a", hands_over=True), job("b", hands_over=True), job("near")):
        made.add(one)

    assert names(made.step()) == ["a", "near"]


def test_a_load_that_is_under_way_leaves_the_step_to_others() -> None:
    made = scheduler()
    made.add(job("far", load=5))
    made.add(job("near"))

    step = made.step()

    assert [one.id for one in step.loads] == ["far"]
    assert names(step) == ["near"]
    compute(made, step)
    assert names(made.step()) == ["near"]


def test_those_that_run_and_those_that_load_are_one_batch_together() -> None:
    made = scheduler()
    far = [job(name, load=5) for name in "abcd"]
    for one in far:
        made.add(one)

    assert made.step().loads == far[:BATCH]
    made.loaded(far[0], ok=True)
    # It has its KV, and now its turn as well; the place is taken until it ends.
    for _ in range(3):
        step = made.step()
        assert (names(step), step.loads) == (["a"], [])
        compute(made, step)
    made.drop(made.finish(far[0]))
    assert made.step().loads == far[BATCH:]


def test_a_prompt_begins_in_a_place_that_no_load_has() -> None:
    made = scheduler()
    far = [job(name, load=5) for name in "abc"]
    for one in far:
        made.add(one)
    made.step()
    made.add(job("near"))

    assert names(made.step()) == []
    made.drop(made.strand(far[0]))
    made.abort(far[0])
    assert names(made.step()) == ["near"]


def test_a_place_goes_to_that_which_came_first() -> None:
    """A stream of loads does not keep a prompt out, and prompts do not keep a load out."""
    made = scheduler()
    order = ["far 1", "near 1", "far 2", "near 2", "far 3"]
    for name in order:
        made.add(job(name, load=5 if name.startswith("far") else None))
    began: list[str] = []
    while len(began) < len(order):
        step = made.step()
        new = [one.id for one in step.loads]
        new += [chunk.job.id for chunk in step.chunks if chunk.start == 0]
        began += sorted(new, key=order.index)
        compute(made, step)
        if new:
            continue
        oldest = next(iter(made.loading.values()), None) or made.running[0]
        if oldest.id in made.loading:
            made.abort(oldest)
            made.loaded(oldest, ok=False)
        else:
            made.drop(made.finish(oldest))

    assert began == order


def test_two_engines_that_prefill_for_each_other_do_not_wait_in_a_circle() -> None:
    """All places are taken by loads whose KV the other will only have computed after ours."""
    made = scheduler()
    for name in "abc":
        made.add(job(name, load=5))
    made.step()
    made.add(job("for the other", hands_over=True))

    assert names(made.step()) == ["for the other"]


def test_loads_begin_only_with_pages_for_all_they_need() -> None:
    made = scheduler(blocks=3)
    small, large = job("a", 4, load=3), job("b", 12, load=11)
    made.add(small)
    made.add(large)

    assert made.step().loads == [small]


def test_a_stranded_load_holds_pages_but_no_place() -> None:
    """A peer that is silent for ever must not keep others' loads out."""
    made = scheduler()
    far = [job(name, load=5) for name in "abcd"]
    for one in far:
        made.add(one)
    made.step()

    pages = [made.strand(one) for one in far[:BATCH]]
    for one in far[:BATCH]:
        made.abort(one)

    assert made.step().loads == far[BATCH:]
    held = {block for blocks in pages for block in blocks}
    assert len(held) == BATCH * 2
    assert held.isdisjoint(far[BATCH].blocks)


def test_a_stranded_load_that_is_computed_here_instead_keeps_its_place() -> None:
    made = scheduler()
    far = [job(name, load=5) for name in "abcd"]
    for one in far:
        made.add(one)
    made.step()

    pages = [made.strand(one) for one in far[:BATCH]]
    step = made.step()

    assert (sorted(names(step)), step.loads) == (["a", "b", "c"], [])
    held = {block for blocks in pages for block in blocks}
    assert held.isdisjoint(block for one in far[:BATCH] for block in one.blocks)


Kind = st.sampled_from(["near", "far", "hands over"])
Fate = st.sampled_from(["arrives", "fails", "is stranded"])


@settings(max_examples=150)
@given(
    st.lists(st.tuples(Kind, Fate, st.integers(1, 20), st.integers(0, 5)), max_size=8),
    st.integers(12, 24),
)
def test_the_rules_hold_at_every_step_and_everybody_gets_a_turn(
    asked: list[tuple[str, str, int, int]], blocks: int
) -> None:
    """`fate` and the number of steps it takes are those of a load, or of what is handed over."""
    made = scheduler(blocks=blocks, tokens=8)
    pool = made._pool.allocator
    left: dict[str, tuple[str, int]] = {}
    jobs = []
    for number, (kind, fate, tokens, steps) in enumerate(asked):
        far = tokens - 1 if kind == "far" and tokens > 1 else None
        jobs.append(job(f"j{number}", tokens, hands_over=kind == "hands over", load=far))
        left[f"j{number}"] = (fate, steps)
        made.add(jobs[-1])
    stranded: list[list[int]] = []
    handing_over: dict[str, list[int]] = {}

    for _ in range(400):
        loading = dict(made.loading)
        for name, one in loading.items():
            fate, steps = left[name]
            left[name] = (fate, steps - 1)
            if steps <= 0 and fate == "is stranded":
                stranded.append(made.strand(one))
            elif steps <= 0:
                made.loaded(one, ok=fate == "arrives")
        for name in list(handing_over):
            fate, steps = left[name]
            left[name] = (fate, steps - 1)
            if steps <= 0:
                made.drop(handing_over.pop(name))

        step = made.step(len(handing_over))

        began = [c.job for c in step.chunks if c.job.pinned and c.start == 0]
        assert sum(one.pinned for one in made.running) <= 1
        # Those that got their turn before it; who hands nothing over may still come after.
        assert all(made.running.index(one) + len(handing_over) < BATCH for one in began)
        assert not any(chunk.job.id in made.loading for chunk in step.chunks)
        near_or_far = [one for one in (*made.running, *made.waiting) if not one.pinned]
        placed = [one for one in near_or_far if one.blocks] + list(made.loading.values())
        assert len(placed) <= BATCH
        compute(made, step)
        for chunk in step.chunks:
            if chunk.completes or len(chunk.job.tokens) > chunk.job.prompt_tokens:
                pages = made.finish(chunk.job)
                if chunk.job.pinned:
                    handing_over[chunk.job.id] = pages
                else:
                    made.drop(pages)
        for evicted, pages in made.evicted:
            assert not evicted.pinned
            made.drop(pages)
        made.evicted = []
        if stranded and not step.chunks and not made.loading:
            made.drop(stranded.pop())
        if all(one.state is JobState.OVER for one in jobs) and not handing_over and not stranded:
            break

    assert all(one.state is JobState.OVER for one in jobs)
    assert pool.used == 0
    assert pool.free == blocks
