"""Faults: what can go wrong between a gateway and an engine, as data.

All of it happens at the level of TCP: bytes come late, wrong or not at all, and connections
end. `after_bytes` counts bytes of the answer, its head included: with 0 the fault comes when
the engine begins to answer, so it has done its work by then, or part of it.
"""

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

Bytes = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
Rate = Annotated[int, Meta(ge=1)]


class Refuse(Struct, frozen=True, forbid_unknown_fields=True, tag_field="fault", tag="refuse"):
    """The connection is reset before the engine hears anything.

    A proxy has accepted it by then. `FaultProxy.away` is the engine that does not listen.
    """


class Delay(Struct, frozen=True, forbid_unknown_fields=True, tag_field="fault", tag="delay"):
    """The answer begins so much later, and is whole."""

    seconds: Seconds


class Cut(Struct, frozen=True, forbid_unknown_fields=True, tag_field="fault", tag="cut"):
    """The connection ends in the middle of the answer, as when the engine's process dies.

    Attributes:
        reset: By RST instead of FIN: the host, or something on the way, gave it up.
    """

    after_bytes: Bytes = 0
    reset: bool = False


class Stall(Struct, frozen=True, forbid_unknown_fields=True, tag_field="fault", tag="stall"):
    """The answer stops, and everything stays open; the engine is held up by backpressure."""

    after_bytes: Bytes = 0


class Corrupt(Struct, frozen=True, forbid_unknown_fields=True, tag_field="fault", tag="corrupt"):
    """One byte of the answer is another one.

    TCP's checksum lets one in some billions through. No gateway can notice a changed letter
    inside the text of an answer; it can notice a broken head, chunk size or event.
    """

    after_bytes: Bytes = 0


class SlowReader(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="fault", tag="slow_reader"
):
    """The engine reads the request slowly; a long one fills the buffers on the way."""

    bytes_per_second: Rate


class HalfOpen(Struct, frozen=True, forbid_unknown_fields=True, tag_field="fault", tag="half_open"):
    """The engine's host is gone without a sign: the engine's side is closed, ours stays open.

    What is sent to it vanishes. Unlike with a stall, the engine knows that the call is over.
    """

    after_bytes: Bytes = 0


Fault: TypeAlias = Refuse | Delay | Cut | Stall | Corrupt | SlowReader | HalfOpen


def name(fault: Fault) -> str:
    """Name of a fault in files and flags: "slow_reader"."""
    return str(fault.__struct_config__.tag)
