"""What is defended: the line between one request and the next, and what a request is."""

import asyncio

import pytest

from pdgate.protocols.call import CHAT, COMPLETIONS
from pdgate.protocols.instance import Role
from tests.support import fleet
from tests.support.fleet import PATIENCE_SECONDS, Engine, ask, gateway_of


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_a_read_that_looks_like_a_post_makes_no_post_of_another_request(
    method: str, path: str
) -> None:
    """Its head is cut where a header says what a POST's first line says.

    Behind a proxy that keeps connections, what is served as a POST that was none leaves a body for
    the next client.
    """
    line = f"{method} {path} HTTP/1.1\r\n"
    cut = f"POST {path} HTTP/1.1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    engine = Engine(Role.PLAIN)
    async with gateway_of(engine) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        _, other = await gateway.wire()
        reader, writer = await gateway.wire()
        # The first call makes the connection to the engine warm, and shows that calls are served.
        writer.write(ask())
        await reader.readuntil(b"}]}")
        writer.write(f"{line}host: g\r\nx-a: ".encode())
        await _arrived(gateway)
        writer.write(cut.encode())
        answer = await reader.read()
        other.close()

    assert answer.startswith(b"HTTP/1.1 405 "), answer
    assert len(engine.calls) == 1
    assert answer.count(b"HTTP/1.1 ") == 1


async def _arrived(gateway: fleet.Gateway) -> None:
    """What was written on another connection before has been read: one loop reads all."""
    for _ in range(2):
        assert (await gateway.http.get("/health")).status_code == 200
