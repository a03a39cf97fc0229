"""A look at each target that takes a second; `make fuzz` takes longer ones.

What a fuzzer has found becomes a seed of its target.
"""

import gc
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from tests.fuzzing import bodies, client_bytes, events, upstream_answers


@pytest.fixture(scope="module", autouse=True)
def no_garbage_of_others() -> None:
    """What earlier tests have left in this process would be logged while a target watches the log."""
    gc.collect()


TARGETS = (upstream_answers, client_bytes, bodies, events)
EXAMPLES = 150

targets = pytest.mark.parametrize(
    "target", [pytest.param(t, id=t.__name__.rpartition(".")[2]) for t in TARGETS]
)


@targets
def test_a_seed_is_taken_whole_and_wherever_it_ends(target: ModuleType) -> None:
    for seed in target.SEEDS:
        # Long ones are of one kind all along.
        for end in {*range(min(len(seed), 300)), len(seed)}:
            target.check(seed[:end])


@targets
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(data=some.data())
def test_changed_seeds_break_nothing(target: ModuleType, data: Any) -> None:
    target.check(data.draw(changed(target.SEEDS)))


@some.composite
def changed(draw: Any, seeds: Sequence[bytes]) -> bytes:
    """A seed with up to four changes: a piece cut, doubled, or another's or any put in."""
    found: bytes = draw(some.sampled_from(seeds))
    for _ in range(draw(some.integers(0, 4))):
        start = draw(some.integers(0, len(found)))
        end = draw(some.integers(start, min(len(found), start + 40)))
        put = draw(
            some.one_of(
                some.just(b""),
                some.just(found[start:end] * 2),
                some.binary(max_size=8),
                some.sampled_from(seeds).map(lambda seed: seed[:60]),
            )
        )
        found = found[:start] + put + found[end:]
    return found
