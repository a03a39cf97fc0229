"""Each wait for a device, taken away: then a hand-over brings stale bytes, or says that it is done
while it is not. The table of docs/device-memory.md is this list, and a wait that is not in it fails a test.
"""

import ast
import importlib
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pdgate.transfer import registry
from pdgate.transfer.base import Range
from pdgate.transfer.device import staging
from pdgate.transfer.device.base import DeviceStream
from pdgate.transfer.messenger import incoming
from pdgate.transfer.runtime.regions import LocalMemory
from tests.support import waiting
from tests.support.kv_devices import Buffer
from tests.support.kv_owner import pattern
from tests.transfer.device.nodes import new_device
from tests.transfer.device.test_hand_over import MODES, at_once, behind_a_step, hand_over

SECONDS = waiting.PATIENCE_SECONDS
ROOT = Path(__file__).parents[3]


def write_is_complete(backend: str) -> None:
    """What a write reports as done is on the other device, without anything happening meanwhile."""
    ours, theirs = new_device(0), new_device(1)
    length = 3 * staging.BUFFER_BYTES + 5
    with closing(registry.load(backend)) as one, closing(registry.load(backend)) as other:
        full = Buffer(one, ours, pattern(251) * (length // 251) + pattern(length % 251))
        empty = Buffer(other, theirs, bytes(length))
        whole = [Range(0, 0, length)]
        one.write(full.region, empty.region.descriptor, whole, SECONDS).wait(SECONDS)
        # Not compared in the assertion: with CI set, pytest explains each byte that differs, for minutes.
        arrived = theirs.now(empty.memory) == ours.now(full.memory)
        assert arrived


def small(backend: str) -> None:
    """One buffer's worth: nothing behind it moves the last copy along."""
    ours, theirs = new_device(0), new_device(1)
    with closing(registry.load(backend)) as one, closing(registry.load(backend)) as other:
        full, empty = Buffer(one, ours, pattern(4096)), Buffer(other, theirs, bytes(4096))
        region = empty.region
        assert isinstance(region, LocalMemory)
        assert region.arrivals is not None
        landed: list[bytes] = []
        count = region.arrivals.count

        def counted(immediate: int) -> None:
            landed.append(theirs.now(empty.memory))
            count(immediate)

        region.arrivals.count = counted  # type: ignore[method-assign]
        arrival = other.expect(region, 1, 1, SECONDS)
        there = region.descriptor
        one.write(full.region, there, [Range(0, 0, 4096)], SECONDS, 1).wait(SECONDS)
        arrival.wait(SECONDS)
        arrived = landed == [pattern(4096)]
        assert arrived


def cancelled(backend: str) -> None:
    """A transfer that has settled has nothing left in any stream of ours."""
    ours, theirs = new_device(0), new_device(1)
    length = 4 * staging.BUFFER_BYTES
    reached, go_on = threading.Event(), threading.Event()
    calls = itertools.count(1)
    gather = theirs.gather

    def third_waits(
        stream: DeviceStream, to: memoryview, pieces: Sequence[tuple[int, int]]
    ) -> None:
        if next(calls) == 3:
            reached.set()
            assert go_on.wait(SECONDS)
        gather(stream, to, pieces)

    with closing(registry.load(backend)) as one, closing(registry.load(backend)) as other:
        mine, its = Buffer(one, ours, bytes(length)), Buffer(other, theirs, bytes(length))
        theirs.gather = third_waits  # type: ignore[method-assign]
        transfer = one.read(mine.region, its.region.descriptor, [Range(0, 0, length)], SECONDS)
        try:
            assert reached.wait(SECONDS)
            waiting.wait_until(lambda: not ours.idle, "a copy that has not happened")
            transfer.cancel()
            assert transfer.settle(SECONDS)
            assert ours.idle
        finally:
            go_on.set()


def cancelled_between_allocations() -> None:
    """As `cancelled`, where the device copies from the peer's memory by itself: it has some of the pages still to copy."""
    ours, theirs = new_device(0), new_device(1)
    pages, size = 64, 512
    reached, go_on = threading.Event(), threading.Event()
    copy = ours.copy

    def then_waits(stream: DeviceStream, pieces: Sequence[tuple[int, int, int]]) -> None:
        copy(stream, pieces)
        reached.set()
        assert go_on.wait(SECONDS)

    with closing(registry.load("cuda-ipc")) as one, closing(registry.load("cuda-ipc")) as other:
        mine, its = (
            Buffer(one, ours, bytes(pages * size)),
            Buffer(other, theirs, bytes(pages * size)),
        )
        ours.copy = then_waits  # type: ignore[method-assign]
        turned = [Range(at * size, (pages - 1 - at) * size, size) for at in range(pages)]
        transfer = one.read(mine.region, its.region.descriptor, turned, SECONDS)
        try:
            assert reached.wait(SECONDS)
            transfer.cancel()
        finally:
            go_on.set()
        assert transfer.settle(SECONDS)
        assert ours.idle


@dataclass(frozen=True)
class Wait:
    """
    Attributes:
        what: Waits for what, and who would be wrong without it.
        module, function: Where it is.
        line: Its source, which is replaced by `instead`.
        scenario: What fails without it.
    """

    what: str
    module: str
    function: str
    line: str
    scenario: Callable[[], None]
    instead: str = "pass"


WAITS = [
    Wait(
        "a layer's event, before its pages are pushed",
        "messenger.later",
        "Later._run",
        "if not wait(after, math.inf, lambda: self._closed):",
        lambda: hand_over("shm", MODES["push by layer"]),
        "if False:",
    ),
    Wait(
        "the last event, before a prompt is pushed as a whole",
        "messenger.push_table",
        "PushTable.kept",
        "if after is None:",
        lambda: at_once("shm", offered=False),
        "if True:",
    ),
    Wait(
        "the last event, before a reader is offered the pages",
        "messenger.service",
        "_Conversation._await",
        "if offer.after is None:",
        lambda: at_once("shm", offered=True),
        "if True:",
    ),
    Wait(
        "decode's last use of the pages, before it asks for them",
        "messenger.loads",
        "Loads._fill",
        "if after is not None and not wait(after, until, lambda: interrupt.fired):",
        lambda: behind_a_step("shm", MODES["pull"]),
        "if False:",
    ),
    Wait(
        "the copy into a buffer, before it is sent (tcp)",
        "device.staging",
        "Lane.out",
        "self._await(event)",
        lambda: write_is_complete("tcp"),
    ),
    Wait(
        "the copy into a slot, before its owner is told (shm)",
        "device.staging",
        "Lane.out",
        "self._await(event)",
        lambda: write_is_complete("shm"),
    ),
    Wait(
        "the copy out of a buffer, before it is filled again",
        "device.staging",
        "Lane.into",
        "self._await(before)",
        lambda: write_is_complete("tcp"),
    ),
    Wait(
        "the last copies out of the buffers, before the write is counted (tcp)",
        "device.staging",
        "Lane.into",
        "self._await(event)",
        lambda: small("tcp"),
    ),
    Wait(
        "the copy out of a slot, before it is answered and counted (shm)",
        "shm.windows",
        "WindowRegion._move",
        "wait(stream.record(), math.inf, lambda: False)",
        lambda: small("shm"),
    ),
    Wait(
        "the copy between two allocations, before the write is counted (cuda-ipc)",
        "cuda_ipc.backend",
        "CudaIpcBackend.move",
        'if not wait(stream.record(), float("inf"), lambda: transfer.over):',
        lambda: small("cuda-ipc"),
        "if False:",
    ),
    Wait(
        "all copies of a transfer that was cancelled, before its pages are used again (tcp)",
        "device.staging",
        "Lane.left_quiet",
        "quiet(self._stream)",
        lambda: cancelled("tcp"),
    ),
    Wait(
        "all copies of a transfer that was cancelled, before its pages are used again (shm)",
        "shm.staged",
        "StagedWindow._lane",
        "with lane.left_quiet():",
        lambda: cancelled("shm"),
        "if True:",
    ),
    Wait(
        "all copies of a transfer that was cancelled, before its pages are used again (cuda-ipc)",
        "cuda_ipc.backend",
        "_stream",
        "quiet(stream)",
        cancelled_between_allocations,
    ),
]

MEANS: dict[tuple[str, str, str], str] = {
    (
        "messenger.service",
        "_Conversation._offer",
        "self._await(offer, min(_within(ask.read_seconds), self._left()))",
    ): ("calls the function whose wait is listed"),
    (
        "device.base",
        "DeviceStream.synchronize",
        "self.record().synchronize()",
    ): "what waits are made of",
    (
        "device.base",
        "Device.put",
        "stream.synchronize()",
    ): "for tests and benchmarks, which call it",
    ("device.base", "Device.get", "stream.synchronize()"): "the same",
    ("device.staging", "quiet", "stream.synchronize()"): "what waits are made of",
    ("device.staging", "Lane._await", "if not wait(event, math.inf, self.stop):"): "the same",
    (
        "device.staging",
        "Staging.taken",
        "with lane.left_quiet():",
    ): "the block whose end is Lane.left_quiet's wait",
    (
        "messenger.service",
        "_Conversation._await",
        "if wait(offer.after, time.monotonic() + seconds, self._line.gone):",
    ): ("the wait that the line of WAITS lets in"),
}
"""Where else it is waited for a device, and why no row of WAITS takes that away."""

WAITING = {"wait", "quiet", "synchronize", "left_quiet", "_await"}
"""Names by which transfer/ waits for a device; `wait` where it is device/base.py's."""
KINDS_OF_DEVICES = {"device.cuda", "device.fake"}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "TILE_TOKENS", 8)


@pytest.mark.parametrize("one", WAITS, ids=[one.what for one in WAITS])
def test_without_this_wait_a_test_fails(one: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    one.scenario()

    take_away(one, monkeypatch)

    with pytest.raises(AssertionError):
        one.scenario()


def take_away(one: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(f"pdgate.transfer.{one.module}")
    source = inspect.getsource(module)
    assert source.count(one.line) >= 1, f"{one.line} is not in {one.module} any more"
    owner, _, name = one.function.rpartition(".")
    there: Any = getattr(module, owner) if owner else module
    old = inspect.getsource(getattr(there, name))
    assert old.count(one.line) == 1
    copy = ModuleType(module.__name__)
    changed = source.replace(old, old.replace(one.line, one.instead))
    exec(compile(changed, module.__file__ or "", "exec"), copy.__dict__)  # noqa: S102
    found = inspect.getattr_static(getattr(copy, owner) if owner else copy, name)
    monkeypatch.setattr(there, name, found)


def waits_in(module: str, source: str) -> Iterator[tuple[str, str, str]]:
    """Module, function and line of each call that waits for a device."""
    tree, lines = ast.parse(source), source.splitlines()
    ours = any(
        isinstance(node, ast.ImportFrom)
        and node.module == "pdgate.transfer.device.base"
        and any(name.name == "wait" for name in node.names)
        for node in ast.walk(tree)
    )

    def look(node: ast.AST, within: str) -> Iterator[tuple[str, str, str]]:
        for child in ast.iter_child_nodes(node):
            inner = within
            if isinstance(child, ast.ClassDef | ast.FunctionDef):
                inner = f"{within}.{child.name}".lstrip(".")
            if isinstance(child, ast.Call):
                named = child.func
                name = named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", "")
                bare = isinstance(named, ast.Name)
                if name in WAITING and (name != "wait" or (bare and ours)):
                    yield module, within, lines[child.lineno - 1].strip()
            yield from look(child, inner)

    yield from look(tree, "")


def every_wait() -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    for file in sorted((ROOT / "transfer").rglob("*.py")):
        module = ".".join(file.relative_to(ROOT / "transfer").with_suffix("").parts)
        if module not in KINDS_OF_DEVICES:
            found += waits_in(module, file.read_text())
    return found


def test_no_wait_is_missing_from_the_list() -> None:
    rows = {(one.module, one.function, one.line) for one in WAITS}
    found = every_wait()

    assert [one for one in found if one not in rows and one not in MEANS] == []
    assert len(found) == len(set(found)), "two of one function have the same words"
    assert set(MEANS) <= set(found), "a reason is left whose wait is gone"


def test_the_page_has_the_same_list() -> None:
    page = (ROOT / "docs/device-memory.md").read_text()
    missing = [one.what for one in WAITS if one.what not in page]
    assert not missing
