"""What vllm-mooncake has of its own."""

import socket
from contextlib import closing
from dataclasses import replace

import pytest

from pdgate.engine.hand_over.bootstrap import BootstrapServer
from pdgate.engine.hand_over.mooncake import Once
from pdgate.transfer.runtime.listener import Listener
from tests.support.engine_pair import D_BLOCKS, DIALECTS, Start, arrival, prefill
from tests.support.fake_core import SECONDS, FakeCore


@pytest.mark.parametrize("dialect", [d for d in DIALECTS if d.startswith("vllm-mooncake")])
def test_mooncake_keeps_nothing_of_a_prompt_that_stopped_by_itself(
    dialect: str, start: Start
) -> None:
    pair = start(dialect)

    assert prefill(pair, finish_reason="stop") is None

    assert pair.p.freed.get(timeout=SECONDS) == "p1"
    if not pair.serial:
        pair.d.load(pair.to_decode(), D_BLOCKS)
        error = pair.d.result()
        assert error is not None
        assert error.startswith("expired: the request finished by 'stop'")


@pytest.mark.parametrize("dialect", ["vllm-mooncake c", "vllm-mooncake d"])
def test_mooncake_checks_the_engine_id(dialect: str, start: Start) -> None:
    pair = start(dialect)
    prefill(pair)
    to_decode = pair.to_decode()
    wrong = {**(to_decode.params or {}), "remote_engine_id": "an earlier one"}

    pair.d.load(replace(to_decode, params=wrong), D_BLOCKS)

    error = pair.d.result()
    assert error is not None
    assert error.startswith("wrong engine")


def test_a_transfer_id_is_good_for_one_request_on_each_side(start: Start) -> None:
    """Even if the first has ended, and whichever engine the second use comes to."""
    pair = start("vllm-mooncake d")
    prefill(pair)
    to_decode = pair.to_decode()
    pair.d.load(to_decode, D_BLOCKS)
    assert pair.d.result() is None
    pair.p.freed.get(timeout=SECONDS)

    with pytest.raises(ValueError, match="'xfer-1' was used before"):
        pair.p.connector.plan(replace(pair.to_prefill(), id="p2"))
    with pytest.raises(ValueError, match="'xfer-1' was used before"):
        pair.d.connector.plan(replace(to_decode, id="d2"))


def test_a_worker_of_vllms_own_is_a_named_error() -> None:
    """It greets in ZMQ, which is not what our engines speak to one another."""

    def greet(sock: socket.socket) -> None:
        sock.sendall(b"\xff\0\0\0\0\0\0\0\x01\x7f")
        sock.recv(1)

    listening = socket.create_server(("127.0.0.1", 0))
    with (
        closing(Listener("zmq", listening, greet)),
        closing(BootstrapServer("127.0.0.1", 0, "vllm", listening.getsockname())) as bootstrap,
        closing(FakeCore("tcp", "vllm-mooncake", "decode")) as d,
    ):
        params = {
            "do_remote_prefill": True,
            "transfer_id": "xfer-1",
            "remote_engine_id": "vllm",
            "remote_bootstrap_addr": f"http://127.0.0.1:{bootstrap.port}",
        }
        d.load(arrival("d1", params=params), D_BLOCKS)

        error = d.result()

    assert error is not None
    assert error.startswith("unproven peer")
    assert "knows no KV handshake" in error


def test_the_second_use_is_refused() -> None:
    once = Once()
    once.use("a")
    once.use("b")

    with pytest.raises(ValueError, match="'a' was used before"):
        once.use("a")


def test_only_the_latest_are_remembered() -> None:
    once = Once(most=2)
    for id in "abc":
        once.use(id)

    once.use("a")
    with pytest.raises(ValueError, match="used before"):
        once.use("c")
