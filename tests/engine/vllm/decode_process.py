"""Decode's half of two_workers.py as a process that can be frozen:
python -m tests.engine.vllm.decode_process

    argv    backend, host and port of prefill's KV service

It asks there for the prompt and prints "asked"; to each line of its standard input it answers how
the load has ended, when it has.
"""

import sys
from contextlib import ExitStack

from tests.engine.vllm.two_workers import Engine


def main() -> None:
    backend, host, port = sys.argv[1:]
    with ExitStack() as stack:
        decode = Engine(backend, "decode", stack)
        decode.fetch({"remote_host": host, "remote_port": int(port)})
        print("asked", flush=True)
        for _ in sys.stdin:
            print("failed" if decode.outcome().failed else "well", flush=True)


if __name__ == "__main__":
    main()
