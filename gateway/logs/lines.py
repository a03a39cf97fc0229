"""How a line of the log looks.

    text    2026-11-22 10:00:00,000 INFO pdgate.gateway.probe prefill-0 is up
    json    {"time": "2026-11-22T10:00:00.000Z", "level": "info", "logger": "...", "message": "..."}

A line of JSON has the fields of its record in place of the message where it has some (`extra`), as
those of calls do, and `error` with the traceback where there is one.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal

Format = Literal["text", "json"]

TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"


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
    """For the whole process; a second time changes nothing."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # One line per probe is noise unless one debugs probes.
    if level != "debug":
        logging.getLogger("httpx2").setLevel(logging.WARNING)
