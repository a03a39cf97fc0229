"""The contract of the engine that owns the pages."""

from typing import Protocol


class MessengerCore(Protocol):
    """Every method is thread-safe."""

    def loaded(self, request_id: str, error: str | None = None) -> None:
        """The load of this request ended: its pages are filled, or `error` says why not.

        Exactly once per started load, also after `cancel`. No byte may land afterwards.
        """

    def gave_up(self, request_id: str, error: str) -> None:
        """The load failed, but bytes may still land: the pages stay taken until `loaded`."""

    def release(self, request_id: str) -> None:
        """The kept pages of a finished request are free. Unknown ids are ignored."""

    def abort(self, request_id: str) -> None:
        """This request is not needed any more, in whatever state it is."""
