"""A node as a process that can be killed or frozen: python -m tests.transfer.messenger.node_process

    argv    backend, port of its KV service (0: any), seconds of its leases

It prints its port, then does what its standard input says and answers each line:

    expect KEY TOKENS         all of the prompt is in its pages, but nobody was told
    computed KEY TOKENS LAYER...
    kept KEY TOKENS
    load KEY PORT TOKENS push|pull
    result                    waits for the end of a load: its error, or "well"
    freed                     waits for a request whose pages were released: its key
    used                      blocks that are not free

`NodeProcess` runs it.
"""

import contextlib
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from pdgate.transfer.messenger.process_mover import ProcessMover
from tests.support.freezing import freeze, thaw
from tests.support.kv_layouts import PLAIN
from tests.transfer.messenger.nodes import SECONDS, Node

ROOT = Path(__file__).parents[3]


class NodeProcess:
    """The process, from the outside."""

    def __init__(self, backend: str, port: int = 0, lease_seconds: float = SECONDS) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.transfer.messenger.node_process"),
                *(backend, str(port), str(lease_seconds)),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port, self.mover_pid = map(int, self._process.stdout.readline().split())

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

    def freeze_mover(self) -> None:
        freeze(self.mover_pid)

    def thaw_mover(self) -> None:
        thaw(self.mover_pid)

    def kill(self) -> None:
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
        # What it was told while it was frozen is lost with it.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()


def obey(node: Node, words: list[str]) -> str:
    match words:
        case ["expect", key, tokens]:
            node.expect(key, int(tokens))
        case ["computed", key, tokens, *layers]:
            node.computed(key, int(tokens), [int(layer) for layer in layers])
        case ["kept", key, tokens]:
            node.kept(key, int(tokens))
        case ["load", key, port, tokens, mode]:
            node.load(
                key, int(port), int(tokens), push=mode == "push", wait_seconds=node.lease_seconds
            )
        case ["result"]:
            return node.result() or "well"
        case ["freed"]:
            return node.freed.get(timeout=SECONDS)
        case ["used"]:
            return str(node.used)
        case _:
            raise AssertionError(words)
    return "done"


def main() -> None:
    backend, port, lease_seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    with closing(
        Node(backend, PLAIN, mover="process", port=port, lease_seconds=lease_seconds)
    ) as node:
        (mover,) = node.movers
        assert isinstance(mover, ProcessMover)
        print(node.port, mover.pid, flush=True)
        for line in sys.stdin:
            print(obey(node, line.split()), flush=True)


if __name__ == "__main__":
    main()
