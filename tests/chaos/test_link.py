"""Both connections of a link keep each other's pace."""

import asyncio
from typing import Any, cast

from pdgate.chaos.link import Link, Owner


class Pipe(asyncio.Transport):
    """A transport that only remembers whether it is read from."""

    reads = True
    aborted = False

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return False


async def test_a_slow_gateway_holds_the_engine_up_and_the_other_way_round() -> None:
    """Else the proxy would take away the backpressure that it is there to test."""
    link = Link(cast(Owner, None), asyncio.get_running_loop())
    near, far = Pipe(), Pipe()
    link.near.connection_made(near)
    link.far.connection_made(far)

    for side, other in ((link.near, far), (link.far, near)):
        side.pause_writing()
        assert not other.reads
        side.resume_writing()
        assert other.reads


async def test_reading_goes_on_when_the_last_reason_against_it_is_gone() -> None:
    link = Link(cast(Owner, None), asyncio.get_running_loop())
    far: Any = Pipe()
    link.far.connection_made(far)

    link.far.hold("one")
    link.far.hold("another")
    link.far.release("one")
    assert not far.reads
    link.far.release("another")
    assert far.reads


async def test_a_connection_that_is_made_after_the_end_ends_at_once() -> None:
    """It was accepted while the proxy was closing; nobody else would ever end it."""
    link = Link(cast(Owner, None), asyncio.get_running_loop())
    near = Pipe()

    link.near.abort()
    link.near.connection_made(near)

    assert near.aborted
