"""Among those who ask again and again, whoever has waited for the longest is served first."""

from pdgate.engine.neuron.turns import STALE_SECONDS, NeuronTurns


def test_who_asks_alone_is_served() -> None:
    assert NeuronTurns().ask("a", places=1, now=0)


def test_without_a_place_nobody_is_served() -> None:
    assert not NeuronTurns().ask("a", places=0, now=0)


def test_a_newcomer_does_not_overtake() -> None:
    """Though it asks at the very moment at which a place is free."""
    turns = NeuronTurns()
    assert not turns.ask("old", places=0, now=0.0)

    assert not turns.ask("new", places=1, now=0.1)
    assert turns.ask("old", places=1, now=0.2)
    assert turns.ask("new", places=1, now=0.3)


def test_those_who_wait_are_served_in_the_order_in_which_they_came() -> None:
    turns = NeuronTurns()
    names = [f"n{number}" for number in range(20)]
    for name in names:
        assert not turns.ask(name, places=0, now=0.0)

    served = []
    for _ in names:
        # All ask, the youngest first, and one place is free.
        served += [name for name in reversed(names) if name not in served
                   and turns.ask(name, places=1, now=0.5)]  # fmt: skip
    assert served == names


def test_as_many_are_served_as_there_are_places() -> None:
    turns = NeuronTurns()
    for name in "abc":
        turns.ask(name, places=0, now=0.0)

    assert not turns.ask("c", places=2, now=0.1)
    assert turns.ask("b", places=2, now=0.1)
    assert turns.ask("a", places=1, now=0.1)


def test_who_stopped_asking_holds_up_nobody() -> None:
    """A decode engine that died keeps no place."""
    turns = NeuronTurns()
    turns.ask("dead", places=0, now=0.0)
    turns.ask("alive", places=0, now=0.5)

    assert not turns.ask("alive", places=1, now=STALE_SECONDS)
    assert turns.ask("alive", places=1, now=STALE_SECONDS + 0.1)


def test_who_has_been_served_is_forgotten() -> None:
    turns = NeuronTurns()
    turns.ask("a", places=1, now=0.0)
    turns.ask("b", places=0, now=0.0)
    turns.leave("b")

    assert len(turns) == 0
