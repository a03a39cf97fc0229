"""A prefill engine without a model, as a process: python -m tests.support.kv_pusher shm 0

It speaks vllm-kvt with a mover process, on the KV port of its second argument, and prints that
port and its mover's pid. Then it does what its standard input says, and prints "done":

    expect KEY              the request KEY will be computed
    compute KEY LAYER N     its first N tokens are in that layer's pages (blocks 9 and 2)
    finish KEY N            all layers have N tokens

Pages hold what `FakeCore.write` puts there with seed 1. `Pusher` runs it.
"""

import sys
from contextlib import closing

from pdgate.engine.connector import Keep, Pages
from tests.support.engine_pair import P_BLOCKS, arrival
from tests.support.fake_core import FakeCore
from tests.support.told import ToldWithMover


class Pusher(ToldWithMover):
    """The process, from the outside."""

    def __init__(self, backend: str, kv_port: int = 0) -> None:
        super().__init__("tests.support.kv_pusher", backend, kv_port)

    def do(self, *words: object) -> str:
        said = super().do(*words)
        assert said == "done", said
        return said


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
