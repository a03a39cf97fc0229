"""Every failure is an OpenAI error object with a status of its own."""

from typing import Any

import pytest

from pdgate.engine.core import EngineCore
from pdgate.engine.pace import Faults
from pdgate.protocols.call import CHAT, COMPLETIONS
from tests.engine.api.conftest import Served, serve
from tests.support.engine_cores import layout
from tests.support.fake_connector import Meeting

ASKED = {"prompt": "Hello", "max_tokens": 3}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (COMPLETIONS, b"{", 400, None),
        (COMPLETIONS, b"\xff", 400, None),
        (COMPLETIONS, b"[]", 400, None),
        (COMPLETIONS, b"{}", 400, "prompt"),
        (COMPLETIONS, b'{"prompt": []}', 400, "prompt"),
        (COMPLETIONS, b'{"prompt": [100000]}', 400, "prompt"),
        (COMPLETIONS, b'{"prompt": "x", "model": "other"}', 404, "model"),
        (COMPLETIONS, b'{"prompt": "x", "max_tokens": -1}', 400, "max_tokens"),
        (COMPLETIONS, b'{"prompt": "x", "temperature": "hot"}', 400, "temperature"),
        (COMPLETIONS, b'{"prompt": "x", "stop": 3}', 400, "stop"),
        (COMPLETIONS, b'{"prompt": "x", "n": 0}', 400, "n"),
        (COMPLETIONS, b'{"prompt": "x", "kv_transfer_params": 1}', 400, "kv_transfer_params"),
        (COMPLETIONS, b'{"prompt": "x", "max_tokens": 5000}', 400, None),
        (CHAT, b"{}", 400, "messages"),
        (CHAT, b'{"messages": [1]}', 400, "messages"),
        (CHAT, b'{"messages": []}', 400, "messages"),
        ("/v1/nothing", b"{}", 404, None),
        ("/health", b"{}", 405, None),
    ],
)
async def test_wrong_calls_are_refused(
    served: Served, path: str, body: bytes, status: int, param: str | None
) -> None:
    answer = await served.http.post(path, content=body)

    assert answer.status_code == status
    assert answer.json()["error"]["param"] == param
    assert answer.json()["error"]["message"]


async def test_a_prompt_that_is_too_long_says_so(served: Served) -> None:
    answer = await served.http.post(COMPLETIONS, json={"prompt": "x" * 3000})

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


async def test_a_told_failure_is_a_500() -> None:
    async with serve(Faults(fail_rate=1.0)) as served:
        answer = await served.http.post(COMPLETIONS, json=ASKED)

    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("params", "status"), [({"from": "x", "tokens": "y"}, 400), ({"from": "x", "tokens": 2}, 500)]
)
async def test_a_failed_hand_over_has_its_status_also_in_a_stream(
    params: dict[str, Any], status: int, stream: bool
) -> None:
    async with serve(meeting=Meeting(layout(256))) as served:
        body = {**ASKED, "kv_transfer_params": params, "stream": stream}
        answer = await served.http.post(COMPLETIONS, json=body)

    assert answer.status_code == status
    assert "error" in answer.json()


@pytest.mark.parametrize(
    ("params", "status"), [({"from": "x", "tokens": "y"}, 400), ({"from": "x", "tokens": 2}, 200)]
)
async def test_a_head_that_comes_first_leaves_only_refusals_their_status(
    params: dict[str, Any], status: int
) -> None:
    async with serve(meeting=Meeting(layout(256)), head_first=True) as served:
        body = {**ASKED, "kv_transfer_params": params, "stream": True}
        answer = await served.http.post(COMPLETIONS, json=body)
        whole = await served.http.post(COMPLETIONS, json={**body, "stream": False})

    assert answer.status_code == status
    assert '"error"' in answer.text
    if status == 200:
        # Nothing is said before it.
        assert answer.text.startswith('data: {"error"')
    assert whole.status_code == (400 if status == 400 else 500)


async def test_what_the_connector_kept_is_in_the_answer() -> None:
    async with serve(meeting=Meeting(layout(256))) as served:
        kept = await served.http.post(
            COMPLETIONS, json={**ASKED, "max_tokens": 1, "kv_transfer_params": {"keep": True}}
        )
        plain = await served.http.post(COMPLETIONS, json=ASKED)

    assert kept.json()["kv_transfer_params"]["tokens"] == 6
    assert plain.json()["kv_transfer_params"] is None


async def test_a_dead_engine_is_unhealthy_and_refuses(served: Served) -> None:
    assert (await served.http.get("/health")).status_code == 200
    served.core.stop()

    assert (await served.http.get("/health")).status_code == 503
    assert (await served.http.post(COMPLETIONS, json=ASKED)).status_code == 503


async def test_a_connector_in_trouble_makes_the_engine_unwell_and_says_why(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineCore, "trouble", "the signal plane broke")

    answer = await served.http.get("/health")

    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "the signal plane broke"
