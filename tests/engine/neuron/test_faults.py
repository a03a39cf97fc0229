"""What goes wrong in the fork goes right here, a test each."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdgate.engine.connector import Keep, Load, Pages
from pdgate.engine.hand_over import neuron
from pdgate.engine.neuron import kv_map, messages, turns
from pdgate.transfer import descriptors
from pdgate.transfer.messenger.receiving import Patience
from pdgate.transfer.messenger.shape import PageShape
from tests.engine.neuron.raw import RawDecode, RawPrefill
from tests.support.engine_pair import D_BLOCKS, P_BLOCKS, arrival
from tests.support.fake_core import LAYOUT, SECONDS, FakeCore
from tests.support.ports import free_port
from tests.support.waiting import wait_until

SHORT = Patience(ping=0.1, silence=2.0, stop=0.1)

Start = Callable[..., FakeCore]


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda role, **options: stack.enter_context(
            closing(FakeCore("shm", "neuron", role, **options))
        )


def to_prefill(n: int = 1) -> Any:
    return arrival(f"p{n}", f"cmpl-{n}_127.0.0.1:9")


def to_decode(p: FakeCore | int, n: int = 1) -> Any:
    port = p if isinstance(p, int) else p.settings.api_port
    return arrival(f"d{n}", f"cmpl-{n}_127.0.0.1:{port}")


def their_map(core: FakeCore, **extra: Any) -> Any:
    return kv_map.as_data(PageShape.of(LAYOUT, core.model), [core.region.descriptor], **extra)


def paired(p: FakeCore, d: FakeCore, identity: str) -> RawDecode:
    """A decode engine that asks, and then posts nothing: dead, or aborted, as you like."""
    raw = RawDecode(p.settings.api_port + 1, identity)
    raw.ask({"type": "kv_map_init", "kv_map": their_map(d, immediate=0), "nc_offset": 0})
    return raw


def threads() -> set[str]:
    """All of this process, also those that are not Python's."""
    return set(os.listdir("/proc/self/task"))


def cpu_seconds(of: set[str]) -> float:
    """Source: Linux, Documentation/scheduler/sched-stats.rst, "/proc/<pid>/schedstat"."""
    spent = 0
    for thread in of:
        # A thread that has ended in between had little to do.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            spent += int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0])
    return spent / 1e9


def test_waiting_costs_next_to_nothing(start: Start) -> None:
    """Both engines are this process, so each has half of it: under 1 % of a core.

    What other tests have left running here is not theirs, and with cold caches a thread that wakes takes longer: of five
    waits the cheapest counts.
    """
    others = threads() - {str(threading.get_native_id())}
    p, d = start("prefill"), start("decode", lease_seconds=3.0)
    # To meet costs more than to wait, and is not what is measured.
    p.prefill(to_prefill(1), P_BLOCKS)
    d.load(to_decode(p, 1), D_BLOCKS)
    assert d.result() is None

    least = 1.0
    for call in range(2, 7):
        begun, used = time.monotonic(), cpu_seconds(threads() - others)
        d.load(to_decode(p, call), D_BLOCKS)
        assert "nothing under" in str(d.result())
        spent = cpu_seconds(threads() - others) - used
        least = min(least, spent / (time.monotonic() - begun))
        if least < 0.02:
            break

    assert least < 0.02


def test_a_signal_plane_that_broke_is_said(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of ours: the engine computes as before, and nobody can get at what it has."""
    p = start("prefill")
    assert p.connector.trouble() == ""

    def broken(frames: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(messages, "decode", broken)
    (plane,) = [one for one in threading.enumerate() if one.name == "neuron-send"]
    with RawDecode(p.settings.api_port + 1) as raw:
        raw.socket.send_multipart([b"", b"{}"])
        plane.join(SECONDS)

    assert p.connector.trouble() == "the signal plane broke: RuntimeError('a bug')"


def test_a_prefill_that_says_nothing_stalls_nobody_else(start: Start) -> None:
    p, d = start("prefill"), start("decode")
    silent = free_port(neighbours=1)
    with RawPrefill(silent + 1) as raw:
        d.load(to_decode(silent, 1), D_BLOCKS[:1])
        assert raw.next() == {"type": "handshake"}
        p.prefill(to_prefill(2), P_BLOCKS)

        d.load(to_decode(p, 2), D_BLOCKS)

        assert d.results.get(timeout=SECONDS) == ("d2", None)


def test_a_prefill_that_says_nothing_is_given_up(start: Start) -> None:
    d = start("decode", patience=SHORT)
    silent = free_port(neighbours=1)
    with RawPrefill(silent + 1):
        d.load(to_decode(silent), D_BLOCKS)

        assert str(d.result()).startswith("silent peer")


def test_a_decode_that_does_not_take_what_it_asked_for_stalls_nobody_else(start: Start) -> None:
    p, d = start("prefill"), start("decode")
    p.prefill(to_prefill(1), (1, 3))
    p.prefill(to_prefill(2), P_BLOCKS)
    with paired(p, d, "127.0.0.1:9") as dead:
        assert dead.look_up("cmpl-1", [8, 9])["success"]

        d.load(to_decode(p, 2), D_BLOCKS)

        assert d.result() is None
        assert d.holds(D_BLOCKS, seed=1)
        assert p.freed.get(timeout=SECONDS) == "p2"


def test_a_transfer_that_is_given_up_frees_its_place_and_its_pages(start: Start) -> None:
    p, d = start("prefill", patience=SHORT, max_seqs=1), start("decode")
    p.prefill(to_prefill(1), (1, 3))
    p.prefill(to_prefill(2), P_BLOCKS)
    with paired(p, d, "127.0.0.1:9") as dead:
        assert dead.look_up("cmpl-1", [8, 9])["success"]

        d.load(to_decode(p, 2), D_BLOCKS)

        assert d.result() is None
        assert {p.freed.get(timeout=SECONDS) for _ in range(2)} == {"p1", "p2"}


def test_who_has_waited_longest_gets_the_place_that_becomes_free(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    # They ask once, and not in a rhythm of their own.
    monkeypatch.setattr(turns, "STALE_SECONDS", SECONDS)
    p, d = start("prefill", patience=SHORT, max_seqs=1), start("decode")
    for n in range(1, 4):
        p.prefill(to_prefill(n), (n, n + 3))
    with (
        paired(p, d, "127.0.0.1:7") as dead,
        paired(p, d, "127.0.0.1:8") as old,
        paired(p, d, "127.0.0.1:9") as new,
    ):
        assert dead.look_up("cmpl-1", [8, 9])["success"]
        assert not old.look_up("cmpl-2", [8, 9])["success"]
        assert not new.look_up("cmpl-3", [8, 9])["success"]
        assert p.freed.get(timeout=SECONDS) == "p1"

        assert not new.look_up("cmpl-3", [8, 9])["success"]
        assert old.look_up("cmpl-2", [8, 9])["success"]


def test_a_decode_that_was_started_again_is_served_under_its_old_name(start: Start) -> None:
    """Also while its earlier life's connection is still there, with a transfer under way."""
    p, d = start("prefill"), start("decode")
    name = f"127.0.0.1:{d.settings.api_port}"
    p.prefill(to_prefill(1), (1, 3))
    p.prefill(to_prefill(2), P_BLOCKS)
    with paired(p, d, name) as earlier:
        assert earlier.look_up("cmpl-1", [8, 9])["success"]

        d.load(to_decode(p, 2), D_BLOCKS)

        assert d.result() is None
        assert d.holds(D_BLOCKS, seed=1)
        assert {p.freed.get(timeout=SECONDS) for _ in range(2)} == {"p1", "p2"}


def test_a_prefill_that_was_started_again_is_met_anew(start: Start) -> None:
    p, d = start("prefill"), start("decode")
    p.prefill(to_prefill(1), P_BLOCKS)
    d.load(to_decode(p, 1), D_BLOCKS)
    assert d.result() is None
    p.connector.close()
    again = neuron.NeuronHandOver(
        core=p, layout=LAYOUT, regions=p.regions, backend=p.backend, settings=p.settings
    )
    p.connector = again

    def served(n: int) -> bool:
        p.prefill(to_prefill(n), P_BLOCKS)
        d.load(to_decode(p, n), D_BLOCKS)
        return d.result() is None

    # The first one may still go to who was there before.
    assert served(2) or served(3)


def falls_silent(d: FakeCore, raw: RawPrefill, api_port: int) -> None:
    """Prefill has promised the pages, may write them, and says nothing more."""
    d.load(to_decode(api_port), D_BLOCKS)
    raw.expect("handshake", {"status": "ok", "timestamp": 1.0})
    ring = d.backend.allocate(2048)
    theirs = their_map(d, ring=descriptors.as_data(ring.descriptor))
    raw.expect("kv_map_init", {"kv_map": theirs, "nc_offset": 0})
    found = {"success": True, "output_token": 7, "block_ids_in_peer_device": list(P_BLOCKS)}
    raw.expect("lookup_all", found)


def test_pages_that_a_silent_prefill_may_write_into_stay_taken(start: Start) -> None:
    d = start("decode", patience=SHORT)
    silent = free_port(neighbours=1)
    with RawPrefill(silent + 1) as raw:
        falls_silent(d, raw, silent)

        assert d.given_up.get(timeout=SECONDS)[0] == "d1"
        assert d.results.empty()
        assert d.connector.counters.stranded == len(D_BLOCKS)

    # It hangs up last of all.
    assert d.result() is not None
    assert d.connector.counters.stranded == 0


def test_a_silent_prefill_that_comes_back_is_asked_whether_it_still_writes(start: Start) -> None:
    d = start("decode", patience=SHORT)
    silent = free_port(neighbours=1)
    with RawPrefill(silent + 1) as raw:
        falls_silent(d, raw, silent)
        assert d.given_up.get(timeout=SECONDS)[0] == "d1"

        while (message := raw.next())["type"] != "abort":
            raw.say({"status": "ok", "timestamp": 2.0})
        raw.say({"success": False})
        assert d.results.empty()
        raw.expect("abort", {"status": "ok", "request_id": message["request_id"]})

        assert d.result() is not None
        assert message["request_id"] == "cmpl-1"


def test_a_load_that_is_cancelled_while_it_is_written_ends_when_nothing_can_land(
    start: Start,
) -> None:
    """Layer by layer, two of three layers are there when the client leaves."""
    p, d = start("prefill"), start("decode")
    keep = p.connector.plan(to_prefill())
    assert isinstance(keep, Keep)
    p.write(P_BLOCKS, seed=1)
    d.load(to_decode(p), D_BLOCKS)
    for layer in range(2):
        p.connector.layer_computed("p1", layer, P_BLOCKS, 8)
    wait_until(lambda: any(d.page(1, D_BLOCKS[1])), "bytes, which tell nobody that they have come")

    d.connector.cancel("d1")
    assert d.results.empty()
    p.connector.layer_computed("p1", 2, P_BLOCKS, 8)

    assert d.result() == "cancelled"
    # Nobody needs its token either.
    assert p.aborted.get(timeout=SECONDS) == "p1"


def test_layers_arrive_before_the_prefill_is_over(start: Start) -> None:
    p, d = start("prefill"), start("decode")
    keep = p.connector.plan(to_prefill())
    assert isinstance(keep, Keep)
    p.write(P_BLOCKS, seed=1)

    d.load(to_decode(p), D_BLOCKS)
    p.connector.layer_computed("p1", 0, P_BLOCKS, 8)
    wait_until(lambda: any(d.page(0, D_BLOCKS[1])), "bytes, which tell nobody that they have come")
    assert not any(d.page(1, D_BLOCKS[0]))
    p.connector.layer_computed("p1", 1, P_BLOCKS, 8)
    p.connector.layer_computed("p1", 2, P_BLOCKS, 8)
    p.connector.kept("p1", keep, Pages(P_BLOCKS, 8), 0, "length")

    assert d.result() is None
    assert d.holds(D_BLOCKS, seed=1)
    assert d.handed == [("d1", 0)]
    assert p.freed.get(timeout=SECONDS) == "p1"


def test_a_prefill_that_is_aborted_half_way_fails_its_reader_and_keeps_no_page(
    start: Start,
) -> None:
    p, d = start("prefill"), start("decode")
    assert isinstance(p.connector.plan(to_prefill()), Keep)
    d.load(to_decode(p), D_BLOCKS)
    p.connector.layer_computed("p1", 0, P_BLOCKS, 8)
    wait_until(
        lambda: d.page(0, D_BLOCKS[0]) == p.page(0, P_BLOCKS[0]),
        "bytes, which tell nobody that they have come",
    )

    in_use = p.connector.dropped("p1", "the client left")

    assert "the client left" in str(d.result())
    if in_use:
        assert p.freed.get(timeout=SECONDS) == "p1"


def test_many_requests_at_once_are_all_served(start: Start) -> None:
    p, d = start("prefill"), start("decode")
    count = 7
    for n in range(count):
        d.load(to_decode(p, n), (2 * n, 2 * n + 1))
    for n in reversed(range(count)):
        p.prefill(to_prefill(n), (2 * n + 1, 2 * n), seed=n)

    ended = dict(d.results.get(timeout=SECONDS) for _ in range(count))

    assert ended == dict.fromkeys((f"d{n}" for n in range(count)), None)
    assert {p.freed.get(timeout=SECONDS) for _ in range(count)} == {f"p{n}" for n in range(count)}


def test_a_request_that_ended_before_it_had_pages_lets_prefill_go(start: Start) -> None:
    p, d = start("prefill"), start("decode")
    p.prefill(to_prefill(), P_BLOCKS)
    load = d.connector.plan(to_decode(p))
    assert isinstance(load, Load)

    d.connector.start("d1", load, Pages((), load.tokens), load.tokens)

    assert d.result() == "cancelled"
    assert p.freed.get(timeout=SECONDS) == "p1"


def test_a_load_that_is_cancelled_before_prefill_knows_of_it_leaves_nothing_behind(
    start: Start,
) -> None:
    p, d = start("prefill"), start("decode")
    d.load(to_decode(p, 1), D_BLOCKS)
    d.connector.cancel("d1")
    assert d.result() == "cancelled"
    # P has heard of it as soon as it answers what was asked afterwards.
    p.prefill(to_prefill(2), P_BLOCKS)
    d.load(to_decode(p, 2), D_BLOCKS)
    assert d.result() is None

    assert p.connector.plan(to_prefill(1)) is None


def test_more_blocks_than_prefill_has_fail_one_request_only(start: Start) -> None:
    p, d = start("prefill"), start("decode")
    p.prefill(to_prefill(1), P_BLOCKS)
    longer = replace(to_decode(p, 1), prompt=tuple(range(12)))
    d.load(longer, (4, 5, 6))
    assert "3 blocks to fill from 2" in str(d.result())

    p.prefill(to_prefill(2), (1, 3))
    d.load(to_decode(p, 2), D_BLOCKS)

    assert d.result() is None
