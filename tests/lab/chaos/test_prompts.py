"""Greedy answers that are compared are the same from any engine, however many calls it has at a time.

In another batch numbers are added up in another order: log-probabilities were seen to differ by 3e-5.
Where two tokens are nearer to each other than that, either may be chosen.
"""

import asyncio

import pytest

from pdgate.protocols.call import CHAT, COMPLETIONS
from tests.lab.chaos import test_black_hole as black_hole
from tests.lab.chaos import test_resumed_streams as resumed
from tests.lab.chaos.asking import MAX_TOKENS, PROMPTS, ahead, numbered
from tests.lab.chaos.topology import ALONE, Topology

SURE = 1e-3

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]


async def test_nowhere_in_the_answers_are_two_tokens_as_likely(running_topology: Topology) -> None:
    streams = range(black_hole.STREAMS + black_hole.LATE)
    short = [(prompt, MAX_TOKENS) for prompt in PROMPTS]
    asked = [
        *((COMPLETIONS, {"prompt": prompt, "max_tokens": most}) for prompt, most in short),
        *(
            (COMPLETIONS, {"prompt": numbered(number), "max_tokens": black_hole.TOKENS})
            for number in streams
        ),
        *(
            (path, {**resumed.question(ALONE, path), "stream": False, "stream_options": None})
            for path in (CHAT, COMPLETIONS)
        ),
    ]
    http, url = running_topology.http, running_topology.alone
    async with asyncio.TaskGroup() as group:
        asking = {
            str(body): group.create_task(ahead(http, url, path, {**body, "model": ALONE}))
            for path, body in asked
        }

    assert {body: task.result() for body, task in asking.items() if task.result() < SURE} == {}
