"""The gateway as a FastAPI application: in a TestClient, behind a prefix, inside another application."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Self

import httpx2
import pytest
from fastapi import Depends, FastAPI, Request
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

import pdgate
from pdgate.gateway.config import ConfigError
from pdgate.protocols.apis import MESSAGES, REALTIME
from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from tests.support.fleet import (
    ANSWER,
    Engine,
    Held,
    as_json,
    question,
    says,
    streams,
)
from tests.support.raw_server import Peer, raw_server
from tests.support.waiting import until

DELTA = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": null}]}\n\n'
END = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


class Fleet:
    """Scripted engines in an event loop of their own, as a TestClient has its own, too."""

    def __init__(self, *engines: Engine) -> None:
        self.engines = engines
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()

    async def _run(self) -> None:
        async with asyncio.TaskGroup(), _all_served(self.engines):
            self._ready.set()
            await self._end.wait()

    def config(self, **more: Any) -> dict[str, Any]:
        """As a TOML file has it."""
        entries = [{"url": engine.url, "role": engine.role.value} for engine in self.engines]
        return {"instances": entries, **more}


@asynccontextmanager
async def _all_served(engines: tuple[Engine, ...]) -> AsyncIterator[None]:
    async with raw_server(engines[0].serve) as first:
        engines[0].url = first.url
        if engines[1:]:
            async with _all_served(engines[1:]):
                yield
        else:
            yield


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet(Engine(Role.PREFILL), Engine(Role.DECODE)) as fleet:
        yield fleet


def test_calls_are_served_by_its_own_routes_again_and_again(fleet: Fleet) -> None:
    """A TestClient has another event loop each time."""
    app = pdgate.create_app(fleet.config())
    for _ in range(2):
        with TestClient(app) as client:
            assert client.get("/ready").json()["ready"]
            assert client.post(CHAT, json=question()).json() == ANSWER
            fleet.engines[1].script = streams(DELTA, END, DONE)
            streamed = client.post(CHAT, json=question(stream=True))
            assert streamed.headers["content-type"].startswith("text/event-stream")
            assert streamed.content == DELTA + END + DONE
            fleet.engines[1].script = says(as_json(ANSWER))
            assert client.get("/admin/jobs").status_code == 404
    assert [call.line for call in fleet.engines[0].calls] == [
        b"POST /v1/chat/completions HTTP/1.1"
    ] * 4


def test_a_file_is_read_again_by_a_reload(fleet: Fleet, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret-of-the-operators")
    token.chmod(0o600)
    file = tmp_path / "pdgate.toml"
    lines = [f'admin_token_file = "{token}"']
    for engine in fleet.engines:
        lines += ["[[instances]]", f'url = "{engine.url}"', f'role = "{engine.role.value}"']
    file.write_text("\n".join(lines))
    operator = {"authorization": "Bearer secret-of-the-operators"}
    with TestClient(pdgate.create_app(file)) as client:
        assert client.post("/admin/reload", headers=operator).json() == {"changed": []}
        file.write_text("\n".join([lines[0], "max_body_bytes = 10", *lines[1:]]))
        said = client.post("/admin/reload", headers=operator)
        assert said.json() == {"changed": ["max_body_bytes"]}, said.text
        assert client.post(CHAT, json=question()).status_code == 413


def test_a_drain_refuses_calls_and_leaves_the_process_alone(fleet: Fleet, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret-of-the-operators")
    token.chmod(0o600)
    operator = {"authorization": "Bearer secret-of-the-operators"}
    with TestClient(pdgate.create_app(fleet.config(admin_token_file=str(token)))) as client:
        assert client.post("/admin/drain", headers=operator).status_code == 202
        refused = client.post(CHAT, json=question())
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "draining"
        assert client.get("/health").status_code == 200


def test_it_is_mounted_with_middleware_and_lifespan_of_somebodys_application(fleet: Fleet) -> None:
    gateway = pdgate.create_app(fleet.config(passthrough=True))
    began: list[str] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        began.append("outer")
        async with gateway.router.lifespan_context(gateway):
            yield

    outer = FastAPI(lifespan=lifespan)
    outer.mount("/llm", gateway)
    outer.add_middleware(Stamp)
    with TestClient(outer) as client:
        answer = client.post(f"/llm{CHAT}", json=question())
        assert answer.json() == ANSWER
        assert answer.headers["x-stamp"] == "outer"
        assert client.get("/llm/v1/models").json()["data"][0]["id"] == "m"
        wrong = client.get(f"/llm{CHAT}")
        assert wrong.status_code == 405
        assert wrong.json()["error"]["code"] == "method_not_allowed"
        wrong = client.get(f"/llm{MESSAGES}")
        assert wrong.json()["type"] == "error", "Anthropic's shape, behind the prefix as well"
        odd = client.post(f"/llm{CHAT}", content=b"{}", headers={"content-length": "two"})
        assert odd.status_code == 400
        assert "content-length" in odd.json()["error"]["message"]
        fleet.engines[1].calls.clear()
        assert client.post("/llm/v1/a%2Bb?x=1&model=m", json={"model": "m"}).status_code == 200
        assert client.get("/llm/v1/a/../../admin/jobs").status_code == 404
    assert began == ["outer"]
    assert fleet.engines[1].calls[0].line == b"POST /v1/a%2Bb?x=1&model=m HTTP/1.1"


class Stamp:
    """Middleware of somebody's application."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def stamped(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-stamp", b"outer")]
            await send(message)

        await self._app(scope, receive, stamped)


def test_where_its_lifespan_was_forgotten_it_starts_with_the_first_request(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    outer = FastAPI()
    outer.mount("/llm", pdgate.create_app(fleet.config()))
    outer.mount("/too", outer.routes[-1].app)  # type: ignore[attr-defined]
    with TestClient(outer) as client:
        assert client.post(f"/llm{CHAT}", json=question()).json() == ANSWER
        assert client.post(f"/too{CHAT}", json=question()).json() == ANSWER
    assert [line for line in caplog.messages if "lifespan" in line] == [caplog.messages[0]]


class Slow(Engine):
    """An engine that answers no look before the test lets it."""

    def __init__(self, role: Role) -> None:
        super().__init__(role)
        self.asked, self.go = threading.Event(), threading.Event()

    async def serve(self, peer: Peer) -> None:
        if peer.request.line.startswith(b"GET"):
            self.asked.set()
            await asyncio.to_thread(self.go.wait, 60)
        await super().serve(peer)


async def test_calls_that_come_while_it_starts_with_the_first_of_them_wait_as_that_one() -> None:
    slow = Slow(Role.DECODE)
    with Fleet(Engine(Role.PREFILL), slow) as fleet:
        app, came = pdgate.create_app(fleet.config()), 0

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal came
            came += 1
            await app(scope, receive, send)

        transport = httpx2.ASGITransport(counted)
        async with (
            httpx2.AsyncClient(transport=transport, base_url="http://gateway") as client,
            asyncio.TaskGroup() as both,
        ):
            first = both.create_task(client.post(CHAT, json=question()))
            await until(slow.asked.is_set, "it looks at its engines")
            second = both.create_task(client.post(CHAT, json=question()))
            await until(lambda: came == 2, "another call")
            slow.go.set()
    assert (first.result().json(), second.result().json()) == (ANSWER, ANSWER)


async def test_all_that_wait_for_a_start_that_fails_are_refused_and_the_next_one_starts_it(
    fleet: Fleet, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    file = tmp_path / "pdgate.toml"
    lines = []
    for engine in fleet.engines:
        lines += ["[[instances]]", f'url = "{engine.url}"', f'role = "{engine.role.value}"']
    file.write_text("\n".join(lines))
    app = pdgate.create_app(file)
    # The gateway that was made with the application has had its time.
    async with app.router.lifespan_context(app):
        pass
    file.write_text(f'admin_token_file = "{token}"\n' + "\n".join(lines))
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as client:
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(client.post(CHAT, json=question())) for _ in range(3)]
        assert [call.result().status_code for call in calls] == [500] * 3
        file.write_text("\n".join(lines))
        assert (await client.post(CHAT, json=question())).json() == ANSWER


async def test_its_lifespan_runs_once_at_a_time(fleet: Fleet) -> None:
    app = pdgate.create_app(fleet.config())
    async with app.router.lifespan_context(app):
        with pytest.raises(RuntimeError, match="runs already"):
            async with app.router.lifespan_context(app):
                pass


def test_its_router_is_included_with_a_dependency_that_reads_the_body(fleet: Fleet) -> None:
    seen: list[Any] = []

    async def audit(request: Request) -> None:
        seen.append(await request.json())

    outer = FastAPI()
    gateway = pdgate.create_app(fleet.config())
    outer.include_router(gateway.router, prefix="/api", dependencies=[Depends(audit)])
    with TestClient(outer) as client:
        assert client.post(f"/api{CHAT}", json=question()).json() == ANSWER
    assert seen == [question()]


def test_a_dependency_may_refuse_before_it(fleet: Fleet) -> None:
    from fastapi import Header, HTTPException

    def guard(x_team: Annotated[str, Header()] = "") -> None:
        if x_team != "a":
            raise HTTPException(403, "not your team")

    outer = FastAPI()
    gateway = pdgate.create_app(fleet.config())
    outer.include_router(gateway.router, prefix="/api", dependencies=[Depends(guard)])
    with TestClient(outer) as client:
        assert client.post(f"/api{CHAT}", json=question()).status_code == 403
        assert not fleet.engines[0].calls
        allowed = client.post(f"/api{CHAT}", json=question(), headers={"x-team": "a"})
        assert allowed.status_code == 200


def test_docs_show_calls_with_models_of_request_and_answer(fleet: Fleet) -> None:
    with TestClient(pdgate.create_app(fleet.config())) as client:
        schema = client.get("/openapi.json").json()
        assert client.get("/docs").status_code == 200
    call = schema["paths"][CHAT]["post"]
    asked = call["requestBody"]["content"]["application/json"]["schema"]
    answered = call["responses"]["200"]["content"]["application/json"]["schema"]
    assert (asked["title"], answered["title"]) == ("ChatCompletionRequest", "ChatCompletion")
    assert asked["properties"].keys() >= {"messages", "model", "stream", "tools"}
    assert answered["properties"].keys() >= {"choices", "usage"}
    session = schema["paths"][REALTIME]["get"]
    assert {"101", "426", "401"} <= session["responses"].keys()
    assert "200" not in session["responses"]
    assert [one["name"] for one in session["parameters"]] == ["model"]


def test_a_call_that_is_under_way_is_left_with_its_client(fleet: Fleet) -> None:
    """Over a middleware that wraps what comes and goes."""
    held = Held()
    fleet.engines[1].script = held
    app = pdgate.create_app(fleet.config())

    async def leave() -> None:
        gone = asyncio.Event()
        sent: list[Any] = []
        body = [{"type": "http.request", "body": b'{"model": "m", "messages": []}'}]

        async def receive() -> Any:
            if body:
                return body.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": CHAT,
            "raw_path": CHAT.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "server": None,
            "client": None,
            "scheme": "http",
            "http_version": "1.1",
        }
        async with app.router.lifespan_context(app):
            call = asyncio.create_task(app(scope, receive, send))
            await until(lambda: len(fleet.engines[1].calls) == 1, "decode is asked")
            gone.set()
            await call
        assert not sent

    asyncio.run(leave())


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"listen": {"workers": 2}}, "'listen.workers'.*several processes of the server"),
        ({"no_such_key": 1}, "no_such_key"),
        (7, "a mapping or the path"),
        ("/does/not/exist.toml", "cannot read"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(config: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        pdgate.create_app(config)


def test_a_listener_of_its_own_is_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret-of-the-operators")
    token.chmod(0o600)
    with pytest.raises(ConfigError, match="'admin_listen': an application has no listener"):
        pdgate.create_app({"admin_listen": "127.0.0.1:9", "admin_token_file": str(token)})
