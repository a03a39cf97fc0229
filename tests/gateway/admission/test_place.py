import pytest

from pdgate.gateway.admission.place import urgency
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.protocols.errors import BadRequest


def test_who_says_nothing_has_the_urgency_of_its_key() -> None:
    assert urgency(RequestHeaders([(b"accept", b"*/*")]), own=4) == 4


def test_a_call_may_be_less_urgent_than_its_key() -> None:
    assert urgency(RequestHeaders([(b"x-priority", b" 6")]), own=4) == 6


def test_a_call_is_never_more_urgent_than_its_key() -> None:
    assert urgency(RequestHeaders([(b"x-priority", b"0")]), own=4) == 4


@pytest.mark.parametrize("said", [b"", b"8", b"-1", b"high", b"1.5"])
def test_what_is_not_on_the_scale_is_refused(said: bytes) -> None:
    with pytest.raises(BadRequest, match="0 to 7"):
        urgency(RequestHeaders([(b"x-priority", said)]), own=3)
