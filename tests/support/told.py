"""A process of the tests that does what its standard input says, a line at a time, and answers each on standard output.

    class Owner(Told): ...
    with Owner("tests.support.kv_owner", "tcp", 4096) as owner:
        said = owner.answer()          # what it prints first
        owner.do("expect", key)        # -> its answer

When the block ends it is killed, whatever it is doing.
"""

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Self

from tests.support.freezing import freeze, thaw

ROOT = Path(__file__).parents[2]


class Told:
    def __init__(self, module: str, *words: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, words)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def do(self, *words: object) -> str:
        self.say(*words)
        return self.answer()

    def say(self, *words: object) -> None:
        """Without waiting for the answer, which has to be fetched later."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def freeze(self) -> None:
        freeze(self._process.pid)

    def thaw(self) -> None:
        thaw(self._process.pid)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # What it was told while it was frozen is lost with it.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()


class ToldWithMover(Told):
    """It prints the port of its KV service and its mover's pid first."""

    def __init__(self, module: str, *words: object) -> None:
        super().__init__(module, *words)
        self.port, self.mover_pid = map(int, self.answer().split())

    def freeze_mover(self) -> None:
        freeze(self.mover_pid)

    def thaw_mover(self) -> None:
        thaw(self.mover_pid)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        # A mover that a test left frozen would never find out that the process is gone.
        with contextlib.suppress(ProcessLookupError):
            self.thaw_mover()
