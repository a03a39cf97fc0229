"""Calls for one model that others serve, each by its share."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pdgate.gateway.config import ConfigError, load
from pdgate.gateway.config.api_keys import ApiKeyEntry
from pdgate.gateway.config.sections import ShareEntry
from pdgate.gateway.security.keys import hash_of
from pdgate.gateway.tenants.shares import Share, Shares, chosen_of
from pdgate.operations.explain.story import story
from pdgate.protocols.call import CHAT, Call, Raw, encode
from pdgate.protocols.instance import Role
from tests.support.fleet import Engine, gateway_of

TO = {"m-stable": 95, "m-canary": 5}


def call(number: int, *more: dict[str, str], headers: Any = (), **fields: Any) -> Call:
    said = [{"role": "system", "content": "s"}, {"role": "user", "content": f"{number}"}, *more]
    body = {name: Raw(encode(found)) for name, found in {"messages": said, **fields}.items()}
    return Call("c", "c", CHAT, body, headers, model="m")


def served(*models: str) -> Shares:
    return Shares({"m": Share(TO)}, lambda model, _: model in models)


def test_conversations_are_shared_by_weight_and_each_stays_where_it_is() -> None:
    shares = served(*TO)
    chosen = {number: shares.of(call(number), "").model for number in range(4000)}

    assert 120 < Counter(chosen.values())["m-canary"] < 290
    for number in range(200):
        later = call(
            number, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}
        )
        assert shares.of(later, "").model == chosen[number]


def test_a_session_stays_together_whatever_is_said_and_by_key_all_calls_of_a_key() -> None:
    shares = served(*TO)
    in_session = {
        shares.of(call(number, headers=[(b"x-session-id", b"s")]), "").model
        for number in range(200)
    }
    named = {shares.of(call(number, prompt_cache_key="s"), "").model for number in range(200)}
    by_key = Shares({"m": Share({"a": 1, "b": 1}, by_key=True)}, lambda *_: True)

    assert len(in_session) == len(named) == 1
    assert len({by_key.of(call(number), "team").model for number in range(200)}) == 1
    assert len({by_key.of(call(1), f"team-{number}").model for number in range(200)}) == 2


def test_a_changed_share_moves_no_more_conversations_than_it_has_to() -> None:
    more = {"m-stable": 85, "m-canary": 15}
    before = [chosen_of(TO, f"{number}", lambda _: True) for number in range(4000)]
    after = [chosen_of(more, f"{number}", lambda _: True) for number in range(4000)]
    moves = Counter(zip(before, after, strict=True))

    assert moves["m-canary", "m-stable"] == 0
    assert 280 < moves["m-stable", "m-canary"] < 520


def test_a_model_that_no_engine_serves_is_passed_over() -> None:
    only = served("m-canary")

    assert {only.of(call(number), "").model for number in range(50)} == {"m-canary"}
    # With none of them, the one is named that it would be.
    assert served().of(call(1), "").model in TO


def test_other_models_and_strange_bodies_pass() -> None:
    shares = served(*TO)
    other = Call("c", "c", CHAT, {}, model="other")
    strange = [b"7", b"[7]", b'[{"role": 7}]', b"[" * 5000, b"{}"]

    assert shares.of(other, "") is other
    for written in strange:
        assert (
            shares.of(Call("c", "c", CHAT, {"messages": Raw(written)}, model="m"), "").model in TO
        )


async def test_engines_get_their_models_name_and_operators_see_the_choice() -> None:
    engine = Engine(Role.PLAIN, None, "m-stable")
    entry = ShareEntry(model="m", to={"m-stable": 1, "m-canary": 1})
    asks_m = ApiKeyEntry(name="a", sha256=hash_of(b"for-m"), models=("m",))
    asks_stable = ApiKeyEntry(name="b", sha256=hash_of(b"for-stable"), models=("m-stable",))
    async with gateway_of(
        engine, shares=(entry,), api_keys=(asks_m, asks_stable), debug_headers=True
    ) as gateway:

        async def asked(key: str, model: str) -> Any:
            return await gateway.chat({"authorization": f"Bearer {key}"}, model=model)

        shared = await asked("for-m", "m")
        # Who may ask the one may not ask the other by its own name.
        statuses = [
            (await asked(*said)).status_code
            for said in (("for-m", "m-stable"), ("for-stable", "m"), ("for-stable", "m-stable"))
        ]

    assert shared.status_code == 200
    assert shared.headers["x-pd-model"] == "m-stable"
    assert shared.headers["x-pd-path"] == "plain"
    assert statuses == [403, 403, 200]
    assert [json.loads(one.body)["model"] for one in engine.calls] == ["m-stable"] * 2


def test_the_story_of_a_call_says_that_it_was_shared() -> None:
    head = story({"id": "c", "model": "m-canary", "shared": "m", "outcome": "ok"})[0]

    assert head == "call c, model m-canary (a share of m): ok"


async def test_a_reload_changes_shares() -> None:
    engine = Engine(Role.PLAIN, None, "a", "b")
    async with gateway_of(engine, shares=(ShareEntry(model="m", to={"a": 1}),)) as gateway:
        await gateway.chat()
        wanted = gateway.reload.settings.model_copy(
            update={"shares": (ShareEntry(model="m", to={"b": 1}),)}
        )
        gateway.reload.put_in_force(gateway.reload.prepare(wanted))
        await gateway.chat()

    assert [body["model"] for body in engine.bodies] == ["a", "b"]


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ('[[shares]]\nmodel = "m"\nto = {}', "lead to no model"),
        ('[[shares]]\nmodel = "m"\nto = {a = 0}', "greater than or equal to 1"),
        ('[[shares]]\nmodel = "m"\nto = {a = 1}\n' * 2, "several shares"),
        ('[[shares]]\nmodel = "m"\nto = {m = 1, a = 1}', "shared themselves"),
        (
            '[[models]]\nname = "x"\naliases = ["m"]\n[[shares]]\nmodel = "m"\nto = {a = 1}',
            "it is an alias",
        ),
        (
            '[[models]]\nname = "x"\naliases = ["a"]\n[[shares]]\nmodel = "m"\nto = {a = 1}',
            "an alias; name the model itself",
        ),
    ],
)
def test_shares_that_lead_nowhere_end_the_start(said: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "pdgate.toml"
    file.write_text(said)

    with pytest.raises(ConfigError, match=sentence):
        load(file, {})
