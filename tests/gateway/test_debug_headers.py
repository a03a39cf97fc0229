"""x-pd-path tells how an answer came about, in a word."""

import pytest

from pdgate.forwarders.record import (
    DECODE_ONLY,
    DISAGGREGATED,
    LOCAL,
    PLAIN,
    PREFILL_ONLY,
    Record,
)
from pdgate.gateway.debug import path_headers
from tests.support.scripted import chat


@pytest.mark.parametrize(
    ("path", "attempts", "told"),
    [
        (DISAGGREGATED, 1, b"disaggregated"),
        (LOCAL, 1, b"local"),
        (DECODE_ONLY, 1, b"decode-only"),
        (PREFILL_ONLY, 1, b"prefill-only"),
        (PLAIN, 1, b"plain"),
        (DISAGGREGATED, 2, b"retried"),
        (LOCAL, 3, b"retried"),
        (DECODE_ONLY, 3, b"decode-only"),
    ],
)
def test_the_way_of_a_call(path: str, attempts: int, told: bytes) -> None:
    record = Record(chat())
    record.path, record.attempts = path, attempts

    assert dict(path_headers(record))[b"x-pd-path"] == told
