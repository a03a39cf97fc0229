"""The cases and their table; see __init__.py.

python -m benchmarks.device --device cuda:0 --table FILE     on a GPU: tools/on_gpu.sh does it
python -m benchmarks.device --smoke                          on the fake: that it works
"""

import argparse
import datetime
import platform
import random
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from benchmarks import page
from benchmarks.device.owner import SECONDS, Other, opened
from benchmarks.device.push import compute, push
from pdgate.transfer import registry
from pdgate.transfer.base import Backend, Descriptor, Range, Region, TransferError
from pdgate.transfer.device.base import Device
from pdgate.transfer.device.opening import open_device

MIB = 1 << 20
ROUNDS = 7

Row = tuple[str, str, str, str]


class Bench:
    """Bytes are divided by `shrink`, for the fake device."""

    def __init__(self, device: Device, shrink: int, rounds: int) -> None:
        self._device = device
        self._shrink = shrink
        self._rounds = rounds

    def rows(self) -> Iterator[Row]:
        shared = yield from self._probe()
        if shared:
            yield from self._between_devices()
        yield from self._staged()
        yield from self._pushes(["cuda-ipc", "shm", "tcp"] if shared else ["shm", "tcp"])

    def _probe(self) -> Generator[Row, None, bool]:
        """First of all: whether this driver, in this container, lets processes share."""
        works = False
        for by in ("handle", "fd"):
            try:
                with closing(registry.load("cuda-ipc")) as backend:
                    local = opened(backend, self._device.name, 4096)
                    with Other("cuda-ipc", self._device.name, 4096, by) as other:
                        _move(backend, local, other.descriptor, [Range(0, 0, 4096)])
                said, works = "works", works or by == "handle"
            except (TransferError, ChildProcessError, ValueError) as error:
                said = str(error)
            yield f"memory opened by another process, by {by}", said, "works", _ok(said == "works")
        return works

    def _between_devices(self) -> Iterator[Row]:
        whole, some, piece = (size // self._shrink for size in (1024 * MIB, 64 * MIB, 32 << 10))
        pages = 2048 // min(self._shrink, 32)
        with closing(registry.load("cuda-ipc")) as backend:
            local = opened(backend, self._device.name, whole)
            with Other("cuda-ipc", self._device.name, whole) as other:
                there = other.descriptor

                def moved(ranges: Sequence[Range]) -> float:
                    return self._median(lambda: _move(backend, local, there, ranges))

                copy, ours = self._copy(whole), moved([Range(0, 0, whole)])
                yield _ratio("cuda-ipc, 1 GiB: share of a copy's rate", copy / ours, 0.85)
                copy, ours = self._copy(some), moved([Range(0, 0, some)])
                over = (ours - copy) * 1e6
                yield "cuda-ipc, 64 MiB: over a copy", f"{over:.0f} µs", "50 µs", _ok(over <= 50)
                order = random.Random(1).sample(range(pages), pages)
                scattered = [Range(i * piece, to * piece, piece) for i, to in enumerate(order)]
                copy, ours = self._copy(pages * piece), moved(scattered)
                yield _ratio("cuda-ipc, 2048 pages of 32 KiB, scattered", copy / ours, 0.6)

    def _staged(self) -> Iterator[Row]:
        size = 256 * MIB // self._shrink
        link = size / self._link(size)
        for name in ("shm", "tcp"):
            rates = {}
            for place in ("host", self._device.name):
                with closing(registry.load(name)) as backend:
                    local = opened(backend, place, size)
                    with Other(name, place, size) as other:
                        ranges, there = [Range(0, 0, size)], other.descriptor
                        rates[place] = size / self._median(
                            lambda b=backend, m=local, t=there, r=ranges: _move(b, m, t, r)  # type: ignore[misc]
                        )
            host, staged = rates["host"], rates[self._device.name]
            rate = f"{staged / 1e9:.1f} GB/s (host {host / 1e9:.1f}, link {link / 1e9:.1f})"
            share = staged / min(host, link)
            yield f"{name}, staged: {rate}", f"{share:.2f}", "0.80", _ok(share >= 0.8)

    def _pushes(self, backends: Sequence[str]) -> Iterator[Row]:
        """32 layers of 8,192 tokens: 8 KV heads of 128 elements, bf16, K and V."""
        layers, size = 32, 32 * MIB // self._shrink
        layer, made_of = compute(self._device, size)
        for name in backends:
            with closing(registry.load(name)) as backend:
                local = opened(backend, self._device.name, layers * size)
                with Other(name, self._device.name, layers * size) as other:
                    found = push(backend, local, other, layer, layers, size)
            what = f"{name}, by layer beside {made_of} of {found.alone * 1e3:.0f} ms"
            if name == "tcp":
                whole = (found.beside + found.left) / max(found.alone, found.after)
                yield f"{what}: whole", f"{whole:.2f}", "1.05", _ok(whole <= 1.05)
            else:
                yield _ratio(f"{what}: hidden", found.hidden, 0.9)
            slower = found.beside / found.alone
            yield f"{what}: prefill", f"{slower:.3f}", "1.030", _ok(slower <= 1.03)
            told = found.told * 1e6
            yield f"{what}: the model's thread", f"{told:.1f} µs", "10 µs", _ok(told <= 10)

    def _copy(self, size: int) -> float:
        """Seconds, on the device."""
        memory, stream = self._device.allocate(2 * size), self._device.stream()

        def once() -> None:
            self._device.copy(stream, [(memory.address + size, memory.address, size)])
            stream.synchronize()

        try:
            return self._median(once)
        finally:
            stream.close()
            self._device.free(memory)

    def _link(self, size: int) -> float:
        """Seconds from pinned memory of the host, in buffers as staging has them."""
        piece = min(size, 4 * MIB)
        memory, stream = self._device.allocate(size), self._device.stream()
        buffer = self._device.pinned(piece)

        def once() -> None:
            for at in range(0, size, piece):
                part = buffer.view[: min(piece, size - at)]
                self._device.to_device(stream, memory.address + at, part)
            stream.synchronize()

        try:
            return self._median(once)
        finally:
            stream.close()
            buffer.close()
            self._device.free(memory)

    def _median(self, once: Callable[[], object]) -> float:
        once()
        found = []
        for _ in range(self._rounds):
            began = time.perf_counter()
            once()
            found.append(time.perf_counter() - began)
        return statistics.median(found)


def _move(backend: Backend, local: Region, there: Descriptor, ranges: Sequence[Range]) -> None:
    backend.read(local, there, ranges, SECONDS).wait(SECONDS)


def _ratio(what: str, found: float, bar: float) -> Row:
    return what, f"{found:.2f}", f"{bar:.2f}", _ok(found >= bar)


def _ok(kept: bool) -> str:
    return "yes" if kept else "no"


def main() -> None:
    words = argparse.ArgumentParser(description="KV between devices, beside a bare copy")
    words.add_argument("--device", default="fake:0")
    words.add_argument("--rounds", type=int, default=ROUNDS)
    words.add_argument("--smoke", action="store_true", help="small, for the fake device")
    words.add_argument("--table", type=Path, help="written here too")
    asked = words.parse_args()
    try:
        device = open_device(asked.device)
    except LookupError as error:
        raise SystemExit(f"not measured: {error}") from None
    rows = list(Bench(device, 1024 if asked.smoke else 1, asked.rounds).rows())
    today = datetime.datetime.now(tz=datetime.UTC).strftime("%-d %B %Y")
    where = f"{today}, {device.description}, Python {platform.python_version()}"
    table = page.table(("what", "found", "bar", "kept"), rows)
    fake = "\n\nThe fake device: this shows that it works; its figures say nothing."
    said = f"{where}{fake if device.name.startswith('fake') else ''}\n\n{table}"
    print(said)
    if asked.table is not None:
        asked.table.write_text(said + "\n")


if __name__ == "__main__":
    main()
