"""KV on its way: how long it takes, and who waits for whom."""

from dataclasses import replace
from functools import partial

from pdgate.lab.simulator.agenda import Agenda
from pdgate.lab.simulator.hardware import PRESETS
from pdgate.lab.simulator.links import SimulatedLinks

HARDWARE = replace(
    PRESETS["8b"], kv_bytes_per_token=10, link_bytes_per_second=100.0, link_seconds=0.5
)


def ends(*moves: tuple[str, str, int]) -> list[float]:
    """When each of them is over, all asked for at once."""
    agenda = Agenda()
    links = SimulatedLinks(agenda, HARDWARE)
    seen: list[float] = [0.0] * len(moves)

    def done(number: int) -> None:
        seen[number] = agenda.now

    for number, (sender, receiver, tokens) in enumerate(moves):
        links.move(sender, receiver, tokens, partial(done, number))
    agenda.run()
    return seen


def test_it_takes_as_long_as_its_bytes() -> None:
    assert ends(("p0", "d0", 20)) == [2.5]


def test_an_engine_sends_to_one_at_a_time() -> None:
    assert ends(("p0", "d0", 20), ("p0", "d1", 10)) == [2.5, 4.0]


def test_an_engine_receives_from_one_at_a_time() -> None:
    assert ends(("p0", "d0", 20), ("p1", "d0", 10)) == [2.5, 4.0]


def test_others_move_meanwhile_and_so_does_the_other_way() -> None:
    assert ends(("a", "b", 20), ("c", "d", 10), ("b", "a", 10)) == [2.5, 1.5, 1.5]
