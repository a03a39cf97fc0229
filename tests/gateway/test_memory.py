"""A process that keeps its memory does not ask the kernel for the same pages again and again."""

import json
import subprocess
import sys

ROUNDS = 50
SIZE = 1 << 20

PROGRAM = f"""
import gc, json, resource, sys
from pdgate.gateway import memory

if sys.argv[1] == "keep":
    memory.keep()

def round():
    # As a body comes in pieces, is joined, and written on with something put in.
    pieces = [bytes({SIZE} // 8) for _ in range(8)]
    whole = b"".join(pieces)
    return len(whole + b"}}")

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

round()
before = faults()
for _ in range({ROUNDS}):
    round()
print(json.dumps({{"faults": faults() - before, "frozen": gc.get_freeze_count()}}))
"""


def told(how: str) -> dict[str, int]:
    out = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, int] = json.loads(out)
    return found


def test_pages_of_bodies_are_used_again() -> None:
    pages = ROUNDS * SIZE // 4096

    assert told("keep")["faults"] < pages / 10


def test_what_was_imported_is_not_searched_for_garbage() -> None:
    assert told("keep")["frozen"] > 1000
    assert told("leave")["frozen"] == 0


ONLY_FOR_SOME = {
    "difflib",
    "httpx2",
    "nacl",
    "opentelemetry.sdk",
    "pdgate.gateway.adaptive",
    "pdgate.gateway.admin.routes",
    "pdgate.gateway.console",
    "pdgate.gateway.sync.replicas",
    "pdgate.gateway.tracing.export",
    "redis",
    "tomllib",
    "zmq",
}
"""What a gateway without these features does without; what is imported stays in memory."""

SERVING = f"""
import sys
from pdgate.gateway import server
from pdgate.gateway.config import load

server.build(load(None, {{"instances": [
    {{"role": role, "url": "http://127.0.0.1:1", "protocol": "vllm-nixl"}}
    for role in ("prefill", "decode")
]}}))
print(*sorted({ONLY_FOR_SOME!r} & sys.modules.keys()))
"""


def test_what_only_some_gateways_need_is_imported_by_no_other() -> None:
    said = subprocess.run(
        [sys.executable, "-c", SERVING], capture_output=True, text=True, check=True
    )

    assert said.stdout.split() == []
