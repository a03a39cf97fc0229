"""The trace that a call is a part of, as HTTP headers say it.

    traceparent: 00-<trace: 32 hex>-<who asks: 16 hex>-<flags: 2 hex>      flag 1: it is sampled
    tracestate:  what other systems need to know; goes on as it came

Source: W3C Trace Context, level 1, sections 3.2 and 3.3. A header that is wrong, or there twice,
counts as none; of later versions what comes behind is passed over.
"""

import re
from random import getrandbits
from typing import Final, NamedTuple

from pdgate.protocols.call import Headers

TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
SAMPLED: Final = 1

_read = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?").fullmatch


class Parent(NamedTuple):
    """The span that a call comes from.

    Attributes:
        trace, span: Hexadecimal.
        sampled: Whether it is traced there, and so is to be here.
    """

    trace: str
    span: str
    sampled: bool


def parent_in(headers: Headers) -> Parent | None:
    found = [value for name, value in headers if name == TRACEPARENT]
    match = _read(found[0].strip()) if len(found) == 1 else None
    if match is None:
        return None
    version, trace, span, flags, more = match.groups()
    if version == b"ff" or (version == b"00" and more) or not (int(trace, 16) and int(span, 16)):
        return None
    return Parent(trace.decode(), span.decode(), bool(int(flags, 16) & SAMPLED))


def state_in(headers: Headers) -> str:
    """Several headers are one list."""
    return ",".join(value.decode("latin-1") for name, value in headers if name == TRACESTATE)


def traceparent(trace: str, span: str) -> str:
    """Header of a call that is sampled."""
    return f"00-{trace}-{span}-01"


def new_trace() -> str:
    return f"{getrandbits(128) or 1:032x}"


def new_span() -> str:
    return f"{getrandbits(64) or 1:016x}"
