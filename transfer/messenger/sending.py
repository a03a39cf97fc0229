"""P's side of a push, as a state machine. Pure: it says what to write, and when it is over.

    sending --all tiles landed--> over
       '----stop, or a write failed--> stopping --nothing in flight--> over

While anything is in flight P's own pages must not be used again either: a late write of
other bytes would count as if they were right.
"""

from dataclasses import dataclass

from pdgate.transfer.messenger.errors import HandOverError
from pdgate.transfer.messenger.tiles import Tiles


@dataclass(frozen=True, slots=True)
class Tile:
    layer: int
    number: int


class Sending:
    def __init__(self, tiles: Tiles) -> None:
        self.tiles = tiles
        self._error: HandOverError | None = None
        self._sent = [0] * tiles.layers
        self._in_flight = 0
        self._landed = 0

    @property
    def complete(self) -> bool:
        return self._landed == self.tiles.count

    @property
    def error(self) -> HandOverError | None:
        """Why it was stopped; the first reason stays.

        None if all has landed: D may know that before we do, and hang up.
        """
        return None if self.complete else self._error

    @property
    def over(self) -> bool:
        """No byte of it moves any more."""
        return self._in_flight == 0 and (self.complete or self.error is not None)

    def computed(self, layer: int, tokens: int) -> list[Tile]:
        """The tiles to write now; each is in flight until `landed` or `failed`."""
        if self._error is not None:
            return []
        ready = self.tiles.ready(tokens)
        due = [Tile(layer, number) for number in range(self._sent[layer], ready)]
        self._sent[layer] += len(due)
        self._in_flight += len(due)
        return due

    def landed(self) -> None:
        self._in_flight -= 1
        self._landed += 1

    def failed(self, error: HandOverError) -> None:
        self._in_flight -= 1
        self.stop(error)

    def stop(self, error: HandOverError) -> None:
        """Nothing new is written."""
        self._error = self._error or error
