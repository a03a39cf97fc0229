"""One look at the headers must find what going through all of them would."""

import pytest

from pdgate.gateway.intake import Intake
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.protocols.call import Headers
from pdgate.protocols.errors import BadRequest, UnsupportedMediaType

JSON = (b"content-type", b"application/json")
INTAKE = Intake(1 << 20)


def passed(*headers: tuple[bytes, bytes]) -> Headers:
    call = INTAKE.call("/v1/chat/completions", RequestHeaders(headers), b'{"model": "m"}', "call-1")
    return list(call.headers)


def test_the_first_counts_of_what_is_said_twice() -> None:
    request_headers = RequestHeaders([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])

    assert request_headers.named == {b"a": b"1", b"b": b"2"}
    assert request_headers.twice
    assert [request_headers.times(name) for name in (b"a", b"b", b"c")] == [2, 1, 0]


def test_nothing_is_said_twice() -> None:
    request_headers = RequestHeaders([(b"a", b"1"), (b"b", b"1")])

    assert not request_headers.twice
    assert [request_headers.times(name) for name in (b"a", b"c")] == [1, 0]


def test_what_engines_get_is_found_among_the_rest() -> None:
    session, trace = (b"x-session-id", b"s"), (b"traceparent", b"t")

    assert passed((b"host", b"g"), JSON) == []
    assert passed((b"host", b"g"), session, JSON, trace) == [session, trace]


def test_engines_get_all_of_what_is_said_twice() -> None:
    state = [(b"tracestate", b"a=1"), (b"tracestate", b"b=2")]

    assert passed(*state, JSON) == state


@pytest.mark.parametrize(
    "headers",
    [
        [(b"content-type", b"text/plain")],
        [JSON, (b"content-type", b"text/plain")],
        [(b"content-type", b"text/plain"), JSON],
        [JSON, (b"content-encoding", b"gzip")],
        [JSON, (b"content-encoding", b"identity"), (b"content-encoding", b"gzip")],
    ],
)
def test_what_is_no_json_is_refused_wherever_it_says_so(headers: Headers) -> None:
    with pytest.raises(UnsupportedMediaType):
        passed(*headers)


def test_an_address_is_found_in_each_of_two_ids() -> None:
    bad, good = (b"x-request-id", b"a_10.0.0.1:80"), (b"x-request-id", b"mine")

    for headers in ([bad], [bad, good], [good, bad]):
        with pytest.raises(BadRequest, match="address"):
            passed(*headers)


def test_the_first_id_that_may_be_used_is_the_calls() -> None:
    unusable, mine = (b"x-request-id", b"no spaces"), (b"x-request-id", b"mine")

    assert INTAKE.call_id(RequestHeaders([mine])) == "mine"
    assert INTAKE.call_id(RequestHeaders([unusable, mine])) == "mine"
    assert INTAKE.call_id(RequestHeaders([unusable])) != "no spaces"
    assert INTAKE.call_id(RequestHeaders([])) != INTAKE.call_id(RequestHeaders([]))
