"""A core that dies answers every call that is under way or comes later, and gives pages back that peers are still in."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pdgate.engine.cache.memory import KvMemory
from pdgate.engine.connector import Arrival, Keep
from pdgate.engine.layout import Layout
from pdgate.engine.ranks.crew import RankLost
from tests.support.engine_cores import GREEDY, Engine, ask, engine, layout
from tests.support.fake_connector import FakeConnector, Meeting
from tests.support.waiting import PATIENCE_SECONDS, wait_until

LONG = replace(GREEDY, max_tokens=1500)


class Broken(Exception):
    """What the pages' memory raises, as that of ranks does when one is gone."""


class BrittleKv(KvMemory):
    """Pages that are gone when the test says so; a step then fails in the middle."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, [memoryview(bytearray(layout.total_bytes))])
        self.gone = threading.Event()

    def attend(self, *words: Any) -> Any:
        if self.gone.is_set():
            raise Broken("the pages are gone")
        return super().attend(*words)


def brittle(blocks: int = 128) -> tuple[Engine, BrittleKv]:
    made, pages = engine(blocks=blocks), BrittleKv(layout(blocks))
    made.core._work._memory = pages
    return made, pages


def check_dead(made: Engine) -> None:
    assert not made.core.alive
    assert made.core.trouble
    wait_until(lambda: made.core.gauges.blocks_used == 0, "no page in use")
    late = made.answer(ask("late", "Hello"))
    assert late[-1].refusal is not None
    assert not made.core.gauges.has_requests


def how_it_dies() -> dict[str, Callable[[Engine, BrittleKv], None]]:
    def at_rest(made: Engine, _: BrittleKv) -> None:
        made.core.fail(Broken("a rank is gone"))

    def in_a_step(_: Engine, pages: BrittleKv) -> None:
        pages.gone.set()

    def in_a_step_and_told_so(made: Engine, pages: BrittleKv) -> None:
        """As when a rank is lost: the step fails by itself, and the crew says it as well."""
        with made.resting():
            pages.gone.set()
            made.core.submit(ask("between", "x", LONG))
            made.core.fail(Broken("a rank is gone"))
            made.core.submit(ask("behind", "x", LONG))
            made.core.fail(Broken("a rank is gone"))

    return {each.__name__: each for each in (at_rest, in_a_step, in_a_step_and_told_so)}


@pytest.mark.parametrize("way", how_it_dies())
def test_every_call_is_answered_and_its_pages_come_back(way: str) -> None:
    """One that says tokens, one that waits for a turn, and what comes while it dies."""
    made, pages = brittle(blocks=8)
    made.core.start()
    made.core.submit(ask("running", "x" * 20, replace(GREEDY, max_tokens=90)))
    made.next()
    made.core.submit(ask("waiting", "y" * 100, GREEDY))

    how_it_dies()[way](made, pages)

    names = ["running", "waiting"]
    if way == "in_a_step_and_told_so":
        names += ["between", "behind"]
    for found in made.answers(*names).values():
        assert found[-1].refusal is not None
        assert "died" in found[-1].refusal.message
    check_dead(made)
    made.core.stop()


def test_a_load_that_ends_after_the_death_gives_its_pages_back() -> None:
    meeting = Meeting(layout())
    prefill, (decode, _) = engine(), brittle()
    prefill.core.connect(FakeConnector(prefill.core, prefill.memory, meeting))
    reader = FakeConnector(decode.core, decode.memory, meeting, hold=True)
    decode.core.connect(reader)
    for one in (prefill, decode):
        one.core.start()
    prompt = "A prompt of two blocks, or so."
    keep = ask("p", prompt, replace(GREEDY, max_tokens=1), params={"keep": True})
    params = prefill.answer(keep)[-1].kv_transfer_params
    decode.core.submit(ask("d", prompt, GREEDY, params=params))
    assert reader.started.wait(PATIENCE_SECONDS)

    decode.core.fail(Broken("a rank is gone"))

    assert decode.answers("d")["d"][-1].refusal is not None
    assert reader.cancelled == ["d"]
    assert decode.core.gauges.blocks_used > 0
    reader.go()
    check_dead(decode)
    for one in (prefill, decode):
        one.core.stop()


def test_a_prefill_for_a_peer_is_refused_after_the_death() -> None:
    made, _ = brittle()
    meeting = Meeting(layout())
    made.core.connect(FakeConnector(made.core, made.memory, meeting))
    made.core.start()
    made.core.fail(Broken("a rank is gone"))
    wait_until(lambda: not made.core.alive, "the core has died")

    made.core.submit_prefill("p", range(30), 30, Keep(30.0))

    wait_until(lambda: [name for name, _ in meeting.dropped] == ["p"], "its reader is refused")
    check_dead(made)
    made.core.stop()


@pytest.mark.parametrize(
    ("raised", "said"), [(RankLost("rank 2 has ended"), "died"), (Broken(), "connector failed")]
)
def test_a_call_that_comes_while_a_rank_is_lost_hears_that_of_its_connector(
    raised: Exception, said: str
) -> None:
    """The core may not know yet: a call that comes before its next step asks the ranks for a plan."""

    class Lost(FakeConnector):
        def plan(self, arrival: Arrival) -> None:
            raise raised

    made, _ = brittle()
    made.core.connect(Lost(made.core, made.memory, Meeting(layout())))
    made.core.start()

    refusal = made.answer(ask("a", "x" * 20, GREEDY))[-1].refusal

    assert refusal is not None
    assert said in refusal.message
    assert not refusal.blame_client
    made.core.stop()


def test_a_core_whose_accounts_are_broken_still_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    made, pages = brittle()
    made.core.start()
    for name in ("a", "b"):
        made.core.submit(ask(name, "x" * 20, LONG))
        made.next()

    def broken(_: object) -> None:
        raise Broken("the accounts are broken")

    with made.resting():
        monkeypatch.setattr(made.core._work._scheduler, "abort", broken)
        pages.gone.set()

    for found in made.answers("a", "b").values():
        assert found[-1].refusal is not None
    made.core.stop()
