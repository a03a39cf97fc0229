"""The processes of a vLLM engine, and what becomes of it when one of them stops."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.end_to_end.vllm.engines import Engine
from tests.support.freezing import freeze, thaw


def part_of(engine: Engine, part: str) -> int:
    """The pid of "API server", or of what calls itself so below it: "EngineCore", "Worker"."""
    if part == "API server":
        return engine.process.pid
    named = [pid for pid in _below(engine) if part in Path(f"/proc/{pid}/cmdline").read_text()]
    assert len(named) == 1, (part, named)
    return named[0]


def _below(engine: Engine) -> list[int]:
    found = [engine.process.pid]
    for pid in found:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found[1:]


@contextmanager
def frozen(engine: Engine, part: str) -> Iterator[None]:
    pid = part_of(engine, part)
    freeze(pid)
    try:
        yield
    finally:
        thaw(pid)


@contextmanager
def frozen_behind(engine: Engine) -> Iterator[None]:
    """All but the API server; also who writes KV to others."""
    with ExitStack() as stack:
        for pid in _below(engine):
            freeze(pid)
            stack.callback(thaw, pid)
        yield
