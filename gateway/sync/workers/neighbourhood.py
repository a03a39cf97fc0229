"""The other workers' rows under a key, and ours."""

import logging
from pathlib import Path

from pdgate.gateway.sync.workers.folder import Folder
from pdgate.gateway.sync.workers.table import ROWS, TABLE_BYTES, Table, TableView

log = logging.getLogger(__name__)


class Neighbourhood:
    """
    Attributes:
        others: How many other workers there were at the last look.
    """

    def __init__(self, folder: Path) -> None:
        """Raises OSError if there is no room in the folder."""
        self.others = 0
        self._folder = Folder(folder, "table", TABLE_BYTES)
        self._table = Table(self._folder.memory)
        self._views: dict[str, TableView] = {}
        self._changes = self._edition = 0
        self._rows: dict[int, list[memoryview]] = {}
        self._keys: dict[str, tuple[int, ...]] = {}
        self._full = False
        self.look()

    def look(self) -> None:
        """The workers that are there now."""
        others = self._folder.others()
        if others.keys() != self._views.keys():
            before = self._views
            self._views = {
                name: before.get(name) or TableView(memory) for name, memory in others.items()
            }
            self.others = len(others)
            self._match()
        elif any(view.keys() != self._keys[name] for name, view in self._views.items()):
            # A key that was seen after the change that it was part of.
            self._match()

    def edition(self) -> int:
        """What `theirs` has said is good for as long as this is the same."""
        if self._changes != sum(view.changes for view in self._views.values()):
            self._match()
        return self._edition

    def theirs(self, key: int) -> list[memoryview]:
        return self._rows.get(key, [])

    def give(self, key: int) -> memoryview | None:
        """Our row; None if there are no more, and then we keep it for ourselves."""
        row = self._table.give(key)
        if row is None and not self._full:
            self._full = True
            log.warning("more than %d engines and sets of them: of some, workers do not tell", ROWS)
        return row

    def take_back(self, key: int) -> None:
        self._table.take_back(key)

    def close(self) -> None:
        """The others hear no more of us, nor we of them."""
        self.others = self._changes = 0
        self._views.clear()
        self._rows.clear()
        self._edition += 1
        self._folder.close()

    def _match(self) -> None:
        # Before the rows: what changes while they are read is found the next time.
        self._changes = sum(view.changes for view in self._views.values())
        self._edition += 1
        self._rows = {}
        self._keys = {name: view.keys() for name, view in self._views.items()}
        for view in self._views.values():
            for key, row in view.rows().items():
                self._rows.setdefault(key, []).append(row)
