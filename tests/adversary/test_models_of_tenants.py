"""Tenants: what a key for one model can have of another model, and of another key's calls.

Engines here serve both models, as one with an adapter does: it would serve the other one, so only
the gateway keeps them apart.
"""

import json
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest

from pdgate.forwarders.record import Record
from pdgate.gateway.config.api_keys import ApiKeyEntry
from pdgate.gateway.metrics.call_stats import CallStats
from pdgate.gateway.security.keys import hash_of
from pdgate.protocols import response_id
from pdgate.protocols.apis import RESPONSES
from pdgate.protocols.instance import Role
from tests.support.fleet import Engine, Gateway, as_json, gateway_of, says

MINE, THEIRS = "mine", "theirs"
ENDED = {"choices": [{"finish_reason": "stop"}], "status": "completed"}
"""Of an answer that is whole."""
SECRET, OTHER_SECRET = "pdg-of-mine", "pdg-of-all"
KEYS = (
    ApiKeyEntry(name="mine", sha256=hash_of(SECRET.encode()), models=(MINE,), max_calls=1),
    ApiKeyEntry(name="all", sha256=hash_of(OTHER_SECRET.encode())),
)
AS_MINE = {"authorization": f"Bearer {SECRET}"}
AS_ALL = {"authorization": f"Bearer {OTHER_SECRET}"}
PATH = "/v1/audio/transcriptions"
MODELS = ({"name": THEIRS, "aliases": ["nickname"]},)


def engine() -> Engine:
    found = Engine(Role.PLAIN, says(as_json({"id": "resp", **ENDED})), MINE, THEIRS)
    return found


def stored_at(engine: Engine, model: str | None, number: int = 0) -> str:
    """A response that the engine keeps; it answers whoever asks."""
    name = response_id.new(f"plain-{number}", model)
    engine.probes[f"{RESPONSES}/{name}"] = as_json({"id": name})
    return name


async def reached(gateway: Gateway, *asked: Any, **said: Any) -> tuple[int, bool]:
    """The status, and whether any engine was asked."""
    before = sum(len(engine.calls) for engine in gateway.engines)
    answer: httpx2.Response = await gateway.http.request(*asked, headers=AS_MINE, **said)
    return answer.status_code, sum(len(engine.calls) for engine in gateway.engines) > before


@pytest.mark.parametrize("engines", [1, 2])
async def test_a_stored_response_of_another_model(engines: int) -> None:
    fleet = [engine() for _ in range(engines)]
    async with gateway_of(*fleet, api_keys=KEYS, passthrough=True) as gateway:
        theirs, mine = stored_at(fleet[0], THEIRS), stored_at(fleet[0], MINE)

        for method, path in (
            ("GET", f"{RESPONSES}/{theirs}"),
            ("GET", f"{RESPONSES}/%72{theirs[1:]}"),
            ("GET", f"{RESPONSES}/{theirs}?model={MINE}"),
            ("POST", f"{RESPONSES}/{theirs}/cancel"),
            ("DELETE", f"{RESPONSES}/{theirs}?model={MINE}"),
            ("POST", f"{RESPONSES}/{theirs}/anything?model={MINE}"),
        ):
            assert (path, *await reached(gateway, method, path)) == (path, 403, False)
        for before, status in ((theirs, 403), (theirs.upper(), 403 if engines == 1 else 404)):
            asked = {"model": MINE, "input": "go on", "previous_response_id": before}
            assert await reached(gateway, "POST", RESPONSES, json=asked) == (status, False)

        for end, said in (
            (f"/x?model={THEIRS}", {}),
            ("/x", {"json": {"model": THEIRS}}),
            ("/cancel", {"json": {"model": THEIRS}}),
            ("/x", {"json": {"previous_response_id": theirs}}),
        ):
            status, asked_of_engine = await reached(
                gateway, "POST", f"{RESPONSES}/{mine}{end}", **said
            )
            assert (status in (400, 403), asked_of_engine) == (True, False), (end, said)

        kept = await gateway.http.get(f"{RESPONSES}/{mine}", headers=AS_MINE)
        assert kept.json() == {"id": mine}
        asked = {"model": MINE, "input": "go on", "previous_response_id": mine}
        assert await reached(gateway, "POST", RESPONSES, json=asked) == (200, True)
        whole = await gateway.http.get(f"{RESPONSES}/{theirs}", headers=AS_ALL)
        assert whole.json() == {"id": theirs}


@pytest.mark.parametrize("name", ["chosen-by-a-client", "chosen.by.a~client", "resp_" + "0" * 32])
async def test_a_stored_response_whose_id_says_no_model(name: str) -> None:
    """A client may have chosen it (request_id), or a gateway of before."""
    async with gateway_of(engine(), api_keys=KEYS, passthrough=True) as gateway:
        gateway.engines[0].probes[f"{RESPONSES}/{name}"] = as_json({"id": name})

        assert await reached(gateway, "GET", f"{RESPONSES}/{name}?model={MINE}") == (403, False)
        kept = await gateway.http.get(f"{RESPONSES}/{name}", headers=AS_ALL)
        assert kept.json() == {"id": name}


async def test_a_response_says_of_which_model_it_is() -> None:
    async with gateway_of(engine(), api_keys=KEYS, models=MODELS) as gateway:
        for model in (MINE, "nickname"):
            asked = {"model": model, "input": "hi"}
            await gateway.http.post(RESPONSES, json=asked, headers=AS_ALL)

        tags = [response_id.tags_in(body["request_id"])[1] for body in gateway.engines[0].bodies]
        assert tags == [response_id.tag(MINE), response_id.tag(THEIRS)]


def part(name: str, value: str, *headers: str) -> bytes:
    lines = [f'content-disposition: form-data; name="{name}"' if name else "", *headers]
    return "\r\n".join([*filter(None, lines), "", value]).encode()


def form(*parts: bytes) -> bytes:
    return b"".join(b"--X\r\n%b\r\n" % one for one in parts) + b"--X--\r\n"


FORM, MIXED = "multipart/form-data; boundary=X", "multipart/mixed; boundary=X"
JSON, URL_ENCODED = "application/json", "application/x-www-form-urlencoded"
IN_MINE = f"?model={MINE}"
NAMED = json.dumps({"model": THEIRS})
SECOND = [
    (IN_MINE, JSON, NAMED.encode()),
    (IN_MINE, JSON, b'{"model":"nickname"}'),
    (IN_MINE, "text/plain", NAMED.encode()),
    (IN_MINE, "", NAMED.encode()),
    ("", JSON, b'{"model":"%b","model":"%b"}' % (THEIRS.encode(), MINE.encode())),
    ("", JSON, b'{"model":"%b","Model":"%b"}' % (MINE.encode(), THEIRS.encode())),
    ("", JSON, b'{"model":"%b","lora_path":"%b"}' % (MINE.encode(), THEIRS.encode())),
    ("", JSON, b'{"model":"%b","x":[{"model":"%b"}]}' % (MINE.encode(), THEIRS.encode())),
    ("", JSON, b'{"model":"%b","x":{"mod\\u0065l":"%b"}}' % (MINE.encode(), THEIRS.encode())),
    (IN_MINE, JSON, f"[{NAMED}]".encode()),
    (IN_MINE, JSON, NAMED.encode("utf-16")),
    (IN_MINE, JSON, NAMED.encode("utf-32-be")),
    (IN_MINE, JSON, b"\xef\xbb\xbf" + NAMED.encode()),
    (IN_MINE, "text/plain", b" " * 100 + NAMED.encode()),
    (IN_MINE, "application/jsonl", f'{{"a":1}}\n{NAMED}\n'.encode()),
    (IN_MINE, URL_ENCODED, f"model={THEIRS}".encode()),
    ("", URL_ENCODED, f"model={THEIRS}&model={MINE}".encode()),
    ("", URL_ENCODED, f"model={MINE}&x=1;model={THEIRS}".encode()),
    ("", URL_ENCODED, f"model={MINE}&mod%65l={THEIRS}".encode()),
    (IN_MINE, FORM, form(part("model", THEIRS))),
    ("", FORM, form(part("model", THEIRS), part("model", MINE))),
    ("", FORM, form(part("model", MINE), part("model", THEIRS))),
    (IN_MINE, FORM, form(part("x", NAMED))),
    (IN_MINE, FORM, form(part("", NAMED, "content-type: application/json"))),
    (IN_MINE, FORM, form(part("model", "dGhlaXJz", "content-transfer-encoding: base64"))),
    (IN_MINE, f"{FORM}; charset=utf-7", form(part("model", THEIRS))),
    (IN_MINE, f"{FORM}; boundary=Y", form(part("model", THEIRS))),
    (IN_MINE, MIXED, form(part("model", THEIRS))),
    (IN_MINE, MIXED, form(part("", NAMED))),
    (IN_MINE, MIXED, form(part("", "x", "content-type: multipart/mixed; boundary=Y"))),
    (IN_MINE, "multipart/related; boundary=X", form(part("", NAMED))),
    (IN_MINE, "application/xml", f"<model>{THEIRS}</model>".encode()),
    (f"{IN_MINE}&model={THEIRS}", "", b""),
    (f"?model={THEIRS}&model={MINE}", "", b""),
    (f"{IN_MINE}&x=1;model={THEIRS}", "", b""),
    (f"{IN_MINE}&mod%65l={THEIRS}", "", b""),
    ("", JSON, b'{"model":"%b","lora_request":{"lora_name":"%b"}}' % (MINE.encode(), THEIRS.encode())),
    (IN_MINE, JSON, b'{"previous_response_id":"resp_x"}'),
    (IN_MINE, JSON, b'{"a":[{"previous_response_id":"resp_x"}]}'),
    (IN_MINE, FORM, form(part("previous_response_id", "resp_x"))),
    (f"{IN_MINE}&previous_response_id=resp_x", "", b""),
    (f"/{THEIRS}{IN_MINE}", "", b""),
    (f"/nickname/x{IN_MINE}", "", b""),
    ("", JSON, NAMED.encode()),
]  # fmt: skip


@pytest.mark.parametrize(("query", "kind", "body"), SECOND, ids=range(len(SECOND)))
async def test_a_second_model_beside_the_one_that_is_checked(
    query: str, kind: str, body: bytes
) -> None:
    async with gateway_of(engine(), api_keys=KEYS, passthrough=True, models=MODELS) as gateway:
        headers = {**AS_MINE, **({"content-type": kind} if kind else {})}
        answer = await gateway.http.post(f"{PATH}{query}", content=body, headers=headers)

        assert answer.status_code in (400, 403, 415)
        assert not gateway.engines[0].calls
        # Such a key's own affairs pass.
        answer = await gateway.http.post(
            f"{PATH}{IN_MINE}",
            content=form(part("model", MINE), part("file", "RIFF\0{")),
            headers={**AS_MINE, "content-type": FORM},
        )
        assert answer.status_code == 200


@pytest.mark.parametrize(
    "more",
    [
        {"lora_path": THEIRS},
        {"lora_request": {"lora_name": THEIRS, "lora_int_id": 1}},
        {"extra_body": {"model": THEIRS}},
        {"vllm_xargs": {"lora_path": THEIRS}},
    ],
)
async def test_a_second_model_in_a_call(more: dict[str, Any]) -> None:
    async with gateway_of(engine(), api_keys=KEYS) as gateway:
        assert (await gateway.chat(AS_MINE, model=MINE, **more)).status_code == 400
        assert not gateway.engines[0].calls
        assert (await gateway.chat(AS_ALL, model=MINE, **more)).status_code == 200


async def test_a_model_that_is_named_twice_reaches_engines_once() -> None:
    """What is checked is what they read, whichever of two they would take."""
    async with gateway_of(engine(), api_keys=KEYS) as gateway:
        body = b'{"model":"theirs","messages":[],"model":"mine"}'
        await gateway.http.post("/v1/chat/completions", content=body, headers=AS_MINE)

        assert gateway.engines[0].calls[0].body.count(b'"model"') == 1
        assert gateway.engines[0].bodies[0]["model"] == MINE


@pytest.mark.parametrize("where", ["opened", "closed"])
async def test_a_bug_in_what_is_counted_keeps_no_place(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key has one call at a time here; after a bug, as many as before."""
    failures: Sequence[str] = []

    def fails(self: CallStats, record: Record) -> None:
        raise AssertionError("a bug")

    async with gateway_of(engine(), api_keys=KEYS) as gateway:
        with monkeypatch.context() as broken:
            broken.setattr(CallStats, where, fails)
            for _ in range(3):
                try:
                    await gateway.chat(AS_MINE, model=MINE)
                except httpx2.TransportError as error:
                    failures = [*failures, repr(error)]

        assert (await gateway.chat(AS_MINE, model=MINE)).status_code == 200, failures
