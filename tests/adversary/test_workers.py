"""Workers have the same rules at every moment, and neither they nor their parent keep each other."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from pdgate.cluster import regular
from pdgate.gateway.security.keys import hash_of
from pdgate.gateway.sync.workers.folder import Folder
from pdgate.gateway.sync.workers.place import PREFIX, shared_folder
from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from tests.support.fleet import LAST_CHUNK, PATIENCE_SECONDS, STREAM_HEAD, Engine, Held, question
from tests.support.processes import Child, child
from tests.support.raw_server import chunk, raw_server
from tests.support.workers import all_say, workers_of

pytestmark = pytest.mark.slow

TOKEN = "correct-horse-battery-staple"
KNOWN = {"authorization": f"Bearer {TOKEN}"}
KEY, OTHER = "first-key", "second-key"
DONE = b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\n', b"data: [DONE]\n\n"
MANY = 40
WORKERS = 2
BRIEF_SECONDS = 5.0
"""For one answer, while the other workers are frozen: who is asked may be about to end."""


class Site:
    """`pdgate serve --workers 2` with API keys in a file."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self.path, self.keys = folder / "pdgate.toml", folder / "keys.toml"
        self.token = folder / "token"
        self.token.write_text(TOKEN)
        self.admit(KEY)
        self.engine = engine
        self.write()
        self.process: Child
        self.http: httpx2.AsyncClient

    def write(self, keys: bool = True, grace_seconds: int = 20) -> None:
        file = f"api_keys_file = {json.dumps(str(self.keys))}" if keys else ""
        self.path.write_text(f"""
            admin_token_file = {json.dumps(str(self.token))}
            {file}
            [listen]
            port = 0
            workers = {WORKERS}
            [drain]
            grace_seconds = {grace_seconds}
            [[instances]]
            role = "plain"
            url = "{self.engine.url}"
        """)

    def admit(self, *keys: str) -> None:
        tables = (
            f'[[api_keys]]\nname = "{key}"\nsha256 = "{hash_of(key.encode())}"\n' for key in keys
        )
        self.keys.write_text("".join(tables))

    def reload(self) -> None:
        os.kill(self.process.pid, signal.SIGHUP)

    def workers(self) -> list[int]:
        return workers_of(self.process)

    async def statuses(self, key: str | None, times: int = MANY) -> Counter[int]:
        """Of calls, each by a connection of its own, so that all workers get some."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        found: Counter[int] = Counter()
        for _ in range(times):
            answer = await self.http.post(CHAT, json=question(), headers=headers)
            found[answer.status_code] += 1
        return found

    async def becomes(self, key: str | None, status: int) -> None:
        """Until each worker answers so."""

        async def is_so() -> bool:
            try:
                async with asyncio.timeout(BRIEF_SECONDS):
                    return await self.statuses(key, 1) == {status: 1}
            except (httpx2.TransportError, TimeoutError):
                return False

        await all_say(self.process, is_so, f"{status} for {key}")

    async def begun(self, times: int) -> None:
        """So many workers have begun to serve since the start."""
        line = rf"(?s:(startup complete.*){{{times}}})"
        await asyncio.to_thread(self.process.wait_for_line, line, 60)


@asynccontextmanager
async def site_of(folder: Path, engine: Engine | None = None) -> AsyncIterator[Site]:
    engine = engine or Engine(Role.PLAIN)
    async with raw_server(engine.serve) as server:
        engine.url = server.url
        site = Site(folder, engine)
        command = [sys.executable, "-m", "pdgate", "serve", "--config", str(site.path)]
        running = child(command, name="pdgate serve", env={"TMPDIR": str(folder)}, grace_seconds=3)
        site.process = await asyncio.to_thread(running.__enter__)
        try:
            line = await asyncio.to_thread(site.process.wait_for_line, r"listens on (http://\S+)")
            fresh = httpx2.Limits(max_keepalive_connections=0)
            async with httpx2.AsyncClient(
                base_url=line[1], trust_env=False, timeout=PATIENCE_SECONDS, limits=fresh
            ) as site.http:
                await site.begun(WORKERS)
                await site.becomes(KEY, 200)
                yield site
        finally:
            await asyncio.to_thread(running.__exit__, *sys.exc_info())


def _spoil(site: Site, what: str) -> None:
    site.keys.unlink(missing_ok=True)
    site.admit(KEY)
    site.write()
    match what:
        case "no keys":
            site.write(keys=False)
        case "empty file":
            site.keys.write_text("")
        case "nonsense":
            site.keys.write_text("[[api_keys")
        case "nested":
            site.keys.write_text(f"a = {'[' * 5000}{']' * 5000}")
        case "gone":
            site.keys.unlink()
        case "fifo":
            site.keys.unlink()
            os.mkfifo(site.keys)
        case "double":
            # Each worker refuses it, as it would the rest of what the parent cannot see.
            site.admit(KEY, KEY)


async def test_a_reload_that_is_refused_leaves_no_worker_with_other_rules(tmp_path: Path) -> None:
    """Also not the one that replaces another: without keys, 32 of 38 calls were served once."""
    async with site_of(tmp_path) as site:
        killed = 0
        for what in ("no keys", "empty file", "nonsense", "nested", "gone", "fifo", "double"):
            _spoil(site, what)
            refused = await site.http.post("/admin/reload", headers=KNOWN)
            assert refused.status_code == 400, what
            if what in ("no keys", "fifo"):
                killed += 1
                os.kill(site.workers()[0], signal.SIGKILL)
                await site.begun(WORKERS + killed)
            assert await site.statuses(None) == {401: MANY}
            assert await site.statuses(KEY) == {200: MANY}
        site.reload()
        await asyncio.to_thread(
            site.process.wait_for_line,
            # The parent's own, one for each refusal; workers say it as well.
            r"(?s)(lifecycle\.workers the configuration stays as it was.*){8}",
        )

        site.admit(OTHER)
        answer = await site.http.post("/admin/reload", headers=KNOWN)
        assert answer.json() == {"changed": ["api_keys"]}
        await site.becomes(OTHER, 200)
        assert await site.statuses(KEY) == {401: MANY}


async def test_a_worker_that_comes_later_has_the_keys_that_are_in_force(tmp_path: Path) -> None:
    """Whatever their file says by then: nobody has asked for that yet."""
    async with site_of(tmp_path) as site:
        site.admit(OTHER)
        for number in (1, 2):
            os.kill(site.workers()[0], signal.SIGKILL)
            await site.begun(WORKERS + number)

        assert await site.statuses(OTHER) == {401: MANY}
        assert await site.statuses(KEY) == {200: MANY}


async def test_a_worker_that_does_not_take_settings_is_replaced_by_one_that_has(
    tmp_path: Path,
) -> None:
    """As one that hangs, and is killed for it; the one that replaces it has what all have."""
    async with site_of(tmp_path) as site:
        hangs = site.workers()[0]
        os.kill(hangs, signal.SIGSTOP)
        site.admit(OTHER)
        site.reload()
        await asyncio.to_thread(
            site.process.wait_for_line, f"worker {hangs} does not take settings"
        )
        await site.begun(WORKERS + 1)

        await site.becomes(OTHER, 200)
        assert await site.statuses(KEY) == {401: MANY}
        assert hangs not in site.workers()


async def test_a_worker_that_cannot_start_keeps_the_parent_from_nothing(tmp_path: Path) -> None:
    """Its token is gone, as when a secret is being replaced."""
    async with site_of(tmp_path) as site:
        site.token.rename(tmp_path / "away")
        os.kill(site.workers()[0], signal.SIGKILL)
        await asyncio.to_thread(
            site.process.wait_for_line, r"(?s)has ended \(-9\).*has ended \([^-]"
        )
        assert await site.statuses(KEY) == {200: MANY}
        (tmp_path / "away").rename(site.token)
        site.admit(OTHER)
        site.reload()
        await site.begun(WORKERS + 1)
        await site.becomes(OTHER, 200)

        os.kill(site.process.pid, signal.SIGTERM)
        # Did it take longer than it may, the kernel would have ended it (signals.py).
        assert await asyncio.to_thread(site.process.wait_for_end) == 0


async def test_workers_end_with_their_parent_and_leave_the_port_at_once(tmp_path: Path) -> None:
    held = Held()
    async with site_of(tmp_path, Engine(Role.PLAIN)) as site:
        site.engine.script = held
        known = {"authorization": f"Bearer {KEY}"}
        asking = asyncio.create_task(
            site.http.post(CHAT, json=question(stream=True), headers=known)
        )
        call = await held.next()
        await call.peer.send(STREAM_HEAD, chunk(b'data: {"choices": [{"text": "a"}]}\n\n'))
        workers = site.workers()

        os.kill(site.process.pid, signal.SIGKILL)

        port = site.http.base_url.port
        assert port is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not _free(port):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        # Nobody's answer is cut.
        await call.peer.send(*map(chunk, DONE), LAST_CHUNK)
        assert (await asking).content.endswith(b"data: [DONE]\n\n")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while any(_lives(pid) for pid in workers):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


def _free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
            one.listen()
        except OSError:
            return False
        return True


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def test_a_frozen_worker_does_not_keep_the_gateway_from_its_end(tmp_path: Path) -> None:
    async with site_of(tmp_path) as site:
        site.write(grace_seconds=1)
        assert (await site.http.post("/admin/reload", headers=KNOWN)).status_code == 200
        os.kill(site.workers()[0], signal.SIGSTOP)
        os.kill(site.process.pid, signal.SIGTERM)

        # The kernel's own clock does not reach a process that is stopped; its parent does.
        assert await asyncio.to_thread(site.process.wait_for_end, 60) == 0


def test_what_others_put_into_the_shared_folder_keeps_nobody(tmp_path: Path) -> None:
    """A fifo of that name kept the gateway from ever starting its workers."""
    os.mkfifo(tmp_path / f"{PREFIX}fifo")
    (tmp_path / f"{PREFIX}file").write_text("x")
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "theirs").write_text("x")
    (tmp_path / f"{PREFIX}link").symlink_to(kept)
    (tmp_path / f"{PREFIX}loop").symlink_to(tmp_path / f"{PREFIX}loop")

    with shared_folder(tmp_path) as folder:
        assert folder.is_dir()

    assert (kept / "theirs").read_text() == "x"


def test_another_users_folder_is_let_be(tmp_path: Path) -> None:
    theirs = tmp_path / f"{PREFIX}theirs"
    theirs.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    os.chown(theirs, 12345, 12345)

    with shared_folder(tmp_path):
        assert theirs.is_dir()


def test_what_is_no_workers_table_is_passed_over(tmp_path: Path) -> None:
    one, other = Folder(tmp_path, "table", 4096), Folder(tmp_path, "table", 4096)
    os.mkfifo(tmp_path / "1-a.table")
    (tmp_path / "2-b.table").write_bytes(b"short")
    (tmp_path / "3-c.table").symlink_to("/dev/zero")
    (tmp_path / "4-d.table").mkdir()

    assert len(one.others()) == 1
    other.close()
    assert one.others() == {}
    one.close()


@pytest.mark.parametrize("what", ["fifo", "device", "huge", "folder", "loop"])
def test_what_is_no_file_of_settings_is_refused_at_once(what: str, tmp_path: Path) -> None:
    path = tmp_path / "pdgate.toml"
    match what:
        case "fifo":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "huge":
            with path.open("wb") as file:
                file.truncate(1 << 40)
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path)

    with pytest.raises(OSError, match=r"regular|bytes|directory|links"):
        regular.read(path)
