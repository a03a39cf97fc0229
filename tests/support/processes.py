"""Real child processes: started in a session of their own, watched through a log, surely ended.

    with child([sys.executable, "-m", "pdgate", "engine", "--port", str(port)]) as engine:
        engine.wait_for_http(f"http://127.0.0.1:{port}/health", seconds=30)
        ...

A child that dies early, or that keeps someone waiting too long, raises ChildFailed with
the end of its log. When the block fails for another reason, that end is printed, where
pytest shows it. Leaving the block ends the child's whole process group: SIGTERM, then
SIGKILL for what is left after a grace period.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from tests.support.waiting import PATIENCE_SECONDS, pauses

T = TypeVar("T")

POLL_SECONDS = 0.02
TAIL_LINES = 40
# What SIGKILL takes; longer only for orphans whose new parent never asks after them.
KILLED_SECONDS = 2.0

# A proxy from the environment must not stand between a test and its own processes.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ChildFailed(AssertionError):
    """A child ended early, or did not do in time what was waited for."""


class PolledProcess(Protocol):
    """What is used of a `subprocess.Popen`."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int, /) -> None: ...


class Child:
    """One running child, and all that it starts.

    Attributes:
        name: How errors call it.
        log: Its stdout and stderr, in one file.
    """

    def __init__(self, process: PolledProcess, name: str, log: Path) -> None:
        self.process = process
        self.name = name
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    def tail(self, lines: int = TAIL_LINES) -> str:
        """The last lines of what it said."""
        return "\n".join(self._said().splitlines()[-lines:])

    def wait_for_line(self, pattern: str, seconds: float = PATIENCE_SECONDS) -> re.Match[str]:
        """The first match of `pattern`, in any line that it has said so far or soon says."""
        search = re.compile(pattern, re.MULTILINE).search
        return self.wait_until(lambda: search(self._said()), f"a line like {pattern!r}", seconds)

    def wait_for_http(self, url: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Until a GET of `url` answers 200."""
        self.wait_until(lambda: answers_200(url), f"200 at {url}", seconds)

    def wait_until(
        self, question: Callable[[], T | None], what: str, seconds: float = PATIENCE_SECONDS
    ) -> T:
        """The first answer of `question` that is true. Raises ChildFailed."""
        deadline = time.monotonic() + seconds
        for pause in pauses(POLL_SECONDS):
            # Asked before the question, so that the last words of a dead child still count.
            code = self.process.poll()
            if answer := question():
                return answer
            if code is not None:
                raise self._failed(f"ended with {code} before {what}")
            if time.monotonic() > deadline:
                raise self._failed(f"waited {seconds} s in vain for {what}")
            time.sleep(pause)
        raise AssertionError("pauses have no end")

    def wait_for_end(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Its exit status; minus the signal that ended it."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise self._failed(f"still runs after {seconds} s") from None

    def signal(self, number: signal.Signals) -> None:
        """To the child and all of its descendants."""
        # The session outlives its leader while any member does; ours is the only use of its id.
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return

    def end(self, grace_seconds: float = 10) -> None:
        """Nothing of it runs afterwards. Ending twice is fine."""
        self.signal(signal.SIGTERM)
        if not self._group_ends_within(grace_seconds):
            self.signal(signal.SIGKILL)
            self._group_ends_within(KILLED_SECONDS)
        self.process.wait()

    def _group_ends_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self._group_lives():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _group_lives(self) -> bool:
        # Reaps the leader, which as a zombie would keep the group alive.
        self.process.poll()
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _said(self) -> str:
        return self.log.read_text(errors="replace")

    def _failed(self, what: str) -> ChildFailed:
        return ChildFailed(f"{self.name} {what}\n--- {self.log}\n{self.tail()}")


@contextmanager
def child(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    cwd: Path | None = None,
    name: str = "",
    grace_seconds: float = 10,
) -> Iterator[Child]:
    """Runs `command` while the block runs.

    `env` is added to the environment of this process. Without `log`, what the child says
    goes to a temporary file that is removed afterwards.
    """
    words = [str(word) for word in command]
    temporary = log is None
    if log is None:
        handle, path = tempfile.mkstemp(prefix="pdgate-child-", suffix=".log")
        os.close(handle)
        log = Path(path)
    with log.open("wb") as out:
        process = subprocess.Popen(
            words,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            start_new_session=True,
        )
    try:
        with ended(Child(process, name or Path(words[0]).name, log), grace_seconds) as running:
            yield running
    finally:
        if temporary:
            log.unlink()


@contextmanager
def ended(running: Child, grace_seconds: float = 10) -> Iterator[Child]:
    """One that leads a session of its own, ended as the block ends."""
    try:
        yield running
    except BaseException:
        print(f"--- {running.name}: {running.log}\n{running.tail()}", file=sys.stderr)
        raise
    finally:
        running.end(grace_seconds)


def answers_200(url: str) -> bool:
    try:
        with _direct.open(url, timeout=2) as answer:
            status: int = answer.status
            return status == 200
    except (urllib.error.URLError, OSError):
        return False
