"""What fails beside the calls ends neither them, nor the other jobs, nor the way to the end."""

import asyncio
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pdgate.cluster import jobs as jobs_
from pdgate.cluster.directory import Directory, Listed, Tell
from pdgate.cluster.jobs import FIRST_SECONDS, MOST_SECONDS, Jobs, pause_seconds
from pdgate.cluster.memory import MemoryDirectory
from pdgate.cluster.redis_store.directory import RedisDirectory
from pdgate.cluster.redis_store.scripts import STATE
from pdgate.gateway.console.pulse import Pulse
from pdgate.gateway.lifecycle.signals import ENDING_SECONDS
from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from tests.support.fleet import PATIENCE_SECONDS, Engine, Gateway, gateway_of, question
from tests.support.processes import Child, child
from tests.support.raw_server import raw_server
from tests.support.redis import redis_server

STRUCK = Path(__file__).parent / "struck"
TOKEN = "correct-horse-battery-staple"
KNOWN = {"authorization": f"Bearer {TOKEN}"}
STRIKES = 100
CLOSED_PORT = "127.0.0.1:9"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has failed starts anew at once, for tests in one process."""
    monkeypatch.setattr(jobs_, "pause_seconds", lambda failures, chance: 0.001)


def test_pauses_grow_to_their_bound_and_differ_by_chance() -> None:
    assert [pause_seconds(number, 0.0) for number in (1, 2, 3)] == [0.5, 1.0, 2.0]
    assert pause_seconds(10_000, 0.0) == MOST_SECONDS
    assert pause_seconds(1, 1.0) == FIRST_SECONDS / 2


async def until(jobs: Jobs, **restarts: int) -> None:
    """A job has no event for what it went through, so it is asked."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while any(job.restarts < restarts.get(job.name, 0) for job in jobs):  # noqa: ASYNC110
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("a bug"),
        SystemExit(3),
        KeyboardInterrupt(),
        BaseException("neither"),
        asyncio.CancelledError(),
        None,
    ],
)
async def test_whatever_ends_a_job_it_starts_anew_and_the_others_run_on(
    error: BaseException | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails() -> None:
        if error is not None:
            raise error

    async def lasts() -> None:
        await asyncio.Event().wait()

    async with Jobs() as jobs:
        jobs.add_all({"fails": fails, "lasts": lasts})
        jobs.start()
        await until(jobs, fails=STRIKES)
        fails_, lasts_ = jobs

    assert (lasts_.restarts, lasts_.why) == (0, "")
    assert fails_.restarts >= STRIKES
    assert fails_.why
    assert "the job fails failed" in caplog.text
    assert "Traceback" in caplog.text or error is None


async def test_jobs_that_do_not_end_keep_nobody_waiting(caplog: pytest.LogCaptureFixture) -> None:
    over = asyncio.Event()
    closed = []

    async def stubborn() -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    async def raises_at_its_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("at the end")

    jobs = Jobs(end_seconds=0.2)
    jobs.add_all({"stubborn": stubborn, "raises": raises_at_its_end})
    jobs.at_end(lambda: closed.append(1 / 0))
    jobs.at_end(lambda: closed.append(1))
    async with asyncio.timeout(PATIENCE_SECONDS), jobs:
        jobs.start()
        await asyncio.sleep(0)

    assert closed == [1]
    assert "left behind, as they do not end: stubborn" in caplog.text
    assert "the job raises failed at its end" in caplog.text
    over.set()


class Site:
    """`pdgate serve` with everything that it can do besides serving calls."""

    def __init__(self, folder: Path, engine: Engine, workers: int) -> None:
        self.path = folder / "pdgate.toml"
        token, fleet = folder / "token", folder / "fleet.toml"
        token.write_text(TOKEN)
        fleet.write_text("")
        self.path.write_text(f"""
            admin_token_file = {json.dumps(str(token))}
            state_dir = {json.dumps(str(folder))}
            redis = "redis://{CLOSED_PORT}/0"
            directory = "file"
            directory_options = [{json.dumps("path=" + str(fleet))}]
            plain_policy = "prefix_then_load"
            [listen]
            port = 0
            workers = {workers}
            [drain]
            grace_seconds = 2
            [health]
            interval_seconds = 0.2
            [adaptive]
            enabled = true
            [kv_events]
            endpoint = "ask"
            [tracing]
            endpoint = "http://{CLOSED_PORT}"
            [[instances]]
            role = "plain"
            url = "{engine.url}"
        """)
        self.process: Child
        self.http: httpx2.AsyncClient

    async def metric(self, name: str) -> dict[str, float]:
        """Job -> value."""
        page = (await self.http.get("/metrics")).text
        families = text_string_to_metric_families(page)
        return {s.labels["job"]: s.value for f in families for s in f.samples if s.name == name}

    async def serves(self) -> None:
        answer = await self.http.post(CHAT, json=question())
        assert answer.status_code == 200, answer.text

    async def says_ready(self, ready: bool) -> None:
        row = 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while row < 10:
                try:
                    answer = await self.http.get("/ready")
                # A process without file descriptors accepts a connection only to close it.
                except httpx2.TransportError:
                    row = 0
                else:
                    row = row + 1 if answer.json()["ready"] == ready else 0
                await asyncio.sleep(0.01)


@asynccontextmanager
async def site_of(
    folder: Path, engine: Engine, workers: int, **environment: str
) -> AsyncIterator[Site]:
    async with raw_server(engine.serve) as server:
        engine.url = server.url
        site = Site(folder, engine, workers)
        command = [sys.executable, "-m", "pdgate", "serve", "--config", str(site.path)]
        env = {"PYTHONPATH": str(STRUCK), "TMPDIR": str(folder), **environment}
        running = child(command, name="pdgate serve", env=env, grace_seconds=3)
        site.process = await asyncio.to_thread(running.__enter__)
        try:
            line = await asyncio.to_thread(site.process.wait_for_line, r"listens on (http://\S+)")
            begun = rf"(?s:(startup complete.*){{{workers}}})"
            await asyncio.to_thread(site.process.wait_for_line, begun, 60)
            fresh = httpx2.Limits(max_keepalive_connections=0)
            async with httpx2.AsyncClient(
                base_url=line[1], trust_env=False, timeout=PATIENCE_SECONDS, limits=fresh
            ) as site.http:
                yield site
        finally:
            await asyncio.to_thread(running.__exit__, *sys.exc_info())


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
async def test_calls_health_and_sigterm_outlive_a_hundred_failures_of_every_job(
    workers: int, tmp_path: Path
) -> None:
    engine = Engine(Role.PLAIN)
    async with site_of(tmp_path, engine, workers, STRIKES=str(STRIKES)) as site:
        listed = (await site.http.get("/admin/jobs", headers=KNOWN)).json()
        names = {job["name"] for job in listed}
        await site.says_ready(True)
        late, ends = names, monotonic() + 3 * PATIENCE_SECONDS
        while late:
            await site.serves()
            restarts = await site.metric("pdgate_job_restarts_total")
            running = await site.metric("pdgate_job_running")
            late = {
                name
                for name in names
                if restarts.get(name, 0) < STRIKES * workers or running[name] < workers
            }
            assert monotonic() < ends, (late, restarts, running)
            await asyncio.sleep(0.05)

        assert restarts.keys() == names
        # One of each part that has any; the site has all that there are.
        assert names >= {
            *("health", "directory", "directory-members", "directory-state"),
            *("disaggregation-rule", "drained-instances", "console-pulse", "console-attention"),
            "silent-engines",
            *("engine-metrics", "adaptive-roles", "traces", "kv-events", "kv-tokenizing"),
            *("replica-load", "replica-prompts"),
        }
        if workers > 1:
            assert names >= {"worker-load", "worker-prompts", "worker-metrics", "console-siblings"}
        await site.says_ready(True)
        engine.probes["/health"] = b"HTTP/1.1 503 no\r\ncontent-length: 0\r\n\r\n"
        await site.says_ready(False)

        os.kill(site.process.pid, signal.SIGTERM)
        # Did it take longer than it may, the kernel would have ended it (signals.py).
        assert await asyncio.to_thread(site.process.wait_for_end) == 0


@pytest.mark.slow
async def test_a_process_that_does_not_end_by_itself_is_ended(tmp_path: Path) -> None:
    async with site_of(tmp_path, Engine(Role.PLAIN), 1, STUBBORN="1") as site:
        os.kill(site.process.pid, signal.SIGTERM)

        code = await asyncio.to_thread(site.process.wait_for_end, PATIENCE_SECONDS + ENDING_SECONDS)
        assert code == -signal.SIGALRM


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
async def test_without_file_descriptors_for_a_while_all_goes_on_afterwards(
    workers: int, tmp_path: Path
) -> None:
    """400 half-open connections to processes that may have 150 files each."""
    engine = Engine(Role.PLAIN)
    async with site_of(tmp_path, engine, workers) as site:
        await site.says_ready(True)
        for pid in _processes(site.process.pid):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (150, 150))
        address = ("127.0.0.1", site.http.base_url.port)
        with ExitStack() as half_open:
            for _ in range(400):
                connection = half_open.enter_context(socket.socket())
                connection.setblocking(False)
                connection.connect_ex(address)
                # A request that never becomes whole.
                await asyncio.sleep(0)
            await asyncio.to_thread(site.process.wait_for_line, "Too many open files")
        await site.says_ready(True)
        await site.serves()
        engine.probes["/health"] = b"HTTP/1.1 503 no\r\ncontent-length: 0\r\n\r\n"
        await site.says_ready(False)

        os.kill(site.process.pid, signal.SIGTERM)
        # Did it take longer than it may, the kernel would have ended it (signals.py).
        assert await asyncio.to_thread(site.process.wait_for_end) == 0


def _processes(parent: int) -> list[int]:
    """The parent and its children."""
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [parent, *map(int, found)]


class Broken(Directory):
    """Another package's directory, with a bug in one place."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.begun = 0

    def announce(self, member: object) -> None:  # type: ignore[override]
        raise AssertionError("gateways do not announce themselves")

    async def follow(self, tell: Tell) -> None:
        self.begun += 1
        if self.where == "start":
            raise ImportError("no such store")
        tell(Listed({}))
        if self.where == "iteration":
            await asyncio.sleep(0)
            raise SystemExit("gives up")
        if self.where == "nonsense":
            tell(Listed(None))  # type: ignore[arg-type]
        try:
            await asyncio.Event().wait()
        finally:
            if self.where == "close":
                raise ValueError("cannot close")


async def serves(gateway: Gateway) -> None:
    assert (await gateway.chat()).status_code == 200


async def health_is_live(gateway: Gateway) -> None:
    """It notices that the engine falls ill, and that it is well again."""
    (engine,) = gateway.engines
    well = engine.probes["/health"]
    for said, status in ((b"HTTP/1.1 503 no\r\ncontent-length: 0\r\n\r\n", 503), (well, 200)):
        engine.probes["/health"] = said
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await gateway.http.get("/ready")).status_code != status:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def restarts(gateway: Gateway, job: str) -> float:
    return (await gateway.metrics()).get(("pdgate_job_restarts_total", job), 0)


@pytest.mark.parametrize("where", ["start", "iteration", "nonsense", "close"])
async def test_a_directory_that_raises_takes_nothing_along(where: str) -> None:
    directory = Broken(where)
    async with gateway_of(Engine(Role.PLAIN), directory=directory) as gateway:
        await serves(gateway)
        if where != "close":
            async with asyncio.timeout(PATIENCE_SECONDS):
                while directory.begun < STRIKES:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                # It is for the moment between its list and its failure.
                while (await gateway.http.get("/ready")).json()["directory"]["state"] == "current":
                    pass
        await serves(gateway)
        await health_is_live(gateway)


async def test_what_is_no_revision_in_redis_is_a_loss_and_no_end(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server, server.client() as client:
        client.hset(STATE, mapping={"id": "x", "revision": "abc"})
        directory = RedisDirectory(url=server.url, look_seconds=0.1)
        async with gateway_of(Engine(Role.PLAIN), directory=directory) as gateway:
            await serves(gateway)
            await health_is_live(gateway)
            ready = (await gateway.http.get("/ready")).json()
            assert ready["directory"]["state"] == "waiting"
            # A store that cannot be used is none of the job's failures.
            assert await restarts(gateway, "directory") == 0

            client.delete(STATE)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while ready["directory"]["state"] != "current":
                    ready = (await gateway.http.get("/ready")).json()


async def test_a_bug_in_the_console_is_the_consoles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def beat(self: Pulse) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("pdgate.gateway.console.pulse.SLOT_SECONDS", 0.001)
    monkeypatch.setattr(Pulse, "beat", beat)
    monkeypatch.setattr(jobs_, "pause_seconds", lambda failures, chance: 0.2)
    (tmp_path / "token").write_text(TOKEN)
    token = str(tmp_path / "token")
    async with gateway_of(Engine(Role.PLAIN), admin_token_file=token) as gateway:
        await serves(gateway)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await restarts(gateway, "console-pulse"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await health_is_live(gateway)
        jobs = (await gateway.http.get("/admin/jobs", headers=KNOWN)).json()
        (pulse,) = [job for job in jobs if job["name"] == "console-pulse"]
        assert pulse["why"] == "ZeroDivisionError: a bug"
        async with gateway.http.stream("GET", "/admin/live", headers=KNOWN) as live:
            assert live.status_code == 200


async def test_a_bug_over_one_engine_does_not_blind_the_gateway_to_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from pdgate.gateway.probe import Prober

    sick, well = Engine(Role.PLAIN), Engine(Role.PLAIN)
    sick.entry["id"], well.entry["id"] = "sick", "well"
    looked = Prober._look

    async def look(self: Prober, announced: object) -> None:
        if announced.id == "sick":  # type: ignore[attr-defined]
            raise KeyError("a bug")
        await looked(self, announced)  # type: ignore[arg-type]

    monkeypatch.setattr(Prober, "_look", look)
    async with gateway_of(sick, well) as gateway:
        await serves(gateway)
        well.probes["/health"] = b"HTTP/1.1 503 no\r\ncontent-length: 0\r\n\r\n"
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await gateway.http.get("/ready")).status_code != 503:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await restarts(gateway, "health") == 0
    assert caplog.text.count("looking at sick failed\nTraceback") == 1


async def test_an_engine_stays_announced_whatever_its_announcement_meets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pdgate.cluster.member import Member
    from pdgate.cluster.redis_store.directory import RedisAnnouncement

    renew, failures = RedisAnnouncement._renew, iter([RuntimeError("a bug"), SystemExit(1)])

    async def fails_at_first(self: RedisAnnouncement, member: Member) -> None:
        if (error := next(failures, None)) is not None:
            raise error
        await renew(self, member)

    monkeypatch.setattr(RedisAnnouncement, "_renew", fails_at_first)
    member = Member(Role.PLAIN, "10.0.0.1", 80)
    with redis_server(tmp_path) as server:
        directory = RedisDirectory(url=server.url)
        heard: asyncio.Queue[object] = asyncio.Queue()
        following = asyncio.create_task(directory.follow(heard.put_nowait))
        async with asyncio.timeout(PATIENCE_SECONDS), directory.announce(member):
            while member.key not in str(await heard.get()):
                pass
        following.cancel()


async def test_memory_is_no_directory_of_its_own() -> None:
    """The contract's own directory has none of this."""
    async with gateway_of(Engine(Role.PLAIN), directory=MemoryDirectory()) as gateway:
        assert await restarts(gateway, "directory") == 0
