"""Why a hand-over failed, by name."""

from enum import StrEnum


class Why(StrEnum):
    UNKNOWN = "unknown key"
    TAKEN = "taken key"
    EXPIRED = "expired"
    WRONG_SHAPE = "wrong layout"
    WRONG_ENGINE = "wrong engine"
    TOO_SHORT = "too few tokens"
    BAD_BLOCKS = "bad block ids"
    NOT_HELD = "no longer held"
    UNSUPPORTED = "unsupported"
    BROKEN = "broken peer"
    UNPROVEN = "unproven peer"
    SILENT = "silent peer"
    TOO_LATE = "too late"
    FULL = "full queue"
    BURIED = "given up"
    CLOSING = "closing"
    CANCELLED = "cancelled"


class HandOverError(Exception):
    """A hand-over failed; the request that needed it fails, nothing else."""

    def __init__(self, why: Why, message: str) -> None:
        super().__init__(f"{why}: {message}")
        self.why = why
        self.message = message
