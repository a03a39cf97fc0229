"""Progress: a spinner and a tick on a terminal, plain lines in a file or a pipe."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console


class Screen:
    def __init__(self, *, stderr: bool = False) -> None:
        # A log wants whole lines and no colours; both follow from what the stream is.
        self._console = Console(soft_wrap=True, highlight=False, stderr=stderr)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Shows that `what` is under way, and how long it took once it is done."""
        began = monotonic()
        with self._console.status(f"{what} ..."):
            yield
        self.line(f"[green]ok[/green]  {what} ({monotonic() - began:.1f} s)")

    def line(self, text: str = "") -> None:
        """One line; square brackets are rich's markup."""
        self._console.print(text)

    def verbatim(self, text: str) -> None:
        """One line of somebody else's words, brackets and all."""
        self._console.print(text, markup=False)

    def piece(self, text: str) -> None:
        """A part of a line, at once."""
        self._console.print(text, end="", markup=False)
        self._console.file.flush()
