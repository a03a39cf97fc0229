"""Engines as forks of a process that has imported vLLM (preloaded.py), in place of three imports each."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.processes import Child, ended
from tests.support.waiting import InVain, wait_until

PRELOADED: Final = Path(__file__).parent / "preloaded.py"
FOREVER: Final = 10**9


class EngineFork:
    """A child of another process, to be asked as a `subprocess.Popen` is."""

    def __init__(self, pid: int, ended: Path) -> None:
        self.pid = pid
        self._ended = ended

    def poll(self) -> int | None:
        try:
            return int(self._ended.read_text())
        except FileNotFoundError:
            return None

    def wait(self, timeout: float | None = None) -> int:
        limit = FOREVER if timeout is None else timeout
        try:
            wait_until(lambda: self.poll() is not None, f"the end of {self.pid}", limit)
        except InVain:
            raise subprocess.TimeoutExpired(str(self.pid), limit) from None
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


@dataclass(frozen=True, slots=True)
class PreloadedVllm:
    process: subprocess.Popen[str]

    @contextmanager
    def serve(
        self, words: Sequence[str], env: Mapping[str, str], log: Path, name: str
    ) -> Iterator[Child]:
        """`vllm serve WORDS` while the block runs; `env` is added to that of the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        log.touch()
        path = log.with_suffix(".ended")
        request = {
            "command": ["serve", *words],
            "env": {**env},
            "log": str(log),
            "ended": str(path),
        }
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        pid = self.process.stdout.readline()
        assert pid, f"vLLM cannot be imported: see {log.parent / 'preloaded.log'}"
        with ended(Child(EngineFork(int(pid), path), name, log)) as running:
            yield running


@contextmanager
def preloaded(python: Path, env: Mapping[str, str], logs: Path) -> Iterator[PreloadedVllm]:
    with (
        (logs / "preloaded.log").open("w") as said,
        subprocess.Popen(
            [python, PRELOADED],
            env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        ) as process,
    ):
        # It ends as its requests do.
        yield PreloadedVllm(process)
