"""What the engine's scheduler does where "Request Scheduling Rules" speak.

Source: AWS Neuron documentation, "Disaggregated Inference": P runs one request at a time, and begins with another
while fewer than a batch transfer; D runs one whose KV is complete.
"""

import pytest

from pdgate.engine.cache.prefix import BlockPool
from pdgate.engine.job import Job
from pdgate.engine.scheduler import Limits, Scheduler

BATCH = 3


@pytest.mark.parametrize("transferring", range(BATCH + 1))
@pytest.mark.parametrize("running", [0, 1])
def test_a_prompt_begins_where_the_page_lets_it(running: int, transferring: int) -> None:
    made = Scheduler(Limits(BATCH, max_tokens=4), BlockPool(64, 4))
    for number in range(running):
        # Longer than a step, so that it is still running in the next one.
        made.add(prompt(f"earlier {number}"))
        made.step(0)
    made.add(new := prompt("new"))

    made.step(transferring)

    allowed = running == 0 and transferring < BATCH
    assert (new.state.value == "running") == allowed


def test_a_request_runs_when_its_kv_is_complete_and_not_before() -> None:
    made = Scheduler(Limits(BATCH, max_tokens=16), BlockPool(64, 4))
    made.add(one := Job("far", list(range(6)), 6, load=6))
    assert made.step(0).loads == [one]
    assert made.step(0).chunks == []

    made.loaded(one, ok=True)

    assert [chunk.job for chunk in made.step(0).chunks] == [one]


def prompt(name: str) -> Job:
    """Of six tokens that no other has, to be handed over."""
    tokens = [sum(name.encode()) * 1000 + position for position in range(6)]
    return Job(name, tokens, 6, goal=6, pinned=True)
