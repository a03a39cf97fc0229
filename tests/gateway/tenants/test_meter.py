"""What engines are asked for of a call whose tokens are counted, and what passes of their answers."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from pdgate.gateway.tenants.meter import asking
from pdgate.protocols.call import CHAT, Call, parse_object
from pdgate.protocols.errors import BadRequest
from pdgate.protocols.fields import MOST_LIST_BYTES, MOST_VALUE_BYTES


def chat(**fields: Any) -> Call:
    body = msgspec.json.encode({"model": "m", "messages": [], "stream": True, **fields})
    return Call("a", "a-1", CHAT, parse_object(body), streams=True)


LONG = {"x": "a" * MOST_VALUE_BYTES}


@pytest.mark.parametrize(
    ("options", "asks"),
    [
        ({}, False),
        ({"include_usage": None}, False),
        ({"include_usage": False}, False),
        ({"include_usage": "false"}, False),
        ({"include_usage": "0"}, False),
        ({"include_usage": [0]}, False),
        ({"include_usage": False, **LONG}, False),
        ({"include_usage": True}, True),
        ({"include_usage": 1}, True),
        ({"include_usage": "yes"}, True),
        ({"include_usage": True, **LONG}, True),
    ],
)
def test_an_engine_is_asked_for_usage_whatever_the_client_says(
    options: Mapping[str, Any], asks: bool
) -> None:
    """A flag as engines read it: "false" is false, and 1 is true."""
    asked, client_asks = asking(chat(stream_options=options))

    assert client_asks is asks
    assert asked.value("stream_options", most_bytes=MOST_LIST_BYTES) == {
        **options,
        "include_usage": True,
    }


@pytest.mark.parametrize("fields", [{}, {"stream_options": None}])
def test_the_same_without_options(fields: Mapping[str, Any]) -> None:
    asked, client_asks = asking(chat(**fields))

    assert (asked.value("stream_options"), client_asks) == ({"include_usage": True}, False)


@pytest.mark.parametrize("options", ["x", [], False, {"x": "a" * MOST_LIST_BYTES}])
def test_options_that_cannot_be_read_are_refused(options: object) -> None:
    """An engine might read them, and leave the usage out."""
    with pytest.raises(BadRequest, match="stream_options"):
        asking(chat(stream_options=options))
