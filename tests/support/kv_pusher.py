"""A prefill engine without a model, as a process: python -m tests.support.kv_pusher shm 0

It speaks vllm-kvt with a mover process, on the KV port of its second argument, and prints that
port and its mover's pid. Then it does what its standard input says, and prints "done":

    expect KEY              the request KEY will be computed
    compute KEY LAYER N     its first N tokens are in that layer's pages (blocks 9 and 2)
    finish KEY N            all layers have N tokens

Pages hold what `FakeCore.write` puts there with seed 1. `Pusher` runs it.
"""

import contextlib
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from pdgate.engine.connector import Keep, Pages
from tests.support.engine_pair import P_BLOCKS, arrival
from tests.support.fake_core import FakeCore
from tests.support.freezing import freeze, thaw

ROOT = Path(__file__).parents[2]


class Pusher:
    """The process, from the outside."""

    def __init__(self, backend: str, kv_port: int = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.kv_pusher", backend, str(kv_port)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port, self.mover_pid = map(int, self._process.stdout.readline().split())

    def do(self, *words: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def freeze(self) -> None:
        freeze(self._process.pid)

    def freeze_mover(self) -> None:
        freeze(self.mover_pid)

    def thaw_mover(self) -> None:
        thaw(self.mover_pid)

    def kill(self) -> None:
        """The mover is left to find out for itself."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.kill()
        # A mover that a test left frozen would never find out.
        with contextlib.suppress(ProcessLookupError):
            self.thaw_mover()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()


def obey(core: FakeCore, words: list[str]) -> None:
    match words:
        case ["expect", key]:
            asked = arrival(key, key, params={"do_remote_decode": True})
            assert isinstance(core.connector.plan(asked), Keep)
        case ["compute", key, layer, tokens]:
            core.connector.layer_computed(key, int(layer), P_BLOCKS, int(tokens))
        case ["finish", key, tokens]:
            pages = Pages(P_BLOCKS, int(tokens))
            core.connector.kept(key, Keep(core.lease_seconds), pages, None, "length")
        case _:
            raise AssertionError(words)


def main() -> None:
    backend, port = sys.argv[1], int(sys.argv[2])
    core = FakeCore(
        backend, "vllm-kvt", "prefill", kv_port=port, mover="process", prefills_at_once=False
    )
    core.write(P_BLOCKS, seed=1)
    with closing(core):
        print(core.connector.kv_address[1], core.mover_pid, flush=True)
        for line in sys.stdin:
            obey(core, line.split())
            print("done", flush=True)


if __name__ == "__main__":
    main()
