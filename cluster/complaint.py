"""Complaint: a failure that lasts, in the log once for each reason, and once when it is over."""

from collections.abc import Iterator
from contextlib import contextmanager
from logging import Logger


class Complaint:
    def __init__(self, log: Logger, failed: str, again: str = "") -> None:
        """`again`: what is logged at the end of the failure; empty for nothing."""
        self._log = log
        self._failed = failed
        self._again = again
        self._why = ""

    def about(self, why: str) -> None:
        if why != self._why:
            self._log.warning("%s: %s", self._failed, why)
        self._why = why

    def over(self) -> None:
        if self._why and self._again:
            self._log.info(self._again)
        self._why = ""

    @contextmanager
    def catching(self, error: type[Exception]) -> Iterator[None]:
        """A block whose failure is logged and no more."""
        try:
            yield
        except error as found:
            self.about(str(found))
        else:
            self.over()
