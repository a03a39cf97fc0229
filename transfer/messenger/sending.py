"""P's side of a push, as a state machine. Pure: it says what to write, and when it is over.

    sending --all has landed--> over
       '----stop, or a write failed--> stopping --nothing in flight--> over

While anything is in flight P's own pages must not be used again either: a late write of
other bytes would count as if they were right.
"""

from pdgate.transfer.messenger.errors import HandOverError
from pdgate.transfer.messenger.tiles import Tile, Tiles


class Sending:
    def __init__(self, tiles: Tiles, *, with_context: bool = False) -> None:
        """`with_context`: one more write is due, when all is computed (context.py)."""
        self.tiles = tiles
        self._error: HandOverError | None = None
        self._computed = dict.fromkeys(tiles.layers, 0)
        self._sent = [0] * len(tiles.lanes)
        self._context_due = with_context
        self._missing = tiles.count + with_context
        self._in_flight = 0

    @property
    def complete(self) -> bool:
        return self._missing == 0

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
        if layer not in self._computed:
            return []
        self._computed[layer] = tokens
        if self._error is not None:
            return []
        lane = self.tiles.lane_of(layer)
        ready = self.tiles.ready(min(self._computed[other] for other in self.tiles.lanes[lane]))
        due = [Tile(lane, chunk) for chunk in range(self._sent[lane], ready)]
        self._sent[lane] += len(due)
        self._in_flight += len(due)
        return due

    def finished(self) -> bool:
        """All is computed. True if the context is to be written now, in flight like a tile."""
        due = self._context_due and self._error is None
        if due:
            self._context_due = False
            self._in_flight += 1
        return due

    def landed(self) -> None:
        self._in_flight -= 1
        self._missing -= 1

    def failed(self, error: HandOverError) -> None:
        self._in_flight -= 1
        self.stop(error)

    def stop(self, error: HandOverError) -> None:
        """Nothing new is written."""
        self._error = self._error or error
