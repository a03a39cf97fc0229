"""What is said is what AWS Neuron's fork says, so either side could be replaced by it.

Source: AWS Neuron's vLLM V0 fork, neuron_buffer.py, zmq_util.py.
"""

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from math import inf
from typing import Any, Self

import pytest

from pdgate.engine.connector import Keep
from pdgate.engine.hand_over.neuron import NeuronHandOver
from pdgate.engine.neuron import kv_map, peers
from pdgate.engine.neuron.dealer import MAX_ANSWER_BYTES, Dealer
from pdgate.engine.neuron.send_buffer import MAX_MESSAGE_BYTES, MAX_STRANGERS_BYTES
from pdgate.transfer import descriptors
from pdgate.transfer.messenger.receiving import Patience
from pdgate.transfer.messenger.shape import PageShape
from pdgate.transfer.runtime.fleet import Identity
from tests.engine.neuron.raw import SECONDS, RawDecode, RawPrefill
from tests.support import zmtp
from tests.support.engine_pair import D_BLOCKS, P_BLOCKS, PROMPT, arrival
from tests.support.fake_core import LAYOUT, FakeCore
from tests.support.kv_strangers import member
from tests.support.ports import free_port
from tests.support.waiting import wait_until

UID = "cmpl-u"
ROLES = ("prefill", "decode")


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


IPV6 = has_ipv6()


@pytest.fixture
def prefill() -> Iterator[FakeCore]:
    with closing(FakeCore("tcp", "neuron", "prefill")) as core:
        yield core


@pytest.fixture
def decode(prefill: FakeCore) -> Iterator[RawDecode]:
    with RawDecode(prefill.settings.api_port + 1) as raw:
        yield raw


def of_decode(core: FakeCore, **extra: Any) -> Any:
    """A KV map as our decode engines send it."""
    shape = PageShape.of(LAYOUT, core.model)
    return kv_map.as_data(shape, [core.region.descriptor], immediate=0, **extra)


def of_prefill(core: FakeCore) -> Any:
    """One that `core` accepts: its own memory will do, as nothing is written."""
    ring = core.backend.allocate(2048)
    shape = PageShape.of(LAYOUT, core.model)
    said = descriptors.as_data(ring.descriptor)
    return kv_map.as_data(shape, [core.region.descriptor], ring=said)


def pair(decode: RawDecode, core: FakeCore) -> Any:
    return decode.ask({"type": "kv_map_init", "kv_map": of_decode(core), "nc_offset": 0})


def asked(uid: str = UID, request_id: str = "p1", tokens: int = len(PROMPT)) -> Any:
    return arrival(request_id, f"{uid}_127.0.0.1:9", prompt=tuple(range(tokens)))


def test_a_handshake_is_answered_with_the_time(decode: RawDecode) -> None:
    said = decode.ask({"type": "handshake"})

    assert said.keys() == {"status", "timestamp"}
    assert said["status"] == "ok"


def test_kv_maps_are_exchanged(decode: RawDecode, prefill: FakeCore) -> None:
    said = pair(decode, prefill)

    assert said.keys() == {"kv_map", "nc_offset"}
    assert said["kv_map"]["version"] == "0.1"
    assert said["kv_map"]["heads"] == {"0": [0, 1]}


def test_a_request_that_is_not_there_is_no_success_and_no_error(
    decode: RawDecode, prefill: FakeCore
) -> None:
    pair(decode, prefill)

    assert decode.look_up(UID, [4, 5]) == {"success": False}


@pytest.mark.parametrize("token", [7, 0])
def test_a_request_that_is_there_comes_with_token_and_blocks(
    decode: RawDecode, prefill: FakeCore, token: int
) -> None:
    """Token 0 is a token; the fork takes it for none."""
    pair(decode, prefill)
    prefill.prefill(asked(), P_BLOCKS, first_token=token)

    assert decode.look_up(UID, [4, 5]) == {
        "success": True,
        "output_token": token,
        "block_ids_in_peer_device": list(P_BLOCKS),
    }


def test_layer_by_layer_the_token_is_looked_up_afterwards(
    decode: RawDecode, prefill: FakeCore
) -> None:
    pair(decode, prefill)
    to_keep = asked()
    keep = prefill.connector.plan(to_keep)
    assert isinstance(keep, Keep)
    prefill.connector.layer_computed(to_keep.id, 0, P_BLOCKS, 4)
    token = {"request_id": UID, "block_ids_in_peer_device": [4, 5], "type": "lookup_token"}

    assert decode.look_up(UID, [4, 5]) == {
        "success": True,
        "output_token": None,
        "block_ids_in_peer_device": list(P_BLOCKS),
    }
    assert decode.ask(token) == {"success": False}
    prefill.finish(to_keep, keep, P_BLOCKS, first_token=0)
    assert decode.ask(token) == {"success": True, "output_token": 0}


def test_without_that_a_request_is_not_there_before_its_token() -> None:
    with ExitStack() as stack:
        p = stack.enter_context(closing(FakeCore("tcp", "neuron", "prefill")))
        p.connector.close()
        p.settings = replace(p.settings, layer_wise=False)
        p.connector = connector_of(p)
        decode = stack.enter_context(RawDecode(p.settings.api_port + 1))
        pair(decode, p)
        to_keep = asked()
        keep = p.connector.plan(to_keep)
        assert isinstance(keep, Keep)
        for layer in range(LAYOUT.layers):
            p.connector.layer_computed(to_keep.id, layer, P_BLOCKS, len(PROMPT))

        assert decode.look_up(UID, [4, 5]) == {"success": False}
        p.finish(to_keep, keep, P_BLOCKS, first_token=0)
        assert decode.look_up(UID, [4, 5])["output_token"] == 0


def connector_of(core: FakeCore) -> NeuronHandOver:
    """By the settings that it has now."""
    return NeuronHandOver(
        core=core,
        layout=LAYOUT,
        regions=core.regions,
        backend=core.backend,
        settings=core.settings,
    )


@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 8, 12])
def test_a_prompt_takes_the_blocks_that_it_fills(
    decode: RawDecode, prefill: FakeCore, tokens: int
) -> None:
    """The fork sends one block too many where the length is a multiple of a block's."""
    pair(decode, prefill)
    blocks = list(range(LAYOUT.blocks_for(tokens)))
    prefill.prefill(asked(tokens=tokens), blocks)

    assert decode.look_up(UID, [None])["block_ids_in_peer_device"] == blocks


@pytest.mark.parametrize(
    "data",
    [
        b'{"type": "farewell"}',
        b'{"type": null}',
        b"{}",
        b"[]",
        b"not json",
        b"\xff\xfe",
        b'{"type": "lookup_all"}',
        b'{"type": "lookup_all", "request_id": 7, "block_ids_in_peer_device": []}',
        b'{"type": "lookup_all", "request_id": "u", "block_ids_in_peer_device": ["x"]}',
        b'{"type": "lookup_all", "request_id": "u", "block_ids_in_peer_device": [-1]}',
        b'{"type": "kv_map_init"}',
        b'{"type": "kv_map_init", "kv_map": {}, "nc_offset": 0}',
        b"[" * 100_000,
    ],
)
def test_what_cannot_be_understood_is_answered_with_an_error(
    decode: RawDecode, prefill: FakeCore, data: bytes
) -> None:
    """The fork's thread ends over it, and with it everybody's transfers."""
    said = decode.ask_bytes(data)

    assert said.keys() == {"status", "message"}
    assert said["status"] == "error"
    assert decode.ask({"type": "handshake"})["status"] == "ok"


def test_a_lookup_without_a_kv_map_says_what_is_missing(
    decode: RawDecode, prefill: FakeCore
) -> None:
    assert "KV map first" in decode.look_up(UID, [])["message"]


@pytest.mark.parametrize("frames", [[b"{}"], [b"", b"{}", b""], [b"x", b"{}"]])
def test_frames_that_are_none_are_answered_too(decode: RawDecode, frames: list[bytes]) -> None:
    decode.socket.send_multipart(frames)

    assert b"error" in decode.socket.recv_multipart()[1]


def test_decode_says_what_the_fork_says() -> None:
    """Against a prefill that answers by the book, up to where the Neuron runtime begins."""
    with ExitStack() as stack:
        p_port = free_port(neighbours=1)
        raw = stack.enter_context(RawPrefill(p_port + 1))
        d = stack.enter_context(closing(FakeCore("tcp", "neuron", "decode")))
        d.load(arrival("d1", f"{UID}_127.0.0.1:{p_port}"), D_BLOCKS)

        assert raw.expect("handshake", {"status": "ok", "timestamp": 1.0}) == {"type": "handshake"}
        assert raw.identity.decode() == f"127.0.0.1:{d.settings.api_port}"
        said = raw.expect("kv_map_init", {"kv_map": of_prefill(d), "nc_offset": 0})
        assert said.keys() == {"type", "kv_map", "nc_offset"}
        assert said["nc_offset"] == 0
        first = raw.expect("lookup_all", {"success": False})
        again = raw.expect("lookup_all", {"status": "error", "message": "expired: too late"})

    assert first == again == {
        "type": "lookup_all",
        "request_id": UID,
        "block_ids_in_peer_device": list(D_BLOCKS),
    }  # fmt: skip
    assert d.result() == "expired: too late"


def test_the_prefill_of_a_static_pair_is_met_before_any_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also one that starts after its decode, and again after it was gone."""
    monkeypatch.setattr(peers, "MEET_AGAIN_SECONDS", 0.01)
    with ExitStack() as stack:
        p_port = free_port(neighbours=1)
        d = stack.enter_context(
            closing(FakeCore("tcp", "neuron", "decode", peer=f"127.0.0.1:{p_port}"))
        )
        for _ in range(2):
            with RawPrefill(p_port + 1) as raw:
                raw.expect("handshake", {"status": "ok", "timestamp": 1.0})
                raw.expect("kv_map_init", {"kv_map": of_prefill(d), "nc_offset": 0})

        assert d.results.empty()


def test_answers_for_an_earlier_life_are_passed_over() -> None:
    """Who had our identity before us may have asked, and the answer finds us."""
    with ExitStack() as stack:
        p_port = free_port(neighbours=1)
        # Prefill hangs up first: decode would wait for it before it ends.
        d = stack.enter_context(closing(FakeCore("tcp", "neuron", "decode")))
        raw = stack.enter_context(RawPrefill(p_port + 1))
        d.load(arrival("d1", f"{UID}_127.0.0.1:{p_port}"), D_BLOCKS)
        raw.expect("handshake", {"success": False})
        raw.say({"status": "ok", "timestamp": 1.0})

        raw.expect("kv_map_init", {"kv_map": of_prefill(d), "nc_offset": 0})
        assert raw.next()["type"] == "lookup_all"


def test_ids_of_prompts_in_a_list_are_told_apart(prefill: FakeCore) -> None:
    """vLLM puts the prompt's index behind the id; ours come as an index of their own."""
    for index in range(3):
        one = arrival(f"p{index}", "cmpl-a_b-1_[::1]:9")
        assert isinstance(
            prefill.connector.plan(type(one)(one.id, one.wire_id, one.prompt, None, {}, index)),
            Keep,
        )
    with pytest.raises(ValueError, match="another live request has the uid 'cmpl-a_b-1-2'"):
        prefill.connector.plan(arrival("p9", "cmpl-a_b-1_[::1]:9-2"))


def test_an_id_that_is_nobodys_is_computed_here(prefill: FakeCore) -> None:
    assert prefill.connector.plan(arrival("p1", "someone's own")) is None
    assert prefill.freed.empty()


@pytest.mark.skipif(not IPV6, reason="this machine has no IPv6")
def test_engines_on_ipv6_find_each_other() -> None:
    with ExitStack() as stack:
        p, d = (stack.enter_context(closing(FakeCore("shm", "neuron", r))) for r in ROLES)
        for core in (p, d):
            core.connector.close()
            core.settings = replace(core.settings, host="::1", kv_host="::1")
            core.connector = connector_of(core)
        assert p.connector.kv_address == ("::1", p.settings.api_port + 1)
        p.prefill(arrival("p1", "cmpl-a_b_[::1]:9-0"), P_BLOCKS)

        d.load(arrival("d1", f"cmpl-a_b_[::1]:{p.settings.api_port}-0"), D_BLOCKS)

        assert d.result() is None
        assert d.holds(D_BLOCKS, seed=1)


def test_a_port_that_is_taken_is_said_at_the_start(prefill: FakeCore) -> None:
    with pytest.raises(OSError, match=str(prefill.settings.api_port + 1)):
        connector_of(prefill)


@pytest.fixture
def fleets_prefill() -> Iterator[FakeCore]:
    with closing(FakeCore("tcp", "neuron", "prefill", identity=member())) as core:
        yield core


@pytest.mark.parametrize(
    ("whose", "said"),
    [
        ("prefill", zmtp.frame(zmtp.MORE, b"x" * 1_000_000) * 64),
        ("prefill", zmtp.frame(zmtp.MORE, b"") * 1_000_000),
        ("prefill", zmtp.frame(0, b"x" * (MAX_MESSAGE_BYTES + 1))),
        ("fleets_prefill", zmtp.frame(zmtp.MORE, b"x" * 1_000_000) * 64),
        ("fleets_prefill", zmtp.frame(0, b"x" * (MAX_STRANGERS_BYTES + 1))),
    ],
    ids=["endless", "endless-empty", "long", "endless-of-a-stranger", "long-of-a-stranger"],
)
def test_what_would_fill_memory_ends_its_connection(
    whose: str, said: bytes, request: pytest.FixtureRequest
) -> None:
    """ZeroMQ kept the parts of a message that never ended; a stranger needed no secret for that."""
    core: FakeCore = request.getfixturevalue(whose)
    at = ("127.0.0.1", core.settings.api_port + 1)
    with (
        socket.create_connection(at, timeout=SECONDS) as flood,
        contextlib.suppress(ConnectionError),
    ):
        flood.sendall(zmtp.GREETING + zmtp.READY + said)
        while flood.recv(4096):
            pass
    with RawDecode(at[1]) as decode:
        assert decode.ask({"type": "handshake"})
    assert core.connector.trouble() == ""


def test_a_wake_up_while_an_answer_is_waited_for_is_not_lost() -> None:
    """It is for what follows the answer: a load that came then was found when something else came."""
    port = free_port()
    with (
        RawPrefill(port) as raw,
        closing(Dealer("127.0.0.1:9", "127.0.0.1", port, SECONDS, Identity())) as dealer,
    ):

        def asks_and_waits() -> None:
            dealer.connect()
            dealer.ask({"type": "lookup_all"})
            dealer.wait(inf)

        asking = threading.Thread(target=asks_and_waits)
        asking.start()
        raw.expect("handshake", {"status": "ok", "timestamp": 1.0})
        assert raw.next() == {"type": "lookup_all"}
        dealer.wake()
        wait_until(lambda: not select.select([dealer.wake], [], [], 0)[0], "a thread that woke")
        raw.say({"success": False})
        asking.join(SECONDS)
        woke = not asking.is_alive()
        dealer.wake()
        asking.join(SECONDS)

    assert woke


class Flood:
    """One that answers where P should be, with the same for ever.

    Attributes:
        took: Bytes that D's side, or a kernel, has taken.
    """

    def __init__(self, said: bytes) -> None:
        self.took = 0
        self._said = said
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._answer)

    def _answer(self) -> None:
        peer, _ = self._server.accept()
        with peer, contextlib.suppress(ConnectionError):
            peer.settimeout(SECONDS)
            peer.sendall(zmtp.GREETING + zmtp.ROUTER_READY)
            while self.took < MUCH_BYTES:
                self.took += peer.send(self._said)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(SECONDS)
        self._server.close()


MUCH_BYTES = 256 << 20
KERNEL_BYTES = 16 << 20
"""Of both ends, with what the test has in hand."""


@pytest.mark.parametrize(
    "said",
    [
        zmtp.frame(zmtp.MORE, b"x" * 1_000_000),
        zmtp.frame(zmtp.MORE, b"") * 100_000,
        zmtp.frame(0, b"x" * (MAX_ANSWER_BYTES + 1)),
    ],
    ids=["endless", "endless-empty", "long"],
)
def test_an_answer_that_would_fill_memory_ends_its_connection(said: bytes) -> None:
    """ZeroMQ kept it all, in the decode engine, of whatever answers where its prefill engine was."""
    with closing(FakeCore("tcp", "neuron", "decode")) as d, Flood(said) as flood:
        d.load(arrival("d1", f"{UID}_127.0.0.1:{flood.port - 1}"), D_BLOCKS)

        assert "nobody is at" in str(d.result())
    assert flood.took < MAX_ANSWER_BYTES + KERNEL_BYTES


def test_a_peer_that_says_all_but_the_answer_is_silent() -> None:
    """Else D's thread would read it for ever; what it says waits in the kernel meanwhile."""
    said = zmtp.message(b"", b'{"status": "ok"}') * 10_000
    patience = Patience(silence=0.5)
    with closing(FakeCore("tcp", "neuron", "decode", patience=patience)) as d, Flood(said) as flood:
        d.load(arrival("d1", f"{UID}_127.0.0.1:{flood.port - 1}"), D_BLOCKS)

        assert "has not answered in 0.5 s" in str(d.result())
