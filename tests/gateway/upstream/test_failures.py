from datetime import UTC, datetime

import msgspec
import pytest

from pdgate.gateway.upstream.failures import failure, retry_after
from pdgate.protocols.errors import (
    EngineBusy,
    EngineFailed,
    EngineGaveUp,
    EngineRejected,
    EngineTooSlow,
    KvNotLoaded,
)
from pdgate.protocols.instance import Instance, Role

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
D0 = Instance("d0", "http://10.0.0.7:8000", Role.DECODE, "vllm-nixl")


def test_a_rejection_is_kept_word_for_word() -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"retry-after", b"3"),
        (b"server", b"uvicorn"),
        (b"set-cookie", b"x"),
        (b"content-length", b"5"),
    ]

    error = failure(422, headers, b"{...}", D0)

    assert isinstance(error, EngineRejected)
    assert (error.answer_status, error.body, error.at) == (422, b"{...}", "d0")
    assert error.headers == headers[:2]


def test_503_is_busy_and_says_when_to_come_back() -> None:
    error = failure(503, [(b"retry-after", b"7")], b"", D0)

    assert type(error) is EngineBusy
    assert error.retry_after_seconds == 7


@pytest.mark.parametrize("status", [101, 199, 301, 304, 500, 502, 504, 599, 999])
def test_everything_else_is_a_failure(status: int) -> None:
    error = failure(status, (), b"secret", D0)

    assert type(error) is EngineFailed
    assert not isinstance(error, EngineTooSlow)
    assert error.worth_retrying
    assert error.at == "d0"


def test_kv_that_did_not_come_is_no_fault_of_the_call() -> None:
    """Two engines that say so do not make it a call that breaks engines."""
    body = msgspec.json.encode(KvNotLoaded("KV cache could not be loaded: too late").as_openai())

    error = failure(500, (), body, D0)

    assert type(error) is EngineGaveUp
    assert error.at == "d0"


@pytest.mark.parametrize("status", [400, 500, 503])
def test_messages_name_no_address(status: int) -> None:
    message = str(failure(status, (), b"", D0))

    assert "10.0.0.7" not in message
    assert "d0" not in message


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"0", 0),
        (b"120", 120),
        (b"999999999", 86400),
        (b"9" * 5000, None),
        (b"-1", None),
        (b"soon", None),
        (b"", None),
        (b"\xff", None),
        (b"Thu, 01 Jan 2026 12:00:30 GMT", 30),
        (b"Thu, 01 Jan 2026 11:00:00 GMT", 0),
        (b"Thu, 01 Jan 99999 11:00:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: bytes, seconds: int | None) -> None:
    assert retry_after([(b"retry-after", value)], NOW) == seconds
