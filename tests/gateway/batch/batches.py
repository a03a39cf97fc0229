"""Batches as tests ask for them, with the openai client."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from openai import AsyncOpenAI
from openai.types import Batch

from pdgate.gateway.config.sections import Batch as BatchSection
from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from tests.support.fleet import (
    ANSWER,
    PATIENCE_SECONDS,
    Engine,
    Gateway,
    as_json,
    gateway_of,
    question,
)
from tests.support.waiting import until

CLOSING: Final = as_json(ANSWER, b"200 OK", b"connection: close")
"""A call that is held is the last one of its connection."""
STATE = ""
"""URL of the Redis that has the state (the fixture `state_url`); empty for SQLite."""
ENDED: Final = ("completed", "failed", "expired", "cancelled")


def line(custom_id: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": question(**body)}


def jsonl(*lines: Mapping[str, Any] | bytes) -> bytes:
    return b"\n".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines)


@asynccontextmanager
async def client_of(gateway: Gateway, key: str = "none") -> AsyncIterator[AsyncOpenAI]:
    url = f"http://127.0.0.1:{gateway.port}/v1"
    async with AsyncOpenAI(
        base_url=url, api_key=key, max_retries=0, timeout=PATIENCE_SECONDS
    ) as client:
        yield client


@asynccontextmanager
async def serving(
    tmp_path: Path, *engines: Engine, key: str = "none", **more: Any
) -> AsyncIterator[tuple[Gateway, AsyncOpenAI]]:
    batch = more.pop("batch", {})
    folder = tmp_path / "batch"
    if STATE:
        # Where they are without a storage.
        batch = {"state": STATE, "storage": f"file://{folder}/files", **batch}
    section = BatchSection(folder=str(folder), **batch)
    async with (
        gateway_of(*engines, batch=section, **more) as gateway,
        client_of(gateway, key) as client,
    ):
        yield gateway, client


def plain(script: Any = None) -> Engine:
    return Engine(Role.PLAIN, script)


async def begun(client: AsyncOpenAI, content: bytes, window: str = "24h", **more: Any) -> Batch:
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window=window,  # type: ignore[arg-type]
        **more,
    )


async def begun_again(client: AsyncOpenAI, file_id: str) -> Batch:
    return await client.batches.create(
        input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h"
    )


async def ended(client: AsyncOpenAI, batch_id: str) -> Batch:
    found: list[Batch] = []

    async def over() -> bool:
        found[:] = [await client.batches.retrieve(batch_id)]
        return found[0].status in ENDED

    await until(over, f"the end of {batch_id}")
    return found[0]


async def rows(client: AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    content = await client.files.content(file_id)
    return [json.loads(one) for one in content.text.splitlines()]
