"""What the engine's own process makes of what its ranks say, without the processes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from pdgate.engine.connector import Keep, Pages
from pdgate.engine.ranks.connector import RanksConnector
from pdgate.engine.ranks.words import RankAnswer, RankEvent, counts
from pdgate.transfer.messenger.counters import MessengerCounters
from tests.support.engine_pair import P_BLOCKS, arrival
from tests.support.fake_core import LAYOUT

PAGES = Pages(P_BLOCKS, 8)


@dataclass
class TwoRanks:
    """A crew whose ranks keep what they are asked to, and let go at once what they have dropped.

    Attributes:
        read: By rank, whether a reader is at what it drops: it lets go of nothing until it is told to.
    """

    connector: RanksConnector = field(init=False)
    ready: Sequence[Any] = (SimpleNamespace(kv_address=("h", 1), server_info={}),)
    dropped: set[str] = field(default_factory=set)
    read: Sequence[bool] = (False, False)

    def __len__(self) -> int:
        return 2

    def ask(self, name: str, words: Sequence[tuple[Any, ...]]) -> list[RankAnswer]:
        return [self._answer(number, name, *each) for number, each in enumerate(words)]

    def _answer(self, number: int, name: str, request: Any, *_: Any) -> RankAnswer:
        match name:
            case "plan":
                return RankAnswer(Keep(30.0))
            case "dropped":
                self.dropped.add(request)
                return RankAnswer(self.read[number])
            case _:
                if request in self.dropped and not self.read[number]:
                    self.let_go(number, request)
                return RankAnswer(None)

    def let_go(self, number: int, request: str) -> None:
        said = RankEvent("release", (request,), counts(MessengerCounters()))
        self.connector.heard(number, said)


@dataclass
class Freed:
    """A core.

    Attributes:
        requests: Whose pages may go.
    """

    requests: list[str] = field(default_factory=list)

    def release(self, request_id: str) -> None:
        self.requests.append(request_id)


def test_what_is_kept_after_it_was_dropped_goes_back_when_every_rank_lets_it_go() -> None:
    """Preempted and computed anew, for no reader: it was held until its lease ended."""
    ranks, core = TwoRanks(), Freed()
    crew: Any = ranks
    released: Any = core
    ranks.connector = connector = RanksConnector(crew, released, LAYOUT)
    keep = connector.plan(arrival("p1", "k", params={"do_remote_decode": True}))
    assert isinstance(keep, Keep)
    assert not connector.dropped("p1", "preempted")

    connector.kept("p1", keep, PAGES, 7, "length")

    assert core.requests == ["p1"]


def test_what_is_kept_anew_while_a_rank_is_read_from_goes_back_after_what_is_read() -> None:
    """The ranks let go of both; the second was held until its lease ended."""
    ranks, core = TwoRanks(read=(True, False)), Freed()
    crew: Any = ranks
    released: Any = core
    ranks.connector = connector = RanksConnector(crew, released, LAYOUT)
    keep = connector.plan(arrival("p1", "k", params={"do_remote_decode": True}))
    assert isinstance(keep, Keep)
    assert connector.dropped("p1", "preempted")

    connector.kept("p1", keep, PAGES, 7, "length")

    assert core.requests == []
    ranks.let_go(0, "p1")
    assert core.requests == ["p1"]
    ranks.let_go(0, "p1")
    assert core.requests == ["p1", "p1"]


def test_what_is_kept_anew_and_dropped_again_goes_back_with_what_is_read() -> None:
    ranks, core = TwoRanks(read=(True, False)), Freed()
    crew: Any = ranks
    released: Any = core
    ranks.connector = connector = RanksConnector(crew, released, LAYOUT)
    keep = connector.plan(arrival("p1", "k", params={"do_remote_decode": True}))
    assert isinstance(keep, Keep)
    assert connector.dropped("p1", "preempted")
    connector.kept("p1", keep, PAGES, 7, "length")

    assert connector.dropped("p1", "the lease is over")

    ranks.let_go(0, "p1")
    assert core.requests == ["p1"]
    assert connector._keeps == {}
