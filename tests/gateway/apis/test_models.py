"""Several models behind one gateway: other names, adapters, and what is different for each."""

from typing import Any

import httpx2
import pytest

from pdgate.gateway.config import Settings
from pdgate.gateway.config.complaints import ConfigError
from pdgate.gateway.config.load import load
from pdgate.gateway.kv_events.translation import EventTranslation
from pdgate.gateway.security.keys import hash_of
from pdgate.protocols.apis import MESSAGES
from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from tests.gateway.apis.words import MESSAGE, SAID
from tests.support.fleet import ANSWER, Engine, as_json, gateway_of, question, says

pytestmark = pytest.mark.usefixtures("front_end")

ALIASES: list[dict[str, Any]] = [{"name": "a", "aliases": ["gpt", "gpt-mini"]}]


def names(answer: httpx2.Response) -> list[str]:
    return [card["id"] for card in answer.json()["data"]]


async def test_an_alias_is_the_model_and_engines_get_its_own_name() -> None:
    async with gateway_of(Engine(Role.PLAIN, None, "a"), models=ALIASES) as gateway:
        for name in ("gpt", "gpt-mini", "a"):
            answer = await gateway.http.post(CHAT, json=question(model=name, top_k=1))
            assert answer.json() == ANSWER

        assert gateway.engines[0].bodies == [question(model="a", top_k=1)] * 3


async def test_models_are_listed_by_all_their_names() -> None:
    async with gateway_of(Engine(Role.PLAIN, None, "a"), models=ALIASES) as gateway:
        assert names(await gateway.http.get("/v1/models")) == ["a", "gpt", "gpt-mini"]
        one = await gateway.http.get("/v1/models/gpt")
        assert one.json() == {"id": "gpt", "object": "model"}
        none = await gateway.http.get("/v1/models/other")
        assert (none.status_code, none.json()["error"]["code"]) == (404, "model_not_found")


async def test_adapters_are_models_whose_card_names_the_one_that_they_change() -> None:
    """As vLLM lists them (ModelCard.parent); also of an engine that was configured for its model."""
    first, other = Engine(Role.PLAIN, None, "base"), Engine(Role.PLAIN, None, "base")
    cards = [{"id": "base", "parent": None}, {"id": "org/lora", "parent": "base"}, {"id": "x"}]
    first.probes["/v1/models"] = as_json({"object": "list", "data": cards})
    first.entry = other.entry = {"model": "base"}
    async with gateway_of(first, other) as gateway:
        for _ in range(3):
            answer = await gateway.http.post(CHAT, json=question(model="org/lora"))
            assert answer.status_code == 200

        assert [body["model"] for body in first.bodies] == ["org/lora"] * 3
        assert names(await gateway.http.get("/v1/models")) == ["base", "org/lora"]
        assert (await gateway.http.get("/v1/models/org/lora")).json() == cards[1]


async def test_engines_events_are_read_with_the_adapters_that_they_announce(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also before a block of one was published: its first call would be credited with the base model's."""
    known: list[str] = []
    monkeypatch.setattr(EventTranslation, "know_adapters", lambda _, names: known.extend(names))
    engine = Engine(Role.PLAIN, None, "base")
    cards = [
        {"id": "base", "parent": None},
        {"id": "lora", "parent": "base"},
        {"id": "other", "parent": "other"},
    ]
    engine.probes["/v1/models"] = as_json({"object": "list", "data": cards})
    async with gateway_of(engine, kv_events={"endpoint": "ask"}) as gateway:
        assert names(await gateway.http.get("/v1/models")) == ["base", "lora", "other"]

    assert set(known) == {"lora"}


async def test_a_model_has_policies_of_its_own() -> None:
    engines = [Engine(Role.PLAIN, None, "a", "b") for _ in range(3)]
    models = [{"name": "b", "aliases": ["c"], "plain_policy": "sticky_session"}]
    settings = {"models": models, "plain_policy": "round_robin"}
    async with gateway_of(*engines, **settings) as gateway:
        for model, at in (("a", [2, 2, 2]), ("b", [0, 0, 6]), ("c", [0, 0, 6])):
            before = [len(engine.calls) for engine in engines]
            for _ in range(6):
                asked = question(model=model, user="u")
                await gateway.http.post(CHAT, json=asked, headers={"x-session-id": "s"})
            more = [len(engine.calls) - n for engine, n in zip(engines, before, strict=True)]
            assert sorted(more) == at


async def test_instances_of_a_model_speak_its_protocol() -> None:
    engines = [Engine(role, None, model) for model in "ab" for role in (Role.PREFILL, Role.DECODE)]
    for engine, model in zip(engines, "aabb", strict=True):
        engine.entry = {"model": model}
    models = [{"name": "b", "pdd_protocol": "sglang"}]
    async with gateway_of(*engines, models=models) as gateway:
        await gateway.http.post(CHAT, json=question(model="a"))
        await gateway.http.post(CHAT, json=question(model="b"))

        assert "kv_transfer_params" in engines[0].bodies[0]
        assert "bootstrap_room" in engines[2].bodies[0]


async def test_names_and_policies_change_while_it_runs() -> None:
    engine = Engine(Role.PLAIN, None, "a")
    async with gateway_of(engine, models=ALIASES) as gateway:
        entry = {"name": "a", "aliases": ["new"], "plain_policy": "round_robin"}
        wanted = Settings.model_validate(
            {**gateway.reload.settings.model_dump(), "models": [entry]}
        )
        assert gateway.reload.take(wanted) == ["models"]

        assert (await gateway.http.post(CHAT, json=question(model="new"))).status_code == 200
        assert (await gateway.http.post(CHAT, json=question(model="gpt"))).status_code == 404
        assert names(await gateway.http.get("/v1/models")) == ["a", "new"]
        entry["plain_policy"] = "none"
        broken = Settings.model_validate({**wanted.model_dump(), "models": [entry]})
        with pytest.raises(ConfigError, match=r"'models'.*none"):
            gateway.reload.take(broken)


async def test_keys_for_a_model_are_for_its_aliases_and_come_by_either_header() -> None:
    keys = [{"name": "t", "sha256": hash_of(b"secret"), "models": ["gpt"]}]
    engine = Engine(Role.PLAIN, says(as_json(SAID)), "a", "b")
    async with gateway_of(engine, models=ALIASES, api_keys=keys) as gateway:
        key = {"x-api-key": "secret"}
        said = await gateway.http.post(MESSAGES, json={**MESSAGE, "model": "gpt"}, headers=key)
        assert said.status_code == 200
        assert engine.calls[0].header(b"x-api-key") is None
        other = await gateway.http.post(MESSAGES, json={**MESSAGE, "model": "b"}, headers=key)
        assert (other.status_code, other.json()["error"]["type"]) == (403, "permission_error")
        assert names(await gateway.http.get("/v1/models", headers=key)) == ["a", "gpt", "gpt-mini"]
        for headers in ({"x-api-key": "wrong"}, {}, {"x-api-key": "secret", "authorization": "no"}):
            said = await gateway.http.post(MESSAGES, json=MESSAGE, headers=headers)
            assert said.status_code == 401
            assert said.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ('[{name="a"},{name="a"}]', "several models have the name 'a'"),
        ('[{name="a",aliases=["b"]},{name="b"}]', "the alias 'b' is also another name"),
        ('[{name="a",aliases=["b","b"]}]', "the alias 'b' is also another name"),
        ('[{name="a",plain_policy="least_loded"}]', "models.a.plain_policy"),
        ('[{name="a",pdd_protocol="sglng"}]', "models.a"),
    ],
)
def test_what_cannot_be_meant_is_named(tmp_path: Any, models: str, said: str) -> None:
    file = tmp_path / "pdgate.toml"
    file.write_text(f"models = {models}\n")

    with pytest.raises(ConfigError, match=said):
        load(file, {})


@pytest.mark.parametrize(
    ("path", "more"), [(CHAT, {}), (MESSAGES, {"messages": [{"role": "user", "content": "hi"}]})]
)
async def test_contexts_of_different_lengths(path: str, more: dict[str, Any]) -> None:
    """An adapter's is that of the model that it changes; what fits nowhere is refused here."""
    short, long = (
        Engine(Role.PLAIN, says(as_json(SAID)) if path == MESSAGES else None) for _ in "ab"
    )
    for engine, length in ((short, 1000), (long, 8000)):
        of = {"owned_by": "vllm"}
        cards = [{"id": "m", "max_model_len": length, **of}, {"id": "lora", "parent": "m", **of}]
        engine.probes["/v1/models"] = as_json({"object": "list", "data": cards})
    async with gateway_of(short, long) as gateway:
        for _ in range(4):
            asked = {**question(model="lora", max_tokens=2000), **more}
            answer = await gateway.http.post(path, json=asked)
            assert answer.status_code == 200, answer.text
        refused = await gateway.http.post(path, json={**asked, "max_tokens": 9000})

    if path == MESSAGES:
        # What engines make of such an answer is for them to say.
        assert (refused.status_code, len(short.bodies), len(long.bodies)) == (200, 0, 5)
        return
    assert (len(short.bodies), len(long.bodies)) == (0, 4)
    assert refused.status_code == 400
    assert refused.json()["error"] == {
        "message": "This model's maximum context length is 8000 tokens. However, 9000 are asked for of 'lora'",
        "type": "invalid_request_error",
        "param": "max_tokens",
        "code": "context_length_exceeded",
    }


@pytest.mark.parametrize("owner", ["sglang", None, ["vllm"]])
async def test_an_engine_that_may_cut_what_is_too_long_is_asked(owner: Any) -> None:
    """SGLang does, with --allow-auto-truncate, and has told the length of its context as well."""
    engine = Engine(Role.PLAIN)
    card = {"id": "m", "max_model_len": 1000, "owned_by": owner}
    engine.probes["/v1/models"] = as_json({"object": "list", "data": [card]})
    async with gateway_of(engine) as gateway:
        assert (await gateway.chat(max_tokens=9000)).status_code == 200
