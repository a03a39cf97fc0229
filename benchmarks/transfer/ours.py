"""The two ends of a backend, used as an engine and its mover use it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.transfer.ends import SECONDS, Far, Near
from pdgate.transfer import descriptors, registry
from pdgate.transfer.base import Range


class FarRegion(Far):
    def __init__(
        self, backend: str, options: Mapping[str, Any], length: int, *, registered: bool
    ) -> None:
        """`registered`: the memory is ours and the backend is only told of it."""
        self._backend = registry.load(backend, **options)
        if registered:
            self._region = self._backend.register(memoryview(bytearray(length)))
        else:
            self._region = self._backend.allocate(length)
        self.memory = self._region.memory
        self.card = descriptors.as_data(self._region.descriptor)

    def close(self) -> None:
        self._backend.close()


class NearRegion(Near):
    def __init__(
        self, backend: str, options: Mapping[str, Any], length: int, card: Mapping[str, Any]
    ) -> None:
        self._backend = registry.load(backend, **options)
        self._region = self._backend.allocate(length)
        self._remote = descriptors.from_data(dict(card))
        self.memory = self._region.memory

    def begin(self, ranges: Sequence[Range]) -> Callable[[], None]:
        transfer = self._backend.write(self._region, self._remote, ranges, SECONDS)
        return lambda: transfer.wait(SECONDS)

    def close(self) -> None:
        self._backend.close()
