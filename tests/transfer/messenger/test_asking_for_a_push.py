"""What D may ask P to write, and what P does when D misbehaves."""

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from pdgate.engine.connector import Keep
from pdgate.engine.hand_over.two_sided import TwoSided
from pdgate.transfer import descriptors
from pdgate.transfer.base import Backend
from pdgate.transfer.messenger import messages, push_table, service
from pdgate.transfer.messenger.errors import Why
from pdgate.transfer.messenger.push import PushRequest
from pdgate.transfer.messenger.shape import PageShape
from pdgate.transfer.runtime.channel import Channel
from pdgate.transfer.runtime.jobs import TransferPlan
from pdgate.transfer.runtime.moving import MoveOrder, Moving
from pdgate.transfer.runtime.running import RunningTransfer, TransferDeadlines
from tests.support.engine_pair import D_BLOCKS, P_BLOCKS, PROMPT, arrival
from tests.support.fake_core import LAYOUT, SECONDS, FakeCore
from tests.support.proven import channel
from tests.support.waiting import wait_until
from tests.transfer.messenger.conftest import error_of, load, tiles
from tests.transfer.messenger.nodes import Node
from tests.transfer.messenger.test_layouts import HND, TOKENS

NEEDED = len(PROMPT) - 1


@pytest.fixture
def prefill(backend: str) -> Iterator[FakeCore]:
    """It keeps two blocks under the key "k"."""
    with closing(FakeCore(backend, "vllm-kvt", "prefill")) as core:
        core.prefill(arrival("p1", "k", params={"do_remote_decode": True}), P_BLOCKS)
        yield core


def push(to: FakeCore, **wrong: Any) -> messages.Push:
    """Into pages of `to`."""
    right = messages.Push(
        key="k",
        engine_id="",
        wait=False,
        seconds=SECONDS,
        shape=PageShape.of(to.layout, to.model, order=to.layout.order),
        descriptors=[descriptors.as_data(region.descriptor) for region in to.regions],
        block_ids=list(D_BLOCKS),
        start=0,
        tokens=NEEDED,
        immediate=7,
        tile_tokens=LAYOUT.block_tokens,
        by_layer=True,
    )
    return msgspec.structs.replace(right, **wrong)


def share_of_first(to: FakeCore, ranks: tuple[int, ...] = (0,)) -> messages.Push:
    """What one rank of several asks for."""
    there = [descriptors.as_data(to.regions[rank].descriptor) for rank in ranks]
    return push(to, descriptors=there, ranks=ranks, only_here=True)


def dial(core: FakeCore) -> Channel:
    return channel(core.connector.kv_address)


def answer(core: FakeCore, *said: messages.Message) -> messages.Message | None:
    """To the last of them, of which only that one is answered."""
    with dial(core) as sock:
        for message in said:
            messages.send(sock, message)
        return messages.receive(sock)


@dataclass
class HeldBack:
    """An engine's transfers.

    Attributes:
        begun: One of them is under way.
    """

    begun: threading.Semaphore
    _changed: threading.Condition
    _moving: bool = False

    def go_on(self) -> None:
        """All of them move."""
        with self._changed:
            self._moving = True
            self._changed.notify_all()

    def hold(self, transfer: RunningTransfer) -> None:
        """Until it may move. Raises TransferInterrupted: it is given up, and the others are held still."""
        given_up = threading.Event()

        def give_up() -> None:
            with self._changed:
                given_up.set()
                self._changed.notify_all()

        transfer.on_interrupt(give_up)
        self.begun.release()
        with self._changed:
            assert self._changed.wait_for(lambda: self._moving or given_up.is_set(), SECONDS)
        transfer.on_interrupt(None)


def hold_back(backend: Backend) -> HeldBack:
    """Transfers of this engine."""
    assert isinstance(backend, Moving)
    plan = backend.plan
    held = HeldBack(threading.Semaphore(0), threading.Condition())

    def plan_to_wait(order: MoveOrder) -> TransferPlan:
        planned = plan(order)

        def work(transfer: RunningTransfer) -> None:
            held.hold(transfer)
            planned.work(transfer)

        return TransferPlan(work)

    backend.plan = plan_to_wait  # type: ignore[method-assign]
    return held


def untouched(core: FakeCore) -> bool:
    return not any(
        any(core.page(layer, block))
        for layer in range(LAYOUT.layers)
        for block in range(LAYOUT.blocks)
    )


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"block_ids": [4, 16]}, Why.BAD_BLOCKS),
        ({"block_ids": [4, -1]}, Why.BAD_BLOCKS),
        ({"block_ids": [4, 4]}, Why.BAD_BLOCKS),
        ({"block_ids": [4]}, Why.BAD_BLOCKS),
        ({"block_ids": [4, 5, 6]}, Why.BAD_BLOCKS),
        ({"tile_tokens": -1}, Why.UNSUPPORTED),
        ({"tile_tokens": 1 << 40}, Why.UNSUPPORTED),
        ({"immediate": 2**32}, Why.BROKEN),
        ({"seconds": float("nan")}, Why.BROKEN),
        ({"seconds": -1.0}, Why.BROKEN),
        ({"start": -4}, Why.BROKEN),
        ({"start": 2}, Why.BROKEN),
        ({"start": 8}, Why.BROKEN),
        ({"context": messages.ContextRoom({}, 0, 64)}, Why.UNSUPPORTED),
        ({"tokens": 0}, Why.BROKEN),
        ({"key": "another"}, Why.UNKNOWN),
        ({"key": "k" * 1025}, Why.UNSUPPORTED),
        (
            {
                "shape": msgspec.structs.replace(
                    PageShape.of(LAYOUT, "tiny", order=LAYOUT.order), blocks=100
                ),
                "block_ids": list(range(LAYOUT.blocks + 1)),
                "tokens": LAYOUT.blocks * LAYOUT.block_tokens + 1,
            },
            Why.TOO_SHORT,
        ),
        ({"engine_id": "another life"}, Why.WRONG_ENGINE),
        (
            {
                "shape": msgspec.structs.replace(
                    PageShape.of(LAYOUT, "tiny", order=LAYOUT.order), layers=4
                )
            },
            Why.WRONG_SHAPE,
        ),
        (
            {"shape": msgspec.structs.replace(PageShape.of(LAYOUT, "other", order=LAYOUT.order))},
            Why.WRONG_SHAPE,
        ),
    ],
)
def test_what_cannot_be_right_is_refused_by_name(
    prefill: FakeCore, decode: FakeCore, wrong: dict[str, Any], why: Why
) -> None:
    refused = answer(prefill, push(decode, **wrong))

    assert isinstance(refused, messages.RefusedMessage)
    assert refused.why == why
    assert untouched(decode)
    assert isinstance(answer(prefill, push(decode)), messages.Writing)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"address": {"more": "x" * 150_000}}, id="more than a packet to the mover"),
        pytest.param({"address": {"more": "x" * 400_000}}, id="more than its socket takes"),
        pytest.param({"address": {"more": "\N{EURO SIGN}" * 2000}}, id="long in UTF-8"),
        pytest.param({"address": {"x" * 5000: 1}}, id="long name"),
        pytest.param({"address": dict.fromkeys(map(str, range(1000)), 1)}, id="many fields"),
        pytest.param({"address": {"more": {"more": {}}}}, id="nested"),
        pytest.param({"address": {"more": [1] * 5000}}, id="list"),
        pytest.param({"address": {"port": 2**64 - 1}}, id="large number"),
        pytest.param({"length": 2**64 - 1}, id="large length"),
        pytest.param({"epoch": "0" * 150_000}, id="long epoch"),
    ],
)
def test_a_descriptor_that_is_not_short_plain_data_is_refused(
    prefill: FakeCore, decode: FakeCore, wrong: dict[str, Any]
) -> None:
    """It ended the mover, and with it the pushes of others."""
    right = descriptors.as_data(decode.regions[0].descriptor)
    address = {**right["address"], **wrong.get("address", {})}

    refused = answer(prefill, push(decode, descriptors=[{**right, **wrong, "address": address}]))

    assert isinstance(refused, messages.RefusedMessage)
    assert refused.why == Why.BROKEN
    assert isinstance(answer(prefill, push(decode)), messages.Writing)


@pytest.mark.parametrize("field", ["length", "backend", "epoch", "address"])
def test_a_descriptor_of_other_memory_is_refused_or_fails(
    prefill: FakeCore, decode: FakeCore, field: str
) -> None:
    """A stale epoch is found when the first write comes; the pages go back all the same."""
    right = descriptors.as_data(decode.regions[0].descriptor)
    wrong = {"length": 16, "backend": "other", "epoch": "00" * 16, "address": {}}[field]
    with dial(prefill) as sock:
        messages.send(sock, push(decode, descriptors=[{**right, field: wrong}]))
        said = messages.receive(sock)
        while isinstance(said, messages.Writing):
            said = messages.receive(sock)

    assert isinstance(said, messages.RefusedMessage | messages.Failed)
    assert untouched(decode)
    if isinstance(said, messages.Failed):
        assert said.why == Why.BROKEN
        assert prefill.freed.get(timeout=SECONDS) == "p1"


def test_a_prefill_that_is_dropped_as_decode_asks_for_it_fails_at_once(
    backend: str, decode: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preempted between the look for its key and the join, it was waited for until decode's lease ended."""
    with closing(FakeCore(backend, "vllm-kvt", "prefill")) as prefill:
        prefill.connector.plan(arrival("p1", "k", params={"do_remote_decode": True}))
        assert isinstance(prefill.connector, TwoSided)
        offers = prefill.connector._offers
        claim = offers.claim

        def dropped_behind(key: str, pusher: object, peer: str) -> str | None:
            found = claim(key, pusher, peer)
            dropping = threading.Thread(target=prefill.connector.dropped, args=("p1", "preempted"))
            dropping.start()
            # As far as it comes: it may have to wait for who calls this.
            dropping.join(0.5)
            return found

        monkeypatch.setattr(offers, "claim", dropped_behind)
        with dial(prefill) as sock:
            messages.send(sock, push(decode, wait=True))
            while isinstance(said := messages.receive(sock), messages.Writing):
                pass

        assert isinstance(said, messages.RefusedMessage | messages.Failed)
        assert (said.why, said.message) == (Why.EXPIRED, "preempted")


def test_a_key_that_is_given_up_between_a_claim_and_its_prefill_is_not_computed(
    backend: str, decode: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The push that had claimed it was refused, and counted as under way: its prompt was kept for a whole lease."""
    with closing(FakeCore(backend, "vllm-kvt", "prefill")) as prefill:
        assert isinstance(prefill.connector, TwoSided)
        table, offers = prefill.connector._pushes, prefill.connector._offers
        expect = table.expect
        said: list[messages.Message | None] = []
        with dial(prefill) as sock:

            def asked_and_given_up_before(key: str, request_id: str) -> None:
                messages.send(sock, push(decode, wait=True))
                claimed = offers._entries["k"].pushers
                wait_until(lambda: claimed, "its claim")
                said.append(answer(prefill, messages.Abandon("k", "")))
                expect(key, request_id)

            monkeypatch.setattr(table, "expect", asked_and_given_up_before)
            prefill.connector.plan(arrival("p1", "k", params={"do_remote_decode": True}))
            refused = messages.receive(sock)

        assert said == [messages.Released(held=False)]
        assert isinstance(refused, messages.Failed)
        assert refused.why == Why.EXPIRED
        assert prefill.aborted.get(timeout=SECONDS) == "p1"
        assert "k" not in offers._entries


def test_a_second_push_of_one_key_is_refused(backend: str, decode: FakeCore) -> None:
    """Also from another connection: pages go to one decode engine only."""
    with closing(FakeCore(backend, "vllm-kvt", "prefill")) as prefill:
        prefill.connector.plan(arrival("p1", "k", params={"do_remote_decode": True}))
        with dial(prefill) as first:
            messages.send(first, push(decode))
            assert isinstance(messages.receive(first), messages.Writing)

            refused = answer(prefill, push(decode))
            reader = answer(prefill, messages.Prefill("k", list(PROMPT)))

            assert isinstance(refused, messages.RefusedMessage)
            assert refused.why == Why.TAKEN
            assert isinstance(reader, messages.RefusedMessage)
            assert "another live request" in reader.message


@pytest.mark.parametrize("kept", [True, False])
def test_what_one_rank_gives_up_while_another_has_its_share_is_not_kept_for_it(kept: bool) -> None:
    """It would be kept for the whole lease, or computed for nobody."""
    two = replace(LAYOUT, tp=2)
    with (
        closing(FakeCore("tcp", "vllm-kvt", "prefill")) as prefill,
        closing(FakeCore("tcp", "vllm-kvt", "decode", layout=two)) as decode,
    ):
        held = hold_back(prefill.backend)
        asked = arrival("p1", "k", params={"do_remote_decode": True})
        if kept:
            prefill.prefill(asked, P_BLOCKS)
        else:
            prefill.connector.plan(asked)
            prefill.connector.layer_computed("p1", 0, P_BLOCKS, len(PROMPT))
        with dial(prefill) as first:
            messages.send(first, share_of_first(decode))
            assert isinstance(messages.receive(first), messages.Writing)
            assert held.begun.acquire(timeout=SECONDS)

            second = answer(prefill, messages.Abandon("k", ""))

            assert second == messages.Released(held=False)
            late = answer(prefill, share_of_first(decode, ranks=(1,)))
            assert isinstance(late, messages.RefusedMessage)
            assert late.why == Why.EXPIRED
            held.go_on()
            if not kept:
                for layer in range(LAYOUT.layers):
                    prefill.connector.layer_computed("p1", layer, P_BLOCKS, len(PROMPT))
            assert (prefill.freed if kept else prefill.aborted).get(timeout=SECONDS) == "p1"


def test_a_share_that_is_asked_for_again_does_not_keep_the_pages() -> None:
    two = replace(LAYOUT, tp=2)
    with (
        closing(FakeCore("tcp", "vllm-kvt", "prefill")) as prefill,
        closing(FakeCore("tcp", "vllm-kvt", "decode", layout=two)) as decode,
    ):
        prefill.prefill(arrival("p1", "k", params={"do_remote_decode": True}), P_BLOCKS)
        # A push says nothing at its end, but P is asked only once it is over.
        with dial(prefill) as first:
            messages.send(first, share_of_first(decode))
            assert isinstance(messages.receive(first), messages.Writing)
            wait_until(lambda: prefill.connector.counters.bytes_sent, "its share has landed")

        again = answer(prefill, share_of_first(decode))

        assert isinstance(again, messages.RefusedMessage)
        assert again.why == Why.TAKEN
        assert answer(prefill, messages.Abandon("k", "")) == messages.Released(held=True)
        assert prefill.freed.get(timeout=SECONDS) == "p1"


@pytest.mark.parametrize("silent", [False, True])
def test_a_decode_engine_that_leaves_has_its_prefill_aborted(
    backend: str, decode: FakeCore, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    """It hung up, or says nothing any more: its host may be dead."""
    monkeypatch.setattr(service, "SILENCE_SECONDS", 0.1 if silent else SECONDS)
    with closing(FakeCore(backend, "vllm-kvt", "prefill")) as prefill:
        prefill.connector.plan(arrival("p1", "k", params={"do_remote_decode": True}))
        with dial(prefill) as sock:
            messages.send(sock, push(decode))
            assert isinstance(messages.receive(sock), messages.Writing)
            if not silent:
                sock.close()

            assert prefill.aborted.get(timeout=SECONDS) == "p1"


def test_a_cancel_is_confirmed_and_nothing_comes_later(backend: str, decode: FakeCore) -> None:
    with closing(FakeCore(backend, "vllm-kvt", "prefill")) as prefill:
        prefill.connector.plan(arrival("p1", "k", params={"do_remote_decode": True}))
        with dial(prefill) as sock:
            messages.send(sock, push(decode))
            assert isinstance(messages.receive(sock), messages.Writing)

            messages.send(sock, messages.Cancel())
            said = [messages.receive(sock), messages.receive(sock)]

        assert any(isinstance(one, messages.Stopped) for one in said)
        prefill.write(P_BLOCKS, seed=1)
        for layer in range(LAYOUT.layers):
            prefill.connector.layer_computed("p1", layer, P_BLOCKS, NEEDED)
    assert untouched(decode)


def test_a_peer_that_never_reads_its_answers_loses_its_push(backend: str, decode: FakeCore) -> None:
    """Compute must not wait for it."""
    with closing(FakeCore(backend, "vllm-kvt", "prefill")) as prefill:
        prefill.connector.plan(arrival("p1", "k", params={"do_remote_decode": True}))
        with dial(prefill) as sock:
            messages.send(sock, push(decode))

            def flood() -> None:
                try:
                    while True:
                        messages.send(sock, messages.Ping())
                except OSError:
                    return

            flooding = threading.Thread(target=flood)
            flooding.start()
            assert prefill.aborted.get(timeout=SECONDS) == "p1"
            sock.close()
            flooding.join(SECONDS)


def test_pages_that_do_not_come_end_in_too_late(backend: str) -> None:
    """Prefill has to be asked before, which is part of decode's time."""
    with (
        closing(FakeCore(backend, "vllm-kvt", "prefill")) as prefill,
        closing(FakeCore(backend, "vllm-kvt", "decode", lease_seconds=0.5)) as decode,
    ):
        keep = prefill.connector.plan(arrival("p1", "k", params={"do_remote_decode": True}))
        assert isinstance(keep, Keep)

        load(decode, prefill.connector.kv_address[1])

        assert error_of(decode).startswith("too late")
        assert prefill.aborted.get(timeout=SECONDS) == "p1"
    assert untouched(decode)


def test_a_lease_that_ends_before_the_push_is_a_named_error(
    prefill: FakeCore, decode: FakeCore
) -> None:
    assert not prefill.connector.dropped("p1", "the lease of 30 s is over")

    load(decode, prefill.connector.kv_address[1])

    assert error_of(decode).startswith("expired: the lease of 30 s is over")
    assert untouched(decode)


def test_all_that_is_in_flight_when_a_lease_ends_lands(prefill: FakeCore, decode: FakeCore) -> None:
    """Nobody needs the pages yet, and decode, which has asked in time, needs them."""
    held = hold_back(prefill.backend)
    load(decode, prefill.connector.kv_address[1])
    assert held.begun.acquire(timeout=SECONDS)

    assert prefill.connector.dropped("p1", "its lease ended")
    assert prefill.connector.counters.lingering == len(P_BLOCKS)
    held.go_on()

    assert decode.result() is None
    assert decode.holds(D_BLOCKS, seed=1)
    assert prefill.freed.get(timeout=SECONDS) == "p1"
    assert prefill.connector.counters.lingering == 0


def test_what_is_dropped_twice_lingers_once(backend: str, decode: FakeCore) -> None:
    """Preempted, and computed anew in other pages when its client left: as many as it had stayed counted."""
    with closing(FakeCore(backend, "vllm-kvt", "prefill")) as prefill:
        prefill.connector.plan(arrival("p1", "k", params={"do_remote_decode": True}))
        held = hold_back(prefill.backend)
        with dial(prefill) as sock:
            messages.send(sock, push(decode))
            assert isinstance(messages.receive(sock), messages.Writing)
            prefill.connector.layer_computed("p1", 0, P_BLOCKS, NEEDED)
            assert held.begun.acquire(timeout=SECONDS)

            assert prefill.connector.dropped("p1", "preempted")
            for layer in range(LAYOUT.layers):
                prefill.connector.layer_computed("p1", layer, P_BLOCKS[:1], LAYOUT.block_tokens)
            assert prefill.connector.dropped("p1", "aborted")
            assert prefill.connector.counters.lingering == len(P_BLOCKS)
            held.go_on()

            assert prefill.freed.get(timeout=SECONDS) == "p1"
            assert prefill.connector.counters.lingering == 0
    assert prefill.freed.empty()


def test_what_is_kept_anew_while_its_first_pages_linger_goes_back_too(
    backend: str, decode: FakeCore
) -> None:
    """Preempted, and computed anew before the push was over: its second pages waited for their lease to end."""
    with closing(FakeCore(backend, "vllm-kvt", "prefill")) as prefill:
        asked = arrival("p1", "k", params={"do_remote_decode": True})
        keep = prefill.connector.plan(asked)
        assert isinstance(keep, Keep)
        held = hold_back(prefill.backend)
        with dial(prefill) as sock:
            messages.send(sock, push(decode))
            assert isinstance(messages.receive(sock), messages.Writing)
            prefill.connector.layer_computed("p1", 0, P_BLOCKS, NEEDED)
            assert held.begun.acquire(timeout=SECONDS)
            assert prefill.connector.dropped("p1", "preempted")

            prefill.finish(asked, keep, [1, 3])

            assert prefill.freed.empty()
            held.go_on()
            assert [prefill.freed.get(timeout=10) for _ in range(2)] == ["p1", "p1"]


def test_what_is_in_flight_is_broken_off_where_its_pages_are_needed(
    prefill: FakeCore, decode: FakeCore
) -> None:
    held = hold_back(prefill.backend)
    load(decode, prefill.connector.kv_address[1])
    assert held.begun.acquire(timeout=SECONDS)
    assert prefill.connector.dropped("p1", "preempted")

    prefill.connector.break_off("p1")

    assert prefill.freed.get(timeout=SECONDS) == "p1"
    assert error_of(decode).startswith("expired: preempted")
    assert untouched(decode)


def test_what_is_in_flight_when_a_lease_ends_has_to_land_in_time(
    prefill: FakeCore, decode: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decode engine that says that it lives, and takes nothing, would keep prefill's pages."""
    monkeypatch.setattr(push_table, "GRACE_SECONDS", 0.05)
    held = hold_back(prefill.backend)
    load(decode, prefill.connector.kv_address[1])
    assert held.begun.acquire(timeout=SECONDS)

    assert prefill.connector.dropped("p1", "its lease ended")

    assert prefill.freed.get(timeout=SECONDS) == "p1"
    assert error_of(decode).startswith("expired: its lease ended")


def test_where_no_thread_can_wait_for_it_it_is_broken_off_at_once(
    prefill: FakeCore, decode: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = hold_back(prefill.backend)
    load(decode, prefill.connector.kv_address[1])
    assert held.begun.acquire(timeout=SECONDS)

    with monkeypatch.context() as patch:
        patch.setattr(TransferDeadlines, "add", no_thread)
        assert prefill.connector.dropped("p1", "its lease ended")

    assert prefill.freed.get(timeout=SECONDS) == "p1"


def no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def test_what_decode_gives_up_is_broken_off(prefill: FakeCore, decode: FakeCore) -> None:
    """Behind writes to a hung engine it would keep the pages of this one, too."""
    held = hold_back(prefill.backend)
    load(decode, prefill.connector.kv_address[1])
    assert held.begun.acquire(timeout=SECONDS)

    decode.connector.cancel("d1")

    assert error_of(decode) == "cancelled"
    assert prefill.freed.get(timeout=SECONDS) == "p1"
    assert decode.given_up.empty()


def test_what_is_written_for_one_that_has_hung_up_has_to_land_in_time(
    prefill: FakeCore, decode: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had said how long it waits, which may be an hour."""
    monkeypatch.setattr(push_table, "GRACE_SECONDS", 0.05)
    held = hold_back(prefill.backend)
    with dial(prefill) as sock:
        messages.send(sock, push(decode))
        assert held.begun.acquire(timeout=SECONDS)

    assert prefill.freed.get(timeout=SECONDS) == "p1"


def test_what_decode_has_already_is_not_written(prefill: FakeCore, decode: FakeCore) -> None:
    landed = tiles(decode)
    skipped = push(decode, start=LAYOUT.block_tokens)
    with dial(prefill) as sock:
        messages.send(sock, skipped)
        for _ in range(LAYOUT.layers):
            landed.get(timeout=SECONDS)

    assert decode.holds([D_BLOCKS[1]], seed=1, first=1)
    assert not any(decode.page(0, D_BLOCKS[0]))


def test_a_prompt_that_ends_while_a_connection_looks_arrives(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It did not, where decode's connection looked between the two steps in which all is said to be computed:
    that no more would come, and of how many tokens."""
    with closing(Node(backend, HND)) as prefill, closing(Node(backend, HND)) as decode:
        content = prefill.expect("k", TOKENS)
        decode.load("k", prefill.port, TOKENS)
        table = prefill.pushes
        wait_until(lambda: [push for push in table._pushes.get("k", ()) if push.request], "a push")
        all_computed = table._all_computed

        def looked_at_before(request: PushRequest, tokens: int) -> None:
            for push in table._pushes_of(request):
                table._advance(push, request)
            all_computed(request, tokens)

        monkeypatch.setattr(table, "_all_computed", looked_at_before)
        prefill.kept("k", TOKENS)

        assert decode.result() is None
        assert decode.holds("k", content)
