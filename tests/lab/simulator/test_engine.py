"""Simulated engines: when tokens come, in times that can be added up by hand."""

from dataclasses import dataclass, field, replace

import pytest

from pdgate.lab.simulator.agenda import Agenda
from pdgate.lab.simulator.engine import SimulatedEngine
from pdgate.lab.simulator.hardware import Hardware
from pdgate.lab.simulator.job import SimulatedJob
from pdgate.lab.simulator.usage import SimulatedUsage

BY_HAND = Hardware(
    overhead_seconds=0.0,
    weights_seconds=1.0,
    prompt_token_seconds=0.01,
    call_seconds=0.0,
    context_token_seconds=0.0,
    pair_seconds=0.0,
    step_tokens=1000,
    calls=10,
    kv_tokens=100_000,
    kv_bytes_per_token=1,
    link_bytes_per_second=1.0,
    link_seconds=0.0,
)
"""A step takes a second, or a hundredth of one for each prompt token that it reads."""


@dataclass
class Told:
    """What an engine told of one job, and when; its KV comes after `load_seconds`."""

    agenda: Agenda
    engine: SimulatedEngine
    load_seconds: float = 0.0
    first: float | None = None
    end: float | None = None
    broken: float | None = None
    missing: list[int] = field(default_factory=list)
    watched: bool = False
    steps: list[tuple[float, int]] = field(default_factory=list)

    def load(self, job: SimulatedJob, missing_tokens: int) -> None:
        self.missing.append(missing_tokens)
        self.agenda.at(self.agenda.now + self.load_seconds, lambda: self.engine.loaded(job))

    def first_token(self, job: SimulatedJob) -> None:
        assert self.first is None
        self.first = self.agenda.now
        if self.watched:
            self.engine.watch(job)

    def stepped(self, job: SimulatedJob, steps: int) -> None:
        self.steps.append((self.agenda.now, steps))

    def ended(self, job: SimulatedJob) -> None:
        assert self.end is None
        self.end = self.agenda.now

    def broke(self, job: SimulatedJob) -> None:
        self.broken = self.agenda.now


class Bench:
    def __init__(self, hardware: Hardware = BY_HAND) -> None:
        self.agenda = Agenda()
        self.engine = SimulatedEngine("e", hardware, self.agenda, SimulatedUsage(10.0))

    def read(
        self, at: float, prompt: int, answer: int, blocks: tuple[int, ...] = (), keeps: bool = False
    ) -> tuple[Told, SimulatedJob]:
        told = Told(self.agenda, self.engine)
        job = SimulatedJob(told, prompt, answer, blocks, keeps=keeps)
        self.agenda.at(at, lambda: self.engine.read(job))
        return told, job

    def take_over(
        self, at: float, prompt: int, answer: int, load_seconds: float = 0.0
    ) -> tuple[Told, SimulatedJob]:
        told = Told(self.agenda, self.engine, load_seconds)
        job = SimulatedJob(told, prompt, answer, ())
        self.agenda.at(at, lambda: self.engine.take_over(job))
        return told, job


def test_a_prompt_is_read_and_its_first_token_comes_with_the_last_step() -> None:
    bench = Bench()
    told, _ = bench.read(0, prompt=2500, answer=3)

    bench.agenda.run()

    # Chunks of 1000, 1000 and 500, then two steps.
    assert (told.first, told.end) == (25.0, 27.0)


def test_prompts_are_read_in_turn_and_share_steps() -> None:
    bench = Bench()
    one, _ = bench.read(0, prompt=500, answer=1)
    two, _ = bench.read(1, prompt=900, answer=1)
    three, _ = bench.read(2, prompt=600, answer=1)

    bench.agenda.run()

    # At 5 both others are there: 900 and 100 of 600, then the other 500.
    assert (one.end, two.end, three.end) == (5.0, 15.0, 20.0)


def test_a_call_that_was_handed_over_has_its_first_token_a_step_after_its_kv() -> None:
    bench = Bench()
    told, _ = bench.take_over(0, prompt=800, answer=4, load_seconds=2.5)

    bench.agenda.run()

    assert told.missing == [800]
    assert (told.first, told.end) == (3.5, 6.5)


def test_a_watched_call_is_told_of_steps_after_its_first_token() -> None:
    """Together while nothing comes between; and one by one while a prompt is read."""
    bench = Bench()
    told, _ = bench.take_over(0, prompt=100, answer=9)
    told.watched = True
    bench.read(3.5, prompt=1500, answer=1)

    bench.agenda.run()

    assert (told.first, told.end) == (1.0, 22.0)
    # 999 tokens of the prompt, as the answer has its own, and 501.
    assert told.steps == [(4.0, 3), (13.99, 1), (19.0, 1), (22.0, 3)]


def test_who_comes_while_a_step_runs_joins_with_the_next() -> None:
    bench = Bench()
    long, _ = bench.take_over(0, prompt=10, answer=100)
    late, _ = bench.take_over(20.4, prompt=10, answer=2)

    bench.agenda.run()

    # It gets room at 21, when a step ends, and has its KV within the next one, which ends at 22.
    assert (late.first, late.end) == (23.0, 24.0)
    assert long.end == 100.0


def test_steps_get_longer_as_contexts_grow() -> None:
    bench = Bench(replace(BY_HAND, context_token_seconds=0.001))
    told, _ = bench.take_over(0, prompt=100, answer=11)

    bench.agenda.run()

    # 11 steps with contexts of 100 to 110.
    assert told.end == pytest.approx(11 + 0.001 * sum(range(100, 111)))


def test_many_steps_at_once_end_when_steps_one_by_one_would() -> None:
    """Calls that come in between cut the runs of steps where they would have been cut anyway."""
    hardware = replace(BY_HAND, context_token_seconds=0.001, call_seconds=0.1)
    whole, cut = Bench(hardware), Bench(hardware)
    alone, _ = whole.take_over(0, prompt=100, answer=50)
    looked_at, _ = cut.take_over(0, prompt=100, answer=50)
    for number in range(200):
        # Nothing comes, but the engine has to look.
        cut.agenda.at(0.37 * number, cut.engine._look)

    whole.agenda.run()
    cut.agenda.run()

    assert alone.end is not None
    assert looked_at.end == pytest.approx(alone.end)


def test_reading_slows_streams_down_only_by_what_does_not_hide_behind_the_weights() -> None:
    bench = Bench()
    stream, _ = bench.take_over(0, prompt=10, answer=20)
    bench.read(4.5, prompt=50, answer=1)
    bench.read(9.5, prompt=300, answer=1)

    bench.agenda.run()

    assert stream.end == 22.0


def test_a_prompt_that_was_read_before_is_found() -> None:
    bench = Bench()
    bench.read(0, prompt=1100, answer=1, blocks=(1, 2))
    told, job = bench.read(100, prompt=1500, answer=1, blocks=(1, 2))

    bench.agenda.run()

    assert job.found == 1024
    assert told.end == pytest.approx(100 + 4.76)


def test_what_is_kept_for_a_peer_takes_room_until_it_is_fetched() -> None:
    bench = Bench(replace(BY_HAND, kv_tokens=1000))
    _, kept = bench.read(0, prompt=600, answer=1, keeps=True)
    told, _ = bench.read(1, prompt=600, answer=1)
    bench.agenda.at(50, lambda: bench.engine.let_go(kept))

    bench.agenda.run()

    assert told.end == 56.0


def test_without_memory_the_youngest_starts_again() -> None:
    bench = Bench(replace(BY_HAND, kv_tokens=1000))
    old, _ = bench.take_over(0, prompt=400, answer=300)
    young, _ = bench.take_over(0, prompt=400, answer=300)

    bench.agenda.run()

    # The old one is a step ahead, as it came to an idle engine. At 100 they have 100 and 99 tokens;
    # when it has ended, the young one reads 499, which gives the next, and has 200 to go.
    assert bench.engine.preemptions == 1
    assert (old.first, young.first) == (1.0, 2.0)
    assert old.end == 300.0
    assert young.end == pytest.approx(300 + 4.99 + 200)
    assert bench.engine.kv.held_tokens == 0


def test_no_more_calls_run_than_the_engine_takes() -> None:
    bench = Bench(replace(BY_HAND, calls=2))
    told = [bench.take_over(0, prompt=1, answer=10)[0] for _ in range(3)]

    bench.agenda.run()

    # The first comes to an idle engine, the second joins it a step later, and the third has its place.
    assert [one.end for one in told] == [10.0, 11.0, 21.0]


def test_all_that_a_dead_engine_had_breaks_and_its_cache_is_lost() -> None:
    bench = Bench()
    told = [
        bench.read(0, prompt=600, answer=1, blocks=(1,), keeps=True)[0],
        bench.take_over(7, prompt=10, answer=500)[0],
        bench.take_over(7, prompt=10, answer=500, load_seconds=90)[0],
        bench.read(8, prompt=5000, answer=1)[0],
    ]
    bench.agenda.at(20, bench.engine.die)
    bench.agenda.at(30, bench.engine.rise)
    again, _ = bench.read(40, prompt=600, answer=2, blocks=(1,))

    bench.agenda.run()

    assert [one.broken for one in told] == [20.0] * 4
    assert again.end == 47.0


def test_kv_that_is_not_wanted_any_more_gives_its_room_back() -> None:
    bench = Bench()
    told, job = bench.take_over(0, prompt=600, answer=5, load_seconds=10)
    bench.agenda.at(5, lambda: bench.engine.withdraw(job))

    bench.agenda.run()

    assert told.first is None
    assert bench.engine.kv.held_tokens == 0


def test_an_engine_was_at_work_as_long_as_its_steps_took() -> None:
    bench = Bench()
    bench.read(0, prompt=1500, answer=1)
    bench.read(40, prompt=500, answer=1)

    bench.agenda.run()

    assert bench.engine.usage.busy_seconds == 20.0
    assert bench.engine.usage.slices == [10.0, 5.0, 0.0, 0.0, 5.0]
