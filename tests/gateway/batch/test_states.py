"""What every state of batches keeps to: SQLite's, and Redis'."""

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from pdgate.gateway.batch import in_redis, sqlite
from pdgate.gateway.batch.lines import LineResult
from pdgate.gateway.batch.objects import BatchObject, BatchStatus, StoredFile
from pdgate.gateway.batch.state import BatchState, StoredBatch
from tests.gateway.batch.states import ANY, LATER, States, batch, file

DATABASE = [f"state.sqlite3{end}" for end in ("", "-wal", "-shm")]


async def added(state: BatchState, *files: StoredFile) -> None:
    for one in files:
        await state.expect(one.id, LATER)
        assert await state.add_file(one, ANY)


async def ids(state: BatchState, after: str | None = None, **how: object) -> list[str] | None:
    given: dict[str, object] = {"limit": 10, "newest_first": True, "purpose": None, **how}
    found = await state.files("a", after, **given)  # type: ignore[arg-type]
    return None if found is None else [one.id for one in found]


def over(one: BatchObject, status: BatchStatus = BatchStatus.COMPLETED) -> BatchObject:
    return msgspec.structs.replace(one, status=status)


async def test_files_are_listed_in_pages_for_their_owner(states: States) -> None:
    state = states.process().routed
    await added(state, *(file(f"f{number}") for number in range(5)), file("x", owner="b"))
    await added(state, file("out", purpose="batch_output"))

    assert await ids(state) == ["out", "f4", "f3", "f2", "f1", "f0"]
    assert await ids(state, limit=2) == ["out", "f4"]
    assert await ids(state, "f4", limit=2) == ["f3", "f2"]
    assert await ids(state, "f1", newest_first=False) == ["f2", "f3", "f4", "out"]
    assert await ids(state, purpose="batch", limit=1) == ["f4"]
    assert await ids(state, purpose="batch:x") == []
    assert await ids(state, "f0") == []
    assert await ids(state, "x") is None
    assert await ids(state, "nothing") is None
    assert await state.file("x") == file("x", owner="b")
    assert await state.file("nothing") is None


async def test_more_files_than_are_read_at_once(states: States) -> None:
    state = states.process().routed
    names = [f"f{number}" for number in range(1005)]
    every = StoredBatch(2000, 1 << 40)
    for name in names:
        await state.expect(name, LATER)
        assert await state.add_file(file(name), every)

    assert await ids(state, newest_first=False, limit=10_000) == names
    assert await ids(state, limit=1002) == names[:-1003:-1]


async def test_an_owner_has_so_many_files_and_bytes(states: States) -> None:
    state = states.process().routed
    most = StoredBatch(3, 100)
    assert await state.has_room("a", most)
    for name, size in (("f0", 10), ("f1", 80)):
        await state.expect(name, LATER)
        assert await state.add_file(file(name, size=size), most)
    assert await state.has_room("a", most)
    await state.expect("f2", LATER)
    assert not await state.add_file(file("f2", size=11), most)
    assert await state.add_file(file("f2", size=10), most)
    assert not await state.has_room("a", most)
    assert await state.has_room("b", most)
    await state.expect("f3", LATER)
    assert not await state.add_file(file("f3", size=0), most)

    await state.remove_file("f1")
    await state.remove_file("f1")

    assert await state.has_room("a", StoredBatch(3, 21))
    assert not await state.has_room("a", StoredBatch(3, 20))
    assert await ids(state) == ["f2", "f0"]


async def test_a_content_is_loose_before_its_file_is_there_and_behind_it(states: States) -> None:
    state = states.process().routed
    assert not await state.add_file(file("f0"), ANY)
    await state.expect("f0", 50)
    await state.expect("f1", 60)
    assert await state.loose(49, 9) == []
    assert await state.loose(60, 9) == ["f0", "f1"]
    assert await state.loose(60, 1) == ["f0"]
    await state.expect("f0", 70)
    assert await state.loose(60, 9) == ["f1"]

    assert await state.add_file(file("f0"), ANY)
    assert await state.loose(LATER, 9) == ["f1"]
    await state.removed("f1")
    assert not await state.add_file(file("f1"), ANY)
    await state.remove_file("f0")

    assert await state.loose(0, 9) == ["f0"]
    await state.removed("f0")
    assert await state.loose(LATER, 9) == []


async def test_files_whose_time_is_over_but_for_inputs_of_what_runs(states: States) -> None:
    state = states.process().routed
    await added(state, *(file(f"f{number}") for number in range(3)))
    await state.add_batch(batch("b0", input_file_id="f0"), 9)
    await state.add_batch(batch("b1", input_file_id="f0"), 9)
    assert await state.outdated(99, 9) == []
    assert [one.id for one in await state.outdated(100, 9)] == ["f1", "f2"]
    assert [one.id for one in await state.outdated(100, 1)] == ["f1"]
    assert await state.reads("f0") in ("b0", "b1")

    assert await state.finish(over(batch("b0", input_file_id="f0")), [])
    assert await state.reads("f0") == "b1"
    failed = await state.change("b1", lambda one: over(one, BatchStatus.FAILED))

    assert failed is not None
    assert await state.reads("f0") is None
    assert [one.id for one in await state.outdated(100, 9)] == ["f0", "f1", "f2"]


async def test_batches_are_listed_and_so_many_of_them_are_unfinished(states: States) -> None:
    state = states.process().routed
    for number in range(3):
        assert await state.add_batch(batch(f"b{number}"), 3)
    assert not await state.add_batch(batch("b3"), 3)
    assert await state.add_batch(batch("x", owner="b"), 3)
    assert await state.finish(over(batch("b1")), [])
    assert await state.add_batch(batch("b4"), 3)

    assert [one.id for one in await state.unfinished()] == ["b0", "b2", "x", "b4"]
    for after, limit, expected in (
        (None, 2, ["b4", "b2"]),
        ("b2", 9, ["b1", "b0"]),
        ("x", 9, None),
        ("b3", 9, None),
    ):
        found = await state.batches("a", after, limit)
        assert (None if found is None else [one.id for one in found]) == expected
    assert await state.batch("b1") == over(batch("b1"))
    assert await state.batch("b3") is None


async def test_only_so_many_that_have_ended_are_kept(
    states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sqlite, in_redis):
        monkeypatch.setattr(module, "MOST_ENDED", 2)
    state = states.process().routed
    await state.add_batch(batch("runs"), 9)
    for number in range(4):
        await state.add_batch(batch(f"b{number}"), 9)
        await state.finish(over(batch(f"b{number}")), [])
    await state.add_batch(batch("next"), 9)

    found = await state.batches("a", None, 9)

    assert found is not None
    assert [one.id for one in found] == ["next", "b3", "b2", "runs"]
    assert await state.batch("b0") is None


async def test_batches_that_ended_long_ago_are_forgotten(states: States) -> None:
    state = states.process().routed
    for number in range(4):
        await state.add_batch(batch(f"b{number}", made=number), 9)
    for name in ("b0", "b1", "b3"):
        await state.finish(over(batch(name, made=int(name[1]))), [])

    await state.forget_batches(3)

    found = await state.batches("a", None, 9)
    assert found is not None
    assert [one.id for one in found] == ["b3", "b2"]


async def test_two_changes_at_once_lose_neither(states: States) -> None:
    one, other = states.process().routed, states.process().routed
    await one.add_batch(batch("b"), 9)

    def more(found: BatchObject) -> BatchObject:
        return msgspec.structs.replace(found, total=found.total + 1)

    async with asyncio.TaskGroup() as group:
        for state in (one, other) * 10:
            group.create_task(state.change("b", more))

    found = await one.batch("b")
    assert found is not None
    assert found.total == 20
    assert await one.change("nothing", more) is None


async def test_a_result_is_kept_once_and_read_in_pages(states: States) -> None:
    state = states.process().routed
    await state.add_batch(batch("b"), 9)
    for number in (250, 3, 7, 1, 30):
        await state.add_result("b", LineResult(number, False, b"%d\n" % number))
    await state.add_result("b", LineResult(8, True, b"wrong\n"))
    await state.add_result("b", LineResult(7, True, b"again\n"))
    await state.add_result("b", LineResult(8, False, b"again\n"))

    assert await state.done("b") == {1, 3, 7, 8, 30, 250}
    assert await state.counts("b") == (5, 1)
    page = await state.results("b", failed=False, after=0, most_bytes=6)
    assert [(one.number, one.row) for one in page] == [(1, b"1\n"), (3, b"3\n"), (7, b"7\n")]
    page = await state.results("b", failed=False, after=7, most_bytes=1)
    assert [one.number for one in page] == [30]
    page = await state.results("b", failed=False, after=30, most_bytes=99)
    assert page == [LineResult(250, False, b"250\n")]
    assert list(await state.results("b", failed=False, after=250, most_bytes=99)) == []
    assert await state.results("b", failed=True, after=0, most_bytes=99) == [
        LineResult(8, True, b"wrong\n")
    ]


async def test_more_results_than_are_read_at_once(
    states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_redis, "NUMBERS_AT_A_TIME", 100)
    state = states.process().routed
    await state.add_batch(batch("b"), 9)
    numbers = list(range(1, 352))
    for number in numbers:
        await state.add_result("b", LineResult(number, number % 3 == 0, b"x"))

    assert await state.done("b") == set(numbers)
    for failed in (False, True):
        page = await state.results("b", failed=failed, after=0, most_bytes=1 << 20)
        assert [one.number for one in page] == [n for n in numbers if (n % 3 == 0) is failed]


async def test_an_end_is_one_step_and_comes_once(states: States) -> None:
    """Without a file that is expected nothing of it is done."""
    state = states.process().routed
    await state.add_batch(batch("b"), 9)
    await state.add_result("b", LineResult(1, False, b"x"))
    out, wrong = file("out", size=7, purpose="batch_output"), file("wrong", size=3)
    await state.expect("out", LATER)
    assert not await state.finish(over(batch("b")), [out, wrong])
    assert await state.counts("b") == (1, 0)
    assert await ids(state) == []
    assert [one.id for one in await state.unfinished()] == ["b"]
    await state.expect("wrong", LATER)

    assert await state.finish(over(batch("b")), [out, wrong])

    assert not await state.finish(over(batch("b"), BatchStatus.CANCELLED), [])
    assert await state.batch("b") == over(batch("b"))
    assert await state.unfinished() == []
    assert await ids(state) == ["wrong", "out"]
    assert not await state.has_room("a", StoredBatch(9, 10))
    assert await state.loose(LATER, 9) == []
    assert await state.done("b") == set()
    assert await state.counts("b") == (0, 0)


async def test_one_process_leads_until_it_resigns(states: States) -> None:
    one, other = states.process(), states.process()
    assert await one.lead.take()
    assert not await other.lead.take()
    await one.lead.resign()
    assert await other.lead.take()
    assert not await one.lead.take()


async def test_the_file_of_states_is_for_us_alone_in_a_folder_that_others_read(
    tmp_path: Path,
) -> None:
    os.chmod(tmp_path, 0o755)
    states = States(tmp_path, "")
    before = os.umask(0)
    try:
        await added(states.process().routed, file("f"))
        with os.scandir(tmp_path) as found:
            modes = {one.name: one.stat().st_mode & 0o777 for one in found}
    finally:
        os.umask(before)
        await states.close()

    assert modes == dict.fromkeys(DATABASE, 0o600)


async def test_a_file_of_states_that_others_could_read_is_for_us_alone_from_now_on(
    tmp_path: Path,
) -> None:
    """Older versions made it so; and its process may have died, and left the files beside it."""
    path = tmp_path / "state.sqlite3"
    with closing(sqlite3.connect(path)) as older:
        older.execute("PRAGMA journal_mode=WAL")
        older.execute("CREATE TABLE old (x)")
        for name in DATABASE:
            os.chmod(tmp_path / name, 0o644)
        states = States(tmp_path, "")
        await added(states.process().routed, file("f"))
        modes = [os.stat(tmp_path / name).st_mode & 0o777 for name in DATABASE]
        await states.close()

    assert modes == [0o600] * len(DATABASE)
