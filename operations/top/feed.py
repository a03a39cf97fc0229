"""Feed of the pictures of GET /admin/live, one a second, and of the times without them.

    async for told in pictures(url, token):
        told is a Picture, or Away with the reason

A gateway that goes away is asked again every RETRY_SECONDS, for ever; one that says no is not.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import httpx2

from pdgate.operations.asking import BadAsk

PATH: Final = "/admin/live"
RETRY_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 6.0
"""Without a picture, though the connection is there."""

MAX_PICTURE_BYTES: Final = 16 << 20

Picture = Mapping[str, Any]
"""As gateway/console/snapshots.py makes it."""


@dataclass(frozen=True, slots=True)
class Away:
    """The gateway does not answer, and why."""

    why: str


async def pictures(
    url: str, token: str, retry_seconds: float = RETRY_SECONDS
) -> AsyncGenerator[Picture | Away]:
    """Pictures for ever. Raise BadAsk where the gateway wants another token, or has no such pictures."""
    timeout = httpx2.Timeout(SILENT_SECONDS)
    headers = {"authorization": f"Bearer {token}"}
    # A proxy of the environment is for the world outside.
    async with httpx2.AsyncClient(timeout=timeout, trust_env=False, headers=headers) as client:
        while True:
            try:
                async with aclosing(_connection(client, url)) as stream:
                    async for picture in stream:
                        yield picture
                why = "it has ended the connection"
            except httpx2.ReadTimeout:
                why = f"it has said nothing for {SILENT_SECONDS:.0f} s"
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                why = str(error) or type(error).__name__
            except ValueError:
                why = "what it says is no picture of a gateway"
            yield Away(why)
            await asyncio.sleep(retry_seconds)


async def _connection(client: httpx2.AsyncClient, url: str) -> AsyncGenerator[Picture]:
    """Until it ends. Raises httpx2.HTTPError, ValueError, BadAsk."""
    async with client.stream("GET", url + PATH) as answer:
        if answer.status_code in (401, 403):
            raise BadAsk(f"{url} asks for another admin token: --admin-token-file FILE")
        if answer.status_code == 404:
            raise BadAsk(
                f"{url} shows no pictures: start it with --admin-token-file (and without "
                "--no-console), and if it has an --admin-listen, ask that address"
            )
        if answer.status_code != 200:
            raise httpx2.HTTPError(f"it answered {answer.status_code}")
        rest = b""
        async for piece in answer.aiter_bytes():
            *events, rest = (rest + piece).split(b"\n\n")
            for event in events:
                if event.startswith(b"data: "):
                    yield _picture(event.removeprefix(b"data: "))
            if len(rest) > MAX_PICTURE_BYTES:
                raise ValueError("a picture is smaller")


def _picture(data: bytes) -> Picture:
    found = json.loads(data)
    if not isinstance(found, dict) or "instances" not in found:
        raise ValueError("no picture")
    return found
