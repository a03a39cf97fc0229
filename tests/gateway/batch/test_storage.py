"""Files of batches at storages of fsspec's: in memory, on a disk, and at S3, which moto's server is."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import boto3
import fsspec
import httpx2
import openai
import pytest
from moto.server import ThreadedMotoServer

from pdgate.gateway.batch import archive, runner
from pdgate.gateway.batch.blobs import SENT
from tests.gateway.batch.batches import (
    begun,
    begun_again,
    ended,
    jsonl,
    line,
    plain,
    rows,
    serving,
)  # fmt: skip
from tests.support.waiting import until

BUCKET = "pdgate"
CONTENT = jsonl(line("a"), b"{", line("b"))


@pytest.mark.usefixtures("front_end")
@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_files_are_at_the_storage_that_is_named(kind: str, tmp_path: Path) -> None:
    storage, root = fsspec.filesystem(kind), str(tmp_path / "there") if kind == "file" else "/there"
    async with serving(tmp_path, plain(), batch={"storage": f"{kind}://{root}"}) as (_, client):
        over = await ended(client, (await begun(client, CONTENT)).id)

        assert [one["custom_id"] for one in await rows(client, over.output_file_id)] == ["a", "b"]
        there = {path.rpartition("/")[2] for path in storage.ls(root, detail=False)}
        assert there == {over.input_file_id, over.output_file_id, over.error_file_id}
        assert list((tmp_path / "batch" / "files").iterdir()) == []
        assert (await client.files.content(over.input_file_id)).content == CONTENT
        await client.files.delete(over.input_file_id)
        assert not storage.exists(f"{root}/{over.input_file_id}")
        storage.rm(root, recursive=True)


async def test_a_storage_that_hangs_costs_no_other_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a pipe waits for its other end: the threads for files are all taken, and no others."""
    monkeypatch.setattr(archive, "OPEN_SECONDS", 0.2)
    monkeypatch.setattr(archive, "PLACE_SECONDS", 0.2)
    async with serving(tmp_path, plain()) as (gateway, client):
        file = await client.files.create(file=("in", CONTENT), purpose="batch")
        other = await client.files.create(file=("in", CONTENT), purpose="batch")
        pipe = tmp_path / "batch" / "files" / file.id
        pipe.unlink()
        os.mkfifo(pipe)

        for asked in [file] * archive.THREADS + [other]:
            with pytest.raises(openai.InternalServerError) as refused:
                await client.files.content(asked.id)
            assert (refused.value.status_code, refused.value.code) == (503, "batches_unavailable")
        large = {"model": "m", "messages": [{"role": "user", "content": "x" * 200_000}]}
        assert (await gateway.http.post("/v1/chat/completions", json=large)).status_code == 200

        # Each is opened, and lets its thread go.
        writing = await asyncio.to_thread(pipe.open, "wb")
        writing.close()

        async def read() -> bool:
            try:
                return (await client.files.content(other.id)).content == CONTENT
            except openai.InternalServerError:
                return False

        await until(read, "a thread")


class S3:
    """A server, which can be away for a while, and what a client of Amazon's finds there."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as one:
            self.port = one.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server: ThreadedMotoServer | None = None

    def start(self) -> None:
        self._server = ThreadedMotoServer("127.0.0.1", self.port, verbose=False)
        self._server.start()

    def empty(self) -> None:
        httpx2.post(f"{self.url}/moto-api/reset", trust_env=False).raise_for_status()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def names(self) -> list[str]:
        listed = boto3.client("s3", endpoint_url=self.url).list_objects_v2(Bucket=BUCKET)
        return sorted(one["Key"] for one in listed.get("Contents", ()))


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    server = S3()
    for name, said in {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        # It is tried again by the client that asked.
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, said)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    server.start()
    try:
        boto3.client("s3", endpoint_url=server.url).create_bucket(Bucket=BUCKET)
        yield server
        server.empty()
    finally:
        server.stop()
        fsspec.get_filesystem_class("s3").clear_instance_cache()


async def test_files_are_at_s3(s3: S3, tmp_path: Path) -> None:
    """Also one that is sent in parts, and read in pieces."""
    storage: dict[str, Any] = {"storage": f"s3://{BUCKET}/batches"}
    large = b"x" * (2 * SENT["chunksize"] + 5)
    async with serving(tmp_path, plain(), batch=storage) as (_, client):
        over = await ended(client, (await begun(client, CONTENT)).id)

        assert [one["custom_id"] for one in await rows(client, over.output_file_id)] == ["a", "b"]
        assert len(await rows(client, over.error_file_id)) == 1
        files = [over.input_file_id, over.output_file_id, over.error_file_id]
        assert s3.names() == sorted(f"batches/{name}" for name in files)
        file = await client.files.create(file=("large", large), purpose="batch")
        assert (await client.files.content(file.id)).content == large
        await client.files.delete(file.id)
        assert len(s3.names()) == len(files)


async def test_a_storage_that_is_away_costs_no_other_call_and_no_line(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is to be removed there is removed when it is back."""
    monkeypatch.setattr(runner, "PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(runner, "SWEEP_SECONDS", 0.1)
    storage: dict[str, Any] = {"storage": f"s3://{BUCKET}/batches"}
    async with serving(tmp_path, plain(), batch=storage) as (gateway, client):
        first = await ended(client, (await begun(client, CONTENT)).id)
        s3.stop()
        asks: Sequence[Callable[[], Awaitable[object]]] = (
            lambda: client.files.create(file=("in", CONTENT), purpose="batch"),
            lambda: client.files.content(str(first.output_file_id)),
        )
        for ask in asks:
            with pytest.raises(openai.InternalServerError) as refused:
                await ask()
            assert (refused.value.status_code, refused.value.code) == (503, "batches_unavailable")
        assert list((tmp_path / "batch" / "files").iterdir()) == []
        assert (await gateway.chat()).status_code == 200
        assert (await client.files.delete(str(first.error_file_id))).deleted
        second = await begun_again(client, first.input_file_id)
        await until(lambda: f"batch {second.id} stops" in caplog.text, "a failure")
        s3.start()

        over = await ended(client, second.id)
        assert [one["custom_id"] for one in await rows(client, over.output_file_id)] == ["a", "b"]
        left = (first.input_file_id, first.output_file_id, over.output_file_id, over.error_file_id)
        expected = sorted(f"batches/{name}" for name in left)
        await until(lambda: s3.names() == expected, "what was deleted")
