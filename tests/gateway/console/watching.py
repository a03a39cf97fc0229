"""A gateway with a console, and somebody who watches its pictures."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.support.fleet import PATIENCE_SECONDS, Engine, Gateway, gateway_of

TOKEN = "correct-horse-battery-staple"
KNOWN = {"authorization": f"Bearer {TOKEN}"}
LIVE = "/admin/live"

Picture = Mapping[str, Any]


@asynccontextmanager
async def gateway_with_console(
    folder: Path, *engines: Engine, **settings: Any
) -> AsyncIterator[Gateway]:
    file = folder / "token"
    file.write_text(TOKEN)
    async with gateway_of(*engines, admin_token_file=str(file), **settings) as gateway:
        yield gateway


@asynccontextmanager
async def pictures(
    http: httpx2.AsyncClient, url: str = ""
) -> AsyncIterator[AsyncIterator[Picture]]:
    async with http.stream("GET", f"{url}{LIVE}", headers=KNOWN) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield _pictures(answer)


async def _pictures(answer: httpx2.Response) -> AsyncIterator[Picture]:
    async for line in answer.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


async def one_with(told: AsyncIterator[Picture], question: Callable[[Picture], bool]) -> Picture:
    """The first of which it is true."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for picture in told:
            if question(picture):
                return picture
    raise AssertionError("the pictures ended before")


async def picture_of(gateway: Gateway, url: str = "") -> Picture:
    async with pictures(gateway.http, url) as told:
        return await one_with(told, lambda _: True)
