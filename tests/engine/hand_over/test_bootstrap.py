"""Mooncake's bootstrap server, as gateways and vLLM read it."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from pdgate.engine.hand_over import bootstrap
from pdgate.engine.hand_over.bootstrap import BootstrapServer, query
from pdgate.protocols.dialects.mooncake import engine_ids
from pdgate.transfer.messenger.errors import HandOverError
from pdgate.transfer.runtime.fleet import Identity
from pdgate.transfer.runtime.listener import Listener
from tests.support import waiting
from tests.support.engine_pair import D_BLOCKS, arrival
from tests.support.fake_core import FakeCore

SECONDS = waiting.PATIENCE_SECONDS


@pytest.fixture
def server() -> Iterator[BootstrapServer]:
    with closing(BootstrapServer("127.0.0.1", 0, "engine-1", ("127.0.0.1", 7000))) as made:
        yield made


def get(
    port: int, target: str, method: str = "GET", body: bytes | None = None
) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as connection:
        connection.request(method, target, body)
        response = connection.getresponse()
        return response.status, response.read()


def ask(port: int, rank: int = 0, engine_id: str = "") -> tuple[str, int]:
    return query("127.0.0.1", port, rank, engine_id, time.monotonic() + SECONDS, Identity())


def test_the_answer_is_what_a_gateway_reads(server: BootstrapServer) -> None:
    status, body = get(server.port, "/query")

    assert status == 200
    assert engine_ids(json.loads(body)) == ((0, "engine-1"),)
    assert json.loads(body)["0"]["worker_addr"] == {"0": {"0": "tcp://127.0.0.1:7000"}}


def test_all_ranks_of_its_own_engine_are_in_the_answer(server: BootstrapServer) -> None:
    """By tensor rank and pipeline stage, as vLLM's workers register."""
    at = [("127.0.0.1", port) for port in (7000, 7001, 7002, 7003)]

    server.register_ranks("engine-1", 2, at)

    (found,) = json.loads(get(server.port, "/query")[1]).values()
    assert found["worker_addr"] == {
        "0": {"0": "tcp://127.0.0.1:7000", "1": "tcp://127.0.0.1:7002"},
        "1": {"0": "tcp://127.0.0.1:7001", "1": "tcp://127.0.0.1:7003"},
    }
    assert ask(server.port) == at[0]


def test_a_reader_finds_the_kv_side(server: BootstrapServer) -> None:
    assert ask(server.port, engine_id="engine-1") == ("127.0.0.1", 7000)
    assert ask(server.port) == ("127.0.0.1", 7000)


def test_an_address_of_version_six_has_its_brackets() -> None:
    with closing(BootstrapServer("127.0.0.1", 0, "e", ("::1", 7000))) as server:
        assert ask(server.port) == ("::1", 7000)


def test_another_engine_or_rank_is_not_there(server: BootstrapServer) -> None:
    with pytest.raises(HandOverError, match="wrong engine"):
        ask(server.port, engine_id="engine-0")
    with pytest.raises(HandOverError, match="broken peer"):
        ask(server.port, rank=1)


WORKER = {
    "engine_id": "engine-2", "dp_rank": 1, "tp_rank": 0, "pp_rank": 0, "addr": "tcp://127.0.0.2:7100"
}  # fmt: skip


def register(port: int, **other: object) -> tuple[int, object]:
    status, body = get(port, "/register", "POST", json.dumps({**WORKER, **other}).encode())
    return status, json.loads(body)


def test_workers_of_other_ranks_register_as_vllms_do(server: BootstrapServer) -> None:
    assert register(server.port) == (200, {"status": "ok"})
    assert register(server.port, tp_rank=1, addr="tcp://127.0.0.2:7101")[0] == 200

    assert json.loads(get(server.port, "/query")[1]) == {
        "0": {"engine_id": "engine-1", "worker_addr": {"0": {"0": "tcp://127.0.0.1:7000"}}},
        "1": {
            "engine_id": "engine-2",
            "worker_addr": {"0": {"0": "tcp://127.0.0.2:7100"}, "1": {"0": "tcp://127.0.0.2:7101"}},
        },
    }
    assert ask(server.port, rank=1, engine_id="engine-2") == ("127.0.0.2", 7100)


def test_a_worker_may_say_the_same_again(server: BootstrapServer) -> None:
    """It does when the answer to the first time was lost."""
    register(server.port)

    assert register(server.port) == (200, {"status": "ok"})


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"engine_id": "engine-3"}, "Engine ID mismatch for dp_rank=1: expected engine-2"),
        ({"addr": "tcp://127.0.0.3:7100"}, "already registered at tcp://127.0.0.2:7100"),
        # Nobody takes the place of the engine that runs the server.
        ({"dp_rank": 0}, "Engine ID mismatch for dp_rank=0: expected engine-1"),
    ],
)
def test_a_worker_that_contradicts_an_earlier_one_is_refused(
    server: BootstrapServer, other: dict[str, object], said: str
) -> None:
    register(server.port)
    before = get(server.port, "/query")

    status, answer = register(server.port, **other)

    assert status == 400
    assert isinstance(answer, dict)
    assert said in answer["detail"]
    assert get(server.port, "/query") == before


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"engine_id": "e"}', b'{"dp_rank": "0"}'])
def test_a_registration_of_another_kind_is_unprocessable(
    server: BootstrapServer, body: bytes
) -> None:
    assert get(server.port, "/register", "POST", body)[0] == 422


def test_a_registration_that_is_too_long_is_not_read(server: BootstrapServer) -> None:
    head = f"POST /register HTTP/1.1\r\nContent-Length: {65 << 10}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) as sock:
        sock.sendall(head)

        assert sock.recv(12) == b"HTTP/1.1 413"


def test_a_body_may_come_late(server: BootstrapServer) -> None:
    body = json.dumps(WORKER).encode()
    head = f"POST /register HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) as sock:
        for piece in (head[:9], head[9:], body[:7], body[7:]):
            sock.sendall(piece)

        assert sock.recv(15) == b"HTTP/1.1 200 OK"


def test_anything_else_is_not_found(server: BootstrapServer) -> None:
    assert get(server.port, "/")[0] == 404
    assert get(server.port, "/query", "POST")[0] == 404
    assert get(server.port, "/register")[0] == 404


def test_a_head_without_end_is_refused(server: BootstrapServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) as sock:
        sock.sendall(b"GET /query HTTP/1.1\r\n" + b"a: b\r\n" * 2728)

        assert sock.recv(12) == b"HTTP/1.1 431"


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"0": 5}', b'{"0": {"engine_id": "e", "worker_addr": {}}}']
)
def test_an_answer_of_another_kind_is_a_named_error(body: bytes) -> None:
    def serve(sock: socket.socket) -> None:
        sock.recv(4096)
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)

    sock = socket.create_server(("127.0.0.1", 0))
    with (
        closing(Listener("test", sock, serve)),
        pytest.raises(HandOverError, match="broken peer"),
    ):
        ask(sock.getsockname()[1])


def drip(sock: socket.socket) -> None:
    """An answer that never ends, and that never pauses for long."""
    sock.recv(4096)
    sock.sendall(b"HTTP/1.1 200 OK\r\n")
    with suppress(OSError):
        while True:
            sock.sendall(b"a")
            time.sleep(0.05)


def test_an_answer_has_to_be_whole_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "QUERY_SECONDS", 0.3)
    sock = socket.create_server(("127.0.0.1", 0))
    with (
        closing(Listener("test", sock, drip)),
        pytest.raises(HandOverError, match="timed out"),
    ):
        ask(sock.getsockname()[1])


def test_a_load_whose_bootstrap_server_does_not_answer_is_cancelled_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bootstrap, "QUERY_SECONDS", 2 * SECONDS)
    asked = threading.Event()

    def serve(sock: socket.socket) -> None:
        asked.set()
        drip(sock)

    sock = socket.create_server(("127.0.0.1", 0))
    with (
        closing(Listener("test", sock, serve)),
        closing(FakeCore("tcp", "vllm-mooncake", "decode", lease_seconds=2 * SECONDS)) as decode,
    ):
        at = {
            "do_remote_prefill": True,
            "bootstrap_server_host": "127.0.0.1",
            "bootstrap_server_port": sock.getsockname()[1],
        }
        decode.load(arrival("d1", "k", params=at), D_BLOCKS)
        assert asked.wait(SECONDS)

        decode.connector.cancel("d1")

        assert decode.result() == "cancelled"
