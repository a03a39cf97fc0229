"""What an engine says of its own load, which no account of ours can know: others may use it too."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Status:
    """One engine's last word on its load, a few seconds old at most.

    A field is None where the engine does not say it, which is not the same as idle.

    Attributes:
        kv_free: Share of KV pages that nobody holds, 0..1.
        running: Requests in its batch.
        waiting: Requests that wait for a turn, for pages, or for their KV.
        step_seconds: Between two tokens of one request, lately.
    """

    kv_free: float | None = None
    running: int | None = None
    waiting: int | None = None
    step_seconds: float | None = None
