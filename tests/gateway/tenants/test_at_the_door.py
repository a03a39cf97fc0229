"""Limits of tokens, as clients meet them: on real connections, before scripted engines."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pdgate.gateway.config import ConfigError, load
from pdgate.gateway.config.api_keys import ApiKeyEntry
from pdgate.gateway.front.hot_protocol import HotProtocol
from pdgate.gateway.security.keys import hash_of
from pdgate.protocols.fields import is_true
from pdgate.protocols.instance import Role
from tests.support import fleet, waiting
from tests.support.fleet import (
    ANSWER,
    STREAM_HEAD,
    Engine,
    Gateway,
    Held,
    as_json,
    breaks_off,
    engine_error,
    gateway_of,
    says,
    streams,
)
from tests.support.raw_server import chunk

SECRET = "pdg-of-team-a"
KEY = {"authorization": f"Bearer {SECRET}"}
TOKEN = "of-the-admin-of-the-tests"
USAGE = {
    "prompt_tokens": 12,
    "completion_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 8},
}
WHOLE = says(as_json({**ANSWER, "usage": USAGE}))


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps({"id": "c", **fields}).encode() + b"\n\n"


def word(text: str) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": None}])


END = event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
LAST = event(choices=[], usage=USAGE)
DONE = b"data: [DONE]\n\n"


def key(**limits: Any) -> ApiKeyEntry:
    return ApiKeyEntry(name="team-a", sha256=hash_of(SECRET.encode()), **limits)


@asynccontextmanager
async def served(
    engine: Engine, tmp_path: Path, *keys: ApiKeyEntry, **settings: Any
) -> AsyncIterator[Gateway]:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    async with gateway_of(
        engine, api_keys=keys, admin_token_file=str(token), **settings
    ) as gateway:
        yield gateway


async def usage(gateway: Gateway, name: str = "team-a") -> dict[str, Any]:
    answer = await gateway.http.get(
        "/admin/usage", params={"key": name}, headers={"authorization": f"Bearer {TOKEN}"}
    )
    assert answer.status_code == 200, answer.text
    (found,) = answer.json()["usage"]
    return dict(found)


async def total(gateway: Gateway) -> dict[str, int]:
    return dict((await usage(gateway))["total"])


async def settled(gateway: Gateway, calls: int) -> dict[str, int]:
    """What was taken, once as many calls are over."""

    async def over() -> bool:
        return (await total(gateway))["calls"] >= calls

    await waiting.until(over, "calls that are over")
    return await total(gateway)


@pytest.mark.parametrize("http", [HotProtocol, "httptools"], ids=["hot", "asgi"])
async def test_calls_that_come_together_are_let_in_as_far_as_the_limit_goes(
    http: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fleet, "HTTP", http)
    engine = Engine(Role.PLAIN, held := Held())
    async with served(engine, tmp_path, key(budget_tokens=1000)) as gateway:
        asking = [asyncio.create_task(gateway.chat(KEY, max_tokens=250)) for _ in range(20)]
        running = [await held.next() for _ in range(3)]
        # All but three have been refused, and these three run.
        await waiting.until(lambda: sum(one.done() for one in asking) == 17, "refusals")
        for call in running:
            await call.peer.send(as_json({**ANSWER, "usage": USAGE}))
        answers = [await one for one in asking]
        took = await settled(gateway, 3)

    assert Counter(one.status_code for one in answers) == {200: 3, 429: 17}
    refused = next(one for one in answers if one.status_code == 429)
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert "budget_tokens" in refused.json()["error"]["message"]
    assert refused.headers["retry-after"] == "1"
    assert took == {"prompt": 36, "cached": 24, "generated": 15, "calls": 3}


async def test_a_used_up_budget_is_told_in_the_words_of_each_api_and_not_to_be_tried_again(
    tmp_path: Path,
) -> None:
    engine = Engine(Role.PLAIN, WHOLE)
    async with served(engine, tmp_path, key(budget_tokens=60)) as gateway:
        while (await gateway.chat(KEY, max_tokens=5)).status_code == 200:
            continue
        openai = await gateway.chat(KEY, max_tokens=5)
        anthropic = await gateway.http.post(
            "/v1/messages",
            json={"model": "m", "max_tokens": 50, "messages": []},
            headers={"x-api-key": SECRET},
        )
        shown = await usage(gateway)
        metrics = await gateway.metrics()

    assert (openai.status_code, anthropic.status_code) == (429, 429)
    assert openai.json()["error"]["type"] == openai.json()["error"]["code"] == "insufficient_quota"
    assert openai.headers["x-should-retry"] == "false"
    assert "retry-after" not in openai.headers
    assert openai.headers["x-ratelimit-limit-tokens"] == "60"
    assert anthropic.json()["error"]["type"] == "rate_limit_error"
    (limit,) = shown["limits"]
    assert limit["used"] + limit["remaining"] == 60
    assert limit["used"] == 17 * shown["total"]["calls"]
    assert metrics["pdgate_key_tokens_total", "team-a", "prompt"] == shown["total"]["prompt"]
    assert metrics["pdgate_key_calls_refused_total", "team-a", "tokens"] >= 3


async def test_answers_say_what_is_left_as_openais_do(tmp_path: Path) -> None:
    engine = Engine(Role.PLAIN, WHOLE)
    limits = key(tokens_per_minute=100_000, tokens_per_day=200_000, calls_per_minute=60)
    async with served(engine, tmp_path, limits) as gateway:
        answer = await gateway.chat(KEY, max_tokens=1000)
        later = await gateway.chat(KEY, max_tokens=1000)

    said = answer.headers
    assert answer.status_code == 200
    assert said["x-ratelimit-limit-requests"] == "60"
    assert int(said["x-ratelimit-remaining-requests"]) == 59
    assert said["x-ratelimit-reset-requests"].endswith("s")
    assert said["x-ratelimit-limit-tokens"] == "100000"
    assert 98_000 < int(said["x-ratelimit-remaining-tokens"]) <= 99_000
    assert said["x-ratelimit-reset-tokens"].endswith("s")
    # The first one gave back what it did not use.
    assert int(later.headers["x-ratelimit-remaining-tokens"]) > 98_000


async def test_a_stream_is_counted_by_its_engine_and_its_client_sees_no_more_than_it_asked_for(
    tmp_path: Path,
) -> None:
    engine = Engine(Role.PLAIN, streams(word("a"), word("b"), END, LAST + DONE))
    async with served(engine, tmp_path, key(tokens_per_day=100_000)) as gateway:
        unasked = await gateway.chat(KEY, stream=True)
        asked = await gateway.chat(KEY, stream=True, stream_options={"include_usage": True})
        took = await settled(gateway, 2)

    assert unasked.content == word("a") + word("b") + END + DONE
    assert asked.content == word("a") + word("b") + END + LAST + DONE
    assert took == {"prompt": 24, "cached": 16, "generated": 10, "calls": 2}
    assert [body["stream_options"] for body in engine.bodies] == [{"include_usage": True}] * 2


@pytest.mark.parametrize(("flag", "shown"), [("no", b""), (0, b""), ("yes", LAST), (1, LAST)])
async def test_whether_a_client_asks_is_read_as_its_engine_reads_it(
    flag: object, shown: bytes, tmp_path: Path
) -> None:
    """An engine that takes "no" for false would have said nothing, and events were counted."""
    engine = Engine(Role.PLAIN, streams(word("a"), END, LAST + DONE))
    async with served(engine, tmp_path, key(tokens_per_day=100_000)) as gateway:
        answer = await gateway.chat(KEY, stream=True, stream_options={"include_usage": flag})

    assert answer.content == word("a") + END + shown + DONE
    assert is_true(engine.bodies[0]["stream_options"]["include_usage"])


@pytest.mark.parametrize("options", [{"include_usage": "false"}, {"x": "a" * 20_000}])
async def test_no_option_keeps_a_stream_from_being_counted(
    options: dict[str, str], tmp_path: Path
) -> None:
    engine = Engine(Role.PLAIN, streams(word("a"), END, LAST + DONE))
    async with served(engine, tmp_path, key(tokens_per_day=100_000)) as gateway:
        answer = await gateway.chat(KEY, stream=True, stream_options=options)
        took = await settled(gateway, 1)

    assert answer.content == word("a") + END + DONE
    assert took["generated"] == 5
    assert engine.bodies[0]["stream_options"] == {**options, "include_usage": True}


async def test_a_call_whose_options_are_unreadable_takes_nothing(tmp_path: Path) -> None:
    engine = Engine(Role.PLAIN, WHOLE)
    async with served(engine, tmp_path, key(tokens_per_day=100_000, max_calls=1)) as gateway:
        refused = await gateway.chat(KEY, stream=True, stream_options="none")
        assert (await gateway.chat(KEY)).status_code == 200
        shown = await usage(gateway)

    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "stream_options"
    assert shown["held"] == {"prompt": 0, "generated": 0}
    assert shown["running"] == 0
    assert len(engine.bodies) == 1


@pytest.mark.parametrize("at", range(1, len(LAST + DONE), 17))
async def test_usage_that_comes_in_pieces_is_kept_back_whole(at: int, tmp_path: Path) -> None:
    rest = LAST + DONE
    engine = Engine(Role.PLAIN, streams(word("a"), END, rest[:at], rest[at:]))
    async with served(engine, tmp_path, key(tokens_per_day=100_000)) as gateway:
        answer = await gateway.chat(KEY, stream=True)
        took = await settled(gateway, 1)

    assert answer.content == word("a") + END + DONE
    assert took["generated"] == 5


async def test_events_that_only_speak_of_usage_pass(tmp_path: Path) -> None:
    events = word('"usage"'), event(choices=[{"delta": {}}], usage=USAGE), END
    engine = Engine(Role.PLAIN, streams(*events, DONE))
    async with served(engine, tmp_path, key(tokens_per_day=100_000)) as gateway:
        answer = await gateway.chat(KEY, stream=True)

    assert answer.content == b"".join((*events, DONE))


async def test_a_client_that_leaves_a_stream_has_taken_what_it_got(tmp_path: Path) -> None:
    engine = Engine(Role.PLAIN, held := Held())
    async with served(engine, tmp_path, key(budget_tokens=50_000)) as gateway:
        reader, writer = await gateway.wire()
        writer.write(
            fleet.ask(b"authorization: Bearer " + SECRET.encode(), stream=True, max_tokens=9000)
        )
        call = await held.next()
        await call.peer.send(STREAM_HEAD, *(chunk(word("x")) for _ in range(40)))
        await reader.readuntil(b"x")
        writer.close()
        took = await settled(gateway, 1)
        shown = await usage(gateway)

    assert 1 <= took["generated"] <= 40
    assert shown["held"] == {"prompt": 0, "generated": 0}


async def test_a_client_that_leaves_before_a_whole_answer_has_taken_what_can_have_been_made(
    tmp_path: Path,
) -> None:
    engine = Engine(Role.PLAIN, held := Held())
    async with served(engine, tmp_path, key(budget_tokens=50_000)) as gateway:
        asking = asyncio.create_task(gateway.chat(KEY, max_tokens=7))
        call = await held.next()
        # Past the time in which an engine can have made all of it.
        await asyncio.sleep(0.1)
        asking.cancel()
        await call.left
        took = await settled(gateway, 1)
        shown = await usage(gateway)

    assert took["generated"] == 7
    assert took["prompt"] > 0
    assert shown["held"] == {"prompt": 0, "generated": 0}


async def test_a_call_that_was_tried_again_counts_once_and_one_that_failed_not_at_all(
    tmp_path: Path,
) -> None:
    engine = Engine(Role.PLAIN)
    answers = iter([breaks_off(), WHOLE, says(engine_error(b"400 Bad Request", "no"))])

    async def in_turn(peer: Any) -> None:
        await next(answers)(peer)

    engine.script = in_turn
    async with served(engine, tmp_path, key(budget_tokens=50_000)) as gateway:
        again = await gateway.chat(KEY, max_tokens=9)
        took = await settled(gateway, 1)
        wrong = await gateway.chat(KEY, max_tokens=9)
        after = await settled(gateway, 2)

    assert (again.status_code, wrong.status_code) == (200, 400)
    assert took == {"prompt": 12, "cached": 8, "generated": 5, "calls": 1}
    assert after == {**took, "calls": 2}


async def test_a_call_that_says_no_bound_is_taken_to_be_as_long_as_its_model_can(
    tmp_path: Path,
) -> None:
    engine = Engine(Role.PLAIN, WHOLE)
    cards = [{"id": "m", "object": "model", "max_model_len": 30_000}]
    engine.probes["/v1/models"] = as_json({"object": "list", "data": cards})
    short = key(tokens_per_day=20_000)
    async with served(engine, tmp_path, short) as gateway:
        alone = await gateway.chat(KEY)
        said = await gateway.chat(KEY, max_tokens=10)
        await settled(gateway, 2)
        engine.script = Held()
        asking = asyncio.create_task(gateway.chat(KEY))
        await engine.script.next()
        refused = await gateway.chat(KEY)
        asking.cancel()

    assert (alone.status_code, said.status_code, refused.status_code) == (200, 200, 429)
    assert "as it says no max_tokens" in refused.json()["error"]["message"]


async def test_a_reload_changes_limits_and_keeps_counts(tmp_path: Path) -> None:
    engine, keys, token = Engine(Role.PLAIN, WHOLE), tmp_path / "keys.toml", tmp_path / "token"
    token.write_text(TOKEN)

    def held_to(budget: int) -> None:
        keys.write_text(
            f'[[api_keys]]\nname = "team-a"\nsha256 = "{hash_of(SECRET.encode())}"\n'
            f"budget_tokens = {budget}\n"
        )

    held_to(30)
    async with gateway_of(engine, api_keys_file=str(keys), admin_token_file=str(token)) as gateway:
        first = await gateway.chat(KEY, max_tokens=5)
        await settled(gateway, 1)
        over = await gateway.chat(KEY, max_tokens=5)
        held_to(60)
        gateway.reload.put_in_force(gateway.reload.prepare(gateway.reload.settings))
        more = await gateway.chat(KEY, max_tokens=5)
        took = await settled(gateway, 2)

    assert (first.status_code, over.status_code, more.status_code) == (200, 429, 200)
    assert took["prompt"] == 24


async def test_calls_of_keys_without_limits_pass_untouched_and_are_counted(tmp_path: Path) -> None:
    engine = Engine(Role.PLAIN, WHOLE)
    async with served(engine, tmp_path, key()) as gateway:
        whole = await gateway.chat(KEY)
        engine.script = streams(word("a"), END, LAST + DONE)
        stream = await gateway.chat(KEY, stream=True)
        took = await settled(gateway, 2)

    assert "x-ratelimit-limit-tokens" not in whole.headers
    assert stream.content == word("a") + END + LAST + DONE
    assert "stream_options" not in engine.bodies[1]
    assert took == {"prompt": 24, "cached": 16, "generated": 10, "calls": 2}


async def test_usage_is_for_operators_alone(tmp_path: Path) -> None:
    async with served(Engine(Role.PLAIN), tmp_path, key()) as gateway:

        async def status(**more: Any) -> int:
            found: httpx2.Response = await gateway.http.get("/admin/usage", **more)
            return found.status_code

        admin = {"authorization": f"Bearer {TOKEN}"}
        assert await status() == 401
        assert await status(headers=KEY) == 401
        assert await status(headers=admin) == 200
        assert await status(headers=admin, params={"key": "other"}) == 404
        assert await status(headers=admin, params={"limit": 10**9}) == 422
        page = (await gateway.http.get("/admin/usage?after=team-a", headers=admin)).json()

    assert page["usage"] == []


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("tokens_per_minute = 9\nprompt_tokens_per_minute = 10", "would never be reached"),
        ("tokens_per_minute = 10\ntokens_per_day = 9", "tokens_per_minute 10 is more than"),
        (
            "tokens_per_day = 10\nbudget_tokens = 9",
            "tokens_per_day 10 is more than budget_tokens 9",
        ),
        ("budget_tokens = 0", "greater than or equal to 1"),
        ("count_cached = false", "without a limit of tokens"),
        ("assumed_tokens = 7", "without a limit of tokens"),
    ],
)
def test_limits_that_contradict_end_the_start_with_one_sentence(
    said: str, sentence: str, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[api_keys]]\nname = "a"\nsha256 = "{"a" * 64}"\n{said}\n')

    with pytest.raises(ConfigError, match=sentence) as caught:
        load(None, {"api_keys_file": str(keys)})

    assert "\n" not in str(caught.value)
