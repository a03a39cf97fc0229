"""What engines say of themselves: one that lies breaks nothing of the others."""

import json
from typing import Any

import pytest

from pdgate.gateway import model_cards
from pdgate.gateway.config.api_keys import ApiKeyEntry
from pdgate.gateway.security.keys import hash_of
from pdgate.protocols.instance import Role
from tests.support.cpu import CALLBACK_SECONDS, cpu_seconds
from tests.support.fleet import Engine, as_json, gateway_of
from tests.support.raw_server import reply

TOKEN, SECRET = "an-operator's-token", "pdg-of-team-a"
DEEP = "[" * 900 + "]" * 900
CARDS = {
    "a lone surrogate in an id": r'{"id": "a\ud800"}',
    "a lone surrogate beside it": r'{"id": "a", "owned_by": "\ud800"}',
    "a lone surrogate as a name": r'{"id": "a", "\udfff": 1}',
    "nesting of 900": f'{{"id": "a", "x": {DEEP}}}',
    "nesting of 100,000": f'{{"id": "a", "x": {"[" * 100_000 + "]" * 100_000}}}',
    "a number of 5,000 digits": f'{{"id": "a", "x": {"9" * 5000}}}',
    "an endless number": '{"id": "a", "x": 1e999}',
    "a line break": r'{"id": "a\nb"}',
    "an escape": r'{"id": "\u001b[2J"}',
    "nothing": '{"id": ""}',
    "a long id": f'{{"id": "{"a" * 1000}"}}',
    "a long card": f'{{"id": "a", "x": "{"a" * 100_000}"}}',
}


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS.keys())
async def test_a_card_of_one_engine_breaks_no_page(card: str, tmp_path: Any) -> None:
    (tmp_path / "token").write_text(TOKEN)
    liar, good = Engine(Role.PLAIN), Engine(Role.PLAIN, None, "m")
    body = '{"object": "list", "data": [{"id": "fine"}, %s]}' % card  # noqa: UP031
    liar.probes["/v1/models"] = reply(body.encode())
    async with gateway_of(liar, good, admin_token_file=str(tmp_path / "token")) as gateway:
        ready = await gateway.http.get("/ready")
        models = await gateway.http.get("/v1/models")
        admin = await gateway.http.get(
            "/admin/instances", headers={"authorization": f"Bearer {TOKEN}"}
        )
        metrics = await gateway.http.get("/metrics")

        assert [answer.status_code for answer in (ready, models, admin, metrics)] == [200] * 4
        assert {"m", "fine"} >= {card["id"] for card in models.json()["data"]} >= {"m"}
        assert {"m", "fine"} >= set(ready.json()["models"]) >= {"m"}
        assert (await gateway.chat()).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b'{"data": NaN}',
        b'{"data": [{"id": "a", "x": NaN}]}',
        json.dumps({"data": [{"id": str(number)} for number in range(1001)]}).encode(),
        b'{"data": [{"id": "a"}' + b" " * (1 << 20) + b"]}",
        b'{"data": "' + b"a" * 1000 + b'"}',
    ],
)
async def test_a_list_that_cannot_be_shown_takes_its_engine_out(body: bytes) -> None:
    liar, good = Engine(Role.PLAIN), Engine(Role.PLAIN)
    liar.probes["/v1/models"] = reply(body)
    async with gateway_of(liar, good) as gateway:
        assert [card["id"] for card in (await gateway.http.get("/v1/models")).json()["data"]] == [
            "m"
        ]
        assert (await gateway.metrics())["pdgate_instance_up", "plain-0", "plain"] == 0


@pytest.mark.parametrize("piece", ["[],", "{},", '"",', "1,", '{"":[]},'])
def test_the_longest_list_of_models(piece: str) -> None:
    most = model_cards.MOST_CARDS_BYTES
    card = '{"id":"a","x":[%s0]}' % (piece * (model_cards.MOST_CARD_BYTES // len(piece) - 16))
    body = '{"data":[%s]}' % ",".join([card] * (most // (len(card) + 1) - 1))  # noqa: UP031

    assert len(model_cards.read(body.encode())) > 3
    assert cpu_seconds(lambda: model_cards.read(body.encode())) <= CALLBACK_SECONDS


async def test_strangers_learn_whether_it_is_ready_and_no_more(tmp_path: Any) -> None:
    (tmp_path / "token").write_text(TOKEN)
    keys = (
        ApiKeyEntry(name="team-a", sha256=hash_of(SECRET.encode()), models=("a",)),
        ApiKeyEntry(name="team-b", sha256=hash_of(b"pdg-of-team-b")),
    )
    engines = [Engine(Role.PLAIN, None, "a"), Engine(Role.PLAIN, None, "b")]
    more: dict[str, Any] = {
        "admin_token_file": str(tmp_path / "token"),
        "admin_listen": "127.0.0.1:1",
    }
    async with gateway_of(*engines, api_keys=keys, **more) as gateway:

        async def said(key: str, url: str = "/ready") -> Any:
            headers = {"authorization": f"Bearer {key}"} if key else {}
            return (await gateway.http.get(url, headers=headers)).json()

        for stranger in ("", "pdg-wrong"):
            assert await said(stranger) == {"ready": True}
            headers = {"x-api-key": stranger or "pdg-none"}
            asked = await gateway.http.get("/ready?model=b", headers=headers)
            assert asked.status_code == 401
        assert [(await said(SECRET, f"/ready?model={one}"))["ready"] for one in "ab"] == [1, 0]
        assert [(await said(TOKEN, f"/ready?model={one}"))["ready"] for one in "ab"] == [1, 1]
        assert set((await said(SECRET))["models"]) == {"a"}
        assert set((await said("pdg-of-team-b"))["models"]) == {"a", "b"}
        assert set((await said(TOKEN))["models"]) == {"a", "b"}
        assert set((await said("", f"{gateway.admin_url}/ready"))["models"]) == {"a", "b"}


async def test_where_nobody_needs_a_key_all_is_said() -> None:
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        assert set((await gateway.http.get("/ready")).json()["models"]) == {"m"}


async def test_a_bootstrap_server_names_engines_in_text() -> None:
    """A lone surrogate would break each call that hands its KV over there."""
    prefill, decode = Engine(Role.PREFILL), Engine(Role.DECODE)
    prefill.bootstraps = True
    prefill.probes["/query"] = reply(rb'{"0": {"engine_id": "\ud800", "worker_addr": {}}}')
    settings: dict[str, Any] = {"pdd_protocol": "vllm-mooncake", "mooncake_generation": "d"}
    async with gateway_of(prefill, decode, **settings) as gateway:
        assert (await gateway.metrics())["pdgate_instance_up", "prefill-0", "prefill"] == 0
        assert (await gateway.http.get("/ready")).status_code == 503
        prefill.probes["/query"] = as_json({"0": {"engine_id": "e", "worker_addr": {}}})
