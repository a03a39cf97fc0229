"""The gateway knows how its engines are, and survives whatever they answer to a probe."""

import asyncio
import json
import time
from contextlib import suppress

import pytest

from pdgate.gateway.config.sections import HealthSection
from pdgate.protocols.dialects import mooncake
from pdgate.protocols.instance import Role
from tests.support.fleet import (
    PATIENCE_SECONDS,
    PROBE_SECONDS,
    Engine,
    Gateway,
    Held,
    as_json,
    breaks_off,
    gateway_of,
)
from tests.support.ports import free_port
from tests.support.raw_server import Peer, reply
from tests.support.waiting import until

MOONCAKE = "vllm-mooncake"


async def is_up(gateway: Gateway, number: int, up: bool) -> None:
    """Waits until probes have found the engine so."""
    engine = gateway.engines[number]
    roles = [e.role for e in gateway.engines[:number]]
    key = "pdgate_instance_up", f"{engine.role}-{roles.count(engine.role)}", engine.role.value

    async def found() -> bool:
        return (await gateway.metrics())[key] == up

    await until(found, f"{key} {up}")


def query(*ids: str) -> bytes:
    return as_json({str(rank): {"engine_id": found} for rank, found in enumerate(ids)})


async def test_what_an_engine_held_is_forgotten_when_it_is_gone() -> None:
    """Also if no call finds it out: the memory went with the process."""
    prefill = Engine(Role.PREFILL)
    async with gateway_of(prefill, Engine(Role.DECODE, breaks_off())) as gateway:
        await gateway.chat()
        assert (await gateway.metrics())["pdgate_kv_stranded", "prefill-0"] > 0

        prefill.refuse()

        # The first probe may only be broken off; that nothing listens is known from the next.
        async def forgotten() -> bool:
            return ("pdgate_kv_stranded", "prefill-0") not in await gateway.metrics()

        await until(forgotten, "the KV of an engine that is gone to be forgotten")


async def test_no_series_is_kept_of_an_engine_that_has_left() -> None:
    """Pods have new addresses: each that ever was had a series and an event."""
    prefill = Engine(Role.PREFILL)
    async with gateway_of(prefill, Engine(Role.DECODE, breaks_off())) as gateway:
        await gateway.chat()
        assert (await gateway.metrics())["pdgate_kv_strandings_total", "prefill-0"] > 0
        wanted = gateway.reload.settings

        gateway.reload.take(wanted.model_copy(update={"instances": wanted.instances[1:]}))

        names = {name for name, *labels in await gateway.metrics() if "prefill-0" in labels}
        assert "pdgate_kv_strandings_total" not in names


NONSENSE = {
    "no JSON": reply(b"<html>"),
    "no text": reply(b"\xff\xfe\x00"),
    "null": reply(b"null"),
    "a list": reply(b"[]"),
    "no data": reply(b"{}"),
    "data is null": reply(b'{"data": null}'),
    "data is an object": reply(b'{"data": {"id": "m"}}'),
    "cards are texts": reply(b'{"data": ["m"]}'),
    "cards have no id": reply(b'{"data": [{"object": "model"}]}'),
    "deep": reply(b"[" * 200_000),
    "redirect": reply(b"", b"302 Found", b"location: http://127.0.0.1:1/"),
    "500": reply(b"", b"500 Oh"),
    "no HTTP": b"hello\r\n\r\n",
    "too few bytes": b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\nconnection: close\r\n\r\nab",
    "another coding": reply(b"x" * 20, b"200 OK", b"content-encoding: gzip"),
}


async def test_no_answer_to_a_probe_ends_the_probing() -> None:
    """One engine that talks nonsense must not take the gateway from the others."""
    odd, good = Engine(Role.PLAIN), Engine(Role.PLAIN)
    models = odd.probes["/v1/models"]
    async with gateway_of(odd, good) as gateway:
        for answer in NONSENSE.values():
            await is_up(gateway, 0, True)
            odd.probes["/v1/models"] = answer
            await is_up(gateway, 0, False)

            assert (await gateway.chat()).status_code == 200
            odd.probes["/v1/models"] = models
        await is_up(gateway, 0, True)
        assert not odd.calls


class Slow(Engine):
    """Answers a probe one byte at a time, without end, so that no read ever times out."""

    async def serve(self, peer: Peer) -> None:
        if b"/health" not in peer.request.line:
            await super().serve(peer)
            return
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        gone = asyncio.create_task(peer.gone())
        # uvloop says so when the peer has left, and nobody has told us yet.
        with suppress(RuntimeError):
            while not gone.done():
                await peer.send(b"x")
                await asyncio.wait({gone}, timeout=0.02)


async def test_a_probe_that_never_ends_holds_up_nobody() -> None:
    brief = HealthSection(interval_seconds=PROBE_SECONDS, timeout_seconds=1)
    good = Engine(Role.PLAIN)
    async with gateway_of(Slow(Role.PLAIN), good, health=brief) as gateway:
        await is_up(gateway, 1, True)
        good.probes["/health"] = reply(b"", b"503 No")
        await is_up(gateway, 1, False)

        assert (await gateway.metrics())["pdgate_instance_up", "plain-0", "plain"] == 0


async def test_engines_that_are_down_at_first_are_used_as_soon_as_they_are_well() -> None:
    plain = Engine(Role.PLAIN)
    healthy, plain.probes["/health"] = plain.probes["/health"], reply(b"", b"503 No")
    async with gateway_of(plain) as gateway:
        assert (await gateway.chat()).status_code == 503
        plain.probes["/health"] = healthy
        started = time.monotonic()
        await is_up(gateway, 0, True)

        assert (await gateway.chat()).status_code == 200
        assert time.monotonic() - started < PATIENCE_SECONDS / 4


async def test_an_engine_with_a_model_serves_no_other() -> None:
    plain = Engine(Role.PLAIN, None, "m", "n")
    plain.entry = {"model": "n"}
    async with gateway_of(plain) as gateway:
        assert (await gateway.chat(model="n")).status_code == 200
        assert (await gateway.chat(model="m")).status_code == 404

        plain.probes["/v1/models"] = as_json({"data": [{"id": "m"}]})
        await is_up(gateway, 0, False)


def decode_params(gateway: Gateway) -> dict[str, object]:
    found: dict[str, object] = gateway.engines[1].bodies[-1]["kv_transfer_params"]
    return found


def mooncake_pair(answer: bytes | None) -> tuple[Engine, Engine]:
    prefill, decode = Engine(Role.PREFILL), Engine(Role.DECODE)
    prefill.bootstraps = True
    if answer is not None:
        prefill.probes["/query"] = answer
    return prefill, decode


async def test_a_bootstrap_server_that_names_engines_speaks_d() -> None:
    async with gateway_of(*mooncake_pair(query("e0")), pdd_protocol=MOONCAKE) as gateway:
        assert (await gateway.chat()).status_code == 200

        params = decode_params(gateway)
        assert params["remote_engine_id"] == "e0"
        assert params["transfer_id"]


async def test_a_bootstrap_server_without_query_speaks_b() -> None:
    async with gateway_of(*mooncake_pair(None), pdd_protocol=MOONCAKE) as gateway:
        assert (await gateway.chat()).status_code == 200

        port = int(gateway.engines[0].url.rpartition(":")[2])
        assert decode_params(gateway)["bootstrap_server_port"] == port


async def test_no_bootstrap_server_means_a(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mooncake, "BOOTSTRAP_PORT", free_port())
    engines = Engine(Role.PREFILL), Engine(Role.DECODE)
    async with gateway_of(*engines, pdd_protocol=MOONCAKE) as gateway:
        assert (await gateway.chat()).status_code == 200

        assert decode_params(gateway)["remote_host"] == "192.0.2.7"


async def test_engine_ids_are_read_again_after_a_restart() -> None:
    """Decode hangs on an old one."""
    prefill, decode = mooncake_pair(query("old"))
    async with gateway_of(prefill, decode, pdd_protocol=MOONCAKE) as gateway:
        await gateway.chat()
        assert decode_params(gateway)["remote_engine_id"] == "old"

        prefill.probes["/query"] = query("new")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while decode_params(gateway)["remote_engine_id"] == "old":
                await gateway.chat()
        assert decode_params(gateway)["remote_engine_id"] == "new"


@pytest.mark.parametrize(
    "answer",
    [
        reply(b"{}"),
        reply(b"[]"),
        reply(b"<html>"),
        reply(b"[" * 200_000),
        as_json({"0": {"worker": 1}}),
        as_json({"zero": {"engine_id": "e"}}),
        as_json({"0": {"engine_id": 7}}),
    ],
)
async def test_a_bootstrap_server_that_talks_nonsense_is_not_well(answer: bytes) -> None:
    async with gateway_of(*mooncake_pair(answer), pdd_protocol=MOONCAKE) as gateway:
        assert (await gateway.http.get("/ready")).status_code == 503
        # Decode reads the prompt itself meanwhile.
        assert (await gateway.chat()).status_code == 200
        assert not gateway.engines[0].calls
        gateway.engines[0].probes["/query"] = query("e0")
        await is_up(gateway, 0, True)


async def test_a_probe_goes_on_while_calls_run() -> None:
    held = Held()
    plain = Engine(Role.PLAIN, held)
    async with gateway_of(plain) as gateway:
        asking = asyncio.create_task(gateway.chat())
        call = await held.next()
        plain.probes["/health"] = reply(b"", b"503 No")
        await is_up(gateway, 0, False)
        # The call that runs may end well all the same.
        await call.peer.send(as_json({"choices": [{"finish_reason": "stop"}]}))

        assert json.loads((await asking).content) == {"choices": [{"finish_reason": "stop"}]}


async def test_what_is_wrong_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def said() -> list[str]:
        """The last word of each line: the status. Others' lines may have it in a port."""
        lines = [record.message for record in caplog.records if record.name.endswith(".probe")]
        return [line.rpartition(" ")[2] for line in lines]

    plain = Engine(Role.PLAIN)
    async with gateway_of(plain) as gateway:
        plain.probes["/health"] = reply(b"", b"503 No")
        await is_up(gateway, 0, False)
        plain.probes["/health"] = reply(b"", b"500 Oh")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while "500" not in said():
                await gateway.http.get("/health")

        assert said() == ["503", "500"]
