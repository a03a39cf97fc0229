"""Stands before a core, which is told of a failed load only if it stays failed.

`ended` sees how each load ends, and may start it anew, into the same pages: nothing can land
in them any more.
"""

from collections.abc import Callable

from pdgate.transfer.messenger.core import Core

Ended = Callable[[str, str | None], bool]
"""Gets the request and its error, if any. True if another load of it was started."""


class SecondTries(Core):
    def __init__(self, core: Core, ended: Ended, given_up: Callable[[str], None]) -> None:
        """`given_up` gets the request of a load that failed while bytes may still land."""
        self._core = core
        self._ended = ended
        self._given_up = given_up

    def loaded(self, request_id: str, error: str | None = None) -> None:
        if not self._ended(request_id, error):
            self._core.loaded(request_id, error)

    def gave_up(self, request_id: str, error: str) -> None:
        self._given_up(request_id)
        self._core.gave_up(request_id, error)

    def release(self, request_id: str) -> None:
        self._core.release(request_id)

    def abort(self, request_id: str) -> None:
        self._core.abort(request_id)
