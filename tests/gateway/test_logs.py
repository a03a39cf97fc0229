"""Lines of the log that machines read, and what they say of a call."""

import json
import logging
import sys
from typing import Any

import pytest

from pdgate.forwarders.record import Record
from pdgate.gateway.logs import LONGEST_PROMPT_BYTES, CallLog, JsonLines
from pdgate.protocols.usage import Usage
from tests.support.scripted import chat


def line_of(record: logging.LogRecord) -> dict[str, Any]:
    text = JsonLines().format(record)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def written(log: CallLog, record: Record, caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    caplog.set_level("INFO", "pdgate.calls")
    log.write(record)
    return line_of(caplog.records[-1])


def ended(**fields: object) -> Record:
    record = Record(chat(**fields))
    record.key = "team-a"
    record.end("ok", 200)
    # What the end finds of it in an answer, of which there is none here.
    record.usage = Usage(40, 16, None)
    return record


def test_any_line_is_json() -> None:
    record = logging.LogRecord("pdgate.x", 30, "x.py", 1, "%s is\nwell", ("d0",), None)

    found = line_of(record)

    assert found.pop("time").endswith("Z")
    assert found == {"level": "warning", "logger": "pdgate.x", "message": "d0 is\nwell"}


def test_a_traceback_stays_in_its_line() -> None:
    try:
        raise KeyError("gone")
    except KeyError:
        record = logging.LogRecord("pdgate.x", 40, "x.py", 1, "a bug", (), sys.exc_info())

    assert "KeyError: 'gone'" in line_of(record)["error"]


def test_a_call_is_one_line_with_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    found = written(CallLog(True), ended(), caplog)

    assert (found["logger"], found["id"], found["model"], found["key"], found["outcome"]) == (
        "pdgate.calls",
        "call-1",
        "m",
        "team-a",
        "ok",
    )
    assert found["tokens"] == {"prompt": 40, "generated": 16, "cached": None}
    assert "total" in found["stages_ms"]


def test_what_was_asked_is_shown_only_if_that_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    record = ended(messages=[{"role": "user", "content": "sesame"}], api_secret="s3cret")

    assert "sesame" not in json.dumps(written(CallLog(True), record, caplog))
    shown = written(CallLog(True, prompts=True), record, caplog)
    assert shown["asked"] == {"messages": [{"role": "user", "content": "sesame"}]}
    assert "s3cret" not in json.dumps(shown)


def test_of_a_long_prompt_the_beginning_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    record = ended(messages=[{"role": "user", "content": "x" * 2 * LONGEST_PROMPT_BYTES}])

    asked = written(CallLog(True, prompts=True), record, caplog)["asked"]

    assert len(asked["messages"]) == LONGEST_PROMPT_BYTES
    assert asked["messages_bytes"] > 2 * LONGEST_PROMPT_BYTES
