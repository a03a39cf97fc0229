"""How long callers would wait at an engine, before it has shown how fast it is."""

from pdgate.scheduling.latency.model import reading
from pdgate.scheduling.neighbours import SharedEndpoint
from pdgate.scheduling.reservation import Reservation
from tests.support.fleets import fleet


def test_of_what_is_to_be_read_a_prompt_takes_its_share() -> None:
    endpoint = fleet(1)[0]
    endpoint.unread_tokens = 30_000

    assert reading(endpoint, 10_000) == (4.0, 1.0)


def test_where_nothing_is_to_be_read_nothing_is_waited_for() -> None:
    assert reading(fleet(1)[0], 0) == (0.0, 0.0)


def test_the_prompts_of_others_are_as_long_as_ours() -> None:
    """So that those of two processes take twice as long as those of one."""
    alone, shared = fleet(2)
    for one in (alone, shared):
        for _ in range(200):
            one.latency.has_read(1000, 1000**2, 0.2, None)
            one.latency.has_read(10_000, 10_000**2, 11.0, None)
    Reservation(alone, 1000, reads=True)
    Reservation(alone, 1000, reads=True)
    Reservation(shared, 1000, reads=True)
    others = SharedEndpoint.of(shared)
    others.take_in(shared, others.near, 1, 1000, 1000, 0)

    assert reading(shared, 1000) == reading(alone, 1000)
    assert reading(shared, 1000)[0] > 0.1
