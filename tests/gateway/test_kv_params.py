"""Whom an engine dials is the gateway's to say: clients can neither set nor smuggle it."""

import asyncio
import json
from typing import Any, ClassVar

import pytest

from pdgate.forwarders.base import Plain
from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from tests.support.fleet import (
    BLOCKS,
    JSON_TYPE,
    PATIENCE_SECONDS,
    Engine,
    ask,
    gateway_of,
    post,
    question,
)

pytestmark = pytest.mark.usefixtures("front_end")

DIAL: dict[str, Any] = {"remote_host": "198.51.100.9", "remote_port": 1}
OURS: list[dict[str, Any]] = [
    {"kv_transfer_params": DIAL},
    {"kv_transfer_params": {}},
    {"kv_transfer_params": False},
    {"ec_transfer_params": DIAL},
    {"do_remote_prefill": True},
    {"do_remote_decode": False},
    {"remote_host": "198.51.100.9"},
    {"remote_block_ids": [1]},
    {"transfer_id": "t"},
    {"bootstrap_host": "198.51.100.9"},
    {"bootstrap_port": [1, 2]},
    {"bootstrap_room": 0},
    {"disagg_spec": DIAL},
    {"disaggregated_params": DIAL},
]
HIDDEN = [
    {key_state: fields}
    for fields in OURS[::3]
    for key_state in ("vllm_xargs", "extra_args", "extra_body")
]


def name_of(fields: dict[str, Any]) -> str:
    name, found = next(iter(fields.items()))
    return f"{name}.{next(iter(found))}" if {name: found} in HIDDEN else name


async def test_clients_cannot_say_whom_an_engine_dials() -> None:
    async with gateway_of(Engine(Role.PREFILL), Engine(Role.DECODE)) as gateway:
        for fields in (*OURS, *HIDDEN):
            answer = await gateway.chat(**fields)

            assert (answer.status_code, fields) == (400, fields)
            assert answer.json()["error"]["param"] == name_of(fields)
        assert not gateway.engines[0].calls
        assert not gateway.engines[1].calls


async def test_no_spelling_of_a_name_gets_past() -> None:
    spellings = (
        b'{"model": "m", "kv\\u005ftransfer_params": {"remote_host": "198.51.100.9"}}',
        b'{"kv_transfer_params": null, "model": "m", "kv_transfer_params": {"remote_port": 1}}',
        b'{"a": NaN, "model": "m", "kv_transfer_params": {"remote_port": 1}}',
        '{"model": "m", "kv_transfer_params": {"remote_port": 1}}'.encode("utf-16"),
    )
    async with gateway_of(Engine(Role.PREFILL), Engine(Role.DECODE)) as gateway:
        for body in spellings:
            answer = await gateway.http.post(CHAT, content=body)

            assert (answer.status_code, body) == (400, body)
        assert not gateway.engines[0].calls


async def test_nulls_say_nothing_and_pass() -> None:
    """Some clients write out every field that they know."""
    async with gateway_of(Engine(Role.PREFILL), Engine(Role.DECODE)) as gateway:
        answer = await gateway.chat(
            kv_transfer_params=None, bootstrap_host=None, vllm_xargs={"transfer_id": None}
        )

        assert answer.status_code == 200
        prefill, decode = gateway.engines
        assert prefill.bodies[0]["kv_transfer_params"]["do_remote_decode"] is True
        assert decode.bodies[0]["kv_transfer_params"] == BLOCKS


async def test_trusted_clients_may_say_it() -> None:
    async with gateway_of(Engine(Role.PLAIN), trust_client_kv_params=True) as gateway:
        answer = await gateway.chat(
            {"x-request-id": "cmpl_10.0.0.1:5600"}, kv_transfer_params=DIAL, bootstrap_room=3
        )

        assert answer.status_code == 200
        engine = gateway.engines[0]
        assert engine.bodies[0]["kv_transfer_params"] == DIAL
        assert engine.bodies[0]["bootstrap_room"] == 3
        found = engine.calls[0].header(b"x-request-id")
        assert found is not None
        assert b"10.0.0.1:5600" in found


async def test_ids_carry_no_addresses_to_engines() -> None:
    names = (
        "___prefill_addr_10.0.0.1:80___decode_addr_10.0.0.2:80_",
        "a_10.0.0.1:5600",
        "a_[::1]:5600",
        "a_host:1_b",
        "http://10.0.0.1",
    )
    async with gateway_of(Engine(Role.PREFILL), Engine(Role.DECODE)) as gateway:
        for name in names:
            answer = await gateway.chat({"x-request-id": name})

            assert (answer.status_code, name) == (400, name)
            assert answer.json()["error"]["param"] == "x-request-id"
            assert name not in answer.headers["x-request-id"]
        assert not gateway.engines[0].calls


async def test_no_header_brings_another_one_to_an_engine() -> None:
    """A header of its own, x-evil, is fine here and never passed on."""
    smuggled = (
        b"authorization: a\rx-evil: 1",
        b"authorization: a\nx-evil: 1",
        b"authorization: a\r\n x-evil: 1",
        b"authorization: a\0x-evil: 1",
        b"x-request-id: a\rx-evil: 1",
        b"x-request-id: a\nx-evil: 1",
        b"traceparent: a\r\r\nx-evil: 1",
    )
    async with gateway_of(Engine(Role.PLAIN)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        for header in smuggled:
            reader, writer = await gateway.wire()
            writer.write(ask(header, b"connection: close"))
            assert (await reader.read()).startswith(b"HTTP/1.1 ")

        for call in gateway.engines[0].calls:
            assert b"x-evil" not in [name for name, _ in call.headers]
            assert not [found for _, found in call.headers if b"\r" in found or b"\n" in found]


async def test_only_known_headers_reach_an_engine() -> None:
    passed = {"authorization": "Bearer t", "traceparent": "00-1-2-3", "x-session-id": "s"}
    kept = {"cookie": "c", "x-forwarded-for": "1.2.3.4", "forwarded": "for=1", "user-agent": "u"}
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        await gateway.chat({**passed, **kept})

        names = [name.decode() for name, _ in gateway.engines[0].calls[0].headers]
        assert set(passed) <= set(names)
        assert not set(kept) & set(names)
        assert len(names) == len(set(names))


async def test_a_field_that_nobody_knows_arrives_as_it_was_written() -> None:
    """Number formats, order and escapes included."""
    body = b'{"zz": 1.50, "model": "m", "big": 12345678901234567890123, "t": "\\u0041", "n": null}'
    async with gateway_of(Engine(Role.PLAIN)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(post(body, JSON_TYPE, b"connection: close"))
        await reader.read()

        sent = gateway.engines[0].calls[0].body
        assert sent.replace(b" ", b"") == body.replace(b" ", b"")
        assert list(json.loads(sent)) == ["zz", "model", "big", "t", "n"]


async def test_the_client_sees_its_own_id_and_engines_a_unique_one() -> None:
    async with gateway_of(Engine(Role.PREFILL), Engine(Role.DECODE)) as gateway:
        answers = [await gateway.chat({"x-request-id": "mine"}) for _ in range(3)]

        assert [answer.headers["x-request-id"] for answer in answers] == ["mine"] * 3
        prefill, decode = ([c.header(b"x-request-id") for c in e.calls] for e in gateway.engines)
        # Both engines know a call by one name: some hand over by it.
        assert prefill == decode
        assert len(set(prefill)) == 3
        assert all(name is not None and name.startswith(b"mine-") for name in prefill)


async def test_an_id_that_cannot_be_used_is_replaced() -> None:
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        for name in ("", "with space", "x" * 129, "\xe9", "a;b"):
            answer = await gateway.http.post(
                CHAT, json=question(), headers=[(b"x-request-id", name.encode("latin-1"))]
            )

            assert answer.status_code == 200
            assert answer.headers["x-request-id"] not in ("", name)


class _Brook(Plain):
    """A protocol of somebody else's, one of whose fields is an ordinary one elsewhere."""

    own_fields: ClassVar = frozenset({"brook_peer", "user"})


async def test_a_protocol_can_keep_its_own_fields_from_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pdgate.gateway.ways.registry.load", lambda *_: _Brook())
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        for fields in ({"brook_peer": "198.51.100.9"}, {"user": "u"}, *OURS[:2]):
            assert (await gateway.chat(**fields)).status_code == 400
        hidden = await gateway.chat(vllm_xargs={"brook_peer": "x"})
        assert hidden.json()["error"]["param"] == "vllm_xargs.brook_peer"
        assert (await gateway.chat(brook_peer=None)).status_code == 200
