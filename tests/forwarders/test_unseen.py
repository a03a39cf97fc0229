"""Prompts whose reading shows in nothing count as read when their time is over."""

import asyncio

import pytest

from pdgate.forwarders.unseen import UnseenReads
from tests.support.waiting import PATIENCE_SECONDS


async def test_each_has_its_own_time_whichever_came_first() -> None:
    unseen, read = UnseenReads(), list[str]()
    over = asyncio.Event()
    unseen.expect(0.02, over.set)
    unseen.expect(0.01, lambda: read.append("second"))
    unseen.expect(0.0, lambda: read.append("first"))

    async with asyncio.timeout(PATIENCE_SECONDS):
        await over.wait()

    assert read == ["first", "second"]


async def test_one_that_fails_keeps_none_of_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unseen, over = UnseenReads(), asyncio.Event()

    def fails() -> None:
        raise RuntimeError("a bug")

    unseen.expect(0.0, fails)
    unseen.expect(0.0, over.set)

    async with asyncio.timeout(PATIENCE_SECONDS):
        await over.wait()

    assert "a bug" in caplog.text
