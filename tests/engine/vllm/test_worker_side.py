"""What the worker's half does with its orders, with a connector that only writes down."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pdgate.engine.connector import Arrival, Connector, Core, Keep, Load, Pages
from pdgate.engine.vllm.intent import PREFILL_ID
from pdgate.engine.vllm.orders import (
    Asked,
    Cancel,
    Drop,
    Evict,
    Fetch,
    Hold,
    Kept,
    LetGo,
    Order,
    Progress,
    Refuse,
)
from pdgate.engine.vllm.prefill_call import Calls
from pdgate.engine.vllm.reports import NOTHING, Results
from pdgate.engine.vllm.worker_side import WorkerSide
from pdgate.transfer.messenger.counters import Counters

LEASE_SECONDS = 10.0
BLOCKS = (5, 6, 7)


class WritesDown(Connector):
    def __init__(self, core: Core) -> None:
        self.core = core
        self.counters = Counters()
        self.kv_address = ("h", 1)
        self.said: list[tuple[Any, ...]] = []
        self.plans: dict[str, Load | Keep | Exception | None] = {}
        self.breaks_at = ""
        self.in_use = False
        self.dropping = threading.Event()

    def plan(self, arrival: Arrival) -> Load | Keep | None:
        plan = self.plans.get(arrival.id)
        if isinstance(plan, Exception):
            raise plan
        return plan

    def start(self, request_id: str, load: Load, pages: Pages, skip_tokens: int) -> None:
        self._say("start", request_id, tuple(pages.block_ids), skip_tokens)

    def cancel(self, request_id: str) -> None:
        self._say("cancel", request_id)

    def kept(
        self,
        request_id: str,
        keep: Keep,
        pages: Pages,
        first_token: int | None,
        finish_reason: str,
    ) -> Mapping[str, Any] | None:
        self._say("kept", request_id, tuple(pages.block_ids), pages.tokens, finish_reason)
        return None

    def layer_computed(
        self, request_id: str, layer: int, block_ids: Sequence[int], tokens: int
    ) -> None:
        self._say("computed", request_id, layer, tuple(block_ids), tokens)

    def dropped(self, request_id: str, why: str) -> bool:
        self._say("dropped", request_id)
        self.dropping.set()
        return self.in_use

    def close(self) -> None:
        self._say("close")

    def _say(self, verb: str, *rest: Any) -> None:
        self.said.append((verb, *rest))
        if verb == self.breaks_at:
            raise RuntimeError("a bug")


@dataclass
class FakeCalls(Calls):
    failed: Callable[[str, str], None]
    started: list[tuple[str, Sequence[int]]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    refuses: bool = False

    def start(self, prefill_id: str, prompt: Sequence[int]) -> None:
        if self.refuses:
            raise ValueError("no API")
        self.started.append((prefill_id, prompt))

    def cancel(self, prefill_id: str) -> None:
        self.cancelled.append(prefill_id)


class Rig:
    def __init__(self) -> None:
        self.now = 0.0

        def calls(failed: Callable[[str, str], None]) -> Calls:
            self.calls = FakeCalls(failed)
            return self.calls

        self.worker = WorkerSide(self._connect, calls, lambda: self.now)

    def _connect(self, core: Core) -> Connector:
        self.connector = WritesDown(core)
        return self.connector

    def obey(self, *orders: Order) -> None:
        self.worker.obey(orders)

    def results(self) -> Results:
        return self.worker.results()

    def plan(self, request_id: str, plan: Load | Keep | Exception | None) -> None:
        self.connector.plans[request_id] = plan

    def said(self, verb: str) -> list[tuple[Any, ...]]:
        return [one[1:] for one in self.connector.said if one[0] == verb]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def asked(request_id: str, **params: Any) -> Asked:
    return Asked(request_id, "r", tuple(range(10)), params)


def fetch(request_id: str = "d1", tokens: int = 9, skip: int = 0) -> Fetch:
    return Fetch(asked(request_id), BLOCKS, tokens, skip)


def kept(request_id: str = "p1") -> Kept:
    return Kept(request_id, BLOCKS, 10, "length")


@pytest.mark.parametrize("error", [None, "broken peer"])
def test_a_load_is_started_and_its_end_reported(error: str | None, rig: Rig) -> None:
    rig.plan("d1", Load(9, "ticket"))
    rig.obey(fetch(skip=4))
    assert rig.said("start") == [("d1", BLOCKS, 4)]
    assert rig.results() is NOTHING

    rig.now = 2.0
    rig.worker.loaded("d1", error)

    ended = rig.results()
    assert ended.received == {"d1"}
    assert ended.failed == ({"d1"} if error else set())
    assert rig.worker.load_seconds == 2.0


@pytest.mark.parametrize(
    "plan", [ValueError("remote_port"), None, Load(5, ""), Keep(1.0), KeyError("bug")], ids=repr
)
def test_a_request_that_makes_no_sense_fails_alone(
    plan: Load | Keep | Exception | None, rig: Rig
) -> None:
    rig.plan("d1", plan)
    rig.plan("d2", Load(9, ""))

    rig.obey(fetch(), fetch("d2"))

    assert rig.results() == Results(frozenset(), frozenset({"d1"}), frozenset({"d1"}))
    assert rig.said("start") == [("d2", BLOCKS, 0)]
    assert rig.connector.counters.failed == 1


def test_a_load_that_breaks_at_its_start_is_reported_once(rig: Rig) -> None:
    rig.plan("d1", Load(9, ""))
    rig.connector.breaks_at = "start"

    rig.obey(fetch())
    rig.worker.loaded("d1")

    assert rig.results().failed == {"d1"}
    assert rig.results() is NOTHING


def test_an_order_that_breaks_does_not_stop_the_next(rig: Rig) -> None:
    rig.plan("d2", Load(9, ""))
    rig.connector.breaks_at = "cancel"

    rig.obey(Cancel("d1"), fetch("d2"))

    assert rig.said("start") == [("d2", BLOCKS, 0)]


def test_what_could_not_be_ordered_is_a_failed_load(rig: Rig) -> None:
    rig.obey(Refuse("d1", "a bug"))

    assert rig.results().failed == {"d1"}


def test_a_peer_whose_pages_are_not_needed_is_told(rig: Rig) -> None:
    rig.plan("d1", Load(9, ""))
    rig.obey(LetGo(asked("d1")))

    assert rig.said("start") == [("d1", (), 9)]
    rig.worker.loaded("d1")
    assert rig.results() is NOTHING


def test_kept_blocks_are_reported_when_their_reader_is_done(rig: Rig) -> None:
    rig.plan("p1", Keep(LEASE_SECONDS))
    rig.obey(Hold(asked("p1")))
    rig.obey(kept())
    assert rig.said("kept") == [("p1", BLOCKS, 10, "length")]
    assert rig.worker.held_blocks == 3
    assert rig.results() is NOTHING

    rig.worker.release("p1")

    assert rig.results().sent == {"p1"}
    assert rig.worker.held_blocks == 0


def test_kept_blocks_go_back_when_their_lease_ends(rig: Rig) -> None:
    rig.plan("p1", Keep(LEASE_SECONDS))
    rig.obey(Hold(asked("p1")), kept())
    rig.now = LEASE_SECONDS - 0.1
    assert rig.results() is NOTHING

    rig.now = LEASE_SECONDS

    assert rig.results().sent == {"p1"}
    assert rig.said("dropped") == [("p1",)]
    rig.worker.release("p1")
    assert rig.results() is NOTHING


@pytest.mark.parametrize("plan", [ValueError("no id"), None], ids=repr)
def test_what_is_not_held_goes_back_at_once(plan: Exception | None, rig: Rig) -> None:
    """vLLM keeps the blocks until it is told otherwise."""
    rig.plan("p1", plan)

    rig.obey(Hold(asked("p1")), kept())

    assert rig.results().sent == {"p1"}
    assert rig.said("kept") == []


def test_blocks_that_could_not_be_offered_go_back(rig: Rig) -> None:
    rig.plan("p1", Keep(LEASE_SECONDS))
    rig.connector.breaks_at = "kept"

    rig.obey(Hold(asked("p1")), kept())

    assert rig.said("dropped") == [("p1",)]
    assert rig.results().sent == {"p1"}
    assert rig.worker.held_blocks == 0


def test_an_aborted_prefill_refuses_its_readers(rig: Rig) -> None:
    rig.plan("p1", Keep(LEASE_SECONDS))

    rig.obey(Hold(asked("p1")), Drop("p1", "aborted"))

    assert rig.said("dropped") == [("p1",)]
    assert rig.results().sent == {"p1"}


def test_a_delegated_prefill_is_known_to_its_peer_by_its_own_name(rig: Rig) -> None:
    rig.worker.submit_prefill("kvt-1", range(10), 9, Keep(LEASE_SECONDS))
    assert rig.calls.started == [("kvt-1", range(9))]

    rig.obey(Hold(asked("p1", **{PREFILL_ID: "kvt-1"})), kept())

    assert rig.said("kept") == [("kvt-1", BLOCKS, 10, "length")]
    rig.worker.release("kvt-1")
    assert rig.results().sent == {"p1"}


def test_a_delegated_prefill_that_fails_refuses_who_waits_for_it(rig: Rig) -> None:
    rig.worker.submit_prefill("kvt-1", range(10), 9, Keep(LEASE_SECONDS))

    rig.calls.failed("kvt-1", "our own API answered 503")

    assert rig.said("dropped") == [("kvt-1",)]
    # And if the request reached vLLM all the same, nobody may have its pages.
    rig.obey(Hold(asked("p1", **{PREFILL_ID: "kvt-1"})), kept())
    assert rig.results().sent == {"p1"}
    assert rig.said("kept") == []


def test_a_peer_that_gives_up_ends_the_prefill_that_it_asked_for(rig: Rig) -> None:
    rig.worker.submit_prefill("kvt-1", range(10), 9, Keep(LEASE_SECONDS))

    rig.worker.abort("kvt-1")

    assert rig.calls.cancelled == ["kvt-1"]


def test_an_engine_that_cannot_prefill_says_so(rig: Rig) -> None:
    rig.calls.refuses = True

    with pytest.raises(ValueError, match="no API"):
        rig.worker.submit_prefill("kvt-1", range(10), 9, Keep(LEASE_SECONDS))

    rig.obey(Hold(asked("p1", **{PREFILL_ID: "kvt-1"})), kept())
    assert rig.said("kept") == []


@pytest.mark.parametrize("name", ["kvt-unknown", 7])
def test_nobody_takes_a_prefill_that_was_not_asked_for(name: Any, rig: Rig) -> None:
    """The field is a client's to forge; then its blocks are of no use to anybody."""
    rig.obey(Hold(asked("p1", **{PREFILL_ID: name})), kept())

    assert rig.said("kept") == []
    assert rig.results().sent == {"p1"}


def test_one_delegated_prefill_serves_one_request(rig: Rig) -> None:
    rig.worker.submit_prefill("kvt-1", range(10), 9, Keep(LEASE_SECONDS))
    params = {PREFILL_ID: "kvt-1"}

    rig.obey(Hold(asked("p1", **params)), Hold(asked("p2", **params)), kept("p2"), kept("p1"))

    assert rig.said("kept") == [("kvt-1", BLOCKS, 10, "length")]
    assert rig.results().sent == {"p2"}


def hold_and_reader(rig: Rig) -> None:
    """A prefill whose pages a peer is in the middle of."""
    rig.plan("p1", Keep(LEASE_SECONDS))
    rig.obey(Hold(asked("p1")))
    rig.connector.in_use = True


def test_each_layer_of_a_held_prefill_is_told(rig: Rig) -> None:
    rig.worker.submit_prefill("kvt-1", range(10), 9, Keep(LEASE_SECONDS))
    step = Progress("p1", (5, 6), 8)
    rig.obey(Hold(asked("p1", **{PREFILL_ID: "kvt-1"})), step)

    rig.worker.computed(0)
    rig.worker.computed(1)
    rig.obey()
    rig.worker.computed(0)

    assert rig.said("computed") == [("kvt-1", layer, (5, 6), 8) for layer in (0, 1)]


@pytest.mark.parametrize("end", ["aborted", "lease", "not offered"])
def test_blocks_that_a_peer_is_reading_wait_for_it(end: str, rig: Rig) -> None:
    hold_and_reader(rig)
    match end:
        case "aborted":
            rig.obey(Drop("p1", "aborted"))
        case "lease":
            rig.obey(kept())
            rig.now = LEASE_SECONDS
        case "not offered":
            rig.connector.breaks_at = "kept"
            rig.obey(kept())
    assert rig.results() is NOTHING
    assert rig.said("dropped") == [("p1",)]

    rig.worker.release("p1")

    assert rig.results().sent == {"p1"}


def test_the_step_that_preempts_waits_for_the_reader(rig: Rig) -> None:
    """Otherwise the reader gets the bytes of another request, and takes them for right."""
    hold_and_reader(rig)
    waited = threading.Thread(target=rig.worker.evict, args=([Evict("p1")],))
    waited.start()
    assert rig.connector.dropping.wait(10)
    assert waited.is_alive()

    rig.worker.release("p1")

    waited.join(10)
    assert not waited.is_alive()
    # It is computed again, for nobody.
    rig.obey(kept())
    assert rig.results().sent == {"p1"}
    assert rig.said("kept") == []


def test_a_preempted_prefill_is_not_wanted_any_more(rig: Rig) -> None:
    rig.worker.submit_prefill("kvt-1", range(10), 9, Keep(LEASE_SECONDS))
    rig.obey(Hold(asked("p1", **{PREFILL_ID: "kvt-1"})))

    rig.obey(Evict("p1"))

    assert rig.calls.cancelled == ["kvt-1"]
    assert rig.said("dropped") == [("kvt-1",)]


def test_a_load_that_will_not_succeed_fails_before_its_blocks_are_free(rig: Rig) -> None:
    rig.plan("d1", Load(9, ""))
    rig.obey(fetch())

    rig.worker.gave_up("d1", "silent peer")

    early = rig.results()
    assert (early.failed, early.received) == (frozenset({"d1"}), frozenset())
    rig.worker.loaded("d1", "silent peer")
    assert rig.results().received == {"d1"}
    assert rig.results() is NOTHING
