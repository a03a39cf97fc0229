"""What tenants have taken, in a file: for the next start of a gateway that shares nothing in Redis.

    {"version": 1, "accounts": {"team-a": [...]}}         the numbers of account.py

Written every SAVE_SECONDS where something has changed, and at the end; so a gateway that is killed forgets what was
taken since. Any worker writes the accounts of all, whole, and a file is replaced at once.
"""

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pdgate.cluster import regular
from pdgate.cluster.complaint import Complaint
from pdgate.gateway.tenants.account import WORDS
from pdgate.gateway.tenants.local import MOST_TENANTS, NAME_BYTES

log = logging.getLogger(__name__)

FILE: Final = "tenants.json"
SAVE_SECONDS: Final = 2.0
VERSION: Final = 1
_MOST: Final = 1 << 62


class SavedAccounts:
    """
    Args:
        changes: How often something has changed.
    """

    def __init__(
        self,
        folder: Path,
        accounts: Callable[[], dict[str, list[int]]],
        changes: Callable[[], int],
        save_seconds: float = SAVE_SECONDS,
    ) -> None:
        self._path = folder / FILE
        self._accounts = accounts
        self._changes = changes
        self._writing = threading.Lock()
        self._saved = 0
        self._seconds = save_seconds
        self._complaint = Complaint(log, "what tenants have taken cannot be saved")

    async def run(self) -> None:
        """Run until cancelled; `close` is for the end."""
        while True:
            await asyncio.sleep(self._seconds)
            if (changes := self._changes()) != self._saved:
                await asyncio.to_thread(self._write, changes, self._accounts())

    def close(self) -> None:
        if (changes := self._changes()) != self._saved:
            self._write(changes, self._accounts())

    def _write(self, changes: int, accounts: dict[str, list[int]]) -> None:
        """What is not written is written the next time, whether anything has changed since or not."""
        said = json.dumps({"version": VERSION, "accounts": accounts}).encode()
        with self._writing, self._complaint.catching(OSError):
            # Cancelled, `run` leaves its thread behind, which may come after `close`.
            if changes >= self._saved:
                regular.replace(self._path, said)
                self._saved = changes


def read(folder: Path) -> dict[str, list[int]]:
    """Name -> account. What cannot be read is a warning, and counted from nothing."""
    path = folder / FILE
    try:
        found = json.loads(regular.read(str(path)))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        log.warning("what tenants had taken cannot be read, so it counts from nothing: %s", error)
        return {}
    accounts = found.get("accounts") if isinstance(found, dict) else None
    if not isinstance(accounts, dict) or found.get("version") != VERSION:
        log.warning("%s is not a file of accounts, so they count from nothing", path)
        return {}
    good = {name: numbers for name, numbers in accounts.items() if _is_account(name, numbers)}
    return dict(list(good.items())[:MOST_TENANTS])


def _is_account(name: str, numbers: Any) -> bool:
    return (
        0 < len(name.encode(errors="replace")) <= NAME_BYTES
        and isinstance(numbers, list)
        and len(numbers) == WORDS
        and all(type(number) is int and 0 <= number < _MOST for number in numbers)
    )
