"""One line for each call, on the logger "pdgate.calls": what GET /debug/calls/<id> shows.

What people wrote is not in it unless that was asked for.
"""

import json
import logging
from typing import Any, Final

from pdgate.forwarders.record import Record

LOGGER: Final = "pdgate.calls"
LONGEST_PROMPT_BYTES: Final = 32 << 10
"""Of which a line has the beginning only."""

_ASKED: Final = ("messages", "prompt", "input", "system", "instructions")
"""Fields of calls that hold what was asked."""

log = logging.getLogger(LOGGER)


class CallLog:
    """
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
            found[name] = record.call.value(name)
        else:
            found[name] = written[:LONGEST_PROMPT_BYTES].decode(errors="replace")
            found[f"{name}_bytes"] = len(written)
    return found
