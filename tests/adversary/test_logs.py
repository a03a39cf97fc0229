"""A log that nobody takes stops neither calls, nor signals, nor the end of the process; what strangers write into
one is one line, and tells a terminal nothing."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from pdgate.cluster.stderr import OneLine, Stderr
from pdgate.gateway.logs import TEXT, JsonLines
from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from tests.support.fleet import PATIENCE_SECONDS, Engine, question
from tests.support.raw_server import raw_server

MOST_BYTES = 10_000


class Pipe:
    """One that holds little, and that is read when the test says so."""

    def __init__(self) -> None:
        self.out, self.into = os.pipe()
        self.handler = Stderr(self.into, MOST_BYTES)

    def info(self, said: str, *arguments: object) -> None:
        record = logging.LogRecord("pdgate.test", 20, __file__, 1, said, arguments, None)
        self.handler.handle(record)

    def fill(self) -> None:
        """With empty lines, so that there is no room for another one."""
        os.set_blocking(self.into, False)
        try:
            while True:
                os.write(self.into, b"\n" * 4096)
        except BlockingIOError:
            os.set_blocking(self.into, True)

    def read_all(self) -> bytes:
        """All that is written before everything has been."""
        found = bytearray()
        reading = threading.Thread(target=self._read, args=(found,))
        reading.start()
        assert self.handler.writer.flush(PATIENCE_SECONDS)
        os.close(self.into)
        reading.join()
        return bytes(found)

    def _read(self, found: bytearray) -> None:
        while piece := os.read(self.out, 1 << 16):
            found += piece


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    os.close(made.out)


def test_lines_keep_their_order_and_come_whole(pipe: Pipe) -> None:
    for number in range(50):
        pipe.info("line %d \ud800", number)

    assert pipe.read_all().splitlines() == [b"line %d \\ud800" % n for n in range(50)]


def test_what_is_logged_does_not_wait_and_what_was_dropped_is_told(pipe: Pipe) -> None:
    pipe.handler.setFormatter(JsonLines())
    # Else it depends on when the writing thread has a core what there is room for.
    pipe.fill()
    lines = 0
    while not pipe.handler.writer.dropped:
        pipe.info("%s", "x" * 1000)
        lines += 1
    for _ in range(99):
        pipe.info("%s", "x" * 1000)
    assert not pipe.handler.writer.flush(0)
    dropped = pipe.handler.writer.dropped

    reading = threading.Thread(target=pipe._read, args=(found := bytearray(),))
    reading.start()
    assert pipe.handler.writer.flush(PATIENCE_SECONDS)
    pipe.info("it flows again")
    assert pipe.handler.writer.flush(PATIENCE_SECONDS)
    os.close(pipe.into)
    reading.join()

    messages = [json.loads(line)["message"] for line in found.splitlines() if line]
    assert messages[-1] == "it flows again"
    told = [int(said.split()[0]) for said in messages if "were dropped" in said]
    assert sum(told) == dropped
    # None is lost that was not counted.
    assert len(messages) - 1 - len(told) + dropped == lines + 99


def test_a_line_longer_than_all_that_may_wait_is_dropped(pipe: Pipe) -> None:
    pipe.info("%s", "x" * 2 * MOST_BYTES)
    pipe.info("short")

    assert pipe.read_all().splitlines() == [
        b"1 lines of the log were dropped, as stderr did not take them",
        b"short",
    ]


def test_where_nobody_reads_any_more_lines_are_dropped(pipe: Pipe) -> None:
    os.close(pipe.out)
    pipe.info("a")
    assert pipe.handler.writer.flush(PATIENCE_SECONDS)

    assert pipe.handler.writer.dropped == 1
    pipe.out = os.open(os.devnull, os.O_RDONLY)


def test_what_cannot_be_shown_fails_nobody(pipe: Pipe) -> None:
    class Nasty:
        def __str__(self) -> str:
            raise ValueError("no text")

    pipe.info("%s", Nasty())
    pipe.info("%d", "no number")

    first, second = pipe.read_all().splitlines()
    assert first == b"a line of pdgate.test cannot be shown (ValueError): '%s'"
    assert second == b"a line of pdgate.test cannot be shown (TypeError): '%d'"


FORGED = "2026-11-25 10:00:00,000 INFO pdgate.gateway.probe prefill-0 is up"
STRANGE = {
    "a line end": f"x\n{FORGED}",
    "a carriage return": f"x\r{FORGED}",
    "a line of Unicode's": f"x\u2028{FORGED}",
    "a terminal's": "x\x1b]0;owned\x07\x1b[2J",
    "one in eight bits": "x\x9b2J",
    "right to left": "x\u202egol",
    "a tag": "x\U000e0041",
}
RECORDS = [TEXT, logging.BASIC_FORMAT]


@pytest.mark.parametrize("text", RECORDS, ids=["gateway", "engine"])
@pytest.mark.parametrize("said", STRANGE.values(), ids=STRANGE.keys())
def test_what_an_engine_says_is_one_line_of_the_log(text: str, said: str, pipe: Pipe) -> None:
    """As the reason why it is not up, or as a key of a directory."""
    pipe.handler.setFormatter(OneLine(text))
    pipe.info("%s is not up: %s", "p", said)

    line = pipe.read_all().decode()
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    assert "is not up: x\\" in line


@pytest.mark.parametrize("text", RECORDS, ids=["gateway", "engine"])
@pytest.mark.parametrize("said", STRANGE.values(), ids=STRANGE.keys())
def test_of_a_traceback_no_line_looks_like_another_record(text: str, said: str, pipe: Pipe) -> None:
    pipe.handler.setFormatter(OneLine(text))
    try:
        raise ValueError(f"{said}\nINFO:pdgate:all is well")
    except ValueError:
        caught = sys.exc_info()
    pipe.handler.handle(logging.LogRecord("pdgate", 40, __file__, 1, "a bug", (), caught))

    first, *lines = pipe.read_all().decode().splitlines()
    assert first.endswith("a bug")
    assert lines[0] == "Traceback (most recent call last):"
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith(("2026", "INFO:")) for line in lines)


@asynccontextmanager
async def stalled(
    folder: Path, workers: int
) -> AsyncIterator[tuple[subprocess.Popen[bytes], httpx2.AsyncClient]]:
    """`pdgate serve` whose stderr is a full pipe that nobody reads."""
    out, into = os.pipe()
    os.set_blocking(into, False)
    try:
        while True:
            os.write(into, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(into, True)
    engine = Engine(Role.PLAIN)
    async with raw_server(engine.serve) as server:
        command = [sys.executable, "-m", "pdgate", "serve", "--plain", server.url, "--call-log"]
        command += ["--port", "0", "--workers", str(workers), "--log-level", "debug"]
        process = await asyncio.to_thread(
            subprocess.Popen,
            command,
            stderr=into,
            stdout=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(folder)},
        )
        os.close(into)
        try:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            async with httpx2.AsyncClient(
                base_url=line.split()[-1].decode(), trust_env=False, timeout=PATIENCE_SECONDS
            ) as client:
                yield process, client
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
            os.close(out)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
async def test_a_stalled_stderr_stops_neither_calls_nor_sigterm(
    workers: int, tmp_path: Path
) -> None:
    async with stalled(tmp_path, workers) as (process, client):
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await client.get("/ready")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        # Lines of calls, of some 600 bytes each: more than may wait.
        page = ""
        async with asyncio.timeout(3 * PATIENCE_SECONDS):
            while "pdgate_log_lines_dropped_total 0.0" in page or not page:
                for _ in range(100):
                    assert (await client.post(CHAT, json=question(user="x"))).status_code == 200
                page = (await client.get("/metrics")).text
                assert "pdgate_log_lines_dropped_total " in page

        process.send_signal(signal.SIGTERM)
        # Did it take longer than it may, the kernel would have ended it (signals.py).
        code = await asyncio.to_thread(process.wait, PATIENCE_SECONDS)
        assert code == 0


def test_a_process_says_so_too() -> None:
    """What `pdgate serve` and `pdgate engine` set up, and loggers of libraries."""
    for setup in (
        "from pdgate.gateway.logs import log_to_stderr; log_to_stderr('info', 'text')",
        "from pdgate.cluster.stderr import log_to_stderr; log_to_stderr('info')",
    ):
        program = f"{setup}\nimport logging\nlogging.getLogger('x').error('a\\n%s', '\\x1b[2J')"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)

        assert done.stderr.decode().rstrip("\n").endswith("a\\n\\u001b[2J")


def test_the_last_lines_of_a_process_are_written(tmp_path: Path) -> None:
    """Those of threads and of its own last exception, too."""
    program = """if True:
        import logging, threading
        from pdgate.gateway.logs import log_to_stderr
        log_to_stderr("info", "text")
        def fails(): raise KeyError("in a thread")
        thread = threading.Thread(target=fails, name="t1"); thread.start(); thread.join()
        logging.getLogger("pdgate").info("x" * 100_000)
        raise ValueError("the last word")
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)

    assert done.returncode == 1
    said = done.stderr.decode()
    assert "the thread t1 has ended\nTraceback" in said
    assert "x" * 100_000 in said
    assert said.rstrip().endswith("ValueError: the last word")
