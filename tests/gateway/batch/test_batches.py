"""The Batch API over both front ends, with the openai client: files, batches, limits, owners."""

import asyncio
import json
import resource
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import openai
import pytest

from pdgate.gateway.batch import answering, runner
from pdgate.gateway.batch.objects import BatchObject, StoredFile
from pdgate.gateway.batch.operations import MOST_UPLOADS
from pdgate.gateway.batch.serving import WRITTEN_SECONDS
from pdgate.gateway.batch.sqlite import SqliteState
from pdgate.gateway.config.api_keys import ApiKeyEntry
from pdgate.gateway.config.jwt import JwtSection, JwtTenantEntry
from pdgate.gateway.config.sections import AdmissionSection
from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from tests.gateway.batch.batches import (
    CLOSING,
    begun,
    begun_again,
    client_of,
    ended,
    jsonl,
    line,
    plain,
    rows,
    serving,
)  # fmt: skip
from tests.gateway.tenants.test_tokens import AUDIENCE, ISSUER, jwks, token
from tests.support.fleet import (
    ANSWER,
    PATIENCE_SECONDS,
    Engine,
    Gateway,
    Held,
    as_json,
    engine_error,
    gateway_of,
    says,
)
from tests.support.raw_server import Peer
from tests.support.waiting import until

ANY_STATE = pytest.mark.usefixtures("state_url")


@ANY_STATE
@pytest.mark.usefixtures("front_end")
@pytest.mark.parametrize("front_end", ["hot", "asgi", "hypercorn"], indirect=True)
async def test_the_openai_client_takes_a_batch_from_file_to_answers(tmp_path: Path) -> None:
    engines = Engine(Role.PREFILL), Engine(Role.DECODE)
    async with serving(tmp_path, *engines) as (gateway, client):
        content = jsonl(*(line(f"q{number}", seed=number) for number in range(5)))
        batch = await begun(client, content, metadata={"night": "1"})
        assert batch.status == "validating"

        over = await ended(client, batch.id)

        assert over.status == "completed"
        assert over.metadata == {"night": "1"}
        assert over.request_counts is not None
        assert over.request_counts.to_dict() == {"total": 5, "completed": 5, "failed": 0}
        assert over.error_file_id is None
        answers = await rows(client, over.output_file_id)
        assert [one["custom_id"] for one in answers] == [f"q{number}" for number in range(5)]
        assert all(one["response"]["body"] == ANSWER for one in answers)
        assert all(one["response"]["status_code"] == 200 for one in answers)
        assert sorted(body["seed"] for body in engines[1].bodies) == list(range(5))
        read = await client.files.content(batch.input_file_id)
        assert read.content == content
        files = [file async for file in client.files.list(limit=1)]
        assert {file.id for file in files} == {over.input_file_id, over.output_file_id}
        assert [file.purpose for file in files] == ["batch_output", "batch"]
        assert [one.id async for one in client.batches.list(limit=1)] == [batch.id]
        assert over.output_file_id is not None
        assert (await client.files.delete(over.output_file_id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(over.output_file_id)
        assert (await gateway.metrics())["pdgate_batch_lines_total", "ok"] == 5


async def test_a_broken_line_has_its_error_line_and_loses_no_other(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        asked = json.loads(peer.request.body)
        refused = engine_error(b"400 Bad Request", "no such seed")
        await peer.send(refused if asked.get("seed") == 13 else as_json(ANSWER))

    content = jsonl(
        line("first"),
        b"{not json",
        b"",
        line("first"),
        {**line("elsewhere"), "url": "/v1/embeddings"},
        {**line("put"), "method": "PUT"},
        line("streams", stream=True),
        line("refused", seed=13),
        {"custom_id": "no body", "method": "POST", "url": CHAT},
        b'{"custom_id": "long", "body": "' + b"x" * 70_000 + b'"}',
        line("last"),
    )
    async with serving(tmp_path, plain(script), max_body_bytes=60_000) as (_, client):
        over = await ended(client, (await begun(client, content)).id)

        assert over.status == "completed"
        answers = await rows(client, over.output_file_id)
        assert [one["custom_id"] for one in answers] == ["first", "last"]
        wrong = await rows(client, over.error_file_id)
        assert [(one["custom_id"], one["error"] and one["error"]["code"]) for one in wrong] == [
            (None, "invalid_line"),
            ("first", "duplicate_custom_id"),
            ("elsewhere", "mismatched_endpoint"),
            ("put", "invalid_method"),
            ("streams", "streaming_not_supported"),
            ("refused", None),
            ("no body", "invalid_line"),
            (None, "line_too_long"),
        ]
        assert wrong[0]["error"]["message"].startswith("line 2: ")
        assert wrong[5]["response"]["status_code"] == 400
        assert wrong[5]["response"]["body"]["error"]["message"] == "no such seed"
        assert over.request_counts is not None
        assert over.request_counts.to_dict() == {"total": 10, "completed": 2, "failed": 8}


@ANY_STATE
async def test_after_the_end_of_a_process_only_lines_that_were_under_way_are_asked_again(
    tmp_path: Path,
) -> None:
    held = Held()
    engine = plain(held)
    content = jsonl(*(line(f"q{number}", seed=number) for number in range(6)))
    async with serving(tmp_path, engine, batch={"concurrency": 2}) as (_, client):
        batch = await begun(client, content)
        for _ in range(3):
            await (await held.next()).peer.send(CLOSING)
        await until(lambda: len(engine.calls) == 5, "two lines under way")

        async def kept() -> bool:
            counts = (await client.batches.retrieve(batch.id)).request_counts
            return counts is not None and counts.completed == 3

        await until(kept, "three results")
    before = [body["seed"] for body in engine.bodies]
    again = plain()
    async with serving(tmp_path, again) as (_, client):
        over = await ended(client, batch.id)

        assert over.status == "completed"
        answers = await rows(client, over.output_file_id)
        assert [one["custom_id"] for one in answers] == [f"q{number}" for number in range(6)]
        assert sorted(body["seed"] for body in again.bodies) == [
            number for number in range(6) if number not in before[:3]
        ]


@ANY_STATE
async def test_a_cancelled_batch_ends_its_calls_and_keeps_what_is_there(tmp_path: Path) -> None:
    held = Held()
    async with serving(tmp_path, plain(held), batch={"concurrency": 1}) as (_, client):
        batch = await begun(client, jsonl(line("a"), line("b"), line("c")))
        await (await held.next()).peer.send(CLOSING)
        second = await held.next()

        said = await client.batches.cancel(batch.id)

        assert said.status == "cancelling"
        await asyncio.wait_for(second.left, PATIENCE_SECONDS)
        over = await ended(client, batch.id)
        assert over.status == "cancelled"
        assert over.cancelled_at is not None
        assert [one["custom_id"] for one in await rows(client, over.output_file_id)] == ["a"]
        assert over.error_file_id is None
        with pytest.raises(openai.NotFoundError):
            await client.batches.cancel("batch_of_nobody")


@ANY_STATE
async def test_what_is_not_done_when_its_time_is_over_is_an_error_line(tmp_path: Path) -> None:
    held = Held()
    async with serving(tmp_path, plain(held), batch={"concurrency": 1}) as (_, client):
        batch = await begun(client, jsonl(line("a"), line("b"), b"{", line("c")), window="2s")
        await (await held.next()).peer.send(CLOSING)

        over = await ended(client, batch.id)

        assert over.status == "expired"
        assert over.expired_at is not None
        assert [one["custom_id"] for one in await rows(client, over.output_file_id)] == ["a"]
        wrong = await rows(client, over.error_file_id)
        assert [one["error"]["code"] for one in wrong] == [
            "batch_expired", "invalid_line", "batch_expired",
        ]  # fmt: skip


async def test_lines_wait_behind_the_calls_of_others(tmp_path: Path) -> None:
    """With one place at the engine, a call that comes later is served before the next line."""
    held = Held()
    engine = plain(held)
    async with serving(
        tmp_path, engine, admission=AdmissionSection(decode_concurrency=1)
    ) as served:
        gateway, client = served
        await begun(client, jsonl(*(line(f"q{number}", seed=number) for number in range(3))))
        first = await held.next()

        async def waiting(calls: int) -> bool:
            return (await gateway.metrics()).get(("pdgate_calls_waiting", "m")) == calls

        await until(lambda: waiting(2), "the other lines")
        asking = asyncio.create_task(gateway.chat(seed=99))
        await until(lambda: waiting(3), "the call")
        await first.peer.send(CLOSING)
        second = await held.next()

        assert json.loads(second.peer.request.body)["seed"] == 99
        engine.script = says(as_json(ANSWER))
        await second.peer.send(CLOSING)
        assert (await asking).status_code == 200


def key(name: str) -> ApiKeyEntry:
    return ApiKeyEntry(name=name, sha256=sha256(f"pdg-{name}".encode()).hexdigest())


@ANY_STATE
async def test_an_owner_sees_and_reaches_its_own_alone(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"api_keys": (key("a"), key("b")), "key": "pdg-a"}
    async with serving(tmp_path, plain(), **keys) as (gateway, client):
        over = await ended(client, (await begun(client, jsonl(line("mine")))).id)
        assert len(await rows(client, over.output_file_id)) == 1
        async with client_of(gateway, "pdg-b") as other:
            assert [file async for file in other.files.list()] == []
            assert [one async for one in other.batches.list()] == []
            assert over.output_file_id is not None
            strange: Sequence[Callable[[], Awaitable[object]]] = (
                lambda: other.files.retrieve(over.input_file_id),
                lambda: other.files.content(str(over.output_file_id)),
                lambda: other.files.delete(over.input_file_id),
                lambda: other.batches.retrieve(over.id),
                lambda: other.batches.cancel(over.id),
                lambda: begun_again(other, over.input_file_id),
            )
            for one in strange:
                with pytest.raises(openai.NotFoundError):
                    await one()
            with pytest.raises(openai.BadRequestError, match="nothing with the id"):
                await other.batches.list(after=over.id)
        async with client_of(gateway, "pdg-nobody") as stranger:
            with pytest.raises(openai.AuthenticationError):
                await stranger.files.list()


@ANY_STATE
async def test_a_batch_of_a_token_goes_on_by_its_rule_where_that_token_never_came(
    tmp_path: Path,
) -> None:
    """After a restart, or in the one of all workers that serves batches."""
    file = tmp_path / "jwks.json"
    file.write_bytes(jwks())
    rule = JwtTenantEntry(claim="scope", value="llm", models=("m",))
    section = JwtSection(issuer=ISSUER, audience=AUDIENCE, jwks=str(file), tenants=(rule,))
    said = token(scope="llm").decode()
    held = Held()
    async with serving(tmp_path, plain(held), jwt=section, key=said) as (_, client):
        await until(partial(_opens, client), "keys of tokens")
        batch = await begun(client, jsonl(line("a"), line("b", model="other")))
        await held.next()
    again = plain()
    async with serving(tmp_path, again, jwt=section, key=said) as (_, client):
        await until(lambda: len(again.calls) == 1, "a line that is asked again")
        over = await ended(client, batch.id)
        assert [one["custom_id"] for one in await rows(client, over.output_file_id)] == ["a"]
        [wrong] = await rows(client, over.error_file_id)
        assert (wrong["custom_id"], wrong["response"]["status_code"]) == ("b", 403)


async def _opens(client: openai.AsyncOpenAI) -> bool:
    try:
        await client.files.list()
    except openai.APIStatusError:
        return False
    return True


@ANY_STATE
@pytest.mark.usefixtures("front_end")
async def test_what_is_too_much_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    held = Held()
    limits = {"max_file_bytes": 1000, "max_stored_bytes": 1500, "max_lines": 3, "max_unfinished": 1}
    async with serving(tmp_path, plain(held), batch=limits) as (gateway, client):
        with pytest.raises(openai.APIStatusError) as large:
            await client.files.create(file=("in", b"x" * 1001), purpose="batch")
        assert large.value.status_code == 413
        with pytest.raises(openai.BadRequestError, match="purpose"):
            await client.files.create(file=("in", b"x"), purpose="vision")
        odd = await gateway.http.post("/v1/files", content=b"{}")
        assert odd.status_code == 415
        many = await begun(client, b"\n".join([b"{}"] * 4))
        failed = await ended(client, many.id)
        assert failed.status == "failed"
        assert failed.errors is not None
        assert failed.errors.data is not None
        assert failed.errors.data[0].code == "too_many_lines"
        one = await begun(client, jsonl(line("a")))
        await held.next()
        with pytest.raises(openai.RateLimitError, match="not finished"):
            await begun_again(client, one.input_file_id)
        with pytest.raises(openai.BadRequestError, match="not finished"):
            await client.files.delete(one.input_file_id)
        there = sum([file.bytes async for file in client.files.list()])
        await client.files.create(file=("in", b"x" * (1000 - there)), purpose="batch")
        await client.files.create(file=("in", b"x" * 500), purpose="batch")
        with pytest.raises(openai.BadRequestError, match="delete some"):
            await client.files.create(file=("in", b"x"), purpose="batch")
        with pytest.raises(openai.BadRequestError, match="delete some"):
            await begun_again(client, one.input_file_id)
        kept = sorted(path.name for path in (tmp_path / "batch" / "files").iterdir())
        assert kept == sorted([file.id async for file in client.files.list()])
        await client.batches.cancel(one.id)


async def test_without_a_folder_it_says_what_is_missing(tmp_path: Path) -> None:
    async with gateway_of(plain()) as gateway, client_of(gateway) as client:
        with pytest.raises(openai.APIStatusError, match="--batch-folder") as refused:
            await client.batches.list()
        assert refused.value.status_code == 501
        with pytest.raises(openai.APIStatusError, match="--batch-folder"):
            await client.files.create(file=("in", b"x"), purpose="batch")


async def test_its_routes_never_pass_to_an_engine(tmp_path: Path) -> None:
    engine = plain()
    async with serving(tmp_path, engine, passthrough=True) as (gateway, _):
        found = await gateway.http.post("/v1/batches/x?model=m", json={"model": "m"})
        assert found.status_code == 405
        assert engine.calls == []


@ANY_STATE
async def test_an_input_that_is_lost_ends_the_batch_which_keeps_its_answers(tmp_path: Path) -> None:
    held = Held()
    engine = plain(held)
    async with serving(tmp_path, engine, batch={"concurrency": 1}) as (_, client):
        batch = await begun(client, jsonl(line("a"), line("b")))
        await (await held.next()).peer.send(CLOSING)
        await held.next()
    (tmp_path / "batch" / "files" / batch.input_file_id).unlink()
    async with serving(tmp_path, plain()) as (_, client):
        over = await ended(client, batch.id)

        assert over.status == "failed"
        assert over.errors is not None
        assert over.errors.data is not None
        assert over.errors.data[0].code == "file_not_found"
        assert [one["custom_id"] for one in await rows(client, over.output_file_id)] == ["a"]


async def test_an_answer_without_end_is_an_error_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "MOST_ANSWER_BYTES", 1000)
    long = plain(says(as_json({**ANSWER, "more": "x" * 2000})))
    async with serving(tmp_path, long) as (_, client):
        over = await ended(client, (await begun(client, jsonl(line("a")))).id)

        wrong = (await rows(client, over.error_file_id))[0]["response"]
        assert (wrong["status_code"], wrong["body"]["error"]["code"]) == (502, "answer_too_long")
        assert len(long.calls) == 1


async def test_lines_wait_until_there_is_memory_for_them(tmp_path: Path) -> None:
    """One call's body holds all that there is; what is left for it is not read, and not lost."""
    engine = plain()
    body = b'{"model": "m", "messages": []' + b" " * 700_000
    async with serving(tmp_path, engine, max_memory_bytes=1 << 20) as (gateway, client):
        _, writer = await gateway.wire()
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\n"
        )
        writer.write(head + b"content-length: %d\r\n\r\n" % (len(body) + 1) + body)
        batch = await begun(client, jsonl(line("a")))

        async def begins() -> bool:
            return (await client.batches.retrieve(batch.id)).status == "in_progress"

        await until(begins, "the beginning")
        assert engine.calls == []
        writer.write(b"}")

        over = await ended(client, batch.id)
        assert [one["custom_id"] for one in await rows(client, over.output_file_id)] == ["a"]
        assert len(engine.calls) == 2
        writer.close()


async def test_a_full_disk_costs_no_answer_that_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each line is asked once. The disk: no file of this process may be longer than a byte."""
    held = Held()
    engine = plain(held)
    async with serving(tmp_path, engine, batch={"concurrency": 2}) as (gateway, client):
        batch = await begun(client, jsonl(line("a", seed=1), line("b", seed=2), line("c", seed=3)))
        first, second = await held.next(), await held.next()
        with full_disk():
            engine.script = says(as_json(ANSWER, b"200 OK"))
            await first.peer.send(CLOSING)
            await until(lambda: "the state of batches in" in caplog.text, "a failure")
            with pytest.raises(openai.InternalServerError) as refused:
                await client.files.create(file=("in", b"x" * 999), purpose="batch")
            assert refused.value.code == "batches_unavailable"
            assert (await gateway.chat(seed=9)).status_code == 200
        await second.peer.send(CLOSING)

        over = await ended(client, batch.id)
        assert over.status == "completed"
        answers = await rows(client, over.output_file_id)
        assert [one["custom_id"] for one in answers] == ["a", "b", "c"]
        assert sorted(body["seed"] for body in engine.bodies) == [1, 2, 3, 9]


@contextmanager
def full_disk() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_two_tries_to_end_a_batch_write_no_content_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first may be of a process that has lost the lead and goes on: it must not replace what is there by then."""
    monkeypatch.setattr(runner, "PAUSE_SECONDS", 0.1)
    finish, refused = SqliteState.finish, list[list[StoredFile]]()

    async def once(self: SqliteState, over: BatchObject, files: Sequence[StoredFile]) -> bool:
        if not refused:
            refused.append(list(files))
            return False
        return await finish(self, over, files)

    monkeypatch.setattr(SqliteState, "finish", once)
    async with serving(tmp_path, plain()) as (_, client):
        over = await ended(client, (await begun(client, jsonl(line("a"), b"{"))).id)

        assert [one["custom_id"] for one in await rows(client, over.output_file_id)] == ["a"]
    first = {file.id for file in refused[0]}
    taken = {over.input_file_id, str(over.output_file_id), str(over.error_file_id)}
    assert len(first) == 2
    assert {path.name for path in (tmp_path / "batch" / "files").iterdir()} == first | taken
    state = SqliteState(tmp_path / "batch")
    assert set(await state.loose(time.time() + WRITTEN_SECONDS, 9)) == first
    await state.close()


@ANY_STATE
async def test_a_drain_lets_lines_end_and_begins_no_other(tmp_path: Path) -> None:
    held = Held()
    engine = plain(held)
    content = jsonl(line("a", seed=1), line("b", seed=2))
    async with serving(tmp_path, engine, batch={"concurrency": 1}) as (gateway, client):
        batch = await begun(client, content)
        under_way = await held.next()
        gateway.drain.begin()
        # The client's own connection may be closed in the moment in which it asks.
        async with client_of(gateway) as another:
            with pytest.raises(openai.InternalServerError, match="shutting down"):
                await another.files.create(file=("in", content), purpose="batch")
        await under_way.peer.send(CLOSING)
        await until(lambda: gateway.drain.over, "the end")
    assert len(engine.calls) == 1
    again = plain()
    async with serving(tmp_path, again) as (_, client):
        over = await ended(client, batch.id)

        answers = await rows(client, over.output_file_id)
        assert [one["custom_id"] for one in answers] == ["a", "b"]
        assert [body["seed"] for body in again.bodies] == [2]


@ANY_STATE
async def test_so_many_files_come_at_once_and_no_more(tmp_path: Path) -> None:
    async with serving(tmp_path, plain()) as (gateway, client):
        files = tmp_path / "batch" / "files"
        writers = [await beginning(gateway) for _ in range(MOST_UPLOADS)]
        await until(lambda: files.is_dir() and len(list(files.iterdir())) == MOST_UPLOADS, "files")
        with pytest.raises(openai.RateLimitError, match="on their way"):
            await client.files.create(file=("in", b"x"), purpose="batch")
        for writer in writers:
            writer.close()
        await until(lambda: not any(files.iterdir()), "their end")
        # A file is gone a moment before its place is free: until then there is a Retry-After.
        patient = client.with_options(max_retries=2)
        await patient.files.create(file=("in", b"x"), purpose="batch")


async def test_a_state_that_cannot_be_read_costs_no_other_call(tmp_path: Path) -> None:
    (tmp_path / "batch").mkdir()
    (tmp_path / "batch" / "state.sqlite3").write_bytes(b"this is no database" * 100)
    async with serving(tmp_path, plain()) as (gateway, client):
        with pytest.raises(openai.InternalServerError) as refused:
            await client.batches.list()
        assert refused.value.status_code == 503
        assert refused.value.code == "batches_unavailable"
        with pytest.raises(openai.InternalServerError):
            await client.files.create(file=("in", b"x"), purpose="batch")
        assert not (tmp_path / "batch" / "files").exists()
        assert (await gateway.chat()).status_code == 200


async def beginning(gateway: Gateway) -> asyncio.StreamWriter:
    """Of a file that does not go on."""
    _, writer = await gateway.wire()
    part = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
    head = b"POST /v1/files HTTP/1.1\r\nhost: g\r\ncontent-length: 100000\r\n"
    writer.write(head + b"content-type: multipart/form-data; boundary=x\r\n\r\n" + part + b"a" * 99)
    return writer


@ANY_STATE
async def test_a_file_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, plain()) as (gateway, client):
        writer = await beginning(gateway)
        files = tmp_path / "batch" / "files"
        await until(lambda: files.is_dir() and any(files.iterdir()), "the beginning of a file")
        writer.close()
        await until(lambda: not any(files.iterdir()), "the end of it")
        assert [file async for file in client.files.list()] == []
