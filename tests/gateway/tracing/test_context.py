"""Who asked for a call, as its headers say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.gateway.tracing.context import Parent, parent_in, state_in, traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def asked(*values: str) -> Parent | None:
    return parent_in([(b"traceparent", value.encode()) for value in values])


def test_who_asked() -> None:
    assert asked(f"00-{TRACE}-{SPAN}-01") == Parent(TRACE, SPAN, True)
    assert asked(f"00-{TRACE}-{SPAN}-02") == Parent(TRACE, SPAN, False)


def test_of_later_versions_more_may_come_behind() -> None:
    assert asked(f"01-{TRACE}-{SPAN}-01-more") == Parent(TRACE, SPAN, True)


@pytest.mark.parametrize(
    "value",
    [
        "",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
    ],
)
def test_what_is_wrong_counts_as_none(value: str) -> None:
    assert asked(value) is None


def test_two_that_ask_are_none() -> None:
    assert asked(f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01") is None
    assert asked() is None


def test_several_states_are_one_list() -> None:
    assert state_in([(b"tracestate", b"a=1"), (b"x", b"y"), (b"tracestate", b"b=2")]) == "a=1,b=2"


@given(st.binary(max_size=80))
def test_any_bytes_are_read(value: bytes) -> None:
    parent = parent_in([(b"traceparent", value)])
    assert parent is None or traceparent(parent.trace, parent.span)[:52].encode() in value[:52]
