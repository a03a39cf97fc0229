"""A node as a process that can be killed or frozen: python -m tests.transfer.messenger.node_process

    argv    backend, port of its KV service (0: any), seconds of its leases

It prints its port, then does what its standard input says and answers each line:

    expect KEY TOKENS         all of the prompt is in its pages, but nobody was told
    computed KEY TOKENS LAYER...
    kept KEY TOKENS
    load KEY PORT TOKENS push|pull
    result                    waits for the end of a load: its error, or "well"
    freed                     waits for a request whose pages were released: its key
    over                      waits for a request whose pages were released, or that was ended while it was computed
    used                      blocks that are not free

`NodeProcess` runs it.
"""

import sys
from contextlib import closing

from pdgate.transfer.messenger.process_mover import ProcessMover
from tests.support.kv_layouts import PLAIN
from tests.support.told import ToldWithMover
from tests.support.waiting import wait_until
from tests.transfer.messenger.nodes import SECONDS, Node


class NodeProcess(ToldWithMover):
    """The process, from the outside."""

    def __init__(self, backend: str, port: int = 0, lease_seconds: float = SECONDS) -> None:
        super().__init__("tests.transfer.messenger.node_process", backend, port, lease_seconds)


def obey(node: Node, words: list[str]) -> str:
    match words:
        case ["expect", key, tokens]:
            node.expect(key, int(tokens))
        case ["computed", key, tokens, *layers]:
            node.computed(key, int(tokens), [int(layer) for layer in layers])
        case ["kept", key, tokens]:
            # Unless its push has failed, which has ended it.
            if key in node.blocks:
                node.kept(key, int(tokens))
        case ["load", key, port, tokens, mode]:
            node.load(
                key, int(port), int(tokens), push=mode == "push", wait_seconds=node.lease_seconds
            )
        case ["result"]:
            return node.result() or "well"
        case ["freed"]:
            return node.freed.get(timeout=SECONDS)
        case ["over"]:
            wait_until(lambda: not (node.freed.empty() and node.aborted.empty()), "its end")
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
