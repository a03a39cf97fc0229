"""The processes of a vLLM engine, and what becomes of it when one of them stops."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.end_to_end.vllm.engines import Engine
from tests.support.freezing import freeze, thaw


def part_of(engine: Engine, part: str) -> int:
    """The pid of "API server", or of what calls itself so below it: "EngineCore", "Worker"."""
    if part == "API server":
        return engine.process.pid
    below = [engine.process.pid]
    for pid in below:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            below += map(int, (thread / "children").read_text().split())
    named = [pid for pid in below[1:] if part in Path(f"/proc/{pid}/cmdline").read_text()]
    assert len(named) == 1, (part, named)
    return named[0]


@contextmanager
def frozen(engine: Engine, part: str) -> Iterator[None]:
    pid = part_of(engine, part)
    freeze(pid)
    try:
        yield
    finally:
        thaw(pid)
