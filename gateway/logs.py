"""Log lines, as the gateway writes them to stderr.

    text    2026-11-22 10:00:00,000 INFO pdgate.gateway.probe prefill-0 is up
    json    {"time": "2026-11-22T10:00:00.000Z", "level": "info", "logger": "...", "message": "..."}

A line of JSON has the fields of its record in place of the message where it has some (`extra`), as
those of calls do, and `error` with the traceback where there is one.
"""

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final, Literal

from pdgate.cluster import stderr
from pdgate.forwarders.record import Record

LOGGER: Final = "pdgate.calls"
LONGEST_PROMPT_BYTES: Final = 32 << 10
"""Of which a line has the beginning only."""

_ASKED: Final = (
    "messages", "prompt", "input", "system", "instructions", "token_ids", "input_ids", "text",
)  # fmt: skip
"""Fields of calls that hold what was asked."""

log = logging.getLogger(LOGGER)

Format = Literal["text", "json"]

TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"


class CallLog:
    """One line for each call, on the logger "pdgate.calls": what GET /debug/calls/<id> shows.

    What people wrote is not in it unless that was asked for.

    Attributes:
        wanted: Whether there is one.
        prompts: Whether it shows what was asked.
    """

    def __init__(self, wanted: bool = False, prompts: bool = False) -> None:
        self.wanted = wanted
        self.prompts = prompts

    def write(self, record: Record) -> None:
        """The record has ended."""
        fields = record.as_json()
        if self.prompts:
            fields["asked"] = _asked(record)
        log.info("%s", json.dumps(fields), extra={"fields": fields})


def _asked(record: Record) -> dict[str, Any]:
    """The fields as they came, or the beginning of their JSON if they are long."""
    found: dict[str, Any] = {}
    for name in _ASKED:
        raw = record.call.body.get(name)
        if raw is None:
            continue
        written = bytes(raw)
        if len(written) <= LONGEST_PROMPT_BYTES:
            found[name] = record.call.value(name, most_bytes=LONGEST_PROMPT_BYTES)
        else:
            found[name] = written[:LONGEST_PROMPT_BYTES].decode(errors="replace")
            found[f"{name}_bytes"] = len(written)
    return found


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": when.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields = getattr(record, "fields", None)
        if fields is None:
            line["message"] = record.getMessage()
        else:
            line |= fields
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        # Whatever it is, a line that cannot be written would hide what it was about.
        return json.dumps(line, default=str)


def log_to_stderr(level: str, format: Format) -> None:
    """Log to stderr in the whole process; a second time changes nothing."""
    stderr.log_to_stderr(level, JsonLines() if format == "json" else stderr.OneLine(TEXT))
    # One line per probe is noise unless one debugs probes.
    if level != "debug":
        logging.getLogger("httpx2").setLevel(logging.WARNING)
