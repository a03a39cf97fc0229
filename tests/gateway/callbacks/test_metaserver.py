"""The metaserver: words of engines reach the attempt that waits for them, and strangers reach nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pdgate.cluster.networks import Allowed
from pdgate.forwarders.ascend_layerwise import PATH, posted
from pdgate.gateway.callbacks import metaserver
from pdgate.gateway.callbacks.metaserver import Metaserver
from pdgate.gateway.callbacks.words import MessageResult, Words
from pdgate.protocols.call import encode
from tests.support.waiting import PATIENCE_SECONDS, until

WORD: dict[str, Any] = {
    "request_id": "chatcmpl-c7-1",
    "do_remote_decode": True,
    "remote_host": "10.0.0.2",
    "remote_port": 4000,
    "remote_block_ids": [[1, 2]],
}


@asynccontextmanager
async def serving(words: Words, *networks: str) -> AsyncIterator[Metaserver]:
    server = Metaserver("127.0.0.1", 0, words, Allowed(networks), {PATH: posted})
    running = asyncio.create_task(server.run())
    try:
        yield server
    finally:
        running.cancel()
        await asyncio.wait((running,))
        server.close()


async def status_of(server: Metaserver, data: bytes) -> int:
    port = int(server.url.rpartition(":")[2])
    async with asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        status = await reader.readline()
        writer.close()
    return int(status.split()[1])


def post(body: Any, path: str = "/v1/metaserver") -> bytes:
    data = body if isinstance(body, bytes) else encode(body)
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


async def test_a_word_reaches_who_waits_for_it_and_the_first_one_counts() -> None:
    words = Words()
    async with serving(words) as server:
        with words.expecting("c7-1") as word:
            assert await status_of(server, post(WORD)) == 200
            assert await status_of(server, post({**WORD, "remote_host": "elsewhere"})) == 200

            assert bytes((await word)["remote_host"]) == b'"10.0.0.2"'

        assert await status_of(server, post(WORD)) == 404
    assert words.counts[MessageResult.TAKEN] == 2
    assert words.counts[MessageResult.UNKNOWN] == 1


async def test_the_blocks_of_a_long_prompt_are_a_word() -> None:
    """Of 128k tokens in blocks of 16: its call waited in vain for a word that was refused."""
    words, blocks = Words(), [list(range(100_000, 108_192))]
    async with serving(words) as server:
        with words.expecting("c7-1") as word:
            assert await status_of(server, post({**WORD, "remote_block_ids": blocks})) == 200
            assert bytes((await word)["remote_block_ids"]) == encode(blocks)


@pytest.mark.parametrize(
    ("data", "status", "result"),
    [
        (post({**WORD, "request_id": "chatcmpl-of-nobody"}), 404, MessageResult.UNKNOWN),
        (post({"request_id": "chatcmpl-c7-1"}), 400, MessageResult.MALFORMED),
        (post({**WORD, "remote_block_ids": None}), 400, MessageResult.MALFORMED),
        (post({**WORD, "request_id": 7}), 400, MessageResult.MALFORMED),
        (post(b"{"), 400, MessageResult.MALFORMED),
        (post(WORD, "/v1/models"), 400, MessageResult.MALFORMED),
        (b"GET /v1/metaserver HTTP/1.1\r\n\r\n", 400, MessageResult.MALFORMED),
        (b"POST /v1/metaserver HTTP/1.1\r\n\r\n", 400, MessageResult.MALFORMED),
        (
            b"POST /v1/metaserver HTTP/1.1\r\ncontent-length: 1048577\r\n\r\n",
            413,
            MessageResult.TOO_LARGE,
        ),
        (
            b"POST /v1/metaserver HTTP/1.1\r\nx: " + b"y" * 20_000 + b"\r\n\r\n",
            413,
            MessageResult.TOO_LARGE,
        ),
    ],
)
async def test_what_is_no_word_is_refused_and_counted(
    data: bytes, status: int, result: MessageResult
) -> None:
    words = Words()
    async with serving(words) as server:
        with words.expecting("c7-1") as word:
            assert await status_of(server, data) == status
            assert not word.done()
    assert words.counts[result] == 1


async def test_a_stranger_is_refused_and_counted() -> None:
    words = Words()
    async with serving(words, "10.0.0.0/8") as server:
        with words.expecting("c7-1") as word:
            assert await status_of(server, post(WORD)) == 403
            assert not word.done()
    assert words.counts[MessageResult.STRANGER] == 1


async def test_one_that_has_left_before_it_is_asked_for_its_name_is_a_stranger() -> None:
    class Gone(asyncio.StreamWriter):
        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return default if name == "peername" else super().get_extra_info(name, default)

    words = Words()
    async with serving(words) as server:
        port = int(server.url.rpartition(":")[2])
        reader, open_ = await asyncio.open_connection("127.0.0.1", port)
        gone = Gone(
            open_.transport, open_.transport.get_protocol(), reader, asyncio.get_running_loop()
        )
        await server._serve(reader, gone)
    assert words.counts[MessageResult.STRANGER] == 1


async def test_many_at_a_time_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metaserver, "MOST_AT_ONCE", 0)
    words = Words()
    async with serving(words) as server:
        assert await status_of(server, post(WORD)) == 503
    assert words.counts[MessageResult.TOO_MANY] == 1


async def test_bodies_that_are_on_their_way_are_bounded_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what is gone is given back."""
    monkeypatch.setattr(metaserver, "MOST_BYTES_AT_ONCE", 1000)
    words = Words()
    async with serving(words) as server:
        port = int(server.url.rpartition(":")[2])
        _, half = await asyncio.open_connection("127.0.0.1", port)
        half.write(b"POST /v1/metaserver HTTP/1.1\r\ncontent-length: 900\r\n\r\n{")
        await until(lambda: server._coming_bytes == 900, "it is on its way")

        assert await status_of(server, post(WORD)) == 503
        half.close()
        await until(lambda: server._coming_bytes == 0, "it is given back")
        assert await status_of(server, post(WORD)) == 404
    assert words.counts[MessageResult.TOO_MANY] == 1


async def test_it_can_be_run_again_and_ends_at_once() -> None:
    """As a background job is that failed; its port stays its own, and no connection keeps it."""
    words = Words()
    server = Metaserver("127.0.0.1", 0, words, Allowed(), {PATH: posted})
    port = int(server.url.rpartition(":")[2])
    for _ in range(2):
        running = asyncio.create_task(server.run())
        assert await status_of(server, post(WORD)) == 404
        _, silent = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: server._open, "it has a connection")
        running.cancel()
        async with asyncio.timeout(metaserver.READ_SECONDS / 2):
            await asyncio.wait((running,))
        silent.close()
        await until(lambda: not server._open, "it is gone")
    server.close()


async def test_one_that_says_nothing_is_gone_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metaserver, "READ_SECONDS", 0.05)
    words = Words()
    async with serving(words) as server:
        port = int(server.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await reader.read() == b""
        writer.close()


def test_only_this_machine_may_call_back_unless_it_is_said() -> None:
    assert "127.0.0.1" in Allowed()
    assert "::ffff:127.0.0.1" in Allowed()
    assert "10.0.0.1" not in Allowed()
    assert "10.0.0.1" in Allowed(["10.0.0.0/8"])
    assert "127.0.0.1" not in Allowed(["10.0.0.0/8"])
