"""What engines get of clients' headers, and clients of engines'."""

from pathlib import Path

import pytest

from pdgate.gateway.config import ConfigError, load
from pdgate.gateway.config.api_keys import ApiKeyEntry
from pdgate.gateway.security.keys import hash_of
from pdgate.protocols.instance import Role
from tests.support.answers import piece
from tests.support.fleet import ANSWER, Engine, Gateway, as_json, gateway_of, says, streams
from tests.support.raw_server import Peer, reply

pytestmark = pytest.mark.usefixtures("front_end")

CLIENTS = "pdg-a-key-of-a-client"
ENGINES = "a-key-that-engines-ask-for"
KEY = ApiKeyEntry(name="team-a", sha256=hash_of(CLIENTS.encode()))


@pytest.fixture
def engine_key_file(tmp_path: Path) -> str:
    file = tmp_path / "engine-key"
    file.write_text(f"{ENGINES}\n")
    return str(file)


async def asked_with(gateway: Gateway) -> list[bytes | None]:
    """The authorization that each engine got of one call."""
    answer = await gateway.chat({"authorization": f"Bearer {CLIENTS}"})
    assert answer.status_code == 200
    assert ENGINES not in answer.text + str(answer.headers)
    return [engine.calls[-1].header(b"authorization") for engine in gateway.engines]


def pair() -> tuple[Engine, Engine]:
    return Engine(Role.PREFILL), Engine(Role.DECODE)


async def test_without_keys_of_our_own_the_clients_is_the_engines() -> None:
    async with gateway_of(*pair()) as gateway:
        assert await asked_with(gateway) == [f"Bearer {CLIENTS}".encode()] * 2


async def test_a_key_for_the_gateway_stays_with_it() -> None:
    async with gateway_of(*pair(), api_keys=(KEY,)) as gateway:
        assert await asked_with(gateway) == [None, None]


async def test_a_key_may_be_dropped_or_passed_where_that_is_wanted() -> None:
    async with gateway_of(*pair(), client_authorization="drop") as gateway:
        assert await asked_with(gateway) == [None, None]
    async with gateway_of(*pair(), api_keys=(KEY,), client_authorization="pass") as gateway:
        assert await asked_with(gateway) == [f"Bearer {CLIENTS}".encode()] * 2


async def test_engines_get_their_own_key_with_calls_and_probes(engine_key_file: str) -> None:
    """An engine with --api-key answers neither without it."""

    class Strict(Engine):
        async def serve(self, peer: Peer) -> None:
            if peer.request.header(b"authorization") == f"Bearer {ENGINES}".encode():
                await super().serve(peer)
            else:
                await peer.send(reply(b"", b"401 Unauthorized"))

    engines = Strict(Role.PREFILL), Strict(Role.DECODE)
    async with gateway_of(*engines, engine_key_file=engine_key_file) as gateway:
        assert (await gateway.http.get("/ready")).json()["ready"]
        assert await asked_with(gateway) == [f"Bearer {ENGINES}".encode()] * 2


async def test_more_headers_pass_where_that_is_wanted() -> None:
    engine = Engine(Role.PLAIN, says(as_json(ANSWER, b"200 OK", b"x-model: big", b"x-node: n7")))
    more = {"forward_headers": "X-Tenant", "return_headers": "x-model"}
    async with gateway_of(engine, **more) as gateway:
        answer = await gateway.chat({"x-tenant": "t", "x-other": "o"})

        assert engine.calls[0].header(b"x-tenant") == b"t"
        assert engine.calls[0].header(b"x-other") is None
        assert answer.headers["x-model"] == "big"
        assert "x-node" not in answer.headers


async def test_nothing_of_an_engines_head_gets_out_unasked() -> None:
    for script in (
        says(as_json(ANSWER, b"200 OK", b"server: uvicorn", b"x-node: 10.0.0.7", b"set-cookie: a")),
        streams(piece("a", "stop"), b"data: [DONE]\n\n"),
        says(as_json({"error": {}}, b"400 Bad Request", b"server: u", b"via: 10.0.0.7")),
    ):
        async with gateway_of(Engine(Role.PLAIN, script)) as gateway:
            headers = set((await gateway.chat()).headers)

            assert headers <= {
                "content-type", "content-length", "x-request-id", "date",
                "cache-control", "x-accel-buffering", "transfer-encoding",
            }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('client_authorization = "replace"', "needs 'engine_key_file'"),
        ('client_authorization = "pass"\nengine_key_file = "KEY"', "not both"),
        ('engine_key_file = "/nowhere"', "'engine_key_file'"),
        ('forward_headers = "content-length"', "not for passing on"),
        ('return_headers = "a b"', "no name of a header"),
    ],
)
def test_a_policy_that_cannot_be_ends_the_start(
    tmp_path: Path, engine_key_file: str, text: str, complaint: str
) -> None:
    file = tmp_path / "pdgate.toml"
    file.write_text(text.replace("KEY", engine_key_file))

    with pytest.raises(ConfigError, match=complaint) as caught:
        load(file, {})

    assert ENGINES not in str(caught.value)
