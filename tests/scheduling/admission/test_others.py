"""Several processes keep one limit, each with a line: nobody overtakes, and nobody starves."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from pdgate.scheduling.admission.others import NOBODY, OtherProcesses, may_have_one_more


def test_alone_a_process_may_have_all() -> None:
    assert may_have_one_more(4, own=3, others=NOBODY, since=None)


def test_who_comes_does_not_overtake_another_processs_line() -> None:
    others = OtherProcesses(begun=0, lines=1, since=5)

    assert may_have_one_more(4, own=1, others=others, since=None), "it has its part"
    assert not may_have_one_more(4, own=2, others=others, since=None)


def test_what_the_parts_leave_over_is_for_whose_turn_is_longest_ago() -> None:
    others = OtherProcesses(lines=1, since=5)

    assert may_have_one_more(1, own=0, others=others, since=4)
    assert not may_have_one_more(1, own=0, others=others, since=6)


class Process:
    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self.begun = 0
        self.had = 0
        self.since = 0


@given(
    st.integers(1, 5),
    st.lists(st.integers(0, 12), min_size=2, max_size=4),
    st.lists(st.integers(0, 3), min_size=1),
)
def test_every_place_is_used_and_every_line_moves(
    limit: int, lines: list[int], order: list[int]
) -> None:
    """Whichever process looks first, and whosever call ends: in no round is a place left free
    while somebody waits, none is taken twice, and no line waits for longer than all have had a turn."""
    processes = [Process(waiting) for waiting in lines]
    now = 1
    for number, process in enumerate(processes):
        process.since = now + number
    now += len(processes)
    running: deque[Process] = deque()
    waited = dict.fromkeys(processes, 0)
    looks = deque(order)

    while any(process.waiting for process in processes) or running:
        moved = True
        while moved:
            moved = False
            looks.rotate()
            first = looks[0] % len(processes)
            for process in (*processes[first:], *processes[:first]):
                if not process.waiting or len(running) >= limit:
                    continue
                theirs = [other for other in processes if other is not process]
                since = [other.since for other in theirs if other.waiting]
                others = OtherProcesses(lines=len(since), since=min(since, default=None))
                if may_have_one_more(limit, process.begun, others, process.since):
                    process.waiting -= 1
                    process.begun += 1
                    process.since = now
                    now += 1
                    running.append(process)
                    waited[process] = -1
                    moved = True
        assert len(running) <= limit
        assert len(running) == limit or not any(process.waiting for process in processes)
        for process in processes:
            waited[process] = waited[process] + 1 if process.waiting else 0
            assert waited[process] <= limit * len(processes)
        running.popleft().begun -= 1
