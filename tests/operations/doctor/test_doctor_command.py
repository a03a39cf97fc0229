"""The command: which engines it looks at, what it says, and how it ends."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pdgate.__main__ import app
from pdgate.operations.doctor.parsing import STARTED
from pdgate.protocols.instance import Role
from tests.support.fleet import ANSWER, BLOCKS, PREFILLED, Engine, as_json, gateway_of, says
from tests.support.raw_server import Script, reply

TOKEN = "a-token-of-the-operators"
HERE = {**BLOCKS, "remote_host": "127.0.0.1", "remote_port": 1}
"""Where nobody listens."""
KEEPS = as_json({**PREFILLED, "kv_transfer_params": HERE})
PLAIN_ANSWER = {"choices": [{"index": 0, "text": "a", "finish_reason": "length"}]}


NIXL_PAGE = (
    "# TYPE vllm:nixl_num_failed_transfers counter\nvllm:nixl_num_failed_transfers_total 0\n"
)


def nixl(role: Role, script: Script | None = None) -> Engine:
    """One whose metrics show the connector."""
    engine = Engine(role, script)
    engine.probes["/metrics"] = reply(NIXL_PAGE.encode())
    return engine


async def doctor(*args: str) -> Result:
    """On a thread, as the engines that it asks serve in this loop."""
    return await asyncio.to_thread(CliRunner().invoke, app, ["doctor", *args])


def found(told: Result) -> dict[str, list[str]]:
    return {one["check"]: one["instances"] for one in json.loads(told.stdout)["findings"]}


def urls(*engines: Engine) -> list[str]:
    return [word for one in engines for word in (f"--{one.role.value}", one.url)]


def calls(engine: Engine) -> list[dict[str, Any]]:
    """Without what was asked to tokenize."""
    return [body for body in engine.bodies if "max_tokens" in body]


async def test_a_fleet_is_looked_at_and_probed() -> None:
    engines = nixl(Role.PREFILL, says(KEEPS)), nixl(Role.DECODE)
    async with gateway_of(*engines):
        told = await doctor(*urls(*engines), "--json")

    expected = {"pinned_engine_id": ["prefill-0"], "side_channel_closed": ["prefill-0"]}
    assert (found(told), told.exit_code) == (expected, 1)
    asked = [body.get("kv_transfer_params") for body in calls(engines[0])]
    assert [one and one["do_remote_decode"] for one in asked] == [None, True]
    assert [body.get("kv_transfer_params") for body in calls(engines[1])] == [None, HERE]
    assert {body["max_tokens"] for engine in engines for body in calls(engine)} == {1}


async def test_looking_alone_sends_no_call() -> None:
    engines = Engine(Role.PREFILL), Engine(Role.DECODE)
    async with gateway_of(*engines):
        told = await doctor(*urls(*engines), "--no-probe", "--json")

    assert (found(told), told.exit_code) == ({}, 0)
    assert not any(calls(engine) for engine in engines)
    assert "--no-probe" in json.loads(told.stdout)["not_checked"]["keeps_no_kv"]


async def test_no_engine_is_asked_for_what_could_kill_it() -> None:
    """Mooncake: a hand-over of the wrong side ends a vLLM engine. SGLang: it cannot answer alone.

    And an engine may have another connector than that of the protocol that somebody named.
    """
    for protocol, times in (("vllm-mooncake", 1), ("sglang", 0), ("vllm-nixl", 1)):
        engines = Engine(Role.PREFILL), Engine(Role.DECODE)
        async with gateway_of(*engines, pdd_protocol=protocol):
            told = await doctor(*urls(*engines), "--pdd-protocol", protocol, "--json")

        bodies = [body for engine in engines for body in calls(engine)]
        assert len(bodies) == 2 * times
        assert not any("kv_transfer_params" in one for one in bodies)
        assert "prefill-0, decode-0" in json.loads(told.stdout)["not_checked"]["hand_over_fails"]


async def test_a_running_gateway_tells_which_engines_there_are(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    engines = Engine(Role.PREFILL), Engine(Role.DECODE), Engine(Role.DECODE)
    more = {"admin_token_file": str(token), "kv_lease_seconds": 20.0}
    async with gateway_of(*engines, **more) as gateway:
        bearer = {"authorization": f"Bearer {TOKEN}"}
        await gateway.http.post("/admin/instances/decode-1/drain", headers=bearer)
        asked = ["--gateway", str(gateway.http.base_url), "--no-probe", "--json"]
        told = await doctor(*asked, "--admin-token-file", str(token))
        without = await doctor(*asked)

    assert found(told) == {"gateway_says": ["decode-1"]}
    assert [one["id"] for one in json.loads(told.stdout)["engines"]] == [
        "prefill-0",
        "decode-0",
        "decode-1",
    ]
    assert (without.exit_code, without.stdout) == (2, "")
    assert "--admin-token-file" in without.stderr


async def test_people_get_a_table_with_the_cure() -> None:
    engines = nixl(Role.PREFILL, says(as_json(PLAIN_ANSWER))), nixl(Role.DECODE)
    engines[1].probes["/health"] = reply(b"dead", b"503 Service Unavailable")
    async with gateway_of(*engines):
        told = await doctor(*urls(*engines))

    assert told.exit_code == 1
    for words in ("unhealthy", "decode-0", "answered 503", "keeps_no_kv", "kv_producer"):
        assert words in told.stdout


@pytest.mark.parametrize(
    ("answer", "check"),
    [
        (says(KEEPS), None),
        (says(as_json({**ANSWER, "kv_transfer_params": None})), "keeps_no_kv"),
        (says(as_json({"error": {"message": "no"}}, b"400 Bad Request")), "keeps_no_kv"),
    ],
)
async def test_prefill_has_to_say_where_its_kv_is(answer: Any, check: str | None) -> None:
    engines = nixl(Role.PREFILL, answer), nixl(Role.DECODE)
    async with gateway_of(*engines):
        told = await doctor(*urls(*engines), "--json")

    assert ("keeps_no_kv" in found(told)) is (check is not None)


async def test_an_id_that_survives_a_restart_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "ids.json"
    random = {**HERE, "remote_engine_id": "a" * 32}
    keeps = says(as_json({**PREFILLED, "kv_transfer_params": random}))
    engines = nixl(Role.PREFILL, keeps), nixl(Role.DECODE)
    seen = []
    async with gateway_of(*engines):
        for started in (100, 100, 200):
            page = f"{NIXL_PAGE}# TYPE {STARTED} gauge\n{STARTED} {started}\n"
            engines[0].probes["/metrics"] = reply(page.encode())
            told = await doctor(*urls(*engines), "--remember", str(file), "--json")
            seen.append("pinned_engine_id" in found(told))

    assert seen == [False, False, True]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "there are no engines to look at"),
        (["--prefill", "nonsense"], "'nonsense' is not a URL"),
        (["--config", "/nowhere.toml"], "cannot read /nowhere.toml"),
        (["--prefill", "http://a", "--pdd-protocol", "vllm-nixel"], "vllm-nixl"),
        (["--gateway", "nonsense"], "'nonsense' is not a URL"),
        (["--gateway", "http://a", "--prefill", "http://b"], "either --gateway, or"),
        (["--prefill", "http://a", "--engine-key-file", "/nowhere"], "/nowhere"),
        (["--prefill", "http://a", "--remember", "/"], "cannot read /"),
    ],
)
async def test_bad_flags_are_a_sentence(args: list[str], words: str) -> None:
    told = await doctor(*args)

    assert told.exit_code == 2
    assert words in told.stderr
    assert "Traceback" not in told.stderr


async def test_a_file_names_the_engines_and_may_be_wrong(tmp_path: Path) -> None:
    file = tmp_path / "pdgate.toml"
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        file.write_text(f'[[instances]]\nrole = "plain"\nurl = "{gateway.engines[0].url}"\n')
        told = await doctor("--config", str(file), "--json")

    assert (found(told), told.exit_code) == ({}, 0)
    file.write_text("instence = 1\n")
    wrong = await doctor("--config", str(file))
    assert wrong.exit_code == 2
    assert "instance" in wrong.stderr
