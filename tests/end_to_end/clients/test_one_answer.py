"""An answer that has to be something is the same over two engines as by one.

Decode goes on in the schema where prefill's first token left it.
"""

from typing import Any

import httpx2
import pytest

from tests.end_to_end.clients.asked import HELLO, MODEL, SCHEMA
from tests.end_to_end.clients.conftest import Site

FORM = {"type": "json_schema", "name": "weather", "schema": SCHEMA}
HI = [{"role": "user", "content": HELLO}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}

ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "a response of a schema": ("/v1/responses", {"input": HELLO, "text": {"format": FORM}}),
    "a chat of a schema": (
        "/v1/chat/completions",
        {"messages": HI, "response_format": {"type": "json_schema", "json_schema": FORM}},
    ),
    "a chat of calls": (
        "/v1/chat/completions",
        {"messages": HI, "tools": [TOOL], "tool_choice": "required"},
    ),
}


def said(url: str, path: str, body: dict[str, Any]) -> tuple[Any, str]:
    """What the answer holds, less what is new in each; and the id of the call."""
    answer = httpx2.post(
        url + path, json={"model": MODEL, "temperature": 0, **body}, timeout=60
    ).raise_for_status()
    found = answer.json()
    call_id = answer.headers.get("x-request-id", "")
    if path == "/v1/responses":
        return [item.get("content") for item in found["output"]], call_id
    message = found["choices"][0]["message"]
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return (message["content"], calls), call_id


@pytest.mark.slow
@pytest.mark.parametrize("what", ASKED)
def test_an_answer_over_two_engines_is_that_of_one(site: Site, what: str) -> None:
    path, body = ASKED[what]
    alone, _ = said(site.plain.url, path, body)
    crossed, call_id = said(site.gateway.url, path, body)

    assert crossed == alone
    assert site.gateway.record(call_id)["path"] == "disaggregated"
