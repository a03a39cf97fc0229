"""State of the Batch API in a file of SQLite, which the processes of one host share.

One thread of its own does all of it, so that the event loop waits for no disk. What was written is
there after the death of the process; after that of the machine the last results may be missing
(WAL, synchronous=NORMAL), and their lines are served again.
"""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from pdgate.gateway.batch.lines import LineResult
from pdgate.gateway.batch.objects import UNFINISHED, BatchObject, StoredFile
from pdgate.gateway.batch.state import MOST_ENDED, StateAway, StoredBatch

T = TypeVar("T")

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 5
BUSY_SECONDS: Final = 10.0
"""For another process to be done with it."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS files (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, owner TEXT, purpose TEXT,
    bytes INTEGER, expires_at INTEGER, doc BLOB);
CREATE INDEX IF NOT EXISTS files_of ON files (owner, seq);
CREATE TABLE IF NOT EXISTS batches (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, owner TEXT, unfinished INTEGER,
    input TEXT, created_at INTEGER, doc BLOB);
CREATE INDEX IF NOT EXISTS batches_of ON batches (owner, seq);
CREATE INDEX IF NOT EXISTS batches_unfinished ON batches (unfinished, owner);
CREATE TABLE IF NOT EXISTS results (
    batch TEXT, number INTEGER, failed INTEGER, row BLOB, PRIMARY KEY (batch, number)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS results_of ON results (batch, failed);
CREATE TABLE IF NOT EXISTS loose (id TEXT PRIMARY KEY, since INTEGER);
"""

_file = msgspec.json.Decoder(StoredFile)
_batch = msgspec.json.Decoder(BatchObject)
_encode = msgspec.json.encode


class SqliteState:
    """See `State`."""

    def __init__(self, folder: Path) -> None:
        """Open nothing yet."""
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, "pdgate-batch-state")
        self._open: sqlite3.Connection | None = None

    async def has_room(self, owner: str, most: StoredBatch) -> bool:
        def room(db: sqlite3.Connection) -> bool:
            there = _stored(db, owner)
            return there.files < most.files and there.bytes < most.bytes

        return await self._do(room)

    async def expect(self, file_id: str, until: float) -> None:
        await self._do(lambda db: _loosen(db, file_id, int(until)))

    async def add_file(self, file: StoredFile, most: StoredBatch) -> bool:
        def add(db: sqlite3.Connection) -> bool:
            there = _stored(db, file.owner)
            if there.files >= most.files or there.bytes + file.bytes > most.bytes:
                return False
            return _add_files(db, [file])

        return await self._do(add)

    async def file(self, file_id: str) -> StoredFile | None:
        return await self._do(
            lambda db: _one(db, _file, "SELECT doc FROM files WHERE id = ?", file_id)
        )

    async def files(
        self, owner: str, after: str | None, limit: int, *, newest_first: bool, purpose: str | None
    ) -> Sequence[StoredFile] | None:
        def page(db: sqlite3.Connection) -> Sequence[StoredFile] | None:
            behind, order = ("<", "DESC") if newest_first else (">", "ASC")
            where, given = "owner = ?", [owner]
            if purpose is not None:
                where, given = f"{where} AND purpose = ?", [*given, purpose]
            return _page(db, _file, "files", where, given, after, owner, behind, order, limit)

        return await self._do(page)

    async def remove_file(self, file_id: str) -> None:
        def remove(db: sqlite3.Connection) -> None:
            if db.execute("DELETE FROM files WHERE id = ?", (file_id,)).rowcount:
                _loosen(db, file_id, 0)

        await self._do(remove)

    async def loose(self, now: float, limit: int) -> Sequence[str]:
        def found(db: sqlite3.Connection) -> Sequence[str]:
            asked = "SELECT id FROM loose WHERE since <= ? ORDER BY since LIMIT ?"
            return [name for (name,) in db.execute(asked, (int(now), limit))]

        return await self._do(found)

    async def removed(self, file_id: str) -> None:
        await self._do(lambda db: db.execute("DELETE FROM loose WHERE id = ?", (file_id,)))

    async def outdated(self, now: float, limit: int) -> Sequence[StoredFile]:
        return await self._do(
            lambda db: _all(
                db,
                _file,
                "SELECT doc FROM files WHERE expires_at <= ? AND id NOT IN "
                "(SELECT input FROM batches WHERE unfinished = 1) ORDER BY seq LIMIT ?",
                int(now),
                limit,
            )
        )

    async def add_batch(self, batch: BatchObject, most_unfinished: int) -> bool:
        def add(db: sqlite3.Connection) -> bool:
            (there,) = db.execute(
                "SELECT COUNT(*) FROM batches WHERE unfinished = 1 AND owner = ?", (batch.owner,)
            ).fetchone()
            if there >= most_unfinished:
                return False
            db.execute(
                "INSERT INTO batches (id, owner, unfinished, input, created_at, doc) "
                "VALUES (?, ?, 1, ?, ?, ?)",
                (batch.id, batch.owner, batch.input_file_id, batch.created_at, _encode(batch)),
            )
            db.execute(
                "DELETE FROM batches WHERE seq IN (SELECT seq FROM batches "
                "WHERE owner = ? AND unfinished = 0 ORDER BY seq DESC LIMIT -1 OFFSET ?)",
                (batch.owner, MOST_ENDED),
            )
            return True

        return await self._do(add)

    async def batch(self, batch_id: str) -> BatchObject | None:
        return await self._do(
            lambda db: _one(db, _batch, "SELECT doc FROM batches WHERE id = ?", batch_id)
        )

    async def batches(
        self, owner: str, after: str | None, limit: int
    ) -> Sequence[BatchObject] | None:
        return await self._do(
            lambda db: _page(
                db, _batch, "batches", "owner = ?", [owner], after, owner, "<", "DESC", limit
            )
        )

    async def unfinished(self) -> Sequence[BatchObject]:
        return await self._do(
            lambda db: _all(db, _batch, "SELECT doc FROM batches WHERE unfinished = 1 ORDER BY seq")
        )

    async def reads(self, file_id: str) -> str | None:
        def reading(db: sqlite3.Connection) -> str | None:
            found = db.execute(
                "SELECT id FROM batches WHERE unfinished = 1 AND input = ?", (file_id,)
            ).fetchone()
            return None if found is None else str(found[0])

        return await self._do(reading)

    async def change(
        self, batch_id: str, change: Callable[[BatchObject], BatchObject]
    ) -> BatchObject | None:
        def put(db: sqlite3.Connection) -> BatchObject | None:
            found = _one(db, _batch, "SELECT doc FROM batches WHERE id = ?", batch_id)
            if found is None:
                return None
            changed = change(found)
            if changed is not found:
                _put_batch(db, changed)
            return changed

        return await self._do(put)

    async def add_result(self, batch_id: str, result: LineResult) -> None:
        await self._do(
            lambda db: db.execute(
                "INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?)",
                (batch_id, result.number, result.failed, result.row),
            )
        )

    async def done(self, batch_id: str) -> set[int]:
        def numbers(db: sqlite3.Connection) -> set[int]:
            found = db.execute("SELECT number FROM results WHERE batch = ?", (batch_id,))
            return {number for (number,) in found}

        return await self._do(numbers)

    async def counts(self, batch_id: str) -> tuple[int, int]:
        def count(db: sqlite3.Connection) -> tuple[int, int]:
            found = db.execute(
                "SELECT COUNT(*), COALESCE(SUM(failed), 0) FROM results WHERE batch = ?",
                (batch_id,),
            ).fetchone()
            return found[0] - found[1], found[1]

        return await self._do(count)

    async def results(
        self, batch_id: str, *, failed: bool, after: int, most_bytes: int
    ) -> Sequence[LineResult]:
        def page(db: sqlite3.Connection) -> Sequence[LineResult]:
            found = db.execute(
                "SELECT number, failed, row FROM results "
                "WHERE batch = ? AND failed = ? AND number > ? ORDER BY number",
                (batch_id, failed, after),
            )
            page: list[LineResult] = []
            size = 0
            for number, wrong, row in found:
                size += len(row)
                if page and size > most_bytes:
                    break
                page.append(LineResult(number, bool(wrong), row))
            return page

        return await self._do(page)

    async def finish(self, batch: BatchObject, files: Sequence[StoredFile]) -> bool:
        def put(db: sqlite3.Connection) -> bool:
            there = db.execute(
                "SELECT unfinished FROM batches WHERE id = ?", (batch.id,)
            ).fetchone()
            if there != (1,) or not _add_files(db, files):
                return False
            _put_batch(db, batch)
            db.execute("DELETE FROM results WHERE batch = ?", (batch.id,))
            return True

        return await self._do(put)

    async def forget_batches(self, before: float) -> None:
        await self._do(
            lambda db: db.execute(
                "DELETE FROM batches WHERE unfinished = 0 AND created_at < ?", (int(before),)
            )
        )

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """In one transaction, in its thread. Raise StateAway."""

        def done() -> T:
            try:
                db = self._connection()
                # The lock at once: one that reads first and writes then may have to be given up.
                db.execute("BEGIN IMMEDIATE")
                try:
                    found = work(db)
                except BaseException:
                    db.execute("ROLLBACK")
                    raise
                db.execute("COMMIT")
                return found
            except (sqlite3.Error, OSError) as error:
                # The path is ours.
                log.warning("the state of batches in %s: %s", self._folder, error)
                raise StateAway(
                    "the state of batches cannot be reached", retry_after_seconds=RETRY_SECONDS
                ) from error

        return await asyncio.get_running_loop().run_in_executor(self._thread, done)

    def _connection(self) -> sqlite3.Connection:
        if self._open is None:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = self._folder / "state.sqlite3"
            _for_us_alone(path)
            db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
            try:
                db.execute("PRAGMA journal_mode=WAL")
                db.execute("PRAGMA synchronous=NORMAL")
                db.executescript(_SCHEMA)
            except BaseException:
                db.close()
                raise
            self._open = db
        return self._open

    def _close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


def _for_us_alone(path: Path) -> None:
    """Before SQLite writes to it: the files that it makes beside it take its permissions. Raises OSError."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        return
    except FileExistsError:
        pass
    # An older version may have made it, and have died. By name: to close what SQLite has open elsewhere in this
    # process would end its locks (sqlite.org/howtocorrupt.html, 2.2).
    for one in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
        try:
            if one.stat().st_mode & 0o077:
                one.chmod(0o600)
        except FileNotFoundError:
            continue
        except PermissionError:
            log.warning("%s is not ours, and may be read by others", one)


def _stored(db: sqlite3.Connection, owner: str) -> StoredBatch:
    asked = "SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM files WHERE owner = ?"
    return StoredBatch(*db.execute(asked, (owner,)).fetchone())


def _loosen(db: sqlite3.Connection, file_id: str, since: int) -> None:
    db.execute("INSERT OR REPLACE INTO loose (id, since) VALUES (?, ?)", (file_id, since))


def _add_files(db: sqlite3.Connection, files: Sequence[StoredFile]) -> bool:
    """All of them, or, where one is not expected any more, none."""
    for file in files:
        if not db.execute("SELECT 1 FROM loose WHERE id = ?", (file.id,)).fetchone():
            return False
    for file in files:
        db.execute("DELETE FROM loose WHERE id = ?", (file.id,))
        db.execute(
            "INSERT INTO files (id, owner, purpose, bytes, expires_at, doc) VALUES (?, ?, ?, ?, ?, ?)",
            (file.id, file.owner, file.purpose, file.bytes, file.expires_at, _encode(file)),
        )
    return True


def _put_batch(db: sqlite3.Connection, batch: BatchObject) -> None:
    db.execute(
        "UPDATE batches SET unfinished = ?, doc = ? WHERE id = ?",
        (batch.status in UNFINISHED, _encode(batch), batch.id),
    )


def _one(
    db: sqlite3.Connection, decoder: "msgspec.json.Decoder[T]", question: str, *given: object
) -> T | None:
    found = db.execute(question, given).fetchone()
    return None if found is None else decoder.decode(found[0])


def _all(
    db: sqlite3.Connection, decoder: "msgspec.json.Decoder[T]", question: str, *given: object
) -> list[T]:
    return [decoder.decode(doc) for (doc,) in db.execute(question, given)]


def _page(
    db: sqlite3.Connection,
    decoder: "msgspec.json.Decoder[T]",
    table: str,
    where: str,
    given: Sequence[object],
    after: str | None,
    owner: str,
    behind: str,
    order: str,
    limit: int,
) -> list[T] | None:
    if after is not None:
        found = db.execute(
            f"SELECT seq FROM {table} WHERE id = ? AND owner = ?",
            (after, owner),
        ).fetchone()
        if found is None:
            return None
        where, given = f"{where} AND seq {behind} ?", [*given, found[0]]
    question = f"SELECT doc FROM {table} WHERE {where} ORDER BY seq {order} LIMIT ?"
    return _all(db, decoder, question, *given, limit)
