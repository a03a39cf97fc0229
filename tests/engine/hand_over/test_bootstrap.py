"""Mooncake's bootstrap server, as gateways and vLLM read it."""

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from pdgate.engine.hand_over.bootstrap import Bootstrap, query
from pdgate.protocols.dialects.mooncake import engine_ids
from pdgate.transfer.listener import Listener
from pdgate.transfer.messenger.errors import HandOverError

SECONDS = 10.0


@pytest.fixture
def server() -> Iterator[Bootstrap]:
    with closing(Bootstrap("127.0.0.1", 0, "engine-1", ("127.0.0.1", 7000))) as bootstrap:
        yield bootstrap


def get(port: int, target: str, method: str = "GET") -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as connection:
        connection.request(method, target)
        response = connection.getresponse()
        return response.status, response.read()


def ask(port: int, rank: int = 0, engine_id: str = "") -> tuple[str, int]:
    return query("127.0.0.1", port, rank, engine_id, time.monotonic() + SECONDS)


def test_the_answer_is_what_a_gateway_reads(server: Bootstrap) -> None:
    status, body = get(server.port, "/query")

    assert status == 200
    assert engine_ids(json.loads(body)) == ((0, "engine-1"),)
    assert json.loads(body)["0"]["worker_addr"] == {"0": {"0": "tcp://127.0.0.1:7000"}}


def test_a_reader_finds_the_kv_side(server: Bootstrap) -> None:
    assert ask(server.port, engine_id="engine-1") == ("127.0.0.1", 7000)
    assert ask(server.port) == ("127.0.0.1", 7000)


def test_an_address_of_version_six_has_its_brackets() -> None:
    with closing(Bootstrap("127.0.0.1", 0, "e", ("::1", 7000))) as server:
        assert ask(server.port) == ("::1", 7000)


def test_another_engine_or_rank_is_not_there(server: Bootstrap) -> None:
    with pytest.raises(HandOverError, match="wrong engine"):
        ask(server.port, engine_id="engine-0")
    with pytest.raises(HandOverError, match="broken peer"):
        ask(server.port, rank=1)


def test_anything_else_is_not_found(server: Bootstrap) -> None:
    assert get(server.port, "/")[0] == 404
    assert get(server.port, "/query", "POST")[0] == 404


def test_a_head_without_end_is_refused(server: Bootstrap) -> None:
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
