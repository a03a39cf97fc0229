"""What is defended: one tenant's share, from its own greed and from others'."""

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from pdgate.gateway.config.api_keys import ApiKeyEntry
from pdgate.gateway.front.hot_protocol import HotProtocol
from pdgate.gateway.security.keys import hash_of
from pdgate.protocols.instance import Role
from tests.support import fleet
from tests.support.fleet import JSON_TYPE, PATIENCE_SECONDS, Engine, gateway_of, post, question

SECRET = "pdg-of-team-a"
CALLS_PER_MINUTE = 1
"""So that the next one may come a minute later, however long the bodies take here."""
CALLS = 300


@pytest.mark.parametrize("http", [HotProtocol, "httptools"], ids=["hot", "asgi"])
async def test_heads_that_come_first_get_no_more_calls_than_a_minute_has(
    http: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All heads are judged before the first body is here."""
    monkeypatch.setattr(fleet, "HTTP", http)
    entry = ApiKeyEntry(
        name="team-a", sha256=hash_of(SECRET.encode()), calls_per_minute=CALLS_PER_MINUTE
    )
    engine = Engine(Role.PLAIN)
    call = post(
        json.dumps(question()).encode(), JSON_TYPE, b"authorization: Bearer " + SECRET.encode()
    )
    head, _, body = call.partition(b"\r\n\r\n")
    async with (
        gateway_of(engine, api_keys=(entry,)) as gateway,
        asyncio.timeout(PATIENCE_SECONDS * 2),
    ):
        wires = [await gateway.wire() for _ in range(CALLS)]
        for _, writer in wires:
            writer.write(head + b"\r\n\r\n")
        # One loop reads all: when later requests have been answered, the heads have been read.
        for _ in range(2):
            assert (await gateway.http.get("/health")).status_code == 200
        for _, writer in wires:
            writer.write(body)
        said = Counter([(await reader.readline())[9:12] for reader, _ in wires])

    assert said == {b"200": CALLS_PER_MINUTE, b"429": CALLS - CALLS_PER_MINUTE}
    assert len(engine.calls) == CALLS_PER_MINUTE
