"""Objects of the Batch API: files and batches, as clients read them and the state keeps them.

    validating --> in_progress --> finalizing --> completed | expired
        |   '----------|---------> cancelling --> cancelled
        '--> failed

Times are whole Unix seconds. Source: OpenAI API reference, "Batch" and "Files".
"""

import re
import secrets
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from pdgate.gateway.intake import TAKEN
from pdgate.protocols.errors import BadRequest

MOST_METADATA: Final = 16
LONGEST_METADATA_KEY: Final = 64
LONGEST_METADATA_VALUE: Final = 512
LONGEST_WINDOW_SECONDS: Final = 7 * 86400
_window = re.compile(r"([1-9][0-9]{0,6})([smhd])").fullmatch
_UNITS: Final[Mapping[str, int]] = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class BatchStatus(StrEnum):
    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


UNFINISHED: Final = (
    BatchStatus.VALIDATING,
    BatchStatus.IN_PROGRESS,
    BatchStatus.FINALIZING,
    BatchStatus.CANCELLING,
)
STOPPABLE: Final = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)


class StoredFile(msgspec.Struct, frozen=True):
    """
    Attributes:
        owner: Name of the API key that it belongs to; empty where no keys are asked for.
        expires_at: When it is deleted.
    """

    id: str
    owner: str
    filename: str
    purpose: str
    bytes: int
    created_at: int
    expires_at: int

    def as_json(self) -> dict[str, Any]:
        fields = msgspec.structs.asdict(self)
        del fields["owner"]
        return {"object": "file", "status": "processed", **fields}


class BatchObject(msgspec.Struct, frozen=True):
    """
    Attributes:
        owner: As of a file.
        rule: Of the token that began it (ApiKey.rule).
        errors: Why it failed: code, message, param and line of each.
        total, completed, failed: Lines; the last two count once it has ended.
        ends_as: What it becomes behind its finalizing.
    """

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    status: BatchStatus = BatchStatus.VALIDATING
    metadata: dict[str, str] | None = None
    errors: list[dict[str, Any]] = []
    total: int = 0
    completed: int = 0
    failed: int = 0
    ends_as: BatchStatus = BatchStatus.COMPLETED
    rule: str = ""
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None

    def becomes(self, status: BatchStatus, now: float, **more: Any) -> "BatchObject":
        """The same in another status, which it is from `now` on."""
        return msgspec.structs.replace(self, status=status, **{f"{status}_at": int(now)}, **more)

    def as_json(self, counts: tuple[int, int]) -> dict[str, Any]:
        """`counts`: lines with an answer, and with an error."""
        fields = msgspec.structs.asdict(self)
        for name in ("owner", "rule", "total", "completed", "failed", "ends_as"):
            del fields[name]
        fields["errors"] = {"object": "list", "data": self.errors} if self.errors else None
        fields["request_counts"] = {
            "total": self.total,
            "completed": counts[0],
            "failed": counts[1],
        }
        return {"object": "batch", **fields}


class BatchRequest(msgspec.Struct, frozen=True):
    """Body of POST /v1/batches; other fields of OpenAI's are of no meaning here."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None

    def checked(self) -> int:
        """Return the seconds of its window; raise BadRequest."""
        if self.endpoint not in TAKEN:
            raise BadRequest(
                f"a batch cannot call {self.endpoint!r}; it can call {', '.join(sorted(TAKEN))}",
                param="endpoint",
            )
        for key, said in (self.metadata or {}).items():
            if len(key) > LONGEST_METADATA_KEY or len(said) > LONGEST_METADATA_VALUE:
                raise BadRequest(
                    f"a key of the metadata has at most {LONGEST_METADATA_KEY} characters, its "
                    f"value {LONGEST_METADATA_VALUE}",
                    param="metadata",
                )
        if len(self.metadata or ()) > MOST_METADATA:
            raise BadRequest(f"the metadata has more than {MOST_METADATA} keys", param="metadata")
        return window_seconds(self.completion_window)


def window_seconds(text: str) -> int:
    """Raise BadRequest."""
    found = _window(text)
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < seconds <= LONGEST_WINDOW_SECONDS:
        raise BadRequest(
            "the completion window is 24h, or another time of up to 7d, as 30m or 2h",
            param="completion_window",
        )
    return seconds


def new_id(kind: str) -> str:
    """Make an id of 128 random bits: no id lets its owner guess another."""
    return f"{kind}{secrets.token_hex(16)}"
