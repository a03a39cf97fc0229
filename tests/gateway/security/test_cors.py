"""Browsers: no page may call unless its origin is listed, on hot routes as on others."""

from typing import Any

import httpx2
import pytest

from pdgate.gateway.config import ConfigError, load
from pdgate.gateway.config.api_keys import ApiKeyEntry
from pdgate.gateway.security.cors import origins_of
from pdgate.gateway.security.keys import hash_of
from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from tests.support.fleet import Engine, Gateway, gateway_of, question

pytestmark = pytest.mark.usefixtures("front_end")

PAGE, OTHER = "https://chat.example.com", "https://evil.example.com"
ASKS = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}


def allowed(answer: httpx2.Response) -> str | None:
    found: str | None = answer.headers.get("access-control-allow-origin")
    return found


async def answers(gateway: Gateway, origin: str) -> dict[str, httpx2.Response]:
    headers = {"origin": origin}
    long: dict[str, Any] = {
        "content": b"x" * 2000,
        "headers": {**headers, "content-type": "application/json"},
    }
    return {
        "call": await gateway.chat(headers),
        "error": await gateway.chat(headers, model="other"),
        "too large": await gateway.http.post(CHAT, **long),
        "models": await gateway.http.get("/v1/models", headers=headers),
        "nothing": await gateway.http.get("/nowhere", headers=headers),
        "preflight": await gateway.http.request("OPTIONS", CHAT, headers={**headers, **ASKS}),
    }


def serving(**settings: Any) -> Any:
    return gateway_of(Engine(Role.PLAIN), max_body_bytes=1000, **settings)


async def test_by_itself_no_page_may_call() -> None:
    async with serving() as gateway:
        for answer in (await answers(gateway, PAGE)).values():
            assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_listed_page_may_call_and_no_other() -> None:
    async with serving(cors_origins=f"{PAGE}, http://localhost:3000") as gateway:
        for what, answer in (await answers(gateway, PAGE)).items():
            assert (allowed(answer), what) == (PAGE, what)
            assert "origin" in answer.headers["vary"].lower()
        for what, answer in (await answers(gateway, OTHER)).items():
            assert (allowed(answer), what) == (None, what)
        found = await gateway.http.request("OPTIONS", CHAT, headers={"origin": PAGE, **ASKS})
        assert found.status_code == 200
        assert "authorization" in found.headers["access-control-allow-headers"].lower()
        assert "access-control-allow-credentials" not in found.headers


async def test_a_page_sees_the_id_of_its_call() -> None:
    async with serving(cors_origins="*") as gateway:
        answer = await gateway.http.post(CHAT, json=question(), headers={"origin": OTHER})

        assert allowed(answer) == "*"
        assert "x-request-id" in answer.headers["access-control-expose-headers"]


async def test_a_page_sees_what_is_left_of_its_limits() -> None:
    """A browser keeps every header of an answer from its page that the answer does not name."""
    key = ApiKeyEntry(
        name="k", sha256=hash_of(b"k"), calls_per_minute=60, tokens_per_minute=100_000
    )
    settings = {"api_keys": (key,), "return_headers": "x-engine-says"}
    asked = {"origin": PAGE, "authorization": "Bearer k"}
    async with serving(cors_origins=PAGE, **settings) as gateway:
        answer = await gateway.http.post(CHAT, json=question(), headers=asked)
        models = await gateway.http.get("/v1/models", headers=asked)

    seen = set(answer.headers["access-control-expose-headers"].split(", "))
    limits = {name for name in answer.headers if name.startswith("x-ratelimit-")}
    assert len(limits) == 6
    ours = {"retry-after", "x-request-id", "x-should-retry", "x-pd-path", "x-pd-model"}
    assert {*limits, *ours, "x-engine-says"} <= seen
    assert set(models.headers["access-control-expose-headers"].split(", ")) == seen


async def test_a_page_may_delete_its_files() -> None:
    asks = {"origin": PAGE, **ASKS, "access-control-request-method": "DELETE"}
    async with serving(cors_origins=PAGE) as gateway:
        answer = await gateway.http.request("OPTIONS", "/v1/files/file-1", headers=asks)

    assert answer.status_code == 200
    assert "DELETE" in answer.headers["access-control-allow-methods"]


@pytest.mark.parametrize("text", ["example.com", "https://a/", "https://a/b", "ftp://a", "null"])
def test_what_no_browser_says_is_no_origin(text: str) -> None:
    with pytest.raises(ConfigError, match="not an origin"):
        load(None, {"cors_origins": f"{PAGE},{text}"})


def test_origins_stand_between_commas() -> None:
    assert origins_of(f" {PAGE} ,*,") == {PAGE, "*"}
