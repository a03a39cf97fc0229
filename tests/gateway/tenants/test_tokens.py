"""Signed tokens of an identity provider: which open, what they are held to, and what a provider that is away means."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from pdgate.gateway.config import ConfigError, load
from pdgate.gateway.config.api_keys import ApiKeyEntry
from pdgate.gateway.config.jwt import JwtSection, JwtTenantEntry
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.gateway.security.authenticator import Authenticator
from pdgate.gateway.security.keys import ApiKey, hash_of
from pdgate.gateway.tenants import tokens as tokens_
from pdgate.gateway.tenants.jwks import Jwks, signing_keys
from pdgate.gateway.tenants.tokens import (
    ClaimRule,
    SignedTokens,
    SigningKeysUnknown,
    TokenChecks,
    name_of,
)
from pdgate.protocols.errors import RateLimited, Unauthorized
from pdgate.protocols.instance import Role
from tests.gateway.tenants.test_at_the_door import served, usage
from tests.support.clock import Clock
from tests.support.fleet import Engine, gateway_of
from tests.support.waiting import until

NOW = 1_800_000_000.0
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
STRANGER = ec.generate_private_key(ec.SECP256R1())
PUBLIC: list[dict[str, Any]] = [
    {**RSAAlgorithm.to_jwk(RSA.public_key(), as_dict=True), "kid": "rsa", "use": "sig"},
    {**ECAlgorithm.to_jwk(EC.public_key(), as_dict=True), "kid": "ec", "alg": "ES256"},
    {**OKPAlgorithm.to_jwk(ED.public_key(), as_dict=True), "kid": "ed"},
]
SIGNED: dict[str, tuple[Any, str]] = {
    "rsa": (RSA, "RS256"),
    "ec": (EC, "ES256"),
    "ed": (ED, "EdDSA"),
}
ISSUER, AUDIENCE = "https://login.example.com", "pdgate"
CHECKS = TokenChecks(ISSUER, AUDIENCE)


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys or PUBLIC}).encode()


def claims(**more: Any) -> dict[str, Any]:
    said = {"iss": ISSUER, "aud": AUDIENCE, "sub": "team-a", "exp": time.time() + 600, **more}
    return {name: found for name, found in said.items() if found is not None}


def token(kid: str = "ec", headers: dict[str, Any] | None = None, **more: Any) -> bytes:
    key, algorithm = SIGNED[kid]
    return jwt.encode(claims(**more), key, algorithm, {"kid": kid, **(headers or {})}).encode()


async def provider(said: bytes | None = None, clock: Callable[[], float] | None = None) -> Jwks:
    async def read() -> bytes:
        return jwks() if said is None else said

    found = Jwks(read, clock or time.monotonic)
    assert await found.look()
    return found


async def door(*rules: ClaimRule) -> SignedTokens:
    return SignedTokens(TokenChecks(ISSUER, AUDIENCE, rules=rules), await provider())


@pytest.mark.parametrize("kid", ["rsa", "ec", "ed"])
async def test_a_token_that_the_provider_signed_opens_in_the_name_of_its_tenant(kid: str) -> None:
    signed = await door()
    authenticator = Authenticator([ApiKey("k", hash_of(b"secret"))], tokens=signed)
    headers = RequestHeaders([(b"authorization", b"Bearer " + token(kid))])

    assert authenticator.screen(headers).name == "jwt:team-a"
    assert authenticator.screen(headers) is signed.states["jwt:team-a"]
    by_key = RequestHeaders([(b"x-api-key", b"secret")])
    assert authenticator.screen(by_key).name == "k"
    assert authenticator.of_owner("jwt:team-a", "") is signed.states["jwt:team-a"]


def _unsigned() -> bytes:
    return jwt.encode(claims(), "", "none", {"kid": "ec"}).encode()


def _hs_with_public_key() -> bytes:
    """As if the public key, which all know, were a secret that both share."""
    import base64
    import hmac

    def part(said: Any) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(said).encode()).rstrip(b"=")

    signed = part({"alg": "HS256", "kid": "rsa", "typ": "JWT"}) + b"." + part(claims())
    public = json.dumps(PUBLIC[0]).encode()
    mac = hmac.digest(public, signed, "sha256")
    return signed + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")


@pytest.mark.parametrize(
    "made",
    [
        lambda: token(exp=time.time() - 60),
        lambda: token(exp=None),
        lambda: token(exp="soon"),
        lambda: token(nbf=time.time() + 60),
        lambda: token(iss="https://other.example.com"),
        lambda: token(iss=None),
        lambda: token(aud="other"),
        lambda: token(aud=None),
        lambda: token(sub=None),
        lambda: token(sub=7),
        lambda: token(headers={"kid": "unknown"}),
        lambda: token(headers={"kid": "rsa"}),
        lambda: jwt.encode(claims(), EC, "ES256").encode(),
        lambda: jwt.encode(claims(), STRANGER, "ES256", {"kid": "ec"}).encode(),
        lambda: jwt.encode(claims(), RSA, "RS512", {"kid": "rsa"}).encode(),
        lambda: jwt.encode(claims(), RSA, "PS256", {"kid": "rsa"}).encode(),
        _unsigned,
        _hs_with_public_key,
        lambda: token()[:-4] + b"AAAA",
        lambda: b"a.b.c",
        lambda: b"..",
        lambda: b"\xff.\xff.\xff",
        lambda: b"W1tb" * 500 + b".W10.W10",
        lambda: token(more="x" * 9000),
    ],
    ids=[
        "expired", "no exp", "exp is a text", "not yet", "issuer", "no issuer", "audience", "no audience",
        "no name", "name is a number", "unknown kid", "kid of another kind", "no kid", "signature of a stranger",
        "RS512", "PS256", "none", "HS256 with the public key", "changed signature", "letters", "dots", "bytes",
        "deep", "long",
    ],
)  # fmt: skip
async def test_no_other_token_opens(made: Callable[[], bytes]) -> None:
    signed = await door()
    authenticator = Authenticator([], tokens=signed)

    with pytest.raises(Unauthorized):
        authenticator.screen(RequestHeaders([(b"authorization", b"Bearer " + made())]))

    assert not signed.states


async def test_a_token_that_was_good_is_not_when_it_has_expired() -> None:
    clock = Clock()
    clock.now = time.time()
    signed = SignedTokens(CHECKS, await provider(), clock=clock)
    once = token(exp=clock.now + 30)
    assert signed.state_of(once)

    clock.now += 60

    with pytest.raises(Unauthorized, match="expired"):
        signed.state_of(once)


async def test_claims_say_to_which_models_and_limits_a_token_is_held() -> None:
    small = ApiKey("", "", models=frozenset({"small"}), max_calls=1)
    large = ApiKey("", "", models=frozenset({"large"}))
    signed = await door(
        ClaimRule("realm_access.roles", "research", large), ClaimRule("scope", "llm", small)
    )

    research = signed.state_of(token(sub="r", realm_access={"roles": ["research"]}))
    other = signed.state_of(token(sub="o", scope="openid llm"))
    assert research is not None
    assert other is not None
    assert (research.may_ask("large"), research.may_ask("small")) == (True, False)
    other.enter("small")
    with pytest.raises(RateLimited):
        other.check()
    with pytest.raises(Unauthorized, match="none of those"):
        signed.state_of(token(sub="n", scope="openid"))


async def test_two_tokens_of_one_tenant_are_each_held_to_their_own_rule() -> None:
    """One may be given to a program that is to reach less, and neither changes what the other reaches."""
    small, large = (ApiKey("", "", models=frozenset({name})) for name in ("small", "large"))
    signed = await door(ClaimRule("scope", "all", large), ClaimRule("scope", "few", small))
    few = token(scope="few")
    narrow, wide = signed.state_of(few), signed.state_of(token(scope="all"))
    assert narrow is not None
    assert wide is not None

    assert (narrow.may_ask("small"), narrow.may_ask("large")) == (True, False)
    assert (wide.may_ask("small"), wide.may_ask("large")) == (False, True)
    assert signed.state_of(few) is narrow
    assert narrow.name == wide.name == "jwt:team-a"


async def test_a_tenant_is_known_by_its_rule_where_its_token_has_not_come() -> None:
    rules = ClaimRule("scope", "few", ApiKey("", "", models=frozenset({"small"})))
    came = (await door(rules)).state_of(token(scope="few"))
    assert came is not None
    elsewhere = await door(rules)

    found = elsewhere.state_by_rule(came.name, came.key.rule)

    assert found is not None
    assert (found.key, found.may_ask("large")) == (came.key, False)
    assert elsewhere.state_of(token(scope="few")) is found
    assert elsewhere.state_by_rule("jwt:team-a", "scope=gone") is None
    assert elsewhere.state_by_rule("jwt:team-a", "") is None
    assert elsewhere.state_by_rule("k", "scope=few") is None


async def test_tenants_are_kept_bounded_and_what_went_is_still_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokens_, "USUAL_TENANTS", 2)
    monkeypatch.setattr(tokens_, "MOST_TENANTS", 2)
    monkeypatch.setattr(tokens_, "KNOWN_TOKENS", 2)
    signed = await door()
    first = signed.state_of(token(sub="a"))
    assert first is not None
    first.add(5, 0, 2)
    for name in "bcd":
        assert signed.state_of(token(sub=name))

    assert list(signed.states) == ["jwt:c", "jwt:d"]
    assert signed.gone == {"prompt": 5, "cached": 0, "generated": 2}
    assert len(signed._known) <= 2
    for state in signed.states.values():
        state.enter("m")
    with pytest.raises(RateLimited):
        signed.state_of(token(sub="e"))


async def test_a_tenant_is_held_to_its_limit_however_many_others_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the 1,025th on each found its state gone, and a minute's calls due again."""
    monkeypatch.setattr(tokens_, "USUAL_TENANTS", 2)
    signed = await door(ClaimRule("", "", ApiKey("", "", calls_per_minute=1)))
    for name in "abcd":
        state = signed.state_of(token(sub=name))
        assert state is not None
        state.enter("m")
        state.leave()

    for name in "abcd":
        again = signed.state_of(token(sub=name))
        assert again is not None
        with pytest.raises(RateLimited):
            again.enter("m")


async def test_tenants_with_long_calls_keep_none_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen of them, the longest unused, were all that was looked at."""
    monkeypatch.setattr(tokens_, "USUAL_TENANTS", 2)
    monkeypatch.setattr(tokens_, "MOST_LOOKED_AT", 2)
    monkeypatch.setattr(tokens_, "MOST_TENANTS", 8)
    signed = await door()
    for name in ("long", "longer"):
        state = signed.state_of(token(sub=name))
        assert state is not None
        state.enter("m")

    for n in range(50):
        assert signed.state_of(token(sub=f"t{n}"))

    assert {"jwt:long", "jwt:longer"} <= signed.states.keys()
    assert len(signed.states) <= 8


async def test_a_key_that_the_provider_took_back_opens_nothing() -> None:
    said = jwks()

    async def read() -> bytes:
        return said

    keys = Jwks(read)
    await keys.look()
    signed = SignedTokens(CHECKS, keys)
    good = token("ec")
    assert signed.state_of(good)

    said = jwks(PUBLIC[0])
    await keys.look()

    with pytest.raises(Unauthorized, match="key that is not known"):
        signed.state_of(good)


async def test_a_provider_that_does_not_answer_lets_nobody_in_for_long() -> None:
    clock, away = Clock(), False

    async def read() -> bytes:
        if away:
            raise OSError("away")
        return jwks()

    keys = Jwks(read, clock)
    signed = SignedTokens(CHECKS, keys)
    with pytest.raises(SigningKeysUnknown) as caught:
        signed.state_of(token())
    assert caught.value.status == 503
    assert await keys.look()
    assert signed.state_of(token())
    away = True
    assert not await keys.look()
    assert signed.state_of(token())

    clock.now += 25 * 3600

    with pytest.raises(SigningKeysUnknown):
        signed.state_of(token(sub="b"))


async def test_unknown_keys_ask_the_provider_once_in_a_while_however_many_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: asyncio.Queue[float] = asyncio.Queue()
    go = asyncio.Event()

    async def sleep(seconds: float) -> None:
        slept.put_nowait(seconds)
        await go.wait()

    keys = await provider()
    running = asyncio.create_task(keys.run())
    monkeypatch.setattr("pdgate.gateway.tenants.jwks.asyncio.sleep", sleep)
    signed = SignedTokens(CHECKS, keys)
    assert await slept.get() == 10
    for at in range(100):
        with pytest.raises(Unauthorized):
            signed.state_of(token(headers={"kid": f"unknown-{at}"}))

    assert keys.looks == 2
    go.set()
    await slept.get()
    assert keys.looks == 3
    running.cancel()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"[]",
        b'{"keys": 7}',
        b'{"keys": [7, {}, {"kty": []}]}',
        b"[" * 50_000,
        json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "rsa"}]}).encode(),
        json.dumps({"keys": [{**PUBLIC[1], "use": "enc"}]}).encode(),
        json.dumps({"keys": [{**PUBLIC[1], "alg": "HS256"}]}).encode(),
        json.dumps({"keys": [{**PUBLIC[1], "x": "AA"}]}).encode(),
    ],
)
def test_keys_that_are_none_for_signatures_are_not_taken(said: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        signing_keys(said)


def test_short_rsa_keys_are_not_taken() -> None:
    short = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    said = {**RSAAlgorithm.to_jwk(short.public_key(), as_dict=True), "kid": "short"}

    assert signing_keys(jwks(said, PUBLIC[1])).keys() == {"ec"}


def test_no_two_claims_name_the_same_tenant() -> None:
    names = {name_of(claim) for claim in ("a", "A", "a b", "a_b", "x" * 64, "x" * 65, "\ud800")}

    assert len(names) == 7
    assert all(len(name.encode()) <= 72 for name in names)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"issuer": ISSUER}, "'jwt.issuer' needs 'jwt.audience'"),
        ({"audience": "a"}, "'jwt.audience' needs 'jwt.issuer'"),
        ({"issuer": ISSUER, "audience": "a"}, "'jwt.issuer' needs 'jwt.jwks'"),
        ({"issuer": ISSUER, "audience": "a", "jwks": "http://login.example.com"}, "of https"),
        ({"issuer": ISSUER, "audience": "a", "jwks": "/nowhere"}, "cannot read /nowhere"),
    ],
)
def test_what_cannot_be_meant_ends_the_start(said: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        load(None, {f"jwt.{name}": found for name, found in said.items()})

    assert "\n" not in str(caught.value)


async def test_what_tokens_of_one_tenant_take_is_counted_together(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(jwks())
    tenants = (
        JwtTenantEntry(claim="scope", value="few", tokens_per_day=1000),
        JwtTenantEntry(claim="scope", value="own", models=("m",)),
        JwtTenantEntry(),
    )
    section = JwtSection(issuer=ISSUER, audience=AUDIENCE, jwks=str(file), tenants=tenants)
    async with served(Engine(Role.PLAIN), tmp_path, jwt=section) as gateway:

        async def status(said: bytes) -> int:
            headers = {"authorization": f"Bearer {said.decode()}"}
            return (await gateway.chat(headers, max_tokens=5)).status_code

        async def opens() -> bool:
            return await status(token()) == 200

        await until(opens, "keys of tokens")
        for scope in ("few", "own", "own", "few"):
            assert await status(token(scope=scope)) == 200

        async def counted() -> bool:
            return bool((await usage(gateway, "jwt:team-a"))["total"]["calls"] >= 5)

        await until(counted, "all five calls")
        assert (await usage(gateway, "jwt:team-a"))["total"]["calls"] == 5


async def test_tokens_and_keys_open_the_same_gateway(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(jwks())
    section = JwtSection(
        issuer=ISSUER,
        audience=AUDIENCE,
        jwks=str(file),
        tenants=(JwtTenantEntry(claim="groups", value="few", budget_tokens=30), JwtTenantEntry()),
    )
    entry = ApiKeyEntry(name="k", sha256=hash_of(b"secret"))
    async with gateway_of(Engine(Role.PLAIN), jwt=section, api_keys=(entry,)) as gateway:

        async def status(said: bytes, **fields: Any) -> int:
            headers = {"authorization": f"Bearer {said.decode()}"}
            return (await gateway.chat(headers, **fields)).status_code

        async def opens() -> bool:
            return await status(token()) == 200

        assert await status(b"secret") == 200
        # The keys are read when the gateway begins.
        await until(opens, "keys of tokens")
        few = token(sub="few", groups=["many", "few"])
        assert await status(few, max_tokens=5) == 200
        assert await status(few, max_tokens=500) == 429
        assert await status(token("rsa", headers={"kid": "ec"})) == 401
        assert (await gateway.http.post("/v1/chat/completions", json={})).status_code == 401
