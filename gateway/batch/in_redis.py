"""State of the Batch API in Redis, which gateways on several hosts share.

What is one step is one script (redis_scripts.py, which has the picture of the keys). Answers of batches that are not
finished are in Redis, and so in its memory, until the files that they go to are written; they are read in pages.

A Redis that has lost a result has its line served again; one that has lost everything has no batches.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from pdgate.gateway.batch import redis_scripts as scripts
from pdgate.gateway.batch.lines import LineResult
from pdgate.gateway.batch.objects import UNFINISHED, BatchObject, StoredFile
from pdgate.gateway.batch.redis_access import BatchRedis, Word
from pdgate.gateway.batch.redis_lease import RedisLease
from pdgate.gateway.batch.redis_scripts import PREFIX
from pdgate.gateway.batch.state import MOST_ENDED, LeadLost, StoredBatch

T = TypeVar("T", StoredFile, BatchObject)

log = logging.getLogger(__name__)

AT_A_TIME: Final = 1000
"""Objects that are read in one round trip."""
NUMBERS_AT_A_TIME: Final = 10_000
"""Of lines that have a result."""
FILE: Final = f"{PREFIX}file"
BATCH: Final = f"{PREFIX}batch"

_NEWEST_FIRST: Final = ("ZREVRANGEBYSCORE", "+inf", "-inf")
_OLDEST_FIRST: Final = ("ZRANGEBYSCORE", "-inf", "+inf")
_file = msgspec.json.Decoder(StoredFile)
_batch = msgspec.json.Decoder(BatchObject)
_encode = msgspec.json.encode


class RedisState:
    """See `BatchState`."""

    def __init__(self, redis: BatchRedis, lease: RedisLease | None = None) -> None:
        """`lease`: without it nothing is written; None for routes, which need none."""
        self._redis = redis
        self._lease = lease

    async def has_room(self, owner: str, most: StoredBatch) -> bool:
        files, size = await self._redis.together(
            ("ZCARD", f"{PREFIX}files:{owner}"), ("HGET", f"{PREFIX}bytes", owner)
        )
        return int(files) < most.files and int(size or 0) < most.bytes

    async def expect(self, file_id: str, until: float) -> None:
        await self._write(scripts.EXPECT, file_id, int(until))

    async def add_file(self, file: StoredFile, most: StoredBatch) -> bool:
        words = file.id, file.owner, file.bytes, file.expires_at, _encode(file)
        return bool(await self._write(scripts.ADD_FILE, *words, most.files, most.bytes))

    async def file(self, file_id: str) -> StoredFile | None:
        found = await self._redis.ask("HGET", FILE, file_id)
        return _decoded(_file, found)

    async def files(
        self, owner: str, after: str | None, limit: int, *, newest_first: bool, purpose: str | None
    ) -> Sequence[StoredFile] | None:
        def wanted(file: StoredFile) -> bool:
            return purpose in (None, file.purpose)

        ids = f"{PREFIX}files:{owner}"
        order = _NEWEST_FIRST if newest_first else _OLDEST_FIRST
        return await self._page(ids, FILE, _file, after, limit, order, wanted)

    async def remove_file(self, file_id: str) -> None:
        file = await self.file(file_id)
        if file is not None:
            await self._write(scripts.REMOVE_FILE, file.id, file.owner, file.bytes)

    async def loose(self, now: float, limit: int) -> Sequence[str]:
        loose = f"{PREFIX}loose"
        found = await self._redis.ask(*_until(loose, int(now), limit))
        return [_text(name) for name in found]

    async def removed(self, file_id: str) -> None:
        await self._write(scripts.REMOVED, file_id)

    async def outdated(self, now: float, limit: int) -> Sequence[StoredFile]:
        found = await self._redis.run(scripts.OUTDATED, int(now), limit)
        return _all(_file, found)

    async def add_batch(self, batch: BatchObject, most_unfinished: int) -> bool:
        words = batch.id, batch.owner, batch.input_file_id, _encode(batch)
        return bool(await self._write(scripts.ADD_BATCH, *words, most_unfinished, MOST_ENDED))

    async def batch(self, batch_id: str) -> BatchObject | None:
        found = await self._redis.ask("HGET", BATCH, batch_id)
        return _decoded(_batch, found)

    async def batches(
        self, owner: str, after: str | None, limit: int
    ) -> Sequence[BatchObject] | None:
        ids = f"{PREFIX}batches:{owner}"
        return await self._page(ids, BATCH, _batch, after, limit)

    async def unfinished(self) -> Sequence[BatchObject]:
        ids = await self._redis.ask("ZRANGE", f"{PREFIX}unfinished", 0, -1)
        return await self._objects(BATCH, _batch, ids)

    async def reads(self, file_id: str) -> str | None:
        found = await self._redis.ask("SRANDMEMBER", f"{PREFIX}reading:{file_id}")
        return None if found is None else _text(found)

    async def change(
        self, batch_id: str, change: Callable[[BatchObject], BatchObject]
    ) -> BatchObject | None:
        while True:
            found = await self._redis.ask("HGET", BATCH, batch_id)
            batch = _decoded(_batch, found)
            if batch is None or (changed := change(batch)) is batch:
                return batch
            over = int(changed.status not in UNFINISHED)
            words = _encode(changed), over, batch.owner, batch.input_file_id, batch.created_at
            if await self._write(scripts.CHANGE, batch_id, found, *words):
                return changed

    async def add_result(self, batch_id: str, result: LineResult) -> None:
        kind = _kind(result.failed)
        await self._write(scripts.ADD_RESULT, batch_id, result.number, result.row, kind)

    async def done(self, batch_id: str) -> set[int]:
        done: set[int] = set()
        for failed in (False, True):
            key, at = _numbers_of(batch_id, failed), 0
            while some := await self._redis.ask("ZRANGE", key, at, at + NUMBERS_AT_A_TIME - 1):
                done.update(map(int, some))
                at += len(some)
        return done

    async def counts(self, batch_id: str) -> tuple[int, int]:
        ok, failed = await self._redis.together(
            *(("ZCARD", _numbers_of(batch_id, failed)) for failed in (False, True))
        )
        return int(ok), int(failed)

    async def results(
        self, batch_id: str, *, failed: bool, after: int, most_bytes: int
    ) -> Sequence[LineResult]:
        found = await self._redis.run(scripts.RESULTS, batch_id, _kind(failed), after, most_bytes)
        return [
            LineResult(int(number), failed, row)
            for number, row in zip(found[::2], found[1::2], strict=True)
        ]

    async def finish(self, batch: BatchObject, files: Sequence[StoredFile]) -> bool:
        words: list[Word] = [batch.id, _encode(batch), batch.owner]
        words += [batch.input_file_id, batch.created_at]
        for file in files:
            words += [file.id, file.bytes, file.expires_at, _encode(file)]
        return bool(await self._write(scripts.FINISH, *words))

    async def forget_batches(self, before: float) -> None:
        outdated = _until(f"{PREFIX}ended", f"({int(before)}", AT_A_TIME)
        while ids := await self._redis.ask(*outdated):
            batches = await self._objects(BATCH, _batch, ids)
            words = [word for batch in batches for word in (batch.id, batch.owner)]
            await self._write(scripts.FORGET, *words)
            if len(batches) < len(ids):
                return

    async def close(self) -> None:
        await self._redis.close()

    async def _write(self, script: str, *words: Word) -> Any:
        """Raise StateAway, LeadLost."""
        if self._lease is None:
            return await self._redis.run(script, "", *words)
        try:
            return await self._redis.run(script, self._lease.token, *words)
        except LeadLost:
            self._lease.lose()
            raise

    async def _page(
        self,
        ids: str,
        objects: str,
        decoder: "msgspec.json.Decoder[T]",
        after: str | None,
        limit: int,
        order: tuple[str, str, str] = _NEWEST_FIRST,
        wanted: Callable[[T], bool] = lambda _: True,
    ) -> Sequence[T] | None:
        """Return those behind `after`; None where it is none of them."""
        command, behind, end = order
        if after is not None:
            seq = await self._redis.ask("ZSCORE", ids, after)
            if seq is None:
                return None
            behind = _behind(seq)
        page: list[T] = []
        while len(page) < limit:
            most = min(AT_A_TIME, limit - len(page))
            found = await self._redis.run(scripts.PAGE, command, ids, behind, end, most)
            if not found:
                break
            behind = _behind(found[-1])
            page += filter(wanted, await self._objects(objects, decoder, found[::2]))
        return page

    async def _objects(
        self, key: str, decoder: "msgspec.json.Decoder[T]", ids: Sequence[bytes]
    ) -> list[T]:
        """Those that are still there."""
        found: list[T] = []
        for at in range(0, len(ids), AT_A_TIME):
            found += _all(decoder, await self._redis.ask("HMGET", key, *ids[at : at + AT_A_TIME]))
        return found


def _kind(failed: bool) -> str:
    return "failed" if failed else "ok"


def _numbers_of(batch_id: str, failed: bool) -> str:
    return f"{PREFIX}{_kind(failed)}:{batch_id}"


def _behind(score: bytes | float) -> str:
    return f"({float(score):.0f}"


def _until(key: str, score: int | str, limit: int) -> tuple[Word, ...]:
    """Command for the first ones of a sorted set."""
    return "ZRANGEBYSCORE", key, "-inf", score, "LIMIT", 0, limit


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


def _decoded(decoder: "msgspec.json.Decoder[T]", found: bytes | None) -> T | None:
    """Any client of the Redis can write there what it likes: what is none of ours is not there."""
    if found is None:
        return None
    try:
        return decoder.decode(found)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        log.warning("what stands in %s* is no file or batch: %s", PREFIX, error)
        return None


def _all(decoder: "msgspec.json.Decoder[T]", found: Sequence[bytes | None]) -> list[T]:
    decoded = (_decoded(decoder, one) for one in found)
    return [one for one in decoded if one is not None]
