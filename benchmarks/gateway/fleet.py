"""Two mock engines and the gateways in front of them, as processes of this machine.

With pins, engines and load run on the first core and gateways on the second, so that no gateway
waits for what measures it.
"""

import os
import socket
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gateway.programs import Programs
from benchmarks.gateway.targets.base import KEY, Place, Target, folder_of
from tests.support.processes import Child, child

START_SECONDS = 90
ENGINE_SECONDS = 10

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Cores:
    """How processes get a core.

    Attributes:
        load: That of engines and load; None: whichever the system likes.
        gateways: That of gateways.
        first: Whether they run before all other programs while they are measured.
    """

    load: int | None = None
    gateways: int | None = None
    first: bool = False

    @classmethod
    def two(cls, first: bool = False) -> "Cores":
        """The first two that we may use; there have to be two."""
        load, gateways, *_ = sorted(os.sched_getaffinity(0))
        return cls(load, gateways, first)


def on(core: int | None, command: Sequence[str]) -> list[str]:
    return list(command) if core is None else ["taskset", "-c", str(core), *command]


@dataclass(frozen=True, slots=True)
class Engine:
    url: str
    pid: int

    def set(self, settings: Mapping[str, int]) -> None:
        asked = {"pace_us": 0, "in_step": 0, "prefill_us": 0, "event_bytes": 250, **settings}
        self.get("/mock/set?" + "&".join(f"{name}={value}" for name, value in asked.items()))

    def get(self, path: str) -> bytes:
        with _direct.open(self.url + path, timeout=ENGINE_SECONDS) as answer:
            return bytes(answer.read())


@dataclass(frozen=True, slots=True)
class Gateway:
    """One that runs."""

    target: Target
    port: int
    process: Child

    def pids(self) -> list[int]:
        """Of all its processes."""
        return descendants(self.process.pid)


@dataclass(frozen=True, slots=True)
class Fleet:
    programs: Programs
    cache: Path
    cores: Cores
    prefill: Engine
    decode: Engine

    @contextmanager
    def gateway(self, target: Target) -> Iterator[Gateway]:
        """One that answers. Raises ChildFailed when it does not get there."""
        port, spare_port = free_ports(2)
        folder = folder_of(target, self.cache)
        place = Place(folder, port, spare_port, self.prefill.url, self.decode.url)
        command = on(self.cores.gateways, target.command(place))
        environment = {**os.environ, **dict(target.environment)}
        with child(command, env=environment, name=target.name) as process:
            process.wait_until(lambda: _answers(port), "an answer", START_SECONDS)
            yield Gateway(target, port, process)


@contextmanager
def fleet(programs: Programs, cache: Path, cores: Cores) -> Iterator[Fleet]:
    """The engines run; gateways are started when they are asked for."""
    with ExitStack() as running:
        prefill, decode = (
            _engine(running, programs, name, cores) for name in ("prefill", "decode")
        )
        yield Fleet(programs, cache, cores, prefill, decode)


def _engine(running: ExitStack, programs: Programs, name: str, cores: Cores) -> Engine:
    process = running.enter_context(child(on(cores.load, [str(programs.engine)]), name=name))
    port = process.wait_for_line(r"^(\d+)$", ENGINE_SECONDS)[1]
    return Engine(f"http://127.0.0.1:{port}", process.pid)


def _answers(port: int) -> bool:
    """Whether it serves calls by now. What it answers is looked at later."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        data=b'{"model":"mock","prompt":"@0000000000000000 up?","max_tokens":1}',
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"},
    )
    try:
        with _direct.open(request, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        taken = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in taken]


def descendants(pid: int) -> list[int]:
    """It and all that it started."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue  # It has ended meanwhile.
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found
