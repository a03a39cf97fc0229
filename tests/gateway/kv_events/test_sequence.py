"""What was missed is found out and healed, or all is forgotten; never is a gap passed over."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.gateway.kv_events import sequence
from pdgate.gateway.kv_events.sequence import Sequence, SequenceCounts


class Engine:
    """Publishes, forgets the oldest, repeats what is asked for; and listens for the test."""

    def __init__(self, remembers: int = 100, *, replays: bool = True) -> None:
        self.buffer: deque[tuple[int, bytes]] = deque(maxlen=remembers)
        self.counts = SequenceCounts()
        self.known: list[bytes] = []
        self.asked: list[int] = []
        self.sequence = Sequence(self, self.counts, replays=replays)
        self._life, self._next = 0, 0

    def publishes(self, *, arrives: bool = True) -> bytes:
        payload = f"life {self._life} batch {self._next}".encode()
        self.buffer.append((self._next, payload))
        if arrives:
            self.sequence.live(self._next, payload)
        self._next += 1
        return payload

    def restarts(self) -> None:
        self.buffer.clear()
        self._life, self._next = self._life + 1, 0
        # Its connections end with it.
        self.sequence.doubt()

    def answers(self) -> None:
        """All replays that are asked for."""
        while self.sequence.replaying:
            first = self.asked[-1]
            for number, payload in [one for one in self.buffer if one[0] >= first]:
                self.sequence.replayed(number, payload)
            self.sequence.replay_over()

    def is_silent(self) -> None:
        while self.sequence.replaying:
            self.sequence.replay_failed()

    def taken(self, payload: bytes) -> None:
        self.known.append(payload)

    def forget(self) -> None:
        self.known.clear()

    def ask(self, first: int) -> None:
        self.asked.append(first)


def test_what_happened_before_we_came_is_replayed() -> None:
    engine = Engine()
    before = [engine.publishes(arrives=False) for _ in range(3)]
    engine.sequence.start()
    during = engine.publishes()

    engine.answers()

    assert engine.known == [*before, during]
    assert engine.asked == [0]


def test_a_gap_is_healed_by_a_replay() -> None:
    engine = Engine()
    sent = [engine.publishes(), engine.publishes(arrives=False), engine.publishes()]
    assert engine.known == sent[:1], "what follows a gap waits for what is missing"

    engine.answers()

    assert engine.known == sent
    assert (engine.counts.gaps, engine.counts.resyncs, engine.counts.restarts) == (1, 0, 0)


def test_what_is_too_old_to_be_replayed_makes_us_forget() -> None:
    engine = Engine(remembers=2)
    engine.publishes()
    for _ in range(3):
        engine.publishes(arrives=False)
    engine.publishes()

    engine.answers()

    assert engine.known == [b"life 0 batch 3", b"life 0 batch 4"]
    assert (engine.counts.resyncs, engine.counts.restarts) == (1, 0)


def test_a_restarted_engine_is_another_one() -> None:
    engine = Engine()
    for _ in range(3):
        engine.publishes()
    engine.restarts()

    sent = engine.publishes()
    engine.answers()

    assert engine.known == [sent]
    assert engine.counts.restarts == 1


def test_a_restarted_engine_that_has_overtaken_us_is_another_one() -> None:
    """Its numbers would seem to go on, with a gap."""
    engine = Engine()
    engine.publishes()
    engine.restarts()
    sent = [engine.publishes(arrives=False) for _ in range(3)]
    sent.append(engine.publishes())

    engine.answers()

    assert engine.known == sent
    assert engine.counts.restarts == 1


def test_a_restarted_engine_that_goes_on_where_we_are_is_another_one() -> None:
    """Only that the connection was lost tells."""
    engine = Engine()
    engine.publishes()
    engine.restarts()
    sent = [engine.publishes(arrives=False), engine.publishes()]

    engine.answers()

    assert engine.known == sent
    assert (engine.counts.gaps, engine.counts.restarts) == (0, 1)


def test_a_lost_connection_to_the_same_engine_costs_nothing() -> None:
    engine = Engine()
    sent = [engine.publishes()]
    engine.sequence.doubt()
    sent.append(engine.publishes())

    engine.answers()

    assert engine.known == sent
    assert (engine.counts.resyncs, engine.counts.restarts) == (0, 0)


def test_a_restart_without_a_word_is_found_by_asking() -> None:
    engine = Engine()
    engine.publishes()
    engine.publishes()
    engine.restarts()
    sent = engine.publishes(arrives=False)

    engine.sequence.check()
    engine.answers()

    assert engine.known == [sent]


def test_asking_in_vain_changes_nothing() -> None:
    engine = Engine()
    sent = [engine.publishes(), engine.publishes()]

    engine.sequence.check()
    engine.answers()

    assert engine.known == sent
    assert (engine.counts.gaps, engine.counts.resyncs, engine.counts.restarts) == (0, 0, 0)


def test_without_replays_every_gap_makes_us_forget() -> None:
    engine = Engine(replays=False)
    engine.sequence.start()
    engine.publishes()
    engine.publishes(arrives=False)
    last = engine.publishes()

    assert engine.known == [last]
    assert (engine.counts.gaps, engine.counts.resyncs, engine.asked) == (1, 1, [])


def test_without_replays_a_lost_connection_makes_us_forget() -> None:
    engine = Engine(replays=False)
    engine.publishes()
    engine.restarts()
    assert not engine.known

    sent = engine.publishes()

    assert engine.known == [sent]


def test_a_replay_that_never_comes_is_a_resync() -> None:
    engine = Engine()
    engine.publishes()
    engine.publishes(arrives=False)
    last = engine.publishes()

    engine.is_silent()

    assert engine.known == [last]
    assert engine.counts.resyncs == 1


def test_a_replay_that_is_cut_short_is_asked_for_again_from_there() -> None:
    engine = Engine()
    sent = [engine.publishes(arrives=False) for _ in range(4)]
    engine.sequence.start()
    for number, payload in list(engine.buffer)[:2]:
        engine.sequence.replayed(number, payload)
    engine.sequence.replay_failed()

    assert engine.asked == [0, 1]
    engine.answers()
    assert engine.known == sent


def test_a_replay_with_a_hole_is_asked_for_again() -> None:
    engine = Engine()
    sent = [engine.publishes(arrives=False) for _ in range(4)]
    engine.sequence.start()
    for number in (0, 1, 3):
        engine.sequence.replayed(number, sent[number])
    engine.sequence.replay_over()

    assert engine.known == sent[:2]
    engine.answers()
    assert engine.known == sent


DEEDS = st.lists(st.sampled_from(["arrives", "is lost", "answers", "silence", "restarts"]))


@given(DEEDS, st.integers(1, 6), st.booleans())
def test_what_is_known_is_always_an_unbroken_stretch_of_one_life(
    deeds: list[str], remembers: int, replays: bool
) -> None:
    engine = Engine(remembers, replays=replays)
    engine.sequence.start()
    for deed in deeds:
        match deed:
            case "arrives":
                engine.publishes()
            case "is lost":
                engine.publishes(arrives=False)
            case "answers":
                engine.answers()
            case "silence":
                engine.is_silent()
            case _:
                engine.restarts()
        lives = {payload.split()[1] for payload in engine.known}
        numbers = [int(payload.split()[3]) for payload in engine.known]
        assert len(lives) <= 1
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True

    engine.sequence.check()
    engine.answers()
    if replays:
        last = [payload for _, payload in engine.buffer][-1:]
        assert engine.known[-1:] == last, "and it reaches to the present"


def test_what_comes_during_a_replay_is_kept_as_far_as_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In bytes, too: the oldest is asked for again."""
    monkeypatch.setattr(sequence, "MAX_HELD_BYTES", 50)
    engine = Engine()
    sent = [engine.publishes()]
    sent.append(engine.publishes(arrives=False))
    # The gap is asked for, and this is what comes meanwhile.
    sent += [engine.publishes() for _ in range(8)]
    assert sum(map(len, sent[-engine.sequence.held :])) <= 50

    # The engine repeats what was missing, and no more.
    engine.sequence.replayed(0, sent[0])
    engine.sequence.replayed(1, sent[1])
    engine.sequence.replay_over()
    assert engine.asked == [0, 1]
    engine.answers()

    assert engine.known == sent
    assert engine.sequence.held == engine.sequence._held_bytes == 0
