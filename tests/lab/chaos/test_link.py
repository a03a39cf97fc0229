"""Both connections of a link keep each other's pace."""

import asyncio
from typing import Any, cast

from pdgate.lab.chaos.link import ChaosLink, LinkOwner, Side
from pdgate.lab.chaos.passage import ChaosPassage
from tests.support.waiting import PATIENCE_SECONDS


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
    link = ChaosLink(cast(LinkOwner, None), asyncio.get_running_loop())
    near, far = Pipe(), Pipe()
    link.near.connection_made(near)
    link.far.connection_made(far)

    for side, other in ((link.near, far), (link.far, near)):
        side.pause_writing()
        assert not other.reads
        side.resume_writing()
        assert other.reads


async def test_reading_goes_on_when_the_last_reason_against_it_is_gone() -> None:
    link = ChaosLink(cast(LinkOwner, None), asyncio.get_running_loop())
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
    link = ChaosLink(cast(LinkOwner, None), asyncio.get_running_loop())
    near = Pipe()

    link.near.abort()
    link.near.connection_made(near)

    assert near.aborted


async def test_an_end_before_the_engine_is_even_dialled_is_an_end() -> None:
    """A task that is cancelled before its first step runs no line of its own."""

    class Wire(Pipe):
        def abort(self) -> None:
            link.near.connection_lost(None)

    class Engine:
        async def dial(self, far: Side) -> None:
            raise AssertionError("nobody is to be dialled any more")

        def passage(self, link: ChaosLink, first: bytes) -> ChaosPassage:
            return ChaosPassage(link)

        def ended(self, link: ChaosLink) -> None: ...

    link = ChaosLink(Engine(), asyncio.get_running_loop())
    link.near.connection_made(Wire())
    link.near.data_received(b"GET /health HTTP/1.1\r\n\r\n")

    async with asyncio.timeout(PATIENCE_SECONDS):
        await link.end()

    assert link.closed.done()
