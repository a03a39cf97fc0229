"""Load status that an engine reports: no account of ours can know it, as others may use it too."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Status:
    """One engine's last word on its load, a few seconds old at most.

    A field is None where the engine does not say it, which is not the same as idle.

    Attributes:
        kv_free: Share of KV pages that no request holds, 0..1.
        running: Requests in its batch.
        waiting: Requests that wait for a turn, for pages, or for their KV.
        step_seconds: Between two tokens of one request, lately.
        transferring: Of those that wait, the ones whose KV is under way.
        kv_tokens: Of how many its pages can hold the KV.
        queued_tokens: Prompt tokens that it has still to compute.
        queue_share: Prompts of a prefill queue, as many as will be its own if all take alike.
    """

    kv_free: float | None = None
    running: int | None = None
    waiting: int | None = None
    step_seconds: float | None = None
    transferring: int | None = None
    kv_tokens: int | None = None
    queued_tokens: int | None = None
    queue_share: int | None = None


@dataclass(frozen=True, slots=True)
class Beyond:
    """What an engine has beyond our account of it, as of its last word (scheduling/account.py).

    Attributes:
        calls: That other senders sent.
        unread_tokens: Of prompts that other senders sent.
        kv_tokens: Whose KV is held for others, for answers, or for prefill's readers; less than 0
            where our calls share pages.
        kv_capacity: Tokens whose KV it can hold; None where it does not say.
    """

    calls: int = 0
    unread_tokens: int = 0
    kv_tokens: int = 0
    kv_capacity: int | None = None


NOTHING: Final = Beyond()
