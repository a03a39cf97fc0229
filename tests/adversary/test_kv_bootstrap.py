"""Mooncake's bootstrap server: who may be a rank, and whose answers are believed."""

import hmac
import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from pdgate.engine.hand_over import bootstrap as servers
from pdgate.engine.hand_over.bootstrap import BootstrapServer, query
from pdgate.transfer.messenger.errors import HandOverError
from pdgate.transfer.runtime.fleet import Identity, key_id
from tests.support.fake_core import SECONDS
from tests.support.kv_strangers import SECRET, member, no_secret, open_identity, raw, rest, stranger

WORKER = {
    "engine_id": "e2", "dp_rank": 1, "tp_rank": 0, "pp_rank": 0, "addr": "tcp://127.0.0.9:7100"
}  # fmt: skip


@pytest.fixture
def server() -> Iterator[BootstrapServer]:
    with closing(BootstrapServer("127.0.0.1", 0, "e1", ("127.0.0.1", 7000), member())) as bootstrap:
        yield bootstrap


def register(port: int, worker: dict[str, object], proof: str = "") -> int:
    headers = {"x-pdgate-kv": proof} if proof else {}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as connection:
        connection.request("POST", "/register", json.dumps(worker), headers)
        return connection.getresponse().status


def proof_of(worker: dict[str, object], secret: str = SECRET, at: float = 0.0) -> str:
    """As docs/wire/vllm-mooncake.md has it."""
    seconds = str(int(at or time.time()))
    said = f"pdgate KV worker {seconds}\0".encode() + json.dumps(worker).encode()
    key = secret.encode()
    return f"{key_id(key).hex()}:{seconds}:{hmac.digest(key, said, 'sha256').hex()}"


def ask(port: int, identity: Identity, rank: int = 0) -> tuple[str, int]:
    return query("127.0.0.1", port, rank, "", time.monotonic() + SECONDS, identity)


def test_one_post_of_a_stranger_is_no_rank(server: BootstrapServer) -> None:
    """Gateways spread calls over the ranks that they find here."""
    wrong = [
        "",
        "::",
        proof_of(WORKER, "another" * 8),
        proof_of({**WORKER, "dp_rank": 2}),
        proof_of(WORKER, at=time.time() - 300),
        proof_of(WORKER)[:-1] + "é",
    ]
    for proof in wrong:
        assert register(server.port, WORKER, proof) in (400, 403)

    with pytest.raises(HandOverError, match="broken peer"):
        ask(server.port, member(), rank=1)


def test_a_worker_of_the_fleet_is_one(server: BootstrapServer) -> None:
    assert register(server.port, WORKER, proof_of(WORKER)) == 200
    assert ask(server.port, member(), rank=1) == ("127.0.0.9", 7100)


@pytest.mark.parametrize(
    "other",
    [
        {"addr": "http://127.0.0.1:80/"},
        {"addr": "tcp://127.0.0.1:80/x"},
        {"addr": "tcp://u:p@127.0.0.1:80"},
        {"addr": "tcp://127.0.0.1"},
        {"addr": "tcp://127.0.0.1:0"},
        {"addr": ""},
        {"dp_rank": -1},
        {"tp_rank": 1 << 40},
        {"engine_id": ""},
        {"engine_id": "e" * 1000},
    ],
)
def test_what_it_names_is_a_worker(server: BootstrapServer, other: dict[str, object]) -> None:
    worker = {**WORKER, **other}

    assert register(server.port, worker, proof_of(worker)) == 422


def test_without_a_secret_only_loopback_is_named() -> None:
    with closing(
        BootstrapServer("127.0.0.1", 0, "e1", ("127.0.0.1", 7000), open_identity())
    ) as bootstrap:
        assert register(bootstrap.port, {**WORKER, "addr": "tcp://10.0.0.1:7100"}) == 403
        assert register(bootstrap.port, WORKER) == 200


def test_an_answer_without_a_proof_is_not_believed(server: BootstrapServer) -> None:
    """Nor one of another fleet: decode would dial what it names."""

    def recorded(sock: socket.socket) -> None:
        sock.settimeout(SECONDS)
        sock.recv(4096)
        body = b'{"0": {"engine_id": "e1", "worker_addr": {"0": {"0": "tcp://127.0.0.1:9"}}}}'
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n"
        sock.sendall(head.encode() + b"x-pdgate-kv: " + b"0" * 64 + b"\r\n\r\n" + body)

    assert ask(server.port, member()) == ("127.0.0.1", 7000)
    with pytest.raises(HandOverError, match="unproven peer"):
        ask(server.port, no_secret())
    with stranger(recorded) as port, pytest.raises(HandOverError, match="unproven peer"):
        ask(port, member())


def test_a_head_byte_by_byte_ends_at_its_deadline(
    server: BootstrapServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = time.monotonic()
    with monkeypatch.context() as brief, raw(("127.0.0.1", server.port)) as sock:
        brief.setattr(servers, "QUERY_SECONDS", 0.3)
        with suppress(OSError):
            sock.settimeout(0.05)
            while time.monotonic() - started < SECONDS:
                sock.sendall(b"G")
                with suppress(TimeoutError):
                    if sock.recv(1) == b"":
                        break
    assert time.monotonic() - started < SECONDS
    with raw(("127.0.0.1", server.port)) as sock:
        sock.sendall(b"GET /query HTTP/1.1\r\n\r\n")
        assert b"200 OK" in rest(sock)
