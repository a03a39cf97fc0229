"""What one process is told, all that share a store put in force."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from pdgate.cluster.directory import StoreAway
from pdgate.gateway.config.sections import DisaggregationSection
from pdgate.gateway.sync import shared_store
from pdgate.gateway.sync.shared_setting import SharedSetting, SharedStatus
from pdgate.gateway.sync.shared_store import (
    FileStore,
    NotShared,
    RedisStore,
    SharedStore,
    StoreState,
)
from tests.support import waiting
from tests.support.redis import RedisServer, redis_server

LOOK_SECONDS = 0.01
PATIENCE_SECONDS = waiting.PATIENCE_SECONDS
CONFIGURED, TOLD = DisaggregationSection(), DisaggregationSection(rule="never")

NewStore = Callable[[], SharedStore]

ANSWERS, AWAY = True, False


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no Redis that is away."""
    monkeypatch.setattr(shared_store, "ANSWER_SECONDS", PATIENCE_SECONDS)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.fixture(params=["file", "redis"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> NewStore:
    """Another process's view of the same store, each time."""
    if request.param == "file":
        return lambda: FileStore(tmp_path / "pinned")
    url = request.getfixturevalue("redis").url
    return lambda: RedisStore(url, "pdgate:test")


class Process:
    """A setting, and what came of it."""

    def __init__(self, store: SharedStore | None) -> None:
        self.applied: asyncio.Queue[DisaggregationSection] = asyncio.Queue()
        self.setting: SharedSetting[DisaggregationSection] = SharedSetting(
            CONFIGURED, self.applied.put_nowait, store, LOOK_SECONDS
        )

    async def hears(self) -> DisaggregationSection:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.applied.get()

    @asynccontextmanager
    async def following(self) -> AsyncIterator["Process"]:
        task = asyncio.create_task(self.setting.follow())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_what_one_is_told_all_do(new_store: NewStore) -> None:
    async with Process(new_store()).following() as one, Process(new_store()).following() as other:
        await one.setting.put(TOLD)

        assert one.setting.section == TOLD
        assert await one.hears() == await other.hears() == TOLD
        assert other.setting.section == TOLD


async def test_a_change_begins_with_what_another_process_has_just_said(new_store: NewStore) -> None:
    """Nobody has looked at the store in between."""
    stores = new_store(), new_store()
    one, other = map(Process, stores)
    await one.setting.change(lambda before: before.model_copy(update={"rule": "never"}))
    await other.setting.change(lambda before: before.model_copy(update={"uncached_tokens": 7}))

    assert other.setting.section == DisaggregationSection(rule="never", uncached_tokens=7)
    for store in stores:
        await store.close()


async def test_nonsense_can_be_changed_into_sense(new_store: NewStore) -> None:
    store = new_store()
    await store.pin(b"{")
    process = Process(store)

    await process.setting.change(lambda _: TOLD)

    assert process.setting.section == TOLD
    await store.close()


async def test_who_starts_later_does_it_too(new_store: NewStore) -> None:
    async with Process(new_store()).following() as one:
        await one.setting.put(TOLD)

    async with Process(new_store()).following() as later:
        assert await later.hears() == TOLD


@pytest.mark.parametrize("nonsense", [b"", b"{", b"[]", b'{"rule": "sometimes"}', b"\xff"])
async def test_what_cannot_be_read_changes_nothing_and_is_said_once(
    new_store: NewStore, nonsense: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store = new_store()
    await store.pin(nonsense)
    async with Process(new_store()).following() as process:
        await store.pin(TOLD.model_dump_json().encode())
        assert await process.hears() == TOLD
    await store.close()

    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) <= 1


async def test_it_ends_even_if_a_store_swallows_the_wish() -> None:
    """redis-py does, when that comes while it connects."""
    asked = asyncio.Event()

    class Swallowing(SharedStore):
        async def read(self) -> bytes | None:
            asked.set()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(PATIENCE_SECONDS)
            return None

        async def pin(self, value: bytes) -> None:
            raise NotImplementedError

    following = asyncio.create_task(Process(Swallowing()).setting.follow())
    await asked.wait()
    following.cancel()

    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.wait([following])


async def test_without_a_store_a_process_is_on_its_own() -> None:
    process = Process(None)

    await process.setting.follow()
    await process.setting.put(TOLD)

    assert await process.hears() == TOLD
    assert not process.setting.shared


async def test_redis_may_be_away_and_what_was_said_stays_in_force(redis: RedisServer) -> None:
    store = RedisStore(redis.url, "k")
    async with Process(RedisStore(redis.url, "k")).following() as process:
        await process.setting.put(TOLD)
        assert await process.hears() == TOLD
        redis.stop()

        with pytest.raises(NotShared):
            await process.setting.put(CONFIGURED)
        with pytest.raises(NotShared):
            await process.setting.change(lambda _: CONFIGURED)
        assert process.setting.section == TOLD

        redis.start()
        await store.pin(DisaggregationSection(rule="auto").model_dump_json().encode())
        assert (await process.hears()).rule == "auto"
    await store.close()


class Scripted(SharedStore):
    """Each look waits for what the test says of it."""

    def __init__(self) -> None:
        self.looks: asyncio.Queue[bool] = asyncio.Queue()
        self.done = asyncio.Semaphore(0)

    async def read(self) -> bytes | None:
        # The look before this one is over.
        self.done.release()
        if await self.looks.get() is AWAY:
            raise StoreAway("gone for lunch")
        return None

    async def pin(self, value: bytes) -> None:
        raise NotImplementedError


class Scene:
    def __init__(self) -> None:
        self.store = Scripted()
        setting = SharedSetting(DisaggregationSection(), lambda _: None, self.store, look_seconds=0)
        self.status = SharedStatus(setting)
        self._setting = setting

    @asynccontextmanager
    async def following(self) -> AsyncIterator["Scene"]:
        task = asyncio.create_task(self._setting.follow())
        await self.store.done.acquire()
        try:
            yield self
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def after(self, *looks: bool) -> StoreState:
        async with asyncio.timeout(PATIENCE_SECONDS):
            for look in looks:
                self.store.looks.put_nowait(look)
                await self.store.done.acquire()
        return self.status.state


@pytest.mark.parametrize(
    ("looks", "state"),
    [
        ([], StoreState.WAITING),
        ([AWAY, AWAY], StoreState.WAITING),
        ([ANSWERS], StoreState.CURRENT),
        ([ANSWERS, AWAY], StoreState.DEGRADED),
        ([ANSWERS, AWAY, AWAY, ANSWERS], StoreState.CURRENT),
    ],
)
async def test_it_is_degraded_while_redis_is_away(looks: list[bool], state: StoreState) -> None:
    async with Scene().following() as scene:
        assert await scene.after(*looks) is state

        assert scene.status.as_json() == {"state": state}
        (gauge,) = scene.status.collect()
        assert [sample.value for sample in gauge.samples] == [
            float(state is not StoreState.CURRENT)
        ]
